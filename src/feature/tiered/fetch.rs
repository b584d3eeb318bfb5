//! Finding units: in memory, on disk, or being read by another thread. The only path by which rows come from disk, for
//! gathers and for announcements.

use std::time::{Duration, Instant};

use super::RowError;
use super::busy::{Claim, Claims};
use super::shared::{Buffer, Shared};
use super::stats::add;
use super::sums::checksum;
use super::unit_cache::UnitCache;
use crate::device::disk::Extent;

/// Rows looked up in one hold of the lock.
const ROWS_PER_HOLD: usize = 64;

/// The units that a caller needs, and what it does with each. Units are numbered from 0.
pub(super) trait UnitRequest {
    /// Unit number `i`, and the rows of it that matter.
    fn unit(&self, i: usize) -> (u64, u128);
    /// The unit is in memory. The lock is held: no waiting.
    fn found(&mut self, i: usize, cache: &UnitCache, slot: u32);
    /// The unit was never set.
    fn unset(&mut self, i: usize);
    /// The unit was read: its values.
    fn read(&mut self, i: usize, values: &[f32]);
    /// The unit that was read is in memory from now on. The lock is held: no waiting.
    fn cached(&mut self, _i: usize, _cache: &UnitCache, _slot: u32) {}
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetched {
    /// Units that were not in memory at first.
    pub missed: usize,
    /// How long they took.
    pub waited: Duration,
}

/// A unit that is on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    block: u64,
    unit: u64,
    sum: u32,
    index: usize,
}

impl Shared {
    /// Finds units `0..count` of `request`.
    pub fn fetch(&self, count: usize, request: &mut impl UnitRequest) -> Result<Fetched, RowError> {
        let mut claims = self.busy.claims();
        let (mut ours, mut others) = self.find(0..count, &mut claims, request);
        let missed = ours.len() + others.len();
        if missed == 0 {
            return Ok(Fetched::default());
        }
        let started = Instant::now();
        let result = loop {
            let read = self.read_all(&mut ours, &claims, request);
            drop(claims);
            if read.is_err() || others.is_empty() {
                break read;
            }
            self.busy.wait_for_any(others.iter().map(|missing| missing.block));
            claims = self.busy.claims();
            let indices = others.iter().map(|missing| missing.index);
            (ours, others) = self.find(indices, &mut claims, request);
        };
        result.map(|()| Fetched { missed, waited: started.elapsed() })
    }

    /// Serves the units that are in memory. The rest is on disk: in blocks that are claimed now, and in others'.
    fn find(
        &self,
        mut indices: impl Iterator<Item = usize>,
        claims: &mut Claims<'_>,
        request: &mut impl UnitRequest,
    ) -> (Vec<Missing>, Vec<Missing>) {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(ROWS_PER_HOLD);
        loop {
            let cache = self.cache.read();
            // All are looked up before the first is used, so that their memory accesses overlap.
            places.clear();
            for index in indices.by_ref().take(ROWS_PER_HOLD) {
                let (unit, rows) = request.unit(index);
                let slot = cache.find(unit).filter(|slot| cache.mask(*slot) & rows == rows);
                if let Some(slot) = slot {
                    cache.prefetch(slot, rows);
                }
                places.push((index, unit, slot));
            }
            if places.is_empty() {
                return (ours, others);
            }
            for &(index, unit, slot) in &places {
                if let Some(slot) = slot {
                    request.found(index, &cache, slot);
                    continue;
                }
                let block = self.shape.block_of(unit);
                let Some(sum) = cache.sums.get(block) else {
                    request.unset(index);
                    continue;
                };
                let missing = Missing { block, unit, sum, index };
                match claims.claim(block) {
                    Claim::New | Claim::Ours => ours.push(missing),
                    Claim::Taken => others.push(missing),
                }
            }
        }
    }

    /// Reads the blocks of `missing`, which are claimed, a batch at a time.
    fn read_all(
        &self,
        missing: &mut [Missing],
        claims: &Claims<'_>,
        request: &mut impl UnitRequest,
    ) -> Result<(), RowError> {
        missing.sort_unstable();
        let mut rest = &*missing;
        while let Some(first) = rest.first() {
            let mut blocks = vec![(first.block, first.sum)];
            let mut end = 0;
            for found in rest {
                if blocks.last() != Some(&(found.block, found.sum)) {
                    if blocks.len() == self.plan.batch_blocks {
                        break;
                    }
                    blocks.push((found.block, found.sum));
                }
                end += 1;
            }
            let (batch, after) = rest.split_at(end);
            let mut buffer = self.buffer();
            self.read_blocks(&blocks, &mut buffer)?;
            self.finish_batch(batch, &buffer, request);
            claims.release(blocks.iter().map(|(block, _)| *block));
            rest = after;
        }
        Ok(())
    }

    /// Reads `blocks` one after another into `buffer` and compares them with their checksums.
    pub fn read_blocks(&self, blocks: &[(u64, u32)], buffer: &mut Buffer<'_>) -> Result<(), RowError> {
        let extents: Vec<Extent> = blocks.iter().map(|(block, _)| self.shape.extent(*block)).collect();
        let read = self.file.read(&extents, buffer);
        read.inspect_err(|_| add(&self.counters.failures, 1))?;
        add(&self.counters.reads, blocks.len());
        add(&self.counters.read_bytes, blocks.len() * self.shape.block_bytes());
        let images = buffer.bytes().chunks_exact(self.shape.block_bytes());
        for (&(block, expected), image) in blocks.iter().zip(images) {
            let found = checksum(image);
            if found != expected {
                add(&self.counters.failures, 1);
                return Err(RowError::Damaged { offset: self.shape.extent(block).offset(), expected, found });
            }
        }
        Ok(())
    }

    /// Serves the units of one batch and caches them, as far as there is room.
    fn finish_batch(&self, batch: &[Missing], buffer: &Buffer<'_>, request: &mut impl UnitRequest) {
        let mut images = buffer.bytes().chunks_exact(self.shape.block_bytes());
        let mut at = None;
        let mut units: Vec<(Missing, &[f32])> = Vec::with_capacity(batch.len());
        for missing in batch {
            let image = match at {
                Some((block, image)) if block == missing.block => image,
                _ => images.next().unwrap_or_default(),
            };
            at = Some((missing.block, image));
            let values = self.shape.unit_in(missing.unit, image);
            request.read(missing.index, values);
            units.push((*missing, values));
        }
        for units in units.chunks(ROWS_PER_HOLD) {
            let mut cache = self.cache.write();
            for (missing, values) in units {
                if let Some(slot) = cache.admit(missing.unit, values) {
                    request.cached(missing.index, &cache, slot);
                }
            }
        }
    }
}
