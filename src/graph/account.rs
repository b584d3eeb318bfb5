//! Accounts of the store: how much it holds, at what cost in memory, and a digest of its content.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use super::NodeDictionary;
use super::block::TemporalBlock;
use super::entry::Entry;
use super::fault::{Entries, Fault};
use super::list::AdjacencyList;
use super::spill::{SpillError, SpillStats};
use super::store::{GraphStore, Shard};
use crate::event::{ClockRules, EdgeId, EventTime, NodeId, NodeTable, StreamClock};

/// What a [`GraphStore`] holds and what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// One more than the highest node id named by an edge or a node record.
    pub nodes: u64,
    /// Live edges; a self loop is one. Once edges were released because of their age, half of the entries: a self loop,
    /// and an edge of which one end went, count half.
    pub edges: u64,
    /// Entries of all lists: two per live edge, one per live self loop.
    pub directed_entries: u64,
    /// Edges removed by deletions so far.
    pub deleted_edges: u64,
    /// Edges so far that were older than an edge that had arrived before them.
    pub late_edges: u64,
    /// Edges released so far because of their age: half of the entries that went.
    pub expired_edges: u64,
    /// Temporal blocks.
    pub blocks: u64,
    /// Memory by purpose.
    pub bytes: GraphBytes,
}

/// Memory and disk of a [`GraphStore`] by purpose, in bytes. Nothing is left out but the allocator's own overhead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphBytes {
    /// Live entries, 12 bytes each.
    pub entries: u64,
    /// Room for entries that holds none: spare capacity of blocks, released slots, uncut chunks; and the low bits of
    /// wide entries.
    pub slack: u64,
    /// Descriptions of blocks, including the spare capacity of directories.
    pub headers: u64,
    /// Tables: one slot per node, in pages that go with their nodes, and those of the slabs.
    pub directories: u64,
    /// Shards and their locks.
    pub locks: u64,
    /// The writer's buffers, which follow the size of the largest batch.
    pub plan: u64,
    /// Of `entries` and `slack`, what is on disk and not in memory.
    pub on_disk: u64,
}

impl GraphBytes {
    /// What is in memory.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.entries + self.slack + self.headers + self.directories + self.locks + self.plan - self.on_disk
    }
}

/// What a snapshot keeps of the store besides its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphSummary {
    /// Every record below this position is in.
    pub applied: EdgeId,
    /// One past the highest node id of an edge.
    pub nodes: u64,
    /// Edges added and not deleted.
    pub edges: u64,
    /// Edges deleted.
    pub deleted_edges: u64,
    /// Edges that were older than one before them.
    pub late_edges: u64,
    /// Entries released because of their age.
    pub expired_entries: u64,
    /// Edges before this time may have been released.
    pub released_before: EventTime,
    /// The clock over all edges.
    pub clock: StreamClock,
}

impl GraphStore {
    /// Counts and memory, exact while no batch is being applied. Visits every shard and no node, so calling it often is
    /// cheap.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        let summary = *self.summary.read();
        let mut stats = GraphStats {
            nodes: summary.nodes,
            edges: summary.edges,
            deleted_edges: summary.deleted_edges,
            late_edges: summary.late_edges,
            expired_edges: summary.expired_entries / 2,
            ..GraphStats::default()
        };
        stats.bytes.plan = summary.plan_bytes;
        stats.bytes.locks = (size_of::<Self>() + size_of_val(&*self.shards)) as u64;
        for shard in &self.shards {
            shard.read().add_to(&mut stats);
        }
        if summary.expired_entries > 0 {
            stats.edges = stats.directed_entries.div_ceil(2);
        }
        stats
    }

    /// Nodes that a pass over all of them visits: not those of pages whose nodes are all without an edge.
    #[must_use]
    pub fn visited_nodes(&self) -> u64 {
        let room: u64 = self.shards.iter().map(|shard| shard.read().lists.visited() as u64).sum();
        room.min(self.summary.read().nodes)
    }

    /// Statistics of the spill file; `None` without a budget.
    #[must_use]
    pub fn spill_stats(&self) -> Option<SpillStats> {
        self.spill.as_ref().map(|spill| spill.stats())
    }

    /// Reports to the budget what always stays in memory: all but the chunks.
    pub(super) fn count_tables(&self) {
        if let Some(spill) = &self.spill {
            spill.set_tables(self.shards.iter().map(|shard| shard.read().table_bytes()).sum());
        }
    }

    /// A digest of the live edges: the wrapping sum over all of them of a 128-bit hash of (key of the
    /// source, key of the destination, time). Equal multisets of edges have equal digests, whatever the
    /// order of arrival and the numbering of nodes. Nodes without a key in `keys` hash as the empty text.
    ///
    /// # Errors
    /// Edges are on disk and cannot be read.
    pub fn digest(&self, keys: &NodeDictionary) -> Result<u128, SpillError> {
        let mut hashes = NodeTable::new(xxh3_128_with_seed(&[], 1));
        keys.for_each_bytes(|node, tag, bytes| hashes.set(node, xxh3_128_with_seed(bytes, u64::from(tag))));
        let hash = |node: NodeId| hashes.get(node).to_le_bytes();
        let mut sum = 0_u128;
        for (index, shard) in self.shards.iter().enumerate() {
            let (shard, fault) = (shard.read(), Fault::default());
            let entries = Entries::new(&shard.slab, &fault);
            for (local, list) in shard.lists.iter_from(0) {
                let src = hash(self.map.node(index, local));
                for record in list.records(entries).filter(|record| !record.is_incoming()) {
                    let mut bytes = [0_u8; 40];
                    bytes[..16].copy_from_slice(&src);
                    bytes[16..32].copy_from_slice(&hash(record.neighbor()));
                    bytes[32..].copy_from_slice(&record.time.to_le_bytes());
                    sum = sum.wrapping_add(xxh3_128(&bytes));
                }
            }
            drop(shard);
            fault.check(())?;
            self.balance();
        }
        Ok(sum)
    }
}

