//! The small part of the index in a snapshot: taken between two frames, and put back into an empty index.

use std::sync::atomic::Ordering;

use super::{Index, Positions, Reached};
use crate::appender::snapshot::{Capture, ReadPartition};

impl Index {
    /// What a snapshot at this position needs from the thread that takes frames in. From now on, edges that are
    /// deleted are noted for it.
    #[must_use]
    pub fn capture(&self) -> Capture {
        let graph = self.stores.graph.summary();
        self.deleted_meanwhile.begin(graph.applied);
        let reached = self.positions.reached.read();
        let read = |(partition, reached): (&super::Partition, &Reached)| ReadPartition {
            source: partition.0.clone(),
            partition: partition.1,
            next: reached.next,
            mark: reached.mark,
            origin_unix_ms: reached.origin_unix_ms,
        };
        let clocks = self.positions.clocks.read();
        Capture {
            nodes: self.stores.keys.len(),
            types: self.stores.types.all(),
            reached: reached.iter().map(read).collect(),
            clocks: clocks
                .iter()
                .map(|((source, number), clock)| (source.clone(), *number, *clock))
                .collect(),
            seen: self.seen.keys().collect(),
            unknown_type_edges: self.unknown_type_edges.load(Ordering::Relaxed),
            released: self.released,
            not_after: self.stores.graph.clock_rules().not_after,
            graph,
        }
    }

    /// Takes over what [`capture`](Self::capture) has handed out; the stores have theirs already.
    pub(in crate::appender) fn take_capture(&mut self, capture: &Capture) {
        capture.types.iter().for_each(|name| self.stores.types.define(name));
        self.positions.take_reached(capture);
        let rules = self.stores.graph.clock_rules();
        let clocks = capture.clocks.iter();
        let clocks =
            clocks.map(|(source, number, clock)| ((source.clone(), *number), clock.corrected(rules)));
        self.positions.clocks.write().extend(clocks);
        capture.seen.iter().for_each(|&key| self.seen.insert(key));
        self.unknown_type_edges.store(capture.unknown_type_edges, Ordering::Relaxed);
        self.released = capture.released;
        self.named_end = capture.position();
    }
}

impl Positions {
    /// Takes over how far partitions were read.
    pub(super) fn take_reached(&self, capture: &Capture) {
        let reached = capture.reached.iter().map(|one| {
            let reached = Reached { next: one.next, mark: one.mark, origin_unix_ms: one.origin_unix_ms };
            ((one.source.clone(), one.partition), reached)
        });
        self.reached.write().extend(reached);
    }
}
