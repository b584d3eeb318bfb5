//! The search for a time in a block, step by step. It compares what units store, so it is the same for both forms of
//! entries; of wide ones the block compares the low bits afterwards.

use std::hint::select_unpredictable;

use super::block::TemporalBlock;
use super::entry::{Entry, Form, Parts, Record, distance, partition};
use super::slab::EntrySource;
use crate::device::prefetch;

/// The search for the first entry of a block with some time or a later one. It advances one step per call, so that
/// searches in many blocks can interleave and their memory accesses overlap.
#[derive(Clone, Copy)]
pub(super) struct TimeSearch<'a> {
    entries: &'a [Entry],
    /// The time as a distance from the block's first, as units store it.
    limit: u64,
    /// Entries before this one are earlier.
    low: usize,
    /// Entries from `low` on that are not excluded yet.
    size: usize,
}

impl<'a> TimeSearch<'a> {
    /// A search that has found 0.
    pub const NOWHERE: Self = Self { entries: &[], limit: 0, low: 0, size: 0 };

    /// This many entries are close enough in memory that their steps need not interleave.
    const NEAR: usize = 16;

    /// The search in `entries` for the first whose unit has `limit` or more as its time.
    #[inline]
    pub fn new(entries: &'a [Entry], limit: u64) -> Self {
        Self { entries, limit, low: 0, size: entries.len() }
    }

    /// Halves the remaining range, prefetches what the next step reads, and returns whether further interleaving pays
    /// off.
    #[inline]
    pub fn halve(&mut self) -> bool {
        self.step();
        if let Some(entry) = self.entries.get(self.low + self.size / 2) {
            prefetch(entry);
        }
        self.size > Self::NEAR
    }

    #[inline]
    fn step(&mut self) {
        let half = self.size / 2;
        let middle = self.low + half;
        let is_earlier = self.entries.get(middle).is_some_and(|entry| u64::from(entry.time) < self.limit);
        self.low = select_unpredictable(is_earlier, middle, self.low);
        self.size -= half;
    }

    /// The number of entries before the one searched for; takes the steps that are left.
    #[inline]
    pub fn rank(mut self) -> usize {
        while self.size > 1 {
            self.step();
        }
        let is_earlier = self.entries.get(self.low).is_some_and(|entry| u64::from(entry.time) < self.limit);
        self.low + usize::from(is_earlier)
    }
}

/// Searches in one block.
impl TemporalBlock {
    /// Prefetches the entry that a search reads first.
    #[inline]
    pub fn announce<'a>(&self, slab: impl EntrySource<'a>) {
        prefetch(&slab.get(self.slot, self.len())[self.len() / 2]);
    }

    /// The search for the first entry with time at least `time`, by its high bits: [`refined`](Self::refined)
    /// completes what it finds.
    #[inline]
    pub fn search<'a>(&self, slab: impl EntrySource<'a>, time: i64) -> TimeSearch<'a> {
        if time <= self.start {
            return TimeSearch::NOWHERE;
        }
        let limit = distance(time, self.start) >> self.form.low_time_bits();
        TimeSearch::new(slab.get(self.slot, self.len()), limit)
    }

    /// The number of entries before the first with time at least `time`, from the `rank` that the search for it found.
    #[inline]
    pub fn refined<'a>(&self, slab: impl EntrySource<'a>, rank: usize, time: i64) -> usize {
        match self.form {
            Form::Narrow => rank,
            _ => self.refined_by_low_bits(slab, rank, time),
        }
    }

    #[cold]
    fn refined_by_low_bits<'a>(&self, slab: impl EntrySource<'a>, rank: usize, time: i64) -> usize {
        let Parts { entries, lows } = self.parts(slab);
        let is_earlier = |i: usize| self.unpack(entries[rank + i], lows.get(rank + i)).time < time;
        rank + partition(entries.len() - rank, is_earlier)
    }

    /// Number of entries before the first with time at least `time`.
    #[inline]
    pub fn rank_of_time<'a>(&self, slab: impl EntrySource<'a>, time: i64) -> usize {
        self.refined(slab, self.search(slab, time).rank(), time)
    }

    /// Number of entries before the first that is not below `record`.
    pub fn rank_of<'a>(&self, slab: impl EntrySource<'a>, record: Record) -> usize {
        let Parts { entries, lows } = self.parts(slab);
        partition(entries.len(), |i| self.unpack(entries[i], lows.get(i)).key() < record.key())
    }
}
