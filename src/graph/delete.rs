//! Deletions, in time proportional to the edges that go.
//!
//! The list of one end is read from its newest entries to its oldest, a piece of some thousand at a time. Of each piece
//! the entries at the other ends are found by (time, edge id), which their lists are sorted by, so no other list is
//! read as a whole; then the piece itself goes. A shard is locked for writing for one list at a time, and between two
//! pieces and within them a store with a budget makes room: of a list with millions of edges only a piece is in memory.
//!
//! A piece that cannot be read from disk ends the deletion. What was removed until then is reported, and the same
//! deletion, applied again, removes the rest.

use parking_lot::MutexGuard;

use super::entry::Record;
use super::evict::Hand;
use super::fault::{Entries, Fault};
use super::list::{AdjacencyList, Key};
use super::spill::SpillError;
use super::store::GraphStore;
use crate::event::{EdgeBatch, EdgeId, NodeId, Op};

/// Lists that are changed before room is made.
const LISTS: usize = 64;

/// Entries of a piece, unless the last block of it has more.
const PIECE: usize = 1 << 12;

impl GraphStore {
    /// Carries out the deletion at `i` and calls `removed` after every piece, with its edges that are gone.
    pub(super) fn delete(
        &self,
        batch: &EdgeBatch,
        i: usize,
        hand: &mut MutexGuard<'_, Hand>,
        removed: &mut dyn FnMut(&[EdgeId]),
    ) -> Result<(), SpillError> {
        let (src, dst, until, newest) = (batch.src[i], batch.dst[i], batch.time[i].0, batch.id(i).0);
        if batch.op[i] == Op::DeleteNode {
            self.wake(src);
            return self.delete_from(src, newest, |_| true, hand, removed);
        }
        // From the end with fewer edges.
        let from_dst = self.degree(dst) < self.degree(src);
        let (node, other) = if from_dst { (dst, src) } else { (src, dst) };
        let is_it = |record: Record| {
            let direction = src == dst || record.is_incoming() == from_dst;
            record.neighbor() == other && direction && record.time <= until
        };
        self.delete_from(node, newest, is_it, hand, removed)
    }

    /// Removes the edges of `node` for which `is_gone` is true, at both ends. No edge id exceeds `newest`.
    fn delete_from(
        &self,
        node: NodeId,
        newest: u64,
        is_gone: impl Fn(Record) -> bool,
        hand: &mut MutexGuard<'_, Hand>,
        removed: &mut dyn FnMut(&[EdgeId]),
    ) -> Result<(), SpillError> {
        let mut end = usize::MAX;
        while end > 0 {
            let (begin, mut gone) = self.piece_before(node, end, &is_gone)?;
            end = begin;
            let keys: Vec<Key> = gone.iter().map(|record| record.key()).collect();
            gone.retain(|record| record.neighbor() != node);
            // Stable: the keys of each neighbor stay ascending.
            gone.sort_by_key(|record| record.neighbor());
            let neighbors = gone.chunk_by(|a, b| a.neighbor() == b.neighbor());
            for (number, gone) in neighbors.enumerate() {
                let keys: Vec<Key> = gone.iter().map(|record| record.key()).collect();
                self.remove(gone[0].neighbor(), newest, &keys)?;
                // Each may have brought a chunk into memory.
                if number % LISTS == LISTS - 1 {
                    self.settle(hand);
                }
            }
            self.remove(node, newest, &keys)?;
            let edges: Vec<EdgeId> = keys.iter().map(|&(_, edge)| EdgeId(edge)).collect();
            removed(&edges);
            self.settle(hand);
        }
        Ok(())
    }

    /// Some of the last blocks before block `end` of a node: where they begin, and their records that are wanted,
    /// ascending.
    fn piece_before(
        &self,
        node: NodeId,
        end: usize,
        wanted: impl Fn(Record) -> bool,
    ) -> Result<(usize, Vec<Record>), SpillError> {
        let (shard, index) = self.map.locate(node);
        let shard = self.shards[shard].read();
        let blocks = shard.blocks(index);
        let end = end.min(blocks.len());
        let (mut begin, mut entries) = (end, 0);
        while begin > 0 && entries < PIECE {
            begin -= 1;
            entries += blocks[begin].len();
        }
        let blocks = &blocks[begin..end];
        shard.slab.load(blocks.iter().map(|block| block.chunk(&shard.slab)).collect())?;
        let fault = Fault::default();
        let source = Entries::new(&shard.slab, &fault);
        let records = blocks.iter().flat_map(|block| block.records(source));
        let records = records.filter(|&record| wanted(record)).collect();
        fault.check((begin, records))
    }

    /// Removes the entries of `node` with these keys, ascending. No edge id exceeds `newest`.
    fn remove(&self, node: NodeId, newest: u64, keys: &[Key]) -> Result<(), SpillError> {
        let (number, index) = self.map.locate(node);
        let places = {
            let shard = self.shards[number].read();
            let fault = Fault::default();
            let list = shard.lists.get(index).unwrap_or(&AdjacencyList::Empty);
            let places = list.places_of(Entries::new(&shard.slab, &fault), keys);
            let places = fault.check(places)?;
            shard.slab.load(places.iter().map(|&place| list.blocks()[place].chunk(&shard.slab)).collect())?;
            places
        };
        if !places.is_empty() {
            let mut shard = self.shards[number].write();
            shard.change(index, |list, slab| list.remove(slab, (self.page, newest), keys, &places));
            drop(shard);
            self.copies.note(node, newest);
        }
        Ok(())
    }

    /// Frees what deletions left unused, one shard at a time.
    pub(super) fn compact_all(&self) {
        (0..self.shards.len()).for_each(|shard| self.compact(shard));
    }
}
