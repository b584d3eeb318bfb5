//! The graph store: adjacency lists in shards, one writer, any number of readers.
//!
//! Nodes are distributed over shards by the low bits of their ids; each shard has its lists, its slab and its lock. The
//! writer plans a batch, then visits the shards that get entries (a large batch's in parallel, on rayon's current pool;
//! a thread holds one shard at a time and waits for nothing while it does), and publishes the batch's end as `applied`
//! when all are done; readers see only edges below a bound that was published before they began, so they never see part
//! of a batch, except for one that a failing disk cut short. Deletions are rare: a batch is cut at each, so that
//! records take effect in their order.
//!
//! Knows nothing of keys (but for the content digest), features, files and sampling.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rayon::prelude::*;

use super::account::ListCounts;
use super::block::TemporalBlock;
use super::entry::Record;
use super::evict::Hand;
use super::fault::{Entries, Fault};
use super::list::{AdjacencyList, page_entries};
use super::lists::Lists;
use super::plan::{BatchPlan, ShardMap};
use super::retain::Retention;
use super::shortened::Copies;
use super::slab::{Slab, chunk_entries};
use super::spill::{Spill, SpillError};
use super::{Applied, GraphOptions, GraphView};
use crate::device::disk::PageFile;
use crate::event::{ClockRules, EdgeBatch, EdgeId, EventTime, NodeId, Op, StreamClock};

/// A batch with fewer entries is not worth waking other threads for.
const PARALLEL_MIN: usize = 1 << 14;

/// Part of a shard, as a divisor, that is kept for events that are durable already when it fills up.
const RESERVE: u64 = 16;

/// Records of a batch that a store with a budget applies at a time: what they touch is in memory at once.
const PIECE_RECORDS: usize = 1 << 14;

/// The edges of a temporal graph under both of their end points, ordered by time. `Sync`; see the module's
/// description for what may run concurrently.
pub struct GraphStore {
    pub(super) shards: Box<[RwLock<Shard>]>,
    pub(super) map: ShardMap,
    pub(super) page: usize,
    /// Units that a shard holds, at most.
    pub(super) shard_units_max: u64,
    /// Whether a shard is nearly full.
    full: AtomicBool,
    /// Where entries beyond the budget are, if there is a budget.
    pub(super) spill: Option<Arc<Spill>>,
    /// Who holds it may evict entries.
    pub(super) hand: Mutex<Hand>,
    pub(super) writer: Mutex<Writer>,
    pub(super) summary: RwLock<Summary>,
    pub(super) retention: Option<Retention>,
    pub(super) node_retention: Option<i64>,
    pub(super) clock_rules: ClockRules,
    /// Edges before this time may have been released.
    pub(super) released_before: AtomicI64,
    applied: AtomicU64,
    pub(super) copies: Copies,
}

/// The lists of the nodes of one shard.
pub(super) struct Shard {
    pub lists: Lists,
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
    /// Entries released because of their age.
    pub expired_entries: u64,
    pub clock: StreamClock,
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
                let late = self.clock.latest().is_some_and(|latest| batch.time[i] < latest);
                outcome.late_edges += u64::from(late);
                self.late_edges += u64::from(late);
                self.clock.observe(batch.id(i), batch.time[i]);
            }
        }
    }
}

/// Buffers of the one writer.
#[derive(Default)]
pub(super) struct Writer {
    plan: BatchPlan,
    records: Vec<Record>,
}

impl Writer {
    fn bytes(&self) -> u64 {
        (self.plan.bytes() + self.records.capacity() * size_of::<Record>()) as u64
    }
}

impl Shard {
    /// The blocks of the node with number `index` in the shard, the oldest first; none of a node it does not know.
    #[inline]
    pub(super) fn blocks(&self, index: usize) -> &[TemporalBlock] {
        self.lists.get(index).map_or(&[][..], AdjacencyList::blocks)
    }

    fn new(page: usize, spill: Option<Arc<Spill>>) -> Self {
        Self { lists: Lists::default(), slab: Slab::new(page, spill), counts: ListCounts::default() }
    }

    /// Changes the list of a node by `f`, and the counts with it.
    pub fn change<R>(&mut self, index: usize, f: impl FnOnce(&mut AdjacencyList, &mut Slab) -> R) -> R {
        let Self { lists, slab, counts } = self;
        lists.change(index, |list| {
            let before = ListCounts::of(list);
            let result = f(list, slab);
            counts.replace(before, ListCounts::of(list));
            result
        })
    }
}

impl GraphStore {
    /// An empty store, all of it in memory.
    #[must_use]
    pub fn new(options: GraphOptions) -> Self {
        Self::with(options, None)
    }

