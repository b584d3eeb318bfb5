//! [`Payload`]: what a checkpoint holds, read piece by piece out of the files of pages.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::format::{Listed, Piece};

/// Bytes read at a time.
const READ_BYTES: usize = 1 << 20;

/// Pages that cannot be used.
pub(super) enum PageError {
    /// A file system error.
    Io { path: PathBuf, source: io::Error },
    /// They are not what was written.
    Damaged(String),
}

/// The payload of a checkpoint.
#[derive(Debug)]
pub struct Payload(BufReader<Pieces>);

impl Payload {
    /// Its length.
    pub(super) fn bytes(&self) -> u64 {
        self.0.get_ref().pieces.iter().map(|piece| piece.bytes).sum()
    }
}

impl Read for Payload {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

#[derive(Debug)]
struct Pieces {
    files: Vec<File>,
    pieces: Vec<Piece>,
    /// Number of the piece at hand.
    at: usize,
    /// Bytes of it that were read.
    done: u64,
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(piece) = self.pieces.get(self.at) {
            if self.done == piece.bytes {
                (self.at, self.done) = (self.at + 1, 0);
                continue;
            }
            let left = usize::try_from(piece.bytes - self.done).unwrap_or(usize::MAX);
            let wanted = left.min(into.len());
            let file = self.files.get(piece.file as usize).ok_or(ErrorKind::InvalidData)?;
            let read = file.read_at(&mut into[..wanted], piece.offset + self.done)?;
            if read == 0 && wanted > 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.done += read as u64;
            return Ok(read);
        }
        Ok(0)
    }
}

/// Opens the pages of a checkpoint in `dir` and reads them through once to check them.
pub(super) fn open(dir: &Path, listed: &Listed) -> Result<Payload, PageError> {
    let mut files = Vec::new();
    for page_file in &listed.files {
        let path = dir.join(&page_file.name);
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        match opened {
            Ok((bytes, file)) if bytes == page_file.bytes => files.push(file),
            Ok((bytes, _)) => {
                let (name, listed) = (&page_file.name, page_file.bytes);
                return Err(PageError::Damaged(format!("its file {name} has {bytes} bytes, not {listed}")));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(PageError::Damaged(format!("its file {} is missing", page_file.name)));
            }
            Err(source) => return Err(PageError::Io { path, source }),
        }
    }
    let mut chunk = vec![0; READ_BYTES];
    for piece in &listed.pieces {
        let about = listed.files.get(piece.file as usize).zip(files.get(piece.file as usize));
        let fits = |bytes: u64| piece.offset.checked_add(piece.bytes).is_some_and(|end| end <= bytes);
        let Some((about, file)) = about.filter(|(about, _)| fits(about.bytes)) else {
            return Err(PageError::Damaged("a piece of it lies behind the end of its file".to_owned()));
        };
        let sum = checksum(file, piece, &mut chunk)
            .map_err(|source| PageError::Io { path: dir.join(&about.name), source })?;
        if sum != piece.crc32c {
            let (name, offset, expected) = (&about.name, piece.offset, piece.crc32c);
            return Err(PageError::Damaged(format!(
                "checksum {sum:08x} where {expected:08x} is written, in its file {name} at byte {offset}"
            )));
        }
    }
    let pieces = Pieces { files, pieces: listed.pieces.clone(), at: 0, done: 0 };
    Ok(Payload(BufReader::with_capacity(READ_BYTES, pieces)))
}

fn checksum(file: &File, piece: &Piece, chunk: &mut [u8]) -> io::Result<u32> {
    let (mut sum, mut at, mut left) = (0, piece.offset, piece.bytes);
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
        let part = &mut chunk[..count];
        file.read_exact_at(part, at)?;
        sum = crc32c::crc32c_append(sum, part);
        (at, left) = (at + count as u64, left - count as u64);
    }
    Ok(sum)
}
