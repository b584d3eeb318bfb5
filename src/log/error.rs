//! What can go wrong with the log, each with its operands and what to do about it.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::event::EdgeId;

/// Why the log could not be opened, written or read.
#[derive(Debug, Error)]
pub enum LogError {
    /// The operating system refused.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On which file or directory.
        path: PathBuf,
        /// The operating system's words.
        source: io::Error,
    },
    /// Another process, or another part of this one, writes this log.
    #[error(
        "the event log in {} is in use by another process; stop it, or give this one its own directory",
        dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// A file of the directory is not a segment of an event log.
    #[error("{} is not a segment of an event log (it begins with {found:02x?}); move it away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its first bytes, or the bytes of its name if the name is at fault.
        found: Vec<u8>,
    },
    /// The frame was written by another version of this program.
    #[error(
        "{} at byte {offset}: frame format {found}, but this version reads format {expected}; \
         use the version that wrote it",
        path.display()
    )]
    Version {
        /// The segment.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// The format this version reads.
        expected: u16,
        /// The format in the file.
        found: u16,
    },
    /// Bytes that were durable have changed or are gone.
    #[error(
        "{} at byte {offset}: {what} is {found:#x}, expected {expected:#x}; the frame of position {position} is \
         damaged. Restore the file from a copy; or, to give up every record from position {position} on, run \
         `truncate -s {offset}` on it and move later segments and the file DURABLE away",
        path.display()
    )]
    Corrupt {
        /// The segment.
        path: PathBuf,
        /// Where the damaged frame begins.
        offset: u64,
        /// First position that cannot be read.
        position: EdgeId,
        /// Which check failed.
        what: &'static str,
        /// What the check expects.
        expected: u64,
        /// What the file holds.
        found: u64,
    },
    /// The checksums of a frame hold but its content contradicts itself: the writer was at fault, not the disk.
    #[error(
        "{} at byte {offset}: checksums hold, but {what} is {found} where {expected} is allowed; \
         the frame was written by faulty software, please report it",
        path.display()
    )]
    Malformed {
        /// The segment.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// What contradicts itself.
        what: &'static str,
        /// What would have been consistent.
        expected: u64,
        /// What the frame holds.
        found: u64,
    },
    /// Positions do not follow one another: a segment is missing, renamed or cut short.
    #[error(
        "{} at byte {offset} begins with position {found}, expected {expected}; \
         a segment is missing, renamed or cut short: restore it from a copy",
        path.display()
    )]
    Gap {
        /// The segment.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// The position that should stand there.
        expected: EdgeId,
        /// The position that does.
        found: EdgeId,
    },
    /// The last segment lacks bytes that were durable.
    #[error(
        "{} has {found} bytes, but {expected} of them were durable: the records from position {position} up to {end} \
         are gone. Restore the file from a copy; or, to give these records up, move {} away",
        path.display(), mark.display()
    )]
    CutShort {
        /// The segment.
        path: PathBuf,
        /// How many of its bytes were durable.
        expected: u64,
        /// Its length without a torn tail, bytes; 0 if it is missing.
        found: u64,
        /// First position that is gone.
        position: EdgeId,
        /// One past the last position that is gone.
        end: EdgeId,
        /// The file that says so.
        mark: PathBuf,
    },
    /// The caller appended a frame that does not follow the last one.
    #[error("a frame for position {found} was appended where position {expected} is next; append in order")]
    OutOfOrder {
        /// The next position of the log.
        expected: EdgeId,
        /// The position of the frame.
        found: EdgeId,
    },
    /// The columns of an appended frame do not agree.
    #[error("column {column} of an appended frame has {found} entries, expected {expected}")]
    Shape {
        /// The column.
        column: &'static str,
        /// The length it should have.
        expected: usize,
        /// The length it has.
        found: usize,
    },
    /// An appended frame is larger than a frame may be.
    #[error("an appended frame has {bytes} bytes, but at most {limit} fit; append it in parts")]
    TooLarge {
        /// Its encoded payload, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
}

impl LogError {
    pub(super) fn io(operation: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { operation, path: path.into(), source }
    }

    /// Whether the log could not be written for want of space: retry once there is some.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded))
    }
}
