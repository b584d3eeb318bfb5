//! What the log means: everything that is rebuilt by reading it from the start. A live frame and a
//! replayed frame go through the same [`Index::absorb`], so a restart cannot differ from the run.

mod saved;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::idempotency::IdempotencyWindow;
use super::snapshot::{Capture, DeletedMeanwhile};
use crate::event::{
    ClockRules, EdgeBatch, EdgeId, Op, PositionLookup, SourceMark, SourcePosition, SourceRange, StreamClock,
};
use crate::feature::{FeatureError, FeatureStore};
use crate::graph::{GraphStore, RetentionBounds, SpillError};
use crate::log::{Frame, LogError, LogReader};
use crate::model::EdgeTypes;
use crate::serving::Stores;

/// How far each partition of each source is in the log, and where in time it stands.
#[derive(Debug, Default)]
pub struct Positions {
    reached: RwLock<HashMap<Partition, Reached>>,
    clocks: RwLock<HashMap<Partition, StreamClock>>,
    rules: ClockRules,
}

/// How far a partition is in the log.
#[derive(Clone, Copy, Debug)]
struct Reached {
    next: i64,
    mark: Option<SourceMark>,
    origin_unix_ms: i64,
}

/// A source and one of its partitions. The empty name stands for all sources without offsets.
pub(super) type Partition = (Arc<str>, i32);

impl Positions {
    /// Every known position, sorted by source and partition.
    #[must_use]
    pub fn all(&self) -> Vec<SourcePosition> {
        let mut all: Vec<_> = self
            .reached
            .read()
            .iter()
            .map(|((source, partition), reached)| SourcePosition {
                source: source.clone(),
                partition: *partition,
                next_offset: reached.next,
            })
            .collect();
        all.sort_by(|a, b| (&a.source, a.partition).cmp(&(&b.source, b.partition)));
        all
    }

    /// Those that a capture, if there is one, and the log behind it have; without clocks.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn of_log(capture: Option<&Capture>, reader: &mut LogReader) -> Result<Self, LogError> {
        let positions = Self::default();
        capture.into_iter().for_each(|capture| positions.take_reached(capture));
        while let Some(frame) = reader.next_frame()? {
            frame.sources.iter().for_each(|range| positions.advance(range, frame.origin_unix_ms));
        }
        Ok(positions)
    }

    /// Takes a run in. One that ends before it begins takes the partition back.
    fn advance(&self, range: &SourceRange, origin_unix_ms: i64) {
        let mut map = self.reached.write();
        let known = map.get(&(range.source.clone(), range.partition)).map_or(range.to, |known| known.next);
        let next = if range.to < range.from { range.to } else { range.to.max(known) };
        let reached = Reached { next, mark: range.mark, origin_unix_ms };
        map.insert((range.source.clone(), range.partition), reached);
    }

    fn reached(&self, source: &str, partition: i32) -> Option<Reached> {
        self.reached.read().get(&(Arc::from(source), partition)).copied()
    }

    fn advance_time(&self, frame: &Frame) {
        let batch = &frame.batch;
        let mut edges = (0..batch.len()).filter(|&i| batch.op[i] == Op::Edge).peekable();
        if edges.peek().is_none() {
            return;
        }
        let mut clocks = self.clocks.write();
        let clock = clocks.entry(partition_of(frame)).or_insert_with(|| StreamClock::new(self.rules));
        edges.for_each(|i| clock.observe(batch.id(i), batch.time[i]));
    }

    /// Calls `visit` with each partition that had edges, and where in time it stands.
    pub(super) fn for_each_clock(&self, mut visit: impl FnMut(&Partition, &StreamClock)) {
        self.clocks.read().iter().for_each(|(partition, clock)| visit(partition, clock));
    }
}

/// The partition that a frame is of.
pub(super) fn partition_of(frame: &Frame) -> Partition {
    frame.sources.first().map_or_else(|| ("".into(), 0), |range| (range.source.clone(), range.partition))
}

impl PositionLookup for Positions {
    fn position(&self, source: &str, partition: i32) -> Option<i64> {
        self.reached(source, partition).map(|reached| reached.next)
    }

    fn mark(&self, source: &str, partition: i32) -> Option<SourceMark> {
        self.reached(source, partition)?.mark
    }

    fn origin_unix_ms(&self, source: &str, partition: i32) -> Option<i64> {
        self.reached(source, partition).map(|reached| reached.origin_unix_ms)
    }

    fn clock(&self, source: &str, partition: i32) -> Option<StreamClock> {
        self.clocks.read().get(&(Arc::from(source), partition)).copied()
    }
}

