//! The mirror: plans the layout of the graph in GPU memory. The CPU has all of the graph.
//!
//! A [`GraphMirror`] keeps a copy of every block's description and no entry. [`follow`](GraphMirror::follow) makes of a
//! batch that the store has applied one [`GraphPatch`]: the same plan as the store's, each node's entries behind its
//! last block as long as they fit, then new blocks, of doubling sizes up to a limit. So stored entries stay where they
//! are and the GPU copies nothing by itself. Late entries and deletions change what is stored: the blocks from there on
//! are rewritten, read from the store. Results do not depend on how entries are cut into blocks.
//!
//! The store may be ahead of the batch. A deletion that it has carried out takes effect at once: the lists that it
//! shortened are read anew, and until the mirror has passed its position, entries of a batch are taken in as the store
//! has them, not as they arrived.
//!
//! Edges that the store releases because of their age stay until their blocks are written anew; views do not show
//! them.
//!
//! Makes no GPU calls: it returns bytes, laid out as kernels read them.

mod layout;
mod lists;
mod patch;
mod slots;

pub use patch::GraphPatch;

use std::sync::Arc;

use hashbrown::HashSet;
use parking_lot::Mutex;

use super::entry::Record;
use super::plan::{BatchPlan, ShardMap};
use super::shortened::Shortened;
use super::spill::SpillError;
use super::store::GraphStore;
use crate::device::cuda::graph::TableLengths;
use crate::event::{EdgeBatch, EdgeId, NodeId};
use layout::BLOCK_UNITS_MAX;
use lists::Lists;
use slots::TableFull;

/// Entries and blocks of a patch of a copy, unless a list has more: some MiB.
const PIECE: usize = 1 << 18;

/// Why a mirror cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// Entries are on disk and cannot be read.
    #[error(transparent)]
    Storage(#[from] SpillError),
    /// A table has as many elements as 32 bits can name.
    #[error("the graph has more than 2^32 entries or blocks: a GPU cannot hold it; sample on the CPU")]
    Full,
    /// The batch is not the next one, or the store has not applied it.
    #[error(
        "a mirror at edge {at} cannot take the batch from edge {batch} on of a store at {store}; copy the store anew"
    )]
    Gap {
        /// Where the mirror is.
        at: EdgeId,
        /// Where the batch begins.
        batch: EdgeId,
        /// Where the store is.
        store: EdgeId,
    },
}

impl From<TableFull> for MirrorError {
    fn from(_: TableFull) -> Self {
        Self::Full
    }
}

/// How a [`GraphMirror`] cuts entries into blocks and pages. No option changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// log2 of the entries of a page, 16 at most: what moves between a GPU and the host's memory. 12 is 48 KiB.
    pub page_log2: u32,
    /// Entries at which blocks stop growing, from 1 to a page and 2^14; half of that where distances are so far that an
    /// entry takes 24 bytes, not 12.
    pub block_entries_max: usize,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self { page_log2: 12, block_entries_max: 256 }
    }
}

/// The layout on a GPU. Void after an error.
pub struct GraphMirror {
    lists: Lists,
    applied: EdgeId,
    /// What deletions of the store changed and this has not taken in.
    shortened: Arc<Mutex<Shortened>>,
    /// Before this position the store may lack edges of a batch.
    deleted_until: EdgeId,
    plan: BatchPlan,
}

impl GraphMirror {
    /// A mirror of `store`; `take` gets the patches that fill empty tables with it, one at least.
    ///
    /// # Errors
    /// Entries cannot be read, or are too many, or what `take` returns.
    pub fn copy<E: From<MirrorError>>(
        store: &GraphStore,
        options: MirrorOptions,
        mut take: impl FnMut(&GraphPatch) -> Result<(), E>,
    ) -> Result<Self, E> {
        let page_log2 = options.page_log2.clamp(1, 16);
        let most = BLOCK_UNITS_MAX.min(1 << page_log2);
        let options =
            MirrorOptions { page_log2, block_entries_max: options.block_entries_max.clamp(1, most) };
        // Asked for first: what is deleted from here on may or may not be in the copy.
        let shortened = store.copies.watch();
        let mut mirror = Self {
            lists: Lists::new(options),
            applied: store.applied(),
            shortened,
            deleted_until: EdgeId(0),
            plan: BatchPlan::default(),
        };
        let mut patch = GraphPatch::default();
        let nodes = u32::try_from(store.stats().nodes).map_err(|_| MirrorError::Full)?;
        for node in (0..nodes).map(NodeId) {
            mirror.rewrite(store, node, (0, 0), &mut patch)?;
            if patch.entries.len() + patch.blocks.len() >= PIECE {
                mirror.finish(store, &mut patch);
                take(&patch)?;
                patch.clear();
            }
        }
        mirror.finish(store, &mut patch);
        take(&patch)?;
        Ok(mirror)
    }

