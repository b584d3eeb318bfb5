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
    /// Whether every edge of the node is below the bound.
    whole: bool,
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
            let (bound, whole) = (self.bound.0, list.last_edge() < self.bound.0);
            f(Past { blocks: list.blocks(), slab, bound, whole, from: from.0, before: before.0 })
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

    /// Number of edges.
    #[must_use]
    pub fn count(&self) -> u32 {
        let (low, high) = self.ranks();
        if self.whole { high - low } else { self.visible_parts(low, high).map(|part| part.visible).sum() }
    }

    /// Calls `f` with the edges of the given ranks, in the order given. Ranks count the
    /// [`count`](Self::count) edges from the oldest, 0, to the newest, and are descending.
    pub fn pick(&self, ranks: &[u32], mut f: impl FnMut(Neighbor)) {
        let (low, high) = self.ranks();
        if self.whole {
            for rank in ranks {
                let rank = low + rank;
                let block = &self.blocks[self.blocks.partition_point(|block| block.before <= rank) - 1];
                f(neighbor(block.record(self.slab, (rank - block.before) as usize)));
            }
            return;
        }
        let mut above: u32 = self.visible_parts(low, high).map(|part| part.visible).sum();
        let mut ranks = ranks.iter().copied().peekable();
        for part in self.visible_parts(low, high).rev() {
            let first = above - part.visible;
            let mut seen = above;
            let visible = part.records(self.slab).rev().filter(|record| record.edge < self.bound);
            for record in visible {
                seen -= 1;
                if ranks.next_if_eq(&seen).is_some() {
                    f(neighbor(record));
                }
                if ranks.peek().is_none_or(|&rank| rank < first) {
                    break;
                }
            }
            above = first;
        }
    }

    /// Ranks among all entries of the node of the first entry of the range and of the first behind it.
    fn ranks(&self) -> (u32, u32) {
        let rank = |time| {
            let i = self.blocks.partition_point(|block| block.start < time);
            #[allow(clippy::cast_possible_truncation, reason = "a block has at most 2^16 entries")]
            self.blocks[..i]
                .last()
                .map_or(0, |block| block.before + block.rank_of_time(self.slab, time) as u32)
        };
        let high = rank(self.before);
        (rank(self.from).min(high), high)
    }

    /// The parts of blocks with ranks `low..high`, ascending, each with its number of visible edges.
    fn visible_parts(&self, low: u32, high: u32) -> impl DoubleEndedIterator<Item = Part<'_>> {
        let first = self.blocks.partition_point(|block| block.before <= low).saturating_sub(1);
        let end = self.blocks.partition_point(|block| block.before < high);
        self.blocks[first..end.max(first)].iter().map(move |block| {
            let start = low.saturating_sub(block.before) as usize;
            let mut part =
                Part { block, start, end: block.len().min((high - block.before) as usize), visible: 0 };
            let (lowest, highest) = block.edges();
            let visible = if highest < self.bound {
                part.end - part.start
            } else if lowest >= self.bound {
                0
            } else {
                part.records(self.slab).filter(|record| record.edge < self.bound).count()
            };
            #[allow(clippy::cast_possible_truncation, reason = "a block has at most 2^16 entries")]
            let visible = visible as u32;
            part.visible = visible;
            part
        })
    }
}

/// Entries `start..end` of a block.
struct Part<'a> {
    block: &'a TemporalBlock,
    start: usize,
    end: usize,
    visible: u32,
}

impl<'a> Part<'a> {
    fn records(&self, slab: &'a Slab) -> impl DoubleEndedIterator<Item = Record> + 'a {
        self.block.records(slab).take(self.end).skip(self.start)
    }
}

#[inline]
fn neighbor(record: Record) -> Neighbor {
    Neighbor { node: record.neighbor(), edge: EdgeId(record.edge), time: EventTime(record.time) }
}
