//! Leaving no trace of what was deleted: released slots keep their bytes until somebody else writes there, so what
//! lives is moved away from them, and free places on disk are overwritten.

use super::spill::SpillError;
use super::store::GraphStore;

impl GraphStore {
    /// Moves one shard's entries to fresh memory or, as the last part, overwrites what the disk held before; says
    /// whether there are more parts. What was deleted before part 0 is nowhere after the last. Readers go on
    /// meanwhile, and batches may be applied between.
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
