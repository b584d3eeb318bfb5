//! [`ResidentRows`]: rows that are all in memory.
//!
//! Rows are in chunks that are allocated when the first of their rows is set, so streams where few events have features
//! pay for few rows. Each chunk has its own lock: readers gather while the writer adds, and a reader sees each row
//! either before or after a write, never half of one.
//!
//! A copy shares the rows of a chunk until one of both changes one of them.

use std::sync::Arc;

use parking_lot::RwLock;

use super::FeatureError;

/// Target size of a chunk in bytes; a chunk always holds a power of two of rows.
const CHUNK_BYTES: usize = 64 * 1024;

/// Rows of equal length by dense index.
pub(super) struct ResidentRows {
    pub dimension: usize,
    /// Rows of a chunk as a power of two.
    chunk_shift: u32,
    chunks: RwLock<Vec<Option<Arc<Chunk>>>>,
}

/// Rows of one chunk, one after another.
type Chunk = RwLock<Arc<[f32]>>;

impl ResidentRows {
    /// No rows yet.
    pub fn new(dimension: usize) -> Self {
        let rows = (CHUNK_BYTES / size_of::<f32>() / dimension.max(1)).max(1);
        Self { dimension, chunk_shift: rows.ilog2(), chunks: RwLock::new(Vec::new()) }
    }

    /// The rows as they are now, whatever becomes of these.
    pub fn copy(&self) -> Self {
        let share = |chunk: &Arc<Chunk>| Arc::new(RwLock::new(chunk.read().clone()));
        let chunks = self.chunks.read().iter().map(|chunk| chunk.as_ref().map(share)).collect();
        Self { chunks: RwLock::new(chunks), ..*self }
    }

    /// Sets a row; see [`FeatureStore::set`](super::FeatureStore::set).
    pub fn set(&self, index: u64, row: &[f32]) -> Result<(), FeatureError> {
        if self.dimension == 0 {
            return Ok(());
        }
        FeatureError::check(index, row, self.dimension)?;
        let (chunk, offset) = self.locate(index);
        let chunk = self.chunk_for_writing(chunk);
        Arc::make_mut(&mut *chunk.write())[offset..offset + self.dimension].copy_from_slice(row);
        Ok(())
    }

    /// Makes a row zeros, and frees its chunk if nothing else is left in it. Only the one writer calls this.
    pub fn clear(&self, index: u64) {
        let (number, offset) = self.locate(index);
        let is_empty = match self.chunks.read().get(number) {
            Some(Some(chunk)) => {
                let mut chunk = chunk.write();
                let rows = Arc::make_mut(&mut *chunk);
                rows[offset..offset + self.dimension].fill(0.0);
                rows.iter().all(|value| value.to_bits() == 0)
            }
            _ => false,
        };
        if is_empty {
            self.chunks.write()[number] = None;
        }
    }

    /// Frees the chunks whose rows are all below `index`.
    pub fn release_below(&self, index: u64) {
        let (end, _) = self.locate(index);
        self.chunks.write().iter_mut().take(end).for_each(|chunk| *chunk = None);
    }

    /// The first index from `index` on that is in a chunk that is there; `u64::MAX` where none is.
    pub fn next_begun(&self, index: u64) -> u64 {
        let (number, chunks) = (self.locate(index).0, self.chunks.read());
        let skipped = chunks.get(number..).and_then(|rest| rest.iter().position(Option::is_some));
        match skipped {
            Some(0) => index,
            Some(skipped) => ((number + skipped) as u64) << self.chunk_shift,
            None => u64::MAX,
        }
    }

    /// Copies rows into `out`, which has room for just them.
    pub fn gather(&self, indices: &[u64], out: &mut [f32]) {
        let chunks = self.chunks.read();
        for (&index, out) in indices.iter().zip(out.chunks_exact_mut(self.dimension)) {
            self.copy_row(&chunks, index, out);
        }
    }

    /// Bytes held, rows of begun chunks that were never set included.
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
            // Room for an eighth more, not for twice as many: chunks that went are never needed again.
            if chunks.capacity() <= chunk {
                let room = chunk + 1 - chunks.len() + chunks.len() / 8;
                chunks.reserve_exact(room);
            }
            chunks.resize(chunk + 1, None);
        }
        let empty = || Arc::new(RwLock::new(vec![0.0; self.dimension << self.chunk_shift].into()));
        Arc::clone(chunks[chunk].get_or_insert_with(empty))
    }
}
