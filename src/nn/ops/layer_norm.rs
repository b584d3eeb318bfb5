//! Layer normalisation over each row, with a learned scale and shift.

use super::elementwise::accumulate_each;
use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::nn::cpu::layer_norm as cpu;
use crate::nn::cuda::sums::Sums;
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
            Device::Cuda(work) => work.run(|context| {
                let learned = (g.on_gpu()?, b.on_gpu()?, eps);
                let results = (y.on_gpu_mut()?, moments.on_gpu_mut()?);
                gpu::layer_norm_forward(context, [rows, cols], self.value(x).on_gpu()?, learned, results)
            }),
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
        let (rows, cols) = d.shape();
        match walk.device {
            Device::Cpu => {
                let (dg, db) = cpu::backward(d.data_mut(), input.data(), moments.data(), g.data());
                accumulate_each(walk, &[gamma, beta], &[dg, db].concat());
            }
            Device::Cuda(work) => {
                let sums = Sums::of(work, [gpu::pieces_of(rows), 2 * cols], |context, partials| {
                    let given = (d.on_gpu()?, input.on_gpu()?);
                    gpu::layer_norm_parameters(context, [rows, cols], given, moments.on_gpu()?, partials)
                });
                sums.finish(walk, &[gamma, beta]);
                work.run(|context| {
                    let saved = (input.on_gpu()?, moments.on_gpu()?);
                    gpu::layer_norm_backward(context, [rows, cols], d.on_gpu_mut()?, saved, g.on_gpu()?)
                });
            }
        }
        walk.give(moments);
        walk.flow(x, d);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.moments);
    }
}
