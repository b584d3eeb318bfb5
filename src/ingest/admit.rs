//! What every source requires of an event before it is stored: feature rows of the stream's length, and an
//! event time that is neither too late nor too far ahead.
//!
//! **Clocks.** Partitions of a source, and sources, do not advance together: a broker hands out a day of
//! one partition before the first message of the next. So every partition has a clock of its own, the
//! latest event time of its edges, and an edge is late when it is behind *every* clock by more than the
//! allowed lateness: its own, and those of all partitions that had events within [`PARTITION_IDLE`]. A partition that
//! has gone quiet holds nobody back; one whose first edge is yet to come sets its clock with it.
//!
//! **Too far ahead** is judged by the partition's own clock alone, for the same reason. A clock is *sure*
//! once two edges in a row stood within the future limit of one another, or if enough edges in the log confirm it, and
//! only a sure clock refuses edges: a first edge with a wild time is corrected by the next one. [`CONFIRMING_EVENTS`]
//! edges that are too far ahead, however far from one another, move the clock to their middle and on to the later ones
//! near it. They need not be in a row: each other edge takes back a tenth of one, so a share of wild times below one in
//! eleven never adds up. Where the ten stand farther apart than the limit, the partition is sparse, and twice the time
//! from the first to the middle one is its limit from then on. The tenth is stored unless it is far ahead of the others
//! still; those before it are dead letters. Ten different wild times in a row move the clock as well, to their middle.
//! Without a future limit one wild time makes everything after it in its partition late, until another partition with
//! sane times is active or the daemon starts again.
//!
//! **A restart.** The log has the edges that were stored, not those that were refused, so it cannot repeat a move. Its
//! [`StreamClock`] leads to the same place nevertheless. The ten latest times show whether a partition is sparse, as
//! they do at a move. Stored times beyond the clock are either what a move let pass, or wild and from when there was no
//! limit; which, the next edges tell: all but one of the ten that move the clock count as seen. One more that is as far
//! ahead moves it; ordinary edges take that back.
//!
//! **Again.** A source judges through an [`AdmitCursor`], which also sees the batch it is building and
//! advances the shared clock with [`AdmitCursor::commit`] once the batch is durable; after a restart clocks
//! start at what the log has of their partition. So a batch that the log refused is judged again as it was
//! the first time.
//!
//! **Nodes.** With a limit to their number, an event that names a new node is refused while there are as many. What
//! is on its way to the log when the limit is reached is still stored, so the limit may be passed by that much. A
//! deletion makes room for another node.
//!
//! Only edges have lateness and advance clocks: node features are often loaded from tables with arbitrary
//! times, and deletions name a time to delete up to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::decode::TIME_LIMIT;
use super::partition_clock::{PartitionClock, advance};
use super::rejection::{Reason, Rejection};
use crate::event::{Event, EventTime, NodeKey, NodeNames, PARTITION_IDLE, StreamClock};

/// Edges that are checked between two reads of the other clocks.
const LOOK_EVERY: u32 = 1024;

/// What happens to an edge that is later than the allowed lateness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatePolicy {
    /// It is stored, in time order, and counted.
    #[default]
    Accept,
    /// It is counted and not stored.
    Drop,
    /// It becomes a dead letter.
    DeadLetter,
}

/// What the stream requires of its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmitOptions {
    /// Length of edge feature rows; 0 means that edges carry none.
    pub edge_feature_dim: usize,
    /// Length of node feature rows; 0 means that nodes carry none.
    pub node_feature_dim: usize,
    /// An edge is late when its time is behind every active clock by more than this, in the stream's unit;
    /// `None` means that no edge is late.
    pub allowed_lateness: Option<i64>,
    /// What happens to late edges.
    pub late: LatePolicy,
    /// An edge is refused when its time is ahead of its partition's clock by more than this, in the stream's
    /// unit; `None` means that no edge is.
    pub future_limit: Option<i64>,
}

/// A clock as others see it.
#[derive(Debug, Default)]
struct Shown {
    clock: Option<PartitionClock>,
    active: Option<Instant>,
}

/// How many nodes the stream may have, and which there are.
pub struct NodeLimit {
    /// No event that names a new node is taken in while there are so many.
    pub nodes_max: usize,
    /// Which there are.
    pub names: Arc<dyn NodeNames>,
}

impl std::fmt::Debug for NodeLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeLimit").field("nodes_max", &self.nodes_max).finish_non_exhaustive()
    }
}

