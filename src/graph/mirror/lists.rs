//! The lists of all nodes as the GPU has them, without their entries: which blocks a node has, and where.
//!
//! A list is changed through an [`Edit`] that is committed once, so that no element of the GPU's tables is in a patch
//! twice: the threads that apply a patch do not wait for each other.

use std::ops::Range;

use super::MirrorOptions;
use super::layout::{MirrorBlock, NodeBlocks, PlacedNode, entries_in};
use super::patch::GraphPatch;
use super::slots::{Slots, TableFull};
use crate::event::NodeId;
use crate::graph::entry::Record;
use crate::graph::slab::class_entries;

/// Room of a node's first block, and of its first range of the table of blocks.
const FIRST_ROOM: usize = 4;

/// The lists of all nodes.
pub(super) struct Lists {
    lists: Vec<List>,
    /// The table of blocks, as on the GPU; and the size classes of their slots.
    blocks: Vec<MirrorBlock>,
    classes: Vec<u8>,
    /// What is taken of all pages, and of the table of blocks.
    pages: Slots,
    directory: Slots,
    options: MirrorOptions,
}

#[derive(Clone, Copy, Default)]
struct List {
    blocks: NodeBlocks,
    /// The size class of the node's range of the table of blocks, once it has one.
    class: Option<u8>,
    /// Time of the last entry, if there is one.
    latest: i64,
}

/// A list while it is changed.
pub(super) struct Edit {
    node: NodeId,
    list: List,
    /// Blocks from this one on are not what the GPU has.
    changed: usize,
    /// Whether distance ended the last block.
    is_far: bool,
}

impl Edit {
    /// Whether a record of `time` belongs before the last entry, which has a smaller edge id.
    pub fn is_late(&self, time: i64) -> bool {
        self.list.blocks.count > 0 && time < self.list.latest
    }
}

impl Lists {
    pub fn new(options: MirrorOptions) -> Self {
        Self {
            lists: Vec::new(),
            blocks: Vec::new(),
            classes: Vec::new(),
            pages: Slots::new(options.page_log2),
            directory: Slots::new(u32::BITS),
            options,
        }
    }

    /// log2 of the entries of a page.
    pub fn page_log2(&self) -> u32 {
        self.options.page_log2
    }

    /// Elements of the tables: nodes, blocks, pages.
    pub fn table_lengths(&self) -> (u64, u64, u64) {
        let pages = self.pages.end().div_ceil(1 << self.options.page_log2);
        (self.lists.len() as u64, self.blocks.len() as u64, pages)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.lists.capacity() * size_of::<List>()
            + self.blocks.capacity() * size_of::<MirrorBlock>()
            + self.classes.capacity()
            + self.pages.bytes()
            + self.directory.bytes()
    }

    /// Number of entries of a list.
    pub fn entries_of(&self, edit: &Edit) -> usize {
        self.entries(&edit.list)
    }

    fn entries(&self, list: &List) -> usize {
        self.blocks[range_of(list)].last().map_or(0, |last| last.before as usize + last.len())
    }

    /// The list of `node`, to change.
    pub fn edit(&self, node: NodeId) -> Edit {
        let list = self.lists.get(node.index()).copied().unwrap_or_default();
        Edit { node, list, changed: usize::MAX, is_far: false }
    }

    /// Records the change, and puts the blocks that are not what the GPU has into `patch`.
    pub fn commit(&mut self, edit: Edit, patch: &mut GraphPatch) {
        let Edit { node, list, changed, .. } = edit;
        if self.lists.len() <= node.index() {
            self.lists.resize(node.index() + 1, List::default());
        }
        self.lists[node.index()] = list;
        patch.nodes.push(PlacedNode { node: node.0, blocks: list.blocks, unused: 0 });
        let indexes = (list.blocks.first..).take(list.blocks.count as usize).skip(changed);
        patch.block_indexes.extend(indexes);
        patch.blocks.extend(self.blocks[range_of(&list)].iter().skip(changed));
    }

