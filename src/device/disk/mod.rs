//! Pages on disk, where what does not fit in memory waits, and the pace of large files that are written beside the
//! work.
//!
//! A [`PageFile`] is read and written in whole pages of 4 KiB, so that the kernel's cache can be passed by and
//! memory stays within the budgets. Many extents are read by one call, which keeps as many requests in
//! flight as the engine can. A [`SpillFile`] is one on a real disk, read through io_uring where the kernel has
//! it and with plain calls elsewhere. A read gives everything it was asked for or an error that names file,
//! offset and cause.
//!
//! What is spilled can be made again from the log: no page is synced, and none outlives the process. A [`PacedFile`] is
//! synced as it is written.
//! Knows nothing of what the pages hold; owners keep checksums of theirs.

mod buffer;
mod file;
mod paced;
mod pread;
mod runs;
mod uring;

use std::io;
use std::path::PathBuf;

use thiserror::Error;

pub use buffer::{PAGE_BYTES, PageBuffer};
pub use file::{EngineChoice, SpillFile};
pub use paced::{Pace, PacedFile, WriteRate};

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first page.
    pub page: u64,
    /// How many, at least one.
    pub pages: usize,
}

impl Extent {
    /// Where it begins, in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        self.page * PAGE_BYTES as u64
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.pages * PAGE_BYTES
    }
}

/// A read or a write of a spill file that failed.
#[derive(Debug, Error)]
#[error("{operation} {bytes} bytes at offset {offset} of the spill file {}: {source}", path.display())]
pub struct DiskError {
    /// "reading" or "writing".
    pub operation: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub bytes: usize,
    /// Why.
    pub source: io::Error,
}

/// A file of pages. Reads and writes may run at the same time, but not of the same page.
pub trait PageFile: Send + Sync {
    /// Reads all `extents` into `into`, one after another from its begin.
    ///
    /// # Errors
    /// The first that failed; what `into` holds then is not to be used.
    ///
    /// # Panics
    /// When `into` has fewer pages than the extents together.
    fn read(&self, extents: &[Extent], into: &mut PageBuffer) -> Result<(), DiskError>;

    /// Writes the first `pages` pages of `from`, beginning at page `page` of the file, which grows as needed.
    ///
    /// # Errors
    /// Not everything was written; those pages of the file hold anything.
    fn write(&self, page: u64, from: &PageBuffer, pages: usize) -> Result<(), DiskError>;

    /// Declares that the pages before `page` will not be read again: the disk may have their place.
    fn discard_below(&self, page: u64);

    /// How it reads, for people.
    fn engine(&self) -> String;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile};

    pub mod faulty;
}
