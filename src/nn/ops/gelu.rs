//! The Gaussian error linear unit and the dropout behind it, in one pass: `mask * x * P(N(0, 1) <= x)`.
//!
//! Backward is `mask * (P(N(0, 1) <= x) + x * density(x))`, with the mask drawn again from its key.

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::device::cuda::twins::Mask;
use crate::nn::cpu::gelu as cpu;
use crate::nn::{Tape, Var};

impl Tape<'_> {
    /// `x * P(N(0, 1) <= x)`, exact to 2e-7 times `|x|`, then [`dropout`](Tape::dropout) with probability `p`.
    ///
    /// # Panics
    /// If `p` is outside `[0, 1)`.
    pub fn gelu(&mut self, x: Var, p: f32, key: [u64; 3]) -> Var {
        assert!((0.0..1.0).contains(&p), "dropout of {p}");
        let p = if self.training() { p } else { 0.0 };
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => cpu::forward(y.data_mut(), self.value(x).data(), p, key),
            Device::Cuda(work) => work.run(|context| {
                let x = self.value(x);
                gpu::gelu(context, Mask::new(p, key), x.on_gpu()?, x.data_len(), y.on_gpu_mut()?)
            }),
        }
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, mut d, walk| {
            match walk.device {
                Device::Cpu => cpu::backward(d.data_mut(), walk.value(x).data(), p, key),
                Device::Cuda(work) => work.run(|context| {
                    let (mask, x) = (Mask::new(p, key), walk.value(x));
                    gpu::gelu_backward(context, mask, x.on_gpu()?, x.data_len(), d.on_gpu_mut()?)
                }),
            }
            walk.flow(x, d);
        })
    }
}