/// The parts that the log rebuilds. The shared ones are read by everybody and written here only.
pub struct Index {
    /// Adjacency, node names, rows of edges and nodes.
    pub stores: Stores,
    /// Source positions.
    pub positions: Arc<Positions>,
    /// Types of edges that the model distinguishes.
    known_types: EdgeTypes,
    /// Edges of other types, which it takes for edges without a type.
    pub unknown_type_edges: Arc<AtomicU64>,
    pub(super) seen: IdempotencyWindow,
    /// Names and rows of every record below this position are in.
    named_end: EdgeId,
    /// Whether the graph's memory or disk may still hold what a deletion removed.
    pub(super) has_traces: bool,
    /// What the last release keeps that was begun.
    pub(super) released: RetentionBounds,
    /// Edges that are deleted while a snapshot is written.
    pub(super) deleted_meanwhile: DeletedMeanwhile,
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(
        graph: GraphStore,
        edge_features: FeatureStore,
        node_features: FeatureStore,
        idempotency_keys_max: usize,
    ) -> Self {
        let positions = Positions { rules: graph.clock_rules(), ..Positions::default() };
        Self {
            stores: Stores::new(graph, edge_features, node_features),
            positions: Arc::new(positions),
            known_types: EdgeTypes::default(),
            unknown_type_edges: Arc::default(),
            seen: IdempotencyWindow::new(idempotency_keys_max),
            named_end: EdgeId(0),
            has_traces: false,
            released: RetentionBounds::default(),
            deleted_meanwhile: DeletedMeanwhile::default(),
        }
    }

    /// The same for a model that distinguishes these types of edges: `edge_features` has rows as that model reads them.
    #[must_use]
    pub fn with_edge_types(self, known_types: EdgeTypes) -> Self {
        let stores = Stores { rows_have_types: known_types.known > 0, ..self.stores };
        Self { known_types, stores, ..self }
    }

    /// As [`absorb_with`](Self::absorb_with), where nobody waits for signs of life.
    ///
    /// # Errors
    /// As [`absorb_with`](Self::absorb_with).
    pub fn absorb(&mut self, frame: &Frame) -> Result<(), SpillError> {
        self.absorb_with(frame, &|| ())
    }

    /// Takes in a frame that is in the log. Rows first, then adjacency: who finds an edge finds its row. The rows of
    /// edges that a deletion removes go with them, and the names of deleted nodes last: a name that comes again
    /// in the same frame has its new id by then. A deletion may take long, and calls `pulse` every so often.
    ///
    /// # Errors
    /// The graph cannot read back what it keeps on disk; the same frame may be taken in again.
    pub fn absorb_with(&mut self, frame: &Frame, pulse: &dyn Fn()) -> Result<(), SpillError> {
        self.take_once(frame);
        let (rows, has_traces) = (&self.stores.edge_features, &mut self.has_traces);
        let meanwhile = &self.deleted_meanwhile;
        let mut removed = |edges: &[EdgeId]| {
            meanwhile.note(edges);
            edges.iter().for_each(|edge| rows.clear(edge.0));
            *has_traces |= !edges.is_empty();
            pulse();
        };
        self.stores.graph.apply_reporting_removed(&frame.batch, &mut removed)?;
        let batch = &frame.batch;
        let records = batch.op.iter().zip(&batch.src);
        records.filter(|(op, _)| **op == Op::DeleteNode).for_each(|(_, &node)| self.stores.keys.forget(node));
        // Edges that were released by age left theirs, and nobody knows any more whose they were.
        self.has_traces |= batch.has_deletions() && self.stores.graph.retention().is_some();
        self.advance(frame);
        Ok(())
    }

    /// Takes in all of a frame without deletions but its edges, which go to the end of `edges`: of those only what the
    /// graph reads. The caller puts them into the graph before anything else.
    pub(super) fn absorb_all_but_edges(&mut self, frame: &Frame, edges: &mut EdgeBatch) {
        self.take_once(frame);
        let batch = &frame.batch;
        if edges.is_empty() {
            edges.restart(batch.first);
        }
        edges.op.extend_from_slice(&batch.op);
        edges.src.extend_from_slice(&batch.src);
        edges.dst.extend_from_slice(&batch.dst);
        edges.time.extend_from_slice(&batch.time);
        self.advance(frame);
    }

    fn advance(&self, frame: &Frame) {
        for range in &frame.sources {
            self.positions.advance(range, frame.origin_unix_ms);
        }
        self.positions.advance_time(frame);
    }

    /// What must be done once only, even if the frame is taken in again: a key gets one id, and a row that a
    /// deletion removed must not come back.
    fn take_once(&mut self, frame: &Frame) {
        if self.named_end >= frame.batch.end() {
            return;
        }
        self.named_end = frame.batch.end();
        self.stores.keys.define(&frame.new_keys);
        for name in &frame.new_types {
            self.stores.types.define(name);
        }
        for &key in frame.batch.idempotency.iter().filter(|&&key| key != 0) {
            self.seen.insert(key);
        }
        self.set_rows(frame);
    }

