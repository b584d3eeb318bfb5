//! The graph store: adjacency lists in shards, one writer, any number of readers.
//!
//! Nodes are spread over shards by the low bits of their ids; each shard has its lists, its slab and
//! its lock. The writer plans a batch, then visits the shards that get entries (a large batch's in parallel, on
//! rayon's current pool; a thread holds one shard at a time and waits for nothing while it does), and
//! publishes the batch's end as `applied` when all are done; readers look below a bound that was published
//! before they began, so they never see part of a batch. Deletions are rare: a batch is cut at each, so
//! that records take effect in their order.
//!
//! Knows nothing of keys (but for the content digest), features, files and sampling.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rayon::prelude::*;

use super::account::ListCounts;
use super::block::Record;
use super::list::{AdjacencyList, Growth};
use super::plan::{BatchPlan, ShardMap};
use super::slab::Slab;
use super::{Applied, GraphOptions, GraphView};
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, Op};

/// A shard is compacted when it holds more released entries than this and than a twelfth of the others.
const RELEASED_MIN: usize = 1024;

/// A batch with fewer entries is not worth waking other threads for.
const PARALLEL_MIN: usize = 1 << 14;

/// The edges of a temporal graph under both of their end points, ordered by time. `Sync`; see the module's
/// description for who may do what at the same time.
pub struct GraphStore {
    pub(super) shards: Box<[RwLock<Shard>]>,
    pub(super) map: ShardMap,
    pub(super) growth: Growth,
    writer: Mutex<Writer>,
    pub(super) summary: RwLock<Summary>,
    applied: AtomicU64,
}

/// The lists of the nodes of one shard.
pub(super) struct Shard {
    pub lists: Vec<AdjacencyList>,
    pub slab: Slab,
    /// Over all lists.
    pub counts: ListCounts,
}

/// Counts over the whole store.
#[derive(Clone, Copy, Default)]
pub(super) struct Summary {
    pub nodes: u64,
    pub edges: u64,
    pub deleted_edges: u64,
    pub late_edges: u64,
    pub latest: Option<EventTime>,
    /// Bytes of the writer's buffers.
    pub plan_bytes: u64,
}

impl Summary {
    /// Counts the records `range`, none of which is a deletion.
    pub fn count(&mut self, batch: &EdgeBatch, range: Range<usize>, outcome: &mut Applied) {
        for i in range {
            let highest = batch.src[i].0.max(batch.dst[i].0);
            self.nodes = self.nodes.max(u64::from(highest) + 1);
            if batch.op[i] == Op::Edge {
                outcome.edges += 1;
                self.edges += 1;
                let late = self.latest.is_some_and(|latest| batch.time[i] < latest);
                outcome.late_edges += u64::from(late);
                self.late_edges += u64::from(late);
                self.latest = self.latest.max(Some(batch.time[i]));
            }
        }
    }
}

/// Buffers of the one writer.
#[derive(Default)]
struct Writer {
    plan: BatchPlan,
    records: Vec<Record>,
}

impl Writer {
    fn bytes(&self) -> u64 {
        (self.plan.bytes() + self.records.capacity() * size_of::<Record>()) as u64
    }
}

impl Shard {
    fn new(page: usize) -> Self {
        Self { lists: Vec::new(), slab: Slab::new(page), counts: ListCounts::default() }
    }

    /// Changes the list of a node by `f`, and the counts with it.
    pub fn change<R>(&mut self, index: usize, f: impl FnOnce(&mut AdjacencyList, &mut Slab) -> R) -> R {
        if index >= self.lists.len() {
            // Grown by an eighth: an empty slot costs as much as three entries.
            if index >= self.lists.capacity() {
                self.lists.reserve_exact(index - self.lists.len() + 1 + self.lists.len() / 8);
            }
            self.lists.resize_with(index + 1, AdjacencyList::default);
        }
        let list = &mut self.lists[index];
        let before = ListCounts::of(list);
        let result = f(list, &mut self.slab);
        self.counts.replace(before, ListCounts::of(list));
        result
    }

    /// Moves all entries to a new slab if too many slots wait for reuse.
    pub fn compact(&mut self, page: usize) {
        let (released, total) = self.slab.released_and_total();
        if released <= RELEASED_MIN.max((total - released) / 12) {
            return;
        }
        let mut slab = Slab::new(page);
        for list in &mut self.lists {
            list.relocate(&self.slab, &mut slab);
        }
        self.slab = slab;
    }
}

impl GraphStore {
    /// An empty store.
    #[must_use]
    pub fn new(options: GraphOptions) -> Self {
        let map = ShardMap::new(options.shards);
        let growth = Growth::new(&options);
        Self {
            shards: (0..map.shards()).map(|_| RwLock::new(Shard::new(growth.largest))).collect(),
            map,
            growth,
            writer: Mutex::default(),
            summary: RwLock::default(),
            applied: AtomicU64::new(0),
        }
    }

