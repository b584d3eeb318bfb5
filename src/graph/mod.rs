//! Floor 2: the temporal graph as an index over the log.
//!
//! A [`NodeDictionary`] gives nodes their ids. A [`GraphStore`] keeps every edge under both of its end
//! points, in order of (time, edge id), in temporal blocks: `block` packs edges into 12-byte entries,
//! `slab` holds the entries of a shard, `list` is one node's blocks and their directory, `plan` sorts a
//! batch once, `store` applies it under the shards' locks, `fill` adds to one shard, `stages` times these parts,
//! `view` is what readers see, and `account` counts and digests.
//!
//! A store with a budget keeps entries beyond it on disk: `chunk` is what moves, `spill` the file, `fault` how
//! readers meet what is not in memory, `load` how the writer and samplers bring in much at once, `evict` how
//! room is made. `compact` moves what lives together, `retain` lets go of what is old, `scrub` leaves no trace of what
//! was deleted. `mirror` tells an accelerator's memory what it has to hold,
//! and `gpu` is the graph there.
//!
//! An edge's id is its position in the log, so the ids of a view's edges end at the view's bound. Knows
//! nothing of features, sampling policies, files or the network.

mod account;
mod block;
mod candidates;
mod chunk;
mod compact;
mod dictionary;
mod evict;
mod fault;
mod fill;
mod gpu;
mod list;
mod load;
mod mirror;
mod plan;
mod retain;
mod scrub;
mod slab;
mod spill;
mod stages;
mod store;
mod view;

pub use account::{GraphBytes, GraphStats};
pub use block::Run;
pub use candidates::{Candidates, Pick};
pub use dictionary::{NODES_MAX, NodeDictionary};
pub use gpu::{CudaGraph, CudaGraphError, CudaGraphOptions};
pub use mirror::{GraphMirror, GraphPatch, MirrorError, MirrorOptions};
pub use retain::{Kept, Retention, RetentionClock};
pub use spill::{SpillError, SpillStats};
pub use stages::{StageSeconds, StagedStore};
pub use store::GraphStore;
pub use view::{GraphReader, GraphView, Horizon, Neighbor, Past};

use crate::event::EdgeId;

/// How a [`GraphStore`] is laid out. Nothing here changes an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// Number of shards, rounded up to a power of two, 2^16 at most. More shards let readers and the writer
    /// get out of each other's way; each costs some 10 KiB in a small graph.
    pub shards: usize,
    /// Entries of a page, at which blocks stop growing; rounded up to a size class, 2^15 at most. Larger
    /// pages make directories shorter, smaller ones make late edges cheaper.
    pub page_entries_max: usize,
    /// How large the blocks of a node are made.
    pub growth: GrowthPolicy,
}

/// How large the blocks of a node are made. The default is the one to use, by this criterion: fewest bytes per edge
/// and no more blocks than any other, in large batches and in small ones. The others are there to be measured
/// against; they leave stored entries where they are, save for late edges, and so have nothing to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrowthPolicy {
    /// The last block grows in place through the size classes up to a page, then pages follow; a fresh page begins
    /// with a quarter of the degree.
    #[default]
    Adaptive,
    /// A new block has room for what is left of the batch.
    Naive,
    /// Every block is a page.
    Fixed,
    /// A new block has room for the mean number of edges per insertion, rounded up to a power of two.
    LinearAverage,
    /// A new block has room for as many entries as the node has.
    DegreeDoubling,
    /// The same up to a page, then whole pages.
    PagedDoubling,
}

impl GrowthPolicy {
    /// All of them, the default first.
    pub const ALL: [Self; 6] = [
        Self::Adaptive,
        Self::Naive,
        Self::Fixed,
        Self::LinearAverage,
        Self::DegreeDoubling,
        Self::PagedDoubling,
    ];
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self { shards: 16, page_entries_max: 256, growth: GrowthPolicy::default() }
    }
}

/// What [`GraphStore::apply`] did with a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Every record below this position is in now.
    pub end: EdgeId,
    /// Edges added.
    pub edges: u64,
    /// Those of them that were older than an edge that had arrived before them.
    pub late_edges: u64,
    /// Edges removed by the batch's deletions.
    pub deleted_edges: u64,
    /// Records that had been applied before.
    pub skipped: u64,
}
