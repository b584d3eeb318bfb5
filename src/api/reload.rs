//! Values that are read from files, and again when one of the files was changed: keys, certificates.
//!
//! A file that is being written, or two that belong together and are written one after the other, may not be readable
//! for a moment: what fails is read again each time, and told when it fails in the same way twice in a row.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// What changes with a file: device, inode, length, and seconds and nanoseconds of its last change, rights included;
/// `None` if it is not there.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// A value and the files that it comes from. What cannot be read leaves the value as it is.
pub(super) struct Reloaded<T, const FILES: usize> {
    files: [PathBuf; FILES],
    value: ArcSwap<T>,
    last: Mutex<Last<FILES>>,
}

/// The last time that the files were read.
struct Last<const FILES: usize> {
    stamps: [Stamp; FILES],
    /// How it failed, and how often in a row.
    failed: Option<(String, u32)>,
}

impl<T, const FILES: usize> Reloaded<T, FILES> {
    /// What `read` makes of the files.
    pub fn open<E>(
        files: [PathBuf; FILES],
        read: impl FnOnce(&[PathBuf; FILES]) -> Result<T, E>,
    ) -> Result<Self, E> {
        // Looked at before they are read: what is written meanwhile is read again.
        let last = Mutex::new(Last { stamps: files.each_ref().map(|path| stamp(path)), failed: None });
        let value = ArcSwap::from_pointee(read(&files)?);
        Ok(Self { files, value, last })
    }

    /// Reads again if a file was changed since, or if that failed; whether there is a new value. An error is told
    /// once, when it stands for the second time.
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
                let how = error.to_string();
                let before =
                    last.failed.take().filter(|(said, _)| *said == how).map_or(0, |(_, times)| times);
                last.failed = Some((how, before.saturating_add(1)));
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
