//! The watermark: the time before which no event is expected any more.
//!
//! Partitions do not advance together. As admission judges lateness by the slowest partition that had events lately, so
//! the watermark follows that one; a partition that went quiet is not waited for. A start waits for each partition of
//! the log as if it had just had events. The watermark never goes back, so it follows only what ten events of a
//! partition confirm ([`StreamClock`](crate::event::StreamClock)): neither one far ahead nor the first of all move it.

use std::time::Instant;

use hashbrown::HashMap;

use super::index::{Partition, Positions, partition_of};
use crate::event::{EventTime, Op, PARTITION_IDLE};
use crate::log::Frame;

/// When each partition had edges last, by the process's own clock.
pub(super) struct ActivePartitions(HashMap<Partition, Instant>);

impl ActivePartitions {
    /// All partitions of the log, as of `now`.
    pub fn new(positions: &Positions, now: Instant) -> Self {
        let mut active = HashMap::new();
        positions.for_each_clock(|partition, _| {
            active.insert(partition.clone(), now);
        });
        Self(active)
    }

    /// Takes in a frame that was indexed.
    pub fn note(&mut self, frame: &Frame, now: Instant) {
        if frame.batch.op.contains(&Op::Edge) {
            self.0.insert(partition_of(frame), now);
        }
    }

    /// The time before which nothing is expected where events may be `late` by so much; `None` if no active partition
    /// has a time that is confirmed. One without holds the others back, and moves nothing itself.
    pub fn closed(&self, positions: &Positions, late: i64, now: Instant) -> Option<EventTime> {
        let (mut slowest, mut has_confirmed) = (EventTime::MAX, false);
        positions.for_each_clock(|partition, clock| {
            let active = self.0.get(partition);
            if active.is_some_and(|&at| now.saturating_duration_since(at) < PARTITION_IDLE) {
                has_confirmed |= clock.is_confirmed();
                slowest = clock.confirmed().or(clock.latest()).map_or(slowest, |time| slowest.min(time));
            }
        });
        has_confirmed.then(|| EventTime(slowest.0.saturating_sub(late)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::appender::Index;
    use crate::event::{EdgeBatch, EdgeId, NodeId, SourceRange};
    use crate::feature::FeatureStore;
    use crate::graph::{GraphOptions, GraphStore};

    #[test]
    fn the_slowest_partition_that_is_active_holds_the_watermark_back() {
        let rows = || FeatureStore::new(0);
        let mut index = Index::new(GraphStore::new(GraphOptions::default()), rows(), rows(), 0);
        let start = Instant::now();
        let mut active = ActivePartitions::new(&index.positions, start);
        assert_eq!(active.closed(&index.positions, 10, start), None);
        let (few, enough) = (|time: i64| vec![time - 10, time], |time: i64| vec![time; 10]);
        let mut end = 0;
        let mut take = |active: &mut ActivePartitions, partition: i32, times: &[i64], after: u64| {
            let mut batch = EdgeBatch { first: EdgeId(end), ..EdgeBatch::default() };
            times.iter().for_each(|&time| batch.push_edge(NodeId(0), NodeId(1), EventTime(time)));
            let to = batch.end().0.cast_signed();
            let range =
                SourceRange { source: "kafka:t".into(), partition, from: end.cast_signed(), to, mark: None };
            let new_keys = if end == 0 { vec!["a".into(), "b".into()] } else { Vec::new() };
            end = batch.end().0;
            let frame = Frame { batch, new_keys, sources: vec![range], ..Frame::default() };
            index.absorb(&frame).unwrap();
            let now = start + Duration::from_secs(after);
            active.note(&frame, now);
            active.closed(&index.positions, 10, now).map(|time| time.0)
        };
        assert_eq!(take(&mut active, 0, &[4 << 60], 0), None, "the first event of all confirms nothing");
        assert_eq!(take(&mut active, 0, &few(1_000), 0), None);
        assert_eq!(take(&mut active, 0, &enough(1_000), 0), Some(990), "neither does it stay");
        assert_eq!(take(&mut active, 1, &few(500), 1), Some(490), "a new one holds the others back");
        assert_eq!(take(&mut active, 1, &enough(500), 1), Some(490));
        assert_eq!(take(&mut active, 0, &enough(1_100), 20), Some(490), "the other may still bring 495");
        assert_eq!(take(&mut active, 1, &enough(520), 29), Some(510));
        assert_eq!(take(&mut active, 0, &enough(1_200), 60), Some(1_190), "it went quiet");
        let idle = start + Duration::from_secs(1_000);
        assert_eq!(active.closed(&index.positions, 10, idle), None, "nobody moves it");
        let mut restarted = ActivePartitions::new(&index.positions, idle);
        assert_eq!(restarted.closed(&index.positions, 10, idle), Some(EventTime(510)));
        restarted.0.clear();
        assert_eq!(restarted.closed(&index.positions, 10, idle), None);
    }
}
