//! Binary cross entropy of logits, as a mean.

use crate::device::Device;
use crate::nn::cpu::loss as cpu;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Bce {
    logits: Var,
    targets: Tensor,
}

impl Tape<'_> {
    /// The mean over all elements of `max(x, 0) - x t + ln(1 + exp(-|x|))`, a `1 x 1` value: finite and exact
    /// for logits of any size. `targets` lie in `[0, 1]`, one per logit, row by row.
    ///
    /// # Panics
    /// If there is not one target per logit, or no logit.
    pub fn bce_with_logits(&mut self, logits: Var, targets: &[f32]) -> Var {
        let (rows, cols) = self.value(logits).shape();
        assert_eq!(rows * cols, targets.len(), "bce: {rows}x{cols} logits, {} targets", targets.len());
        assert!(!targets.is_empty(), "bce of no logits");
        let mut loss = self.take(1, 1);
        match self.device() {
            Device::Cpu => loss.data_mut()[0] = cpu::bce(self.value(logits).data(), targets),
        }
        if !self.needs(logits) {
            return self.push(loss, false, None);
        }
        let mut kept = self.take(rows, cols);
        kept.data_mut().copy_from_slice(targets);
        self.push(loss, true, Some(Box::new(Bce { logits, targets: kept })))
    }
}

impl Backward for Bce {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        let Self { logits, targets: mut gradient } = *self;
        match walk.device {
            Device::Cpu => {
                cpu::bce_backward(gradient.data_mut(), walk.value(logits).data(), d.data()[0]);
            }
        }
        walk.give(d);
        walk.flow(logits, gradient);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.targets);
    }
}
