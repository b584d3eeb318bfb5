//! Statistics of the rows: how much is where, and what was done. Counts, no metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Whether rows are written to disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RowState {
    /// They are.
    #[default]
    Ok,
    /// They are not, for this reason. They stay in memory, beyond the budget if necessary, and are tried again.
    Degraded(String),
}

/// How much is where, and what happened since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowStats {
    /// The requested budget.
    pub asked_budget_bytes: u64,
    /// The budget in effect: as requested, or the least that works where that is more.
    pub budget_bytes: u64,
    /// Bytes of memory: slots, table, checksums, queues, buffers. Beyond the budget are only the buffers, of a 128th of
    /// it each and 2 MiB at most, of threads that gather concurrently from the second on; the lists of announcements
    /// that were not read yet; and, while the state is degraded, rows that cannot be written.
    pub resident_bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
    /// Rows that a gather found in memory.
    pub hits: u64,
    /// Those of them that an announcement held.
    pub announced_hits: u64,
    /// Rows for which a gather read, or waited for another thread's read.
    pub misses: u64,
    /// Units, of a row or some, that announcements requested and that were not held.
    pub ignored: u64,
    /// Blocks read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes, each of one or many consecutive blocks.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Total time that gathers waited for the disk.
    pub gather_wait_seconds: f64,
    /// Total time that rows to be set waited for room.
    pub set_wait_seconds: f64,
    /// Reads and writes that failed, damaged blocks included.
    pub failures: u64,
    /// Whether rows are written to disk.
    pub state: RowState,
    /// How the file is read.
    pub engine: String,
}

/// Counters that many threads add to.
#[derive(Default)]
pub(super) struct Counters {
    pub hits: AtomicU64,
    pub announced_hits: AtomicU64,
    pub misses: AtomicU64,
    pub ignored: AtomicU64,
    pub reads: AtomicU64,
    pub read_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub gather_wait_nanos: AtomicU64,
    pub set_wait_nanos: AtomicU64,
    pub failures: AtomicU64,
}

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(super) fn add_time(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl Counters {
    /// As statistics; the caller adds the rest.
    pub fn read(&self) -> RowStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RowStats {
            hits: of(&self.hits),
            announced_hits: of(&self.announced_hits),
            misses: of(&self.misses),
            ignored: of(&self.ignored),
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            written_bytes: of(&self.written_bytes),
            gather_wait_seconds: of(&self.gather_wait_nanos) as f64 * 1e-9,
            set_wait_seconds: of(&self.set_wait_nanos) as f64 * 1e-9,
            failures: of(&self.failures),
            ..RowStats::default()
        }
    }
}
