//! Rows as bytes, for a snapshot: those that are not zeros, some hundred at a time. A row that is replaced meanwhile is
//! written as it was before or after.
//!
//! ```text
//! first index 8 | rows n 4 | dimension 4 | for each row whether it is there, 1 | rows that are there, 4 a value
//! ```

use std::io::{self, Error, ErrorKind};

use super::{FeatureError, FeatureStore};

/// Bytes of rows that are gathered at a time, about.
const GATHERED_BYTES: usize = 1 << 20;

impl FeatureStore {
    /// Writes the rows below `end` that are kept: calls `out` with about a megabyte at a time, each of which
    /// [`restore_rows`](Self::restore_rows) takes as a whole.
    ///
    /// # Errors
    /// What `out` returns, or that rows cannot be read.
    pub fn write_rows(&self, end: u64, out: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let dimension = self.dimension();
        if dimension == 0 {
            return Ok(());
        }
        let at_once = (GATHERED_BYTES / size_of::<f32>() / dimension).clamp(64, 1 << 16) as u64;
        let (mut indices, mut rows, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = self.next_begun(self.first());
        while first < end {
            indices.clear();
            indices.extend(first..end.min(first + at_once));
            rows.resize(indices.len() * dimension, 0.0);
            match self.gather(&indices, &mut rows) {
                Err(FeatureError::Released { first: kept, .. }) => {
                    first = kept;
                    continue;
                }
                gathered => gathered.map_err(Error::other)?,
            }
            let is_there = |row: &[f32]| row.iter().any(|value| value.to_bits() != 0);
            bytes.clear();
            bytes.extend_from_slice(&first.to_le_bytes());
            let numbers = [indices.len(), dimension].map(|number| u32::try_from(number).unwrap_or(u32::MAX));
            numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
            bytes.extend(rows.chunks_exact(dimension).map(|row| u8::from(is_there(row))));
            let heads = bytes.len();
            rows.chunks_exact(dimension)
                .filter(|row| is_there(row))
                .for_each(|row| bytes.extend_from_slice(bytemuck::cast_slice(row)));
            if bytes.len() > heads {
                out(&bytes)?;
            }
            first = self.next_begun(first + indices.len() as u64);
        }
        Ok(())
    }

    /// Takes in rows that [`write_rows`](Self::write_rows) wrote with this `end`.
    ///
    /// # Errors
    /// The bytes are no rows of this store, or cannot be stored.
    pub fn restore_rows(&self, bytes: &[u8], end: u64) -> io::Result<()> {
        let malformed = || Error::new(ErrorKind::InvalidData, "rows of features are cut off or malformed");
        let (first, rest) = bytes.split_first_chunk().ok_or_else(malformed)?;
        let (count, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (dimension, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
        let (first, count) = (u64::from_le_bytes(*first), u32::from_le_bytes(*count) as usize);
        let dimension = u32::from_le_bytes(*dimension) as usize;
        if dimension != self.dimension() || dimension == 0 {
            let found = format!("rows of {dimension} features, not {}", self.dimension());
            return Err(Error::new(ErrorKind::InvalidData, found));
        }
        let is_inside = first.checked_add(count as u64).is_some_and(|behind| behind <= end);
        let (there, values) = rest.split_at_checked(count).filter(|_| is_inside).ok_or_else(malformed)?;
        let rows = values.chunks_exact(dimension * size_of::<f32>());
        let set = (first..).zip(there).filter(|(_, there)| **there != 0).map(|(index, _)| index);
        if !rows.remainder().is_empty() || rows.len() != there.iter().filter(|there| **there != 0).count() {
            return Err(malformed());
        }
        let mut row = vec![0.0; dimension];
        for (index, bytes) in set.zip(rows) {
            bytemuck::cast_slice_mut(&mut row).copy_from_slice(bytes);
            self.set(index, &row).map_err(Error::other)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::disk::tests::faulty::{Fault, Faulty};

    #[test]
    fn rows_come_back_in_memory_and_from_disk_without_what_was_released() {
        for dimension in [1, 172] {
            let file = || Box::new(Faulty::new(|_| Fault::Works));
            let tiered = || FeatureStore::with_budget(dimension, 0, file()).unwrap();
            let stores = [(FeatureStore::new(dimension), tiered()), (tiered(), FeatureStore::new(dimension))];
            for (saved, loaded) in stores {
                let row = |index: u64| vec![index as f32 + 0.5; dimension];
                (0..9_000).filter(|index| index % 3 > 0).for_each(|i| saved.set(i, &row(i)).unwrap());
                saved.release_below(1_000);
                saved.clear(5_000);
                let mut parts = Vec::new();
                let mut keep = |part: &[u8]| {
                    parts.push(part.to_vec());
                    Ok(())
                };
                saved.write_rows(8_000, &mut keep).unwrap();
                parts.iter().for_each(|part| loaded.restore_rows(part, 8_000).unwrap());
                let mut found = vec![0.0; dimension];
                for index in 1_000..9_000 {
                    loaded.row_into(index, &mut found).unwrap();
                    let is_there = index % 3 > 0 && index < 8_000 && index != 5_000;
                    let expected = if is_there { row(index) } else { vec![0.0; dimension] };
                    assert_eq!(found, expected, "row {index} of {dimension}");
                }
                (1_000..6_000).for_each(|index| saved.clear(index));
                let mut next = Vec::new();
                let mut keep = |part: &[u8]| {
                    next.push(part.to_vec());
                    Ok(())
                };
                saved.write_rows(8_000, &mut keep).unwrap();
                let again = FeatureStore::new(dimension);
                next.iter().for_each(|part| again.restore_rows(part, 8_000).unwrap());
                for index in 1_000..8_000 {
                    again.row_into(index, &mut found).unwrap();
                    let is_there = index % 3 > 0 && index >= 6_000;
                    assert_eq!(found, if is_there { row(index) } else { vec![0.0; dimension] }, "{index}");
                }
                let cut = &parts[0][..parts[0].len() - 1];
                assert!(
                    loaded.restore_rows(cut, 8_000).is_err() && loaded.restore_rows(&cut[..10], 9).is_err()
                );
                assert!(loaded.restore_rows(&parts[0], 1_000).is_err(), "beyond the end");
                assert!(FeatureStore::new(dimension + 1).restore_rows(&parts[0], 8_000).is_err());
            }
        }
    }
}
