//! What readers see: a [`GraphView`] fixes the edge id below which edges exist, a [`Past`] is what one
//! node of the view had behind it at one time.
//!
//! Because ids are given in order of arrival, a view that keeps its bound answers the same question the
//! same way however much the writer has added since. Deletions take edges out of every view.

use super::block::{Record, TemporalBlock};
use super::slab::Slab;
use super::store::GraphStore;
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

    /// Calls `f` with the edges of `node` that have a time in `from..before`; `f` must not ask the graph
    /// anything, since a shard is locked. Unknown nodes have none.
    #[inline]
    pub fn past<R>(
        &self,
        node: NodeId,
        from: EventTime,
        before: EventTime,
        f: impl FnOnce(Past<'_>) -> R,
    ) -> R {
        self.store.read_list(node, |list, slab| {
            let blocks = list.blocks();
            f(Past { blocks, slab, bound: self.bound.0, from: from.0, before: before.0 })
        })
    }
}

impl Past<'_> {
    /// Calls `f` with the newest edges, newest first, `most` at most. Equal times: the later arrival
    /// counts as newer.
    #[inline]
    pub fn newest(&self, most: usize, mut f: impl FnMut(Neighbor)) {
        let mut left = most;
        let last = self.blocks.partition_point(|block| block.start < self.before);
        for (i, block) in self.blocks[..last].iter().enumerate().rev() {
            let (lowest, highest) = block.edges();
            if lowest >= self.bound {
                continue;
            }
            // Only the last block can reach beyond the end of the range.
            let end = if i + 1 == last { block.rank_of_time(self.slab, self.before) } else { block.len() };
            for record in block.records(self.slab).take(end).rev() {
                if left == 0 || record.time < self.from {
                    return;
                }
                if highest < self.bound || record.edge < self.bound {
                    f(neighbor(record));
                    left -= 1;
                }
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
        for rank in ranks {
            let rank = self.low + rank;
            let block = &blocks[blocks.partition_point(|block| block.before <= rank) - 1];
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
