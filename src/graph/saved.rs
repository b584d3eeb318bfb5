//! The graph as bytes, for a snapshot at a log position: written beside the writer of the graph, read into an empty
//! store.
//!
//! A shard is written as pieces, each a block or a part of one, that follow one another in the order of its nodes and,
//! within a node, of (time, edge id). The shard is locked for reading for some hundred kilobytes at a time, or, where
//! entries are on disk, some of their chunks, so the writer of the graph waits for little; what happens in between is
//! harmless. New edges have ids at or above the snapshot's
//! position and are left out. A list that changes halfway goes on behind the last key that was written. Edges that are
//! deleted or released meanwhile may be there under one of their ends only: released ones are in no view, and those
//! that were deleted are named to the reader, which leaves them out.
//!
//! ```text
//! start 8 | base edge 8 | node 4 | entries n 4 | reach 4 | form 1 | mixed 1 | 2 zeros
//!   form 0, 4, 5, 1 (narrow, medium, long, wide): n entries of 12 bytes, as in memory, then n low bits of 0, 2, 2 or
//!   4 bytes
//!   form 2, for what is taken from a block: n times of 8, n edges of 8, n neighbors of 4 bytes
//!   form 3: no entries; the node has been without an edge since the time `start`
//! ```
//! Pieces in the form of memory are copied where the page size is the same, and encoded again where not. Bytes are
//! checked by whoever stores them: here only lengths are.

use std::io::{self, Error, ErrorKind};

use bytemuck::{Pod, Zeroable};
use hashbrown::HashSet;

use super::account::GraphSummary;
use super::block::{MIXED, TemporalBlock};
use super::entry::{Entry, Form, Lows, Parts, Record};
use super::fault::{Entries, Fault};
use super::list::{AdjacencyList, Key, encode};
use super::slab::{EntrySource, Slab, class_of};
use super::spill::SpillError;
use super::store::{GraphStore, Shard, Summary};
use crate::event::{EdgeId, NodeId};

/// Bytes of pieces that are written under one lock, about.
const BUFFER_BYTES: usize = 512 << 10;

/// Chunks of entries that are read from disk under one lock.
const LOADED_MAX: usize = 16;

/// Forms of pieces that are a block.
const BLOCKS: [(Form, u8); 4] = [(Form::Narrow, 0), (Form::Wide, 1), (Form::Medium, 4), (Form::Long, 5)];
/// Forms of pieces that were taken from a block, and that note a node without an edge.
const RECORDS: u8 = 2;
const IDLE: u8 = 3;

/// What stands before the entries of a piece.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Head {
    start: i64,
    base_edge: u64,
    node: u32,
    entries: u32,
    reach: u32,
    form: u8,
    mixed: u8,
    zeros: [u8; 2],
}

/// Where the writing of a shard goes on.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// Index of the list in the shard.
    list: usize,
    /// The last key of it that is written.
    after: Option<Key>,
}

impl GraphStore {
    /// Number of shards, each of which is written on its own.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The counts of the store, by the thread that applies batches.
    #[must_use]
    pub fn summary(&self) -> GraphSummary {
        let summary = *self.summary.read();
        GraphSummary {
            applied: self.applied(),
            nodes: summary.nodes,
            edges: summary.edges,
            deleted_edges: summary.deleted_edges,
            late_edges: summary.late_edges,
            expired_entries: summary.expired_entries,
            released_before: self.released_before(),
            clock: summary.clock,
        }
    }

    /// Writes the entries of shard number `shard` with edge ids below `bound`: calls `out` with some hundred kilobytes
    /// at a time, each of which [`restore_pieces`](Self::restore_pieces) takes as a whole and in this order.
    ///
    /// # Errors
    /// What `out` returns, or that entries on disk cannot be read.
    pub fn write_shard(
        &self,
        shard: usize,
        bound: EdgeId,
        out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(lock) = self.shards.get(shard) else { return Ok(()) };
        // Lists that are begun from now on have later edges only.
        let lists = lock.read().lists.end();
        let (mut cursor, mut buffer) = (Cursor::default(), Vec::with_capacity(BUFFER_BYTES));
        while cursor.list < lists {
            buffer.clear();
            let (guard, fault) = (lock.read(), Fault::default());
            let name = |index| self.map.node(shard, index);
            cursor = guard.put_pieces(cursor, lists, bound.0, (&fault, &name), &mut buffer);
            drop(guard);
            fault.check(()).map_err(Error::other)?;
            self.balance();
            if !buffer.is_empty() {
                out(&buffer)?;
            }
        }
        Ok(())
    }

