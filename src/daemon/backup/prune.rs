//! Removes old backups, and the chunks that no other one has.
//!
//! A backup that is being made may use a chunk that no manifest names yet. So nothing is removed while there is one
//! that began less than a day ago; one that is older did not get to its end.

use std::collections::HashSet;

use anyhow::{Result, bail, ensure};
use chrono::{TimeDelta, Utc};

use super::repository::Repository;

/// After this long, a backup without a manifest is taken for one that did not get to its end, hours.
const UNFINISHED_HOURS: i64 = 24;

/// Chunks removed between two looks at whether a backup has begun.
const BATCH: usize = 1000;

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The backups that were removed, the oldest first.
    pub removed: Vec<String>,
    /// How many backups are left.
    pub kept: usize,
    /// Chunks that were removed.
    pub chunks: usize,
    /// Their length together, bytes.
    pub bytes: u64,
}

/// Removes all but the newest `keep` backups.
///
/// # Errors
/// `keep` is 0, a backup is being made, a manifest that stays cannot be read, or the repository refuses.
pub async fn prune(repository: &Repository, keep: usize) -> Result<Pruned> {
    ensure!(keep > 0, "--keep 0 would remove every backup; remove the repository itself for that");
    let unfinished = unfinished(repository).await?;
    let all = repository.list().await?;
    let (old, kept) = all.split_at(all.len().saturating_sub(keep));
    let mut used = HashSet::new();
    for id in kept {
        let manifest = repository.manifest(Some(id)).await?;
        used.extend(manifest.files.into_iter().flat_map(|file| file.chunks));
    }
    for id in old {
        repository.forget(id).await?;
    }
    let mut pruned = Pruned { removed: old.to_vec(), kept: kept.len(), ..Pruned::default() };
    let mut unused = Vec::new();
    for (name, bytes) in repository.chunks().await? {
        if !used.contains(&name) {
            pruned.bytes += bytes;
            unused.push(name);
        }
    }
    pruned.chunks = unused.len();
    for batch in unused.chunks(BATCH) {
        hold_unused(repository, kept).await?;
        repository.remove_chunks(batch).await?;
    }
    for id in unfinished {
        repository.forget_unfinished(&id).await?;
    }
    Ok(pruned)
}

/// The backups that did not get to their end; an error if one may still be made.
async fn unfinished(repository: &Repository) -> Result<Vec<String>> {
    let (now, mut ended) = (Utc::now(), Vec::new());
    for (id, since) in repository.unfinished().await? {
        if now - since < TimeDelta::hours(UNFINISHED_HOURS) {
            bail!(
                "{repository}: the backup {id} is being made, or did not get to its end; nothing is removed before it \
                 is finished or {UNFINISHED_HOURS} hours old"
            );
        }
        ended.push(id);
    }
    Ok(ended)
}

/// An error if a backup may use chunks that those in `kept` do not.
async fn hold_unused(repository: &Repository, kept: &[String]) -> Result<()> {
    unfinished(repository).await?;
    let now = repository.list().await?;
    ensure!(now == kept, "{repository}: a backup was made meanwhile; nothing more is removed, run it again");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::backup::manifest::ChunkName;

    #[tokio::test]
    async fn nothing_is_removed_while_a_backup_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let repository = Repository::open(dir.path().to_str().unwrap(), false).unwrap();
        let name = ChunkName::of(b"abc");
        repository.put_chunk(&name, b"abc".to_vec()).await.unwrap();
        repository.begin("20261124T000000.000Z").await.unwrap();
        let error = prune(&repository, 1).await.unwrap_err().to_string();
        assert!(error.contains("is being made"), "{error}");
        assert_eq!(repository.chunks().await.unwrap().len(), 1);
        repository.forget_unfinished("20261124T000000.000Z").await.unwrap();
        let pruned = prune(&repository, 1).await.unwrap();
        assert_eq!((pruned.chunks, pruned.bytes), (1, 3));
        assert!(prune(&repository, 0).await.is_err());
    }
}