    /// The patch for `batch`, which `store` has applied and which is the next one, and for what was deleted in the
    /// store since the last one. Of the batch only edges count.
    ///
    /// # Errors
    /// Entries cannot be read, or are too many, or batches are missing.
    pub fn follow(&mut self, store: &GraphStore, batch: &EdgeBatch) -> Result<GraphPatch, MirrorError> {
        if batch.first != self.applied || store.applied() < batch.end() {
            return Err(MirrorError::Gap { at: self.applied, batch: batch.first, store: store.applied() });
        }
        let Shortened { nodes: shortened, until } = std::mem::take(&mut *self.shortened.lock());
        self.deleted_until = self.deleted_until.max(until);
        self.applied = batch.end();
        let mut patch = GraphPatch::default();
        let mut plan = std::mem::take(&mut self.plan);
        plan.arrange(batch, 0..batch.len(), ShardMap::new(1));
        let result = self.add_all(store, batch, (&plan, &shortened), &mut patch);
        self.plan = plan;
        result?;
        if !shortened.is_empty() {
            shortened.iter().try_for_each(|&node| self.rewrite(store, node, (0, 0), &mut patch))?;
            patch.nodes.sort_unstable_by_key(|placed| placed.node);
        }
        self.finish(store, &mut patch);
        Ok(patch)
    }

    /// Whether the store has deleted what this still has.
    #[must_use]
    pub fn has_deleted(&self) -> bool {
        !self.shortened.lock().nodes.is_empty()
    }

    /// One past the last edge that it knows.
    #[must_use]
    pub fn applied(&self) -> EdgeId {
        self.applied
    }

    /// log2 of the entries of a page.
    #[must_use]
    pub fn page_log2(&self) -> u32 {
        self.lists.page_log2()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lists.bytes() + self.plan.bytes()
    }

    /// Adds the edges of a batch to the lists that are not `shortened`.
    fn add_all(
        &mut self,
        store: &GraphStore,
        batch: &EdgeBatch,
        (plan, shortened): (&BatchPlan, &HashSet<NodeId>),
        patch: &mut GraphPatch,
    ) -> Result<(), MirrorError> {
        let mut result = Ok(());
        let mut records = Vec::new();
        let lacks = batch.first < self.deleted_until;
        for (_, words) in plan.shards() {
            plan.for_each_node(batch, words, &mut records, |index, records| {
                let node = node_of(index);
                if result.is_ok() && !shortened.contains(&node) {
                    result = self.add(store, node, (records, lacks), patch);
                }
            });
        }
        result
    }

    /// Adds `records`, ascending, to the list of `node`; the store may lack some of them if `lacks` says so.
    fn add(
        &mut self,
        store: &GraphStore,
        node: NodeId,
        (records, lacks): (&[Record], bool),
        patch: &mut GraphPatch,
    ) -> Result<(), MirrorError> {
        let mut edit = self.lists.edit(node);
        if lacks || edit.is_late(records[0].time) {
            let place = self.lists.place_of(&edit, records[0].time);
            let entries = self.lists.entries_of(&edit) + records.len();
            return self.rewrite(store, node, (place, entries), patch);
        }
        let added = self.lists.extend(&mut edit, records, patch);
        self.lists.append(&mut edit, &records[added..], self.applied.0, true, patch)?;
        self.lists.commit(edit, patch);
        Ok(())
    }

    /// Rewrites the list of `node` as the store has it: from block `unchanged` on if the store has so many `entries`,
    /// all that were stored and the new ones, else all of it. The store may have released some, or be ahead.
    fn rewrite(
        &mut self,
        store: &GraphStore,
        node: NodeId,
        (unchanged, entries): (usize, usize),
        patch: &mut GraphPatch,
    ) -> Result<(), MirrorError> {
        let end = self.applied.0;
        let records: Vec<Record> = store.read_list(node, |list, entries| {
            list.records(entries).filter(|record| record.edge < end).collect()
        })?;
        let mut edit = self.lists.edit(node);
        let left = self.lists.cut(&mut edit, if records.len() == entries { unchanged } else { 0 });
        self.lists.append(&mut edit, &records[left..], end, false, patch)?;
        self.lists.commit(edit, patch);
        Ok(())
    }

    fn finish(&self, store: &GraphStore, patch: &mut GraphPatch) {
        let (nodes, blocks, pages) = self.lists.table_lengths();
        patch.tables = TableLengths { nodes, blocks, pages };
        store.balance();
    }
}

/// The node of an index in a plan with one shard.
#[allow(clippy::cast_possible_truncation, reason = "a plan refuses nodes beyond NODES_MAX")]
fn node_of(index: usize) -> NodeId {
    NodeId(index as u32)
}
