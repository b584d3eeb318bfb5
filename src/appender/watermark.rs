//! The watermark: the time before which no event is expected any more.
//!
//! Partitions do not advance together. As admission judges lateness by the slowest partition that had events lately, so
//! the watermark follows that one; a partition that went quiet is not waited for. A start waits for each partition of
//! the log as if it had just had events. One event far ahead of its partition moves nothing
//! ([`StreamClock`](crate::event::StreamClock)).

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
        Self(positions.times().into_iter().map(|(partition, _)| (partition, now)).collect())
    }

    /// Takes in a frame that was indexed.
    pub fn note(&mut self, frame: &Frame, now: Instant) {
        if frame.batch.op.contains(&Op::Edge) {
            self.0.insert(partition_of(frame), now);
        }
    }

    /// The time before which nothing is expected where events may be `late` by so much; `None` if no partition is
    /// active.
    pub fn closed(&self, positions: &Positions, late: i64, now: Instant) -> Option<EventTime> {
        let is_active = |partition: &Partition| {
            self.0.get(partition).is_some_and(|&at| now.saturating_duration_since(at) < PARTITION_IDLE)
        };
        let times = positions.times().into_iter().filter(|(partition, _)| is_active(partition));
        times.map(|(_, time)| EventTime(time.0.saturating_sub(late))).min()
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
        assert_eq!(take(&mut active, 0, &[990, 1_000], 0), Some(990));
        assert_eq!(take(&mut active, 1, &[400, 500], 1), Some(490));
        assert_eq!(take(&mut active, 0, &[1_100], 20), Some(490), "the other may still bring 495");
        assert_eq!(take(&mut active, 1, &[520], 29), Some(510));
        assert_eq!(take(&mut active, 0, &[1_200], 60), Some(1_190), "it went quiet");
        let idle = start + Duration::from_secs(1_000);
        assert_eq!(active.closed(&index.positions, 10, idle), None, "nobody moves it");
        let mut restarted = ActivePartitions::new(&index.positions, idle);
        assert_eq!(restarted.closed(&index.positions, 10, idle), Some(EventTime(510)));
        restarted.0.clear();
        assert_eq!(restarted.closed(&index.positions, 10, idle), None);
    }
}
