//! What was learned, as a file: all that the learner needs to go on bit for bit, the log position it stands
//! at, and the history of the log that it was learned from.
//!
//! ```text
//! magic "EVGCKPT5" | position u64 | history u64 | model version u64 | began i64
//!   | payload | payload length u64 | CRC-32C u32 of all before
//! ```
//!
//! A file is written beside its final name, synced and renamed, so a file with a final name is whole
//! unless the disk damaged it; the checksum finds that. Payloads are as large as the node memory, so they
//! are streamed both ways and never stand in memory as a whole.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::event::EdgeId;

/// What the name of a whole checkpoint ends with.
pub const SUFFIX: &str = ".checkpoint";
/// What the name of an unfinished one ends with.
pub const UNFINISHED_SUFFIX: &str = ".checkpoint.tmp";

const MAGIC: &[u8; 8] = b"EVGCKPT5";
const HEAD_BYTES: usize = 40;
const TAIL_BYTES: usize = 12;
/// Bytes written and read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// A file system error.
    #[error("checkpoint {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's message.
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("checkpoint {path} is damaged: {detail}; an older one is used if there is one")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was expected and found.
        detail: String,
    },
}

/// The header of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointHead {
    /// The learner's position in the log.
    pub position: EdgeId,
    /// Which history of the log was learned up to there; see [`LogReaders::history`](crate::log::LogReaders).
    pub history: u64,
    /// Version of the weights.
    pub model_version: u64,
    /// When the learning that led here began, with nothing learned, Unix milliseconds.
    pub began_unix_ms: i64,
}

/// A complete and durable checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// File name inside the checkpoint folder.
    pub name: String,
    /// Its header.
    pub head: CheckpointHead,
    /// Size in bytes.
    pub bytes: u64,
    /// CRC-32C of the content before the checksum.
    pub crc32c: u32,
}

/// Takes the payload of a checkpoint that is being written.
pub struct Sink<'a> {
    file: File,
    crc32c: u32,
    bytes: u64,
    pulse: &'a dyn Fn(),
    /// What is not in the file yet.
    buffer: Vec<u8>,
}

impl Sink<'_> {
    fn flush_buffer(&mut self) -> io::Result<()> {
        (self.pulse)();
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.crc32c = crc32c::crc32c_append(self.crc32c, taken);
        self.bytes += taken.len() as u64;
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush_buffer()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_buffer()
    }
}

/// What a checkpoint of this position is called.
#[must_use]
pub fn name(position: EdgeId) -> String {
    format!("{:020}{SUFFIX}", position.0)
}

/// Writes what `save` writes as a checkpoint into `dir`. Calls `pulse` every so often.
///
/// # Errors
/// When the file system or `save` fails; then no file has the final name.
pub fn write(
    dir: &Path,
    head: CheckpointHead,
    pulse: &dyn Fn(),
    save: impl FnOnce(&mut Sink<'_>) -> io::Result<()>,
) -> Result<CheckpointFile, CheckpointError> {
    let name = name(head.position);
    let path = dir.join(&name);
    let unfinished = dir.join(format!("{:020}{UNFINISHED_SUFFIX}", head.position.0));
    let write = || -> io::Result<(u64, u32)> {
        let file = File::create(&unfinished)?;
        let buffer = Vec::with_capacity(CHUNK_BYTES);
        let mut sink = Sink { file, crc32c: 0, bytes: 0, pulse, buffer };
        sink.write_all(MAGIC)?;
        for word in [head.position.0, head.history, head.model_version] {
            sink.write_all(&word.to_le_bytes())?;
        }
        sink.write_all(&head.began_unix_ms.to_le_bytes())?;
        save(&mut sink)?;
        let length = sink.bytes - HEAD_BYTES as u64;
        sink.write_all(&length.to_le_bytes())?;
        let crc32c = sink.crc32c;
        sink.write_all(&crc32c.to_le_bytes())?;
        sink.flush()?;
        sink.file.sync_all()?;
        pulse();
        std::fs::rename(&unfinished, &path)?;
        File::open(dir)?.sync_all()?;
        Ok((sink.bytes, crc32c))
    };
    match write() {
        Ok((bytes, crc32c)) => Ok(CheckpointFile { name, head, bytes, crc32c }),
        Err(source) => {
            // The unfinished file is useless; that it cannot be removed either changes nothing.
            let _ = std::fs::remove_file(&unfinished);
            Err(CheckpointError::Io { path, source })
        }
    }
}

/// A checkpoint whose checksum was verified.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file and its header.
    pub file: CheckpointFile,
    /// What was saved, from its beginning.
    pub payload: Take<BufReader<File>>,
}

