//! Floor 2: rows of features. A [`FeatureStore`] holds one row of fixed dimension per edge or node,
//! found by its dense index; a row that was never set reads as zeros.
//!
//! All rows are in memory ([`resident`]), or as many as a budget allows, and the others in a file ([`tiered`]). Reading
//! may fail, as storage can; the output is void then. Callers that know early which rows they will gather announce
//! them, so that they are read in the background.
//!
//! Rows below an index can be released once no valid request can need them: their memory and disk space are freed in
//! whole chunks, and to gather one is a named error, before as after its chunk is freed.
//!
//! Does not know what an index refers to.

pub mod cache;
mod cleared;
mod resident;
mod saved;
mod tiered;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use crate::device::disk::PageFile;
use cleared::Cleared;
use resident::ResidentRows;
pub use tiered::{Announced, RowError, RowState, RowStats, TieredRows};

/// A row that was not stored, or rows that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FeatureError {
    /// The row has another length than the store's rows.
    #[error(
        "the feature row of index {index} has {found} values, but rows of this store have {expected}; \
         set the configured dimension to that of the stream"
    )]
    Dimension {
        /// Index of the row.
        index: u64,
        /// Length of the store's rows.
        expected: usize,
        /// Length of the row given.
        found: usize,
    },
    /// No file is long enough for this index.
    #[error("a feature row of index {index} lies beyond the end of any file; indices have to be dense")]
    TooFar {
        /// Index of the row.
        index: u64,
    },
    /// The row was released.
    #[error("the feature row of index {index} was released, as were all below {first}; later rows are kept")]
    Released {
        /// Index of the row.
        index: u64,
        /// The first index that is kept.
        first: u64,
    },
    /// Rows could not be read from where they are kept.
    #[error("feature rows of {dimension} values could not be read: {reason}")]
    Read {
        /// Length of the store's rows.
        dimension: usize,
        /// The storage's error.
        reason: String,
    },
}

impl FeatureError {
    /// An error unless `row` has the `expected` length.
    fn check(index: u64, row: &[f32], expected: usize) -> Result<(), Self> {
        let found = row.len();
        if found == expected { Ok(()) } else { Err(Self::Dimension { index, expected, found }) }
    }
}

/// All rows of one kind, by dense index. `Sync`: one writer and many readers.
pub struct FeatureStore {
    rows: Rows,
    /// Rows below this index were released.
    released: AtomicU64,
    /// See [`version`](Self::version).
    version: AtomicU64,
    /// See [`id`](Self::id).
    id: u64,
    cleared: Cleared,
    /// Set while reads are to fail.
    fault: Option<Arc<AtomicBool>>,
}

enum Rows {
    Resident(ResidentRows),
    Tiered(TieredRows),
}