    /// Applies the records of `batch` in order and publishes its end. Records below
    /// [`applied`](Self::applied) are in already and are skipped. One batch at a time: another caller waits.
    /// A deletion costs time in proportion to the degrees of the nodes it touches.
    ///
    /// # Panics
    /// When a record names a node beyond [`NODES_MAX`](super::NODES_MAX), or a shard is full (2^32 entries).
    pub fn apply(&self, batch: &EdgeBatch) -> Applied {
        let mut writer = self.writer.lock();
        let applied = self.applied();
        let skipped = applied.0.saturating_sub(batch.first.0).min(batch.len() as u64);
        let mut outcome = Applied { end: applied.max(batch.end()), skipped, ..Applied::default() };
        let mut summary = *self.summary.read();
        let mut begun = usize::try_from(skipped).unwrap_or(usize::MAX);
        while begun < batch.len() {
            let is_deletion = |op: &Op| matches!(op, Op::DeleteEdge | Op::DeleteNode);
            let edges = batch.op[begun..].iter().take_while(|op| !is_deletion(op)).count();
            self.insert(&mut writer, batch, begun..begun + edges, &mut summary, &mut outcome);
            begun += edges;
            if begun < batch.len() {
                let deleted = self.delete(batch, begun);
                outcome.deleted_edges += deleted;
                summary.deleted_edges += deleted;
                summary.edges -= deleted;
                begun += 1;
            }
        }
        summary.plan_bytes = writer.bytes();
        *self.summary.write() = summary;
        self.applied.store(outcome.end.0, Ordering::Release);
        outcome
    }

    /// Inserts the records `range`, none of which is a deletion.
    fn insert(
        &self,
        writer: &mut Writer,
        batch: &EdgeBatch,
        range: Range<usize>,
        summary: &mut Summary,
        outcome: &mut Applied,
    ) {
        summary.count(batch, range.clone(), outcome);
        let Writer { plan, records } = writer;
        plan.arrange(batch, range, self.map);
        let fill = |records: &mut Vec<Record>, (shard, words): (usize, &[u64])| {
            self.shards[shard].write().fill(plan, batch, words, records, self.growth);
        };
        if plan.len() < PARALLEL_MIN {
            plan.shards().for_each(|runs| fill(records, runs));
        } else {
            let shards: Vec<_> = plan.shards().collect();
            shards.into_par_iter().for_each_init(Vec::new, fill);
        }
    }

    /// Carries out the deletion at `i` and says how many edges it removed.
    fn delete(&self, batch: &EdgeBatch, i: usize) -> u64 {
        let (src, dst, until) = (batch.src[i], batch.dst[i], batch.time[i].0);
        let newest = batch.id(i).0;
        if batch.op[i] == Op::DeleteNode {
            return self.delete_node(src, newest);
        }
        let removed = self.remove(src, newest, |record| {
            record.neighbor() == dst && !record.is_incoming() && record.time <= until
        });
        if src != dst && removed > 0 {
            self.remove(dst, newest, |record| {
                record.neighbor() == src && record.is_incoming() && record.time <= until
            });
        }
        removed
    }

    fn delete_node(&self, node: NodeId, newest: u64) -> u64 {
        let mut neighbors: Vec<NodeId> =
            self.read_list(node, |list, slab| list.records(slab).map(Record::neighbor).collect());
        neighbors.sort_unstable();
        neighbors.dedup();
        for neighbor in neighbors.into_iter().filter(|&neighbor| neighbor != node) {
            self.remove(neighbor, newest, |record| record.neighbor() == node);
        }
        self.remove(node, newest, |_| true)
    }

    /// Removes the entries of `node` that `gone` names and says how many. No edge id exceeds `newest`.
    fn remove(&self, node: NodeId, newest: u64, gone: impl Fn(Record) -> bool) -> u64 {
        let (shard, index) = self.map.locate(node);
        let mut shard = self.shards[shard].write();
        if index >= shard.lists.len() {
            return 0;
        }
        shard.change(index, |list, slab| list.remove(slab, newest, gone))
    }

    /// Every record below this position is in.
    #[must_use]
    pub fn applied(&self) -> EdgeId {
        EdgeId(self.applied.load(Ordering::Acquire))
    }

    /// The graph as it is now.
    #[must_use]
    pub fn view(&self) -> GraphView<'_> {
        GraphView::new(self, self.applied())
    }

    /// The graph without the records at `bound` and above; what is not applied yet stays invisible.
    /// Deletions that were applied since have taken effect in it too.
    #[must_use]
    pub fn view_at(&self, bound: EdgeId) -> GraphView<'_> {
        GraphView::new(self, bound.min(self.applied()))
    }

    /// The latest time of any edge so far, later deleted ones included.
    #[must_use]
    pub fn latest_time(&self) -> Option<EventTime> {
        self.summary.read().latest
    }

    /// Number of edges that `node` has now, in either direction; a self loop counts once.
    #[must_use]
    pub fn degree(&self, node: NodeId) -> u64 {
        self.read_list(node, |list, _| u64::from(list.degree()))
    }

    /// Time of the newest edge that `node` has now.
    #[must_use]
    pub fn last_event(&self, node: NodeId) -> Option<EventTime> {
        self.read_list(node, |list, slab| list.last(slab)).map(|record| EventTime(record.time))
    }

    /// Calls `f` with the list of `node`, an empty one if the node is unknown, under its shard's lock.
    #[inline]
    pub(super) fn read_list<R>(&self, node: NodeId, f: impl FnOnce(&AdjacencyList, &Slab) -> R) -> R {
        let (shard, index) = self.map.locate(node);
        let shard = self.shards[shard].read();
        f(shard.lists.get(index).unwrap_or(&AdjacencyList::Empty), &shard.slab)
    }
}