    /// An empty store that takes at most `budget` bytes of memory and keeps the other entries in `file`.
    /// Directories always stay in memory, and a few chunks; what one batch or one sample needs at once may come
    /// on top.
    #[must_use]
    pub fn with_budget(options: GraphOptions, budget: u64, file: Box<dyn PageFile>) -> Self {
        let spill = Spill::new(file, budget, chunk_entries(page_entries(&options)));
        Self::with(options, Some(Arc::new(spill)))
    }

    fn with(options: GraphOptions, spill: Option<Arc<Spill>>) -> Self {
        let (map, page) = (ShardMap::new(options.shards), page_entries(&options));
        Self {
            shards: (0..map.shards()).map(|_| RwLock::new(Shard::new(page, spill.clone()))).collect(),
            map,
            page,
            shard_units_max: 1 << 32,
            full: AtomicBool::new(false),
            spill,
            hand: Mutex::default(),
            writer: Mutex::default(),
            summary: RwLock::default(),
            retention: None,
            node_retention: None,
            clock_rules: ClockRules::default(),
            released_before: AtomicI64::new(i64::MIN),
            applied: AtomicU64::new(0),
            copies: Copies::default(),
        }
    }

    /// Applies the records of `batch` in order and publishes its end. Records below
    /// [`applied`](Self::applied) are in already and are skipped. One batch at a time: another caller waits.
    /// A deletion costs time in proportion to the edges that go.
    ///
    /// # Errors
    /// Entries that the batch changes are on disk and cannot be read, or a shard is full (2^32 entries). The records
    /// before the first that needs them are in and published; the same batch may be applied again.
    ///
    /// # Panics
    /// When a record names a node beyond [`NODES_MAX`](super::NODES_MAX).
    pub fn apply(&self, batch: &EdgeBatch) -> Result<Applied, SpillError> {
        self.apply_reporting_removed(batch, &mut |_| ())
    }

    /// As [`apply`](Self::apply); calls `removed` with the edges that a deletion removed, after their removal: some
    /// thousand at a time, or none, so that it is called often. Where a deletion fails, applied again it reports the
    /// others.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    ///
    /// # Panics
    /// As [`apply`](Self::apply).
    pub fn apply_reporting_removed(
        &self,
        batch: &EdgeBatch,
        removed: &mut dyn FnMut(&[EdgeId]),
    ) -> Result<Applied, SpillError> {
        let mut writer = self.writer.lock();
        // Held so that what is loaded for the batch stays until it was changed.
        let mut hand = self.hand.lock();
        let applied = self.applied();
        let skipped = applied.0.saturating_sub(batch.first.0).min(batch.len() as u64);
        let mut outcome = Applied { skipped, ..Applied::default() };
        let mut summary = *self.summary.read();
        let mut begun = usize::try_from(skipped).unwrap_or(usize::MAX);
        let mut failed = None;
        while begun < batch.len() && failed.is_none() {
            let applied = match self.edges_at(batch, begun) {
                0 => {
                    let mut deleted = 0;
                    let mut count = |edges: &[EdgeId]| {
                        deleted += edges.len() as u64;
                        removed(edges);
                    };
                    let result = self.delete(batch, begun, &mut hand, &mut count);
                    outcome.deleted_edges += deleted;
                    summary.deleted_edges += deleted;
                    summary.edges -= deleted;
                    result.map(|()| 1)
                }
                edges => {
                    let range = begun..begun + edges;
                    self.insert(&mut writer, batch, range, &mut summary, &mut outcome).map(|()| edges)
                }
            };
            match applied {
                Ok(records) => begun += records,
                Err(error) => failed = Some(error),
            }
            self.settle(&mut hand);
        }
        if outcome.deleted_edges > 0 {
            self.compact_all();
            self.settle(&mut hand);
        }
        outcome.end = applied.max(EdgeId(batch.first.0 + begun as u64));
        summary.plan_bytes = writer.bytes();
        *self.summary.write() = summary;
        self.publish(outcome.end);
        failed.map_or(Ok(outcome), Err)
    }

    /// How many records from `begun` on are applied together: those up to the next deletion, none if one is next.
    fn edges_at(&self, batch: &EdgeBatch, begun: usize) -> usize {
        let most = if self.spill.is_some() { PIECE_RECORDS } else { usize::MAX };
        batch.op[begun..].iter().take(most).take_while(|op| !op.is_deletion()).count()
    }

    /// Inserts the records `range`, none of which is a deletion.
    fn insert(
        &self,
        writer: &mut Writer,
        batch: &EdgeBatch,
        range: Range<usize>,
        summary: &mut Summary,
        outcome: &mut Applied,
    ) -> Result<(), SpillError> {
        let Writer { plan, records } = writer;
        plan.arrange(batch, range.clone(), self.map);
        self.check_room(plan)?;
        self.load_for(plan, batch, records)?;
        summary.count(batch, range.clone(), outcome);
        self.wake_those_with_rows(batch, range);
        let fill = |records: &mut Vec<Record>, (number, words): (usize, &[u64])| {
            self.shards[number].write().fill(plan, batch, words, records, self.page);
            if self.spill.is_none() {
                self.compact(number);
            }
        };
        if plan.len() < PARALLEL_MIN {
            plan.shards().for_each(|runs| fill(records, runs));
        } else {
            let shards: Vec<_> = plan.shards().collect();
            shards.into_par_iter().for_each_init(Vec::new, fill);
        }
        if self.spill.is_some() {
            // One at a time: each has two copies of its entries in memory for a moment.
            plan.shards().for_each(|(number, _)| self.compact(number));
        }
        Ok(())
    }

