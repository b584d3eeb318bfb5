//! [`Worker`]: the loop of the change feed. In turns of `feed.coalesce_ms`: deletions first, then the rows of nodes
//! that have changed, slice by slice, then those of a pass over all nodes.
//!
//! A row that is sent may be of a node whose name another had before, and then the deletion of that one must not come
//! last. Nodes are taken before names are, so the deletion of a name is known when a later node of that name is due;
//! and where a deletion is sent again, or late, the node that has the name now is due once more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Deletions, FeedStatus};
use crate::catalog::{Catalog, FeedRow};
use crate::event::{EdgeId, NodeKey};
use crate::ingest::produce::FeedTopic;
use crate::log::{LogError, LogReaders};
use crate::serving::{ChangeFeed, QueryError};

/// Pause after a delivery that failed, and the longest after several.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// A pause is taken in parts of this length, so that a stop and whoever watches the thread need not wait for its end.
const PAUSE_PART: Duration = Duration::from_millis(100);

/// How often the position is recorded, at most.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Deletions that are sent at a time.
const DELETIONS_MAX: usize = 1000;

/// How fast rows may be delivered, and which.
pub(super) struct Limits {
    pub coalesce: Duration,
    /// Share of a core for computing rows.
    pub cpu_share: f64,
    /// 0: any number.
    pub rows_per_second: u64,
    /// Whether all rows are delivered when other weights are served.
    pub all_of_a_version: bool,
}

/// The loop.
pub(super) struct Worker {
    pub feed: ChangeFeed,
    pub topic: FeedTopic,
    pub name: String,
    pub limits: Limits,
    pub log: LogReaders,
    /// The position from which the learner goes on.
    pub began: EdgeId,
    pub deletions: Arc<Deletions>,
    pub catalog: Arc<Mutex<Catalog>>,
    pub status: Arc<FeedStatus>,
    /// What the catalog has, and since when.
    pub saved: Option<FeedRow>,
    pub saved_at: Option<Instant>,
}