    /// The block of a list in which a late record of `time` belongs.
    pub fn place_of(&self, edit: &Edit, time: i64) -> usize {
        let blocks = &self.blocks[range_of(&edit.list)];
        blocks.partition_point(|block| block.start <= time).saturating_sub(1)
    }

    /// Removes the blocks from `unchanged` on from a list, and returns how many entries are left.
    pub fn cut(&mut self, edit: &mut Edit, unchanged: usize) -> usize {
        let range = range_of(&edit.list);
        let left = self.blocks[range.clone()].get(unchanged).map_or(0, |block| block.before as usize);
        for index in range.skip(unchanged) {
            let slot = self.blocks[index].slot(self.options.page_log2);
            self.pages.release(slot, self.classes[index].into());
            edit.list.blocks.count -= 1;
        }
        left
    }

    /// Adds as many of `records`, ascending and not before the last entry, to the last block of a list as it has room
    /// for, and returns how many. They are younger than all entries.
    pub fn extend(&mut self, edit: &mut Edit, records: &[Record], patch: &mut GraphPatch) -> usize {
        let Some(tail) = range_of(&edit.list).last() else { return 0 };
        let block = &mut self.blocks[tail];
        let from = block.len();
        let units = class_entries(self.classes[tail].into()).min(self.options.block_entries_max);
        let added = block.extend(records, units);
        edit.is_far = added < records.len() && from + added < entries_in(units, block.form());
        if added > 0 {
            edit.changed = edit.list.blocks.count as usize - 1;
            edit.list.latest = records[added - 1].time;
            patch.place(block, from, &records[..added], self.options.page_log2);
        }
        added
    }

    /// Puts `records`, ascending and not before the last entry, into new blocks behind a list. No edge id exceeds
    /// `newest`. Blocks that are `to_grow` have room for as many entries as the list has.
    pub fn append(
        &mut self,
        edit: &mut Edit,
        records: &[Record],
        newest: u64,
        to_grow: bool,
        patch: &mut GraphPatch,
    ) -> Result<(), TableFull> {
        let most = self.options.block_entries_max;
        let mut rest = records;
        while !rest.is_empty() {
            let earlier = self.blocks[range_of(&edit.list)].last();
            let is_far = edit.is_far || earlier.is_some_and(|block| block.needs_width(edit.list.latest));
            let (mut block, count) = MirrorBlock::begin(rest, most, (earlier, newest), is_far);
            edit.is_far = count < entries_in(most, block.form());
            edit.list.latest = rest[count - 1].time;
            let (len, units) = (block.len(), block.units());
            let room = if to_grow { (block.before as usize).max(FIRST_ROOM) * units / len } else { 0 };
            let (slot, class) = self.pages.take(units.max(room.min(most)))?;
            block.move_to(slot, self.options.page_log2);
            patch.place(&block, 0, &rest[..count], self.options.page_log2);
            self.push(edit, block, class)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Puts a block behind a list, which moves to a range of twice the size where its own is full.
    fn push(&mut self, edit: &mut Edit, block: MirrorBlock, class: u8) -> Result<(), TableFull> {
        let old = range_of(&edit.list);
        if edit.list.class.is_none_or(|class| class_entries(class.into()) == old.len()) {
            let (first, class) = self.directory.take((2 * old.len()).max(FIRST_ROOM))?;
            let length = usize::try_from(self.directory.end()).map_err(|_| TableFull)?;
            self.blocks.resize(length, MirrorBlock::default());
            self.classes.resize(length, 0);
            self.blocks.copy_within(old.clone(), first as usize);
            self.classes.copy_within(old.clone(), first as usize);
            if let Some(class) = edit.list.class.replace(class) {
                self.directory.release(edit.list.blocks.first, class.into());
            }
            edit.list.blocks.first = first;
            edit.changed = 0;
        }
        let index = edit.list.blocks.first as usize + old.len();
        (self.blocks[index], self.classes[index]) = (block, class);
        edit.list.blocks.count += 1;
        edit.changed = edit.changed.min(old.len());
        Ok(())
    }
}

/// A list's blocks in the table.
fn range_of(list: &List) -> Range<usize> {
    let first = list.blocks.first as usize;
    first..first + list.blocks.count as usize
}
