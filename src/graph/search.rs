//! The search for a time in a block, step by step. It compares what units store, so it is the same for both forms of
//! entries; of wide ones the block compares the low bits afterwards.

use std::hint::select_unpredictable;

use super::entry::Entry;
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
