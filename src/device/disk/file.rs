//! [`SpillFile`]: pages in a file without a name, which the disk gets back when the process ends, however
//! it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile};

/// Which way pages are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// The fastest that works here.
    #[default]
    Auto,
    /// One system call per extent.
    Pread,
}

/// A file of pages on a real disk.
pub struct SpillFile {
    file: File,
    path: PathBuf,
    direct: bool,
}

impl SpillFile {
    /// A new, empty file in the folder `dir`.
    ///
    /// # Errors
    /// The file cannot be made or unlinked.
    pub fn create(dir: &Path, name: &str, _choice: EngineChoice) -> io::Result<Self> {
        let path = dir.join(name);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let direct = options.clone().custom_flags(O_DIRECT).open(&path);
        let (file, direct) = match direct {
            Ok(file) => (file, true),
            // Some file systems, in memory for instance, know no direct access.
            Err(_) => (options.open(&path)?, false),
        };
        std::fs::remove_file(&path)?;
        Ok(Self { file, path, direct })
    }

    fn failed(&self, operation: &'static str, offset: u64, bytes: usize, source: io::Error) -> DiskError {
        DiskError { operation, path: self.path.clone(), offset, bytes, source }
    }
}

/// Flag of `open` that passes the kernel's cache by.
#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
const O_DIRECT: i32 = 0x4000;
#[cfg(not(any(target_arch = "x86_64", target_arch = "x86")))]
const O_DIRECT: i32 = 0x10000;

impl PageFile for SpillFile {
    fn read(&self, extents: &[Extent], into: &mut PageBuffer) -> Result<(), DiskError> {
        let mut rest = into.bytes_mut();
        for extent in extents {
            let (bytes, after) = rest.split_at_mut(extent.bytes());
            let read = self.file.read_exact_at(bytes, extent.offset());
            read.map_err(|source| self.failed("reading", extent.offset(), extent.bytes(), source))?;
            rest = after;
        }
        Ok(())
    }

    fn write(&self, page: u64, from: &PageBuffer, pages: usize) -> Result<(), DiskError> {
        let (offset, bytes) = (page * PAGE_BYTES as u64, pages * PAGE_BYTES);
        let written = self.file.write_all_at(&from.bytes()[..bytes], offset);
        written.map_err(|source| self.failed("writing", offset, bytes, source))
    }

    fn engine(&self) -> String {
        if self.direct { "pread, direct".to_owned() } else { "pread, cached".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_in_any_order_and_the_folder_stays_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = SpillFile::create(folder.path(), "pages", EngineChoice::Auto).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let mut buffer = PageBuffer::zeros(1);
        for page in [3_u8, 0, 2, 1] {
            buffer.bytes_mut().fill(page + 1);
            file.write(page.into(), &buffer, 1).unwrap();
        }
        let mut read = PageBuffer::zeros(3);
        file.read(&[Extent { page: 2, pages: 2 }, Extent { page: 0, pages: 1 }], &mut read).unwrap();
        let firsts: Vec<u8> = read.bytes().chunks(PAGE_BYTES).map(|page| page[9]).collect();
        assert_eq!(firsts, [3, 4, 1]);
        let error = file.read(&[Extent { page: 4, pages: 1 }], &mut read).unwrap_err();
        assert_eq!((error.operation, error.offset), ("reading", 4 * PAGE_BYTES as u64));
    }
}
