//! The adjacency list: all blocks of one node in order of time, with their descriptions side by side as the directory.
//! A single block, the case for most nodes, is stored inline.
//!
//! Growth follows the degree: one block that grows through the size classes up to a page, then pages;
//! a fresh page starts at a quarter of the degree so that a node just over one page does not hold a second,
//! empty one. A late record goes to its place in time, where the block grows; a full block is split
//! for it.
//!
//! Knows nothing of shards and of what other nodes hold.

use super::GraphOptions;
use super::block::{Record, TemporalBlock};
use super::slab::{EntrySource, Slab, class_entries, class_of};
use crate::device::prefetch;

/// Entries of a page, the largest block that a list makes.
pub(super) fn page_entries(options: &GraphOptions) -> usize {
    class_entries(class_of(options.page_entries_max.clamp(1, 1 << 15)))
}

/// The edges of one node.
#[derive(Default)]
pub(super) enum AdjacencyList {
    /// No edge.
    #[default]
    Empty,
    /// All edges in one block.
    One(TemporalBlock),
    /// Two or more blocks, ascending; each is full of keys above those of the block before it.
    Many(Vec<TemporalBlock>),
}

impl AdjacencyList {
    /// The blocks, ascending by time.
    #[inline]
    pub fn blocks(&self) -> &[TemporalBlock] {
        match self {
            Self::Empty => &[],
            Self::One(block) => std::slice::from_ref(block),
            Self::Many(blocks) => blocks,
        }
    }

    /// The blocks, to move; their order and bounds stay.
    pub fn blocks_mut(&mut self) -> &mut [TemporalBlock] {
        match self {
            Self::Empty => &mut [],
            Self::One(block) => std::slice::from_mut(block),
            Self::Many(blocks) => blocks,
        }
    }