impl Worker {
    /// Delivers until `stop` is set. Calls `pulse` at every turn. Its thread computes alone, whatever pool of threads
    /// there is.
    pub(super) fn run(mut self, stop: &AtomicBool, pulse: impl Fn()) {
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        if let Err(error) = &alone {
            tracing::warn!(%error, "the change feed shares the threads of others");
        }
        let proceed = || {
            pulse();
            !stop.load(Ordering::Acquire)
        };
        self.status.begin(&self.name);
        let mut resumed = false;
        let mut retry = RETRY;
        while proceed() {
            let begun = Instant::now();
            let outcome = if resumed { Ok(()) } else { self.resume(&proceed) };
            resumed |= outcome.is_ok();
            match outcome.and_then(|()| self.turn(&proceed)) {
                Ok(()) => {
                    self.status.running();
                    retry = RETRY;
                    pause(self.limits.coalesce.saturating_sub(begun.elapsed()), &proceed);
                }
                Err(why) => {
                    self.status.failing(&why);
                    pause(retry, &proceed);
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
            self.status.pending(self.feed.pending(), self.feed.behind());
        }
        if let Err(why) = self.save(Duration::ZERO) {
            tracing::warn!(
                why,
                "how far the change feed is was not recorded; the next start repeats some of it"
            );
        }
    }

    /// Makes due what may not have been delivered before the start.
    fn resume(&mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        let row = self.catalog.lock().feed(&self.name).map_err(|error| error.to_string())?;
        self.feed.set_passed(row.and_then(|row| row.model_version));
        self.saved = row;
        let Some(row) = row else { return Ok(()) };
        let whole = self.touch_logged(EdgeId(row.position), proceed).map_err(|error| error.to_string())?;
        if !whole {
            // A pass begins, as without a position.
            self.saved = None;
        }
        Ok(())
    }

    /// Makes due the nodes of what is in the log from `from` to where the learner goes on; `false` if others may have
    /// changed, too.
    fn touch_logged(&self, from: EdgeId, proceed: &impl Fn() -> bool) -> Result<bool, LogError> {
        if from < self.log.first() || from > self.log.durable_end() {
            return Ok(false);
        }
        let mut reader = self.log.reader(from);
        while reader.position() < self.began
            && proceed()
            && let Some(frame) = reader.next_frame()?
        {
            let batch = &frame.batch;
            if batch.has_deletions() {
                return Ok(false);
            }
            batch.src.iter().chain(&batch.dst).for_each(|&node| self.feed.touch(node));
        }
        Ok(true)
    }

    fn turn(&mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        self.feed.take();
        let other_weights = self.limits.all_of_a_version && self.feed.has_other_weights();
        if (self.saved.is_none() || other_weights) && !self.feed.begin_pass() {
            // There are no weights yet, and no rows.
            return self.deliver_deletions();
        }
        while proceed() {
            self.deliver_deletions()?;
            let begun = Instant::now();
            let rows = match self.feed.next_rows() {
                Ok(Some(rows)) => rows,
                Ok(None) => break,
                Err(QueryError::NotReady) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            let (computing, count) = (begun.elapsed(), rows.rows.len());
            if count > 0
                && let Err(why) = self.topic.deliver_rows(&rows)
            {
                self.feed.give_back(rows);
                return Err(why);
            }
            self.status.delivered(count, 0);
            self.status.pending(self.feed.pending(), self.feed.behind());
            pause(self.limits.pause(computing, begun.elapsed(), count), proceed);
        }
        self.save(SAVE_EVERY)
    }

    /// Sends the deletions that are owed.
    fn deliver_deletions(&mut self) -> Result<(), String> {
        self.deletions.record().map_err(|error| error.to_string())?;
        if !self.deletions.take_any() {
            return Ok(());
        }
        let sent = self.send_owed();
        if sent.is_err() {
            self.deletions.set_any();
        }
        sent
    }

    fn send_owed(&mut self) -> Result<(), String> {
        loop {
            let owed =
                self.catalog.lock().owed_deletions(DELETIONS_MAX).map_err(|error| error.to_string())?;
            let Some(&(last, _)) = owed.last() else { return Ok(()) };
            self.topic.deliver_deletions(owed.iter().map(|(_, node)| node.as_str()))?;
            let now = owed.iter().filter_map(|(_, node)| self.deletions.has_now(&NodeKey::from_text(node)));
            now.for_each(|node| self.feed.touch(node));
            self.catalog.lock().settle_deletions(last).map_err(|error| error.to_string())?;
            self.status.delivered(0, owed.len());
        }
    }

    /// Records how far it is, if all that was taken is delivered and the last record is older than `age`.
    fn save(&mut self, age: Duration) -> Result<(), String> {
        let Some(position) = self.feed.delivered() else { return Ok(()) };
        self.status.complete_to(position.0);
        let row = FeedRow { position: position.0, model_version: self.feed.passed() };
        let is_young = self.saved.is_some() && self.saved_at.is_some_and(|at| at.elapsed() < age);
        if self.saved == Some(row) || is_young {
            return Ok(());
        }
        self.catalog.lock().set_feed(&self.name, row).map_err(|error| error.to_string())?;
        (self.saved, self.saved_at) = (Some(row), Some(Instant::now()));
        Ok(())
    }
}

impl Limits {
    /// The pause after rows that took so long to compute, and to compute and deliver.
    #[allow(clippy::cast_precision_loss)]
    fn pause(&self, computing: Duration, all: Duration, rows: usize) -> Duration {
        let delivering = all.saturating_sub(computing);
        let for_share = computing.mul_f64(1.0 / self.cpu_share.clamp(0.01, 1.0) - 1.0);
        let for_rate = match self.rows_per_second {
            0 => Duration::ZERO,
            most => Duration::from_secs_f64(rows as f64 / most as f64).saturating_sub(all),
        };
        for_share.saturating_sub(delivering).max(for_rate)
    }
}

fn pause(mut left: Duration, proceed: &impl Fn() -> bool) {
    while !left.is_zero() && proceed() {
        let part = left.min(PAUSE_PART);
        std::thread::sleep(part);
        left -= part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_paced_by_the_share_of_a_core_and_by_their_number() {
        let ms = Duration::from_millis;
        let limits = |cpu_share, rows_per_second| Limits {
            coalesce: ms(1),
            cpu_share,
            rows_per_second,
            all_of_a_version: false,
        };
        assert_eq!(limits(1.0, 0).pause(ms(10), ms(12), 100), ms(0));
        assert_eq!(limits(0.25, 0).pause(ms(10), ms(15), 100), ms(25), "waiting for brokers counts");
        assert_eq!(limits(1.0, 1000).pause(ms(10), ms(15), 100), ms(85));
        assert_eq!(limits(0.25, 1000).pause(ms(10), ms(12), 10), ms(28));
    }
}
