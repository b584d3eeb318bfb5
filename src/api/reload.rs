//! Values that are read from files, and again when one of the files was written: keys, certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

/// When a file was written, and how long it is; `None` if it is not there.
type Stamp = Option<(Option<SystemTime>, u64)>;

/// A value and the files that it comes from. What cannot be read leaves the value as it is.
pub(super) struct Reloaded<T, const FILES: usize> {
    files: [PathBuf; FILES],
    value: ArcSwap<T>,
    seen: Mutex<[Stamp; FILES]>,
}

impl<T, const FILES: usize> Reloaded<T, FILES> {
    /// What `read` makes of the files.
    pub fn open<E>(
        files: [PathBuf; FILES],
        read: impl FnOnce(&[PathBuf; FILES]) -> Result<T, E>,
    ) -> Result<Self, E> {
        // Looked at before they are read: what is written meanwhile is read again.
        let seen = Mutex::new(files.each_ref().map(|path| stamp(path)));
        let value = ArcSwap::from_pointee(read(&files)?);
        Ok(Self { files, value, seen })
    }

    /// Reads again if a file was written since; whether one was. An error is told once.
    pub fn refresh<E>(&self, read: impl FnOnce(&[PathBuf; FILES]) -> Result<T, E>) -> Result<bool, E> {
        let found: [Stamp; FILES] = self.files.each_ref().map(|path| stamp(path));
        if found == std::mem::replace(&mut *self.seen.lock(), found) {
            return Ok(false);
        }
        self.value.store(Arc::new(read(&self.files)?));
        Ok(true)
    }

    /// The value.
    pub fn get(&self) -> Guard<Arc<T>> {
        self.value.load()
    }
}

fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((found.modified().ok(), found.len()))
}
