//! The Gaussian error linear unit and the dropout behind it, in one pass: `mask * x * P(N(0, 1) <= x)`.
//!
//! Backward is `mask * (P(N(0, 1) <= x) + x * density(x))`, with the mask drawn again from its key.

use crate::device::Device;
use crate::nn::cpu::gelu as cpu;
use crate::nn::cuda::elementwise as cuda;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Gelu {
    x: Var,
    p: f32,
    key: [u64; 3],
}

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
            Device::Cuda(work) => cuda::gelu(work, &mut y, self.value(x), p, key),
        }
        let needs = self.needs(x);
        self.push(y, needs, needs.then(|| Box::new(Gelu { x, p, key }) as _))
    }
}

impl Backward for Gelu {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        match walk.device {
            Device::Cpu => cpu::backward(d.data_mut(), walk.value(self.x).data(), self.p, self.key),
            Device::Cuda(work) => cuda::gelu_backward(work, &mut d, walk.value(self.x), self.p, self.key),
        }
        walk.flow(self.x, d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}
