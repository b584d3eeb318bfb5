//! [`TieredRows`]: rows of features, of which memory holds as many as a budget allows, and a file the rest.
//!
//! Rows are set, mostly at the end, and gathered, mostly near the end but also from long ago. What was set or found
//! recently is in memory, in units of one row or several short ones; the others are on disk, in blocks whose place
//! follows from the index. A batch that is known in advance is announced: a thread reads what is missing, and the rows
//! stay in memory until the announcement is dropped.
//!
//! # Locking
//!
//! One lock guards all that is in memory. It is held for a few dozen rows at a time and never during disk I/O. A
//! second, inner one lists the blocks that are being read or written, and by whom. There are three rules:
//!
//! 1. *A block is read or written only under a claim*, and a claim is made under the first lock, in the
//!    same hold in which the unit was found missing, or dirty. So what a reader reads matches the checksum, taken
//!    in that hold too, and no write runs concurrently.
//! 2. *What the disk does not hold stays in memory.* A unit is evicted only when it is clean, unpinned and not
//!    being written. It becomes clean when its image is taken and stays held until the write has worked. A row
//!    that is set meanwhile makes it dirty anew.
//! 3. *A thread that waits for another's claim holds none.* A gather reads what it claimed, releases it, and only
//!    then waits. So there is no deadlock; a thread that wakes starts over.
//!
//! A row that was set, or found to have changed, is never replaced by what a slower reader brings from disk: a unit in
//! memory only gets the rows that it did not have.
//!
//! # When the disk fails
//!
//! A read that fails, or whose bytes do not match the checksum, is an error of the gather that needed it, never a wrong
//! row. A write that fails leaves its rows in memory, beyond the budget if necessary, and is tried again; the
//! statistics report it.
//!
//! # Accounting
//!
//! Everything counts: slots, table, checksums, queues and buffers. [`RowStats::resident_bytes`] lists what exceeds the
//! budget. Nothing is synced and nothing outlives the process. Does not know what an index refers to.

mod ahead;
mod blocks;
mod busy;
mod fetch;
mod gather;
mod shape;
mod shared;
mod stats;
mod sums;
mod unit_cache;
mod writer;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use thiserror::Error;

use super::FeatureError;
use crate::device::disk::{DiskError, PageFile};
use ahead::Ticket;
use shape::{BATCH_BYTES, Plan, Shape};
use shared::Shared;
use unit_cache::Patched;

pub use ahead::Announced;
pub use stats::{RowState, RowStats};

/// Announcements that wait for the read-ahead thread.
const ANNOUNCEMENTS: usize = 8;

/// Rows could not be gathered.
#[derive(Debug, Error)]
pub enum RowError {
    /// The disk failed.
    #[error(
        "feature rows could not be read: {0}; they are in the event log, a restart reads them from there"
    )]
    Disk(#[from] DiskError),
    /// The disk returned other bytes than it was given.
    #[error(
        "the spilled feature rows at offset {offset} are damaged: checksum {found:08x} instead of {expected:08x}; \
         check the disk; they are in the event log, a restart reads them from there"
    )]
    Damaged {
        /// Where the block begins in the spill file.
        offset: u64,
        /// The checksum of what was written.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
    },
}

/// Rows by dense index, in memory and in a file. `Sync`: one writer and many readers.
pub struct TieredRows {
    shared: Arc<Shared>,
    announcements: Option<Sender<Arc<Ticket>>>,
    threads: Vec<JoinHandle<()>>,
}

