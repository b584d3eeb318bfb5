//! Dropout with a counter-based mask: nothing is saved, backward draws the same mask again from its key.

use crate::device::Device;
use crate::device::cuda::layers::drop_out;
use crate::device::cuda::twins::Mask;
use crate::nn::cpu::dropout as cpu;
use crate::nn::cuda::gather;
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
            Device::Cpu => y.data_mut().copy_from_slice(self.value(x).data()),
            Device::Cuda(work) => gather::copy(work, &mut y, self.value(x)),
        }
        apply(&mut y, p, key);
        let needs = self.needs(x);
        self.push_with(y, needs, move |_, mut d, walk| {
            apply(&mut d, p, key);
            walk.flow(x, d);
        })
    }
}

/// Multiplies every value by its factor of the mask.
fn apply(x: &mut Tensor, p: f32, key: [u64; 3]) {
    match x.device().clone() {
        Device::Cpu => cpu::apply(x.data_mut(), p, key),
        Device::Cuda(work) => work.run(|context| {
            let count = x.data_len();
            drop_out(context, Mask::new(p, key), x.on_gpu_mut()?, count)
        }),
    }
}
