//! [`Folder`]: where a benchmark keeps what it writes.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// A folder of this run alone, removed at its end.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// In `parent`, or in the system's folder for temporary files.
    pub(super) fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let folder = parent.join(format!("evergraph-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("--data {}", parent.display()))?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