    /// Takes in pieces that [`write_shard`](Self::write_shard) wrote with this `bound`, but for the edges `gone`.
    /// Different shards may be restored at a time. Readers see nothing before [`restored`](Self::restored).
    ///
    /// # Errors
    /// The bytes are no pieces, the disk failed, or a shard is full.
    pub fn restore_pieces(&self, mut bytes: &[u8], bound: EdgeId, gone: &HashSet<EdgeId>) -> io::Result<()> {
        while !bytes.is_empty() {
            let (piece, rest) = Piece::parse(bytes)?;
            bytes = rest;
            let (number, index) = self.map.locate(NodeId(piece.head.node));
            let mut shard = self.shards[number].write();
            if shard.slab.room(self.shard_units_max) < 2 * u64::from(piece.head.entries) {
                return Err(Error::other(SpillError::Full(self.shards.len())));
            }
            if piece.head.form == IDLE {
                shard.set_idle(index, piece.head.start);
                continue;
            }
            let places = (self.page, bound.0.saturating_sub(1));
            shard.change(index, |list, slab| piece.add_to(list, slab, places, gone));
        }
        if self.spill.is_some() {
            self.settle(&mut self.hand.lock());
        }
        Ok(())
    }

    /// Waits for the batch that is being applied, if one is.
    pub fn wait_for_batch(&self) {
        drop(self.writer.lock());
    }

    /// Ends a restore: publishes the counts. Of the edges in `summary`, `gone` were left out.
    pub fn restored(&self, summary: &GraphSummary, gone: u64) {
        let _writer = self.writer.lock();
        let before = *self.summary.read();
        *self.summary.write() = Summary {
            nodes: summary.nodes,
            edges: summary.edges.saturating_sub(gone),
            deleted_edges: summary.deleted_edges + gone,
            late_edges: summary.late_edges,
            expired_entries: summary.expired_entries,
            clock: summary.clock.corrected(self.clock_rules),
            ..before
        };
        self.released_before.fetch_max(summary.released_before.0, std::sync::atomic::Ordering::AcqRel);
        self.publish(summary.applied);
    }
}

impl Shard {
    /// Puts pieces into `out` until it is full, and returns where to go on.
    fn put_pieces(
        &self,
        from: Cursor,
        lists: usize,
        bound: u64,
        (fault, name): (&Fault, &dyn Fn(usize) -> NodeId),
        out: &mut Vec<u8>,
    ) -> Cursor {
        let source = Entries::new(&self.slab, fault);
        let mut loaded = 0;
        for (list, held) in self.lists.iter_from(from.list).take_while(|(list, _)| *list < lists) {
            // The list may be gone at which the writing stopped.
            let after = from.after.filter(|_| list == from.list);
            if let AdjacencyList::Idle(start) = *held {
                let head = Head { start, node: name(list).0, form: IDLE, ..Head::zeroed() };
                out.extend_from_slice(bytemuck::bytes_of(&head));
            }
            let blocks = held.blocks();
            if out.len() >= BUFFER_BYTES && blocks.is_empty() {
                return Cursor { list: list + 1, after: None };
            }
            // Blocks that begin at the time of the key may hold it, and what follows it.
            let begun = |(time, _)| blocks.partition_point(|block| block.start < time);
            let first = after.map_or(0, begun).saturating_sub(1);
            for block in &blocks[first..] {
                loaded += usize::from(!self.slab.holds(block.chunk(&self.slab)));
                let is_behind = after.is_none_or(|after| block.record(source, 0).key() > after);
                if is_behind && block.edges().1 < bound {
                    put_block(block, source, name(list), out);
                } else {
                    let wanted = |record: &Record| {
                        record.edge < bound && after.is_none_or(|after| record.key() > after)
                    };
                    put_records(block.records(source).filter(wanted), name(list), out);
                }
                if out.len() >= BUFFER_BYTES || loaded >= LOADED_MAX {
                    let last = block.record(source, block.len() - 1).key();
                    return Cursor { list, after: Some(after.map_or(last, |after| after.max(last))) };
                }
            }
        }
        Cursor { list: lists, after: None }
    }
}

