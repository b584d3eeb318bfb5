//! Which checkpoints are kept: the newest, and of older ones one of each period up to an age, to go back to when a
//! model turns out to have learned something wrong hours ago.
//!
//! Checkpoints share pages, and damage to these would reach all of them. So among several of the newest, there is one
//! that shares no pages with the newest, or the newest of such is kept besides.
//!
//! Only these hold the log: it is not cut where one of them would need it. The others are there as long as the log
//! behind them is, and go with what is cut, since nothing can go on from them then. So neither the length of the log
//! nor the erasure of a deleted node waits for the age of checkpoints.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::catalog::{Catalog, CheckpointRow};
use crate::config::Config;
use crate::event::EdgeId;
use crate::learner::checkpoint;

/// The files of pages that a checkpoint refers to; `None` if it cannot be read.
pub(super) type Pages<'a> = &'a dyn Fn(&CheckpointRow) -> Option<BTreeSet<String>>;

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// So many of the newest.
    pub newest: usize,
    /// Of those behind them, the first of each `every`, until it is so old.
    pub age: Duration,
    /// Length of a period; not 0.
    pub every: Duration,
}

impl Keeping {
    /// As these settings have it.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let checkpoint = &config.checkpoint;
        Self {
            newest: checkpoint.keep,
            age: Duration::from_secs(checkpoint.keep_seconds),
            every: Duration::from_secs(checkpoint.keep_every_seconds),
        }
    }

    /// Only the newest.
    #[cfg(test)]
    pub fn newest(newest: usize) -> Self {
        Self { newest, age: Duration::ZERO, every: Duration::from_secs(1) }
    }

    /// Those of `rows`, the newest first, that are not kept at a time. `pages` are the files that one refers to.
    pub(super) fn surplus<'a>(
        &self,
        rows: &'a [CheckpointRow],
        now_unix_ms: i64,
        pages: Pages<'_>,
    ) -> Vec<&'a CheckpointRow> {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (oldest, every) = (now_unix_ms.saturating_sub(millis(self.age)), millis(self.every).max(1));
        let [_, mut older] = self.split(rows, pages);
        let mut periods = BTreeSet::new();
        // The oldest of a period comes first and stays, so that those behind it have no turn.
        older.reverse();
        older.retain(|row| {
            let is_young = row.created_unix_ms > oldest;
            !(is_young && periods.insert(row.created_unix_ms.div_euclid(every)))
        });
        older
    }

    /// The first position that the log has to keep for `rows`, the newest first; `None` without any.
    pub(super) fn held(&self, rows: &[CheckpointRow], pages: Pages<'_>) -> Option<EdgeId> {
        self.split(rows, pages)[0].iter().map(|row| EdgeId(row.position)).min()
    }

    /// Those of `rows`, the newest first, from which nothing can go on since the log begins at `first`.
    pub(super) fn cut_off<'a>(
        &self,
        rows: &'a [CheckpointRow],
        first: EdgeId,
        pages: Pages<'_>,
    ) -> Vec<&'a CheckpointRow> {
        let is_cut_off = |row: &CheckpointRow| first > EdgeId(0) && row.position <= first.0;
        // Nearly always there is none, and nothing has to be read to find that.
        if !rows.iter().any(is_cut_off) {
            return Vec::new();
        }
        let [_, mut older] = self.split(rows, pages);
        older.retain(|row| is_cut_off(row));
        older
    }

    /// The rows that hold the log, and the others: the newest, and where all of these share pages, the newest that
    /// shares none with them.
    fn split<'a>(&self, rows: &'a [CheckpointRow], pages: Pages<'_>) -> [Vec<&'a CheckpointRow>; 2] {
        let (newest, older) = rows.split_at(self.newest.min(rows.len()));
        let (mut newest, mut older): (Vec<_>, Vec<_>) = (newest.iter().collect(), older.iter().collect());
        if newest.len() >= 2 && !older.is_empty() {
            let shared = pages(newest[0]).unwrap_or_default();
            let is_apart = |row: &&CheckpointRow| pages(row).is_some_and(|pages| pages.is_disjoint(&shared));
            if !newest[1..].iter().any(is_apart)
                && let Some(apart) = older.iter().position(is_apart)
            {
                newest.push(older.remove(apart));
            }
        }
        [newest, older]
    }
}

/// Removes the checkpoints from which nothing can go on since the log begins at `first`.
pub(super) fn remove_cut_off(catalog: &Catalog, dir: &Path, keep: Keeping, first: EdgeId) -> Result<()> {
    let rows = catalog.checkpoints()?;
    let gone = keep.cut_off(&rows, first, &pages_in(dir));
    gone.iter().try_for_each(|row| forget(catalog, dir, row))?;
    if !gone.is_empty() {
        prune(dir);
    }
    Ok(())
}

/// The files of pages that a checkpoint in `dir` refers to.
pub(super) fn pages_in(dir: &Path) -> impl Fn(&CheckpointRow) -> Option<BTreeSet<String>> {
    move |row| checkpoint::files(&dir.join(&row.file)).ok().map(BTreeSet::from_iter)
}

