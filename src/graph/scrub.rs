//! Erases what was deleted: released slots keep their bytes until they are reused, so live entries are moved to fresh
//! memory, and free places on disk are overwritten.

use super::spill::SpillError;
use super::store::GraphStore;

impl GraphStore {
    /// Moves one shard's entries to fresh memory or, as the last part, overwrites what the disk held before; returns
    /// whether there are more parts. What was deleted before part 0 is nowhere after the last. Readers are not blocked,
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
        let copied = shard.read().copied(self.page)?;
        shard.write().swap_slab(copied);
        self.settle(&mut hand);
        Ok(true)
    }
}
