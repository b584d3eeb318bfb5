//! The memory rows that queries read, published node by node during training.
//!
//! Rows live in chunks of [`CHUNK_ROWS`] nodes, each behind its own lock. A row is read and written
//! under its chunk's lock, so a reader sees a row either before or after a publication, never half of
//! each; rows of one response may come from different publications. The list of chunks has a lock of its
//! own, taken for writing only when nodes appear beyond the last chunk. No call waits for a training
//! step. A chunk takes memory while a row of it is published: where all its nodes are deleted it is given back.
//!
//! [Frozen](NodeStates::frozen) rows share chunks with these until one of theirs changes, which is copied then.
//!
//! Which rows have changed is recorded for whoever follows them ([`TouchedNodes`]), and so is which types of events
//! nodes have received ([`ReceivedTypes`]).
//!
//! Models of walks publish beside the rows of nodes when pairs were last seen, and when the stream began.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{PairStates, ReceivedTypes, TouchedNodes};
use crate::event::{EventTime, NodeId};

/// Nodes per lock.
const CHUNK_ROWS: usize = 256;

/// Published memory rows by node.
pub struct NodeStates {
    dimension: usize,
    chunks: RwLock<Vec<RwLock<Option<Arc<Chunk>>>>>,
    /// When pairs were last seen.
    pub pairs: PairStates,
    /// Nodes whose rows have changed, for the live index.
    pub touched: TouchedNodes,
    /// The same for the change feed.
    pub changed: TouchedNodes,
    /// The same for replicas.
    pub shipped: TouchedNodes,
    /// Which nodes were the destination of an event of each type.
    pub received: ReceivedTypes,
    /// [`EventTime::MIN`] stands for none.
    origin: AtomicI64,
    publication: Mutex<()>,
}

#[derive(Clone)]
struct Chunk {
    rows: Box<[f32]>,
    updated: Box<[Option<EventTime>]>,
}

impl NodeStates {
    /// No rows yet; every row has `dimension` values.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        let origin = AtomicI64::new(EventTime::MIN.0);
        let [touched, changed, shipped] = [(); 3].map(|()| TouchedNodes::default());
        let (chunks, publication) = (RwLock::new(Vec::new()), Mutex::new(()));
        let (pairs, received) = (PairStates::default(), ReceivedTypes::default());
        Self { dimension, chunks, pairs, touched, changed, shipped, received, origin, publication }
    }

    /// Held by whoever publishes the rows of a batch, until its position is published too.
    pub fn publication(&self) -> MutexGuard<'_, ()> {
        self.publication.lock()
    }

    /// The rows of nodes as they are now, whatever becomes of these: only chunks that change are copied, when they do.
    /// Without pairs, touched nodes and types.
    #[must_use]
    pub fn frozen(&self) -> Self {
        let chunks = self.chunks.read().iter().map(|chunk| RwLock::new(chunk.read().clone())).collect();
        let origin = AtomicI64::new(self.origin.load(Ordering::Acquire));
        Self { chunks: RwLock::new(chunks), origin, ..Self::new(self.dimension) }
    }

    /// Number of nodes with a published row.
    #[must_use]
    pub fn count(&self) -> usize {
        let chunks = self.chunks.read();
        let rows = |chunk: &Chunk| chunk.updated.iter().flatten().count();
        chunks.iter().map(|chunk| chunk.read().as_deref().map_or(0, rows)).sum()
    }

    /// The first node from `node` on that has a published row.
    #[must_use]
    pub fn next_known(&self, node: NodeId) -> Option<NodeId> {
        let chunks = self.chunks.read();
        let (first, mut place) = (node.index() / CHUNK_ROWS, node.index() % CHUNK_ROWS);
        for (number, chunk) in chunks.iter().enumerate().skip(first) {
            let chunk = chunk.read();
            let mut updated = chunk.iter().flat_map(|chunk| chunk.updated.iter()).skip(place);
            if let Some(beyond) = updated.position(Option::is_some) {
                return u32::try_from(number * CHUNK_ROWS + place + beyond).ok().map(NodeId);
            }
            place = 0;
        }
        None
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
            let chunk = chunk.get_or_insert_with(|| Arc::new(Chunk::new(self.dimension)));
            let chunk = Arc::make_mut(chunk);
            chunk.rows[place * self.dimension..][..self.dimension].copy_from_slice(row);
            chunk.updated[place] = Some(updated);
        }
        self.touch(node);
    }

    /// Whoever follows the rows of nodes has to look at this one again.
    pub fn touch(&self, node: NodeId) {
        [&self.touched, &self.changed, &self.shipped].iter().for_each(|touched| touched.touch(node));
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
            if let Some(chunk) = held.as_mut().map(Arc::make_mut) {
                chunk.rows[place * self.dimension..][..self.dimension].fill(0.0);
                chunk.updated[place] = None;
                if chunk.updated.iter().all(Option::is_none) {
                    *held = None;
                }
            }
        }
        // Last: whoever takes it then finds no row.
        self.touch(node);
    }

    /// Bytes held by rows and their update times, by pairs and by types.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let per_node = self.dimension * size_of::<f32>() + size_of::<Option<EventTime>>();
        let chunks = self.chunks.read();
        let held = chunks.iter().filter(|chunk| chunk.read().is_some()).count();
        held * CHUNK_ROWS * per_node
            + chunks.capacity() * size_of::<RwLock<Option<Arc<Chunk>>>>()
            + self.pairs.bytes()
            + self.touched.bytes()
            + self.changed.bytes()
            + self.shipped.bytes()
            + self.received.bytes()
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
    fn frozen_rows_stay_as_they_were_and_the_others_go_on() {
        let states = NodeStates::new(2);
        let nodes = [0, 3, 255, 256, 1000].map(NodeId);
        nodes.iter().for_each(|&node| states.publish(node, &[node.0 as f32, 1.0], EventTime(1)));
        states.set_origin(EventTime(1));
        let frozen = states.frozen();
        states.publish(NodeId(3), &[9.0, 9.0], EventTime(2));
        states.publish(NodeId(4), &[9.0, 9.0], EventTime(2));
        states.publish(NodeId(5000), &[9.0, 9.0], EventTime(2));
        states.forget(NodeId(1000));
        let known = |states: &NodeStates| {
            let mut next = states.next_known(NodeId(0));
            let mut known = Vec::new();
            while let Some(node) = next {
                known.push(node);
                next = states.next_known(NodeId(node.0 + 1));
            }
            known
        };
        assert_eq!(
            (known(&frozen), frozen.count(), frozen.origin()),
            (nodes.to_vec(), 5, Some(EventTime(1)))
        );
        assert_eq!((known(&states), states.count()), ([0, 3, 4, 255, 256, 5000].map(NodeId).to_vec(), 6));
        let row = |states: &NodeStates, node| {
            let mut row = [0.0; 2];
            states.gather(&[NodeId(node)], 0..2, &mut row);
            (row, states.updated(NodeId(node)))
        };
        assert_eq!(row(&frozen, 3), ([3.0, 1.0], Some(EventTime(1))));
        assert_eq!(row(&frozen, 1000), ([1000.0, 1.0], Some(EventTime(1))));
        assert_eq!(row(&states, 3), ([9.0, 9.0], Some(EventTime(2))));
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
