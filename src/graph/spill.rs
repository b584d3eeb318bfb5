//! The spill file of entries that exceed the memory budget: chunks of all shards in one file of pages.
//!
//! Chunks are written where no valid copy is, so a write that fails or is torn destroys nothing. Each has a checksum,
//! kept in memory: a read returns what was written, or an error. The file is an index over the log like all of the
//! graph, so nothing of it is synced and it ends with the process.
//!
//! When writes fail, chunks stay in memory, beyond the budget, and are tried again after a while. When a read fails,
//! the caller that needed it gets a [`SpillError`].
//!
//! Knows nothing of shards and locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thiserror::Error;

use super::entry::Entry;
use crate::device::disk::{DiskError, Extent, PAGE_BYTES, PageBuffer, PageFile};

/// Chunks that are read or written by one call at most.
pub(super) const GROUP: usize = 128;

/// Most chunks without content whose memory is kept.
const IDLE_CHUNKS: usize = GROUP;

/// Most buffers that are kept between calls.
const IDLE_BUFFERS: usize = 2;

/// How long after the last failure the disk counts as failing, if nothing shows that it works.
const TROUBLE_LASTS: Duration = Duration::from_secs(60);

/// How long after a failure the disk is not written to.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Entries of the graph that are on disk could not be read, or a batch does not fit.
#[derive(Clone, Debug, Error)]
pub enum SpillError {
    /// The disk failed.
    #[error("cannot read the graph's entries on disk: {0}; the log is intact, a restart reads it again")]
    Disk(Arc<DiskError>),
    /// The disk returned other bytes than it was given.
    #[error(
        "the graph's entries on disk are damaged: chunk {place} of the spill file has checksum {found:08x} in \
         place of {expected:08x}; the log is intact, a restart on a working disk reads it again"
    )]
    Checksum {
        /// Which chunk of the file.
        place: u32,
        /// Checksum of what was written.
        expected: u32,
        /// Checksum of what was read.
        found: u32,
    },
    /// A shard has no room for more entries; of so many shards.
    #[error("one of the graph's {0} shards is full (2^32 entries): set graph.shards to more and start again")]
    Full(usize),
}

impl From<DiskError> for SpillError {
    fn from(error: DiskError) -> Self {
        Self::Disk(Arc::new(error))
    }
}

/// Errors are equal when their messages are.
impl PartialEq for SpillError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for SpillError {}

/// How a graph with a budget uses memory and disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpillStats {
    /// Bytes that the graph may take in memory.
    pub budget_bytes: u64,
    /// Bytes of directories and tables, which always stay in memory.
    pub table_bytes: u64,
    /// Bytes of entries in memory.
    pub resident_bytes: u64,
    /// Bytes of buffers beside the budget, from the last reads and for the next ones.
    pub buffer_bytes: u64,
    /// Bytes of the file in use.
    pub disk_bytes: u64,
    /// Chunks read back so far.
    pub loads: u64,
    /// Chunks that left memory so far.
    pub evictions: u64,
    /// Chunks written so far.
    pub writes: u64,
    /// Reads and writes that failed so far.
    pub failures: u64,
    /// How the file is read.
    pub engine: String,
    /// The last failure, while it lasts.
    pub failing: Option<String>,
}

/// The file, its places and the count of what is in memory.
pub(super) struct Spill {
    file: Box<dyn PageFile>,
    budget: u64,
    tables: AtomicU64,
    chunk_bytes: usize,
    places: Mutex<Places>,
    resident: AtomicUsize,
    buffers: Mutex<Vec<PageBuffer>>,
    /// Memory of evicted chunks, to be reused: fresh pages from the kernel cost more than a chunk's copy.
    idle: Mutex<Vec<Box<[Entry]>>>,
    trouble: Mutex<Trouble>,
    /// How many chunks were in memory when last nothing more could be evicted.
    stuck: Mutex<Option<(usize, Instant)>>,
    loads: AtomicU64,
    evictions: AtomicU64,
    writes: AtomicU64,
    failures: AtomicU64,
}

/// Which places of the file are free.
#[derive(Default)]
struct Places {
    free: Vec<u32>,
    end: u32,
}

#[derive(Default)]
struct Trouble {
    /// What failed last, and when.
    last: Option<(String, Instant)>,
    /// When the last write failed.
    write_failed: Option<Instant>,
}

impl Trouble {
    /// What fails, while it does.
    fn message(&self) -> Option<String> {
        let (message, at) = self.last.as_ref()?;
        (at.elapsed() < TROUBLE_LASTS).then(|| message.clone())
    }
}