    /// Number of entries; a self loop has one.
    #[inline]
    pub fn degree(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "a slab holds 2^32 entries")]
        self.blocks().last().map_or(0, |block| block.before + block.len() as u32)
    }

    /// The last entry in order of (time, edge id).
    pub fn last<'a>(&self, slab: impl EntrySource<'a>) -> Option<Record> {
        self.blocks().last().map(|block| block.record(slab, block.len() - 1))
    }

    /// Announces that [`announce_tail`](Self::announce_tail) will follow.
    #[inline]
    pub fn announce_block(&self) {
        if let Self::Many(blocks) = self {
            prefetch(&blocks[blocks.len() - 1]);
        }
    }

    /// Announces that entries will be appended.
    #[inline]
    pub fn announce_tail(&self, slab: &Slab) {
        if let Some(tail) = self.blocks().last() {
            tail.announce_end(slab);
        }
    }

    /// Bytes of the directory beyond the list itself.
    pub fn directory_bytes(&self) -> usize {
        match self {
            Self::Many(blocks) => blocks.capacity() * size_of::<TemporalBlock>(),
            _ => 0,
        }
    }

    /// Adds `records`, ascending, which all have larger edge ids than the list's; those before the last
    /// entry go to their place in time. No edge id exceeds `newest`.
    pub fn add(&mut self, slab: &mut Slab, records: &[Record], page: usize, newest: u64) {
        let late = match self.last(&*slab) {
            Some(last) => records.partition_point(|record| record.key() < last.key()),
            None => 0,
        };
        let (late, in_order) = records.split_at(late);
        for &record in late {
            self.insert(slab, record, page, newest);
        }
        self.append(slab, in_order, page, newest);
    }

    fn append(&mut self, slab: &mut Slab, records: &[Record], page: usize, newest: u64) {
        let mut rest = records;
        if let Some(tail) = self.blocks_mut().last_mut() {
            let count = tail.append(slab, rest, page);
            rest = &rest[count..];
        }
        while !rest.is_empty() {
            let degree = self.degree();
            let room = (degree as usize / 4).min(page);
            let (mut block, count) = TemporalBlock::begin(slab, rest, page, room);
            block.before = degree;
            self.push(block, newest);
            rest = &rest[count..];
        }
    }

    fn push(&mut self, mut block: TemporalBlock, newest: u64) {
        if let Some(last) = self.blocks().last() {
            block.reach_to(last.edges().1.min(newest));
        }
        match self {
            Self::Empty => *self = Self::One(block),
            Self::One(first) => *self = Self::Many(vec![*first, block]),
            Self::Many(blocks) => blocks.push(block),
        }
    }

    /// The block that a late record of `time` belongs to, of a list that is not empty.
    pub fn place_of(&self, time: i64) -> usize {
        self.blocks().partition_point(|block| block.start <= time).saturating_sub(1)
    }

    /// Puts `record` in its place in time, behind entries of the same time, all of which arrived before
    /// it. The list is not empty.
    fn insert(&mut self, slab: &mut Slab, record: Record, page: usize, newest: u64) {
        let index = self.place_of(record.time);
        let blocks = self.blocks_mut();
        let position = blocks[index].rank_of(&*slab, record);
        if !blocks[index].insert(slab, record, position, page) {
            self.split(slab, index, (position, record), page, newest);
            return;
        }
        for block in &mut blocks[index + 1..] {
            block.before += 1;
            block.reach_to(record.edge);
        }
    }

    /// Replaces block `index` by blocks of its entries and a new one at a position: two halves if the block was full,
    /// or as many as the distances require.
    fn split(&mut self, slab: &mut Slab, index: usize, new: (usize, Record), page: usize, newest: u64) {
        let block = self.blocks()[index];
        let mut records: Vec<Record> = block.records(&*slab).collect();
        records.insert(new.0, new.1);
        block.release(slab);
        let most = if records.len() > page { records.len().div_ceil(2) } else { page };
        let parts = encode(slab, &records, most);
        let mut blocks = self.take_blocks();
        blocks.splice(index..=index, parts);
        *self = Self::of(blocks, newest);
    }

    /// Removes the entries for which `gone` is true and returns how many. No edge id exceeds `newest`.
    pub fn remove(&mut self, slab: &mut Slab, newest: u64, gone: impl Fn(Record) -> bool) -> u64 {
        let before = self.degree();
        if !self.blocks().iter().any(|block| block.records(&*slab).any(&gone)) {
            return 0;
        }
        let mut blocks = Vec::new();
        for block in self.take_blocks() {
            if block.records(&*slab).any(&gone) {
                let left: Vec<Record> = block.records(&*slab).filter(|&record| !gone(record)).collect();
                block.release(slab);
                blocks.extend(encode(slab, &left, left.len()));
            } else {
                blocks.push(block);
            }
        }
        *self = Self::of(blocks, newest);
        u64::from(before - self.degree())
    }

    /// Removes the first `count` blocks and returns how many entries they held. No edge id exceeds `newest`.
    pub fn drop_front(&mut self, slab: &mut Slab, count: usize, newest: u64) -> u64 {
        let before = self.degree();
        let mut blocks = self.take_blocks();
        blocks.drain(..count).for_each(|block| block.release(slab));
        blocks.shrink_to_fit();
        *self = Self::of(blocks, newest);
        u64::from(before - self.degree())
    }

    /// All entries, ascending.
    pub fn records<'a>(&'a self, slab: impl EntrySource<'a> + 'a) -> impl Iterator<Item = Record> + 'a {
        self.blocks().iter().flat_map(move |block| block.records(slab))
    }

    fn take_blocks(&mut self) -> Vec<TemporalBlock> {
        match std::mem::take(self) {
            Self::Empty => Vec::new(),
            Self::One(block) => vec![block],
            Self::Many(blocks) => blocks,
        }
    }

    /// The list of `blocks`, ascending, with ranks and bounds computed anew. A bound too far to be stored becomes
    /// `newest`, so only the block that cannot store it is affected.
    fn of(mut blocks: Vec<TemporalBlock>, newest: u64) -> Self {
        let mut before = 0;
        let mut highest = 0;
        for block in &mut blocks {
            block.before = before;
            block.reach_to(highest);
            highest = block.edges().1.min(newest);
            #[allow(clippy::cast_possible_truncation, reason = "a slab holds 2^32 entries")]
            let len = block.len() as u32;
            before += len;
        }
        match blocks.as_slice() {
            [] => Self::Empty,
            [block] => Self::One(*block),
            _ => Self::Many(blocks),
        }
    }
}