impl NodeLimit {
    fn check(&self, keys: &[&NodeKey]) -> Result<(), Rejection> {
        if self.names.count() < self.nodes_max {
            return Ok(());
        }
        match keys.iter().find(|key| !self.names.has(key)) {
            None => Ok(()),
            Some(key) => Err(Rejection::new(
                Reason::TooManyNodes,
                format!(
                    "node {key} is new, and there are {} nodes, the most that stream.nodes_max allows; delete nodes, \
                     or raise it and restart",
                    self.nodes_max
                ),
            )),
        }
    }
}

/// The stream's rules and the clocks of all partitions.
#[derive(Debug)]
pub struct Admission {
    options: AdmitOptions,
    nodes: Option<NodeLimit>,
    clocks: Mutex<BTreeMap<(Arc<str>, i32), Shown>>,
}

impl Admission {
    /// Rules for a stream; clocks start with their first edge or with what their cursor is given.
    #[must_use]
    pub fn new(options: AdmitOptions) -> Arc<Self> {
        Self::with_nodes(options, None)
    }

    /// The same with a limit to the number of nodes.
    #[must_use]
    pub fn with_nodes(options: AdmitOptions, nodes: Option<NodeLimit>) -> Arc<Self> {
        Arc::new(Self { options, nodes, clocks: Mutex::default() })
    }

    fn check_nodes(&self, event: &Event) -> Result<(), Rejection> {
        match (&self.nodes, event) {
            (None, _) | (_, Event::DeleteEdge { .. } | Event::DeleteNode { .. }) => Ok(()),
            (Some(nodes), Event::Edge(edge)) => nodes.check(&[&edge.src, &edge.dst]),
            (Some(nodes), Event::Node { key, .. }) => nodes.check(&[key]),
        }
    }

    /// The latest event time on any clock: of edges that are durable.
    #[must_use]
    pub fn latest(&self) -> Option<EventTime> {
        self.clocks.lock().values().filter_map(|shown| shown.clock).map(|clock| clock.time).max()
    }

    /// A cursor to judge the events of one partition of a source with. `stored` is where the edges of this
    /// partition in the log stand; it counts where the partition has no clock yet.
    #[must_use]
    pub fn cursor(
        self: &Arc<Self>,
        source: &Arc<str>,
        partition: i32,
        stored: Option<StreamClock>,
    ) -> AdmitCursor {
        let key = (Arc::clone(source), partition);
        let mut clocks = self.clocks.lock();
        let shown = clocks.entry(key.clone()).or_default();
        let limit = self.options.future_limit;
        shown.clock = shown.clock.or_else(|| PartitionClock::of_log(&stored?, limit));
        let clock = shown.clock;
        drop(clocks);
        AdmitCursor {
            admission: Arc::clone(self),
            key,
            ahead: clock,
            sealed: None,
            others: None,
            until_look: 0,
        }
    }

    /// The earliest clock of the other partitions that are active; notes that this one is.
    fn others(&self, key: &(Arc<str>, i32)) -> Option<EventTime> {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        if let Some(own) = clocks.get_mut(key) {
            own.active = Some(now);
        }
        let active = |shown: &Shown| shown.active.is_some_and(|at| now.duration_since(at) < PARTITION_IDLE);
        clocks
            .iter()
            .filter(|(other, shown)| *other != key && active(shown))
            .filter_map(|(_, shown)| Some(shown.clock?.time))
            .min()
    }
}

/// Whether an event is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Accept,
    /// It is, although it is late.
    AcceptLate,
    /// It is not, and is only counted.
    Drop(Rejection),
    /// It is not, and becomes a dead letter.
    Refuse(Rejection),
}

/// Judges events in the order of one partition.
#[derive(Debug)]
pub struct AdmitCursor {
    admission: Arc<Admission>,
    key: (Arc<str>, i32),
    /// The partition's clock with what was accepted, durable or not.
    ahead: Option<PartitionClock>,
    /// The same up to the end of the batch that was submitted last.
    sealed: Option<PartitionClock>,
    /// The earliest clock of the other active partitions, as of the last read.
    others: Option<EventTime>,
    /// Edges until the next read.
    until_look: u32,
}

