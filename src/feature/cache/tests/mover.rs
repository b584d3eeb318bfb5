//! [`RowCache`]: rows in host memory, moved as [`CacheDirectory`] decides, so that its decisions can be compared with
//! the bytes of a source.

use super::{CacheCounts, CacheDirectory, Found, Placed};

/// Rows by id, in slots.
pub struct RowCache {
    dimension: usize,
    pub directory: CacheDirectory,
    values: Vec<f32>,
    found: Found,
    placed: Vec<Placed>,
    /// Rows that are being fetched from the source.
    requested: Vec<u64>,
    fetched: Vec<f32>,
}

impl RowCache {
    /// An empty cache that knows at most `look_ahead` rounds beyond the current one.
    pub fn new(slots: u32, dimension: usize, look_ahead: u32) -> Self {
        Self {
            dimension,
            directory: CacheDirectory::new(slots, look_ahead),
            values: vec![0.0; slots as usize * dimension],
            found: Found::default(),
            placed: Vec::new(),
            requested: Vec::new(),
            fetched: Vec::new(),
        }
    }

    /// Counts so far.
    pub fn counts(&self) -> CacheCounts {
        self.directory.counts()
    }

    /// How many more rounds may be announced.
    pub fn room(&self) -> usize {
        self.directory.room()
    }

    /// Announces the rows of the round after all those announced, each once.
    pub fn announce(&mut self, ids: &[u64]) {
        self.directory.announce(ids);
    }

    /// The rows of the current round: the earliest one announced that was not taken.
    pub fn ids(&self) -> &[u64] {
        self.directory.ids()
    }

    /// Brings in what the current round will miss, as far as there is room beside rows that known rounds need. `source`
    /// copies the rows of ids into its second argument, shape `[ids, dimension]`. Returns how many.
    pub fn prepare<E>(
        &mut self,
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<usize, E> {
        self.directory.look_up(&mut self.found);
        let rows = self.directory.restorable(&self.found);
        if rows == 0 {
            return Ok(0);
        }
        self.fetch(rows, source)?;
        let first: Vec<u32> = self.found.misses()[..rows].to_vec();
        self.directory.restore(&mut self.found, (rows, |_| true), &mut self.placed);
        let dimension = self.dimension;
        let mut rows = first.iter().zip(self.fetched.chunks_exact(dimension.max(1)));
        for placed in &self.placed {
            // Both are in the order of the round.
            if let Some((_, row)) = rows.find(|(place, _)| **place == placed.row) {
                self.values[placed.slot as usize * dimension..][..dimension].copy_from_slice(row);
            }
        }
        Ok(self.placed.len())
    }

    /// Copies all rows of the current round into `out`, shape `[ids, dimension]`, and goes on to the next.
    /// `source` is as in [`prepare`](Self::prepare).
    pub fn take<E>(
        &mut self,
        out: &mut [f32],
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let dimension = self.dimension;
        assert_eq!(out.len(), self.ids().len() * dimension, "length of the rows of the round");
        self.directory.look_up(&mut self.found);
        if dimension > 0 {
            let misses = self.found.misses().len();
            if misses > 0 {
                self.fetch(misses, source)?;
            }
            let mut fetched = self.fetched.chunks_exact(dimension);
            for (row, &slot) in out.chunks_exact_mut(dimension).zip(self.found.slots()) {
                let from = match slot {
                    Found::MISS => fetched.next(),
                    slot => Some(self.slot(slot)),
                };
                if let Some(from) = from {
                    row.copy_from_slice(from);
                }
            }
        }
        self.directory.turn(&self.found, &mut self.placed);
        for &Placed { row, slot } in &self.placed {
            let first = row as usize * dimension;
            self.values[slot as usize * dimension..][..dimension]
                .copy_from_slice(&out[first..first + dimension]);
        }
        Ok(())
    }

    /// The row of `id` has changed in its source, to `row`: if it is in the cache, it is changed there too.
    pub fn write(&mut self, id: u64, row: &[f32]) {
        assert_eq!(row.len(), self.dimension, "length of a row");
        if let Some(slot) = self.directory.slot_of(id) {
            self.values[slot as usize * self.dimension..][..self.dimension].copy_from_slice(row);
        }
    }

    /// The row of `id` has changed in its source: if it is in the cache, it is dropped. Returns whether it was there.
    pub fn invalidate(&mut self, id: u64) -> bool {
        self.directory.invalidate(id)
    }

    /// Drops every row. Known rounds stay known.
    pub fn clear(&mut self) {
        self.directory.clear();
    }

    /// Fetches the first `rows` misses of the current round.
    fn fetch<E>(
        &mut self,
        rows: usize,
        source: impl FnOnce(&[u64], &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ids = self.directory.ids();
        self.requested.clear();
        self.requested.extend(self.found.misses()[..rows].iter().map(|&row| ids[row as usize]));
        self.fetched.resize(rows * self.dimension, 0.0);
        source(&self.requested, &mut self.fetched)
    }

    /// The row in `slot`.
    pub fn slot(&self, slot: u32) -> &[f32] {
        &self.values[slot as usize * self.dimension..][..self.dimension]
    }
}
