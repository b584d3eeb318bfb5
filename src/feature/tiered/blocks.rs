//! The writer's operations on the cache, one block at a time: hold its units, take their image, and afterwards record
//! that the block is on disk, or that it is not.
//!
//! A block is overwritten in place, so while it is being written the disk may hold anything. Until the write has
//! succeeded nothing of the block is dropped: its units in memory stay, and those that were only on disk are in the
//! image that is written and move into memory if the write fails.

use super::unit_cache::UnitCache;

impl UnitCache {
    /// The blocks that have waited longest, `count` at most, in order, each once.
    pub fn next_blocks(&mut self, count: usize) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.queue.drain(..count.min(self.queue.len())).collect();
        blocks.sort_unstable();
        blocks.dedup();
        if self.queue.is_empty() {
            // After a burst the queue frees its memory.
            self.queue.shrink_to(1024);
        }
        blocks
    }

    /// Releases the blocks before `end` and returns the first block that had not been released before. Their checksums
    /// are removed now; their units when they are cold, or when the writer reaches them.
    pub fn release_below(&mut self, end: u64) -> u64 {
        self.sums.forget_below(end);
        let first = self.first;
        self.first = first.max(end);
        first
    }

    /// Releases the units of a released block without writing them.
    pub fn discard(&mut self, block: u64) {
        for unit in self.shape.units_of(block) {
            let Some(slot) = self.find(unit) else { continue };
            let slot = self.slot_mut(slot);
            slot.writing = false;
            let was_dirty = std::mem::take(&mut slot.dirty);
            self.dirty -= usize::from(was_dirty);
        }
    }

    /// Whether a unit of `block` holds what the disk does not.
    pub fn is_dirty(&self, block: u64) -> bool {
        let mut slots = self.shape.units_of(block).filter_map(|unit| self.find(unit));
        slots.any(|slot| self.slot(slot).dirty)
    }

    /// Keeps the units of `block` in memory until it is settled. Returns the checksum of what has to be read first,
    /// where the block is on disk and memory does not hold all of it.
    pub fn hold(&mut self, block: u64) -> Option<u32> {
        let mut whole = true;
        for unit in self.shape.units_of(block) {
            match self.find(unit) {
                Some(slot) => {
                    self.slot_mut(slot).writing = true;
                    whole &= self.is_whole(slot);
                }
                None => whole = false,
            }
        }
        self.sums.get(block).filter(|_| !whole)
    }

    /// Copies what memory holds of `block` into its `image`. From here on a change makes a unit dirty again.
    pub fn copy_into(&mut self, block: u64, image: &mut [u8]) {
        let (shape, dimension) = (self.shape, self.shape.dimension);
        for unit in shape.units_of(block) {
            let Some(slot) = self.find(unit) else { continue };
            let (mask, values) = (self.mask(slot), self.values(slot));
            let target = shape.unit_in_mut(unit, image);
            let rows = target.chunks_exact_mut(dimension).zip(values.chunks_exact(dimension));
            for (_, (target, row)) in rows.enumerate().filter(|(row, _)| mask & (1 << row) != 0) {
                target.copy_from_slice(row);
            }
            let slot = self.slot_mut(slot);
            let was_dirty = std::mem::take(&mut slot.dirty);
            slot.writing = true;
            self.dirty -= usize::from(was_dirty);
        }
    }

    /// `image`, with checksum `sum`, is on disk.
    pub fn written(&mut self, block: u64, sum: u32, image: &[u8]) {
        if block < self.first {
            return self.discard(block);
        }
        self.sums.set(block, sum);
        for unit in self.shape.units_of(block) {
            let Some(slot) = self.find(unit) else { continue };
            self.slot_mut(slot).writing = false;
            if !self.is_whole(slot) {
                self.complete(slot, self.shape.unit_in(unit, image));
            }
        }
    }

    /// `image` could not be written, and the disk may hold anything.
    pub fn not_written(&mut self, block: u64, image: &[u8]) {
        if block < self.first {
            return self.discard(block);
        }
        let on_disk = self.sums.get(block).is_some();
        for unit in self.shape.units_of(block) {
            let values = self.shape.unit_in(unit, image);
            match self.find(unit) {
                Some(slot) => {
                    self.slot_mut(slot).writing = false;
                    self.complete(slot, values);
                    self.mark_dirty(slot);
                }
                None if on_disk => self.rescue(unit, values),
                // Never set: the block has no checksum, so it is not read from disk.
                None => {}
            }
        }
        self.queue_block(block);
    }

    /// The block cannot be written now, and was not touched.
    pub fn unhold(&mut self, block: u64) {
        for unit in self.shape.units_of(block) {
            if let Some(slot) = self.find(unit) {
                self.slot_mut(slot).writing = false;
            }
        }
        self.queue_block(block);
    }

    /// Frees segments beyond the budget, as far as their units are on disk.
    pub fn trim(&mut self) {
        self.allowed = self.plan.segments(self.shape, self.sums.bytes());
        while self.segments.len() > self.allowed {
            let begin = (self.segments.len() - 1) * self.plan.segment_slots;
            let mut empty = true;
            for slot in begin..begin + self.plan.segment_slots {
                let Ok(number) = u32::try_from(slot) else { return };
                let slot = self.slot_mut(number);
                if slot.is_empty() {
                } else if slot.is_free_to_go() {
                    self.evict(number);
                } else {
                    empty = false;
                }
            }
            if !empty {
                return;
            }
            self.segments.pop();
            self.spare.retain(|slot| (*slot as usize) < begin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Plan, Shape};
    use super::super::unit_cache::Patched;
    use super::*;

    /// A cache whose block 0 is on disk and in memory, clean, and then changed in one unit.
    fn cache() -> UnitCache {
        let shape = Shape::new(172);
        let mut cache = UnitCache::new(shape, Plan::new(shape, 0, 4096));
        let mut image = vec![0; shape.block_bytes()];
        for unit in shape.units_of(0) {
            assert!(cache.patch(unit, 0, &[unit as f32; 172], false) != Patched::NoRoom);
        }
        assert_eq!((cache.next_blocks(9), cache.hold(0)), (vec![0], None));
        cache.copy_into(0, &mut image);
        cache.written(0, 1, &image);
        assert!(!cache.is_dirty(0));
        cache.patch(2, 0, &[9.0; 172], false);
        cache
    }

    /// Reads units from elsewhere until the hand has visited all slots.
    fn read_many(cache: &mut UnitCache) {
        for unit in 1000..1000 + 8 * cache.capacity() as u64 {
            cache.admit(unit, &[0.0; 172]);
        }
    }

    #[test]
    fn units_of_a_block_that_is_held_stay_until_it_is_settled() {
        let mut cache = cache();
        assert_eq!(cache.hold(0), None, "all of it is in memory");
        read_many(&mut cache);
        let mut image = vec![0; cache.shape.block_bytes()];
        cache.copy_into(0, &mut image);
        for unit in cache.shape.units_of(0) {
            let expected = if unit == 2 { 9.0 } else { unit as f32 };
            assert_eq!(cache.shape.unit_in(unit, &image), [expected; 172]);
        }
        read_many(&mut cache);
        assert!(cache.shape.units_of(0).all(|unit| cache.find(unit).is_some()));
        cache.written(0, 2, &image);
        read_many(&mut cache);
        assert!(cache.shape.units_of(0).all(|unit| cache.find(unit).is_none()));
    }

    #[test]
    fn what_only_the_image_has_moves_into_memory_when_it_cannot_be_written() {
        let mut cache = cache();
        read_many(&mut cache);
        assert_eq!((cache.find(0), cache.hold(0)), (None, Some(1)), "unit 0 is on disk only");
        let mut image = vec![0; cache.shape.block_bytes()];
        cache.shape.unit_in_mut(0, &mut image).fill(5.0);
        cache.copy_into(0, &mut image);
        cache.not_written(0, &image);
        let slot = cache.find(0).unwrap();
        assert_eq!((cache.values(slot), cache.slot(slot).dirty), (&[5.0; 172][..], true));
        assert!(cache.next_blocks(9).contains(&0), "and is tried again");
    }
}
