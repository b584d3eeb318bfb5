//! Recurrent cells with the layout of `torch.nn.GRUCell` and `torch.nn.RNNCell`.

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::device::matmul::{Into, View, ViewMut, matmul};
use crate::nn::cpu::elementwise::accumulate;
use crate::nn::cpu::linear::column_sums;
use crate::nn::cpu::recurrent as cpu;
use crate::nn::cuda::sums::RowsRead;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{ParamId, Tape, TapePool, Tensor, Var};

use super::linear;

/// The weights of a GRU cell; blocks of `h` rows stand in the order r (reset), z (update), n (new).
#[derive(Clone, Copy, Debug)]
pub struct GruParams {
    /// `[3h, in]`.
    pub w_ih: ParamId,
    /// `[3h, h]`.
    pub w_hh: ParamId,
    /// `[1, 3h]`.
    pub b_ih: ParamId,
    /// `[1, 3h]`.
    pub b_hh: ParamId,
}

/// The weights of a plain tanh cell.
#[derive(Clone, Copy, Debug)]
pub struct RnnParams {
    /// `[h, in]`.
    pub w_ih: ParamId,
    /// `[h, h]`.
    pub w_hh: ParamId,
    /// `[1, h]`.
    pub b_ih: ParamId,
    /// `[1, h]`.
    pub b_hh: ParamId,
}

struct Gru {
    x: Var,
    h: Var,
    p: GruParams,
    /// Whether the first columns of x are h.
    joined: bool,
    /// `[rows, 3h]`: r, z, n after their nonlinearities.
    gates: Tensor,
    /// `[rows, h]`: the block n of `W_hh h + b_hh`. The blocks r and z are only ever added to those of `W_ih x + b_ih`,
    /// and have the same gradient; on a GPU they stand before it all the same, `[rows, 3h]`, so that a product in each
    /// direction is one launch.
    hidden: Tensor,
}

