//! Tables that live longer than a tape, and are read and written by rows: a [`Tensor`] has these, without gradients.

use crate::device::Device;

use super::Tensor;
use super::cuda::gather as cuda;
use crate::device::cuda::PooledBuffer;

/// Lists of rows, which go to a GPU in one copy.
pub struct RowLists {
    lists: Vec<Vec<u32>>,
    there: Vec<PooledBuffer<u32>>,
}

impl RowLists {
    /// These lists, for tables on `device`.
    #[must_use]
    pub fn new(device: &Device, lists: Vec<Vec<u32>>) -> Self {
        let there = match device {
            Device::Cpu => Vec::new(),
            Device::Cuda(work) => work.upload_together(&lists),
        };
        Self { lists, there }
    }
}

impl Tensor {
    /// Row `index[i]` as row `i`, where the table is; zeros for a row that it does not have.
    #[must_use]
    pub fn rows_at(&self, index: &[u32]) -> Tensor {
        self.rows_listed(&RowLists::new(self.device(), vec![index.to_vec()]), 0)
    }

    /// As [`rows_at`](Self::rows_at), of list number `list`.
    #[must_use]
    pub fn rows_listed(&self, lists: &RowLists, list: usize) -> Tensor {
        let (rows, cols) = self.shape();
        let index = &lists.lists[list];
        let mut out = Tensor::room(self.device(), index.len(), cols);
        match self.device() {
            Device::Cpu => {
                for (&row, out) in index.iter().zip(out.data_mut().chunks_exact_mut(cols.max(1))) {
                    let row = row as usize;
                    if row < rows { out.copy_from_slice(self.row(row)) } else { out.fill(0.0) }
                }
            }
            Device::Cuda(work) => cuda::gather_listed(work, &mut out, self, &lists.there[list]),
        }
        out
    }

    /// Row `index[i]` becomes row `i` of `rows`, which are on the same device. Indices are unique; one beyond the table
    /// is left out.
    pub fn put_rows_at(&mut self, index: &[u32], rows: &Tensor) {
        self.put_rows_listed(&RowLists::new(self.device(), vec![index.to_vec()]), (0, None), rows);
    }

    /// The rows that list `into` names become rows of `rows`, as [`put_rows_at`](Self::put_rows_at): those that list
    /// `from` names, which is as long, if given. A row that `rows` does not have is zeros.
    pub fn put_rows_listed(&mut self, lists: &RowLists, (into, from): (usize, Option<usize>), rows: &Tensor) {
        let (index, names, count) = (&lists.lists[into], from.map(|from| &lists.lists[from]), self.rows());
        assert!(
            names.is_none_or(|names| names.len() == index.len()),
            "put_rows_listed: lists of two lengths"
        );
        match self.device().clone() {
            Device::Cpu => {
                for (i, row) in
                    index.iter().map(|row| *row as usize).enumerate().filter(|(_, row)| *row < count)
                {
                    let name = names.map_or(i, |names| names[i] as usize);
                    let row = self.row_mut(row);
                    if name < rows.rows() { row.copy_from_slice(rows.row(name)) } else { row.fill(0.0) }
                }
            }
            Device::Cuda(work) => {
                let (list, names) = (&lists.there[into], from.map(|from| &lists.there[from]));
                cuda::put_listed(&work, self, (list, index.len()), (rows, names));
            }
        }
    }

    /// A table of `rows` rows that begins with the rows of this one; those behind them are zeros. None where a GPU has
    /// no room for it.
    #[must_use]
    pub fn with_rows(&self, rows: usize) -> Option<Tensor> {
        let (count, cols) = self.shape();
        let mut longer = Tensor::zeros_apart(self.device(), rows.max(count), cols)?;
        match self.device() {
            Device::Cpu => longer.data_mut()[..count * cols].copy_from_slice(self.data()),
            Device::Cuda(work) => cuda::copy(work, &mut longer, self),
        }
        Some(longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_written_and_what_is_beyond_is_zeros_or_left_out() {
        let mut table = Tensor::from_vec(&Device::Cpu, 2, 2, vec![1.0, 2.0, 3.0, 4.0]).with_rows(3).unwrap();
        assert_eq!(table.shape(), (3, 2));
        let rows = Tensor::from_vec(&Device::Cpu, 2, 2, vec![5.0, 6.0, 7.0, 8.0]);
        table.put_rows_at(&[2, 9], &rows);
        assert_eq!(table.rows_at(&[2, 0, u32::MAX, 1]).data(), [5.0, 6.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
