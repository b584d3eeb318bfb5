//! Recurrent cells with the layout of `torch.nn.GRUCell` and `torch.nn.RNNCell`.

use crate::device::Device;
use crate::nn::cpu::recurrent as cpu;
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
    /// `[rows, 3h]`: r, z, n after their nonlinearities.
    gates: Tensor,
    /// `[rows, 3h]`: `W_hh h + b_hh`; only the last block is read again.
    hidden: Tensor,
}

struct Rnn {
    x: Var,
    h: Var,
    p: RnnParams,
}

impl Tape<'_> {
    /// One GRU step: `x` `[rows, in]`, `h` `[rows, hidden]` to `[rows, hidden]`:
    /// `r = sig(..)`, `z = sig(..)`, `n = tanh(W_n x + b + r * (U_n h + c))`, result `(1 - z) * n + z * h`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn gru_cell(&mut self, x: Var, h: Var, p: &GruParams) -> Var {
        let (rows, width) = self.value(h).shape();
        let parameters = self.parameters();
        assert_eq!(parameters.get(p.w_hh).shape(), (3 * width, width), "gru_cell: w_hh for {width} columns");
        assert_eq!(self.value(x).rows(), rows, "gru_cell: x and h of different numbers of rows");
        let (mut gates, mut hidden) = (self.take(rows, 3 * width), self.take(rows, 3 * width));
        let mut y = self.take(rows, width);
        linear::forward(&mut gates, self.value(x), parameters.get(p.w_ih), Some(parameters.get(p.b_ih)));
        linear::forward(&mut hidden, self.value(h), parameters.get(p.w_hh), Some(parameters.get(p.b_hh)));
        match self.device() {
            Device::Cpu => {
                cpu::gru(y.data_mut(), gates.data_mut(), hidden.data(), self.value(h).data(), width);
            }
        }
        if !self.training() {
            self.give(gates);
            self.give(hidden);
            return self.push(y, false, None);
        }
        self.push(y, true, Some(Box::new(Gru { x, h, p: *p, gates, hidden })))
    }

    /// One step of a plain cell, `tanh(W_ih x + b_ih + W_hh h + b_hh)`: `x` `[rows, in]`, `h` `[rows, hidden]`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn rnn_cell(&mut self, x: Var, h: Var, p: &RnnParams) -> Var {
        let (rows, width) = self.value(h).shape();
        let parameters = self.parameters();
        let (mut y, mut hidden) = (self.take(rows, width), self.take(rows, width));
        linear::forward(&mut y, self.value(x), parameters.get(p.w_ih), Some(parameters.get(p.b_ih)));
        linear::forward(&mut hidden, self.value(h), parameters.get(p.w_hh), Some(parameters.get(p.b_hh)));
        match self.device() {
            Device::Cpu => cpu::rnn(y.data_mut(), hidden.data()),
        }
        self.give(hidden);
        let training = self.training();
        self.push(y, training, training.then(|| Box::new(Rnn { x, h, p: *p }) as _))
    }
}

impl Backward for Gru {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        let Self { x, h, p, mut gates, mut hidden } = *self;
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
        }
        linear::backward_parameters(walk, &gates, walk.value(x), p.w_ih, Some(p.b_ih));
        linear::backward_parameters(walk, &hidden, walk.value(h), p.w_hh, Some(p.b_hh));
        let (w_ih, w_hh) = (walk.parameter(p.w_ih), walk.parameter(p.w_hh));
        walk.flow_with(x, |dx, fresh| linear::backward_input(dx, fresh, &gates, w_ih));
        if walk.needs(h) {
            linear::backward_input(&mut d, false, &hidden, w_hh);
            walk.flow(h, d);
        } else {
            walk.give(d);
        }
        walk.give(gates);
        walk.give(hidden);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.gates);
        pool.give(self.hidden);
    }
}

impl Backward for Rnn {
    fn backward(self: Box<Self>, result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        let Self { x, h, p } = *self;
        match walk.device {
            Device::Cpu => cpu::rnn_backward(d.data_mut(), walk.value(result).data()),
        }
        linear::backward_parameters(walk, &d, walk.value(x), p.w_ih, Some(p.b_ih));
        linear::backward_parameters(walk, &d, walk.value(h), p.w_hh, Some(p.b_hh));
        let (w_ih, w_hh) = (walk.parameter(p.w_ih), walk.parameter(p.w_hh));
        walk.flow_with(x, |dx, fresh| linear::backward_input(dx, fresh, &d, w_ih));
        walk.flow_with(h, |dh, fresh| linear::backward_input(dh, fresh, &d, w_hh));
        walk.give(d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}
