//! The linear layer over matrices side by side, without putting them there, and a rectifier behind it:
//!
//! ```text
//! y = max([x_1 ; x_2 ; ..] Wᵀ + b, 0) = max(x_1 W_1ᵀ + x_2 W_2ᵀ + .. + b, 0)      W_i: the columns of W that x_i meets
//! ```
//! Rows that many rows of the result read are multiplied once, forward and backward: `(x W_iᵀ)[rows]` in place of
//! `x[rows] W_iᵀ`.

use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::Put;
use crate::device::matmul::{Into, View, ViewMut, matmul};
use crate::nn::cpu::elementwise::rectify;
use crate::nn::cpu::gather::gather_add;
use crate::nn::cpu::linear as cpu;
use crate::nn::cuda::gather::gather_add as gather_rows;
use crate::nn::cuda::linear as cuda;
use crate::nn::cuda::sums::{RowsRead, Sums, WeightProduct};
use crate::nn::tape::{Backward, Walk};
use crate::nn::{ParamId, Tape, Tensor, Var};

use super::elementwise::relu_backward;
use super::gather;

/// Some columns of the input of a linear layer.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Their values.
    pub x: Var,
    /// Which rows of `x` count; all of them if not given.
    pub range: Option<Range<usize>>,
    /// The row among them for each row of the result; `None` means row i for row i.
    pub rows: Option<Arc<Vec<u32>>>,
}

impl From<Var> for Columns {
    fn from(x: Var) -> Self {
        Self { x, range: None, rows: None }
    }
}

impl Columns {
    /// Which rows of x on `tape` count.
    ///
    /// # Panics
    /// If x is of another tape.
    #[must_use]
    pub fn range_in(&self, tape: &Tape<'_>) -> Range<usize> {
        self.range_of(tape.value(self.x))
    }

    /// Which rows of the values `x` count.
    fn range_of(&self, x: &Tensor) -> Range<usize> {
        self.range.clone().unwrap_or(0..x.rows())
    }
}

struct Joined {
    parts: Vec<Columns>,
    weight: ParamId,
    bias: ParamId,
}

impl Tape<'_> {
    /// `max([x_1 ; x_2 ; ..] Wᵀ + b, 0)` over `parts` side by side: `[n, out]`, with `weight` `[out, sum of columns]`
    /// and `bias` `[1, out]`; the gradient at 0 is 0.
    ///
    /// # Panics
    /// If the shapes do not agree, there are no parts, or a part names a row that is not there.
    pub fn linear_relu_joined(&mut self, parts: Vec<Columns>, weight: ParamId, bias: ParamId) -> Var {
        let (w, b) = (self.parameters().get(weight), self.parameters().get(bias));
        let n = parts.first().map_or(0, |part| self.count_of(part));
        let columns: usize = parts.iter().map(|part| self.value(part.x).cols()).sum();
        assert!(
            !parts.is_empty() && columns == w.cols() && b.data_len() == w.rows(),
            "linear_relu_joined: {columns} columns of {} parts, weight {:?}, bias {:?}",
            parts.len(),
            w.shape(),
            b.shape()
        );
        for part in &parts {
            assert_eq!(self.count_of(part), n, "linear_relu_joined: parts of different numbers of rows");
            let (value, range) = (self.value(part.x), part.range_of(self.value(part.x)));
            assert!(range.end <= value.rows(), "linear_relu_joined: rows {range:?} of {}", value.rows());
            if let Some(rows) = &part.rows {
                gather::check(rows, range.len());
            }
        }
        let mut y = self.room(n, w.rows());
        match self.device() {
            Device::Cpu => {
                self.joined_on_cpu(&parts, w, b, &mut y);
                rectify(y.data_mut());
            }
            Device::Cuda(work) => {
                let work = work.clone();
                self.joined_on_gpu(&work, &parts, (w, b), &mut y);
            }
        }
        let training = self.training();
        self.push(y, training, training.then(|| Box::new(Joined { parts, weight, bias }) as _))
    }

    fn joined_on_cpu(&mut self, parts: &[Columns], w: &Tensor, b: &Tensor, y: &mut Tensor) {
        cpu::fill_rows(y.data_mut(), b.data());
        let mut from = 0;
        for part in parts {
            let (x, range) = (self.value(part.x), part.range_of(self.value(part.x)));
            let (n, width) = (range.len(), x.cols());
            let weights = columns_of(w, from, width);
            match &part.rows {
                None => matmul(y.view_mut(), Into::Add, 1.0, view_of(x, range), weights.t()),
                Some(rows) => {
                    let mut once = self.room(n, w.rows());
                    matmul(
                        once.view_mut(),
                        Into::Replace,
                        1.0,
                        view_of(self.value(part.x), range),
                        weights.t(),
                    );
                    gather_add(y.data_mut(), once.data(), w.rows(), rows, false);
                    self.give(once);
                }
            }
            from += width;
        }
    }

    /// The bias comes with the first product, and the last one is rectified with what is there.
    fn joined_on_gpu(
        &mut self,
        work: &Arc<CudaWork>,
        parts: &[Columns],
        (w, b): (&Tensor, &Tensor),
        y: &mut Tensor,
    ) {
        let mut from = 0;
        for (i, part) in parts.iter().enumerate() {
            let put = Put { add: i > 0, relu: i + 1 == parts.len() };
            let range = part.range_of(self.value(part.x));
            let (n, width, bias) = (range.len(), self.value(part.x).cols(), (i == 0).then_some(b));
            let weights = (w, cuda::columns(w, from));
            match &part.rows {
                None => cuda::forward(work, y, put, (self.value(part.x), range.start), weights, bias),
                Some(rows) => {
                    let mut once = self.room(n, w.rows());
                    let x = (self.value(part.x), range.start);
                    cuda::forward(work, &mut once, Put::REPLACE, x, weights, bias);
                    gather_rows(work, y, &once, rows, put);
                    self.give(once);
                }
            }
            from += width;
        }
    }

    fn count_of(&self, part: &Columns) -> usize {
        part.rows.as_ref().map_or_else(|| part.range_of(self.value(part.x)).len(), |rows| rows.len())
    }
}

