//! What brings a GPU from one state of the graph to the next: one upload of bytes, which one launch of
//! `kernels/ingest.cu` puts in their places.

use bytemuck::Pod;

use super::layout::{MirrorBlock, PlacedEntry, PlacedNode};
use crate::device::cuda::graph::{GraphUpload, TableLengths};
use crate::graph::entry::Record;

/// An upload, and how large the tables are with it.
#[derive(Clone, Debug, Default)]
pub struct GraphPatch {
    pub(super) entries: Vec<PlacedEntry>,
    pub(super) blocks: Vec<MirrorBlock>,
    pub(super) nodes: Vec<PlacedNode>,
    /// The place of each of `blocks` in the table of blocks.
    pub(super) block_indexes: Vec<u32>,
    pub(super) tables: TableLengths,
}

impl GraphPatch {
    /// Makes it one that brings nothing; room is kept.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.blocks.clear();
        self.nodes.clear();
        self.block_indexes.clear();
    }

    /// Brings `records` as the entries from `position` on of a block that has them.
    pub(super) fn place(&mut self, block: &MirrorBlock, position: usize, records: &[Record], page_log2: u32) {
        let places = (position..).zip(records);
        self.entries.extend(places.flat_map(|(position, &record)| block.pack(record, position, page_log2)));
    }

    /// The upload: placed entries, blocks, placed nodes, indexes of the blocks, without gaps.
    #[must_use]
    pub fn upload(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.upload_bytes());
        append(&mut bytes, &self.entries);
        append(&mut bytes, &self.blocks);
        append(&mut bytes, &self.nodes);
        append(&mut bytes, &self.block_indexes);
        bytes
    }

    /// Length of the upload in bytes.
    #[must_use]
    pub fn upload_bytes(&self) -> usize {
        size_of_val(&*self.entries)
            + size_of_val(&*self.blocks)
            + size_of_val(&*self.nodes)
            + size_of_val(&*self.block_indexes)
    }

    /// The same, part by part.
    #[must_use]
    pub fn parts(&self) -> GraphUpload<'_> {
        GraphUpload {
            entries: &self.entries,
            blocks: &self.blocks,
            indexes: &self.block_indexes,
            nodes: &self.nodes,
            tables: self.tables,
        }
    }

    /// How many entries, blocks and nodes the upload brings.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        [self.entries.len() as u64, self.blocks.len() as u64, self.nodes.len() as u64]
    }

    /// What the tables have to hold before the upload is put in place.
    #[must_use]
    pub fn tables(&self) -> TableLengths {
        self.tables
    }
}

fn append<T: Pod>(bytes: &mut Vec<u8>, values: &[T]) {
    bytes.extend_from_slice(bytemuck::cast_slice(values));
}
