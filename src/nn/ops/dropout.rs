//! Dropout with a counter-based mask: nothing is saved, backward draws the same mask again from its key.

use crate::device::Device;
use crate::nn::cpu::dropout as cpu;
use crate::nn::cuda::{elementwise as cuda, gather};
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Dropout {
    x: Var,
    p: f32,
    key: [u64; 3],
}

impl Tape<'_> {
    /// Each element is zero with probability `p` in `[0, 1)` and `x / (1 - p)` otherwise; `x` itself in
    /// inference. The mask is a pure function of `key` and the element's place. `p` is rounded to 1/65536.
    ///
    /// # Panics
    /// If `p` is outside `[0, 1)`.
    pub fn dropout(&mut self, x: Var, p: f32, key: [u64; 3]) -> Var {
        assert!((0.0..1.0).contains(&p), "dropout of {p}");
        if !self.training() || p == 0.0 {
            return x;
        }
        let (rows, cols) = self.value(x).shape();
        let mut y = self.room(rows, cols);
        match self.device() {
            Device::Cpu => {
                y.data_mut().copy_from_slice(self.value(x).data());
                cpu::apply(y.data_mut(), p, key);
            }
            Device::Cuda(work) => {
                gather::copy(work, &mut y, self.value(x));
                cuda::apply_mask(work, &mut y, p, key);
            }
        }
        let needs = self.needs(x);
        self.push(y, needs, needs.then(|| Box::new(Dropout { x, p, key }) as _))
    }
}

impl Backward for Dropout {
    fn backward(self: Box<Self>, _result: Var, mut d: Tensor, walk: &mut Walk<'_>) {
        match walk.device {
            Device::Cpu => cpu::apply(d.data_mut(), self.p, self.key),
            Device::Cuda(work) => cuda::apply_mask(work, &mut d, self.p, self.key),
        }
        walk.flow(self.x, d);
    }

    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}
