//! What readers see: a [`GraphView`] fixes the edge id below which edges exist, a [`Past`] is what one
//! node of the view had behind it at one time.
//!
//! Because ids are given in order of arrival, a view with the same bound returns the same result however much the
//! writer has added since. Deletions take edges out of every view.

use std::ops::Range;

use parking_lot::RwLockReadGuard;

use super::block::TemporalBlock;
use super::candidates::Candidates;
use super::entry::{Parts, Record};
use super::fault::{Entries, Fault};
use super::search::TimeSearch;
use super::spill::{Spill, SpillError};
use super::store::{GraphStore, Shard};
use crate::device::prefetch;
use crate::event::{EdgeId, EventTime, NodeId};

/// The graph as it was when the records below one edge id had arrived.
#[derive(Clone, Copy)]
pub struct GraphView<'a> {
    store: &'a GraphStore,
    bound: EdgeId,
    since: EventTime,
    rows_from: EdgeId,
}

/// One edge seen from one of its end points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbor {
    /// The other end point; the node itself for a self loop.
    pub node: NodeId,
    /// The edge.
    pub edge: EdgeId,
    /// When it happened.
    pub time: EventTime,
}

/// Reads some nodes of one view. Their shards are locked for reading while it lives, so it should live for some hundred
/// reads, no longer, and its thread must not access the store otherwise meanwhile. Its results are valid only if
/// [`finish`](Self::finish) succeeds.
///
/// Readers and writing threads cannot wait for each other in a circle: a reader locks shards in ascending order,
/// and a thread that writes holds one shard at a time and waits for nothing while it does.
#[must_use = "its results are valid only if `finish` succeeds"]
pub struct GraphReader<'a> {
    view: GraphView<'a>,
    shards: Vec<Option<RwLockReadGuard<'a, Shard>>>,
    fault: Fault,
}

/// The edges of one node in a range of times, as one view sees them. The node's shard is locked for
/// reading while it lives.
///
/// The cost of a read is memory latency, so callers with many nodes proceed in stages: the `Past` of each of some
/// nodes, then the [`Horizon`] of each, then interleaved steps of all of them. Each stage prefetches the memory that
/// the next one reads.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    blocks: &'a [TemporalBlock],
    slab: Entries<'a>,
    bound: u64,
    from: i64,
    before: i64,
}

/// Where the range of times of a [`Past`] ends among the node's entries. Each [`halve`](Self::halve) is one step of the
/// search; the rest is done when the edges are read.
#[derive(Clone, Copy)]
pub struct Horizon<'a> {
    past: Past<'a>,
    /// Blocks before this one begin inside the range.
    end: usize,
    /// The end inside the last of them.
    search: TimeSearch<'a>,
}

impl<'a> GraphView<'a> {
    /// The view of `store` below `bound`; `bound` has been applied.
    pub(super) fn new(store: &'a GraphStore, bound: EdgeId) -> Self {
        Self { store, bound, since: store.released_before(), rows_from: EdgeId(0) }
    }

    /// The same view without the edges before `since`.
    #[must_use]
    pub fn keeping(self, since: EventTime) -> Self {
        Self { since: self.since.max(since), ..self }
    }

    /// The same view, in which edges below `first` have no rows. With a retention that may be an edge with a time far
    /// ahead of those around it: the edge does not grow old, its row goes with theirs.
    #[must_use]
    pub fn with_rows_from(self, first: EdgeId) -> Self {
        Self { rows_from: self.rows_from.max(first), ..self }
    }

    /// Edges below this one have no rows in the view.
    #[must_use]
    pub fn rows_from(&self) -> EdgeId {
        self.rows_from
    }

    /// The same view without the edges from `edge` on.
    pub(super) fn below(self, edge: EdgeId) -> Self {
        Self { bound: self.bound.min(edge), ..self }
    }

    /// The view shows no edge before this time because of its age.
    #[must_use]
    pub fn since(&self) -> EventTime {
        self.since
    }

    /// Edges with this id and above do not exist in the view.
    #[must_use]
    pub fn bound(&self) -> EdgeId {
        self.bound
    }

