//! What readers see: a [`GraphView`] fixes the edge id below which edges exist, a [`Past`] is what one
//! node of the view had behind it at one time.
//!
//! Because ids are given in order of arrival, a view that keeps its bound answers the same question the
//! same way however much the writer has added since. Deletions take edges out of every view.

use parking_lot::RwLockReadGuard;

use super::block::{Record, Run, TemporalBlock};
use super::list::AdjacencyList;
use super::slab::Slab;
use super::store::{GraphStore, Shard};
use crate::device::prefetch;
use crate::event::{EdgeId, EventTime, NodeId};

/// The graph as it was when the records below one edge id had arrived.
#[derive(Clone, Copy)]
pub struct GraphView<'a> {
    store: &'a GraphStore,
    bound: EdgeId,
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

/// Answers questions about some nodes of one view. Their shards are locked for reading while it lives, so it
/// should live for some hundred questions, no longer, and its thread must not ask the store otherwise
/// meanwhile.
///
/// Readers and writing threads cannot wait for each other in a circle: a reader locks shards in ascending order,
/// and a thread that writes holds one shard at a time and waits for nothing while it does.
pub struct GraphReader<'a> {
    view: GraphView<'a>,
    shards: Vec<Option<RwLockReadGuard<'a, Shard>>>,
}

/// The edges of one node in a range of times, as one view sees them. The node's shard is locked for
/// reading while it lives.
pub struct Past<'a> {
    blocks: &'a [TemporalBlock],
    slab: &'a Slab,
    bound: u64,
    from: i64,
    before: i64,
}

impl<'a> GraphView<'a> {
    /// The view of `store` below `bound`; `bound` has been applied.
    pub(super) fn new(store: &'a GraphStore, bound: EdgeId) -> Self {
        Self { store, bound }
    }

    /// Edges with this id and above do not exist in the view.
    #[must_use]
    pub fn bound(&self) -> EdgeId {
        self.bound
    }

    /// A reader that knows `nodes`.
    #[must_use]
    pub fn reader(&self, nodes: &[NodeId]) -> GraphReader<'a> {
        let mut wanted = vec![false; self.store.shards.len()];
        for &node in nodes {
            wanted[self.store.map.locate(node).0] = true;
        }
        let shards = self.store.shards.iter().zip(wanted).map(|(shard, wanted)| wanted.then(|| shard.read()));
        GraphReader { view: *self, shards: shards.collect() }
    }
}

impl GraphReader<'_> {
    /// The edges of `node` that have a time in `from..before`. Nodes that the graph does not know have none.
    ///
    /// # Panics
    /// When the reader was not made for `node`.
    #[inline]
    #[must_use]
    pub fn past(&self, node: NodeId, from: EventTime, before: EventTime) -> Past<'_> {
        let (shard, index) = self.shard(node);
        let blocks = shard.lists.get(index).map_or(&[][..], AdjacencyList::blocks);
        Past { blocks, slab: &shard.slab, bound: self.view.bound.0, from: from.0, before: before.0 }
    }

    /// Says that a question about `node` will follow, so that its list is near by then.
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

    #[inline]
    fn shard(&self, node: NodeId) -> (&Shard, usize) {
        let (shard, index) = self.view.store.map.locate(node);
        let Some(shard) = &self.shards[shard] else { panic!("the reader was not made for node {}", node.0) };
        (shard, index)
    }
}

