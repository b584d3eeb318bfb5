//! The temporal graph in a GPU's memory, as in `kernels/graph.cuh`: [`GraphTables`] takes in uploads, each by one
//! launch of `ingest.cu`, and is what samplers search. What goes where is decided by the host (`graph::GraphMirror`).
//!
//! **Nothing leads out of the tables.** Kernels follow the contents of uploads, so an upload is looked through before
//! it is put in place: pages, blocks and nodes that it names are there, no block goes over the end of its page, and
//! no node is named twice. Where such bytes are wrong, samples are wrong; no other memory is touched.

use bytemuck::Pod;

use super::arena::{Arena, PinnedSlice};
use super::context::Cuda;
use super::declare::kernels;
use super::error::CudaError;
use super::launch::{Launch, check_len};
use super::memory::CudaBuffer;
use super::pages::{Pages, TierOptions};
use super::stream::Stream;
use super::twins::{Address, Block, Graph, NodeBlocks, PlacedEntry, PlacedNode};

const THREADS: u32 = 256;
/// Blocks of a multiprocessor that fill the bus, over which uploads are read.
const BLOCKS: u32 = 4;
/// Uploads beyond this go through the GPU's memory, not through memory that is kept for them.
const STAGED_BYTES_MAX: usize = 32 << 20;
/// The two highest bits of a block's form state how its edge ids are ordered, and whether entries take two units.
const LENGTH: u16 = (1 << 14) - 1;
const WIDE: u16 = 1 << 14;

/// Elements that the tables have, at least; they only grow. What was not written to is never read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableLengths {
    /// Nodes of the graph; a node beyond has no blocks. New elements are zeros.
    pub nodes: u64,
    /// Descriptions of blocks.
    pub blocks: u64,
    /// Pages of entries.
    pub pages: u64,
}

impl TableLengths {
    /// Bytes of the tables of nodes and blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let nodes = self.nodes.saturating_mul(size_of::<NodeBlocks>() as u64);
        nodes.saturating_add(self.blocks.saturating_mul(size_of::<Block>() as u64))
    }
}

/// What brings the tables from one state to the next.
#[derive(Clone, Copy, Debug)]
pub struct GraphUpload<'a> {
    /// Entries, each at its place.
    pub entries: &'a [PlacedEntry],
    /// Descriptions of blocks.
    pub blocks: &'a [Block],
    /// Where each of them stands.
    pub indexes: &'a [u32],
    /// Which blocks nodes have, ascending by node.
    pub nodes: &'a [PlacedNode],
    /// What the tables have to hold; they only grow.
    pub tables: TableLengths,
}

impl GraphUpload<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val(self.entries)
            + size_of_val(self.blocks)
            + size_of_val(self.nodes)
            + size_of_val(self.indexes)
    }

    /// Whether everything that it names is there, in tables with pages of 2^`page_log2` entries.
    fn check(&self, page_log2: u32) -> Result<(), CudaError> {
        let operation = "taking in an upload";
        let refuse = |mismatch| Err(CudaError::Arguments { operation, mismatch });
        let TableLengths { nodes, blocks, pages } = self.tables;
        if self.blocks.len() != self.indexes.len() {
            return refuse(format!("{} blocks and {} indexes", self.blocks.len(), self.indexes.len()));
        }
        if let Some(entry) = self.entries.iter().find(|entry| u64::from(entry.slot >> page_log2) >= pages) {
            return refuse(format!("an entry at {} of {pages} pages of 2^{page_log2}", entry.slot));
        }
        let fits = |block: &&Block| {
            let entries = u32::from(block.form & LENGTH) + 1;
            let end = u32::from(block.place) + if block.form & WIDE == 0 { entries } else { 2 * entries };
            u64::from(block.page) < pages && end <= 1 << page_log2
        };
        if let Some(block) = self.blocks.iter().find(|block| !fits(block)) {
            return refuse(format!("{block:?} in {pages} pages of 2^{page_log2} entries"));
        }
        if let Some(index) = self.indexes.iter().find(|index| u64::from(**index) >= blocks) {
            return refuse(format!("block {index} of {blocks}"));
        }
        let is_there = |placed: &&PlacedNode| {
            let NodeBlocks { first, count } = placed.blocks;
            let has_pages = count == 0 || pages > 0;
            u64::from(placed.node) < nodes && u64::from(first) + u64::from(count) <= blocks && has_pages
        };
        if let Some(placed) = self.nodes.iter().find(|placed| !is_there(placed)) {
            return refuse(format!("{placed:?} of {nodes} nodes, {blocks} blocks and {pages} pages"));
        }
        if !self.nodes.is_sorted_by(|one, next| one.node < next.node) {
            return refuse("nodes that do not ascend".into());
        }
        Ok(())
    }

    fn write(&self, bytes: &mut [u8]) {
        let mut rest = bytes;
        rest = append(rest, self.entries);
        rest = append(rest, self.blocks);
        rest = append(rest, self.nodes);
        append(rest, self.indexes);
    }
}