impl Spill {
    /// Keeps chunks of `chunk_entries` entries in `file`, so that tables and the chunks in memory take `budget`
    /// bytes at most.
    pub fn new(file: Box<dyn PageFile>, budget: u64, chunk_entries: usize) -> Self {
        let chunk_bytes = chunk_entries * size_of::<Entry>();
        assert!(chunk_bytes.is_multiple_of(PAGE_BYTES), "chunks of {chunk_bytes} bytes are whole pages");
        Self {
            file,
            budget,
            tables: AtomicU64::new(0),
            chunk_bytes,
            places: Mutex::default(),
            resident: AtomicUsize::new(0),
            buffers: Mutex::default(),
            idle: Mutex::default(),
            trouble: Mutex::default(),
            stuck: Mutex::default(),
            loads: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Chunks in memory beyond the budget.
    pub fn excess(&self) -> usize {
        let budget = self.budget.saturating_sub(self.tables.load(Relaxed));
        let chunks = usize::try_from(budget).unwrap_or(usize::MAX) / self.chunk_bytes;
        self.resident.load(Relaxed).saturating_sub(chunks)
    }

    /// Whether the disk failed lately.
    pub fn is_failing(&self) -> bool {
        self.trouble.lock().message().is_some()
    }

    /// Whether there is too much in memory, and noticeably more than when last nothing could be evicted, unless that is
    /// a while ago.
    pub fn is_due(&self) -> bool {
        if self.excess() == 0 {
            return false;
        }
        let stuck = *self.stuck.lock();
        stuck.is_none_or(|(resident, at)| {
            self.resident.load(Relaxed) > resident + resident / 16 || at.elapsed() > RETRY_AFTER
        })
    }

    /// Records that nothing more can be evicted, or that all is well.
    pub fn set_stuck(&self, stuck: bool) {
        *self.stuck.lock() = stuck.then(|| (self.resident.load(Relaxed), Instant::now()));
    }

    /// Records the bytes of what always stays in memory.
    pub fn set_tables(&self, bytes: u64) {
        self.tables.store(bytes, Relaxed);
    }

    /// Counts chunks that came into memory.
    pub fn entered(&self, chunks: usize) {
        self.resident.fetch_add(chunks, Relaxed);
    }

    /// Counts chunks that left memory.
    pub fn left(&self, chunks: usize) {
        self.resident.fetch_sub(chunks, Relaxed);
    }

    /// Counts chunks that were evicted, and keeps some of their memory for the next ones.
    pub fn evicted(&self, mut chunks: Vec<Box<[Entry]>>) {
        self.left(chunks.len());
        self.evictions.fetch_add(chunks.len() as u64, Relaxed);
        let mut idle = self.idle.lock();
        let room = IDLE_CHUNKS.saturating_sub(idle.len());
        chunks.truncate(room);
        idle.append(&mut chunks);
    }

    /// Gives back a place of the file.
    pub fn free(&self, place: u32) {
        self.places.lock().free.push(place);
    }

    /// Reads the chunks at `stored`, (place, checksum) each, [`GROUP`] at most, and passes each one's index and entries
    /// to `take`.
    pub fn read(
        &self,
        stored: &[(u32, u32)],
        mut take: impl FnMut(usize, Box<[Entry]>),
    ) -> Result<(), SpillError> {
        let mut buffer = self.buffer(stored.len());
        let extents: Vec<Extent> = stored.iter().map(|&(place, _)| self.extent(place)).collect();
        let read = self.file.read(&extents, &mut buffer).map_err(SpillError::from);
        let result = read.and_then(|()| {
            for (index, (bytes, &(place, expected))) in
                buffer.bytes().chunks_exact(self.chunk_bytes).zip(stored).enumerate()
            {
                let found = crc32c::crc32c(bytes);
                if found != expected {
                    return Err(SpillError::Checksum { place, expected, found });
                }
                take(index, self.boxed(bytemuck::cast_slice(bytes)));
            }
            Ok(())
        });
        self.put_back(buffer);
        let mut trouble = self.trouble.lock();
        match &result {
            Err(error) => {
                self.failures.fetch_add(1, Relaxed);
                trouble.last = Some((error.to_string(), Instant::now()));
            }
            Ok(()) => {
                self.loads.fetch_add(stored.len() as u64, Relaxed);
                if trouble.write_failed.is_none() {
                    trouble.last = None;
                }
            }
        }
        result
    }

    /// Writes chunks, [`GROUP`] at most, and returns the place and checksum of each; `None` if a write failed, now or
    /// shortly before.
    pub fn write<'a>(&self, chunks: impl ExactSizeIterator<Item = &'a [Entry]>) -> Option<Vec<(u32, u32)>> {
        let refused = self.trouble.lock().write_failed;
        if refused.is_some_and(|at| at.elapsed() < RETRY_AFTER) {
            return None;
        }
        let count = chunks.len();
        let mut buffer = self.buffer(count);
        let mut stored = self.claim(count);
        let places = buffer.bytes_mut().chunks_exact_mut(self.chunk_bytes);
        for ((bytes, entries), (_, checksum)) in places.zip(chunks).zip(&mut stored) {
            bytes.copy_from_slice(bytemuck::cast_slice(entries));
            *checksum = crc32c::crc32c(bytes);
        }
        let written = self.write_runs(&mut buffer, &stored);
        self.put_back(buffer);
        let mut trouble = self.trouble.lock();
        match written {
            Ok(()) => {
                *trouble = Trouble::default();
                self.writes.fetch_add(count as u64, Relaxed);
                Some(stored)
            }
            Err(error) => {
                let now = Instant::now();
                *trouble = Trouble { last: Some((error.to_string(), now)), write_failed: Some(now) };
                self.failures.fetch_add(1, Relaxed);
                self.places.lock().free.extend(stored.iter().map(|(place, _)| place));
                None
            }
        }
    }

    /// Overwrites the places that hold nothing in use.
    pub fn wipe_free(&self) -> Result<(), SpillError> {
        // Cached buffers hold copies of what was read before.
        self.idle.lock().clear();
        self.buffers.lock().clear();
        // Claimed, so that no chunk is written there meanwhile: it would be overwritten.
        let free = std::mem::take(&mut self.places.lock().free);
        let zeros = PageBuffer::zeros(self.chunk_bytes / PAGE_BYTES);
        let wipe = |&place: &u32| self.file.write(self.extent(place).page, &zeros, zeros.pages());
        let wiped = free.iter().try_for_each(wipe);
        self.places.lock().free.extend(free);
        Ok(wiped?)
    }

    /// Places for `count` chunks, ascending; side by side unless much of the file is free.
    fn claim(&self, count: usize) -> Vec<(u32, u32)> {
        let mut places = self.places.lock();
        let mut claimed: Vec<u32> = Vec::with_capacity(count);
        if places.free.len() >= count && places.free.len() > places.end as usize / 8 {
            let remaining = places.free.len() - count;
            claimed.extend(places.free.drain(remaining..));
            claimed.sort_unstable();
        } else {
            for _ in 0..count {
                claimed.push(places.end);
                places.end += 1;
            }
        }
        claimed.into_iter().map(|place| (place, 0)).collect()
    }

    /// Writes what `buffer` holds to the places, those side by side with one call.
    fn write_runs(&self, buffer: &mut PageBuffer, stored: &[(u32, u32)]) -> Result<(), DiskError> {
        let mut done = 0;
        for run in stored.chunk_by(|a, b| a.0 + 1 == b.0) {
            let bytes = done * self.chunk_bytes..(done + run.len()) * self.chunk_bytes;
            buffer.bytes_mut().copy_within(bytes, 0);
            self.file.write(self.extent(run[0].0).page, buffer, run.len() * self.chunk_bytes / PAGE_BYTES)?;
            done += run.len();
        }
        Ok(())
    }

    /// Keeps a buffer for the next call; surplus ones after many concurrent reads are freed.
    fn put_back(&self, buffer: PageBuffer) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < IDLE_BUFFERS {
            buffers.push(buffer);
        }
    }

