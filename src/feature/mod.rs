//! Floor 2: rows of features. A [`FeatureStore`] holds one row of fixed dimension per edge or node,
//! found by its dense index; a row that was never set reads as zeros.
//!
//! Rows stand in chunks that are allocated when the first of their rows is set, so streams where few
//! events carry features pay for few rows. Each chunk has its own lock: readers gather while the writer
//! adds, and a reader sees each row either before or after a write, never half of one.
//!
//! [`TieredRows`] are rows of which memory holds as many as a budget pays for, and a file the rest.
//!
//! Knows nothing of what an index stands for.

mod tiered;

use std::sync::Arc;

use parking_lot::RwLock;
use thiserror::Error;

pub use tiered::{Announced, RowError, RowState, RowStats, TieredRows};

/// Target size of a chunk in bytes; a chunk always holds a power of two of rows.
const CHUNK_BYTES: usize = 64 * 1024;

/// A row did not fit the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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
}

/// All rows of one kind, by dense index. `Sync`: one writer and many readers.
pub struct FeatureStore {
    dimension: usize,
    /// Rows of a chunk as a power of two.
    chunk_shift: u32,
    chunks: RwLock<Vec<Option<Arc<Chunk>>>>,
}

/// Rows of one chunk, one after another.
type Chunk = RwLock<Box<[f32]>>;

impl FeatureStore {
    /// A store for rows of `dimension` values. With dimension 0 it stores nothing.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        let rows = (CHUNK_BYTES / size_of::<f32>() / dimension.max(1)).max(1);
        Self { dimension, chunk_shift: rows.ilog2(), chunks: RwLock::new(Vec::new()) }
    }

    /// Values per row.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.dimension
    }

    /// Sets the row of `index`, whatever it was before. Indices are dense: memory follows the highest. A
    /// store of dimension 0 ignores every row.
    ///
    /// # Errors
    /// [`FeatureError::Dimension`] when the row has another length than the store's rows; nothing is
    /// stored then.
    pub fn set(&self, index: u64, row: &[f32]) -> Result<(), FeatureError> {
        if self.dimension == 0 {
            return Ok(());
        }
        if row.len() != self.dimension {
            return Err(FeatureError::Dimension { index, expected: self.dimension, found: row.len() });
        }
        let (chunk, offset) = self.locate(index);
        let chunk = self.chunk_for_writing(chunk);
        chunk.write()[offset..offset + self.dimension].copy_from_slice(row);
        Ok(())
    }

    /// Makes the row of `index` read as zeros, as if it had never been set.
    pub fn clear(&self, index: u64) {
        let (chunk, offset) = self.locate(index);
        if let Some(Some(chunk)) = self.chunks.read().get(chunk) {
            chunk.write()[offset..offset + self.dimension].fill(0.0);
        }
    }

    /// Copies the rows of `indices` into `out`, shape `[indices, dimension]`. Rows never set, and
    /// indices that stand for nothing such as those of a sample's empty slots, become zeros.
    ///
    /// # Panics
    /// When `out` does not hold `indices.len() * dimension` values.
    pub fn gather(&self, indices: &[u64], out: &mut [f32]) {
        assert_eq!(out.len(), indices.len() * self.dimension, "length of the gathered rows");
        if self.dimension == 0 {
            return;
        }
        let chunks = self.chunks.read();
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(self.dimension)) {
            self.copy_row(&chunks, index, out);
        }
    }

    /// Copies the row of `index` into `out`; zeros if it was never set.
    ///
    /// # Panics
    /// When `out` does not hold `dimension` values.
    pub fn row_into(&self, index: u64, out: &mut [f32]) {
        self.gather(&[index], out);
    }

    /// Bytes held, rows of begun chunks that were never set included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let chunks = self.chunks.read();
        let begun = chunks.iter().flatten().count();
        let per_chunk = size_of::<Chunk>() + ((self.dimension * size_of::<f32>()) << self.chunk_shift);
        (size_of::<Self>() + chunks.capacity() * size_of::<Option<Arc<Chunk>>>() + begun * per_chunk) as u64
    }

    /// The chunk that holds `index` and where the row starts in it.
    fn locate(&self, index: u64) -> (usize, usize) {
        let chunk = usize::try_from(index >> self.chunk_shift).unwrap_or(usize::MAX);
        #[allow(clippy::cast_possible_truncation, reason = "below the rows of a chunk")]
        let row = (index & ((1 << self.chunk_shift) - 1)) as usize;
        (chunk, row * self.dimension)
    }

    fn copy_row(&self, chunks: &[Option<Arc<Chunk>>], index: u64, out: &mut [f32]) {
        let (chunk, offset) = self.locate(index);
        match chunks.get(chunk) {
            Some(Some(chunk)) => out.copy_from_slice(&chunk.read()[offset..offset + self.dimension]),
            _ => out.fill(0.0),
        }
    }

    fn chunk_for_writing(&self, chunk: usize) -> Arc<Chunk> {
        if let Some(Some(found)) = self.chunks.read().get(chunk) {
            return Arc::clone(found);
        }
        let mut chunks = self.chunks.write();
        if chunks.len() <= chunk {
            chunks.resize(chunk + 1, None);
        }
        let empty = || Arc::new(RwLock::new(vec![0.0; self.dimension << self.chunk_shift].into()));
        Arc::clone(chunks[chunk].get_or_insert_with(empty))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let asked = [5, 2, 70_000, u64::MAX, 0, 69_999, 5];
            let mut out = vec![f32::NAN; asked.len() * dimension];
            store.gather(&asked, &mut out);
            for (&index, found) in asked.iter().zip(out.chunks(dimension)) {
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
        store.row_into(3, &mut out);
        assert_eq!(out, [4.0, 5.0]);
        store.clear(3);
        store.clear(1 << 40);
        store.row_into(3, &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }

    #[test]
    fn dimension_zero_stores_nothing() {
        let store = FeatureStore::new(0);
        let before = store.bytes();
        store.set(1 << 40, &[1.0]).unwrap();
        store.gather(&[1, 2], &mut []);
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
                        store.gather(&[0, 1, 2, 3, 500, 501, 502, 503], &mut out);
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
