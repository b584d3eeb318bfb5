//! The folder of snapshots: which of them a start uses, and which are of no use any more.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use thiserror::Error;

use crate::appender::Index;
use crate::appender::snapshot::{self, SnapshotHead, UNFINISHED_SUFFIX};
use crate::config::Config;
use crate::event::{ClockRules, EdgeId};
use crate::graph::RetentionBounds;
use crate::log::LogReaders;
use crate::serving::Stores;

/// The folder of snapshots of a data directory.
pub(super) fn dir(config: &Config) -> PathBuf {
    config.data.dir.join("snapshots")
}

/// Removes what a crash left unfinished.
fn remove_unfinished(dir: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.to_str().is_some_and(|name| name.ends_with(UNFINISHED_SUFFIX)) {
            remove(&path);
        }
    }
    Ok(())
}

/// Removes a snapshot; where that fails, the log says so.
pub(super) fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::warn!(path = %folder.display(), %error, "an old snapshot cannot be removed");
    }
}

/// A snapshot turned out to be damaged while it was loaded. It is removed, and the index of no use.
#[derive(Debug, Error)]
#[error("a damaged snapshot was removed: start again")]
pub(super) struct DamagedSnapshot;

/// Loads `snapshot` into an empty index.
///
/// # Errors
/// [`DamagedSnapshot`], or it cannot be loaded with these settings, or cannot be removed.
pub(super) fn load(snapshot: &SnapshotHead, index: &mut Index) -> Result<()> {
    let Err(error) = snapshot.load(index) else { return Ok(()) };
    if !error.is_damage() {
        return Err(error).context("the snapshot cannot be loaded now, or with these settings");
    }
    tracing::error!(%error, "the snapshot is skipped and removed");
    std::fs::remove_dir_all(snapshot.path()).context("remove the snapshot to start from an older one")?;
    Err(DamagedSnapshot.into())
}

/// The newest snapshot in `dir` that a start can use: it is of this log and of these settings, and nothing was released
/// before it was written that is not released for a learner that keeps `kept`. Only its description is read and known
/// to be intact. Others are named in the log; those whose description is damaged, those of another log, and unfinished
/// ones are removed.
///
/// # Errors
/// When the folder cannot be read.
pub(super) fn newest(
    dir: &Path,
    log: &LogReaders,
    stores: &Stores,
    kept: RetentionBounds,
) -> Result<Option<SnapshotHead>> {
    let rules = stores.graph.clock_rules();
    let unreadable = || format!("cannot read the folder {}", dir.display());
    remove_unfinished(dir).with_context(unreadable)?;
    for position in snapshot::positions(dir).with_context(unreadable)?.into_iter().rev() {
        let path = dir.join(snapshot::name(position));
        let unusable = |why: &str| tracing::warn!(path = %path.display(), "the snapshot is not used: {why}");
        let head = match snapshot::open(&path, rules) {
            Ok(head) => head,
            Err(error) if error.is_damage() => {
                tracing::error!(%error, "the snapshot is skipped and removed");
                remove(&path);
                continue;
            }
            Err(error) => return Err(error).context("a snapshot cannot be read now"),
        };
        let is_of_log =
            position <= log.durable_end() && log.history(position).is_ok_and(|found| found == head.history);
        if !is_of_log {
            unusable("it is of another history of the log; it is removed");
            remove(&path);
        } else if let Some(why) = misfit(&head, rules, (stores, log.first() == EdgeId(0)), kept) {
            unusable(why);
        } else {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// The newest intact snapshot in `dir` before the position `end` that is of this log and of these settings, and from
/// which nothing was released that a learner which keeps `kept` reads. Reads all of it, unless `stop` is set meanwhile.
/// Others are named in the log.
pub(super) fn newest_before(
    end: EdgeId,
    dir: &Path,
    (log, stores): (&LogReaders, &Stores),
    kept: RetentionBounds,
    stop: &AtomicBool,
) -> Option<EdgeId> {
    let is_usable = |position: &EdgeId| {
        let path = dir.join(snapshot::name(*position));
        let usable = verify((&path, *position), (log, stores), kept, stop);
        usable
            .inspect_err(|error| {
                let error = format!("{error:#}");
                tracing::warn!(path = %path.display(), error, "the log cannot be cut behind this snapshot");
            })
            .is_ok()
    };
    let positions = snapshot::positions(dir).unwrap_or_default();
    positions.into_iter().rev().filter(|position| *position < end).find(is_usable)
}

/// An error unless the snapshot can be used with this log and these settings.
fn verify(
    (path, position): (&Path, EdgeId),
    (log, stores): (&LogReaders, &Stores),
    kept: RetentionBounds,
    stop: &AtomicBool,
) -> Result<()> {
    let head = snapshot::open(path, stores.graph.clock_rules())?;
    ensure!(log.history(position)? == head.history, "it is of another history of the log");
    ensure!(head.fits(stores), "it has rows of other dimensions");
    ensure!(!has_released(&head, kept), RELEASED);
    Ok(head.verify_until(stop)?)
}

/// Why a snapshot is of no use to a learner that is behind it.
const RELEASED: &str =
    "edges were released that the learner still reads: it learns on from before the snapshot";

/// Whether something was released before it was written that a learner which keeps `kept` reads.
fn has_released(head: &SnapshotHead, kept: RetentionBounds) -> bool {
    let released = head.capture.released;
    released.since > kept.since || released.first > kept.first
}

/// Why a snapshot of this log cannot be used.
fn misfit(
    head: &SnapshotHead,
    rules: ClockRules,
    (stores, is_whole): (&Stores, bool),
    kept: RetentionBounds,
) -> Option<&'static str> {
    let capture = &head.capture;
    if capture.not_after != rules.not_after && is_whole {
        // Exact where all of the log is there; where not, the snapshot's clocks are corrected.
        Some("the clock was corrected since")
    } else if !head.fits(stores) {
        Some("it has rows of other dimensions: [model] or [stream] were changed")
    } else if has_released(head, kept) {
        Some(RELEASED)
    } else {
        None
    }
}
