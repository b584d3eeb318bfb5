//! The memory rows that queries read, published node by node during training.
//!
//! Rows live in chunks of [`CHUNK_ROWS`] nodes, each behind its own lock. A row is read and written
//! under its chunk's lock, so a reader sees a row either before or after a publication, never half of
//! each; rows of one response may come from different publications. The list of chunks has a lock of its
//! own, taken for writing only when nodes appear beyond the last chunk. No call waits for a training
//! step. A chunk takes memory while a row of it is published: where all its nodes are deleted it is given back.
//!
//! Which rows have changed is recorded for whoever follows them ([`TouchedNodes`]).
//!
//! Models of walks publish beside the rows of nodes when pairs were last seen, and when the stream began.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::RwLock;

use super::{PairStates, TouchedNodes};
use crate::event::{EventTime, NodeId};

/// Nodes per lock.
const CHUNK_ROWS: usize = 256;

/// Published memory rows by node.
pub struct NodeStates {
    dimension: usize,
    chunks: RwLock<Vec<RwLock<Option<Chunk>>>>,
    /// When pairs were last seen.
    pub pairs: PairStates,
    /// Nodes whose rows have changed.
    pub touched: TouchedNodes,
    /// [`EventTime::MIN`] stands for none.
    origin: AtomicI64,
}

struct Chunk {
    rows: Box<[f32]>,
    updated: Box<[Option<EventTime>]>,
}

impl NodeStates {
    /// No rows yet; every row has `dimension` values.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        let origin = AtomicI64::new(EventTime::MIN.0);
        let (pairs, touched) = (PairStates::default(), TouchedNodes::default());
        Self { dimension, chunks: RwLock::new(Vec::new()), pairs, touched, origin }
    }

    /// Values per row.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Makes `row` (`dimension` values) the published row of `node`, last changed by an event at
    /// `updated`.
    pub fn publish(&self, node: NodeId, row: &[f32], updated: EventTime) {
        let (chunk, place) = (node.index() / CHUNK_ROWS, node.index() % CHUNK_ROWS);
        if chunk >= self.chunks.read().len() {
            self.grow_to(chunk + 1);
        }
        let chunks = self.chunks.read();
        if let Some(chunk) = chunks.get(chunk) {
            let mut chunk = chunk.write();
            let chunk = chunk.get_or_insert_with(|| Chunk::new(self.dimension));
            chunk.rows[place * self.dimension..][..self.dimension].copy_from_slice(row);
            chunk.updated[place] = Some(updated);
        }
        self.touched.touch(node);
    }

    /// Makes `origin` the time of the first event.
    pub fn set_origin(&self, origin: EventTime) {
        self.origin.store(origin.0, Ordering::Release);
    }

    /// Time of the first event, if it was published.
    #[must_use]
    pub fn origin(&self) -> Option<EventTime> {
        let origin = EventTime(self.origin.load(Ordering::Acquire));
        (origin != EventTime::MIN).then_some(origin)
    }

    /// When the published row of `node` was last changed by an event; `None` if none was published.
    #[must_use]
    pub fn updated(&self, node: NodeId) -> Option<EventTime> {
        let chunks = self.chunks.read();
        let chunk = chunks.get(node.index() / CHUNK_ROWS)?.read();
        chunk.as_ref()?.updated[node.index() % CHUNK_ROWS]
    }

    /// Whether a row was published for `node`.
    #[must_use]
    pub fn has(&self, node: NodeId) -> bool {
        self.updated(node).is_some()
    }

    /// Copies these columns of the rows of `nodes` into `out` (`nodes.len() * columns.len()` values), zeros where none
    /// was published.
    ///
    /// # Panics
    /// If there are no such columns.
    pub fn gather(&self, nodes: &[NodeId], columns: Range<usize>, out: &mut [f32]) {
        assert!(columns.end <= self.dimension, "columns {columns:?} of {}", self.dimension);
        if columns.is_empty() {
            return;
        }
        let chunks = self.chunks.read();
        for (node, out) in nodes.iter().zip(out.chunks_exact_mut(columns.len())) {
            let chunk = chunks.get(node.index() / CHUNK_ROWS).map(RwLock::read);
            match chunk.as_deref() {
                Some(Some(chunk)) => {
                    let start = node.index() % CHUNK_ROWS * self.dimension;
                    out.copy_from_slice(&chunk.rows[start + columns.start..start + columns.end]);
                }
                _ => out.fill(0.0),
            }
        }
    }

    /// Forgets the row of one node.
    pub fn forget(&self, node: NodeId) {
        if let Some(chunk) = self.chunks.read().get(node.index() / CHUNK_ROWS) {
            let (mut held, place) = (chunk.write(), node.index() % CHUNK_ROWS);
            if let Some(chunk) = held.as_mut() {
                chunk.rows[place * self.dimension..][..self.dimension].fill(0.0);
                chunk.updated[place] = None;
                if chunk.updated.iter().all(Option::is_none) {
                    *held = None;
                }
            }
        }
        // Last: whoever takes it then finds no row.
        self.touched.touch(node);
    }

    /// Bytes held by rows and their update times, and by pairs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let per_node = self.dimension * size_of::<f32>() + size_of::<Option<EventTime>>();
        let chunks = self.chunks.read();
        let held = chunks.iter().filter(|chunk| chunk.read().is_some()).count();
        held * CHUNK_ROWS * per_node
            + chunks.capacity() * size_of::<RwLock<Option<Chunk>>>()
            + self.pairs.bytes()
            + self.touched.bytes()
    }

    fn grow_to(&self, count: usize) {
        let mut chunks = self.chunks.write();
        if chunks.len() < count {
            // Room for an eighth more, not for twice as many: chunks that went are never needed again.
            if chunks.capacity() < count {
                let room = count - chunks.len() + chunks.len() / 8;
                chunks.reserve_exact(room);
            }
            chunks.resize_with(count, || RwLock::new(None));
        }
    }
}

impl Chunk {
    fn new(dimension: usize) -> Self {
        Self { rows: vec![0.0; CHUNK_ROWS * dimension].into(), updated: vec![None; CHUNK_ROWS].into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_and_missing_rows_are_zeros() {
        let states = NodeStates::new(2);
        states.publish(NodeId(700), &[1.0, 2.0], EventTime(5));
        assert!(states.has(NodeId(700)) && !states.has(NodeId(699)) && !states.has(NodeId(7000)));
        let mut rows = [9.0; 6];
        states.gather(&[NodeId(7000), NodeId(700), NodeId(0)], 0..states.dimension(), &mut rows);
        assert_eq!(rows, [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        states.forget(NodeId(700));
        states.forget(NodeId(70_000));
        states.gather(&[NodeId(700)], 0..states.dimension(), &mut rows[..2]);
        assert!(rows[..2] == [0.0; 2] && !states.has(NodeId(700)));
    }

    #[test]
    fn a_reader_never_sees_half_a_row() {
        let states = NodeStates::new(64);
        let node = NodeId(300);
        states.publish(node, &[0.0; 64], EventTime(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..=2000u16 {
                    states.publish(node, &[f32::from(round); 64], EventTime(i64::from(round)));
                }
            });
            let mut row = [0.0; 64];
            while !writer.is_finished() {
                states.gather(&[node], 0..states.dimension(), &mut row);
                assert!(row.iter().all(|value| *value == row[0]), "torn row {row:?}");
            }
        });
        assert_eq!(states.updated(node), Some(EventTime(2000)));
    }
}
