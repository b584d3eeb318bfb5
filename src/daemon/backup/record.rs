//! The file in a data directory that says when it was backed up last.

use std::path::Path;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Manifest, Repository};

/// Its name.
const NAME: &str = "last-backup.json";

/// Leaves word of a backup in the data directory.
///
/// # Errors
/// The file cannot be written, for example because the directory is mounted for reading only. The backup is whole all
/// the same.
pub fn record(data: &Path, manifest: &Manifest, repository: &Repository) -> Result<()> {
    let path = data.join(NAME);
    let document = json!({
        "id": manifest.id,
        "repository": repository.to_string(),
        "created_unix_ms": manifest.created_unix_ms,
        "log_end_position": manifest.log_end_position,
    });
    let beside = path.with_extension("json.tmp");
    let written =
        std::fs::write(&beside, document.to_string()).and_then(|()| std::fs::rename(&beside, &path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// When the directory was backed up last, seconds since the Unix epoch; `None` if it never was.
#[must_use]
pub fn last_unix_seconds(data: &Path) -> Option<i64> {
    let modified = std::fs::metadata(data.join(NAME)).and_then(|about| about.modified()).ok()?;
    modified.duration_since(UNIX_EPOCH).ok()?.as_secs().try_into().ok()
}
