//! [`CheckpointWriter`]: writes one checkpoint after another, of each what the one before did not have.
//!
//! It remembers 128 bits of hash of every chunk, 40 bytes for 16 KiB: 10 MB for a payload of 4 GB. Keeping the
//! pages themselves to compare would take up to twice the memory of what changes. The hash has a seed that nobody
//! knows, since rows that clients push are among the bytes; and a chunk taken for another would not have the
//! checksum of its piece.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::format::{self, Listed, PageFile, Piece};
use super::pages::{NAMING, new_name};
use super::{CheckpointError, CheckpointFile, CheckpointHead, UNFINISHED_SUFFIX, name};
use crate::device::disk::{Pace, PacedFile};

/// Longest chunk. A table of rows by node changes in as many places as nodes had events, so the shorter, the less is
/// written for each.
const CHUNK_BYTES: usize = 16 << 10;

/// Bytes written at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Where a chunk lies.
#[derive(Clone, Copy)]
struct Place {
    file: u32,
    bytes: u32,
    offset: u64,
}

/// The last checkpoint that was written.
#[derive(Default)]
struct Last {
    chunks: HashMap<u128, Place>,
    files: Vec<PageFile>,
    /// Length of its payload.
    bytes: u64,
    /// How many were written since one that is whole by itself, that one included.
    count: u64,
}

/// Writes the checkpoints of a folder.
pub struct CheckpointWriter {
    dir: PathBuf,
    full_every: u64,
    seed: u64,
    last: Last,
    /// Bytes that the last one wrote.
    written: u64,
}

impl CheckpointWriter {
    /// One of `full_every` checkpoints refers to none before it; the first does not.
    #[must_use]
    pub fn new(dir: &Path, full_every: u64) -> Self {
        let seed = Uuid::new_v4().as_u64_pair().0;
        Self { dir: dir.to_path_buf(), full_every, seed, last: Last::default(), written: 0 }
    }