fn append<'a, T: Pod>(bytes: &'a mut [u8], values: &[T]) -> &'a mut [u8] {
    let values: &[u8] = bytemuck::cast_slice(values);
    let (part, rest) = bytes.split_at_mut(values.len());
    part.copy_from_slice(values);
    rest
}

/// A graph on a GPU. Void after an error.
pub struct GraphTables {
    nodes: CudaBuffer<NodeBlocks>,
    blocks: CudaBuffer<Block>,
    pages: Pages,
    lengths: TableLengths,
    /// Where uploads wait for the GPU, by turns.
    staged: [Option<PinnedSlice<u8>>; 2],
    /// Those that became too small: the end of such memory waits for the whole GPU, also for a step that is recorded
    /// meanwhile. Sizes double, so all of them are smaller than what is in use.
    outgrown: Vec<PinnedSlice<u8>>,
    turn: usize,
}

impl GraphTables {
    /// The empty graph, in the order of `stream`.
    ///
    /// # Errors
    /// Pages of a length that there is not, or the driver's.
    pub fn new(cuda: &Cuda, stream: &Stream, options: TierOptions) -> Result<Self, CudaError> {
        let operation = "making room for a graph";
        Ok(Self {
            nodes: CudaBuffer::zeros(cuda, stream, 0, operation)?,
            blocks: CudaBuffer::zeros(cuda, stream, 0, operation)?,
            pages: Pages::new(cuda, stream, options)?,
            lengths: TableLengths::default(),
            staged: [None, None],
            outgrown: Vec::new(),
            turn: 0,
        })
    }

    /// Takes `upload` in: samples that are asked for before it do not see it, those after it see all of it. Waits only
    /// for the upload before the last one, and when there are new pages.
    ///
    /// # Errors
    /// An upload that names what is not there, no room on the GPU or the host, or the driver's.
    pub fn apply(&mut self, cuda: &Cuda, upload: GraphUpload<'_>) -> Result<(), CudaError> {
        let operation = "taking in an upload";
        let page_log2 = self.pages.options().page_log2;
        let lengths = TableLengths {
            nodes: upload.tables.nodes.max(self.lengths.nodes),
            blocks: upload.tables.blocks.max(self.lengths.blocks),
            pages: upload.tables.pages.max(self.lengths.pages),
        };
        let upload = GraphUpload { tables: lengths, ..upload };
        upload.check(page_log2)?;
        let count = |elements: u64| usize::try_from(elements).unwrap_or(usize::MAX);
        grow(cuda, &mut self.nodes, count(lengths.nodes))?;
        grow(cuda, &mut self.blocks, count(lengths.blocks))?;
        self.pages.grow(cuda, count(lengths.pages), self.table_bytes())?;
        self.lengths = lengths;
        let bytes = upload.bytes();
        if bytes == 0 {
            return Ok(());
        }
        let stream = self.nodes.stream().clone();
        let counts = [upload.entries.len(), upload.blocks.len(), upload.nodes.len()];
        if bytes > STAGED_BYTES_MAX {
            let mut all = vec![0; bytes];
            upload.write(&mut all);
            let all = CudaBuffer::from_slice(cuda, &stream, &all, operation)?;
            // The memory goes back in the order of the stream, behind the kernel.
            return ingest((cuda, &stream), all.address(), counts, self);
        }
        let mut staged = self.stage(cuda, bytes)?;
        let written = staged.as_mut_slice().map(|room| upload.write(&mut room[..bytes]));
        let placed = written.and_then(|()| staged.address(operation, &stream)).and_then(|address| {
            stream.bus().read_in_place(bytes);
            staged.while_read(&stream, |_| ingest((cuda, &stream), address, counts, self))
        });
        // Kept whatever happened: the end of pinned memory waits for the whole GPU.
        self.staged[self.turn] = Some(staged);
        self.turn = 1 - self.turn;
        placed
    }

    /// Memory of the host for an upload, whose last one is over.
    fn stage(&mut self, cuda: &Cuda, bytes: usize) -> Result<PinnedSlice<u8>, CudaError> {
        match self.staged[self.turn].take() {
            Some(staged) if staged.len() >= bytes => Ok(staged),
            small => {
                self.outgrown.extend(small);
                let room = bytes.next_power_of_two();
                Arena::new(room, Some(cuda))?.take(room)
            }
        }
    }