impl FeatureStore {
    /// A store for rows of `dimension` values, all in memory. With dimension 0 it stores nothing.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        Self::of(Rows::Resident(ResidentRows::new(dimension)))
    }

    /// A store that takes about `budget` bytes of memory and keeps the other rows in `file`.
    ///
    /// # Errors
    /// When the threads that read ahead and write cannot be started.
    pub fn with_budget(dimension: usize, budget: u64, file: Box<dyn PageFile>) -> io::Result<Self> {
        Ok(Self::of(Rows::Tiered(TieredRows::new(dimension, budget, file)?)))
    }

    /// A store whose rows cannot be read while `fault` is set: for tests of what depends on a store.
    #[must_use]
    pub fn with_fault(dimension: usize, fault: Arc<AtomicBool>) -> Self {
        Self { fault: Some(fault), ..Self::new(dimension) }
    }

    fn of(rows: Rows) -> Self {
        let id = fresh_version();
        let (version, cleared) = (AtomicU64::new(id), Cleared::default());
        Self { rows, released: AtomicU64::new(0), version, id, cleared, fault: None }
    }

    /// The rows as they are now, whatever becomes of these: only what changes is copied, when it does. `None` if rows
    /// are on disk.
    #[must_use]
    pub fn copy(&self) -> Option<Self> {
        let Rows::Resident(rows) = &self.rows else { return None };
        let (released, fault) = (self.released.load(Ordering::Acquire), self.fault.clone());
        Some(Self { released: AtomicU64::new(released), fault, ..Self::of(Rows::Resident(rows.copy())) })
    }

    /// A version of the rows that were set, unique across stores, never 0. It changes when a row is cleared. Rows are
    /// set once, before they are gathered, so setting one does not change it.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// A number that no other store has.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How many rows were cleared so far.
    #[must_use]
    pub fn cleared(&self) -> u64 {
        self.cleared.count()
    }

    /// The rows that were cleared after the first `count`, for whoever keeps copies of rows; `None` if too many were.
    #[must_use]
    pub fn cleared_after(&self, count: u64) -> Option<Vec<u64>> {
        self.cleared.after(count)
    }

    /// Values per row.
    #[must_use]
    pub fn dimension(&self) -> usize {
        match &self.rows {
            Rows::Resident(rows) => rows.dimension,
            Rows::Tiered(rows) => rows.dimension(),
        }
    }

    /// Sets the row of `index`, whatever it was before. Indices are dense: memory follows the highest. A
    /// store of dimension 0 ignores every row.
    ///
    /// # Errors
    /// [`FeatureError::Dimension`] when the row has another length than the store's rows,
    /// [`FeatureError::TooFar`] when no file reaches this index; nothing is stored then.
    pub fn set(&self, index: u64, row: &[f32]) -> Result<(), FeatureError> {
        match &self.rows {
            Rows::Resident(rows) => rows.set(index, row),
            Rows::Tiered(rows) => rows.set(index, row),
        }
    }

    /// Makes the row of `index` read as zeros, as if it had never been set.
    pub fn clear(&self, index: u64) {
        if index < self.first() {
            return;
        }
        match &self.rows {
            Rows::Resident(rows) => rows.clear(index),
            Rows::Tiered(rows) => rows.clear(index),
        }
        self.cleared.push(index);
        // Concurrent gathers read the version before.
        self.version.store(fresh_version(), Ordering::Release);
    }

    /// Releases the rows below `index`, for good. What is not a whole chunk stays for now, unreadable.
    pub fn release_below(&self, index: u64) {
        // Set first: a reader that finds a row released reads it afterwards.
        if self.released.fetch_max(index, Ordering::AcqRel) >= index {
            return;
        }
        match &self.rows {
            Rows::Resident(rows) => rows.release_below(index),
            Rows::Tiered(rows) => rows.release_below(index),
        }
    }

    /// Rows below this index were released.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Copies the rows of `indices` into `out`, shape `[indices, dimension]`. Rows never set, and indices without a row
    /// such as those of a sample's empty slots, become zeros.
    ///
    /// # Errors
    /// [`FeatureError::Read`] when storage fails, [`FeatureError::Released`] when a row was released; `out` is void
    /// then.
    ///
    /// # Panics
    /// When `out` does not hold `indices.len() * dimension` values.
    pub fn gather(&self, indices: &[u64], out: &mut [f32]) -> Result<(), FeatureError> {
        assert_eq!(out.len(), indices.len() * self.dimension(), "length of the gathered rows");
        if self.dimension() == 0 {
            return Ok(());
        }
        if self.fault.as_ref().is_some_and(|fault| fault.load(Ordering::Acquire)) {
            return Err(self.failed(&"the storage's fault is set"));
        }
        let gathered = match &self.rows {
            Rows::Resident(rows) => {
                rows.gather(indices, out);
                Ok(())
            }
            Rows::Tiered(rows) => rows.gather(indices, out).map_err(|error| self.failed(&error)),
        };
        self.check_kept(indices)?;
        gathered
    }

    /// An error if one of the rows was released.
    ///
    /// # Errors
    /// [`FeatureError::Released`].
    pub fn check_kept(&self, indices: &[u64]) -> Result<(), FeatureError> {
        let first = self.first();
        match indices.iter().find(|&&index| index < first) {
            Some(&index) => Err(FeatureError::Released { index, first }),
            None => Ok(()),
        }
    }

    /// Announces rows that will be gathered soon: they are read in the background and stay in memory until the returned
    /// value is dropped. Never waits. `None` from a store that holds all rows.
    pub fn announce(&self, indices: &[u64]) -> Option<Announced> {
        match &self.rows {
            Rows::Resident(_) => None,
            Rows::Tiered(rows) => Some(rows.announce(indices)),
        }
    }

    /// Copies the row of `index` into `out`; zeros if it was never set.
    ///
    /// # Errors
    /// As [`Self::gather`].
    ///
    /// # Panics
    /// When `out` does not hold `dimension` values.
    pub fn row_into(&self, index: u64, out: &mut [f32]) -> Result<(), FeatureError> {
        self.gather(&[index], out)
    }

    /// The first index from `index` on whose row may have been set: a pass over all rows skips those before it.
    fn next_begun(&self, index: u64) -> u64 {
        match &self.rows {
            Rows::Resident(rows) => rows.next_begun(index),
            Rows::Tiered(_) => index,
        }
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.rows {
            Rows::Resident(rows) => rows.bytes(),
            Rows::Tiered(rows) => rows.stats().resident_bytes,
        }
    }

    /// Statistics of the tiers; `None` where all rows are in memory.
    #[must_use]
    pub fn tiered_stats(&self) -> Option<RowStats> {
        match &self.rows {
            Rows::Resident(_) => None,
            Rows::Tiered(rows) => Some(rows.stats()),
        }
    }

    fn failed(&self, reason: &dyn std::fmt::Display) -> FeatureError {
        FeatureError::Read { dimension: self.dimension(), reason: reason.to_string() }
    }
}

