//! Rows by index: reading them (backward adds them up again), adding them to others, and laying new rows over
//! a matrix.

use std::sync::Arc;

use rayon::prelude::*;

use crate::device::Device;
use crate::device::cuda::layers::clear_rows;
use crate::nn::cpu::gather::{self as cpu, InverseIndex};
use crate::nn::cuda::gather as cuda;
use crate::nn::cuda::linear::put;
use crate::nn::ops::elementwise::accumulate;
use crate::nn::{Columns, Tape, Tensor, Var};

impl Tape<'_> {
    /// Row `index[i]` of `x` as row `i`; backward is the deterministic scatter-add.
    ///
    /// # Panics
    /// If an index is not a row of `x`.
    pub fn gather(&mut self, x: Var, index: impl Into<Arc<Vec<u32>>>) -> Var {
        let index = index.into();
        let (y, needs) = (self.gathered(x, &index), self.needs(x));
        self.push_with(y, needs, move |_, d, walk| {
            walk.flow_with(x, |dx, overwrite| add_up(dx, overwrite, &index, &d));
            walk.give(d);
        })
    }

    /// The same as a constant: no gradient flows into `x`.
    ///
    /// # Panics
    /// If an index is not a row of `x`.
    pub fn gather_constant(&mut self, x: Var, index: &[u32]) -> Var {
        let y = self.gathered(x, index);
        self.push(y, false, None)
    }

    fn gathered(&mut self, x: Var, index: &[u32]) -> Tensor {
        let cols = self.value(x).cols();
        check(index, self.value(x).rows());
        let mut y = self.room(index.len(), cols);
        match self.device() {
            Device::Cpu => cpu::gather(y.data_mut(), self.value(x).data(), cols, index),
            Device::Cuda(work) => cuda::gather(work, &mut y, self.value(x), index),
        }
        y
    }

    /// Row `index[i]` of `table`, which is where the operations run, as row `i`. No gradient flows into the table.
    ///
    /// # Panics
    /// If an index is not a row of `table`.
    pub fn rows_at(&mut self, table: &Tensor, index: &[u32]) -> Var {
        check(index, table.rows());
        let mut y = self.room(index.len(), table.cols());
        match self.device() {
            Device::Cpu => cpu::gather(y.data_mut(), table.data(), table.cols(), index),
            Device::Cuda(work) => cuda::gather(work, &mut y, table, index),
        }
        self.push(y, false, None)
    }

    /// The rows of `x` that `index` names, each once, in order of first appearance, as columns of a row per place of
    /// `index`.
    ///
    /// # Panics
    /// If an index is not a row of `x`.
    pub fn gather_distinct(&mut self, x: Var, index: Vec<u32>) -> Columns {
        check(&index, self.value(x).rows());
        let (distinct, places) = distinct(&index, self.value(x).rows());
        if distinct.len() == index.len() {
            return self.gather(x, index).into();
        }
        Columns { x: self.gather(x, distinct), range: None, rows: Some(Arc::new(places)) }
    }

    /// The same, for who reads a range of rows: rows that stand one behind the other in `x` stay where they are.
    ///
    /// # Panics
    /// If an index is not a row of `x`.
    pub fn distinct_columns(&mut self, x: Var, index: Vec<u32>) -> Columns {
        check(&index, self.value(x).rows());
        let (distinct, places) = distinct(&index, self.value(x).rows());
        let first = distinct.first().copied().unwrap_or(0);
        let in_line = distinct.iter().zip(first..).all(|(row, next)| *row == next);
        let rows = (distinct.len() < index.len()).then(|| Arc::new(places));
        if in_line {
            let (first, count) = (first as usize, distinct.len());
            return Columns { x, range: Some(first..first + count), rows };
        }
        Columns { x: self.gather(x, distinct), range: None, rows }
    }

    /// `x[i] + table[index[i]]`.
    ///
    /// # Panics
    /// If the shapes do not agree or an index is not a row of `table`.
    pub fn add_gathered(&mut self, x: Var, table: Var, index: Arc<Vec<u32>>) -> Var {
        let (rows, cols) = self.value(x).shape();
        let (n, width) = self.value(table).shape();
        assert_eq!((index.len(), width), (rows, cols), "add_gathered: rows and columns to add");
        check(&index, n);
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => {
                cpu::sum_gathered(y.data_mut(), self.value(x).data(), self.value(table).data(), cols, &index);
            }
            Device::Cuda(work) => {
                cuda::sum_gathered(work, &mut y, self.value(x), self.value(table), &index);
            }
        }
        let needs = self.needs(x) || self.needs(table);
        self.push_with(y, needs, move |_, d, walk| {
            walk.flow_with(table, |dt, overwrite| add_up(dt, overwrite, &index, &d));
            walk.flow(x, d);
        })
    }

    /// `x` on the CPU, whose gradient is increased by `owed` `[rows, columns]` on its way back.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn with_owed_gradient(&mut self, x: Var, owed: Tensor) -> Var {
        let (rows, cols) = self.value(x).shape();
        assert_eq!(owed.shape(), (rows, cols), "with_owed_gradient: a gradient of another shape");
        let mut y = self.room(rows, cols);
        y.data_mut().copy_from_slice(self.value(x).data());
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, mut d, walk| {
            accumulate(&mut d, &owed, false);
            walk.give(owed);
            walk.flow(x, d);
        })
    }

    /// A copy of `base` with row `index[i]` replaced by row `i` of `rows`. Indices are unique.
    ///
    /// # Panics
    /// If an index is not a row of `base`, or the shapes do not agree.
    pub fn overlay_rows(&mut self, base: Var, index: Vec<u32>, rows: Var) -> Var {
        let (n, cols) = self.value(base).shape();
        let mut y = self.room(n, cols);
        match self.device() {
            Device::Cpu => y.data_mut().copy_from_slice(self.value(base).data()),
            Device::Cuda(work) => cuda::copy(work, &mut y, self.value(base)),
        }
        self.laid_over(y, Some(base), index, rows)
    }

    /// The same of a `base` that is where the operations run and that nothing else reads: it is not copied, and no
    /// gradient flows into it.
    ///
    /// # Panics
    /// As [`overlay_rows`](Self::overlay_rows).
    pub fn overlay_constant(&mut self, base: Tensor, index: Vec<u32>, rows: Var) -> Var {
        self.laid_over(base, None, index, rows)
    }

    /// Puts `rows` into `y`, which is `base`, or a copy of it.
    fn laid_over(&mut self, mut y: Tensor, base: Option<Var>, index: Vec<u32>, rows: Var) -> Var {
        let (n, cols) = y.shape();
        check(&index, n);
        assert_eq!(self.value(rows).shape(), (index.len(), cols), "overlay_rows: rows of another shape");
        debug_assert!(unique(&index), "overlay_rows: an index comes twice");
        match self.device() {
            Device::Cpu => cpu::put_rows(y.data_mut(), cols, &index, self.value(rows).data()),
            Device::Cuda(work) => {
                let list = work.upload(&index);
                cuda::put_listed(work, &mut y, (&list, index.len()), (self.value(rows), None));
            }
        }
        let base = base.filter(|base| self.needs(*base));
        let needs = base.is_some() || self.needs(rows);
        self.push_with(y, needs, move |_, mut d, walk| {
            walk.flow_with(rows, |dr, overwrite| read(dr, overwrite, &d, &index));
            let Some(base) = base else { return walk.give(d) };
            match walk.device {
                Device::Cpu => {
                    let cols = d.cols();
                    cpu::clear_rows(d.data_mut(), cols, &index);
                }
                Device::Cuda(work) => work.run(|context| {
                    let (rows, columns) = (work.upload(&index), d.cols());
                    clear_rows(context, rows.get()?, index.len(), columns, d.on_gpu_mut()?)
                }),
            }
            walk.flow(base, d);
        })
    }
}