fn put_block<'a>(block: &TemporalBlock, source: impl EntrySource<'a>, node: NodeId, out: &mut Vec<u8>) {
    let Parts { entries, lows } = block.parts(source);
    out.extend_from_slice(bytemuck::bytes_of(&Head::of(block, node)));
    out.extend_from_slice(bytemuck::cast_slice(entries));
    out.extend_from_slice(bytemuck::cast_slice(lows.halves()));
}

fn put_records(records: impl Iterator<Item = Record>, node: NodeId, out: &mut Vec<u8>) {
    let records: Vec<Record> = records.collect();
    if records.is_empty() {
        return;
    }
    #[allow(clippy::cast_possible_truncation, reason = "those of one block")]
    let entries = records.len() as u32;
    let head = Head { node: node.0, entries, form: RECORDS, ..Head::zeroed() };
    out.extend_from_slice(bytemuck::bytes_of(&head));
    records.iter().for_each(|record| out.extend_from_slice(&record.time.to_le_bytes()));
    records.iter().for_each(|record| out.extend_from_slice(&record.edge.to_le_bytes()));
    records.iter().for_each(|record| out.extend_from_slice(&record.packed.to_le_bytes()));
}

impl Head {
    /// Describes a block.
    fn of(block: &TemporalBlock, node: NodeId) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "a block has 2^15 entries at most")]
        let entries = block.len() as u32;
        let form = BLOCKS.iter().find(|(form, _)| *form == block.form).map_or(RECORDS, |(_, code)| *code);
        let mixed = u8::from(block.class & MIXED != 0);
        let TemporalBlock { start, base_edge, reach, .. } = *block;
        Self { start, base_edge, node: node.0, entries, reach, form, mixed, zeros: [0; 2] }
    }
}

/// A piece in the bytes of a snapshot.
struct Piece<'a> {
    head: Head,
    body: &'a [u8],
}

impl<'a> Piece<'a> {
    /// The first piece of `bytes`, and what follows it.
    fn parse(bytes: &'a [u8]) -> io::Result<(Self, &'a [u8])> {
        let malformed = || Error::new(ErrorKind::InvalidData, "a piece of the graph is cut off or malformed");
        let (head, rest) = bytes.split_at_checked(size_of::<Head>()).ok_or_else(malformed)?;
        let head: Head = bytemuck::pod_read_unaligned(head);
        let of_entry = match (head.form, Self::form_of(&head)) {
            (_, Some(form)) => size_of::<Entry>() + form.halves() * size_of::<u16>(),
            (RECORDS, _) => 20,
            (IDLE, _) => 0,
            _ => return Err(malformed()),
        };
        let least = u32::from(head.form != IDLE);
        let is_block = (least..=least << 15).contains(&head.entries) && head.node < 1 << 31;
        let length = head.entries as usize * of_entry;
        let (body, rest) = rest.split_at_checked(length).filter(|_| is_block).ok_or_else(malformed)?;
        Ok((Self { head, body }, rest))
    }

    /// The form of the block that a piece is.
    fn form_of(head: &Head) -> Option<Form> {
        BLOCKS.iter().find(|(_, code)| *code == head.form).map(|(form, _)| *form)
    }

