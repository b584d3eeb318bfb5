//! Finding units: in memory, or on disk, or with somebody who reads them at this moment. The one way by which
//! rows come from disk, for gathers and for announcements.

use std::time::{Duration, Instant};

use super::RowError;
use super::busy::{Claim, Claims};
use super::cache::Cache;
use super::shared::{Buffer, Shared};
use super::stats::add;
use super::sums::checksum;
use crate::device::disk::Extent;

/// Rows looked for in one hold of the lock.
const ROWS_PER_HOLD: usize = 64;

/// Who asks, and what becomes of the answers. Questions are numbered from 0.
pub(super) trait Asker {
    /// The unit of question `i`, and the rows of it that matter.
    fn wants(&self, i: usize) -> (u64, u128);
    /// The unit is in memory. The lock is held: no waiting.
    fn found(&mut self, i: usize, cache: &Cache, slot: u32);
    /// The unit was never set.
    fn unset(&mut self, i: usize);
    /// The unit was read: its values.
    fn read(&mut self, i: usize, values: &[f32]);
    /// What was read is in memory from now on. The lock is held: no waiting.
    fn kept(&mut self, _i: usize, _cache: &Cache, _slot: u32) {}
}

/// How it went.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fetched {
    /// Questions that memory could not answer at first sight.
    pub missed: usize,
    /// How long their answers took.
    pub waited: Duration,
}

/// A question whose answer is on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    block: u64,
    unit: u64,
    sum: u32,
    question: usize,
}

impl Shared {
    /// Answers questions `0..count`.
    pub fn fetch(&self, count: usize, asker: &mut impl Asker) -> Result<Fetched, RowError> {
        let mut claims = self.busy.claims();
        let (mut ours, mut others) = self.look(0..count, &mut claims, asker);
        let missed = ours.len() + others.len();
        if missed == 0 {
            return Ok(Fetched::default());
        }
        let started = Instant::now();
        let result = loop {
            let read = self.read_all(&mut ours, &claims, asker);
            drop(claims);
            if read.is_err() || others.is_empty() {
                break read;
            }
            self.busy.wait_for_any(others.iter().map(|missing| missing.block));
            claims = self.busy.claims();
            let questions = others.iter().map(|missing| missing.question);
            (ours, others) = self.look(questions, &mut claims, asker);
        };
        result.map(|()| Fetched { missed, waited: started.elapsed() })
    }

    /// Answers what memory can answer. The rest is on disk: in blocks that are claimed now, and in others'.
    fn look(
        &self,
        mut questions: impl Iterator<Item = usize>,
        claims: &mut Claims<'_>,
        asker: &mut impl Asker,
    ) -> (Vec<Missing>, Vec<Missing>) {
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(ROWS_PER_HOLD);
        loop {
            let cache = self.cache.read();
            // All are looked up before the first is used, so that their rows come from memory side by side.
            places.clear();
            for question in questions.by_ref().take(ROWS_PER_HOLD) {
                let (unit, rows) = asker.wants(question);
                let slot = cache.find(unit).filter(|slot| cache.mask(*slot) & rows == rows);
                if let Some(slot) = slot {
                    cache.prefetch(slot, rows);
                }
                places.push((question, unit, slot));
            }
            if places.is_empty() {
                return (ours, others);
            }
            for &(question, unit, slot) in &places {
                if let Some(slot) = slot {
                    asker.found(question, &cache, slot);
                    continue;
                }
                let block = self.shape.block_of(unit);
                let Some(sum) = cache.sums.get(block) else {
                    asker.unset(question);
                    continue;
                };
                let missing = Missing { block, unit, sum, question };
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
        asker: &mut impl Asker,
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
            self.hand_out(batch, &buffer, asker);
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

    /// Answers the questions of one batch and keeps its units in memory, as far as there is room.
    fn hand_out(&self, batch: &[Missing], buffer: &Buffer<'_>, asker: &mut impl Asker) {
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
            asker.read(missing.question, values);
            units.push((*missing, values));
        }
        for units in units.chunks(ROWS_PER_HOLD) {
            let mut cache = self.cache.write();
            for (missing, values) in units {
                if let Some(slot) = cache.admit(missing.unit, values) {
                    asker.kept(missing.question, &cache, slot);
                }
            }
        }
    }
}
