//! Values read from files and reloaded when a file changes: keys, certificates.
//!
//! A file that is being written may be unreadable for a moment, as may a pair of files written one after the other. So
//! a failed read is retried on every refresh, and reported when it fails in the same way twice in a row.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// Identifies a version of a file: device, inode, length, and seconds and nanoseconds of its last change, permissions
/// included; `None` if the file does not exist.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A value and the files that it comes from. A failed read leaves the value unchanged.
pub(super) struct Reloaded<T, const FILES: usize> {
    files: [PathBuf; FILES],
    value: ArcSwap<T>,
    last: Mutex<Last<FILES>>,
}

/// State of the last read.
struct Last<const FILES: usize> {
    stamps: [Stamp; FILES],
    /// The error, and how often in a row it occurred.
    failed: Option<(String, u32)>,
}

impl<T, const FILES: usize> Reloaded<T, FILES> {
    /// Loads the value with `read`.
    pub fn open<E>(
        files: [PathBuf; FILES],
        read: impl FnOnce(&[PathBuf; FILES]) -> Result<T, E>,
    ) -> Result<Self, E> {
        // Taken before the read: a file that is written meanwhile is read again.
        let last = Mutex::new(Last { stamps: files.each_ref().map(|path| stamp(path)), failed: None });
        let value = ArcSwap::from_pointee(read(&files)?);
        Ok(Self { files, value, last })
    }

    /// Reads again if a file changed since, or if the last read failed; returns whether there is a new value. An error
    /// is returned once, when it occurs for the second time in a row.
    pub fn refresh<E: Display>(
        &self,
        read: impl FnOnce(&[PathBuf; FILES]) -> Result<T, E>,
    ) -> Result<bool, E> {
        let found = self.files.each_ref().map(|path| stamp(path));
        let mut last = self.last.lock();
        if found == std::mem::replace(&mut last.stamps, found) && last.failed.is_none() {
            return Ok(false);
        }
        match read(&self.files) {
            Ok(value) => {
                last.failed = None;
                self.value.store(Arc::new(value));
                Ok(true)
            }
            Err(error) => {
                let message = error.to_string();
                let before = last
                    .failed
                    .take()
                    .filter(|(previous, _)| *previous == message)
                    .map_or(0, |(_, times)| times);
                last.failed = Some((message, before.saturating_add(1)));
                if before == 1 { Err(error) } else { Ok(false) }
            }
        }
    }

    /// The value.
    pub fn get(&self) -> Guard<Arc<T>> {
        self.value.load()
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}
