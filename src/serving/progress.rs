//! Progress of the two loops as log positions, and a way to wait for a position.
//!
//! An event passes three stages: durable (in the log), indexed (in the graph), learned (in node states); where there is
//! a live index, then a fourth: embedded (in its rows). Of a leader it is shipped, too, once it is durable.
//! Positions only grow; each is one past the last record that has passed. Writers are the loops, readers
//! are queries. A query that must not hold a thread while it waits registers a hook, which gets every new position.
//! Knows nothing of why a loop is slow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::event::{EdgeId, EventTime};
use crate::graph::RetentionBounds;

/// Called with every new position of a stage, under its lock, so it must be quick.
type Hook = Box<dyn Fn(EdgeId) + Send + Sync>;

/// A position that only grows and can be waited for.
#[derive(Default)]
struct Stage {
    passed: Mutex<u64>,
    moved: Condvar,
    hooks: Mutex<Vec<Hook>>,
}

impl Stage {
    fn pass(&self, end: EdgeId) {
        let mut passed = self.passed.lock();
        *passed = (*passed).max(end.0);
        self.moved.notify_all();
        for hook in self.hooks.lock().iter() {
            hook(EdgeId(*passed));
        }
    }

    fn add_hook(&self, hook: Hook) {
        let passed = self.passed.lock();
        hook(EdgeId(*passed));
        self.hooks.lock().push(hook);
    }

    fn passed(&self) -> EdgeId {
        EdgeId(*self.passed.lock())
    }

    fn wait(&self, position: EdgeId, timeout: Duration) -> bool {
        let mut passed = self.passed.lock();
        self.moved.wait_while_for(&mut passed, |passed| *passed < position.0, timeout);
        *passed >= position.0
    }
}

/// When records reached a stage, for those that have not passed the next one: by the process's own clock, so producers'
/// clocks do not matter. Records that arrive within [`GRAIN`] of each other share an entry.
#[derive(Default)]
struct Arrivals(VecDeque<(Instant, u64)>);

/// Resolution of arrival times.
const GRAIN: Duration = Duration::from_millis(5);
/// Most entries, five minutes' worth; records that have waited longer count as having waited that long.
const ARRIVALS_MAX: usize = 60_000;

impl Arrivals {
    /// Records the arrival of all records below `end`.
    fn record(&mut self, end: u64, now: Instant) {
        match self.0.back_mut() {
            Some((_, last)) if end <= *last => {}
            Some((at, last)) if now.saturating_duration_since(*at) < GRAIN => *last = end,
            _ => {
                if self.0.len() == ARRIVALS_MAX {
                    self.0.pop_front();
                }
                self.0.push_back((now, end));
            }
        }
    }

    /// When the record at `position` arrived, if it has; drops the entries before it.
    fn of(&mut self, position: u64) -> Option<Instant> {
        let before = self.0.partition_point(|&(_, end)| end <= position);
        self.0.drain(..before.min(self.0.len().saturating_sub(1)));
        self.0.front().filter(|&&(_, end)| end > position).map(|&(at, _)| at)
    }
}

/// Positions of the loops.
pub struct Progress {
    durable: Stage,
    indexed: Stage,
    learned: Stage,
    embedded: Stage,
    shipped: Stage,
    /// [`EventTime::MIN`] stands for none.
    watermark: AtomicI64,
    kept: Mutex<RetentionBounds>,
    /// Of what is indexed.
    arrivals: Mutex<Arrivals>,
}

impl Default for Progress {
    fn default() -> Self {
        let watermark = AtomicI64::new(EventTime::MIN.0);
        let [durable, indexed, learned, embedded, shipped] = [(); 5].map(|()| Stage::default());
        let (kept, arrivals) = (Mutex::default(), Mutex::default());
        Self { durable, indexed, learned, embedded, shipped, watermark, kept, arrivals }
    }
}

/// How fresh a response is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freshness {
    /// Version of the weights that computed the response; 0 before the first publication, and for the baseline.
    pub model_version: u64,
    /// No event earlier than this is expected any more; `None` before the first event, and where an event of
    /// any time may come.
    pub watermark: Option<EventTime>,
    /// Every record below this position is in the node states.
    pub applied_position: u64,
    /// Every record below this position is in the graph.
    pub indexed_position: u64,
    /// Every record below this position is durable.
    pub durable_position: u64,
}

impl Progress {
    /// Everything at position 0, no watermark.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Every record below `end` is durable.
    pub fn set_durable(&self, end: EdgeId) {
        self.durable.pass(end);
    }

    /// Every record below `end` is in the graph.
    pub fn set_indexed(&self, end: EdgeId) {
        self.arrivals.lock().record(end.0, Instant::now());
        self.indexed.pass(end);
    }

    /// Every record below `end` is in the node states.
    pub fn set_learned(&self, end: EdgeId) {
        self.learned.pass(end);
    }

    /// Every record below `end` is in the rows of the live index.
    pub fn set_embedded(&self, end: EdgeId) {
        self.embedded.pass(end);
    }

    /// Every record below `end` has reached the topic that replicas read.
    pub fn set_shipped(&self, end: EdgeId) {
        self.shipped.pass(end);
    }

    /// No event earlier than `time` is expected any more.
    pub fn set_watermark(&self, time: EventTime) {
        self.watermark.fetch_max(time.0, Ordering::Release);
    }

    /// The learner will not read anything outside `kept` any more.
    pub fn set_kept(&self, kept: RetentionBounds) {
        *self.kept.lock() = kept;
    }

    /// What the learner may still read; anything else may be released.
    #[must_use]
    pub fn kept(&self) -> RetentionBounds {
        *self.kept.lock()
    }

