//! [`CubinCache`]: compiled kernels in a folder, so that only the first start on a GPU pays for compiling.
//!
//! A file is named by what it was made of: text, headers, options, architecture, versions of compiler and driver. Its
//! first line states what it is; then come length, checksum and the machine code. A file that is not whole counts as
//! not there, and is written again. Writing is by a file beside it and a rename, so that two processes may share a
//! folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use super::nvrtc::OPTIONS;

const MAGIC: &[u8] = b"evergraph cubin 1\n";

/// A folder of compiled kernels. Everything in it can be made again.
#[derive(Clone, Debug)]
pub struct CubinCache {
    folder: PathBuf,
}

/// What machine code depends on.
pub(super) struct Origin<'a> {
    pub file: &'a str,
    pub text: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub architecture: &'a str,
    /// Of NVRTC, (major, minor).
    pub compiler: (i32, i32),
    /// The newest CUDA that the driver supports, `1000 * major + 10 * minor`.
    pub driver: i32,
}

impl Origin<'_> {
    /// Name of the file: readable, and different for anything that differs.
    fn file_name(&self) -> String {
        let mut all = Vec::new();
        let mut add = |part: &[u8]| {
            all.extend_from_slice(&(part.len() as u64).to_le_bytes());
            all.extend_from_slice(part);
        };
        for part in [self.file, self.text, self.architecture].iter().chain(&OPTIONS) {
            add(part.as_bytes());
        }
        for (name, text) in self.headers {
            add(name.as_bytes());
            add(text.as_bytes());
        }
        for number in [self.compiler.0, self.compiler.1, self.driver] {
            add(&number.to_le_bytes());
        }
        let stem = self.file.trim_end_matches(".cu");
        format!("{stem}-{}-{:032x}.cubin", self.architecture, xxh3_128(&all))
    }
}

impl CubinCache {
    /// A cache in `folder`, which is made when the first kernel is kept.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// The machine code of this origin, if it was kept and is whole.
    pub(super) fn get(&self, origin: &Origin<'_>) -> Option<Vec<u8>> {
        let kept = fs::read(self.folder.join(origin.file_name())).ok()?;
        let rest = kept.strip_prefix(MAGIC)?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (sum, cubin) = rest.split_first_chunk::<4>()?;
        let whole = u64::from_le_bytes(*length) == cubin.len() as u64
            && u32::from_le_bytes(*sum) == crc32c::crc32c(cubin);
        whole.then(|| cubin.to_vec())
    }

    /// Keeps the machine code of this origin.
    ///
    /// # Errors
    /// The folder or the file cannot be written; the message names it. The machine code can be used all the same.
    pub(super) fn put(&self, origin: &Origin<'_>, cubin: &[u8]) -> Result<(), String> {
        let path = self.folder.join(origin.file_name());
        // A name that no other process has; the rename is the moment at which the file is there.
        let fresh = path.with_extension(format!("{}.tmp", std::process::id()));
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            let mut file = fs::File::create(&fresh)?;
            file.write_all(MAGIC)?;
            file.write_all(&(cubin.len() as u64).to_le_bytes())?;
            file.write_all(&crc32c::crc32c(cubin).to_le_bytes())?;
            file.write_all(cubin)?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&fresh);
            format!("cannot keep {}: {error}; the next start compiles it again", path.display())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin<'static> = Origin {
        file: "a.cu",
        text: "text",
        headers: &[("h.cuh", "header")],
        architecture: "sm_90",
        compiler: (13, 0),
        driver: 13_000,
    };

    #[test]
    fn what_was_kept_is_found_by_what_it_was_made_of() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(&folder.path().join("kernels"));
        assert_eq!(cache.get(&ORIGIN), None);
        cache.put(&ORIGIN, b"code").unwrap();
        assert_eq!(cache.get(&ORIGIN).as_deref(), Some(&b"code"[..]));
        let others = [
            Origin { file: "b.cu", ..ORIGIN },
            Origin { text: "texts", ..ORIGIN },
            Origin { headers: &[("h.cuh", "heade")], ..ORIGIN },
            Origin { headers: &[], ..ORIGIN },
            Origin { architecture: "sm_80", ..ORIGIN },
            Origin { compiler: (13, 1), ..ORIGIN },
            Origin { driver: 13_010, ..ORIGIN },
        ];
        for other in others {
            assert_eq!(cache.get(&other), None, "{}", other.file_name());
        }
        let left: Vec<_> = fs::read_dir(folder.path().join("kernels")).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing beside the file: {left:?}");
    }

    #[test]
    fn a_damaged_file_counts_as_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CubinCache::new(folder.path());
        cache.put(&ORIGIN, b"machine code").unwrap();
        let path = folder.path().join(ORIGIN.file_name());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            assert_eq!(cache.get(&ORIGIN), None, "byte {at} differs");
            fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(cache.get(&ORIGIN), None, "only {at} bytes are left");
        }
        cache.put(&ORIGIN, b"machine code").unwrap();
        assert_eq!(cache.get(&ORIGIN).as_deref(), Some(&b"machine code"[..]));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let blocked = folder.path().join("file");
        fs::write(&blocked, b"").unwrap();
        let error = CubinCache::new(&blocked).put(&ORIGIN, b"code").unwrap_err();
        assert!(error.contains("file/a-sm_90-") && error.contains("compiles it again"), "{error}");
    }
}
