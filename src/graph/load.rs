//! Loads from disk, many chunks at a time, what the writer is about to change and samplers are about to read. Without a
//! budget it does nothing.

use std::ops::Range;

use super::block::TemporalBlock;
use super::entry::Record;
use super::fault::Missing;
use super::plan::BatchPlan;
use super::slab::Slab;
use super::spill::SpillError;
use super::store::{GraphStore, Shard};
use super::view::GraphReader;
use crate::event::{EdgeBatch, EventTime, NodeId};

impl GraphStore {
    /// Loads every chunk that filling in a plan will change: the last block of each node, and the blocks
    /// that late records belong to.
    pub(super) fn load_for(
        &self,
        plan: &BatchPlan,
        batch: &EdgeBatch,
        records: &mut Vec<Record>,
    ) -> Result<(), SpillError> {
        if self.spill.is_none() {
            return Ok(());
        }
        for (shard, words) in plan.shards() {
            let shard = &*self.shards[shard].read();
            let Shard { lists, slab, .. } = shard;
            let mut wanted = Vec::new();
            plan.for_each_node(batch, words, records, |index, _| {
                wanted.extend(shard.blocks(index).last().map(|block| block.chunk(slab)));
            });
            slab.load(std::mem::take(&mut wanted))?;
            plan.for_each_node(batch, words, records, |index, records| {
                let Some(list) = lists.get(index) else { return };
                let Some(last) = list.last(slab) else { return };
                let late = records.iter().take_while(|record| record.key() < last.key());
                wanted.extend(late.map(|record| list.blocks()[list.place_of(record.time)].chunk(slab)));
            });
            slab.load(wanted)?;
        }
        Ok(())
    }
}

impl GraphReader<'_> {
    /// Announces that the newest edges of `nodes` in ranges of times will be read, `most` each: what that needs from
    /// disk is read in one go. The guess may be wrong in either direction; that costs only time.
    pub fn expect_newest(
        &self,
        nodes: &[NodeId],
        times: impl Iterator<Item = Range<EventTime>>,
        most: usize,
    ) {
        let bound = self.bound();
        self.expect(nodes, times, |blocks, slab, wanted| {
            let mut left = most;
            let seen = blocks.iter().rev().filter(|block| block.edges().0 < bound);
            for (i, block) in seen.enumerate() {
                wanted.push(block.chunk(slab));
                // The boundary cuts the newest block somewhere, and no other.
                left = left.saturating_sub(if i == 0 { block.len() / 2 } else { block.len() });
                if left == 0 {
                    break;
                }
            }
        });
    }

    /// Announces that edges of `nodes` in ranges of times will be counted: the first half of a uniform sample.
    pub fn expect_counts(&self, nodes: &[NodeId], times: impl Iterator<Item = Range<EventTime>>) {
        self.expect(nodes, times, |blocks, slab, wanted| {
            wanted.extend(blocks.last().map(|block| block.chunk(slab)));
        });
    }

    /// Loads what `choose` selects of each node's blocks in the range of times beside it.
    fn expect(
        &self,
        nodes: &[NodeId],
        times: impl Iterator<Item = Range<EventTime>>,
        choose: impl Fn(&[TemporalBlock], &Slab, &mut Vec<usize>),
    ) {
        let Some(spill) = self.spill() else { return };
        let mut wanted: Vec<Vec<usize>> = vec![Vec::new(); self.shards().len()];
        for (&node, times) in nodes.iter().zip(times) {
            let (number, index) = self.locate(node);
            let Some(shard) = &self.shards()[number] else { continue };
            let blocks = shard.blocks(index);
            let Range { start: from, end: before } = self.seen(times);
            let end = blocks.partition_point(|block| block.start < before);
            // The range begins inside the last block that begins before it.
            let begin = blocks[..end].partition_point(|block| block.start < from).saturating_sub(1);
            choose(&blocks[begin..end], &shard.slab, &mut wanted[number]);
        }
        let mut missing = Missing::default();
        for (shard, wanted) in self.shards().iter().zip(&mut wanted) {
            if let Some(shard) = shard {
                shard.slab.missing(wanted, &mut missing);
            }
        }
        self.note(missing.load(spill));
    }
}