    /// What the tables hold.
    #[must_use]
    pub fn lengths(&self) -> TableLengths {
        self.lengths
    }

    /// Pages in the GPU's memory and in the host's.
    #[must_use]
    pub fn pages(&self) -> (usize, usize) {
        self.pages.counts()
    }

    /// Bytes of the tables that are not pages.
    fn table_bytes(&self) -> usize {
        self.nodes.len() * size_of::<NodeBlocks>() + self.blocks.len() * size_of::<Block>()
    }

    /// In whose order everything happens to it.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.nodes.stream()
    }

    /// The tables, for a kernel that searches them.
    pub(super) fn argument<'a>(&'a self, launch: &mut Launch<'a>) -> Graph {
        Graph {
            nodes: launch.reading(&self.nodes),
            node_count: self.lengths.nodes,
            blocks: launch.reading(&self.blocks),
            pages: self.pages.argument(launch),
        }
    }
}

kernels! {
    /// Puts an upload of so many entries, blocks and nodes in place, which was checked.
    fn ingest = ingest(bytes: u64, counts: [usize; 3], tables: &mut GraphTables) {
        let operation = "taking in an upload";
        let [entries, blocks, nodes] = counts;
        pass mapped(bytes), u64(entries), u64(blocks), u64(nodes),
            built(Address, |launch| tables.pages.argument(&mut launch)), bits(tables.pages.options().page_log2),
            write(&mut tables.blocks, blocks, "blocks"), write(&mut tables.nodes, nodes, "nodes");
        grid counts.iter().sum::<usize>(), THREADS, BLOCKS;
        skip false;
        text "{counts:?} entries, blocks and nodes";
        safe "The bytes hold these counts, in this order; [`GraphUpload`] checked that every place they name is there.
              Pages are of this stream, and those on the host live as long as the tables and the GPU's work.";
    }
}

/// Sees to it that `table` has `count` elements, and room for more where it had to move.
fn grow<T: Pod>(cuda: &Cuda, table: &mut CudaBuffer<T>, count: usize) -> Result<(), CudaError> {
    if count > table.len() {
        let room = count.saturating_add(count / 2).max(1024);
        *table = table.grown(cuda, room, "making room for a graph")?;
    }
    check_len("making room for a graph", &[("the table", table.len(), count)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: TableLengths = TableLengths { nodes: 3, blocks: 4, pages: 2 };

    fn refused(change: impl FnOnce(&mut PlacedEntry, &mut Block, &mut u32, &mut [PlacedNode; 2])) -> String {
        let mut entry = PlacedEntry { slot: 15, ..PlacedEntry::default() };
        let mut block = Block { page: 1, place: 4, form: 3 | 1 << 15, ..Block::default() };
        let mut index = 3;
        let blocks = NodeBlocks { first: 2, count: 2 };
        let mut nodes = [1, 2].map(|node| PlacedNode { node, blocks, unused: 0 });
        change(&mut entry, &mut block, &mut index, &mut nodes);
        let upload = GraphUpload {
            entries: &[entry],
            blocks: &[block],
            indexes: &[index],
            nodes: &nodes,
            tables: TABLES,
        };
        upload.check(3).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn an_upload_that_leads_out_of_the_tables_is_refused_in_words() {
        assert_eq!(refused(|_, _, _, _| ()), "");
        assert!(refused(|entry, _, _, _| entry.slot = 16).contains("an entry at 16 of 2 pages of 2^3"));
        assert!(refused(|_, block, _, _| block.page = 2).contains("page: 2"));
        assert!(refused(|_, block, _, _| block.place = 5).contains("place: 5"));
        assert!(refused(|_, block, _, _| block.form = 4).contains("form: 4"));
        assert_eq!(refused(|_, block, _, _| block.form = 1 | WIDE), "");
        assert!(refused(|_, block, _, _| block.form = 2 | WIDE).contains("form: 16386"));
        assert!(refused(|_, _, index, _| *index = 4).contains("block 4 of 4"));
        assert!(refused(|_, _, _, nodes| nodes[1].node = 3).contains("of 3 nodes"));
        assert!(refused(|_, _, _, nodes| nodes[0].blocks.count = 3).contains("count: 3"));
        assert!(refused(|_, _, _, nodes| nodes[0].blocks.first = u32::MAX).contains("4 blocks"));
        assert!(refused(|_, _, _, nodes| nodes[0].node = 2).contains("do not ascend"));
    }
}
