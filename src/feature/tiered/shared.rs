//! [`Shared`]: the state that the store, its two threads and its announcements share, and the buffers that blocks pass
//! through.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};

use super::busy::Busy;
use super::shape::{Plan, Shape};
use super::stats::{Counters, RowStats, add_time};
use super::unit_cache::UnitCache;
use super::writer::WriterState;
use crate::device::disk::{PAGE_BYTES, PageBuffer, PageFile};

/// Buffers that are kept for the next use.
const IDLE_BUFFERS: usize = 2;

pub(super) struct Shared {
    pub shape: Shape,
    pub plan: Plan,
    asked_budget: u64,
    pub file: Box<dyn PageFile>,
    pub cache: RwLock<UnitCache>,
    /// Locked inside `cache`, or alone.
    pub busy: Busy,
    pub writer: WriterState,
    pub counters: Counters,
    /// Units that announcements hold, or have reserved.
    pub announced: AtomicUsize,
    /// Bytes of the lists of announcements.
    pub announced_bytes: AtomicU64,
    buffers: Mutex<Vec<PageBuffer>>,
    buffer_bytes: AtomicU64,
}

impl Shared {
    pub fn new(shape: Shape, plan: Plan, asked_budget: u64, file: Box<dyn PageFile>) -> Self {
        Self {
            shape,
            plan,
            asked_budget,
            file,
            cache: RwLock::new(UnitCache::new(shape, plan)),
            busy: Busy::default(),
            writer: WriterState::default(),
            counters: Counters::default(),
            announced: AtomicUsize::new(0),
            announced_bytes: AtomicU64::new(0),
            buffers: Mutex::new(Vec::new()),
            buffer_bytes: AtomicU64::new(0),
        }
    }

    /// A buffer for a batch of blocks; its content is undefined.
    pub fn buffer(&self) -> Buffer<'_> {
        let idle = self.buffers.lock().pop();
        let pages = idle.unwrap_or_else(|| {
            let pages = PageBuffer::zeros(self.plan.batch_blocks * self.shape.block_pages);
            self.buffer_bytes.fetch_add(bytes_of(&pages), Ordering::Relaxed);
            pages
        });
        Buffer { shared: self, pages }
    }

    /// Wakes the writer and waits briefly for its progress.
    pub fn wait_for_room(&self) {
        let started = Instant::now();
        self.writer.wake_and_wait();
        add_time(&self.counters.set_wait_nanos, started.elapsed());
    }

    pub fn stop(&self) {
        self.writer.stop();
    }

    pub fn stats(&self) -> RowStats {
        let (cached, blocks) = {
            let cache = self.cache.read();
            (cache.bytes(), cache.sums.written())
        };
        let beside = [&self.buffer_bytes, &self.announced_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        RowStats {
            asked_budget_bytes: self.asked_budget,
            budget_bytes: self.plan.budget,
            resident_bytes: cached + beside.iter().sum::<u64>() + size_of::<Self>() as u64,
            disk_bytes: blocks * self.shape.block_bytes() as u64,
            state: self.writer.state(),
            engine: self.file.engine(),
            ..self.counters.read()
        }
    }
}

fn bytes_of(pages: &PageBuffer) -> u64 {
    (pages.pages() * PAGE_BYTES) as u64
}

/// A pooled buffer.
pub(super) struct Buffer<'a> {
    shared: &'a Shared,
    pages: PageBuffer,
}

impl Deref for Buffer<'_> {
    type Target = PageBuffer;

    fn deref(&self) -> &PageBuffer {
        &self.pages
    }
}

impl DerefMut for Buffer<'_> {
    fn deref_mut(&mut self) -> &mut PageBuffer {
        &mut self.pages
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        let mut idle = self.shared.buffers.lock();
        if idle.len() < IDLE_BUFFERS {
            idle.push(pages);
        } else {
            self.shared.buffer_bytes.fetch_sub(bytes_of(&pages), Ordering::Relaxed);
        }
    }
}