impl Past<'_> {
    /// Calls `f` with the newest edges, `most` at most, in runs: the newest run first. Equal times: the later
    /// arrival counts as newer.
    #[inline]
    pub fn newest(&self, most: usize, mut f: impl FnMut(Run<'_>)) {
        let mut left = most;
        let last = self.blocks.partition_point(|block| block.start < self.before);
        for (i, block) in self.blocks[..last].iter().enumerate().rev() {
            let (lowest, highest) = block.edges();
            if lowest >= self.bound {
                continue;
            }
            // Only the last block can reach beyond the end of the range, only the first behind its begin.
            let end = if i + 1 == last { block.rank_of_time(self.slab, self.before) } else { block.len() };
            let begin = if block.start < self.from { block.rank_of_time(self.slab, self.from) } else { 0 };
            if highest < self.bound {
                let taken = left.min(end.saturating_sub(begin));
                f(block.run(self.slab, end - taken..end));
                left -= taken;
            } else {
                for place in (begin..end).rev() {
                    if left == 0 {
                        break;
                    }
                    if block.record(self.slab, place).edge < self.bound {
                        f(block.run(self.slab, place..place + 1));
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
    #[must_use]
    pub fn candidates(&self) -> Candidates<'_> {
        let rank = |time| {
            let end = self.blocks.partition_point(|block| block.start < time);
            let last = self.blocks[..end].last();
            (end, last.map_or(0, |block| block.before + rank32(block.rank_of_time(self.slab, time))))
        };
        let (end, high) = rank(self.before);
        let low = if self.from == i64::MIN { 0 } else { rank(self.from).1.min(high) };
        let hidden = |block: &&TemporalBlock| {
            block.edges().1 >= self.bound && block.before + rank32(block.len()) > low
        };
        let settled = end - self.blocks[..end].iter().rev().take_while(hidden).count();
        let mut candidates = Candidates { past: self, low, high, settled, end, count: 0 };
        candidates.count =
            candidates.parts().map(|part| part.visible).sum::<u32>() + candidates.settled_count();
        candidates
    }
}

/// The edges of a [`Past`], numbered from the oldest, 0.
///
/// Blocks are of two sorts. Up to `settled` every entry is below the view's bound, and ranks are found by
/// arithmetic. Behind it, which is few blocks since ids follow time but for late events, each block says
/// how many of its entries are.
pub struct Candidates<'a> {
    past: &'a Past<'a>,
    /// Ranks among all entries of the node of the first in the range of times and the first behind it.
    low: u32,
    high: u32,
    /// Blocks before this one are below the bound.
    settled: usize,
    /// Blocks before this one begin inside the range of times.
    end: usize,
    count: u32,
}

impl Candidates<'_> {
    /// Number of edges.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Calls `f` with the edges of the given ranks, which are descending: newest first.
    #[inline]
    pub fn pick(&self, ranks: &[u32], mut f: impl FnMut(Neighbor)) {
        let Past { blocks, slab, bound, .. } = *self.past;
        let mut ranks = ranks.iter().copied().peekable();
        let mut above = self.count;
        for part in self.parts() {
            let first = above - part.visible;
            if part.contiguous {
                while let Some(rank) = ranks.next_if(|&rank| rank >= first) {
                    f(neighbor(part.block.record(slab, part.start + (rank - first) as usize)));
                }
            } else if ranks.peek().is_some_and(|&rank| rank >= first) {
                let mut rank = above;
                let records = part.block.records(slab).take(part.end).skip(part.start).rev();
                for record in records.filter(|record| record.edge < bound) {
                    rank -= 1;
                    if ranks.next_if_eq(&rank).is_some() {
                        f(neighbor(record));
                    }
                }
            }
            above = first;
        }
        let mut end = self.settled;
        for rank in ranks {
            let rank = self.low + rank;
            // Ranks descend, so a block serves as long as they stay in it.
            if blocks[end - 1].before > rank {
                end = blocks[..end].partition_point(|block| block.before <= rank);
            }
            let block = &blocks[end - 1];
            f(neighbor(block.record(slab, (rank - block.before) as usize)));
        }
    }

    /// Number of edges in settled blocks.
    fn settled_count(&self) -> u32 {
        let behind = self.past.blocks.get(self.settled).map_or(self.high, |block| block.before);
        behind.min(self.high).saturating_sub(self.low)
    }

    /// The unsettled blocks, newest first.
    fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let Past { blocks, slab, bound, .. } = *self.past;
        blocks[self.settled..self.end].iter().rev().map(move |block| {
            let start = self.low.saturating_sub(block.before) as usize;
            let end = block.len().min((self.high - block.before) as usize);
            let mut part = Part { block, start, end, visible: 0, contiguous: true };
            if block.edges().0 < bound {
                let visible = match block.rank_of_edge(slab, bound) {
                    Some(cut) => cut.min(end).saturating_sub(start),
                    None => {
                        part.contiguous = false;
                        let records = block.records(slab).take(end).skip(start);
                        records.filter(|record| record.edge < bound).count()
                    }
                };
                part.visible = rank32(visible);
            }
            part
        })
    }
}

/// Entries `start..end` of a block, of which `visible` are below the view's bound; if `contiguous`, those
/// at the front.
struct Part<'a> {
    block: &'a TemporalBlock,
    start: usize,
    end: usize,
    visible: u32,
    contiguous: bool,
}

/// A place in a block as a rank.
#[allow(clippy::cast_possible_truncation, reason = "a block has at most 2^15 entries")]
#[inline]
fn rank32(place: usize) -> u32 {
    place as u32
}

#[inline]
fn neighbor(record: Record) -> Neighbor {
    Neighbor { node: record.neighbor(), edge: EdgeId(record.edge), time: EventTime(record.time) }
}

impl Run<'_> {
    /// The edges, newest first.
    #[inline]
    pub fn newest_first(&self) -> impl ExactSizeIterator<Item = Neighbor> {
        self.records().rev().map(neighbor)
    }
}
