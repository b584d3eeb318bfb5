//! Letting go of what is old, and leaving no trace of what was deleted.
//!
//! Old edges go in whole blocks: a block whose every entry is before a time is released unread, because the block
//! behind it tells where it ends; only a list's last block may have to be looked at. What a block holds besides
//! stays, so [`GraphStore::release_before`] promises what is kept, not what goes: who wants a sharp edge asks with a
//! time window.

use super::fault::{Entries, Fault};
use super::list::AdjacencyList;
use super::spill::SpillError;
use super::store::{GraphStore, Shard};
use crate::event::EventTime;

impl GraphStore {
    /// Releases edges before `time`, all that stand in blocks without later ones, and says how many directed
    /// entries went. Edges at `time` and later are not touched. Visits every node.
    ///
    /// # Errors
    /// Entries that have to be looked at are on disk and cannot be read; what went before is gone.
    pub fn release_before(&self, time: EventTime) -> Result<u64, SpillError> {
        let _writer = self.writer.lock();
        let mut hand = self.hand.lock();
        let (newest, mut released) = (self.applied().0, 0);
        for number in 0..self.shards.len() {
            let old = self.shards[number].read().old_blocks(time.0)?;
            if old.is_empty() {
                continue;
            }
            let (mut shard, mut here) = (self.shards[number].write(), 0);
            for (index, blocks) in old {
                here += shard.change(index, |list, slab| list.drop_front(slab, blocks, newest));
            }
            shard.slab.give_back();
            drop(shard);
            released += here;
            self.summary.write().expired_entries += here;
            self.compact(number);
            if let Some(spill) = &self.spill {
                self.count_tables();
                self.turn(spill, &mut hand);
            }
        }
        Ok(released)
    }

    /// Moves everything that lives to fresh memory and overwrites what the disk held before, so that deleted
    /// edges are nowhere any more. Readers go on meanwhile.
    ///
    /// # Errors
    /// The disk fails: traces may be left.
    pub fn scrub(&self) -> Result<(), SpillError> {
        (0..=self.shards.len()).try_for_each(|part| self.scrub_part(part).map(|_| ()))
    }

    /// Does part `part` of what [`scrub`](Self::scrub) does, and says whether there are more. What was deleted before
    /// part 0 is nowhere after the last; batches may be applied between.
    ///
    /// # Errors
    /// As [`scrub`](Self::scrub); the part may be tried again.
    pub fn scrub_part(&self, part: usize) -> Result<bool, SpillError> {
        let _writer = self.writer.lock();
        let mut hand = self.hand.lock();
        let Some(shard) = self.shards.get(part) else {
            self.spill.as_ref().map_or(Ok(()), |spill| spill.wipe_free())?;
            return Ok(false);
        };
        let copied = shard.read().copied(self.growth.largest)?;
        shard.write().change_over(copied);
        if let Some(spill) = &self.spill {
            self.turn(spill, &mut hand);
        }
        Ok(true)
    }
}

impl Shard {
    /// The lists with blocks that hold nothing at `time` or later, and how many those are.
    fn old_blocks(&self, time: i64) -> Result<Vec<(usize, usize)>, SpillError> {
        let begins_before = |list: &AdjacencyList| list.blocks().partition_point(|block| block.start < time);
        // Every block but the last of those that begin before `time` ends before the last begins.
        let mut old: Vec<(usize, usize)> = Vec::new();
        let mut ends = Vec::new();
        for (index, list) in self.lists.iter().enumerate() {
            let begun = begins_before(list);
            if begun == 0 {
                continue;
            }
            old.push((index, begun - 1));
            if begun == list.blocks().len() {
                ends.push(list.blocks()[begun - 1].chunk(&self.slab));
            }
        }
        self.slab.load(ends)?;
        let fault = Fault::default();
        let entries = Entries::new(&self.slab, &fault);
        for (index, blocks) in &mut old {
            let list = &self.lists[*index];
            let ended = *blocks + 1 == list.blocks().len();
            if ended && list.last(entries).is_some_and(|last| last.time < time) {
                *blocks += 1;
            }
        }
        old.retain(|&(_, blocks)| blocks > 0);
        fault.check(old)
    }
}
