//! [`SpillFile`]: pages in a file without a name, which the disk gets back when the process ends, however
//! it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::fs::{FallocateFlags, fallocate};

use super::runs::{Run, runs};
use super::uring::Uring;
use super::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile, pread};

/// Which way pages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The fastest that works here.
    #[default]
    Auto,
    /// One system call per request, by several threads when there are many.
    Pread,
    /// Many requests in flight from one thread; an error where the kernel does not offer it.
    IoUring,
}

/// Distinguishes the files of a process while they have names.
static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A file of pages on a real disk.
pub struct SpillFile {
    file: File,
    path: PathBuf,
    direct: bool,
    /// Where reads go through io_uring.
    uring: Option<Uring>,
}

impl SpillFile {
    /// A new, empty file in the folder `dir`.
    ///
    /// # Errors
    /// The file cannot be made or unlinked, or `choice` asks for what the kernel does not offer.
    pub fn create(dir: &Path, name: &str, choice: EngineChoice) -> io::Result<Self> {
        let uring = match choice {
            EngineChoice::Auto => Uring::new().ok(),
            EngineChoice::Pread => None,
            EngineChoice::IoUring => Some(Uring::new()?),
        };
        let path = dir.join(format!("{name}-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed)));
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = options.clone().create_new(true).open(&path)?;
        let direct = options.custom_flags(O_DIRECT).open(&path).and_then(takes_pages);
        std::fs::remove_file(&path)?;
        // Some file systems, in memory for instance, know no direct access.
        let (file, direct) = direct.map_or((file, false), |direct| (direct, true));
        Ok(Self { file, path, direct, uring })
    }
}

/// Flag of `open` that passes the kernel's cache by.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const O_DIRECT: i32 = 0x4000;
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const O_DIRECT: i32 = 0x10000;

/// The file, empty, if the disk below it takes direct requests as small as a page.
fn takes_pages(file: File) -> io::Result<File> {
    match file.read_at(PageBuffer::zeros(1).bytes_mut(), 0) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
        _ => {}
    }
    match file.write_at(PageBuffer::zeros(1).bytes(), 0) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
        _ => file.set_len(0)?,
    }
    Ok(file)
}

impl PageFile for SpillFile {
    fn read(&self, extents: &[Extent], into: &mut PageBuffer) -> Result<(), DiskError> {
        let (runs, bytes) = runs(extents);
        let into = &mut into.bytes_mut()[..bytes];
        // One request alone gains nothing from a ring.
        let uring = self.uring.filter(|_| runs.len() > 1);
        let read = uring.and_then(|uring| uring.read(&self.file, &runs, into));
        let read = read.unwrap_or_else(|| pread::read(&self.file, &runs, into));
        read.map_err(|failed| failed.reading(&self.path))
    }

    fn write(&self, page: u64, from: &PageBuffer, pages: usize) -> Result<(), DiskError> {
        let (offset, bytes) = (page * PAGE_BYTES as u64, pages * PAGE_BYTES);
        let mut rest = Run { offset, at: 0, bytes };
        let from = &from.bytes()[..bytes];
        while rest.bytes > 0 {
            let written = match self.file.write_at(&from[rest.at..], rest.offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
                Err(error) => Err(error),
                // Where only a piece of a page fits there is no room.
                Ok(put) => rest.advance(put).map_err(|_| io::ErrorKind::StorageFull.into()),
            };
            written.map_err(|source| DiskError {
                operation: "writing",
                path: self.path.clone(),
                offset: rest.offset,
                bytes: rest.bytes,
                source,
            })?;
        }
        Ok(())
    }

    fn discard_below(&self, page: u64) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A file system that knows no holes keeps the place until the file ends.
        let _ = fallocate(&self.file, mode, 0, page * PAGE_BYTES as u64);
    }

    fn engine(&self) -> String {
        let engine = if self.uring.is_some() { "io_uring" } else { "pread" };
        format!("{engine}, {}", if self.direct { "direct" } else { "cached" })
    }
}

#[cfg(test)]
mod tests;