impl Tape<'_> {
    /// One GRU step: `x` `[rows, in]`, `h` `[rows, hidden]` to `[rows, hidden]`:
    /// `r = sig(..)`, `z = sig(..)`, `n = tanh(W_n x + b + r * (U_n h + c))`, result `(1 - z) * n + z * h`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn gru_cell(&mut self, x: Var, h: Var, p: &GruParams) -> Var {
        self.gru(x, h, p, false)
    }

    /// The same where the first columns of `x` are `h`: on the CPU, `W_ih` and `W_hh` of r and z are added before they
    /// are multiplied, which saves a product in each direction.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn gru_cell_joined(&mut self, x: Var, h: Var, p: &GruParams) -> Var {
        self.gru(x, h, p, *self.device() == Device::Cpu)
    }

    fn gru(&mut self, x: Var, h: Var, p: &GruParams, joined: bool) -> Var {
        let (rows, width) = self.value(h).shape();
        let parameters = self.parameters();
        assert_eq!(parameters.get(p.w_hh).shape(), (3 * width, width), "gru_cell: w_hh for {width} columns");
        assert_eq!(self.value(x).rows(), rows, "gru_cell: x and h of different numbers of rows");
        let blocks = if *self.device() == Device::Cpu { 1 } else { 3 };
        let (mut gates, mut hidden) = (self.room(rows, 3 * width), self.room(rows, blocks * width));
        let mut y = self.room(rows, width);
        let (w_ih, b_ih) = (parameters.get(p.w_ih), Some(parameters.get(p.b_ih)));
        if joined {
            let mut sum = self.room(w_ih.rows(), w_ih.cols());
            sum.data_mut().copy_from_slice(w_ih.data());
            add_both(&mut sum, parameters.get(p.w_hh));
            linear::forward(&mut gates, self.value(x), &sum, b_ih);
            self.give(sum);
        } else {
            linear::forward(&mut gates, self.value(x), w_ih, b_ih);
        }
        let (bias, h_value) = (parameters.get(p.b_hh), self.value(h));
        match self.device() {
            Device::Cpu => {
                let w_hh = Blocks::of(parameters.get(p.w_hh));
                if !joined {
                    let both = ViewMut::strided(gates.data_mut(), rows, 2 * width, 3 * width);
                    matmul(both, Into::Add, 1.0, h_value.view(), w_hh.both.t());
                }
                matmul(hidden.view_mut(), Into::Replace, 1.0, h_value.view(), w_hh.new.t());
                let bias = bias.data();
                cpu::gru(y.data_mut(), gates.data_mut(), hidden.data_mut(), (h_value.data(), bias), width);
            }
            Device::Cuda(work) => {
                linear::forward(&mut hidden, h_value, parameters.get(p.w_hh), None);
                work.run(|context| {
                    let saved = (gates.on_gpu_mut()?, hidden.on_gpu_mut()?);
                    let given = (h_value.on_gpu()?, bias.on_gpu()?);
                    gpu::gru_forward(context, [rows, width], saved, given, y.on_gpu_mut()?)
                });
            }
        }
        if !self.training() {
            self.give(gates);
            self.give(hidden);
            return self.push(y, false, None);
        }
        self.push(y, true, Some(Box::new(Gru { x, h, p: *p, joined, gates, hidden })))
    }

    /// One step of a plain cell, `tanh(W_ih x + b_ih + W_hh h + b_hh)`: `x` `[rows, in]`, `h` `[rows, hidden]`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn rnn_cell(&mut self, x: Var, h: Var, p: &RnnParams) -> Var {
        let (rows, width) = self.value(h).shape();
        let parameters = self.parameters();
        let (mut y, mut hidden) = (self.room(rows, width), self.room(rows, width));
        linear::forward(&mut y, self.value(x), parameters.get(p.w_ih), Some(parameters.get(p.b_ih)));
        linear::forward(&mut hidden, self.value(h), parameters.get(p.w_hh), Some(parameters.get(p.b_hh)));
        match self.device() {
            Device::Cpu => cpu::rnn(y.data_mut(), hidden.data()),
            Device::Cuda(work) => {
                work.run(|context| gpu::rnn(context, hidden.on_gpu()?, rows * width, y.on_gpu_mut()?))
            }
        }
        self.give(hidden);
        let training = self.training();
        let p = *p;
        self.push_with(y, training, move |result, mut d, walk| {
            match walk.device {
                Device::Cpu => cpu::rnn_backward(d.data_mut(), walk.value(result).data()),
                Device::Cuda(work) => work.run(|context| {
                    let result = walk.value(result);
                    gpu::rnn_backward(context, result.on_gpu()?, result.data_len(), d.on_gpu_mut()?)
                }),
            }
            let d = Arc::new(d);
            for (x, w, b) in [(x, p.w_ih, p.b_ih), (h, p.w_hh, p.b_hh)] {
                let value = RowsRead::Lasting(walk.value(x));
                linear::backward_parameters(walk, d.clone(), value, w, Some(b));
            }
            let (w_ih, w_hh) = (walk.parameter(p.w_ih), walk.parameter(p.w_hh));
            walk.flow_with(x, |dx, overwrite| linear::backward_input(dx, overwrite, &d, w_ih));
            walk.flow_with(h, |dh, overwrite| linear::backward_input(dh, overwrite, &d, w_hh));
            walk.give_shared(d);
        })
    }
}

