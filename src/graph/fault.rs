//! Reading entries that may be on disk.
//!
//! Readers go through [`Entries`], which loads missing chunks on access. A load that fails yields zeros, so that no
//! search needs an early exit, and leaves the error in the [`Fault`] that all of a reader's `Entries` share. Results
//! are void then, so the owner of the `Fault` returns them only through [`Fault::check`].
//!
//! One load per miss is slow where many are missing: a caller that knows its accesses in advance announces them
//! ([`Slab::load`]), and they are read in one go.

use std::cell::OnceCell;

use super::block::TemporalBlock;
use super::chunk::Chunk;
use super::entry::Entry;
use super::slab::{EntrySource, Slab};
use super::spill::{GROUP, Spill, SpillError};

/// What a failed load gives; as long as the longest slot.
static NOTHING: [Entry; 1 << 15] = [Entry { neighbor: 0, time: 0, edge: 0 }; 1 << 15];

/// The first failure of a reader.
#[derive(Default)]
pub(super) struct Fault(OnceCell<SpillError>);

impl Fault {
    /// `result`, unless a load failed on the way to it.
    pub fn check<R>(self, result: R) -> Result<R, SpillError> {
        match self.0.into_inner() {
            None => Ok(result),
            Some(error) => Err(error),
        }
    }

    /// Notes a failure.
    pub fn note(&self, failed: Result<(), SpillError>) {
        if let Err(error) = failed {
            // The first failure is returned; the others were counted where they happened.
            let _ = self.0.set(error);
        }
    }
}

/// The entries of a shard, wherever they are.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    slab: &'a Slab,
    fault: &'a Fault,
}

impl<'a> Entries<'a> {
    /// Entries of `slab`; failures go to `fault`.
    pub fn new(slab: &'a Slab, fault: &'a Fault) -> Self {
        Self { slab, fault }
    }

    /// Whether anything may be on disk.
    #[inline]
    pub fn is_spilled(self) -> bool {
        self.slab.spill.is_some()
    }

    /// The chunk that holds the entries of a block.
    pub fn chunk(self, block: &TemporalBlock) -> usize {
        block.chunk(self.slab)
    }

    /// Announces that chunks will be used: they are loaded in one go.
    pub fn expect(self, chunks: Vec<usize>) {
        self.fault.note(self.slab.load(chunks));
    }

    #[cold]
    #[inline(never)]
    fn fetch(self, slot: u32, entries: usize) -> &'a [Entry] {
        self.fault.note(self.slab.load(vec![self.slab.chunk_of(slot)]));
        match self.slab.try_get(slot, entries) {
            Some(found) => found,
            None => &NOTHING[..entries],
        }
    }
}

impl<'a> EntrySource<'a> for Entries<'a> {
    #[inline]
    fn get(self, slot: u32, entries: usize) -> &'a [Entry] {
        match self.slab.try_get(slot, entries) {
            Some(found) => found,
            None => self.fetch(slot, entries),
        }
    }
}

/// Chunks to be loaded, of any shards, in one go.
#[derive(Default)]
pub(super) struct Missing<'a> {
    chunks: Vec<&'a Chunk>,
    stored: Vec<(u32, u32)>,
}

impl Missing<'_> {
    /// Reads them, [`GROUP`] at a time.
    pub fn load(&self, spill: &Spill) -> Result<(), SpillError> {
        for (chunks, stored) in self.chunks.chunks(GROUP).zip(self.stored.chunks(GROUP)) {
            spill.read(stored, |index, entries| {
                // Another reader may have been faster.
                if chunks[index].load(entries) {
                    spill.entered(1);
                }
            })?;
        }
        Ok(())
    }
}

impl Slab {
    /// Marks chunks as used, and adds those that are not in memory to `missing`.
    pub fn missing<'a>(&'a self, chunks: &mut Vec<usize>, missing: &mut Missing<'a>) {
        chunks.sort_unstable();
        chunks.dedup();
        for &index in chunks.iter() {
            let chunk = &self.chunks[index];
            chunk.touch();
            if let Some(place) = chunk.stored().filter(|_| !chunk.is_resident()) {
                missing.chunks.push(chunk);
                missing.stored.push(place);
            }
        }
    }

    /// Loads chunks into memory, many at a time, and marks them as used. Those that are there already and repeated ones
    /// cost nothing.
    ///
    /// # Errors
    /// The disk failed; some may be in memory.
    pub fn load(&self, mut chunks: Vec<usize>) -> Result<(), SpillError> {
        let Some(spill) = &self.spill else { return Ok(()) };
        let mut missing = Missing::default();
        self.missing(&mut chunks, &mut missing);
        missing.load(spill)
    }

    /// As [`load`](Self::load), for a single pass over them: they are not marked as used. Returns which were loaded.
    pub fn load_unmarked(&self, chunks: impl Iterator<Item = usize>) -> Result<Vec<usize>, SpillError> {
        let away: Vec<usize> = chunks.filter(|&index| !self.chunks[index].is_resident()).collect();
        self.load(away.clone())?;
        away.iter().for_each(|&index| _ = self.chunks[index].take_touched());
        Ok(away)
    }
}
