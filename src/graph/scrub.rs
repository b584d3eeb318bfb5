//! Erases what was deleted. A released slot keeps its bytes until it is reused, so every chunk in which a slot was
//! released since it was last scrubbed is *stained*. Scrubbing overwrites what is in no slot in use of these chunks,
//! and at the end the places on disk that hold nothing in use.
//!
//! Other chunks are not touched, and of those on disk [`GROUP`] at a time are in memory.

use super::spill::{GROUP, SpillError};
use super::store::{GraphStore, Shard};

impl GraphStore {
    /// Overwrites what was released in one shard or, as the last part, on disk; returns whether there are more parts.
    /// What was deleted before part 0 is nowhere after the last. Readers are blocked for [`GROUP`] chunks at a time,
    /// and batches may be applied between parts.
    ///
    /// # Errors
    /// The disk fails: traces may be left. The part may be tried again.
    pub fn scrub_part(&self, part: usize) -> Result<bool, SpillError> {
        let _writer = self.writer.lock();
        let mut hand = self.hand.lock();
        let Some(shard) = self.shards.get(part) else {
            self.spill.as_ref().map_or(Ok(()), |spill| spill.wipe_free())?;
            return Ok(false);
        };
        let (stained, used) = {
            let shard = shard.read();
            let stained = shard.stained();
            let used = shard.used_in(&stained);
            (stained, used)
        };
        for group in stained.chunks(GROUP) {
            shard.read().slab.load(group.to_vec())?;
            shard.write().slab.wipe(group, &used);
            self.settle(&mut hand);
        }
        Ok(true)
    }
}

/// A range of the arena: where it begins, and how many units.
pub(super) type Span = (u32, u32);

impl Shard {
    /// The chunks that may hold what was deleted, ascending.
    fn stained(&self) -> Vec<usize> {
        let chunks = self.slab.chunks.iter().enumerate();
        chunks.filter(|(_, chunk)| chunk.stained && !chunk.is_vacant()).map(|(index, _)| index).collect()
    }

    /// What is in use of `chunks`, ascending.
    fn used_in(&self, chunks: &[usize]) -> Vec<Span> {
        let blocks = self.lists.iter().flat_map(|list| list.blocks());
        let inside = blocks.filter(|block| chunks.binary_search(&block.chunk(&self.slab)).is_ok());
        let mut used: Vec<Span> = inside.map(|block| block.span()).collect();
        used.sort_unstable();
        used
    }
}