    /// The time before which no event is expected any more, if there is one.
    #[must_use]
    pub fn watermark(&self) -> Option<EventTime> {
        let watermark = EventTime(self.watermark.load(Ordering::Acquire));
        (watermark != EventTime::MIN).then_some(watermark)
    }

    /// One past the last durable record.
    #[must_use]
    pub fn durable(&self) -> EdgeId {
        self.durable.passed()
    }

    /// One past the last record in the graph.
    #[must_use]
    pub fn indexed(&self) -> EdgeId {
        self.indexed.passed()
    }

    /// One past the last record in the node states.
    #[must_use]
    pub fn learned(&self) -> EdgeId {
        self.learned.passed()
    }

    /// One past the last record in the rows of the live index.
    #[must_use]
    pub fn embedded(&self) -> EdgeId {
        self.embedded.passed()
    }

    /// Records in the graph that are not in the node states.
    #[must_use]
    pub fn behind(&self) -> u64 {
        // In this order: what is learned was indexed before.
        let learned = self.learned();
        self.indexed().0.saturating_sub(learned.0)
    }

    /// How long the record at `position` has been in the graph, to some milliseconds; zero if it is not there yet.
    /// Called by the learner, with increasing positions.
    #[must_use]
    pub fn waited(&self, position: EdgeId) -> Duration {
        self.arrivals.lock().of(position.0).map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Waits until every record below `position` is in the node states; `false` if `timeout` passes
    /// first.
    #[must_use]
    pub fn wait_for(&self, position: EdgeId, timeout: Duration) -> bool {
        self.learned.wait(position, timeout)
    }

    /// Calls `hook` now and whenever the node states have come further, with one past the last record that
    /// is in them. It runs on the thread that publishes and must return at once.
    pub fn on_learned(&self, hook: impl Fn(EdgeId) + Send + Sync + 'static) {
        self.learned.add_hook(Box::new(hook));
    }

    /// The same for the rows of the live index.
    pub fn on_embedded(&self, hook: impl Fn(EdgeId) + Send + Sync + 'static) {
        self.embedded.add_hook(Box::new(hook));
    }

    /// Waits until every record below `position` is in the graph; `false` if `timeout` passes first.
    #[must_use]
    pub fn wait_indexed(&self, position: EdgeId, timeout: Duration) -> bool {
        self.indexed.wait(position, timeout)
    }

    /// Waits until every record below `position` has reached the topic that replicas read; `false` if `timeout` passes
    /// first.
    #[must_use]
    pub fn wait_shipped(&self, position: EdgeId, timeout: Duration) -> bool {
        self.shipped.wait(position, timeout)
    }

    /// The positions beside the version of the weights in use.
    #[must_use]
    pub fn freshness(&self, model_version: u64) -> Freshness {
        Freshness {
            model_version,
            watermark: self.watermark(),
            applied_position: self.learned().0,
            indexed_position: self.indexed().0,
            durable_position: self.durable().0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_when_the_position_is_reached_or_time_is_up() {
        let progress = Progress::new();
        assert!(progress.wait_for(EdgeId(0), Duration::ZERO));
        assert!(!progress.wait_for(EdgeId(1), Duration::from_millis(5)));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| progress.wait_for(EdgeId(10), Duration::from_secs(60)));
            progress.set_learned(EdgeId(4));
            progress.set_learned(EdgeId(10));
            assert!(waiter.join().unwrap());
        });
    }

    #[test]
    fn a_record_has_waited_since_its_arrival() {
        let (start, mut arrivals) = (Instant::now(), Arrivals::default());
        let at = |ms| start + Duration::from_millis(ms);
        for (end, ms) in [(10, 0), (20, 1), (20, 50), (30, 100), (25, 150), (40, 200)] {
            arrivals.record(end, at(ms));
        }
        assert_eq!(arrivals.of(0), Some(at(0)));
        assert_eq!(arrivals.of(19), Some(at(0)), "within the grain");
        assert_eq!(arrivals.of(20), Some(at(100)));
        assert_eq!(arrivals.of(39), Some(at(200)));
        assert_eq!(arrivals.of(40), None, "it has not come");
        assert_eq!(arrivals.0.len(), 1, "what was passed is forgotten");
        for i in 0..2 * ARRIVALS_MAX as u64 {
            arrivals.record(100 + i, at(1_000 + 10 * i));
        }
        assert_eq!(arrivals.0.len(), ARRIVALS_MAX);
        assert!(Progress::new().waited(EdgeId(0)) == Duration::ZERO);
    }

    #[test]
    fn a_hook_gets_the_current_position_and_every_later_one() {
        let progress = Progress::new();
        progress.set_learned(EdgeId(3));
        let received = std::sync::Arc::new(Mutex::new(Vec::new()));
        let sink = received.clone();
        progress.on_learned(move |end| sink.lock().push(end.0));
        progress.set_learned(EdgeId(5));
        progress.set_learned(EdgeId(4));
        progress.set_durable(EdgeId(9));
        assert_eq!(*received.lock(), [3, 5, 5]);
    }

    #[test]
    fn positions_and_watermark_only_grow() {
        let progress = Progress::new();
        assert_eq!(progress.freshness(0), Freshness::default());
        progress.set_durable(EdgeId(5));
        progress.set_durable(EdgeId(3));
        progress.set_watermark(EventTime(-7));
        progress.set_watermark(EventTime(-9));
        progress.set_indexed(EdgeId(4));
        progress.set_learned(EdgeId(1));
        assert_eq!(progress.behind(), 3);
        let fresh = progress.freshness(2);
        assert_eq!((fresh.durable_position, fresh.watermark), (5, Some(EventTime(-7))));
    }
}
