//! What a GPU holds of the graph, byte by byte, as `kernels/graph.cuh` reads it; and what an upload brings.

pub(super) use crate::device::cuda::twins::{Block as MirrorBlock, NodeBlocks, PlacedEntry, PlacedNode};
use crate::graph::block::{Record, fitting};

/// The most entries of a block.
pub(super) const BLOCK_ENTRIES_MAX: usize = 1 << 15;
const ORDERED: u16 = 1 << 15;

#[allow(clippy::cast_possible_truncation, reason = "distances and counts are checked by `fitting`")]
impl MirrorBlock {
    /// A block for the first records of `records` (ascending, not empty, `most` at most), and how many; it has no
    /// place yet. `earlier` is the block before it in the list; no edge id exceeds `newest`.
    pub(super) fn begin(
        records: &[Record],
        most: usize,
        earlier: Option<&Self>,
        newest: u64,
    ) -> (Self, usize) {
        let first = records[0];
        let (count, edges) = fitting(first.time, (first.edge, first.edge), most, records);
        let highest = earlier.map_or(0, |block| block.highest().min(newest)).max(edges.1);
        let reach = u32::try_from(highest - edges.0).unwrap_or(u32::MAX);
        let is_ordered = records[..count].is_sorted_by_key(|record| record.edge);
        let block = Self {
            start: first.time,
            base_edge: edges.0,
            page: 0,
            before: earlier.map_or(0, |block| block.before + block.len() as u32),
            reach,
            place: 0,
            form: (count - 1) as u16 | if is_ordered { ORDERED } else { 0 },
        };
        (block, count)
    }

    /// Appends as many of `records` (ascending, none before the last entry, younger than all entries) as fit, `room` at
    /// most, and returns how many.
    pub(super) fn extend(&mut self, records: &[Record], room: usize) -> usize {
        let (count, edges) = fitting(self.start, (self.base_edge, self.highest()), room, records);
        if count > 0 {
            let is_ordered =
                self.form & ORDERED != 0 && records[..count].is_sorted_by_key(|record| record.edge);
            self.reach = (edges.1 - self.base_edge) as u32;
            self.form = (self.len() + count - 1) as u16 | if is_ordered { ORDERED } else { 0 };
        }
        count
    }

    /// Records that the entries begin at `slot` of pages of 2^`page_log2` entries.
    pub(super) fn move_to(&mut self, slot: u32, page_log2: u32) {
        self.page = slot >> page_log2;
        self.place = (slot & ((1 << page_log2) - 1)) as u16;
    }

    /// Where the entries begin.
    pub(super) fn slot(&self, page_log2: u32) -> u32 {
        self.page << page_log2 | u32::from(self.place)
    }

    /// `record`, one of the block's, as entry `position`.
    pub(super) fn pack(&self, record: Record, position: usize, page_log2: u32) -> PlacedEntry {
        let time = record.time.wrapping_sub(self.start) as u32;
        let edge = (record.edge - self.base_edge) as u32;
        PlacedEntry { neighbor: record.packed, time, edge, slot: self.slot(page_log2) + position as u32 }
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        usize::from(self.form & !ORDERED) + 1
    }

    /// No edge id of this or an earlier block of the node is above it.
    fn highest(&self) -> u64 {
        if self.reach == u32::MAX { u64::MAX } else { self.base_edge + u64::from(self.reach) }
    }
}