    fn set_rows(&self, frame: &Frame) {
        let batch = &frame.batch;
        let typed = self.known_types.known > 0 && batch.edge_type.iter().any(|kind| *kind != 0);
        if batch.features.ends.is_empty() && !typed && !batch.op.contains(&Op::DeleteNode) {
            return;
        }
        let mut edge_row = Vec::new();
        for (i, op) in batch.op.iter().enumerate() {
            let row = batch.features.row(i);
            let set = match op {
                Op::Edge => self.set_edge_row(frame, i, &mut edge_row),
                Op::Node if row.len() == self.stores.node_features.dimension() => {
                    self.stores.node_features.set(u64::from(batch.src[i].0), row)
                }
                Op::DeleteNode => {
                    self.stores.node_features.clear(u64::from(batch.src[i].0));
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(error) = set {
                tracing::error!(%error, position = batch.id(i).0, "a feature row is left out");
            }
        }
    }

    /// Stores the row of edge `i` of the frame: its type, if types are distinguished, and its features.
    fn set_edge_row(&self, frame: &Frame, i: usize, row: &mut Vec<f32>) -> Result<(), FeatureError> {
        let (batch, types) = (&frame.batch, self.known_types);
        let (kind, features) = (batch.edge_type[i], batch.features.row(i));
        let dimension = self.stores.edge_feature_dimension();
        let fits = features.len() == dimension;
        let kind = if types.known > 0 { kind } else { 0 };
        if !types.knows(kind) {
            self.unknown_type_edges.fetch_add(1, Ordering::Relaxed);
        }
        if kind == 0 && !fits {
            return Ok(());
        }
        types.put_row(kind, if fits { features } else { &[] }, dimension, row);
        self.stores.edge_features.set(batch.id(i).0, row)
    }

    /// One past the last position taken in.
    #[must_use]
    pub fn end(&self) -> EdgeId {
        self.stores.graph.applied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeBatch, EventTime, NodeId};
    use crate::graph::GraphOptions;

    #[test]
    fn a_run_that_ends_before_it_begins_takes_a_partition_back() {
        let positions = Positions::default();
        let mut positions_seen = Vec::new();
        for (from, to) in [(5, 5), (5, 9), (2, 4), (9, 3), (3, 6), (6, 20)] {
            let mark = Some(SourceMark { offset: to - 1, hash: 7 });
            positions.advance(&SourceRange { source: "kafka:t".into(), partition: 0, from, to, mark }, to);
            positions_seen.extend(positions.position("kafka:t", 0));
            assert_eq!(
                (positions.mark("kafka:t", 0), positions.origin_unix_ms("kafka:t", 0)),
                (mark, Some(to))
            );
        }
        assert_eq!(positions_seen, [5, 9, 9, 3, 6, 20]);
    }

    #[test]
    fn event_times_are_known_by_partition() {
        let mut index = {
            let rows = || FeatureStore::new(0);
            Index::new(GraphStore::new(GraphOptions::default()), rows(), rows(), 10)
        };
        let mut next = 0;
        let mut absorb = |source: Option<(&str, i32)>, times: &[i64]| {
            let mut batch = EdgeBatch { first: EdgeId(next), ..EdgeBatch::default() };
            times.iter().for_each(|&time| batch.push_edge(NodeId(0), NodeId(1), EventTime(time)));
            next += times.len() as u64;
            let range = |(source, partition): (&str, i32)| {
                let (from, to) = (0, next.cast_signed());
                SourceRange { source: source.into(), partition, from, to, mark: None }
            };
            let sources = source.map(range).into_iter().collect();
            let new_keys =
                if index.stores.keys.is_empty() { vec!["a".into(), "b".into()] } else { Vec::new() };
            index.absorb(&Frame { batch, new_keys, sources, ..Frame::default() }).unwrap();
        };
        absorb(Some(("kafka:t", 0)), &[5, 9]);
        absorb(Some(("kafka:t", 1)), &[2, 3]);
        absorb(Some(("kafka:t", 0)), &[7]);
        absorb(None, &[100]);
        absorb(Some(("kafka:t", 2)), &[]);
        let latest = |source: &str, partition| {
            index.positions.clock(source, partition).and_then(|clock| clock.latest())
        };
        assert_eq!(latest("kafka:t", 0), Some(EventTime(9)));
        assert_eq!(latest("kafka:t", 1), Some(EventTime(3)));
        assert_eq!(latest("", 0), Some(EventTime(100)));
        assert_eq!(latest("kafka:t", 2), None);
    }
}
