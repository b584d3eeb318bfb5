//! Dropout with a counter-based mask: nothing is saved, backward draws the same mask again from its key.

use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::drop_out;
use crate::device::cuda::twins::Mask;
use crate::nn::cpu::dropout as cpu;
use crate::nn::{Tape, Tensor, Var};

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
            Device::Cuda(work) => on_gpu(work, &mut y, self.value(x), Mask::new(p, key)),
        }
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, mut d, walk| {
            match walk.device {
                Device::Cpu => cpu::apply(d.data_mut(), p, key),
                Device::Cuda(work) => {
                    let mut dx = walk.take_like(x);
                    on_gpu(work, &mut dx, &d, Mask::new(p, key));
                    walk.give(std::mem::replace(&mut d, dx));
                }
            }
            walk.flow(x, d);
        })
    }
}

/// `y` becomes `x`, times the factors of the mask.
fn on_gpu(work: &CudaWork, y: &mut Tensor, x: &Tensor, mask: Mask) {
    work.run(|context| drop_out(context, mask, x.on_gpu()?, x.data_len(), y.on_gpu_mut()?));
}
