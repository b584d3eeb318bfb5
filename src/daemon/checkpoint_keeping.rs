//! Which checkpoints are kept: the newest, and of older ones one of each period up to an age, to go back to when a
//! model turns out to have learned something wrong hours ago.
//!
//! Only the newest hold the log: it is not cut where one of them would need it. The others are there as long as the log
//! behind them is, and go with what is cut, since nothing can go on from them then. So neither the length of the log nor
//! the erasure of a deleted node waits for the age of checkpoints.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::catalog::CheckpointRow;
use crate::config::Config;
use crate::event::EdgeId;

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

    /// Those of `rows`, the newest first, that are not kept at a time.
    pub(super) fn surplus<'a>(
        &self,
        rows: &'a [CheckpointRow],
        now_unix_ms: i64,
    ) -> impl Iterator<Item = &'a CheckpointRow> {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (oldest, every) = (now_unix_ms.saturating_sub(millis(self.age)), millis(self.every).max(1));
        let mut periods = BTreeSet::new();
        // The oldest of a period comes first and stays, so that those behind it have no turn.
        self.older(rows).rev().filter(move |row| {
            let is_young = row.created_unix_ms > oldest;
            !(is_young && periods.insert(row.created_unix_ms.div_euclid(every)))
        })
    }

    /// The first position that the log has to keep for `rows`, the newest first; `None` without any.
    pub(super) fn held(&self, rows: &[CheckpointRow]) -> Option<EdgeId> {
        rows.iter().take(self.newest).map(|row| EdgeId(row.position)).min()
    }

    /// Those of `rows`, the newest first, from which nothing can go on since the log begins at `first`.
    pub(super) fn cut_off<'a>(
        &self,
        rows: &'a [CheckpointRow],
        first: EdgeId,
    ) -> impl Iterator<Item = &'a CheckpointRow> {
        self.older(rows).filter(move |row| first > EdgeId(0) && row.position <= first.0)
    }

    fn older<'a>(&self, rows: &'a [CheckpointRow]) -> impl DoubleEndedIterator<Item = &'a CheckpointRow> {
        rows.get(self.newest..).unwrap_or_default().iter()
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

    /// What is left after one checkpoint a minute for so long, pruned after each.
    fn kept(keeping: Keeping, minutes: i64) -> Vec<i64> {
        let mut rows: Vec<CheckpointRow> = Vec::new();
        for minute in 0..minutes {
            rows.insert(0, row(minute * 60_000));
            let gone: Vec<_> = keeping.surplus(&rows, minute * 60_000).cloned().collect();
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
        assert_eq!(keeping.surplus(&rows, 5 * HOUR_MS).count(), 0);
        assert_eq!(keeping.held(&rows), Some(EdgeId(3 * 3_600)));
        assert_eq!(keeping.held(&[]), None);
        let cut = |first| -> Vec<u64> {
            keeping.cut_off(&rows, EdgeId(first)).map(|row| row.position / 3_600).collect()
        };
        assert_eq!(cut(0), [0; 0]);
        assert_eq!(cut(3_599), [0; 0]);
        assert_eq!(cut(3_600), [1], "the record before a position has to be there");
        assert_eq!(cut(4 * 3_600), [2, 1], "those that hold the log are not removed");
    }
}
