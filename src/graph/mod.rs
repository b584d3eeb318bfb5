//! Floor 2: the temporal graph as an index over the log.
//!
//! A [`NodeDictionary`] gives nodes their ids, and [`TypeNames`] types of edges their numbers. A [`GraphStore`] keeps
//! every edge under both of its end points, in order of (time, edge id), in temporal blocks: `entry` packs edges into
//! 12 or 16 bytes, `block` describes consecutive ones, `search` finds times in them, `slab` holds the entries of a
//! shard, `list` is one node's blocks and their directory, `lists` those of all nodes of a shard, `plan` sorts a batch
//! once, `store` applies it under the shards' locks, `fill` adds to one shard, `delete` removes edges, `view` is what
//! readers see, and `account` counts and digests.
//!
//! A store with a budget keeps entries beyond it on disk: `chunk` is the unit that moves, `spill` the file, `fault`
//! handles reads of entries that are not in memory, `load` loads many chunks in advance for the writer and samplers,
//! `evict` makes room. `compact` frees unused memory, `retain` releases old edges, `idle` notes nodes without any,
//! `scrub` erases what was deleted; `meeting` finds the newest edge of a pair, `listing` a node's edges page by page;
//! `saved` is the graph in a snapshot.
//! `mirror` plans the layout in GPU memory, `gpu` is the graph there, and `shortened` notes
//! deletions for them.
//!
//! An edge's id is its position in the log, so the ids of a view's edges end at the view's bound. Knows
//! nothing of features, sampling policies, files or the network.

mod account;
mod block;
mod candidates;
mod chunk;
mod compact;
mod delete;
mod dictionary;
mod entry;
mod evict;
mod fault;
mod fill;
mod gpu;
mod idle;
mod key;
mod list;
mod listing;
mod lists;
mod load;
mod meeting;
mod mirror;
mod plan;
mod retain;
mod saved;
mod scrub;
mod search;
mod shortened;
mod slab;
mod spill;
mod store;
mod type_names;
mod view;

pub use account::{GraphBytes, GraphStats, GraphSummary};
pub use candidates::{Candidates, Pick};
pub use dictionary::{NODES_MAX, NodeDictionary};
pub use gpu::{CudaGraph, CudaGraphError, CudaGraphOptions};
pub use listing::{Direction, EdgeListing, EdgePage, EdgePlace, ListedEdge};
pub use mirror::{GraphMirror, GraphPatch, MirrorError, MirrorOptions};
pub use retain::{Keeping, Retention, RetentionBounds, RetentionClock};
pub use spill::{SpillError, SpillStats};
pub use store::GraphStore;
pub use type_names::TypeNames;
pub use view::{GraphReader, GraphView, Horizon, Neighbor, Past, Run};

use crate::event::EdgeId;

/// How a [`GraphStore`] is laid out. No option changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// Number of shards, rounded up to a power of two, 2^16 at most. More shards reduce contention between readers and
    /// the writer; each costs some 10 KiB in a small graph.
    pub shards: usize,
    /// Entries of a page, at which blocks stop growing; rounded up to a size class, 2^15 at most. Larger
    /// pages make directories shorter, smaller ones make late edges cheaper.
    pub page_entries_max: usize,
}

impl Default for GraphOptions {
    fn default() -> Self {
        Self { shards: 16, page_entries_max: 256 }
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
