//! [`Worker`]: the loop of the change feed. In turns of `feed.coalesce_ms`: deletions first, then the rows of nodes
//! that have changed, slice by slice, then those of a pass over all nodes.
//!
//! A row that is sent may be of a node whose name another had before, and then the deletion of that one must not come
//! last. Nodes are taken before names are, so the deletion of a name is known when a later node of that name is due. A
//! deletion that is sent again, or late, finds the later node: then its row is sent in place of the deletion.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{Deletions, FeedStatus};
use crate::catalog::{Catalog, CatalogError, FeedRow};
use crate::event::{EdgeId, NodeId, NodeKey};
use crate::ingest::produce::FeedTopic;
use crate::log::{LogError, LogReaders};
use crate::serving::{ChangeFeed, ChangedRows, QueryError, compute_alone, pause, pause_for_share};

/// Pause after a delivery that failed, and the longest after several.
const RETRY: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// How often the position is recorded, at most.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Deletions that are sent at a time.
const DELETIONS_MAX: usize = 1000;

/// What came of reading the log.
enum Logged {
    /// Its nodes are due.
    Touched,
    /// Others may have changed, too.
    OthersChanged,
    /// It was not read to its end.
    Interrupted,
}

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
    pub topic_name: String,
    /// Under which the catalog has the position.
    pub target: String,
    pub limits: Limits,
    pub log: LogReaders,
    /// The position from which the learner goes on.
    pub began: EdgeId,
    pub deletions: Arc<Deletions>,
    pub catalog: Arc<Mutex<Catalog>>,
    pub status: Arc<FeedStatus>,
    /// What the catalog has, and since when; `None`: not all rows were delivered yet.
    pub saved: Option<FeedRow>,
    pub saved_at: Option<Instant>,
    /// When changed nodes were taken last.
    pub taken_at: Instant,
    /// Since when deliveries have failed.
    pub failing_since: Option<Instant>,
    /// The topic was created, and the catalog may have a position from before.
    pub is_new_topic: bool,
}