impl AdmitCursor {
    /// Judges the next event.
    pub fn judge(&mut self, event: &Event) -> Verdict {
        let options = self.admission.options;
        if let Err(rejection) = self.admission.check_nodes(event) {
            return Verdict::Refuse(rejection);
        }
        match event {
            Event::Edge(edge) => {
                match check_dimension("edge", edge.features.len(), options.edge_feature_dim) {
                    Ok(()) => self.judge_time(edge.time),
                    Err(rejection) => Verdict::Refuse(rejection),
                }
            }
            Event::Node { features, .. } => {
                match check_dimension("node", features.len(), options.node_feature_dim) {
                    Ok(()) => Verdict::Accept,
                    Err(rejection) => Verdict::Refuse(rejection),
                }
            }
            Event::DeleteEdge { .. } | Event::DeleteNode { .. } => Verdict::Accept,
        }
    }

    /// What was checked so far is a batch that is being submitted.
    pub fn seal(&mut self) {
        self.sealed = self.ahead;
        self.until_look = 0;
    }

    /// What was judged up to the last [`seal`](Self::seal) is durable.
    pub fn commit(&mut self) {
        let Some(sealed) = self.sealed else { return };
        let mut clocks = self.admission.clocks.lock();
        let Some(shown) = clocks.get_mut(&self.key) else { return };
        shown.clock = Some(match shown.clock {
            Some(clock) if clock.sure && sealed.sure => sealed.not_before(clock.time),
            Some(clock) if clock.sure => clock,
            _ => sealed,
        });
    }

    /// What was judged since the last [`commit`](Self::commit) will be judged again.
    pub fn rewind(&mut self) {
        self.ahead = self.admission.clocks.lock().get(&self.key).and_then(|shown| shown.clock);
        self.sealed = None;
        self.until_look = 0;
    }

    fn judge_time(&mut self, time: EventTime) -> Verdict {
        if !(-TIME_LIMIT..=TIME_LIMIT).contains(&time.0) {
            let detail = format!("time {time} does not lie within ±2^62");
            return Verdict::Refuse(Rejection::new(Reason::BadTime, detail));
        }
        if self.until_look == 0 {
            self.others = self.admission.others(&self.key);
            self.until_look = LOOK_EVERY;
        }
        self.until_look -= 1;
        let before = self.ahead.map(|clock| clock.time);
        let (clock, refused) = advance(self.ahead, time, self.admission.options.future_limit);
        self.ahead = Some(clock);
        if let Some(rejection) = refused {
            return Verdict::Refuse(rejection);
        }
        // A clock that an unsure time had put ahead was set back by this edge, which then is not late.
        let own = before.zip(self.ahead).map(|(before, now)| before.min(now.time));
        let Some(own) = own else { return Verdict::Accept };
        self.judge_lateness(time, self.others.map_or(own, |others| own.min(others)))
    }

    fn judge_lateness(&self, time: EventTime, reference: EventTime) -> Verdict {
        let options = self.admission.options;
        match options.allowed_lateness {
            Some(allowed) if time.0 < reference.0.saturating_sub(allowed) => {
                let detail =
                    format!("time {time} is more than {allowed} before {reference}, where the stream stands");
                let rejection = Rejection::new(Reason::TooLate, detail);
                match options.late {
                    LatePolicy::Accept => Verdict::AcceptLate,
                    LatePolicy::Drop => Verdict::Drop(rejection),
                    LatePolicy::DeadLetter => Verdict::Refuse(rejection),
                }
            }
            _ => Verdict::Accept,
        }
    }
}

