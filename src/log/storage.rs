//! The few file operations the log needs, behind a trait so that a disk that fails can be put in
//! their place. Offsets are explicit; nothing here has a cursor, and nothing knows what a frame is.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    Write,
}

/// A directory of segments.
pub trait LogStorage: Send + Sync {
    /// Takes the one writer's lock until the returned value is dropped; `None` if another holds it.
    ///
    /// # Errors
    /// When the lock file cannot be made.
    fn lock(&self) -> io::Result<Option<Box<dyn Send + Sync>>>;

    /// Names of the files, in any order.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that exists.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn LogFile>>;

    /// Creates an empty file for writing; one of that name is emptied.
    ///
    /// # Errors
    /// When it cannot be created.
    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>>;

    /// Removes a file.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes created names durable.
    ///
    /// # Errors
    /// When they may not be.
    fn sync_directory(&self) -> io::Result<()>;
}

/// One segment.
pub trait LogFile: Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    /// When it cannot be determined.
    fn length(&self) -> io::Result<u64>;

    /// Reads into `bytes` from `offset` and returns how many were read; 0 at the end.
    ///
    /// # Errors
    /// When they cannot be read.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes from `bytes` at `offset` and returns how many were written.
    ///
    /// # Errors
    /// When none could be written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Cuts the file to `length` bytes.
    ///
    /// # Errors
    /// When it could not be cut.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Makes everything written, and the length, durable.
    ///
    /// # Errors
    /// When it may not be. What was written since the last success must then be written again.
    fn sync(&self) -> io::Result<()>;
}

/// Name of the lock file.
const LOCK: &str = "LOCK";

/// A directory of the file system.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

impl Directory {
    /// The directory at `path`, made if it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        if !path.is_dir() {
            std::fs::create_dir_all(path)?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The directory at `path`, which must be there.
    #[must_use]
    pub fn existing(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl LogStorage for Directory {
    fn lock(&self) -> io::Result<Option<Box<dyn Send + Sync>>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.path.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn open(&self, name: &str, access: Access) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::Write);
        Ok(Box::new(options.open(self.path.join(name))?))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        Ok(Box::new(options.open(self.path.join(name))?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl LogFile for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, offset)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