    /// An error if a shard may not have room for its part of a plan; notes whether one is nearly full.
    fn check_room(&self, plan: &BatchPlan) -> Result<(), SpillError> {
        let most = self.shard_units_max;
        let mut full = false;
        for (number, words) in plan.shards() {
            let room = self.shards[number].read().slab.room(most);
            full |= room < most / RESERVE;
            // An entry takes less than two units, and what its block takes to grow is released again.
            if room < (2 * words.len() as u64).max(most / RESERVE / 16) {
                self.full.store(true, Ordering::Release);
                return Err(SpillError::Full(self.shards.len()));
            }
        }
        self.full.fetch_or(full, Ordering::AcqRel);
        Ok(())
    }

    /// Whether a shard is nearly full: what is stored is taken in, but no further edge should be. Only a start with
    /// more shards changes that.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// The same store, whose shards hold no more than this.
    #[cfg(test)]
    pub(crate) fn with_shard_units(mut self, most: u64) -> Self {
        self.shard_units_max = most;
        self
    }

    /// Every record below this position is in.
    #[must_use]
    pub fn applied(&self) -> EdgeId {
        EdgeId(self.applied.load(Ordering::Acquire))
    }

    /// Shows readers every record below `end`.
    pub(super) fn publish(&self, end: EdgeId) {
        self.applied.store(end.0, Ordering::Release);
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

    /// Number of edges that `node` has now, in either direction; a self loop counts once.
    #[must_use]
    pub fn degree(&self, node: NodeId) -> u64 {
        let (shard, index) = self.map.locate(node);
        self.shards[shard].read().lists.get(index).map_or(0, |list| u64::from(list.degree()))
    }

    /// Time of the newest edge that `node` has now.
    ///
    /// # Errors
    /// The edge is on disk and cannot be read.
    pub fn last_event(&self, node: NodeId) -> Result<Option<EventTime>, SpillError> {
        let last = self.read_list(node, |list, slab| list.last(slab));
        self.balance();
        Ok(last?.map(|record| EventTime(record.time)))
    }

    /// Calls `f` with the list of `node`, an empty one if the node is unknown, under its shard's lock.
    #[inline]
    pub(super) fn read_list<R>(
        &self,
        node: NodeId,
        f: impl FnOnce(&AdjacencyList, Entries<'_>) -> R,
    ) -> Result<R, SpillError> {
        let (shard, index) = self.map.locate(node);
        let shard = self.shards[shard].read();
        let fault = Fault::default();
        let list = shard.lists.get(index).unwrap_or(&AdjacencyList::Empty);
        let result = f(list, Entries::new(&shard.slab, &fault));
        fault.check(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_fills_up_is_an_error_and_what_it_holds_stays() {
        let full =
            GraphStore::new(GraphOptions { shards: 1, page_entries_max: 64 }).with_shard_units(1 << 16);
        let large = GraphStore::new(GraphOptions { shards: 4, page_entries_max: 64 });
        let mut warned_at = None;
        let refused = loop {
            let first = full.applied();
            let mut batch = EdgeBatch { first, ..EdgeBatch::default() };
            for i in first.0..first.0 + 100 {
                let (src, dst) = (NodeId((i * 7 % 300) as u32), NodeId((i % 11) as u32));
                batch.push_edge(src, dst, EventTime(i as i64 - if i % 5 == 0 { 1_000 } else { 0 }));
            }
            large.apply(&batch).unwrap();
            if full.is_full() {
                warned_at.get_or_insert(first);
            }
            match full.apply(&batch) {
                Ok(applied) => assert_eq!(applied.end, batch.end()),
                Err(error) => break (batch.first, error),
            }
        };
        assert!(matches!(refused.1, SpillError::Full(1)), "{}", refused.1);
        let warned = warned_at.unwrap().0;
        assert!(refused.0.0 > warned + 1_000 && warned > 20_000, "warned at {warned}, {refused:?}");
        assert_eq!((full.applied(), full.stats().edges), (refused.0, refused.0.0));
        let (bound, keys) = (full.applied(), crate::graph::NodeDictionary::new());
        assert_eq!(full.view().bound(), bound);
        assert!(full.digest(&keys).is_ok());
        assert!(!large.is_full());
    }
}