/// Blocks of `most` entries at most that hold `records`, ascending.
fn encode(slab: &mut Slab, records: &[Record], most: usize) -> Vec<TemporalBlock> {
    let mut blocks = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let (block, count) = TemporalBlock::begin(slab, rest, most, 0);
        blocks.push(block);
        rest = &rest[count..];
    }
    blocks
}

// A node costs no more than a block's description.
const _: () = assert!(size_of::<AdjacencyList>() == size_of::<TemporalBlock>());

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64;

    fn records(ids: std::ops::Range<u64>, first_time: i64) -> Vec<Record> {
        ids.zip(first_time..).map(|(edge, time)| Record { time, edge, packed: 7 }).collect()
    }

    #[test]
    fn pages_stay_full_after_a_late_event_with_a_far_id() {
        let (mut list, mut slab) = (AdjacencyList::default(), Slab::new(64, None));
        list.add(&mut slab, &records(0..200, 0), PAGE, 199);
        let far = 1 << 33;
        list.add(&mut slab, &records(far..far + 1, 10), PAGE, far);
        for id in far + 1..far + 1_001 {
            list.add(&mut slab, &records(id..id + 1, 1_000 + (id - far) as i64), PAGE, id);
        }
        assert_eq!(list.degree(), 1_201);
        assert!(list.blocks().len() < 30, "{} blocks", list.blocks().len());
        // Two more far ids split blocks; bounds behind them recover.
        list.add(&mut slab, &records(2 * far..2 * far + 2, 20), PAGE, 2 * far + 1);
        let last = list.blocks().last().unwrap();
        assert_eq!(last.edges().1, u64::MAX, "the bound is too far for the old blocks");
        let next = 2 * far + 2;
        list.add(&mut slab, &records(next..next + 100, 5_000), PAGE, next + 99);
        assert_eq!(list.blocks().last().unwrap().edges().1, next + 99);
        assert_eq!(list.remove(&mut slab, next + 99, |record| record.time < 100), 103);
        assert_eq!(list.blocks().last().unwrap().edges().1, next + 99);
    }

    #[test]
    fn a_block_grows_to_a_page_and_pages_follow() {
        let (mut list, mut slab) = (AdjacencyList::default(), Slab::new(64, None));
        for id in 0..64 {
            list.add(&mut slab, &records(id..id + 1, id as i64), PAGE, id);
            assert!(matches!(list, AdjacencyList::One(_)));
        }
        for id in 64..640 {
            list.add(&mut slab, &records(id..id + 1, id as i64), PAGE, id);
        }
        assert_eq!(list.blocks().len(), 10);
        assert!(list.records(&slab).eq(records(0..640, 0)));
        // A late event splits the page that it belongs to and no other.
        list.add(&mut slab, &records(640..641, 100), PAGE, 640);
        let lens: Vec<usize> = list.blocks().iter().map(TemporalBlock::len).collect();
        assert_eq!(lens, [64, 33, 32, 64, 64, 64, 64, 64, 64, 64, 64]);
        let ranks: Vec<u32> = list.blocks().iter().map(|block| block.before).collect();
        assert_eq!(ranks, [0, 64, 97, 129, 193, 257, 321, 385, 449, 513, 577]);
        assert_eq!(list.remove(&mut slab, 640, |_| true), 641);
        assert!(matches!(list, AdjacencyList::Empty));
        assert!(list.last(&slab).is_none());
    }
}