/// Opens a checkpoint and reads it through once to check it.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let failed = |source| CheckpointError::Io { path: path.to_path_buf(), source };
    let damaged = |detail| CheckpointError::Damaged { path: path.to_path_buf(), detail };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let too_few = || damaged(format!("{bytes} bytes are too few"));
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, file);
    let mut magic = [0; MAGIC.len()];
    if bytes < magic.len() as u64 {
        return Err(too_few());
    }
    reader.read_exact(&mut magic).map_err(failed)?;
    if &magic != MAGIC {
        let (found, ours) = (String::from_utf8_lossy(&magic), String::from_utf8_lossy(MAGIC));
        return Err(damaged(format!("it begins with {found:?}, not with {ours:?}")));
    }
    let Some(payload_bytes) = bytes.checked_sub((HEAD_BYTES + TAIL_BYTES) as u64) else {
        return Err(too_few());
    };
    let mut head = magic.to_vec();
    head.resize(HEAD_BYTES, 0);
    reader.read_exact(&mut head[MAGIC.len()..]).map_err(failed)?;
    let mut sum = crc32c::crc32c(&head);
    let mut rest = (&mut reader).take(payload_bytes);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match rest.read(&mut chunk).map_err(failed)? {
            0 => break,
            count => sum = crc32c::crc32c_append(sum, &chunk[..count]),
        }
    }
    let mut tail = [0; TAIL_BYTES];
    reader.read_exact(&mut tail).map_err(failed)?;
    sum = crc32c::crc32c_append(sum, &tail[..8]);
    let expected = u32::from_le_bytes(std::array::from_fn(|i| tail[8 + i]));
    if sum != expected {
        return Err(damaged(format!("checksum {sum:08x} where {expected:08x} is written")));
    }
    let length = u64::from_le_bytes(std::array::from_fn(|i| tail[i]));
    if length != payload_bytes {
        return Err(damaged(format!("{payload_bytes} payload bytes where {length} are announced")));
    }
    reader.seek(SeekFrom::Start(HEAD_BYTES as u64)).map_err(failed)?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    let head = CheckpointHead {
        position: EdgeId(word(8)),
        history: word(16),
        model_version: word(24),
        began_unix_ms: word(32).cast_signed(),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = CheckpointFile { name, head, bytes, crc32c: sum };
    Ok(Checkpoint { file, payload: reader.take(payload_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, position: u64, payload: &[u8]) -> CheckpointFile {
        let head =
            CheckpointHead { position: EdgeId(position), history: 5, model_version: 6, began_unix_ms: -7 };
        write(dir, head, &|| (), |sink| sink.write_all(payload)).unwrap()
    }

    #[test]
    fn what_is_written_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        for size in [0, 16, CHUNK_BYTES - HEAD_BYTES, 3 * CHUNK_BYTES + 7] {
            let payload: Vec<u8> = (0..size).map(|i| (i * 31 % 251) as u8).collect();
            let file = put(dir.path(), 42, &payload);
            let path = dir.path().join(&file.name);
            assert_eq!(std::fs::metadata(&path).unwrap().len(), file.bytes);
            let mut read = open(&path).unwrap();
            assert_eq!(read.file, file);
            let mut found = Vec::new();
            read.payload.read_to_end(&mut found).unwrap();
            assert!(found == payload, "{size}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn a_file_of_another_version_is_refused_by_its_first_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(put(dir.path(), 7, b"payload").name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[7] -= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("EVGCKPT4") && error.contains("EVGCKPT5"), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(put(dir.path(), 7, b"payload").name);
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            assert!(matches!(open(&path), Err(CheckpointError::Damaged { .. })), "bit {bit}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(open(&path), Err(CheckpointError::Damaged { .. })), "length {length}");
        }
    }

    #[test]
    fn a_large_payload_is_written_in_parts_with_a_pulse_for_each() {
        let dir = tempfile::tempdir().unwrap();
        let pulses = std::cell::Cell::new(0);
        let pulse = || pulses.set(pulses.get() + 1);
        let row = vec![7; CHUNK_BYTES / 2 + 1];
        let save = |sink: &mut Sink<'_>| (0..20).try_for_each(|_| sink.write_all(&row));
        write(dir.path(), CheckpointHead::default(), &pulse, save).unwrap();
        assert!(pulses.get() >= 10, "{}", pulses.get());
    }

    #[test]
    fn a_save_that_fails_leaves_nothing_and_a_folder_that_is_not_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let head = CheckpointHead::default();
        let failed = write(dir.path(), head, &|| (), |_| Err(io::Error::other("no")));
        assert!(matches!(failed, Err(CheckpointError::Io { .. })));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let error = write(Path::new("/nonexistent/folder"), head, &|| (), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/folder"), "{error}");
    }
}
