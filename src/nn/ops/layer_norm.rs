//! Layer normalisation over each row, with a learned scale and shift.

use crate::device::Device;
use crate::nn::cpu::elementwise::accumulate;
use crate::nn::cpu::layer_norm as cpu;
use crate::nn::cuda::elementwise::settle;
use crate::nn::cuda::layer_norm as cuda;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{ParamId, Tape, TapePool, Tensor, Var};

struct LayerNorm {
    x: Var,
    gamma: ParamId,
    beta: ParamId,
    /// Per row: mean, reciprocal of the standard deviation.
    moments: Tensor,
}

impl Tape<'_> {
    /// `(x - mean) / sqrt(variance + eps) * gamma + beta` per row, with the biased variance; `gamma` and `beta`
    /// are `[1, cols]`.
    ///
    /// # Panics
    /// If the shapes do not agree.
    pub fn layer_norm(&mut self, x: Var, gamma: ParamId, beta: ParamId, eps: f32) -> Var {
        let (rows, cols) = self.value(x).shape();
        let (g, b) = (self.parameters().get(gamma), self.parameters().get(beta));
        assert_eq!((g.data_len(), b.data_len()), (cols, cols), "layer_norm of {cols} columns");
        let mut y = self.room(rows, cols);
        let mut moments = self.room(rows, 2);
        match self.device() {
            Device::Cpu => {
                cpu::forward(y.data_mut(), moments.data_mut(), self.value(x).data(), g.data(), b.data(), eps);
            }
            Device::Cuda(work) => cuda::forward(work, (&mut y, &mut moments), self.value(x), (g, b, eps)),
        }
        if !self.training() {
            self.give(moments);
            return self.push(y, false, None);
        }
        self.push(y, true, Some(Box::new(LayerNorm { x, gamma, beta, moments })))
    }
}

impl Backward for LayerNorm {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        let Self { x, gamma, beta, moments } = *self;
        let (input, g) = (walk.value(x), walk.parameter(gamma));
        match walk.device {
            Device::Cpu => {
                let (dg, db) = cpu::backward(d.data_mut(), input.data(), moments.data(), g.data());
                for (id, sum) in [(gamma, &dg), (beta, &db)] {
                    let (target, overwrite) = walk.gradient(id);
                    accumulate(target.data_mut(), sum, overwrite);
                }
            }
            Device::Cuda(work) => {
                let sums = cuda::backward_parameters(work, &d, input, &moments);
                for (id, first) in [(gamma, 0), (beta, d.cols())] {
                    let (target, overwrite) = walk.gradient(id);
                    settle(work, target, &sums, first, overwrite);
                }
                cuda::backward(work, &mut d, input, &moments, g);
            }
        }
        walk.give(moments);
        walk.flow(x, d);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.moments);
    }
}