    /// Appends the piece to the list of its node, in blocks of `page` units. No edge id exceeds `newest`.
    fn add_to(
        &self,
        list: &mut AdjacencyList,
        slab: &mut Slab,
        (page, newest): (usize, u64),
        gone: &HashSet<EdgeId>,
    ) {
        let count = self.head.entries as usize;
        let form = Self::form_of(&self.head).filter(|form| gone.is_empty() && count <= form.capacity(page));
        if let Some(form) = form {
            let mut block = self.block(form, slab);
            block.before = list.degree();
            list.push(block, newest);
            return;
        }
        let mut records = self.records();
        records.retain(|record| !gone.contains(&EdgeId(record.edge)));
        for mut block in encode(slab, &records, page, page) {
            block.before = list.degree();
            list.push(block, newest);
        }
    }

    /// The block in a slab, as it was in memory.
    #[allow(clippy::cast_possible_truncation, reason = "a block has 2^15 entries at most")]
    fn block(&self, form: Form, slab: &mut Slab) -> TemporalBlock {
        let count = self.head.entries as usize;
        let class = class_of(form.units(count));
        let block = TemporalBlock {
            start: self.head.start,
            base_edge: self.head.base_edge,
            slot: slab.take(class),
            before: 0,
            reach: self.head.reach,
            len: count as u16,
            class: class as u8 | if self.head.mixed == 0 { 0 } else { MIXED },
            form,
        };
        let (entries, lows) = block.parts_mut(slab);
        let (high, low) = self.body.split_at(size_of_val(entries));
        bytemuck::cast_slice_mut(entries).copy_from_slice(high);
        bytemuck::cast_slice_mut(lows).copy_from_slice(low);
        block
    }

