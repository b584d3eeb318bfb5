//! The adjacency list: all blocks of one node in order of time, with their descriptions side by side as the directory.
//! A single block, the case for most nodes, is stored inline.
//!
//! Growth follows the degree: one block that grows through the size classes up to a page, then pages;
//! a fresh page starts at an eighth of the degree so that a node just over one page does not hold a second,
//! empty one. Where distance in time or edge ids ends a block before it is full, the block keeps no room. A late record
//! goes to its place in time, where the block grows; a full block is split for it. What the directory states of the
//! blocks behind late records is brought up to date once per batch, so late records that come together, as when a
//! source is read after another that goes further, cost the directory once, not once each.
//!
//! Knows nothing of shards and of what other nodes hold.

use super::GraphOptions;
use super::block::TemporalBlock;
use super::entry::Record;
use super::slab::{EntrySource, Slab, class_entries, class_of};
use crate::device::prefetch;

/// What entries are sorted by: time and edge id.
pub(super) type Key = (i64, u64);

/// Units of a page, the largest block that a list makes.
pub(super) fn page_entries(options: &GraphOptions) -> usize {
    class_entries(class_of(options.page_entries_max.clamp(1, 1 << 15)))
}

/// The edges of one node.
#[derive(Default)]
pub(super) enum AdjacencyList {
    /// No edge.
    #[default]
    Empty,
    /// No edge, noted at this time of the stream.
    Idle(i64),
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
            Self::Empty | Self::Idle(_) => &[],
            Self::One(block) => std::slice::from_ref(block),
            Self::Many(blocks) => blocks,
        }
    }

    /// Whether it holds neither edges nor a note.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// The blocks, to move; their order and bounds stay.
    pub fn blocks_mut(&mut self) -> &mut [TemporalBlock] {
        match self {
            Self::Empty | Self::Idle(_) => &mut [],
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
        if let Some(first) = late.first() {
            let first = self.place_of(first.time);
            for &record in late {
                self.insert(slab, record, page);
            }
            self.refresh(first, newest);
        }
        self.append(slab, in_order, page, newest);
    }

    fn append(&mut self, slab: &mut Slab, records: &[Record], page: usize, newest: u64) {
        let mut rest = records;
        if let Some(tail) = self.blocks_mut().last_mut() {
            let mut count = tail.append(slab, rest, page, 0);
            // Distance ends it.
            while count < rest.len() && tail.room(page) > 0 {
                if !tail.widen(slab, rest[count], page) {
                    tail.trim(slab);
                    break;
                }
                let last = rest[..count].last().map_or(0, |record| record.edge);
                count += tail.append(slab, &rest[count..], page, last);
            }
            rest = &rest[count..];
        }
        while !rest.is_empty() {
            let degree = self.degree();
            let room = (degree as usize / 8).min(page);
            let (mut block, count) = TemporalBlock::begin(slab, rest, (page, page), room);
            block.before = degree;
            self.push(block, newest);
            rest = &rest[count..];
        }
    }

    /// Appends a block whose rank is set and whose entries come behind all others. No edge id exceeds `newest`.
    pub fn push(&mut self, mut block: TemporalBlock, newest: u64) {
        if let Some(last) = self.blocks().last() {
            block.reach_to(last.edges().1.min(newest));
        }
        match self {
            Self::Empty | Self::Idle(_) => *self = Self::One(block),
            Self::One(first) => *self = Self::Many(vec![*first, block]),
            Self::Many(blocks) => blocks.push(block),
        }
    }

    /// The block that a late record of `time` belongs to, of a list that is not empty.
    pub fn place_of(&self, time: i64) -> usize {
        self.blocks().partition_point(|block| block.start <= time).saturating_sub(1)
    }

    /// Puts `record` in its place in time, behind entries of the same time, all of which arrived before
    /// it. The list is not empty. The directory behind the place is outdated afterwards.
    fn insert(&mut self, slab: &mut Slab, record: Record, page: usize) {
        let index = self.place_of(record.time);
        let block = &mut self.blocks_mut()[index];
        let position = block.rank_of(&*slab, record);
        if !block.insert(slab, record, position, page) {
            self.split(slab, index, (position, record), page);
        }
    }

    /// Replaces block `index` by blocks of its entries and a new one at a position: two halves if the block was full,
    /// or as many as the distances require.
    fn split(&mut self, slab: &mut Slab, index: usize, new: (usize, Record), page: usize) {
        let block = self.blocks()[index];
        let mut records: Vec<Record> = block.records(&*slab).collect();
        records.insert(new.0, new.1);
        let most = if block.room(page) == 0 { records.len().div_ceil(2) } else { page };
        block.release(slab);
        let parts = encode(slab, &records, most, page);
        let mut blocks = self.take_blocks();
        blocks.splice(index..=index, parts);
        *self = Self::with(blocks);
    }

    /// Brings ranks and bounds up to date from block `first` on. A bound too far to be stored becomes `newest`, so
    /// only the block that cannot store it is affected.
    fn refresh(&mut self, first: usize, newest: u64) {
        let (mut before, mut highest) = (0, 0);
        let blocks = self.blocks_mut();
        for (index, block) in blocks.iter_mut().enumerate().skip(first.saturating_sub(1)) {
            if index >= first {
                block.before = before;
                block.reach_to(highest);
            }
            highest = block.edges().1.min(newest);
            #[allow(clippy::cast_possible_truncation, reason = "a slab holds 2^32 entries")]
            let len = block.len() as u32;
            before = block.before + len;
        }
    }

    /// The block of each of `keys`, ascending, that holds the entry with this key if any does; none of an empty list.
    pub fn places_of<'a>(&self, slab: impl EntrySource<'a>, keys: &[Key]) -> Vec<usize> {
        let blocks = self.blocks();
        if blocks.is_empty() {
            return Vec::new();
        }
        // Blocks that begin at the same time differ in their first edge.
        let begins = |block: &TemporalBlock, (time, edge): Key| {
            block.start < time || block.start == time && block.record(slab, 0).edge <= edge
        };
        let place = |&key| blocks.partition_point(|block| begins(block, key)).saturating_sub(1);
        keys.iter().map(place).collect()
    }

    /// Removes the entries with these keys, ascending, from the blocks that [`places_of`](Self::places_of) found for
    /// them, and returns how many went. The blocks are in memory.
    pub fn remove(
        &mut self,
        slab: &mut Slab,
        (page, newest): (usize, u64),
        keys: &[Key],
        places: &[usize],
    ) -> u64 {
        let (Some(&first), Some(&last)) = (places.first(), places.last()) else { return 0 };
        let before = self.degree();
        let mut blocks = self.take_blocks();
        let (mut left, mut done) = (Vec::with_capacity(last + 1 - first), 0);
        for (index, &block) in blocks.iter().enumerate().take(last + 1).skip(first) {
            let end = done + places[done..].partition_point(|&place| place == index);
            let gone = &keys[std::mem::replace(&mut done, end)..end];
            if gone.is_empty() {
                left.push(block);
                continue;
            }
            let is_kept = |record: &Record| gone.binary_search(&record.key()).is_err();
            let kept: Vec<Record> = block.records(&*slab).filter(is_kept).collect();
            if kept.len() == block.len() {
                left.push(block);
            } else {
                block.release(slab);
                left.extend(encode(slab, &kept, kept.len(), page));
            }
        }
        blocks.splice(first..=last, left);
        if blocks.len() < blocks.capacity() / 2 {
            blocks.shrink_to_fit();
        }
        *self = Self::with(blocks);
        self.refresh(first, newest);
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
            Self::Empty | Self::Idle(_) => Vec::new(),
            Self::One(block) => vec![block],
            Self::Many(blocks) => blocks,
        }
    }

    /// The list of `blocks`, ascending, with ranks and bounds computed anew.
    fn of(blocks: Vec<TemporalBlock>, newest: u64) -> Self {
        let mut list = Self::with(blocks);
        list.refresh(0, newest);
        list
    }

    fn with(blocks: Vec<TemporalBlock>) -> Self {
        match blocks.as_slice() {
            [] => Self::Empty,
            [block] => Self::One(*block),
            _ => Self::Many(blocks),
        }
    }
}

