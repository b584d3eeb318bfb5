//! A node's edges in a range of times as things to choose from: counted, and found by rank.
//!
//! Knows nothing of how ranks are chosen.

use std::ops::Range;

use super::block::TemporalBlock;
use super::entry::{Entry, Form, Record};
use super::fault::Entries;
use super::view::{Neighbor, neighbor, rank32};
use crate::device::prefetch;

/// The edges of a [`Past`](super::Past), numbered from the oldest, 0.
///
/// There are two kinds of blocks. Up to `settled` every entry is below the view's bound, and ranks are found by
/// arithmetic. In the few blocks after it (few, since ids follow time except for late events), each block's visible
/// entries are counted.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    blocks: &'a [TemporalBlock],
    slab: Entries<'a>,
    bound: u64,
    /// Ranks among all entries of the node of the first in the range of times and the first behind it.
    low: u32,
    high: u32,
    /// Blocks before this one are below the bound.
    settled: usize,
    /// Blocks before this one begin inside the range of times.
    end: usize,
    /// 2^32 by the length of the first block, if it is not the last. Most others are as long, so a rank times this
    /// guesses its block.
    scale: u64,
    count: u32,
}

/// One of the [`Candidates`], found but not read.
#[derive(Clone, Copy)]
pub struct Pick<'a> {
    block: &'a TemporalBlock,
    entry: &'a Entry,
    /// Its low bits.
    low: u32,
}

impl Pick<'_> {
    #[inline]
    fn announced(self) -> Self {
        prefetch(self.entry);
        self
    }

    /// The edge.
    #[inline]
    #[must_use]
    pub fn neighbor(self) -> Neighbor {
        neighbor(match self.block.form {
            Form::Narrow => self.block.unpack_narrow(*self.entry),
            _ => self.wider(),
        })
    }

    #[cold]
    #[inline(never)]
    fn wider(self) -> Record {
        self.block.unpack(*self.entry, self.low)
    }
}

impl<'a> Candidates<'a> {
    /// The candidates in the first `end` of a node's blocks, whose entries in the range of times have the ranks
    /// `range` among all.
    #[inline]
    pub(super) fn new(
        (blocks, slab): (&'a [TemporalBlock], Entries<'a>),
        bound: u64,
        end: usize,
        range: Range<u32>,
    ) -> Self {
        let Range { start: low, end: high } = range;
        let hidden =
            |block: &&TemporalBlock| block.edges().1 >= bound && block.before + rank32(block.len()) > low;
        let settled = end - blocks[..end].iter().rev().take_while(hidden).count();
        let scale = if end > 1 { (1 << 32) / blocks[0].len() as u64 + 1 } else { 0 };
        let mut candidates = Self { blocks, slab, bound, low, high, settled, end, scale, count: 0 };
        candidates.count = candidates.settled_count();
        if settled < end {
            candidates.count += candidates.parts().map(|part| part.visible).sum::<u32>();
        }
        candidates
    }

    /// Number of edges.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether ranks can be found by arithmetic alone, as [`find`](Self::find) needs it.
    #[inline]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled == self.end
    }

    /// Where the edges of `ranks` are, of settled candidates that have them; their memory is prefetched.
    ///
    /// # Panics
    /// When there is no such edge.
    #[inline]
    pub fn find(&self, ranks: impl Iterator<Item = u32> + Clone, picks: &mut Vec<Pick<'a>>) {
        let ranks = ranks.map(|rank| self.low + rank);
        if self.slab.is_spilled() {
            let chunks: Vec<usize> =
                ranks.clone().map(|rank| self.slab.chunk(&self.blocks[self.block_of(rank)])).collect();
            self.slab.expect(chunks);
        }
        if let [block] = &self.blocks[..self.end] {
            let parts = block.parts(self.slab);
            if parts.lows.is_empty() {
                let entries = parts.entries;
                let pick = |rank| Pick { block, entry: &entries[rank as usize], low: 0 }.announced();
                picks.extend(ranks.map(pick));
                return;
            }
            for rank in ranks {
                let (entry, low) = parts.at(rank as usize);
                picks.push(Pick { block, entry, low });
            }
        } else {
            for rank in ranks {
                picks.push(self.find_among_blocks(rank).announced());
            }
        }
    }

    #[inline]
    fn find_among_blocks(&self, rank: u32) -> Pick<'a> {
        let block = &self.blocks[self.block_of(rank)];
        let (entry, low) = block.entry(self.slab, (rank - block.before) as usize);
        Pick { block, entry, low }
    }

    /// The block that holds the entry of a rank.
    #[inline]
    fn block_of(&self, rank: u32) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "not above the number of blocks")]
        let mut index = ((u64::from(rank) * self.scale) >> 32) as usize;
        let holds = |block: &TemporalBlock| (rank.wrapping_sub(block.before) as usize) < block.len();
        if !self.blocks.get(index).is_some_and(holds) {
            index = self.blocks[..self.end].partition_point(|block| block.before <= rank) - 1;
        }
        index
    }

    /// Calls `f` with the edges of the given ranks, which are descending: newest first.
    pub fn pick(&self, ranks: &[u32], mut f: impl FnMut(Neighbor)) {
        let Self { blocks, slab, bound, .. } = *self;
        let mut ranks = ranks.iter().copied().peekable();
        let mut above = self.count;
        for part in self.parts() {
            let first = above.saturating_sub(part.visible);
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
        if end == 0 {
            // A load that failed during counting may have made ranks that do not exist.
            return;
        }
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
        let behind = self.blocks.get(self.settled).map_or(self.high, |block| block.before);
        behind.min(self.high).saturating_sub(self.low)
    }

    /// The unsettled blocks, newest first.
    fn parts(&self) -> impl Iterator<Item = Part<'a>> {
        let Self { blocks, slab, bound, low, high, .. } = *self;
        blocks[self.settled..self.end].iter().rev().map(move |block| {
            let start = low.saturating_sub(block.before) as usize;
            let end = block.len().min((high - block.before) as usize);
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
