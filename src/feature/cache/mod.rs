//! [`RowCache`]: a fixed number of rows on the device that computes, chosen by when they are wanted next.
//!
//! # Rounds
//!
//! Training goes in rounds: a batch, and the rows that it reads, each once. Which rows those are is known some rounds
//! ahead, since a sample is a function of the graph and the seeds, and a replay of old events is planned. So rounds are
//! announced in their order, and each is then taken in two steps:
//!
//! ```text
//! announce(rows of round n + W)      as soon as it is known
//! prepare                            round n comes next: bring in what it will miss
//! take                               all rows of round n, from the cache or from where they are kept
//! ```
//!
//! **Reuse**: what is in the cache stays there, across rounds and epochs. A row is given up only for one that is wanted
//! sooner, as far as rounds are known (L. A. Belady, A study of replacement algorithms for a virtual-storage computer,
//! 1966; a row that is wanted later than all others does not get in at all, it bypasses the cache). Among rows that no
//! known round wants, those that were used longest ago go first.
//!
//! **Restore**: before a round comes, what it will miss is brought in, as far as there are slots that hold nothing or
//! whose row no known round wants. A restored row costs its copy like a missed one, but nobody waits for it.
//!
//! # What is never wrong
//!
//! A row that is taken has the bytes of its source, or of the last [`write`](RowCache::write) of it. Who changes a row
//! in its source says so, by [`write`](RowCache::write) or [`invalidate`](RowCache::invalidate), before the next step.
//! That a slot is never taken for that of the row before is held by the table's layout ([`table`]). When the source
//! fails, the step fails with its error and nothing was changed; it can be tried again.
//!
//! The same rounds give the same slots, at any number of threads: there is no randomness and no clock. A step costs
//! time in proportion to the rows of its round, whatever the number of slots.
//!
//! Rows are in host memory, as they are where the CPU is the device; [`GpuRows`] has them on a GPU, where they
//! are read in place. Knows nothing of what an id stands for.

mod buckets;
mod directory;
mod gpu;
mod order;
mod plan;
mod ranks;
mod table;
mod window;

use crate::device::{Device, DeviceBuffer};
pub use directory::{CacheCounts, CacheDirectory, Found, Placed};
pub use gpu::{GpuRowCounts, GpuRows};
pub use plan::CachePlan;

/// Rows by id, in slots.
pub struct RowCache {
    plan: CachePlan,
    directory: CacheDirectory,
    values: DeviceBuffer<f32>,
    found: Found,
    placed: Vec<Placed>,
    /// Rows that are on their way from the source.
    asked: Vec<u64>,
    fetched: Vec<f32>,
}

