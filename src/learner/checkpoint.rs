//! What was learned, as files: all that the learner needs to go on bit for bit, the log position it stands at, and the
//! history of the log that it was learned from.
//!
//! Payloads are as large as the node memory, of which little changes between two checkpoints. So a payload is cut into
//! chunks, and only those are written that the checkpoint before did not have: into a file of pages, which is never
//! changed. A checkpoint is a small file that lists where the pieces of its payload lie, in its own pages and in those
//! of checkpoints before it, with a checksum of each:
//!
//! ```text
//! <position>.checkpoint: magic "EVGCKPT5" | position u64 | history u64 | model version u64 | began i64
//!   | files of pages u32: name u16 and bytes, length u64 | pieces u64: file u32, CRC-32C u32, offset u64, length u64
//!   | CRC-32C u32 of all before
//! <position>.<number>.pages: chunks, one after another
//! ```
//!
//! Every so often one is written that refers to no pages before its own: damage to a file of pages reaches no further,
//! and what was deleted is gone from the disk when none before it is kept. The first one after a start is such a one,
//! so nothing has to be read to write the next.
//!
//! Pages are synced before the file that lists them is renamed to its final name. So a checkpoint with a final name is
//! whole unless the disk damaged it; the checksums find that. Pages that no checkpoint lists are [removed](prune).

mod format;
mod pages;
mod payload;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::event::EdgeId;

pub use pages::{PAGES_SUFFIX, files, prune};
pub use payload::Payload;
pub use writer::{CheckpointWriter, Sink};

use crate::device::disk::Pace;

/// What the name of a whole checkpoint ends with.
pub const SUFFIX: &str = ".checkpoint";
/// What the names of unfinished files end with.
pub const UNFINISHED_SUFFIX: &str = ".tmp";

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

/// A complete and durable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// File name inside the checkpoint folder.
    pub name: String,
    /// Its header.
    pub head: CheckpointHead,
    /// Length of the payload, bytes, wherever they lie.
    pub bytes: u64,
    /// CRC-32C of the file, which holds those of the payload.
    pub crc32c: u32,
    /// The files of pages that it refers to.
    pub pages: Vec<String>,
}

/// What a checkpoint of this position is called.
#[must_use]
pub fn name(position: EdgeId) -> String {
    format!("{:020}{SUFFIX}", position.0)
}

/// Writes what `save` writes as a checkpoint into `dir`, all of it.
///
/// # Errors
/// When the file system or `save` fails; then no file has the final name.
pub fn write(
    dir: &Path,
    head: CheckpointHead,
    pace: Pace<'_>,
    save: impl FnOnce(&mut Sink<'_>) -> io::Result<()>,
) -> Result<CheckpointFile, CheckpointError> {
    CheckpointWriter::new(dir, 1).write(head, true, pace, save)
}

/// A checkpoint whose checksums were verified.
#[derive(Debug)]
pub struct Checkpoint {
    /// The file and its header.
    pub file: CheckpointFile,
    /// What was saved, from its beginning.
    pub payload: Payload,
}

/// Opens a checkpoint and reads it through once to check it.
///
/// # Errors
/// When a file cannot be read, is missing or is damaged.
pub fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let (listed, crc32c) = pages::list(path)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let damaged = |detail| CheckpointError::Damaged { path: path.to_path_buf(), detail };
    let payload = payload::open(dir, &listed).map_err(|error| match error {
        payload::PageError::Io { path, source } => CheckpointError::Io { path, source },
        payload::PageError::Damaged(detail) => damaged(detail),
    })?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let pages = listed.files.into_iter().map(|file| file.name).collect();
    let file = CheckpointFile { name, head: listed.head, bytes: payload.bytes(), crc32c, pages };
    Ok(Checkpoint { file, payload })
}

#[cfg(test)]
mod tests;