/// Removes pages that no checkpoint refers to.
pub(super) fn prune(dir: &Path) {
    if let Err(error) = checkpoint::prune(dir) {
        tracing::warn!(dir = %dir.display(), %error, "pages of old checkpoints could not be removed");
    }
}

/// Removes a checkpoint and its row. Its pages go when they are pruned.
pub(super) fn forget(catalog: &Catalog, dir: &Path, row: &CheckpointRow) -> Result<()> {
    catalog.forget_checkpoint(&row.file)?;
    remove(&dir.join(&row.file));
    Ok(())
}

/// Removes a file; where that fails, the log says so.
pub(super) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        let name = path.file_name().unwrap_or(OsStr::new("")).display();
        tracing::warn!(%name, %error, "an old or unfinished checkpoint could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    fn row(created_unix_ms: i64) -> CheckpointRow {
        CheckpointRow {
            position: created_unix_ms.cast_unsigned() / 1_000,
            model_version: 1,
            file: created_unix_ms.to_string(),
            bytes: 9,
            crc32c: 7,
            average_precision: None,
            baseline: None,
            created_unix_ms,
        }
    }

    /// Pages that no other has.
    #[allow(clippy::unnecessary_wraps)]
    fn alone(row: &CheckpointRow) -> Option<BTreeSet<String>> {
        Some(BTreeSet::from([row.file.clone()]))
    }

    /// What is left after one checkpoint a minute for so long, pruned after each.
    fn kept(keeping: Keeping, minutes: i64) -> Vec<i64> {
        let mut rows: Vec<CheckpointRow> = Vec::new();
        for minute in 0..minutes {
            rows.insert(0, row(minute * 60_000));
            let gone =
                keeping.surplus(&rows, minute * 60_000, &alone).into_iter().cloned().collect::<Vec<_>>();
            rows.retain(|row| !gone.contains(row));
        }
        rows.iter().map(|row| row.created_unix_ms / 60_000).collect()
    }

    #[test]
    fn the_newest_stay_and_of_older_ones_the_first_of_each_period_up_to_the_age() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        assert_eq!(kept(Keeping::newest(3), 100), [99, 98, 97]);
        let keeping = Keeping { newest: 3, age: hours(4), every: hours(1) };
        assert_eq!(kept(keeping, 100), [99, 98, 97, 60, 0]);
        assert_eq!(kept(keeping, 631), [630, 629, 628, 600, 540, 480, 420]);
        let fewer = Keeping { newest: 3, age: hours(4), every: hours(2) };
        assert_eq!(kept(fewer, 631), [630, 629, 628, 600, 480]);
    }

    #[test]
    fn only_the_newest_hold_the_log_and_older_ones_go_with_it() {
        let rows = [4, 3, 2, 1].map(|hour| row(hour * HOUR_MS));
        let keeping = Keeping { newest: 2, age: Duration::MAX, every: Duration::from_secs(1) };
        assert_eq!(keeping.surplus(&rows, 5 * HOUR_MS, &alone).len(), 0);
        assert_eq!(keeping.held(&rows, &alone), Some(EdgeId(3 * 3_600)));
        assert_eq!(keeping.held(&[], &alone), None);
        let cut = |first| -> Vec<u64> {
            keeping.cut_off(&rows, EdgeId(first), &alone).iter().map(|row| row.position / 3_600).collect()
        };
        assert_eq!(cut(0), [0; 0]);
        assert_eq!(cut(3_599), [0; 0]);
        assert_eq!(cut(3_600), [1], "the record before a position has to be there");
        assert_eq!(cut(4 * 3_600), [2, 1], "those that hold the log are not removed");
    }
    #[test]
    fn one_that_shares_no_pages_with_the_newest_is_kept_besides() {
        let rows: Vec<_> = (0..9).rev().map(|hour| row(hour * HOUR_MS)).collect();
        let keeping = Keeping::newest(3);
        let held = |pages: Pages<'_>| {
            let gone = keeping.surplus(&rows, 9 * HOUR_MS, pages);
            let left = rows.iter().filter(|row| !gone.contains(row));
            let left: Vec<i64> = left.map(|row| row.created_unix_ms / HOUR_MS).collect();
            assert_eq!(
                keeping.held(&rows, pages).map(|held| held.0.cast_signed() / 3_600),
                left.last().copied()
            );
            left
        };
        // Chains of so many checkpoints; the first of each is full.
        let chains = |length: i64| {
            move |row: &CheckpointRow| {
                let chain = row.created_unix_ms / HOUR_MS / length;
                Some(BTreeSet::from([chain.to_string(), format!("of {}", row.created_unix_ms)]))
            }
        };
        assert_eq!(held(&chains(1)), [8, 7, 6]);
        assert_eq!(held(&chains(2)), [8, 7, 6]);
        assert_eq!(held(&chains(4)), [8, 7, 6]);
        assert_eq!(held(&chains(3)), [8, 7, 6, 5]);
        assert_eq!(held(&chains(6)), [8, 7, 6, 5]);
        assert_eq!(held(&chains(100)), [8, 7, 6], "there is none");
        let unreadable = |row: &CheckpointRow| chains(6)(row).filter(|_| row.created_unix_ms != 5 * HOUR_MS);
        assert_eq!(held(&unreadable), [8, 7, 6, 4]);
    }
}
