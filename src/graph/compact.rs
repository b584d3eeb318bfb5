//! Compaction: moves live entries next to each other, so that released memory can be freed.
//!
//! Empty chunks are freed first. If too many free slots are left, all blocks of the shard are copied to a new slab
//! under the read lock, beside readers, and the shard switches to it under the write lock. Only the graph's writer
//! calls this, so nothing changes in between.
//!
//! Where entries may be on disk, blocks are copied in order of time: entries that are read or released at the same time
//! are then next to each other.

use super::fault::{Entries, Fault};
use super::slab::{CHUNK_ENTRIES, Slab};
use super::spill::SpillError;
use super::store::{GraphStore, Shard};

impl GraphStore {
    /// Compacts a shard if it holds too much unused memory. After a disk failure it is tried again later.
    pub(super) fn compact(&self, shard: usize) {
        if !self.shards[shard].read().is_loose()
            || self.spill.as_ref().is_some_and(|spill| spill.is_failing())
        {
            return;
        }
        self.shards[shard].write().slab.give_back();
        let copied = {
            let shard = self.shards[shard].read();
            if shard.is_loose() { shard.copied(self.page).ok() } else { None }
        };
        if let Some(copied) = copied {
            self.shards[shard].write().swap_slab(copied);
        }
    }
}

impl Shard {
    /// Whether a chunk and a twelfth of the used memory could be saved; half of it where that requires reading
    /// everything from disk and writing it again.
    fn is_loose(&self) -> bool {
        let (released, total) = self.slab.released_and_total();
        let share = if self.slab.spill.is_some() { 2 } else { 12 };
        released > CHUNK_ENTRIES.max((total - released) / share)
    }

    /// All entries in a new slab, and the slot of each block there, in the order of lists and blocks.
    pub fn copied(&self, page: usize) -> Result<(Slab, Vec<u32>), SpillError> {
        let blocks: Vec<_> = self.lists.iter().flat_map(|list| list.blocks()).collect();
        let mut order: Vec<u32> = (0..).take(blocks.len()).collect();
        if self.slab.spill.is_some() {
            order.sort_by_key(|&index| blocks[index as usize].start);
            let chunks: Vec<usize> = blocks.iter().map(|block| block.chunk(&self.slab)).collect();
            self.slab.load(chunks)?;
        }
        let fault = Fault::default();
        let entries = Entries::new(&self.slab, &fault);
        let mut slab = Slab::new(page, self.slab.spill.clone());
        let mut slots = vec![0; blocks.len()];
        for index in order {
            slots[index as usize] = blocks[index as usize].copy(entries, &mut slab);
        }
        fault.check((slab, slots))
    }

    /// Replaces its slab and slots by what [`copied`](Self::copied) made.
    pub fn swap_slab(&mut self, (slab, slots): (Slab, Vec<u32>)) {
        let blocks = self.lists.iter_mut().flat_map(|list| list.blocks_mut());
        blocks.zip(slots).for_each(|(block, slot)| block.move_to(slot));
        self.slab = slab;
    }
}