    /// Bytes that the last checkpoint wrote.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the last checkpoint refers to none before it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.last.files.len() == 1
    }

    /// Writes what `save` writes as a checkpoint. It refers to none before it if it is `full`, and if it is its turn:
    /// after so many, or when the files that the last one refers to are half as long again as what it needs of them.
    ///
    /// # Errors
    /// When the file system or `save` fails. As long as no file has got the final name, the next one goes on from the
    /// one before: where the disk has no room for a full one, it still has for what changed.
    pub fn write(
        &mut self,
        head: CheckpointHead,
        full: bool,
        pace: Pace<'_>,
        save: impl FnOnce(&mut Sink<'_>) -> io::Result<()>,
    ) -> Result<CheckpointFile, CheckpointError> {
        let held: u64 = self.last.files.iter().map(|file| file.bytes).sum();
        let is_turn = self.last.count >= self.full_every || held > self.last.bytes / 2 * 3;
        let none = Last::default();
        let last = if full || is_turn { &none } else { &self.last };
        let pages = new_name(&self.dir, head.position.0);
        let unfinished = [name(head.position), pages.clone()]
            .map(|name| self.dir.join(format!("{name}{UNFINISHED_SUFFIX}")));
        let failed = |source| CheckpointError::Io { path: self.dir.join(name(head.position)), source };
        let (file, last, written) =
            self.write_files(head, (last, pages), &unfinished, pace, save).map_err(|source| {
                // Unfinished files are useless; that they cannot be removed either changes nothing.
                unfinished.iter().for_each(|path| drop(std::fs::remove_file(path)));
                failed(source)
            })?;
        // Where this fails, nobody knows which of the two the disk has under that name.
        if let Err(source) = File::open(&self.dir).and_then(|dir| dir.sync_all()) {
            let error = failed(source);
            self.last = Last::default();
            return Err(error);
        }
        (self.last, self.written) = (last, written);
        Ok(file)
    }

    /// Writes the files and gives them their final names. Returns how many bytes they have, too.
    fn write_files(
        &self,
        head: CheckpointHead,
        (last, pages): (&Last, String),
        [list_path, pages_path]: &[PathBuf; 2],
        pace: Pace<'_>,
        save: impl FnOnce(&mut Sink<'_>) -> io::Result<()>,
    ) -> io::Result<(CheckpointFile, Last, u64)> {
        let mut sink = Sink {
            out: PacedFile::new(File::create(pages_path)?, pace),
            seed: self.seed,
            file: last.files.len() as u32,
            known: &last.chunks,
            written: 0,
            chunk: Vec::with_capacity(CHUNK_BYTES),
            buffer: Vec::with_capacity(WRITE_BYTES),
            chunks: HashMap::new(),
            pieces: Vec::new(),
        };
        save(&mut sink)?;
        sink.end_chunk()?;
        sink.write_buffer()?;
        let Sink { out, written, mut chunks, mut pieces, .. } = sink;
        out.finish()?;
        let mut files = last.files.clone();
        files.push(PageFile { name: pages.clone(), bytes: written });
        let numbers = keep_used(&mut files, &mut pieces);
        chunks.values_mut().for_each(|place| place.file = numbers[place.file as usize]);
        let bytes = pieces.iter().map(|piece| piece.bytes).sum();
        let names = files.iter().map(|file| file.name.clone()).collect();
        let (listed, crc32c) = format::encode(&Listed { head, files: files.clone(), pieces });
        let mut list = File::create(list_path)?;
        list.write_all(&listed)?;
        list.sync_all()?;
        {
            let _naming = NAMING.lock();
            match written {
                0 => std::fs::remove_file(pages_path)?,
                _ => std::fs::rename(pages_path, self.dir.join(pages))?,
            }
            // Whatever is durable of this, the pages are before the file that lists them.
            File::open(&self.dir)?.sync_all()?;
            std::fs::rename(list_path, self.dir.join(name(head.position)))?;
        }
        let count = if files.len() > 1 { last.count + 1 } else { 1 };
        let file = CheckpointFile { name: name(head.position), head, bytes, crc32c, pages: names };
        Ok((file, Last { chunks, files, bytes, count }, written + listed.len() as u64))
    }
}

/// Leaves out the files of which no piece is. Returns the new number of each.
fn keep_used(files: &mut Vec<PageFile>, pieces: &mut [Piece]) -> Vec<u32> {
    let mut used = vec![false; files.len()];
    pieces.iter().for_each(|piece| used[piece.file as usize] = true);
    let numbers: Vec<u32> = used
        .iter()
        .scan(0, |next, is_used| {
            let number = *next;
            *next += u32::from(*is_used);
            Some(number)
        })
        .collect();
    pieces.iter_mut().for_each(|piece| piece.file = numbers[piece.file as usize]);
    let mut is_used = used.into_iter();
    files.retain(|_| is_used.next().unwrap_or_default());
    numbers
}

/// Takes the payload of a checkpoint that is being written. [`flush`](Write::flush) ends a chunk: what comes behind it
/// is found again in the next checkpoint however much longer what is in front of it has become.
pub struct Sink<'a> {
    out: PacedFile<'a>,
    seed: u64,
    /// Number of the file that is written.
    file: u32,
    /// The chunks of the checkpoint before.
    known: &'a HashMap<u128, Place>,
    /// Bytes of the file.
    written: u64,
    /// What is not a whole chunk yet.
    chunk: Vec<u8>,
    /// What is not in the file yet.
    buffer: Vec<u8>,
    /// The chunks of this checkpoint.
    chunks: HashMap<u128, Place>,
    pieces: Vec<Piece>,
}

impl Sink<'_> {
    fn end_chunk(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let (hash, bytes) = (xxh3_128_with_seed(&self.chunk, self.seed), self.chunk.len() as u32);
        let known = self.known.get(&hash).or_else(|| self.chunks.get(&hash));
        let place = match known.filter(|place| place.bytes == bytes) {
            Some(place) => *place,
            None => self.put_chunk(bytes)?,
        };
        self.chunks.insert(hash, place);
        match self.pieces.last_mut() {
            Some(piece) if piece.file == place.file && piece.offset + piece.bytes == place.offset => {
                piece.crc32c = crc32c::crc32c_append(piece.crc32c, &self.chunk);
                piece.bytes += u64::from(bytes);
            }
            _ => {
                let crc32c = crc32c::crc32c(&self.chunk);
                let Place { file, offset, .. } = place;
                self.pieces.push(Piece { file, crc32c, offset, bytes: bytes.into() });
            }
        }
        self.chunk.clear();
        Ok(())
    }

    fn put_chunk(&mut self, bytes: u32) -> io::Result<Place> {
        if self.buffer.len() + self.chunk.len() > WRITE_BYTES {
            self.write_buffer()?;
        }
        self.buffer.extend_from_slice(&self.chunk);
        let offset = self.written;
        self.written += u64::from(bytes);
        Ok(Place { file: self.file, bytes, offset })
    }

    fn write_buffer(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = &bytes[..bytes.len().min(CHUNK_BYTES - self.chunk.len())];
        self.chunk.extend_from_slice(taken);
        if self.chunk.len() == CHUNK_BYTES {
            self.end_chunk()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_chunk()
    }
}