impl Backward for Gru {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        let Self { x, h, p, joined, mut gates, mut hidden } = *self;
        let width = d.cols();
        match walk.device {
            // From here on the three hold gradients: of the two products, and of the direct path to h.
            Device::Cpu => cpu::gru_backward(
                d.data_mut(),
                gates.data_mut(),
                hidden.data_mut(),
                walk.value(h).data(),
                width,
            ),
            Device::Cuda(work) => work.run(|context| {
                let (saved, shape) = ((gates.on_gpu_mut()?, hidden.on_gpu_mut()?), [d.rows(), width]);
                gpu::gru_backward(context, shape, d.on_gpu_mut()?, saved, walk.value(h).on_gpu()?)
            }),
        }
        // Nothing was in the gradient before: then part of it is what W_hh gets, too.
        let joined = joined && walk.gradient_is_fresh(p.w_ih);
        let (gates, hidden) = (Arc::new(gates), Arc::new(hidden));
        let value = RowsRead::Lasting(walk.value(x));
        linear::backward_parameters(walk, gates.clone(), value, p.w_ih, Some(p.b_ih));
        let (w_ih, w_hh) = (walk.parameter(p.w_ih), walk.parameter(p.w_hh));
        if *walk.device == Device::Cpu {
            let both = joined.then(|| {
                let rows = walk.gradient(p.w_ih).0.data().chunks_exact(w_ih.cols()).take(2 * width);
                rows.flat_map(|row| &row[..width]).copied().collect::<Vec<f32>>()
            });
            backward_hidden(walk, &p, (&gates, &hidden), (walk.value(h), both));
        } else {
            let value = RowsRead::Lasting(walk.value(h));
            linear::backward_parameters(walk, hidden.clone(), value, p.w_hh, Some(p.b_hh));
        }
        walk.flow_with(x, |dx, overwrite| linear::backward_input(dx, overwrite, &gates, w_ih));
        if walk.needs(h) {
            match walk.device {
                Device::Cuda(_) => linear::backward_input(&mut d, false, &hidden, w_hh),
                Device::Cpu => {
                    let w_hh = Blocks::of(w_hh);
                    matmul(d.view_mut(), Into::Add, 1.0, both_of(&gates), w_hh.both);
                    matmul(d.view_mut(), Into::Add, 1.0, hidden.view(), w_hh.new);
                }
            }
            walk.flow(h, d);
        } else {
            walk.give(d);
        }
        walk.give_shared(gates);
        walk.give_shared(hidden);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.gates);
        pool.give(self.hidden);
    }
}

/// The blocks r and z of `W_hh` together, and the block n.
struct Blocks<'a> {
    both: View<'a>,
    new: View<'a>,
}

impl<'a> Blocks<'a> {
    fn of(w_hh: &'a Tensor) -> Self {
        let width = w_hh.cols();
        let (both, new) = w_hh.data().split_at(2 * width * width);
        Self { both: View::new(both, 2 * width, width), new: View::new(new, width, width) }
    }
}

/// The blocks r and z of the gates.
fn both_of(gates: &Tensor) -> View<'_> {
    let (rows, cols) = gates.shape();
    View::strided(gates.data(), rows, cols / 3 * 2, cols)
}

/// Adds the blocks r and z of `W_hh` to the first columns of the same of `W_ih`.
fn add_both(w_ih: &mut Tensor, w_hh: &Tensor) {
    let (cols, width) = (w_ih.cols(), w_hh.cols());
    let rows = w_ih.data_mut().chunks_exact_mut(cols).zip(w_hh.data().chunks_exact(width));
    for (sum, added) in rows.take(2 * width) {
        sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
    }
}

/// Adds to the gradients of `W_hh` and `b_hh` on the CPU, given those of the gates and of the block n of
/// `W_hh h + b_hh`, and that of the blocks r and z of `W_hh`, if it is known.
fn backward_hidden(
    walk: &mut Walk<'_>,
    p: &GruParams,
    (gates, hidden): (&Tensor, &Tensor),
    (h, known): (&Tensor, Option<Vec<f32>>),
) {
    let width = h.cols();
    let (dw, overwrite) = walk.gradient(p.w_hh);
    let (both, new) = dw.data_mut().split_at_mut(2 * width * width);
    match known {
        Some(known) => accumulate(both, &known, overwrite),
        None => {
            let into = ViewMut::new(both, 2 * width, width);
            matmul(into, Into::over(overwrite), 1.0, both_of(gates).t(), h.view());
        }
    }
    matmul(ViewMut::new(new, width, width), Into::over(overwrite), 1.0, hidden.view().t(), h.view());
    let mut sums = vec![0.0; 3 * width];
    column_sums(&mut sums, gates.data(), true);
    column_sums(&mut sums[2 * width..], hidden.data(), true);
    let (db, overwrite) = walk.gradient(p.b_hh);
    accumulate(db.data_mut(), &sums, overwrite);
}
