//! What was learned, as a file: all that the trainer needs to go on bit for bit, and the log position
//! it stands at. Everything else is rebuilt from the log.
//!
//! ```text
//! magic "EVGCKPT1" | position u64 | payload length u64 | payload | CRC-32C of all before
//! ```
//!
//! A file is written beside its final name, synced and renamed, so a file with a final name is whole
//! unless the disk damaged it; the checksum finds that.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::event::EdgeId;

const MAGIC: &[u8; 8] = b"EVGCKPT1";
const HEAD_BYTES: usize = 24;
const SUM_BYTES: usize = 4;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("checkpoint {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's words.
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

/// A complete and durable checkpoint file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// File name inside the checkpoint folder.
    pub name: String,
    /// The learner's position in the log.
    pub position: EdgeId,
    /// Size in bytes.
    pub bytes: u64,
    /// CRC-32C of the content before the checksum.
    pub crc32c: u32,
}

/// Writes `payload` as the checkpoint at `position` into `dir`.
///
/// # Errors
/// When the file system refuses; nothing with a final name is left then.
pub fn write(dir: &Path, position: EdgeId, payload: &[u8]) -> Result<CheckpointFile, CheckpointError> {
    let name = format!("{:020}.checkpoint", position.0);
    let path = dir.join(&name);
    let fail = |source| CheckpointError::Io { path: path.clone(), source };
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..16].copy_from_slice(&position.0.to_le_bytes());
    head[16..].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    let crc32c = crc32c::crc32c_append(crc32c::crc32c(&head), payload);
    let unfinished = dir.join(format!("{name}.tmp"));
    let write = || -> io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(&head)?;
        file.write_all(payload)?;
        file.write_all(&crc32c.to_le_bytes())?;
        file.sync_all()?;
        std::fs::rename(&unfinished, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|error| {
        // The unfinished file is useless; that it cannot be removed either changes nothing.
        let _ = std::fs::remove_file(&unfinished);
        fail(error)
    })?;
    let bytes = (HEAD_BYTES + payload.len() + SUM_BYTES) as u64;
    Ok(CheckpointFile { name, position, bytes, crc32c })
}

/// Reads a checkpoint: its position and payload.
///
/// # Errors
/// When the file cannot be read or is damaged.
pub fn read(path: &Path) -> Result<(EdgeId, Vec<u8>), CheckpointError> {
    let damaged = |detail: String| CheckpointError::Damaged { path: path.to_path_buf(), detail };
    let mut content =
        std::fs::read(path).map_err(|source| CheckpointError::Io { path: path.to_path_buf(), source })?;
    if content.len() < HEAD_BYTES + SUM_BYTES {
        return Err(damaged(format!("{} bytes are too few", content.len())));
    }
    let sum_at = content.len() - SUM_BYTES;
    let found = crc32c::crc32c(&content[..sum_at]);
    let expected = u32::from_le_bytes(content[sum_at..].try_into().unwrap_or_default());
    if &content[..8] != MAGIC {
        return Err(damaged("it does not begin with EVGCKPT1".to_owned()));
    }
    if found != expected {
        return Err(damaged(format!("checksum {found:08x} where {expected:08x} is written")));
    }
    let word = |at: usize| u64::from_le_bytes(content[at..at + 8].try_into().unwrap_or_default());
    let (position, length) = (word(8), word(16));
    if length != (sum_at - HEAD_BYTES) as u64 {
        return Err(damaged(format!("{} payload bytes where {length} are announced", sum_at - HEAD_BYTES)));
    }
    content.truncate(sum_at);
    content.drain(..HEAD_BYTES);
    Ok((EdgeId(position), content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), EdgeId(42), b"what was learned").unwrap();
        let path = dir.path().join(&file.name);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), file.bytes);
        let (position, payload) = read(&path).unwrap();
        assert_eq!((position, payload.as_slice()), (EdgeId(42), &b"what was learned"[..]));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), EdgeId(7), b"payload").unwrap();
        let path = dir.path().join(&file.name);
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            assert!(matches!(read(&path), Err(CheckpointError::Damaged { .. })), "bit {bit}");
        }
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(matches!(read(&path), Err(CheckpointError::Damaged { .. })), "length {length}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = write(Path::new("/nonexistent/folder"), EdgeId(0), b"").unwrap_err().to_string();
        assert!(error.contains("/nonexistent/folder"), "{error}");
    }
}
