//! Eviction: keeps entries within their budget. A clock hand passes over the chunks of all shards, and those that were
//! not used since it last passed leave memory.
//!
//! One thread at a time moves the hand. Under a shard's read lock it chooses chunks and writes the dirty ones, beside
//! other readers; then, briefly under the write lock, it drops those that were not written to in between. The writer of
//! the graph holds the hand while it applies a batch, so that what it loaded stays until it has changed it.
//!
//! Deadlock is impossible: the lock order is writer, hand, one shard; readers hold shards and only try to lock the hand
//! when they hold none.

use parking_lot::MutexGuard;

use super::entry::Entry;
use super::spill::{GROUP, Spill};
use super::store::{GraphStore, Shard};

/// Where the clock hand is.
#[derive(Default)]
pub(super) struct Hand {
    shard: usize,
    chunk: usize,
}

impl GraphStore {
    /// Evicts entries until the budget is met, unless another thread is doing so.
    pub(super) fn balance(&self) {
        if let Some(spill) = &self.spill
            && spill.is_due()
            && let Some(mut hand) = self.hand.try_lock()
        {
            self.turn(spill, &mut hand);
        }
    }

    /// After a change: records what always stays in memory and enforces the budget.
    pub(super) fn settle(&self, hand: &mut MutexGuard<'_, Hand>) {
        if let Some(spill) = &self.spill {
            self.count_tables();
            self.turn(spill, hand);
        }
    }

    /// Moves the hand until the budget is met, or nothing more can be evicted.
    pub(super) fn turn(&self, spill: &Spill, hand: &mut MutexGuard<'_, Hand>) {
        if !spill.is_due() {
            return;
        }
        // Two rounds: the first clears marks, the second finds chunks that were not used meanwhile.
        let mut shards_left = 2 * self.shards.len() + 1;
        while shards_left > 0 {
            // Slightly more than needed, so that the next read does not move the hand again.
            let excess = spill.excess();
            if excess == 0 {
                spill.set_stuck(false);
                return;
            }
            let wanted = (excess + GROUP / 4).min(GROUP);
            let shard = &self.shards[hand.shard];
            let (victims, at_end) = shard.read().victims(spill, &mut hand.chunk, wanted);
            if !victims.is_empty() {
                let left = shard.write().leave(&victims);
                spill.evicted(left);
            }
            if at_end {
                hand.shard = (hand.shard + 1) % self.shards.len();
                hand.chunk = 0;
                shards_left -= 1;
            }
        }
        spill.set_stuck(true);
    }
}

impl Shard {
    /// Chunks from `next` on, `wanted` at most, that were not used since they were last visited, all stored on disk by
    /// now; and whether the shard has no further ones. Clears the marks of the chunks it passes.
    fn victims(&self, spill: &Spill, next: &mut usize, wanted: usize) -> (Vec<usize>, bool) {
        let mut victims = Vec::new();
        while *next < self.slab.chunks.len() && victims.len() < wanted {
            let chunk = &self.slab.chunks[*next];
            if chunk.is_resident() && !self.slab.is_last(*next) && !chunk.take_touched() {
                victims.push(*next);
            }
            *next += 1;
        }
        let dirty: Vec<usize> =
            victims.iter().copied().filter(|&index| !self.slab.chunks[index].is_clean()).collect();
        if !dirty.is_empty() {
            let entries = dirty.iter().map(|&index| self.slab.chunks[index].resident());
            match spill.write(entries) {
                Some(stored) => {
                    for (&index, (place, checksum)) in dirty.iter().zip(stored) {
                        if let Some(before) = self.slab.chunks[index].store(place, checksum) {
                            spill.free(before);
                        }
                    }
                }
                None => victims.retain(|&index| self.slab.chunks[index].is_clean()),
            }
        }
        (victims, *next >= self.slab.chunks.len())
    }

    /// Evicts those of `chunks` that were not used meanwhile.
    pub(super) fn evict_unmarked(&mut self, chunks: &[usize]) -> Vec<Box<[Entry]>> {
        let unasked = |&index: &usize| !self.slab.chunks[index].take_touched();
        let victims: Vec<usize> = chunks.iter().copied().filter(unasked).collect();
        self.leave(&victims)
    }

    /// Evicts those of `victims` that are unchanged since they were stored.
    fn leave(&mut self, victims: &[usize]) -> Vec<Box<[Entry]>> {
        victims.iter().filter_map(|&index| self.slab.chunks.get_mut(index)?.leave()).collect()
    }
}
