//! The linear layer over matrices side by side, without putting them there, and a rectifier behind it:
//!
//! ```text
//! y = max([x_1 ; x_2 ; ..] Wᵀ + b, 0) = max(x_1 W_1ᵀ + x_2 W_2ᵀ + .. + b, 0)      W_i: the columns of W that x_i meets
//! ```
//! Rows that many rows of the result read are multiplied once, forward and backward: `(x W_iᵀ)[rows]` in place of
//! `x[rows] W_iᵀ`.

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
use crate::nn::cuda::sums::{Product, Rows, Sums};
use crate::nn::tape::{Backward, Walk};
use crate::nn::{ParamId, Tape, Tensor, Var};

use super::elementwise::relu_backward;
use super::gather;

/// Some columns of the input of a linear layer.
#[derive(Clone, Debug)]
pub struct Columns {
    /// Their values.
    pub x: Var,
    /// The row of `x` for each row of the result; `None` means row i for row i.
    pub rows: Option<Arc<Vec<u32>>>,
}

impl From<Var> for Columns {
    fn from(x: Var) -> Self {
        Self { x, rows: None }
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
        let n = parts.first().map_or(0, |part| self.rows_of(part));
        let columns: usize = parts.iter().map(|part| self.value(part.x).cols()).sum();
        assert!(
            !parts.is_empty() && columns == w.cols() && b.data_len() == w.rows(),
            "linear_relu_joined: {columns} columns of {} parts, weight {:?}, bias {:?}",
            parts.len(),
            w.shape(),
            b.shape()
        );
        for part in &parts {
            assert_eq!(self.rows_of(part), n, "linear_relu_joined: parts of different numbers of rows");
            if let Some(rows) = &part.rows {
                gather::check(rows, self.value(part.x).rows());
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
        for Columns { x, rows } in parts {
            let (n, width) = self.value(*x).shape();
            let weights = columns_of(w, from, width);
            match rows {
                None => matmul(y.view_mut(), Into::Add, 1.0, self.value(*x).view(), weights.t()),
                Some(rows) => {
                    let mut once = self.room(n, w.rows());
                    matmul(once.view_mut(), Into::Replace, 1.0, self.value(*x).view(), weights.t());
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
        for (i, Columns { x, rows }) in parts.iter().enumerate() {
            let put = Put { add: i > 0, relu: i + 1 == parts.len() };
            let ((n, width), bias) = (self.value(*x).shape(), (i == 0).then_some(b));
            let weights = (w, cuda::columns(w, from));
            match rows {
                None => cuda::forward(work, y, put, self.value(*x), weights, bias),
                Some(rows) => {
                    let mut once = self.room(n, w.rows());
                    cuda::forward(work, &mut once, Put::REPLACE, self.value(*x), weights, bias);
                    gather_rows(work, y, &once, rows, put);
                    self.give(once);
                }
            }
            from += width;
        }
    }

    fn rows_of(&self, part: &Columns) -> usize {
        part.rows.as_ref().map_or_else(|| self.value(part.x).rows(), |rows| rows.len())
    }
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
        x: Var,
        (from, overwrite): (usize, bool),
        d: &Arc<Tensor>,
        (walk, sums): (&mut Walk<'a>, Option<&mut Sums<'a>>),
    ) {
        let (value, w) = (walk.value(x), walk.parameter(self.weight));
        match sums {
            None => {
                let dw = walk.gradient(self.weight).0.data_mut();
                let from_here = from.min(dw.len());
                let dw = ViewMut::strided(&mut dw[from_here..], w.rows(), value.cols(), w.cols());
                matmul(dw, Into::over(overwrite), 1.0, d.view().t(), value.view());
            }
            // The parts before one from column 0 on are without columns, and so are without sums.
            Some(sums) => {
                let (at, bias) = (cuda::columns(w, from), (from == 0).then_some(w.data_len()));
                sums.add(Product::new(Rows::Made(d.clone()), Rows::Lasting(value), at, bias));
            }
        }
        walk.flow_with(x, |dx, overwrite| match d.device() {
            Device::Cpu => {
                matmul(
                    dx.view_mut(),
                    Into::over(overwrite),
                    1.0,
                    d.view(),
                    columns_of(w, from, value.cols()),
                );
            }
            Device::Cuda(work) => cuda::backward_input(work, dx, overwrite, d, (w, cuda::columns(w, from))),
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
                let rows = self.parts.iter().map(|part| walk.value(part.x).rows()).max();
                let values = walk.parameter(self.weight).data_len() + d.cols();
                sums = Some(Sums::over_rows(work, rows.unwrap_or(0).max(d.rows()), values));
            }
        }
        let (d, mut from) = (Arc::new(d), 0);
        for Columns { x, rows } in &self.parts {
            let (n, width) = walk.value(*x).shape();
            match rows {
                None => self.part(*x, (from, overwrite), &d, (walk, sums.as_mut())),
                Some(rows) => {
                    let mut once = walk.take(n, d.cols());
                    gather::add_up(&mut once, true, rows, &d);
                    let once = Arc::new(once);
                    self.part(*x, (from, overwrite), &once, (walk, sums.as_mut()));
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
