//! The linear layer over matrices side by side, without putting them there:
//!
//! ```text
//! y = [x_1 ; x_2 ; ..] Wᵀ + b = x_1 W_1ᵀ + x_2 W_2ᵀ + .. + b         W_i: the columns of W that x_i meets
//! ```
//! Rows that many rows of the result read are multiplied once, forward and backward: `(x W_iᵀ)[rows]` in place of
//! `x[rows] W_iᵀ`.

use std::sync::Arc;

use crate::device::Device;
use crate::device::matmul::{Into, View, ViewMut, matmul};
use crate::nn::cpu::gather::gather_add;
use crate::nn::cpu::linear as cpu;
use crate::nn::cuda::{gather as rows, linear as cuda};
use crate::nn::tape::{Backward, Walk};
use crate::nn::{ParamId, Tape, Tensor, Var};

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

/// `y = x wᵀ` with the columns of `w` from `from` on, or adds it.
fn product(y: &mut Tensor, overwrite: bool, x: &Tensor, (w, from): (&Tensor, usize)) {
    match x.device() {
        Device::Cpu => {
            matmul(y.view_mut(), Into::over(overwrite), 1.0, x.view(), columns_of(w, from, x.cols()).t());
        }
        Device::Cuda(work) => {
            cuda::forward(work, y, cuda::put(overwrite), x, (w, cuda::columns(w, from)), None);
        }
    }
}

impl Tape<'_> {
    /// `[x_1 ; x_2 ; ..] Wᵀ + b` over `parts` side by side: `[n, out]`, with `weight` `[out, sum of columns]` and
    /// `bias` `[1, out]`.
    ///
    /// # Panics
    /// If the shapes do not agree, there are no parts, or a part names a row that is not there.
    pub fn linear_joined(&mut self, parts: Vec<Columns>, weight: ParamId, bias: ParamId) -> Var {
        let (w, b) = (self.parameters().get(weight), self.parameters().get(bias));
        let n = parts.first().map_or(0, |part| self.rows_of(part));
        let columns: usize = parts.iter().map(|part| self.value(part.x).cols()).sum();
        assert!(
            !parts.is_empty() && columns == w.cols() && b.data_len() == w.rows(),
            "linear_joined: {columns} columns of {} parts, weight {:?}, bias {:?}",
            parts.len(),
            w.shape(),
            b.shape()
        );
        let mut y = self.room(n, w.rows());
        match self.device() {
            Device::Cpu => cpu::fill_rows(y.data_mut(), b.data()),
            Device::Cuda(work) => rows::repeat(work, &mut y, b),
        }
        let mut from = 0;
        for part in &parts {
            assert_eq!(self.rows_of(part), n, "linear_joined: parts of different numbers of rows");
            let width = self.value(part.x).cols();
            match &part.rows {
                None => product(&mut y, false, self.value(part.x), (w, from)),
                Some(rows) => {
                    gather::check(rows, self.value(part.x).rows());
                    let mut once = self.room(self.value(part.x).rows(), w.rows());
                    product(&mut once, true, self.value(part.x), (w, from));
                    match self.device() {
                        Device::Cpu => gather_add(y.data_mut(), once.data(), w.rows(), rows, false),
                        Device::Cuda(work) => rows::gather_add(work, &mut y, &once, rows, false),
                    }
                    self.give(once);
                }
            }
            from += width;
        }
        let training = self.training();
        self.push(y, training, training.then(|| Box::new(Joined { parts, weight, bias }) as _))
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
    /// of its product. On a GPU the gradient of the weight becomes a part of `sums`.
    fn part(
        &self,
        x: Var,
        (from, overwrite): (usize, bool),
        d: &Tensor,
        (walk, sums): (&mut Walk<'_>, Option<&mut cuda::Sums<'_>>),
    ) {
        let (value, w) = (walk.value(x), walk.parameter(self.weight));
        match sums {
            None => {
                let dw = walk.gradient(self.weight).0.data_mut();
                let from_here = from.min(dw.len());
                let dw = ViewMut::strided(&mut dw[from_here..], w.rows(), value.cols(), w.cols());
                matmul(dw, Into::over(overwrite), 1.0, d.view().t(), value.view());
            }
            Some(sums) => sums.of(d, value, cuda::columns(w, from)),
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
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        let device = walk.device;
        let (db, overwrite) = walk.gradient(self.bias);
        match device {
            Device::Cpu => cpu::column_sums(db.data_mut(), d.data(), overwrite),
            Device::Cuda(work) => cuda::backward_bias(work, db, overwrite, &d),
        }
        // Each part writes columns of its own.
        let overwrite = walk.gradient(self.weight).1;
        let mut sums = match device {
            Device::Cpu => None,
            Device::Cuda(work) => {
                let rows = self.parts.iter().map(|part| walk.value(part.x).rows()).max();
                let values = walk.parameter(self.weight).data_len();
                Some(cuda::Sums::of_parts(work, rows.unwrap_or(0).max(d.rows()), values))
            }
        };
        let mut from = 0;
        for Columns { x, rows } in &self.parts {
            let (n, width) = walk.value(*x).shape();
            match rows {
                None => self.part(*x, (from, overwrite), &d, (walk, sums.as_mut())),
                Some(rows) => {
                    let mut once = walk.take(n, d.cols());
                    gather::add_up(&mut once, true, rows, &d);
                    self.part(*x, (from, overwrite), &once, (walk, sums.as_mut()));
                    walk.give(once);
                }
            }
            from += width;
        }
        if let Some(sums) = sums {
            sums.finish((walk.gradient(self.weight).0, overwrite));
        }
        walk.give(d);
    }
}