/// Blocks of `most` entries and `page` units at most that hold `records`, ascending.
pub(super) fn encode(slab: &mut Slab, records: &[Record], most: usize, page: usize) -> Vec<TemporalBlock> {
    let mut blocks = Vec::new();
    let mut rest = records;
    while !rest.is_empty() {
        let (block, count) = TemporalBlock::begin(slab, rest, (most, page), 0);
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

    fn remove(
        list: &mut AdjacencyList,
        slab: &mut Slab,
        newest: u64,
        is_gone: impl Fn(&Record) -> bool,
    ) -> u64 {
        let keys: Vec<Key> = list.records(&*slab).filter(is_gone).map(Record::key).collect();
        let places = list.places_of(&*slab, &keys);
        list.remove(slab, (PAGE, newest), &keys, &places)
    }

    #[test]
    fn a_block_that_is_made_wide_in_the_midst_of_a_batch_knows_that_its_edges_are_out_of_order() {
        let (mut list, mut slab) = (AdjacencyList::default(), Slab::new(64, None));
        let record = |(time, edge)| Record { time, edge, packed: 7 };
        list.add(&mut slab, &[record((0, 1))], PAGE, 1);
        // In order of time, as a batch is; the last is too far for a narrow block.
        let batch = [(0, 4), (0, 23), (1 << 33, 6)].map(record);
        list.add(&mut slab, &batch, PAGE, 23);
        let [block] = list.blocks() else { panic!("{} blocks", list.blocks().len()) };
        assert_eq!((block.len(), block.rank_of_edge(&slab, 21)), (4, None));
    }

    #[test]
    fn entries_of_one_time_are_found_by_their_edge() {
        let (mut list, mut slab) = (AdjacencyList::default(), Slab::new(64, None));
        let all: Vec<Record> = (0..500).map(|edge| Record { time: 7, edge, packed: 7 }).collect();
        list.add(&mut slab, &all, PAGE, 499);
        assert_eq!(
            list.places_of(&slab, &[(6, 3), (7, 0), (7, 63), (7, 64), (7, 499), (8, 0)]),
            [0, 0, 0, 1, 7, 7]
        );
        assert_eq!(remove(&mut list, &mut slab, 499, |record| record.edge % 5 == 0), 100);
        assert!(list.records(&slab).eq(all.into_iter().filter(|record| record.edge % 5 != 0)));
        let keys = [(7, 0), (7, 500)];
        let places = list.places_of(&slab, &keys);
        assert_eq!(list.remove(&mut slab, (PAGE, 499), &keys, &places), 0, "what is not there stays so");
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
        assert_eq!(remove(&mut list, &mut slab, next + 99, |record| record.time < 100), 103);
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
        assert_eq!(remove(&mut list, &mut slab, 640, |_| true), 641);
        assert!(matches!(list, AdjacencyList::Empty));
        assert!(list.last(&slab).is_none());
    }
}