impl Worker {
    /// Delivers until `stop` is set. Calls `pulse` at every turn. Its thread computes alone, whatever pool of threads
    /// there is.
    pub(super) fn run(mut self, stop: &AtomicBool, pulse: impl Fn()) {
        let _alone = compute_alone("change feed");
        let proceed = || {
            pulse();
            !stop.load(Ordering::Acquire)
        };
        self.status.begin(&self.topic_name);
        let (mut resumed, mut retry) = (false, RETRY);
        while proceed() {
            let begun = Instant::now();
            let outcome = if resumed { Ok(true) } else { self.resume(&proceed) };
            let outcome = outcome.and_then(|is_whole| {
                resumed = is_whole;
                if resumed { self.turn(&proceed) } else { Ok(()) }
            });
            match outcome {
                Ok(()) => {
                    self.failing_since = None;
                    self.status.running();
                    retry = RETRY;
                    pause(self.limits.coalesce.saturating_sub(begun.elapsed()), &proceed);
                }
                Err(why) => {
                    self.failing_since.get_or_insert(begun);
                    self.status.failing(&why);
                    pause(retry, &proceed);
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
            self.report();
        }
        let saved = if resumed { self.save(Duration::ZERO) } else { Ok(()) };
        if let Err(why) = saved {
            tracing::warn!(
                why,
                "how far the change feed is was not recorded; the next start repeats some of it"
            );
        }
    }

    fn report(&self) {
        let failing = self.failing_since.map_or(Duration::ZERO, |since| since.elapsed());
        self.status.pending(self.feed.pending(), self.feed.behind().max(failing));
    }

    /// Makes due what may not have been delivered before the start; whether it came to the end of that.
    fn resume(&mut self, proceed: &impl Fn() -> bool) -> Result<bool, String> {
        self.deletions.record(&|| _ = proceed()).map_err(|error| error.to_string())?;
        let row = self.catalog.lock().feed(&self.target).map_err(|error| error.to_string())?;
        let Some(row) = row else { return Ok(true) };
        match self.touch_logged(EdgeId(row.position), proceed).map_err(|error| error.to_string())? {
            Logged::Touched => {
                self.feed.set_passed(row.model_version);
                self.saved = Some(row);
            }
            // A pass begins, as without a position.
            Logged::OthersChanged => {}
            Logged::Interrupted => return Ok(false),
        }
        Ok(true)
    }

    /// Makes due the nodes of what is in the log from `from` to where the learner goes on.
    fn touch_logged(&self, from: EdgeId, proceed: &impl Fn() -> bool) -> Result<Logged, LogError> {
        if from < self.log.first() || from > self.log.durable_end() {
            return Ok(Logged::OthersChanged);
        }
        let mut reader = self.log.reader(from);
        while reader.position() < self.began {
            if !proceed() {
                return Ok(Logged::Interrupted);
            }
            let Some(frame) = reader.next_frame()? else { break };
            let batch = &frame.batch;
            if batch.has_deletions() {
                return Ok(Logged::OthersChanged);
            }
            batch.src.iter().chain(&batch.dst).for_each(|&node| self.feed.touch(node));
        }
        Ok(Logged::Touched)
    }

    fn turn(&mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        self.take();
        let other_weights = self.limits.all_of_a_version && self.feed.has_other_weights();
        if (self.saved.is_none() || other_weights) && !self.feed.begin_pass() {
            // There are no weights yet, and no rows.
            return self.deliver_deletions(proceed);
        }
        while proceed() {
            // What changes during a pass does not wait for its end.
            if self.feed.is_passing() && self.taken_at.elapsed() >= self.limits.coalesce {
                self.take();
            }
            self.deliver_deletions(proceed)?;
            let begun = Instant::now();
            let rows = match self.feed.next_rows() {
                Ok(rows) if rows.is_empty() => break,
                Ok(rows) => rows,
                Err(QueryError::NotReady) => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            let (computing, count) = (self.feed.computing(), count(&rows));
            let delivered = self.deliver_rows(&rows);
            if let Err(why) = delivered {
                self.feed.give_back(rows);
                return Err(why);
            }
            self.report();
            pause(self.limits.pause(computing, begun.elapsed(), count), proceed);
        }
        self.save(SAVE_EVERY)
    }

    fn take(&mut self) {
        self.taken_at = Instant::now();
        self.feed.take();
    }

    fn deliver_rows(&mut self, moments: &[ChangedRows]) -> Result<(), String> {
        let count = count(moments);
        if count == 0 {
            return Ok(());
        }
        let delivered = self.topic.deliver_rows(moments);
        self.after(delivered)?;
        self.status.delivered_rows(moments);
        Ok(())
    }

    /// After a delivery: begins anew where the topic was created for it, since nothing is in it.
    fn after(&mut self, delivered: Result<(), String>) -> Result<(), String> {
        let noticed = self.notice_new_topic().map_err(|error| error.to_string());
        delivered.and(noticed)
    }

    fn notice_new_topic(&mut self) -> Result<(), CatalogError> {
        self.is_new_topic |= self.topic.take_created();
        if !self.is_new_topic {
            return Ok(());
        }
        self.feed.forget_passes();
        if self.saved.is_some() {
            let topic = &self.topic_name;
            tracing::warn!(topic, "the topic of the change feed was gone; all rows are delivered again");
            self.catalog.lock().forget_feeds_but(None)?;
        }
        (self.saved, self.is_new_topic) = (None, false);
        Ok(())
    }

    /// Sends the deletions that are owed.
    fn deliver_deletions(&mut self, proceed: &impl Fn() -> bool) -> Result<(), String> {
        self.deletions.record(&|| _ = proceed()).map_err(|error| error.to_string())?;
        if !self.deletions.take_any() {
            return Ok(());
        }
        let sent = self.send_owed(proceed);
        if sent != Ok(true) {
            self.deletions.set_any();
        }
        sent.map(drop)
    }

    /// Whether none is left.
    fn send_owed(&mut self, proceed: &impl Fn() -> bool) -> Result<bool, String> {
        while proceed() {
            let owed =
                self.catalog.lock().owed_deletions(DELETIONS_MAX).map_err(|error| error.to_string())?;
            let Some(&(last, _)) = owed.last() else { return Ok(true) };
            // A node that has the name now, and a row, takes the place of the one that went.
            let now = |node: &str| self.deletions.has_now(&NodeKey::from_text(node));
            let (again, gone): (Vec<_>, Vec<_>) = owed
                .iter()
                .map(|(_, node)| (node, now(node)))
                .partition(|(_, node)| node.is_some_and(|node| self.feed.has_row(node)));
            let gone: Vec<&str> = gone.into_iter().map(|(node, _)| node.as_str()).collect();
            let again: Vec<NodeId> = again.into_iter().filter_map(|(_, node)| node).collect();
            let rows = match (!again.is_empty()).then(|| self.feed.rows_of(again)).transpose() {
                // There are no weights yet, and no rows.
                Err(QueryError::NotReady) => return Ok(false),
                rows => rows.map_err(|error| error.to_string())?,
            };
            let deleted = gone.len();
            let delivered = self.topic.deliver_deletions(gone.into_iter());
            self.after(delivered)?;
            self.deliver_rows(rows.as_slice())?;
            self.catalog.lock().settle_deletions(last).map_err(|error| error.to_string())?;
            self.status.delivered_deletions(deleted);
        }
        Ok(false)
    }

    /// Records how far it is, if all that was taken is delivered and the last record is older than `age`.
    fn save(&mut self, age: Duration) -> Result<(), String> {
        let Some(position) = self.feed.delivered().filter(|_| !self.is_new_topic) else { return Ok(()) };
        if self.saved.is_none() && self.feed.passed().is_none() {
            // Not all rows were delivered yet.
            return Ok(());
        }
        self.status.complete_to(position.0);
        let row = FeedRow { position: position.0, model_version: self.feed.passed() };
        let is_young = self.saved.is_some() && self.saved_at.is_some_and(|at| at.elapsed() < age);
        if self.saved == Some(row) || is_young {
            return Ok(());
        }
        self.catalog.lock().set_feed(&self.target, row).map_err(|error| error.to_string())?;
        (self.saved, self.saved_at) = (Some(row), Some(Instant::now()));
        Ok(())
    }
}

/// How many rows there are.
fn count(moments: &[ChangedRows]) -> usize {
    moments.iter().map(|rows| rows.rows.len()).sum()
}

impl Limits {
    /// The pause after rows that took so long to compute, and to compute and deliver.
    #[allow(clippy::cast_precision_loss)]
    fn pause(&self, computing: Duration, all: Duration, rows: usize) -> Duration {
        let delivering = all.saturating_sub(computing);
        let for_share = pause_for_share(computing, self.cpu_share);
        let for_rate = match self.rows_per_second {
            0 => Duration::ZERO,
            most => Duration::from_secs_f64(rows as f64 / most as f64).saturating_sub(all),
        };
        for_share.saturating_sub(delivering).max(for_rate)
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