    /// What it shows a part of.
    pub(super) fn store(&self) -> &'a GraphStore {
        self.store
    }

    /// Number of edges that a node has in the store.
    pub(super) fn degree(&self, node: NodeId) -> u64 {
        self.store.degree(node)
    }

    /// How far back the view sees, where that is bounded.
    pub(super) fn age(&self) -> Option<i64> {
        self.store.retention.map(|retention| retention.age)
    }

    /// One past the last edge that the store has.
    pub(super) fn applied(&self) -> EdgeId {
        self.store.applied()
    }

    /// A reader that knows `nodes`.
    pub fn reader(&self, nodes: &[NodeId]) -> GraphReader<'a> {
        let mut wanted = vec![false; self.store.shards.len()];
        for &node in nodes {
            wanted[self.store.map.locate(node).0] = true;
        }
        let shards = self.store.shards.iter().zip(wanted).map(|(shard, wanted)| wanted.then(|| shard.read()));
        GraphReader { view: *self, shards: shards.collect(), fault: Fault::default() }
    }
}

impl GraphReader<'_> {
    /// The edges of `node` that have a time in `times` and are kept. Nodes that the graph does not know have none.
    ///
    /// # Panics
    /// When the reader was not made for `node`.
    #[inline]
    #[must_use]
    pub fn past(&self, node: NodeId, times: Range<EventTime>) -> Past<'_> {
        let (shard, index) = self.shard(node);
        let blocks = shard.blocks(index);
        let slab = Entries::new(&shard.slab, &self.fault);
        let Range { start: from, end: before } = self.seen(times);
        Past { blocks, slab, bound: self.view.bound.0, from, before }
    }

    /// What the view shows of a range of times because of its age.
    #[inline]
    pub(super) fn seen(&self, times: Range<EventTime>) -> Range<i64> {
        let (mut from, before) = (times.start.max(self.view.since).0, times.end.0);
        if let Some(retention) = self.view.store.retention {
            from = from.max(before.saturating_sub(retention.age));
        }
        from..before
    }

    /// Ends the reading and makes room for what it loaded.
    ///
    /// # Errors
    /// Entries were on disk and could not be read: the reader's results are void.
    pub fn finish(self) -> Result<(), SpillError> {
        let Self { view, shards, fault } = self;
        drop(shards);
        view.store.balance();
        fault.check(())
    }

    /// Announces a read of `node`, so that its list is prefetched.
    ///
    /// # Panics
    /// When the reader was not made for `node`.
    #[inline]
    pub fn announce(&self, node: NodeId) {
        let (shard, index) = self.shard(node);
        if let Some(list) = shard.lists.get(index) {
            prefetch(list);
        }
    }

    /// Edges with this id and above do not exist for the reader.
    pub(super) fn bound(&self) -> u64 {
        self.view.bound.0
    }

    pub(super) fn spill(&self) -> Option<&Spill> {
        self.view.store.spill.as_deref()
    }

    pub(super) fn shards(&self) -> &[Option<RwLockReadGuard<'_, Shard>>] {
        &self.shards
    }

    pub(super) fn locate(&self, node: NodeId) -> (usize, usize) {
        self.view.store.map.locate(node)
    }

    pub(super) fn note(&self, failed: Result<(), SpillError>) {
        self.fault.note(failed);
    }

    #[inline]
    fn shard(&self, node: NodeId) -> (&Shard, usize) {
        let (shard, index) = self.view.store.map.locate(node);
        let Some(shard) = &self.shards[shard] else { panic!("the reader was not made for node {}", node.0) };
        (shard, index)
    }
}

impl<'a> Past<'a> {
    /// Prefetches the memory that [`horizon`](Self::horizon) reads.
    #[inline]
    pub fn announce(&self) {
        match self.blocks {
            [] => {}
            // One that begins later is not read, and may be on disk.
            [block] if block.start < self.before => block.announce(self.slab),
            [_] => {}
            blocks => prefetch(&blocks[blocks.len() / 2]),
        }
    }

    /// Rank of the first entry in the range among all of the node, if any is.
    fn rank_of_begin(&self) -> u32 {
        let end = self.blocks.partition_point(|block| block.start < self.from);
        let last = self.blocks[..end].last();
        last.map_or(0, |block| block.before + rank32(block.rank_of_time(self.slab, self.from)))
    }