/// Whether a feature row is as long as the stream's are.
pub(super) fn check_dimension(what: &str, found: usize, expected: usize) -> Result<(), Rejection> {
    if found == 0 || found == expected {
        return Ok(());
    }
    let detail = format!(
        "the {what} has {found} features, stream.{what}_feature_dimension is {expected}; send {expected} or none, \
         or set it to {found}"
    );
    Err(Rejection::new(Reason::FeatureDimension, detail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CONFIRMING_EVENTS, ClockRules, EdgeEvent, EdgeId, NodeKey};

    fn edge(time: i64, features: usize) -> Event {
        Event::Edge(EdgeEvent {
            src: NodeKey::Int(1),
            dst: NodeKey::Int(2),
            time: EventTime(time),
            edge_type: None,
            features: vec![0.5; features],
            label: None,
        })
    }

    fn reason(verdict: &Verdict) -> Option<Reason> {
        match verdict {
            Verdict::Accept | Verdict::AcceptLate => None,
            Verdict::Drop(r) | Verdict::Refuse(r) => Some(r.reason),
        }
    }

    fn cursor(admission: &Arc<Admission>, partition: i32, stored: Option<i64>) -> AdmitCursor {
        admission.cursor(&"kafka:t".into(), partition, stored.map(|time| logged([time; 10])))
    }

    /// The clock of a log with edges at these times.
    fn logged(times: impl IntoIterator<Item = i64>) -> StreamClock {
        let mut clock = StreamClock::new(ClockRules { future_limit: Some(1000), ..ClockRules::default() });
        times.into_iter().for_each(|time| clock.observe(EdgeId(0), EventTime(time)));
        clock
    }

    fn restarted(times: impl IntoIterator<Item = i64>) -> AdmitCursor {
        let options = AdmitOptions { future_limit: Some(1000), ..late_after(10) };
        Admission::new(options).cursor(&"kafka:t".into(), 0, Some(logged(times)))
    }

    fn late_after(allowed: i64) -> AdmitOptions {
        AdmitOptions {
            allowed_lateness: Some(allowed),
            late: LatePolicy::DeadLetter,
            ..AdmitOptions::default()
        }
    }

    fn store(cursor: &mut AdmitCursor, times: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let refused = times.into_iter().filter(|&t| reason(&cursor.judge(&edge(t, 0))).is_some()).collect();
        cursor.seal();
        cursor.commit();
        refused
    }

    #[test]
    fn a_new_node_beyond_the_limit_is_refused_until_another_is_deleted() {
        struct Names(Mutex<Vec<NodeKey>>);
        impl NodeNames for Names {
            fn count(&self) -> usize {
                self.0.lock().len()
            }
            fn has(&self, key: &NodeKey) -> bool {
                self.0.lock().contains(key)
            }
        }
        let names = Arc::new(Names(Mutex::new(vec!["a".into()])));
        let limit = NodeLimit { nodes_max: 2, names: names.clone() };
        let admission = Admission::with_nodes(AdmitOptions::default(), Some(limit));
        let mut cursor = admission.cursor(&"s".into(), 0, None);
        let node = |key: &str| Event::Node { key: key.into(), time: EventTime(0), features: Vec::new() };
        assert_eq!(cursor.judge(&node("b")), Verdict::Accept);
        names.0.lock().push("b".into());
        assert_eq!(cursor.judge(&node("b")), Verdict::Accept, "it is there");
        let Verdict::Refuse(refused) = cursor.judge(&node("c")) else { panic!("accepted") };
        assert_eq!(refused.reason, Reason::TooManyNodes);
        assert!(refused.detail.contains("node c is new") && refused.detail.contains("2 nodes"), "{refused}");
        assert_eq!(cursor.judge(&Event::DeleteNode { key: "c".into() }), Verdict::Accept);
        names.0.lock().retain(|key| *key != "a".into());
        assert_eq!(cursor.judge(&node("c")), Verdict::Accept);
    }

    #[test]
    fn rows_have_the_streams_length_or_none() {
        let options = AdmitOptions { edge_feature_dim: 3, ..AdmitOptions::default() };
        let mut cursor = cursor(&Admission::new(options), 0, None);
        assert_eq!(cursor.judge(&edge(1, 0)), Verdict::Accept);
        assert_eq!(cursor.judge(&edge(1, 3)), Verdict::Accept);
        assert_eq!(reason(&cursor.judge(&edge(1, 2))), Some(Reason::FeatureDimension));
        let node = Event::Node { key: NodeKey::Int(1), time: EventTime(0), features: vec![1.0; 3] };
        assert_eq!(reason(&cursor.judge(&node)), Some(Reason::FeatureDimension));
    }

    #[test]
    fn lateness_counts_from_what_is_durable_or_in_the_same_batch() {
        let admission = Admission::new(late_after(10));
        let mut first = cursor(&admission, 0, Some(100));
        assert_eq!(first.judge(&edge(90, 0)), Verdict::Accept, "exactly the allowed lateness");
        assert_eq!(reason(&first.judge(&edge(89, 0))), Some(Reason::TooLate));
        assert_eq!(first.judge(&edge(200, 0)), Verdict::Accept);
        assert_eq!(reason(&first.judge(&edge(189, 0))), Some(Reason::TooLate), "its own batch counts");
        let mut second = cursor(&admission, 0, None);
        assert_eq!(second.judge(&edge(95, 0)), Verdict::Accept, "not durable, not seen by others");
        first.rewind();
        assert_eq!(first.judge(&edge(95, 0)), Verdict::Accept, "judged again as the first time");
        assert_eq!(first.judge(&edge(200, 0)), Verdict::Accept);
        first.seal();
        assert_eq!(first.judge(&edge(300, 0)), Verdict::Accept, "of the next batch");
        first.commit();
        assert_eq!(admission.latest(), Some(EventTime(200)));
        assert_eq!(reason(&cursor(&admission, 0, None).judge(&edge(95, 0))), Some(Reason::TooLate));
    }

    #[test]
    fn a_partition_that_is_read_after_another_is_not_late() {
        let admission = Admission::new(late_after(10));
        let (mut ahead, mut behind) = (cursor(&admission, 0, None), cursor(&admission, 1, None));
        assert!(store(&mut ahead, 0..1000).is_empty());
        assert!(store(&mut behind, 0..500).is_empty(), "its own clock counts");
        assert_eq!(reason(&behind.judge(&edge(480, 0))), Some(Reason::TooLate), "late within its own");
        behind.rewind();
        ahead.rewind();
        assert_eq!(
            store(&mut ahead, [600, 495, 480]),
            [480],
            "the partition that lags determines the stream's time"
        );

        // A partition without events holds nobody back.
        let long_ago = Instant::now().checked_sub(PARTITION_IDLE).unwrap();
        admission.clocks.lock().get_mut(&("kafka:t".into(), 1)).unwrap().active = Some(long_ago);
        ahead.rewind();
        assert_eq!(store(&mut ahead, [990, 600]), [600]);
        // It goes on where it stopped, also in a new cursor.
        let mut back = cursor(&admission, 1, None);
        assert_eq!(store(&mut back, [495, 480, 501]), [480]);
    }

    #[test]
    fn after_a_restart_every_partition_goes_on_where_its_own_events_stopped() {
        let admission = Admission::new(late_after(10));
        let (mut ahead, mut behind) = (cursor(&admission, 0, Some(1000)), cursor(&admission, 1, Some(500)));
        assert_eq!(store(&mut behind, [480, 495]), [480]);
        assert_eq!(store(&mut ahead, [480, 495]), [480]);
        behind.rewind();
        assert_eq!(store(&mut behind, 501..600), [0; 0]);
    }

    #[test]
    fn policies_and_extremes() {
        for (late, expected) in [(LatePolicy::Accept, None), (LatePolicy::Drop, Some(Reason::TooLate))] {
            let options = AdmitOptions { allowed_lateness: Some(0), late, ..AdmitOptions::default() };
            let mut cursor = cursor(&Admission::new(options), 0, Some(5));
            assert_eq!(reason(&cursor.judge(&edge(4, 0))), expected);
        }
        let options = AdmitOptions { future_limit: Some(100), ..late_after(i64::MAX) };
        let mut cursor = cursor(&Admission::new(options), 0, None);
        assert_eq!(cursor.judge(&edge(50, 0)), Verdict::Accept, "the first edge sets the clock");
        assert_eq!(cursor.judge(&edge(51, 0)), Verdict::Accept);
        assert_eq!(reason(&cursor.judge(&edge(152, 0))), Some(Reason::TooFarAhead));
        assert_eq!(cursor.judge(&edge(150, 0)), Verdict::Accept);
        assert_eq!(cursor.judge(&edge(-(1 << 62), 0)), Verdict::Accept, "no overflow");
        let delete = Event::DeleteNode { key: NodeKey::Int(1) };
        assert_eq!(cursor.judge(&delete), Verdict::Accept);
    }

    #[test]
    fn one_wild_time_spoils_nothing_where_there_is_a_future_limit() {
        let wild = 1_700_000_000_000_000_000;
        let options = AdmitOptions { future_limit: Some(1000), ..late_after(10) };
        let admission = Admission::new(options);
        let mut now = cursor(&admission, 0, None);
        assert_eq!(store(&mut now, [100, 101, wild, 102, 103]), [wild]);
        // The very first one cannot be detected, but does no harm to the others.
        let mut first = cursor(&admission, 1, None);
        assert_eq!(store(&mut first, [wild, 100, 101, 80, 102]), [80]);
        // One that the log has, and no other with it, is forgotten after a restart.
        assert_eq!(store(&mut restarted([wild]), [100, 101, 80]), [80]);
        // What the log confirms refuses the first edge after a restart too.
        let mut restarted = cursor(&Admission::new(options), 0, Some(100));
        assert_eq!(store(&mut restarted, [wild, 101, 102]), [wild]);
    }

    #[test]
    fn ten_edges_carry_the_clock_over_a_gap_whatever_comes_between() {
        let options = AdmitOptions { future_limit: Some(1000), ..late_after(10) };
        let admission = Admission::new(options);
        let mut cursor = cursor(&admission, 0, Some(100));
        let last = 9_000 + CONFIRMING_EVENTS as i64 - 1;
        let before: Vec<i64> = (9_000..last).collect();
        assert_eq!(store(&mut cursor, before.clone()), before);
        assert_eq!(store(&mut cursor, [101]), [0; 0], "the clock stands where it stood");
        assert_eq!(store(&mut cursor, [1 << 50]), [1 << 50], "one in ten was taken back");
        assert_eq!(store(&mut cursor, [last, last + 1, 9_900]), [0; 0]);
        assert_eq!(admission.latest(), Some(EventTime(9_900)));
        assert_eq!(reason(&cursor.judge(&edge(1 << 50, 0))), Some(Reason::TooFarAhead));
        // What is judged again gets the same verdicts.
        let mut again = admission.cursor(&"kafka:t".into(), 1, Some(logged([100; 10])));
        for _ in 0..2 {
            again.rewind();
            let refused: Vec<_> = (9_000..=last).map(|time| reason(&again.judge(&edge(time, 0)))).collect();
            assert_eq!(refused.iter().flatten().count(), CONFIRMING_EVENTS - 1);
        }
    }

    #[test]
    fn a_sparse_partition_is_refused_nine_times_and_never_again() {
        for gaps in [&[2_000][..], &[2_000, 500], &[1_001, 7_000, 30, 3_000]] {
            let mut time = 100;
            let times: Vec<i64> = gaps
                .iter()
                .cycle()
                .take(200)
                .map(|gap| {
                    time += gap;
                    time
                })
                .collect();
            let mut cursor = restarted((0..100).map(|i| i + 1));
            let refused = store(&mut cursor, times.clone());
            assert!(refused.len() <= CONFIRMING_EVENTS + 10, "{gaps:?}: {refused:?}");
            assert!(refused.iter().all(|time| times[..30].contains(time)), "{gaps:?}: {refused:?}");
            assert_eq!(
                store(&mut cursor, [1 << 50, time + 1]),
                [1 << 50],
                "{gaps:?}: far ahead all the same"
            );
            // A restart takes nothing back, wherever it comes.
            for stored in [40, 100, 195] {
                let again = store(&mut restarted(times[20..stored].to_vec()), times[stored..].to_vec());
                assert_eq!(again, [0; 0], "{gaps:?} after {stored}");
            }
        }
    }

    #[test]
    fn some_wild_times_among_many_never_add_up() {
        let mut cursor = restarted(0..100);
        let wild = |i: i64| i % 12 == 0;
        let times = (0..5_000).map(|i| if wild(i) { (1 << 40) + i * i } else { 100 + i });
        assert!(store(&mut cursor, times).iter().all(|&time| time >= 1 << 40));
        assert_eq!(store(&mut cursor, [5_100]), [0; 0]);
    }

    #[test]
    fn a_move_over_a_gap_outlives_a_restart_and_a_wild_time_in_the_log_does_not_move() {
        let ordinary = || 100..200;
        // The tenth of the edges after a gap was stored, and the daemon was restarted.
        let mut moved = restarted(ordinary().chain([90_000]));
        assert_eq!(store(&mut moved, [90_001, 90_002, 90_900]), [0; 0]);
        // The same log, but the one edge is wild, from before there was a limit.
        let mut spoilt = restarted(ordinary().chain([1 << 50]));
        assert_eq!(store(&mut spoilt, 200..300), [0; 0]);
        assert_eq!(store(&mut spoilt, [(1 << 50) + 1, 301]), [(1 << 50) + 1]);
        let mut spoilt = restarted(ordinary().chain((0..5).map(|i| i << 50)));
        assert_eq!(store(&mut spoilt, 200..300), [0; 0], "five of them");
    }

    #[test]
    fn without_a_future_limit_a_wild_time_spoils_its_own_partition_only() {
        let wild = 1_700_000_000_000_000_000;
        let admission = Admission::new(late_after(10));
        let (mut bad, mut good) = (cursor(&admission, 0, None), cursor(&admission, 1, None));
        store(&mut bad, [100, wild]);
        assert!(store(&mut good, 100..200).is_empty());
        bad.rewind();
        assert!(store(&mut bad, 195..200).is_empty(), "the other clock is sane");
    }
}