impl TieredRows {
    /// A store for rows of `dimension` values that keeps to `budget_bytes` of memory, or to the least that works, and
    /// puts the rest into `file`. With dimension 0 it stores nothing.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(dimension: usize, budget_bytes: u64, file: Box<dyn PageFile>) -> io::Result<Self> {
        Self::with_batch(dimension, budget_bytes, *BATCH_BYTES.start(), file)
    }

    /// As `new`, with at least `batch_bytes` in one write, if there is as much.
    fn with_batch(
        dimension: usize,
        budget: u64,
        batch_bytes: usize,
        file: Box<dyn PageFile>,
    ) -> io::Result<Self> {
        let shape = Shape::new(dimension);
        let plan = Plan::new(shape, budget, batch_bytes);
        let shared = Arc::new(Shared::new(shape, plan, budget, file));
        let (announcements, announced) = crossbeam_channel::bounded(ANNOUNCEMENTS);
        let mut rows =
            Self { shared: Arc::clone(&shared), announcements: Some(announcements), threads: Vec::new() };
        if dimension > 0 {
            let writer = Arc::clone(&shared);
            rows.start("rows-write", move || writer::run(&writer))?;
            rows.start("rows-ahead", move || ahead::run(&shared, &announced))?;
        }
        Ok(rows)
    }

    fn start(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    /// Values per row.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.shared.shape.dimension
    }

    /// Sets the row of `index`, whatever it was before. A store of dimension 0 ignores every row. Blocks while more
    /// than half of the budget waits to be written by a working disk; exceeds the budget when the disk fails.
    ///
    /// # Errors
    /// [`FeatureError::Dimension`] when the row has another length than the store's rows,
    /// [`FeatureError::TooFar`] when no file reaches this index; nothing is stored then.
    pub fn set(&self, index: u64, row: &[f32]) -> Result<(), FeatureError> {
        let shape = self.shared.shape;
        if shape.dimension == 0 {
            return Ok(());
        }
        FeatureError::check(index, row, shape.dimension)?;
        if !shape.reaches(index) {
            return Err(FeatureError::TooFar { index });
        }
        let (unit, place) = shape.locate(index);
        self.patch(|shared| {
            let beyond = shared.writer.is_stuck();
            shared.cache.write().patch(unit, place, row, beyond)
        });
        Ok(())
    }

    /// Makes the row of `index` read as zeros, as if it had never been set. Its bytes on disk, or being written, are
    /// overwritten within about a second, if the disk works.
    pub fn clear(&self, index: u64) {
        let shape = self.shared.shape;
        if shape.dimension == 0 || !shape.reaches(index) {
            return;
        }
        let (unit, place) = shape.locate(index);
        let block = shape.block_of(unit);
        let zeros = vec![0.0; shape.dimension];
        self.patch(|shared| {
            let beyond = shared.writer.is_stuck();
            let mut cache = shared.cache.write();
            let on_disk = cache.sums.get(block).is_some() || shared.busy.has(block);
            if !on_disk && cache.find(unit).is_none() {
                return Patched::Done(false);
            }
            if on_disk {
                shared.writer.forget_soon();
            }
            cache.patch(unit, place, &zeros, beyond)
        });
    }

    /// Releases the blocks whose rows are all below `index`, which are not gathered any more. Their units in memory
    /// grow cold and are not written any more. Their space on disk is freed by the next call, once no read or write
    /// that had begun is running.
    pub fn release_below(&self, index: u64) {
        let Shared { shape, cache, file, .. } = &*self.shared;
        if shape.dimension == 0 || !shape.reaches(index) {
            return;
        }
        let end = shape.block_of(shape.locate(index).0);
        let idle = cache.write().release_below(end);
        if idle > 0 {
            file.discard_below(shape.extent(idle).page);
        }
    }

    /// Retries until there is room, and wakes the writer when there is something to write.
    fn patch(&self, mut patch: impl FnMut(&Shared) -> Patched) {
        let mut tries = 0;
        loop {
            match patch(&self.shared) {
                Patched::Done(behind) => {
                    if behind {
                        self.shared.writer.wake();
                    }
                    return;
                }
                Patched::NotYet if tries < self.shared.cache.read().tries() => tries += 1,
                Patched::NotYet | Patched::NoRoom => self.shared.wait_for_room(),
            }
        }
    }

    /// Copies the rows of `indices` into `out`, shape `[indices, dimension]`. Rows never set, and indices without a row
    /// such as those of a sample's empty slots, become zeros. What is not in memory is read in one go; for what other
    /// threads are reading, it waits.
    ///
    /// # Errors
    /// A row could not be read, or is damaged; `out` is void then.
    ///
    /// # Panics
    /// When `out` does not hold `indices.len() * dimension` values.
    pub fn gather(&self, indices: &[u64], out: &mut [f32]) -> Result<(), RowError> {
        assert_eq!(out.len(), indices.len() * self.dimension(), "length of the gathered rows");
        if self.dimension() == 0 {
            return Ok(());
        }
        gather::gather(&self.shared, indices, out)
    }

    /// Announces that the rows of `indices` will be gathered soon. A background thread reads what is missing, and all
    /// of it stays in memory until the result is dropped. Returns at once. Up to a quarter of the budget can be held
    /// this way; what exceeds that, or comes faster than it is read, is left to the gather.
    #[must_use = "the rows are held as long as this lives"]
    pub fn announce(&self, indices: &[u64]) -> Announced {
        let ticket = ahead::ticket(&self.shared, indices);
        let sent = self.announcements.as_ref().is_some_and(|to| to.try_send(Arc::clone(&ticket)).is_ok());
        if !sent {
            ticket.ignore(&self.shared);
        }
        Announced::new(Arc::clone(&self.shared), ticket)
    }

    /// Statistics of memory, disk and reads so far.
    #[must_use]
    pub fn stats(&self) -> RowStats {
        self.shared.stats()
    }
}

impl Drop for TieredRows {
    fn drop(&mut self) {
        self.announcements = None;
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A thread's panic was logged when it happened.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
