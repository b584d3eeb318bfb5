//! Accounts of the store: how much it holds, at what cost in memory, and a digest of its content.

use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use super::NodeDictionary;
use super::block::{Entry, TemporalBlock};
use super::list::AdjacencyList;
use super::store::{GraphStore, Shard};
use crate::event::NodeId;

/// What a [`GraphStore`] holds and what it costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphStats {
    /// One more than the highest node id named by an edge or a node record.
    pub nodes: u64,
    /// Live edges; a self loop is one.
    pub edges: u64,
    /// Entries of all lists: two per live edge, one per live self loop.
    pub directed_entries: u64,
    /// Edges removed by deletions so far.
    pub deleted_edges: u64,
    /// Edges so far that were older than an edge that had arrived before them.
    pub late_edges: u64,
    /// Temporal blocks.
    pub blocks: u64,
    /// Memory by purpose.
    pub bytes: GraphBytes,
}

/// Memory of a [`GraphStore`] by purpose, in bytes. Nothing is left out but the allocator's own overhead
/// and the writer's buffers, which follow the size of the largest batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphBytes {
    /// Live entries.
    pub entries: u64,
    /// Room for entries that holds none: spare capacity of blocks, released slots, uncut chunks.
    pub slack: u64,
    /// Descriptions of blocks, including the spare capacity of directories.
    pub headers: u64,
    /// Tables: one slot per node, and those of the slabs.
    pub directories: u64,
    /// Shards and their locks.
    pub locks: u64,
}

impl GraphBytes {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.entries + self.slack + self.headers + self.directories + self.locks
    }
}

impl GraphStore {
    /// Counts and memory, exact when no batch is being applied. Visits every node: seconds on a graph of
    /// 10^8 nodes, one shard locked for reading at a time.
    #[must_use]
    pub fn stats(&self) -> GraphStats {
        let summary = *self.summary.read();
        let mut stats = GraphStats {
            nodes: summary.nodes,
            edges: summary.edges,
            deleted_edges: summary.deleted_edges,
            late_edges: summary.late_edges,
            ..GraphStats::default()
        };
        stats.bytes.locks = (size_of::<Self>() + size_of_val(&*self.shards)) as u64;
        for shard in &self.shards {
            shard.read().count(&mut stats);
        }
        stats
    }

    /// A digest of the live edges: the wrapping sum over all of them of a 128-bit hash of (key of the
    /// source, key of the destination, time). Equal multisets of edges have equal digests, whatever the
    /// order of arrival and the numbering of nodes. Nodes without a key in `keys` hash as the empty text.
    #[must_use]
    pub fn digest(&self, keys: &NodeDictionary) -> u128 {
        let mut hashes = Vec::with_capacity(keys.len());
        keys.for_each_bytes(|_, tag, bytes| hashes.push(xxh3_128_with_seed(bytes, u64::from(tag))));
        let unknown = xxh3_128_with_seed(&[], 1);
        let hash = |node: NodeId| hashes.get(node.index()).copied().unwrap_or(unknown).to_le_bytes();
        let mut sum = 0_u128;
        for (index, shard) in self.shards.iter().enumerate() {
            let shard = shard.read();
            for (local, list) in shard.lists.iter().enumerate() {
                let src = hash(self.map.node(index, local));
                for record in list.records(&shard.slab).filter(|record| !record.is_incoming()) {
                    let mut bytes = [0_u8; 40];
                    bytes[..16].copy_from_slice(&src);
                    bytes[16..32].copy_from_slice(&hash(record.neighbor()));
                    bytes[32..].copy_from_slice(&record.time.to_le_bytes());
                    sum = sum.wrapping_add(xxh3_128(&bytes));
                }
            }
        }
        sum
    }
}

impl Shard {
    fn count(&self, stats: &mut GraphStats) {
        let mut entries = 0;
        let mut inline = 0;
        for list in &self.lists {
            entries += u64::from(list.degree());
            stats.blocks += list.blocks().len() as u64;
            stats.bytes.headers += list.directory_bytes() as u64;
            inline += usize::from(matches!(list, AdjacencyList::One(_)));
        }
        let inline = (inline * size_of::<TemporalBlock>()) as u64;
        let (chunks, tables) = self.slab.bytes();
        let live = entries * size_of::<Entry>() as u64;
        let lists = (self.lists.capacity() * size_of::<AdjacencyList>()) as u64;
        stats.directed_entries += entries;
        stats.bytes.entries += live;
        stats.bytes.slack += chunks - live;
        stats.bytes.headers += inline;
        stats.bytes.directories += tables + lists - inline;
    }
}