    /// Finds the block in which the range ends.
    #[inline]
    #[must_use]
    pub fn horizon(self) -> Horizon<'a> {
        let end = self.blocks.partition_point(|block| block.start < self.before);
        let search = match self.blocks[..end].last() {
            Some(block) => block.search(self.slab, self.before),
            None => TimeSearch::NOWHERE,
        };
        Horizon { past: self, end, search }
    }
}

impl<'a> Horizon<'a> {
    /// One step of the search; returns whether further interleaving pays off.
    #[inline]
    pub fn halve(&mut self) -> bool {
        self.search.halve()
    }

    /// Number of entries inside the range in the last block that begins inside it.
    #[inline]
    fn rank(&self) -> usize {
        let Past { blocks, slab, before, .. } = self.past;
        let rank = self.search.rank();
        blocks[..self.end].last().map_or(0, |block| block.refined(slab, rank, before))
    }

    /// Calls `f` with the newest edges, `most` at most, in runs: the newest run first. Equal times: the later
    /// arrival counts as newer.
    #[inline]
    pub fn newest(&self, most: usize, mut f: impl FnMut(Run<'_>)) {
        let Past { blocks, slab, bound, from, .. } = self.past;
        let mut left = most;
        // Only the last block can reach beyond the end of the range, only the first behind its begin.
        let last = self.rank();
        for (i, block) in blocks[..self.end].iter().enumerate().rev() {
            let end = if i + 1 == self.end { last } else { block.len() };
            let (lowest, highest) = block.edges();
            if lowest >= bound {
                continue;
            }
            let begin = if block.start < from { block.rank_of_time(slab, from) } else { 0 };
            if highest < bound {
                let taken = left.min(end.saturating_sub(begin));
                f(block.run(slab, end - taken..end));
                left -= taken;
            } else {
                for place in (begin..end).rev() {
                    if left == 0 {
                        break;
                    }
                    if block.record(slab, place).edge < bound {
                        f(block.run(slab, place..place + 1));
                        left -= 1;
                    }
                }
            }
            if left == 0 || begin > 0 {
                return;
            }
        }
    }

    /// The same edges, counted, to take by rank.
    #[inline]
    #[must_use]
    pub fn candidates(&self) -> Candidates<'a> {
        let Past { blocks, slab, bound, from, .. } = self.past;
        let high = blocks[..self.end].last().map_or(0, |block| block.before + rank32(self.rank()));
        let low = if from == i64::MIN { 0 } else { self.past.rank_of_begin().min(high) };
        Candidates::new((blocks, slab), bound, self.end, low..high)
    }
}

/// A place in a block as a rank.
#[allow(clippy::cast_possible_truncation, reason = "a block has at most 2^15 entries")]
#[inline]
pub(super) fn rank32(place: usize) -> u32 {
    place as u32
}

#[inline]
pub(super) fn neighbor(record: Record) -> Neighbor {
    Neighbor { node: record.neighbor(), edge: EdgeId(record.edge), time: EventTime(record.time) }
}

/// Consecutive edges of a node.
pub struct Run<'a> {
    block: &'a TemporalBlock,
    parts: Parts<'a>,
}

impl<'a> Run<'a> {
    #[inline]
    pub(super) fn new(block: &'a TemporalBlock, parts: Parts<'a>) -> Self {
        Self { block, parts }
    }

    /// The edges, newest first, if they are in the narrow form, which most are: then none of them takes a branch.
    #[inline]
    pub fn newest_narrow(&self) -> Option<impl ExactSizeIterator<Item = Neighbor>> {
        let block = *self.block;
        let records = self.parts.entries.iter().rev().map(move |&entry| block.unpack_narrow(entry));
        self.parts.lows.is_empty().then(|| records.map(neighbor))
    }

    /// The edges, newest first.
    #[inline]
    pub fn newest_first(&self) -> impl ExactSizeIterator<Item = Neighbor> {
        self.records().map(neighbor)
    }

    /// The same with the direction of each.
    #[inline]
    pub(super) fn records(&self) -> impl ExactSizeIterator<Item = Record> {
        let Parts { entries, lows } = self.parts;
        let records =
            entries.iter().enumerate().map(move |(i, &entry)| self.block.unpack(entry, lows.get(i)));
        records.rev()
    }
}