    fn boxed(&self, entries: &[Entry]) -> Box<[Entry]> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(mut memory) => {
                memory.copy_from_slice(entries);
                memory
            }
            None => entries.into(),
        }
    }

    fn extent(&self, place: u32) -> Extent {
        let pages = self.chunk_bytes / PAGE_BYTES;
        Extent { page: u64::from(place) * pages as u64, pages }
    }

    fn buffer(&self, chunks: usize) -> PageBuffer {
        let mut buffer = self.buffers.lock().pop().unwrap_or_default();
        buffer.grow(chunks * self.chunk_bytes / PAGE_BYTES);
        buffer
    }

    /// Counts so far.
    pub fn stats(&self) -> SpillStats {
        let places = self.places.lock();
        let used = places.end as usize - places.free.len();
        drop(places);
        let buffers: usize = self.buffers.lock().iter().map(|buffer| buffer.pages() * PAGE_BYTES).sum();
        let idle = self.idle.lock().len() * self.chunk_bytes;
        SpillStats {
            budget_bytes: self.budget,
            table_bytes: self.tables.load(Relaxed),
            resident_bytes: (self.resident.load(Relaxed) * self.chunk_bytes) as u64,
            buffer_bytes: (buffers + idle) as u64,
            disk_bytes: (used * self.chunk_bytes) as u64,
            loads: self.loads.load(Relaxed),
            evictions: self.evictions.load(Relaxed),
            writes: self.writes.load(Relaxed),
            failures: self.failures.load(Relaxed),
            engine: self.file.engine(),
            failing: self.trouble.lock().message(),
        }
    }
}