/// These rows of a value.
fn view_of(x: &Tensor, range: Range<usize>) -> View<'_> {
    View::new(&x.data()[range.start * x.cols()..], range.len(), x.cols())
}

/// Columns `from..from + width` of a weight.
fn columns_of(w: &Tensor, from: usize, width: usize) -> View<'_> {
    View::strided(&w.data()[from.min(w.data_len())..], w.rows(), width, w.cols())
}

impl Joined {
    /// What flows back through one part, which met the columns of the weight from `from` on, given the gradient `d`
    /// of its product. On a GPU the gradient of the weight becomes a part of `sums`, and with that of the first part
    /// that of the bias, behind it: the rows of each part's `d` add up to the same.
    fn part<'a>(
        &self,
        part: &Columns,
        (from, overwrite): (usize, bool),
        d: &Arc<Tensor>,
        (walk, sums): (&mut Walk<'a>, Option<&mut Sums<'a>>),
    ) {
        let (value, w) = (walk.value(part.x), walk.parameter(self.weight));
        let (range, width) = (part.range_of(value), value.cols());
        match sums {
            None => {
                let dw = walk.gradient(self.weight).0.data_mut();
                let from_here = from.min(dw.len());
                let dw = ViewMut::strided(&mut dw[from_here..], w.rows(), width, w.cols());
                matmul(dw, Into::over(overwrite), 1.0, d.view().t(), view_of(value, range.clone()));
            }
            // The parts before one from column 0 on are without columns, and so are without sums.
            Some(sums) => {
                let (at, bias) = (cuda::columns(w, from), (from == 0).then_some(w.data_len()));
                sums.add(WeightProduct::new(
                    RowsRead::Made(d.clone()),
                    (RowsRead::Lasting(value), range.start),
                    at,
                    bias,
                ));
            }
        }
        walk.flow_into_rows(part.x, &range, |dx, overwrite| match d.device() {
            Device::Cpu => {
                let into = &mut dx.data_mut()[range.start * width..];
                let (into, w) = (ViewMut::new(into, range.len(), width), columns_of(w, from, width));
                matmul(into, Into::over(overwrite), 1.0, d.view(), w);
            }
            Device::Cuda(work) => {
                let (dx, w) = ((dx, range.start), (w, cuda::columns(w, from)));
                cuda::backward_input(work, dx, overwrite, d, w);
            }
        });
    }
}

impl Backward for Joined {
    fn backward(self: Box<Self>, result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        relu_backward(&mut d, walk.value(result));
        // Each part writes columns of its own.
        let (mut sums, mut overwrite) = (None, false);
        match walk.device {
            Device::Cpu => {
                let (db, fresh) = walk.gradient(self.bias);
                cpu::column_sums(db.data_mut(), d.data(), fresh);
                overwrite = walk.gradient(self.weight).1;
            }
            Device::Cuda(work) => {
                let rows = self.parts.iter().map(|part| part.range_of(walk.value(part.x)).len()).max();
                let values = walk.parameter(self.weight).data_len() + d.cols();
                sums = Some(Sums::over_rows(work, rows.unwrap_or(0).max(d.rows()), values));
            }
        }
        let (d, mut from) = (Arc::new(d), 0);
        for part in &self.parts {
            let value = walk.value(part.x);
            let (n, width) = (part.range_of(value).len(), value.cols());
            match &part.rows {
                None => self.part(part, (from, overwrite), &d, (walk, sums.as_mut())),
                Some(rows) => {
                    let mut once = walk.take(n, d.cols());
                    gather::add_up(&mut once, true, rows, &d);
                    let once = Arc::new(once);
                    self.part(part, (from, overwrite), &once, (walk, sums.as_mut()));
                    walk.give_shared(once);
                }
            }
            from += width;
        }
        if let Some(sums) = sums {
            sums.finish(walk, &[self.weight, self.bias]);
        }
        walk.give_shared(d);
    }
}
