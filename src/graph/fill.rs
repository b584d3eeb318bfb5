//! How a shard applies its part of a plan.
//!
//! Appending to a node touches three places that no earlier node touched: its list, the description of its last block
//! if it has several, and the end of that block's entries. Each is found through the one before it, so all three are
//! prefetched some nodes ahead, the first earliest.

use super::entry::Record;
use super::list::AdjacencyList;
use super::plan::BatchPlan;
use super::store::Shard;
use crate::device::prefetch;
use crate::event::EdgeBatch;

/// Nodes between prefetching a place and using it to find the next one.
const STEP: usize = 4;

impl Shard {
    /// Adds the entries that `words` name to their nodes' lists.
    pub fn fill(
        &mut self,
        plan: &BatchPlan,
        batch: &EdgeBatch,
        words: &[u64],
        records: &mut Vec<Record>,
        page: usize,
    ) {
        let newest = batch.end().0;
        let [mut lists, mut blocks, mut tails] = [(); 3].map(|()| plan.nodes(words));
        lists.by_ref().take(3 * STEP).for_each(|index| self.announce(index, prefetch));
        blocks.by_ref().take(2 * STEP).for_each(|index| self.announce(index, AdjacencyList::announce_block));
        tails
            .by_ref()
            .take(STEP)
            .for_each(|index| self.announce(index, |list| list.announce_tail(&self.slab)));
        plan.for_each_node(batch, words, records, |index, records| {
            if let Some(index) = lists.next() {
                self.announce(index, prefetch);
            }
            if let Some(index) = blocks.next() {
                self.announce(index, AdjacencyList::announce_block);
            }
            if let Some(index) = tails.next() {
                self.announce(index, |list| list.announce_tail(&self.slab));
            }
            self.change(index, |list, slab| list.add(slab, records, page, newest));
        });
    }

    /// Calls `f` with a list that will be appended to soon, if the node has one.
    #[inline]
    fn announce(&self, index: usize, f: impl FnOnce(&AdjacencyList)) {
        if let Some(list) = self.lists.get(index) {
            f(list);
        }
    }
}