    fn records(&self) -> Vec<Record> {
        let count = self.head.entries as usize;
        let Some(form) = Self::form_of(&self.head) else {
            let (times, rest) = self.body.split_at(8 * count);
            let (edges, nodes) = rest.split_at(8 * count);
            let times = times.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes));
            let edges = edges.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
            let nodes = nodes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
            let records = times.zip(edges).zip(nodes);
            return records.map(|((time, edge), packed)| Record { time, edge, packed }).collect();
        };
        let (entries, lows) = self.body.split_at(size_of::<Entry>() * count);
        let (start, base_edge) = (self.head.start, self.head.base_edge);
        let halves: Vec<u16> =
            lows.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect();
        let lows = Lows::of(form, &halves);
        let entries =
            entries.as_chunks::<12>().0.iter().map(|bytes| bytemuck::pod_read_unaligned::<Entry>(bytes));
        let record = |(i, entry): (usize, Entry)| {
            let (time, edge) = form.distances(entry, lows.get(i));
            let time = start.wrapping_add(time.cast_signed());
            Record { time, edge: base_edge.wrapping_add(edge), packed: entry.neighbor }
        };
        entries.enumerate().map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::disk::tests::faulty::{Fault as DiskFault, Faulty};
    use crate::device::rng;
    use crate::event::{ClockRules, EdgeBatch, EventTime, NodeKey, Op};
    use crate::graph::{GraphOptions, NodeDictionary};

    const NODES: u32 = 300;

    /// Batch `number` of a stream with late edges, wide distances, a hub and deletions.
    fn batch(number: u64, edges: u64) -> EdgeBatch {
        let mut batch = EdgeBatch { first: EdgeId(number * edges), ..EdgeBatch::default() };
        for i in number * edges..(number + 1) * edges {
            let draw = |slot: u64, below: u32| rng::below([7, i, slot, 0], below);
            let src = if draw(0, 4) == 0 { 5 } else { draw(1, NODES) };
            let late = if draw(2, 9) == 0 { i64::from(draw(3, 90_000)) } else { 0 };
            let spread = if draw(4, 50) == 0 { 6_000_000_000 } else { 0 };
            batch.push_edge(NodeId(src), NodeId(draw(5, NODES)), EventTime(i as i64 * 10 - late + spread));
            let op = match draw(6, 400) {
                0 => Op::DeleteNode,
                1..4 => Op::DeleteEdge,
                _ => Op::Edge,
            };
            *batch.op.last_mut().unwrap() = op;
            if op == Op::DeleteNode {
                *batch.dst.last_mut().unwrap() = NodeId(src);
            }
        }
        batch
    }

    fn names() -> NodeDictionary {
        let names = NodeDictionary::new();
        names.define(&(0..i64::from(NODES)).map(NodeKey::Int).collect::<Vec<_>>());
        names
    }

    fn all_records(store: &GraphStore) -> Vec<Vec<Record>> {
        let read = |node| store.read_list(NodeId(node), |list, slab| list.records(slab).collect::<Vec<_>>());
        (0..NODES).map(|node| read(node).unwrap()).collect()
    }

    /// Writes `store` at its end, with `more` batches applied meanwhile, restores it as `loaded`, and applies the same
    /// batches to that. Both must be equal then.
    fn hold_both_equal(store: &GraphStore, loaded: &GraphStore, (begun, more): (u64, u64), edges: u64) {
        (0..begun).for_each(|number| _ = store.apply(&batch(number, edges)).unwrap());
        let summary = store.summary();
        let (bound, mut next) = (summary.applied, begun);
        let (mut pieces, mut gone) = (Vec::new(), HashSet::<EdgeId>::new());
        for shard in 0..store.shards() {
            let mut keep = |bytes: &[u8]| {
                pieces.push(bytes.to_vec());
                if next < begun + more {
                    let early = |edges: &[EdgeId]| gone.extend(edges.iter().filter(|edge| **edge < bound));
                    store.apply_reporting_removed(&batch(next, edges), &mut { early }).unwrap();
                    next += 1;
                }
                Ok(())
            };
            store.write_shard(shard, bound, &mut keep).unwrap();
        }
        assert!(next > begun || more == 0, "something happened meanwhile");
        pieces.iter().for_each(|bytes| loaded.restore_pieces(bytes, bound, &gone).unwrap());
        let numbers = summary.to_numbers();
        assert_eq!(GraphSummary::from_numbers(&numbers, ClockRules::default()).as_ref(), Some(&summary));
        loaded.restored(&summary, gone.len() as u64);
        (begun..next).for_each(|number| _ = loaded.apply(&batch(number, edges)).unwrap());
        assert_eq!(all_records(loaded), all_records(store));
        assert_eq!(loaded.digest(&names()), store.digest(&names()));
        let counts = |store: &GraphStore| {
            let stats = store.stats();
            (stats.nodes, stats.edges, stats.directed_entries, stats.deleted_edges, stats.late_edges)
        };
        assert_eq!((counts(loaded), loaded.summary()), (counts(store), store.summary()));
    }

    #[test]
    fn a_graph_comes_back_whatever_is_added_and_deleted_while_it_is_written() {
        for (shards, page) in [(4, 64), (1, 16), (16, 512)] {
            let store = GraphStore::new(GraphOptions { shards: 4, page_entries_max: 64 });
            let loaded = GraphStore::new(GraphOptions { shards, page_entries_max: page });
            hold_both_equal(&store, &loaded, (30, 10), 3_000);
        }
    }

    #[test]
    fn a_graph_that_is_larger_than_its_budget_comes_back() {
        let options = GraphOptions { shards: 2, page_entries_max: 64 };
        let budgeted =
            || GraphStore::with_budget(options, 200 << 10, Box::new(Faulty::new(|_| DiskFault::Works)));
        hold_both_equal(&budgeted(), &budgeted(), (30, 4), 3_000);
    }

    #[test]
    fn an_empty_graph_comes_back_and_bytes_that_are_no_pieces_are_an_error() {
        let options = GraphOptions::default();
        hold_both_equal(&GraphStore::new(options), &GraphStore::new(options), (0, 0), 10);
        let store = GraphStore::new(options);
        store.apply(&batch(0, 100)).unwrap();
        let mut all = Vec::new();
        store
            .write_shard(0, EdgeId(100), &mut |bytes| {
                all.extend_from_slice(bytes);
                Ok(())
            })
            .unwrap();
        for end in [1, 31, 33, all.len() - 1] {
            let loaded = GraphStore::new(options);
            assert!(loaded.restore_pieces(&all[..end], EdgeId(100), &HashSet::new()).is_err(), "{end}");
        }
    }
}
