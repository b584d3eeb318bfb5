//! Rows by index, and side by side.

use std::sync::Arc;

use super::linear::put;
use super::{rows_behind, rows_of, whole, whole_mut};
use crate::device::cuda::layers::{
    Layout, Part, Put, RowReaders, add_rows, join_rows, put_rows, scatter_add_rows,
};
use crate::device::cuda::{CudaWork, PooledBuffer};
use crate::nn::Tensor;
use crate::nn::cpu::gather::InverseIndex;

/// Values that one launch joins.
const PARTS: usize = 4;

/// `y[i] = x[index[i]]`.
pub fn gather(work: &Arc<CudaWork>, y: &mut Tensor, x: &Tensor, index: &[u32]) {
    let list = work.upload(index);
    work.run(|context| join_rows(context, &[rows_of(x, Some(list.get()?))?], index.len(), whole_mut(y)?));
}

/// `y[i] = table[index[i]]`, or adds it, and rectifies what comes out if asked for.
pub fn gather_add(work: &Arc<CudaWork>, y: &mut Tensor, table: &Tensor, index: &[u32], how: Put) {
    let list = work.upload(index);
    work.run(|context| {
        add_rows(context, rows_of(table, Some(list.get()?))?, None, index.len(), how, whole_mut(y)?)
    });
}

/// `y[i] = x[i] + table[index[i]]`.
pub fn sum_gathered(work: &Arc<CudaWork>, y: &mut Tensor, x: &Tensor, table: &Tensor, index: &[u32]) {
    let list = work.upload(index);
    work.run(|context| {
        let (part, before) = (rows_of(table, Some(list.get()?))?, rows_of(x, None)?);
        add_rows(context, part, Some(before), index.len(), Put::ADD, whole_mut(y)?)
    });
}

/// `y[i] = x[list[i]]`.
pub fn gather_listed(work: &CudaWork, y: &mut Tensor, x: &Tensor, list: &PooledBuffer<u32>) {
    let count = y.rows();
    work.run(|context| join_rows(context, &[rows_of(x, Some(list.get()?))?], count, whole_mut(y)?));
}

/// Row `list[i]` of `y` becomes row i of `rows`, or the row of it that `from` names, for each i of `count`.
pub fn put_listed(
    work: &CudaWork,
    y: &mut Tensor,
    (list, count): (&PooledBuffer<u32>, usize),
    (rows, from): (&Tensor, Option<&PooledBuffer<u32>>),
) {
    work.run(|context| {
        let part = rows_of(rows, from.map(PooledBuffer::get).transpose()?)?;
        put_rows(context, list.get()?, count, part, y.on_gpu_mut()?)
    });
}

/// `y = x`.
pub fn copy(work: &CudaWork, y: &mut Tensor, x: &Tensor) {
    let len = x.data_len();
    work.run(|_| y.on_gpu_mut()?.copy_front_from(x.on_gpu()?, len));
}

impl InverseIndex {
    /// Uploads the lists, for the kernel that adds up rows.
    #[must_use]
    pub fn sent(&self, work: &Arc<CudaWork>) -> RowReaders {
        let (starts, places) = self.lists();
        RowReaders::new(work, starts, &places, self.place_count())
    }
}

/// Row r of `y` becomes the sum of the rows of `x` that read it, or has it added. Of longer rows of `x` the first
/// columns count.
pub fn scatter_add(
    work: &Arc<CudaWork>,
    y: &mut Tensor,
    x: &Tensor,
    inverse: &InverseIndex,
    overwrite: bool,
) {
    let (readers, columns) = (inverse.sent(work), y.cols());
    work.run(|context| scatter_add_rows(context, &readers, columns, whole(x)?, overwrite, whole_mut(y)?));
}

/// Columns of `x` from `first` on become those of the rows of `y` from `row` on, or are added to them.
pub fn columns_from(
    work: &CudaWork,
    (y, row): (&mut Tensor, usize),
    x: &Tensor,
    first: usize,
    overwrite: bool,
) {
    let (rows, columns) = (x.rows(), y.cols());
    let (layout, into) = (Layout::dense(x.cols()).at(first), rows_behind(y, row));
    work.run(|context| {
        let part = Part { table: (x.on_gpu()?, layout), shape: [rows, columns], list: None };
        add_rows(context, part, None, rows, put(overwrite), (y.on_gpu_mut()?, into))
    });
}

/// The rows of `parts` side by side, those of each from a row on.
pub fn concat(work: &CudaWork, y: &mut Tensor, parts: &[(&Tensor, usize)]) {
    let (rows, cols) = y.shape();
    let mut first = 0;
    for parts in parts.chunks(PARTS) {
        let layout = Layout::dense(cols).at(first);
        work.run(|context| {
            let parts = parts.iter().map(|&(x, first)| {
                let table = (x.on_gpu()?, rows_behind(x, first));
                Ok(Part { table, shape: [rows, x.cols()], list: None })
            });
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            join_rows(context, &parts, rows, (y.on_gpu_mut()?, layout))
        });
        first += parts.iter().map(|(part, _)| part.cols()).sum::<usize>();
    }
}