impl RowCache {
    /// An empty cache that knows at most `look_ahead` rounds beyond the current one.
    ///
    /// # Panics
    /// When the plan has more than 2^30 slots, or there are more than 2^20 rounds.
    #[must_use]
    pub fn new(plan: CachePlan, look_ahead: u32) -> Self {
        Self {
            plan,
            directory: CacheDirectory::new(plan.slots, look_ahead),
            values: DeviceBuffer::zeros(&Device::Cpu, plan.slots as usize * plan.stride()),
            found: Found::default(),
            placed: Vec::new(),
            asked: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// The shape, and what it costs.
    #[must_use]
    pub fn plan(&self) -> CachePlan {
        self.plan
    }

    /// Which rows are where.
    #[must_use]
    pub fn directory(&self) -> &CacheDirectory {
        &self.directory
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> CacheCounts {
        self.directory.counts()
    }

    /// How many more rounds may be announced.
    #[must_use]
    pub fn room(&self) -> usize {
        self.directory.room()
    }

    /// Bytes of host memory beside the plan's: known rounds, the order of slots, rows on their way.
    #[must_use]
    pub fn host_bytes(&self) -> usize {
        let copies = self.fetched.capacity() * size_of::<f32>() + self.asked.capacity() * size_of::<u64>();
        self.directory.bytes() + copies
    }

    /// Says which rows the round after all those announced needs, each once.
    ///
    /// # Panics
    /// When there is no [`room`](Self::room).
    pub fn announce(&mut self, ids: &[u64]) {
        self.directory.announce(ids);
    }

    /// The rows of the current round: the earliest one announced that was not taken.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        self.directory.ids()
    }

    /// Brings in what the current round will miss, as far as there is room for it that no known round wants. `source`
    /// copies the rows of ids into its second argument, shape `[ids, dimension]`. Returns how many.
    ///
    /// # Errors
    /// What `source` returns; nothing was changed.
    pub fn prepare<E>(
        &mut self,
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.directory.look(&mut self.found);
        let rows = self.directory.restorable(&self.found);
        if rows == 0 {
            return Ok(0);
        }
        self.fetch(rows, source)?;
        let first: Vec<u32> = self.found.misses()[..rows].to_vec();
        self.directory.restore(&mut self.found, rows, &mut self.placed);
        let dimension = self.plan.dimension;
        let mut rows = first.iter().zip(self.fetched.chunks_exact(dimension.max(1)));
        for placed in &self.placed {
            // Both are in the order of the round.
            if let Some((_, row)) = rows.find(|(place, _)| **place == placed.row) {
                slot_mut(&mut self.values, self.plan, placed.slot).copy_from_slice(row);
            }
        }
        Ok(self.placed.len())
    }

    /// Copies all rows of the current round into `out`, shape `[ids, dimension]`, and goes on to the next.
    /// `source` is as in [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// What `source` returns; the round is still the current one and `out` holds nothing of use.
    ///
    /// # Panics
    /// When `out` does not hold as many values.
    pub fn take<E>(
        &mut self,
        out: &mut [f32],
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let dimension = self.plan.dimension;
        assert_eq!(out.len(), self.ids().len() * dimension, "length of the rows of the round");
        self.directory.look(&mut self.found);
        if dimension > 0 {
            let misses = self.found.misses().len();
            if misses > 0 {
                self.fetch(misses, source)?;
            }
            let mut fetched = self.fetched.chunks_exact(dimension);
            for (row, &slot) in out.chunks_exact_mut(dimension).zip(self.found.slots()) {
                let from = match slot {
                    Found::MISS => fetched.next(),
                    slot => Some(self::slot(&self.values, self.plan, slot)),
                };
                if let Some(from) = from {
                    row.copy_from_slice(from);
                }
            }
        }
        self.directory.turn(&self.found, &mut self.placed);
        for &Placed { row, slot } in &self.placed {
            let first = row as usize * dimension;
            slot_mut(&mut self.values, self.plan, slot).copy_from_slice(&out[first..first + dimension]);
        }
        Ok(())
    }

    /// The row of `id` has changed in its source, to `row`: if it is in the cache, it is changed there too.
    ///
    /// # Panics
    /// When `row` has not the plan's dimension.
    pub fn write(&mut self, id: u64, row: &[f32]) {
        assert_eq!(row.len(), self.plan.dimension, "length of a row");
        if let Some(slot) = self.directory.slot_of(id) {
            slot_mut(&mut self.values, self.plan, slot).copy_from_slice(row);
        }
    }

    /// The row of `id` has changed in its source: if it is in the cache, it is given up. Returns whether it was there.
    pub fn invalidate(&mut self, id: u64) -> bool {
        self.directory.invalidate(id)
    }

    /// Gives up every row. Known rounds stay known.
    pub fn clear(&mut self) {
        self.directory.clear();
    }

    /// Fetches the first `rows` misses of the current round.
    fn fetch<E>(
        &mut self,
        rows: usize,
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ids = self.directory.ids();
        self.asked.clear();
        self.asked.extend(self.found.misses()[..rows].iter().map(|&row| ids[row as usize]));
        self.fetched.resize(rows * self.plan.dimension, 0.0);
        source(&self.asked, &mut self.fetched)
    }
}

/// The row in `slot`.
fn slot(values: &DeviceBuffer<f32>, plan: CachePlan, slot: u32) -> &[f32] {
    let first = slot as usize * plan.stride();
    &values.as_slice()[first..first + plan.dimension]
}

/// The row in `slot`, to be written.
fn slot_mut(values: &mut DeviceBuffer<f32>, plan: CachePlan, slot: u32) -> &mut [f32] {
    let first = slot as usize * plan.stride();
    &mut values.as_mut_slice()[first..first + plan.dimension]
}

#[cfg(test)]
mod tests;