/// A version that no store had.
fn fresh_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::disk::tests::faulty::{Fault, Faulty};

    fn row(index: u64, dimension: usize) -> Vec<f32> {
        (0..dimension).map(|i| (index * 31 + i as u64) as f32).collect()
    }

    #[test]
    fn rows_come_back_and_absent_rows_are_zero() {
        for dimension in [1, 3, 172, 40_000] {
            let store = FeatureStore::new(dimension);
            let indices = [0, 1, 5, 4_095, 70_000];
            for &index in &indices {
                store.set(index, &row(index, dimension)).unwrap();
            }
            let requested = [5, 2, 70_000, u64::MAX, 0, 69_999, 5];
            let mut out = vec![f32::NAN; requested.len() * dimension];
            store.gather(&requested, &mut out).unwrap();
            for (&index, found) in requested.iter().zip(out.chunks(dimension)) {
                let expected =
                    if indices.contains(&index) { row(index, dimension) } else { vec![0.0; dimension] };
                assert_eq!(found, expected, "row {index} of dimension {dimension}");
            }
        }
    }

    #[test]
    fn a_row_can_be_replaced_and_a_wrong_one_is_refused() {
        let store = FeatureStore::new(2);
        store.set(3, &[1.0, 2.0]).unwrap();
        store.set(3, &[4.0, 5.0]).unwrap();
        let wrong = store.set(3, &[6.0]);
        assert_eq!(wrong, Err(FeatureError::Dimension { index: 3, expected: 2, found: 1 }));
        let mut out = [0.0; 2];
        store.row_into(3, &mut out).unwrap();
        assert_eq!(out, [4.0, 5.0]);
        store.clear(3);
        store.clear(1 << 40);
        store.row_into(3, &mut out).unwrap();
        assert_eq!(out, [0.0, 0.0]);
    }

    #[test]
    fn a_store_that_fails_says_so_and_is_whole_afterwards() {
        let fault = Arc::new(AtomicBool::new(false));
        let store = FeatureStore::with_fault(1, fault.clone());
        store.set(0, &[3.0]).unwrap();
        store.announce(&[0, 7]);
        let mut out = [0.0];
        fault.store(true, Ordering::Release);
        assert!(matches!(store.row_into(0, &mut out), Err(FeatureError::Read { dimension: 1, .. })));
        fault.store(false, Ordering::Release);
        store.row_into(0, &mut out).unwrap();
        assert_eq!(out, [3.0]);
    }

    #[test]
    fn released_rows_are_an_error_and_give_their_memory_back() {
        let file = Faulty::new(|_| Fault::Works);
        let stores = [FeatureStore::new(64), FeatureStore::with_budget(64, 0, Box::new(file)).unwrap()];
        for store in stores {
            let held = || store.tiered_stats().map_or_else(|| store.bytes(), |stats| stats.disk_bytes);
            (0..60_000).for_each(|index| store.set(index, &row(index, 64)).unwrap());
            let before = held();
            store.release_below(50_001);
            store.release_below(7);
            store.clear(3);
            assert!(held() < before / 3 && held() > 0, "{} of {before}", held());
            let mut out = vec![0.0; 3 * 64];
            store.gather(&[50_001, u64::MAX, 59_999], &mut out).unwrap();
            assert_eq!((&out[..64], &out[128..]), (&row(50_001, 64)[..], &row(59_999, 64)[..]));
            for index in [0, 7, 50_000] {
                let released = Err(FeatureError::Released { index, first: 50_001 });
                assert_eq!(store.gather(&[59_999, index, 60_000], &mut out), released);
            }
        }
    }

    #[test]
    fn a_row_that_is_cleared_makes_another_version() {
        let (one, other) = (FeatureStore::new(1), FeatureStore::new(1));
        let versions = || [one.version(), other.version()];
        let first = versions();
        one.set(3, &[5.0]).unwrap();
        assert_eq!(versions(), first, "it was not gathered before");
        one.clear(3);
        assert!(first[0] != first[1] && versions()[0] != first[0] && !first.contains(&0));
        assert!(versions()[0] != first[1] && versions()[1] == first[1]);
    }

    #[test]
    fn dimension_zero_stores_nothing() {
        let store = FeatureStore::new(0);
        let before = store.bytes();
        store.set(1 << 40, &[1.0]).unwrap();
        store.gather(&[1, 2], &mut []).unwrap();
        assert_eq!(store.bytes(), before);
    }

    #[test]
    fn only_begun_chunks_cost_memory() {
        let store = FeatureStore::new(16);
        store.set(0, &[1.0; 16]).unwrap();
        store.set(900_000, &[1.0; 16]).unwrap();
        assert!(store.bytes() < 300_000, "{}", store.bytes());
    }

    #[test]
    fn readers_see_whole_rows_while_the_writer_sets() {
        let store = FeatureStore::new(64);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut out = vec![0.0; 64 * 8];
                    loop {
                        store.gather(&[0, 1, 2, 3, 500, 501, 502, 503], &mut out).unwrap();
                        for row in out.chunks(64) {
                            assert!(row.iter().all(|v| *v == row[0]), "half-written row {row:?}");
                        }
                        if out[64 * 7] == 2_000.0 {
                            break;
                        }
                    }
                });
            }
            for round in 1..=2_000_u16 {
                for index in [0, 1, 2, 3, 500, 501, 502, 503] {
                    store.set(index, &[f32::from(round); 64]).unwrap();
                }
            }
        });
    }
}
