//! Pages of a graph's entries on two tiers: the recent ones in a GPU's memory, older ones in an arena of the host,
//! where kernels read and write them in place.
//!
//! Pages are numbered as they come. While the GPU's part has room a new page is there; then the page with the lowest
//! number there goes to the host and makes room. A kernel finds a page by its address in a table, so to it both tiers
//! are the same.

use std::collections::VecDeque;

use super::arena::{Arena, PinnedSlice};
use super::context::Cuda;
use super::error::CudaError;
use super::launch::Launch;
use super::memory::CudaBuffer;
use super::stream::Stream;
use super::twins::{Address, Entry};

/// Pages that are enqueued on the GPU together, at least, unless fewer are allowed.
const SLAB_PAGES: usize = 16;
/// Bytes of the host that are locked together, unless fewer are allowed.
const ARENA_BYTES: usize = 64 << 20;

/// How large the parts of a GPU's graph may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierOptions {
    /// log2 of the entries of a page, from 1 to 16.
    pub page_log2: u32,
    /// Bytes of the GPU's memory, other tables of the graph included; a page at least.
    pub gpu_bytes_max: usize,
    /// Bytes of pages in the host's memory.
    pub host_bytes_max: usize,
}

/// A page's place in the GPU's memory: which slab, and which page of it.
#[derive(Clone, Copy)]
struct Place {
    slab: usize,
    index: usize,
}

/// All pages.
pub(super) struct Pages {
    options: TierOptions,
    slabs: Vec<CudaBuffer<Entry>>,
    free: Vec<Place>,
    /// Pages in the GPU's memory, by number, ascending.
    on_gpu: VecDeque<(usize, Place)>,
    /// Where pages on the host come from, and the pages: kept for as long as kernels may reach them.
    arena: Option<Arena>,
    on_host: Vec<PinnedSlice<Entry>>,
    /// Bytes of the GPU's memory that other tables take.
    beside: usize,
    /// Of each page; the table has room for more.
    addresses: Vec<u64>,
    table: CudaBuffer<u64>,
}

impl Pages {
    pub fn new(cuda: &Cuda, stream: &Stream, options: TierOptions) -> Result<Self, CudaError> {
        let operation = "making room for a graph";
        if !(1..=16).contains(&options.page_log2) {
            let mismatch = format!("pages of 2^{} entries: from 2^1 to 2^16", options.page_log2);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        Ok(Self {
            options,
            slabs: Vec::new(),
            free: Vec::new(),
            on_gpu: VecDeque::new(),
            arena: None,
            on_host: Vec::new(),
            beside: 0,
            addresses: Vec::new(),
            table: CudaBuffer::zeros(cuda, stream, 0, operation)?,
        })
    }

    /// How many there are in the GPU's memory and in the host's.
    pub fn counts(&self) -> (usize, usize) {
        (self.on_gpu.len(), self.on_host.len())
    }

    pub fn options(&self) -> TierOptions {
        self.options
    }

    /// The table of addresses, for a kernel that only reads pages.
    pub fn argument<'a>(&'a self, launch: &mut Launch<'a>) -> Address {
        launch.reading(&self.table)
    }

    /// Sees to it that there are `count` pages. New ones hold anything. Of what the GPU's memory may hold, others take
    /// `beside` bytes.
    pub fn grow(&mut self, cuda: &Cuda, count: usize, beside: usize) -> Result<(), CudaError> {
        self.beside = beside;
        let mut changed = self.addresses.len();
        while self.addresses.len() < count {
            let place = match self.vacancy(cuda)? {
                Some(place) => place,
                None => {
                    let (page, place) = self.move_oldest(cuda)?;
                    changed = changed.min(page);
                    place
                }
            };
            self.on_gpu.push_back((self.addresses.len(), place));
            self.addresses.push(self.address_of(place));
        }
        if changed < count {
            self.upload_addresses(cuda, changed)?;
        }
        Ok(())
    }

    fn page_entries(&self) -> usize {
        1 << self.options.page_log2
    }

    fn page_bytes(&self) -> usize {
        self.page_entries() * size_of::<Entry>()
    }

    fn address_of(&self, place: Place) -> u64 {
        let before = place.index * self.page_bytes();
        self.slabs.get(place.slab).map_or(0, |slab| slab.address() + before as u64)
    }

    /// Room for a page in the GPU's memory, if there is or may be any.
    fn vacancy(&mut self, cuda: &Cuda) -> Result<Option<Place>, CudaError> {
        if let Some(place) = self.free.pop() {
            return Ok(Some(place));
        }
        let there = self.on_gpu.len();
        let allowed = (self.options.gpu_bytes_max.saturating_sub(self.beside) / self.page_bytes()).max(1);
        let pages = SLAB_PAGES.max(there / 4).min(allowed.saturating_sub(there));
        if pages == 0 {
            return Ok(None);
        }
        let stream = self.table.stream().clone();
        let entries = pages * self.page_entries();
        let slab = CudaBuffer::zeros(cuda, &stream, entries, "making room for pages of a graph")?;
        let number = self.slabs.len();
        self.slabs.push(slab);
        self.free.extend((0..pages).rev().map(|index| Place { slab: number, index }));
        Ok(self.free.pop())
    }

    /// Moves the page with the lowest number in the GPU's memory to the host: which it was, and the room it leaves.
    fn move_oldest(&mut self, cuda: &Cuda) -> Result<(usize, Place), CudaError> {
        let operation = "moving a page of a graph to the host";
        let mut slice = self.host_page(cuda)?;
        let Some((page, place)) = self.on_gpu.pop_front() else {
            let mismatch = "no page is on the GPU".into();
            return Err(CudaError::Arguments { operation, mismatch });
        };
        if let Some(slab) = self.slabs.get(place.slab) {
            slab.copy_part_to_pinned(place.index * self.page_entries(), &mut slice)?;
            self.addresses[page] = slice.address(operation, slab.stream())?;
        }
        self.on_host.push(slice);
        Ok((page, place))
    }

    fn host_page(&mut self, cuda: &Cuda) -> Result<PinnedSlice<Entry>, CudaError> {
        let entries = self.page_entries();
        let used = self.on_host.len() * self.page_bytes();
        let left = self.options.host_bytes_max.saturating_sub(used);
        if left < self.page_bytes() {
            let TierOptions { gpu_bytes_max, host_bytes_max, .. } = self.options;
            return Err(CudaError::OutOfMemory {
                operation: "moving a page of a graph to the host",
                detail: format!(
                    "{} pages of {} bytes fill the {gpu_bytes_max} bytes of the GPU and the {host_bytes_max} bytes \
                     of the host; allow more, or keep less of the past",
                    self.addresses.len(),
                    self.page_bytes()
                ),
            });
        }
        if let Some(Ok(slice)) = self.arena.as_mut().map(|arena| arena.take(entries)) {
            return Ok(slice);
        }
        let arena = self.arena.insert(Arena::new(left.min(ARENA_BYTES), Some(cuda))?);
        arena.take(entries)
    }

    /// Brings the table on the GPU up to date, from page `first` on.
    fn upload_addresses(&mut self, cuda: &Cuda, first: usize) -> Result<(), CudaError> {
        if self.addresses.len() <= self.table.len() {
            return self.table.write_at(first, &self.addresses[first..]);
        }
        let mut all = self.addresses.clone();
        all.resize((2 * all.len()).max(64), 0);
        let stream = self.table.stream().clone();
        self.table = CudaBuffer::from_slice(cuda, &stream, &all, "naming pages of a graph")?;
        Ok(())
    }
}