/// What lists hold, kept up to date as they change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListCounts {
    entries: u64,
    blocks: u64,
    /// Bytes of directories beyond the lists themselves.
    directory_bytes: u64,
    /// Lists whose one block is stored inline.
    inline: u64,
}

impl ListCounts {
    /// What one list holds.
    pub fn of(list: &AdjacencyList) -> Self {
        Self {
            entries: u64::from(list.degree()),
            blocks: list.blocks().len() as u64,
            directory_bytes: list.directory_bytes() as u64,
            inline: u64::from(matches!(list, AdjacencyList::One(_))),
        }
    }

    /// Counts a list as it is now in place of what it was.
    pub fn replace(&mut self, before: Self, now: Self) {
        self.entries = self.entries - before.entries + now.entries;
        self.blocks = self.blocks - before.blocks + now.blocks;
        self.directory_bytes = self.directory_bytes - before.directory_bytes + now.directory_bytes;
        self.inline = self.inline - before.inline + now.inline;
    }
}

impl Shard {
    /// Bytes of all but the chunks.
    fn table_bytes(&self) -> u64 {
        self.counts.directory_bytes + self.lists.bytes() as u64 + self.slab.table_bytes() as u64
    }

    fn add_to(&self, stats: &mut GraphStats) {
        let ListCounts { entries, blocks, directory_bytes, inline } = self.counts;
        let inline = inline * size_of::<TemporalBlock>() as u64;
        let (resident, away, tables) = self.slab.bytes();
        let live = entries * size_of::<Entry>() as u64;
        let lists = self.lists.bytes() as u64;
        stats.directed_entries += entries;
        stats.blocks += blocks;
        stats.bytes.entries += live;
        stats.bytes.slack += resident + away - live;
        stats.bytes.on_disk += away;
        stats.bytes.headers += directory_bytes + inline;
        stats.bytes.directories += tables + lists - inline;
    }
}

impl GraphSummary {
    /// The summary as numbers.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<i64> {
        let counts = [self.applied.0, self.nodes, self.edges, self.deleted_edges, self.late_edges];
        let mut numbers: Vec<i64> = counts.map(u64::cast_signed).to_vec();
        numbers.extend([self.expired_entries.cast_signed(), self.released_before.0]);
        numbers.extend(self.clock.to_numbers());
        numbers
    }

    /// The summary with these numbers and, of its clock, these rules; `None` if they are none.
    #[must_use]
    pub fn from_numbers(numbers: &[i64], rules: ClockRules) -> Option<Self> {
        let (counts, clock) = numbers.split_first_chunk::<7>()?;
        let [applied, nodes, edges, deleted_edges, late_edges, expired_entries, released_before] = *counts;
        Some(Self {
            applied: EdgeId(applied.cast_unsigned()),
            nodes: nodes.cast_unsigned(),
            edges: edges.cast_unsigned(),
            deleted_edges: deleted_edges.cast_unsigned(),
            late_edges: late_edges.cast_unsigned(),
            expired_entries: expired_entries.cast_unsigned(),
            released_before: EventTime(released_before),
            clock: StreamClock::from_numbers(clock)?.with_rules(rules),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{EdgeBatch, EdgeId, EventTime, Op};
    use crate::graph::GraphOptions;

    fn assert_counts_match_a_walk(store: &GraphStore) {
        for (index, shard) in store.shards.iter().enumerate() {
            let shard = shard.read();
            let mut walked = ListCounts::default();
            for list in shard.lists.iter() {
                walked.replace(ListCounts::default(), ListCounts::of(list));
            }
            assert_eq!(shard.counts, walked, "shard {index}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn counts_are_those_of_a_walk_after_any_batches(
            records in prop::collection::vec((0_u8..20, 0_u32..12, 0_u32..12, 0_i64..400), 1..2_500),
            size in 1_usize..600,
        ) {
            let store = GraphStore::new(GraphOptions { shards: 4, page_entries_max: 16 });
            let mut first = 0;
            for chunk in records.chunks(size) {
                let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
                for &(op, src, dst, time) in chunk {
                    batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
                    let op = match op {
                        0 => Op::DeleteEdge,
                        1 => Op::DeleteNode,
                        2 => Op::Node,
                        _ => Op::Edge,
                    };
                    if let Some(last) = batch.op.last_mut() {
                        *last = op;
                    }
                    if matches!(op, Op::Node | Op::DeleteNode) {
                        *batch.dst.last_mut().unwrap() = NodeId(src);
                    }
                }
                first += chunk.len() as u64;
                store.apply(&batch).unwrap();
                assert_counts_match_a_walk(&store);
            }
        }
    }
}