/// The different numbers of `index`, all below `below`, in order of first appearance, and the place of each among them.
fn distinct(index: &[u32], below: usize) -> (Vec<u32>, Vec<u32>) {
    const NONE: u32 = u32::MAX;
    let mut place_of = vec![NONE; below];
    let mut distinct = Vec::new();
    let place = |&row: &u32| {
        let place = &mut place_of[row as usize];
        if *place == NONE {
            *place = distinct.len() as u32;
            distinct.push(row);
        }
        *place
    };
    let places = index.iter().map(place).collect();
    (distinct, places)
}

pub(super) fn check(index: &[u32], rows: usize) {
    // The greatest is found without branches, and by several threads where that takes long.
    let greatest = index.par_chunks(1 << 16).filter_map(|part| part.iter().copied().reduce(u32::max)).max();
    if let Some(bad) = greatest.filter(|greatest| *greatest as usize >= rows) {
        panic!("row {bad} of a value with {rows} rows");
    }
}

/// As [`check`], where `u32::MAX` reads nothing.
pub(super) fn check_slots(index: &[u32], rows: usize) {
    // One more than the greatest is 0 for those.
    let greatest = index
        .par_chunks(1 << 16)
        .filter_map(|part| part.iter().map(|row| row.wrapping_add(1)).reduce(u32::max));
    if let Some(bad) = greatest.max().filter(|beyond| *beyond as usize > rows) {
        panic!("row {} of a value with {rows} rows", bad - 1);
    }
}

fn unique(index: &[u32]) -> bool {
    let mut sorted = index.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).all(|w| w[0] != w[1])
}

/// Adds the rows of `d` to those of `dx` that they came from.
pub(super) fn add_up(dx: &mut Tensor, overwrite: bool, index: &[u32], d: &Tensor) {
    add_up_read(dx, overwrite, &InverseIndex::new(index, dx.rows()), d);
}

/// Adds to each row of `dx` the rows of `d` that read it; of longer rows of `d` the first columns count.
pub(super) fn add_up_read(dx: &mut Tensor, overwrite: bool, inverse: &InverseIndex, d: &Tensor) {
    match d.device() {
        Device::Cpu => {
            let columns = dx.cols();
            cpu::scatter_add(dx.data_mut(), columns, overwrite, inverse, d.data(), d.cols());
        }
        Device::Cuda(work) => cuda::scatter_add(work, dx, d, inverse, overwrite),
    }
}

/// Row i of `y` becomes row `index[i]` of `table`, or has it added.
fn read(y: &mut Tensor, overwrite: bool, table: &Tensor, index: &[u32]) {
    match table.device() {
        Device::Cpu => cpu::gather_add(y.data_mut(), table.data(), table.cols(), index, overwrite),
        Device::Cuda(work) => cuda::gather_add(work, y, table, index, put(overwrite)),
    }
}
