//! Binary cross entropy of logits, as means: `max(x, 0) - x t + ln(1 + exp(-|x|))` for a logit x and its target t,
//! finite and exact for logits of any size.

use std::iter::repeat;

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::nn::cpu::loss as cpu;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Bce {
    logits: Var,
    /// One per logit; becomes the gradient.
    targets: Tensor,
}

impl Tape<'_> {
    /// The mean over all elements, a `1 x 1` value. `targets` lie in `[0, 1]`, one per logit, row by row. A GPU refuses
    /// it: see [`pair_loss`](Self::pair_loss).
    ///
    /// # Panics
    /// If there is not one target per logit, or no logit.
    pub fn bce_with_logits(&mut self, logits: Var, targets: &[f32]) -> Var {
        let (rows, cols) = self.value(logits).shape();
        assert_eq!(rows * cols, targets.len(), "bce: {rows}x{cols} logits, {} targets", targets.len());
        assert!(!targets.is_empty(), "bce of no logits");
        let mut loss = self.room(1, 1);
        if let Device::Cuda(work) = self.device() {
            work.refuse("a loss of given targets");
            return self.push(loss, false, None);
        }
        loss.data_mut()[0] = cpu::bce(self.value(logits).data(), targets.iter().copied());
        if !self.needs(logits) {
            return self.push(loss, false, None);
        }
        let mut kept = self.room(rows, cols);
        kept.data_mut().copy_from_slice(targets);
        self.push(loss, true, Some(Box::new(Bce { logits, targets: kept })))
    }

    /// The mean over the first `ones` elements, whose target is 1, plus the mean over the others, whose target is
    /// 0, a `1 x 1` value. A mean of none is 0.
    ///
    /// # Panics
    /// If there are fewer logits, or none.
    pub fn pair_loss(&mut self, logits: Var, ones: usize) -> Var {
        let count = self.value(logits).data_len();
        assert!(ones <= count && count > 0, "a loss of {count} logits, {ones} with target 1");
        let mut loss = self.room(1, 1);
        match self.device() {
            Device::Cpu => {
                let (first, rest) = self.value(logits).data().split_at(ones);
                loss.data_mut()[0] = cpu::bce(first, repeat(1.0)) + cpu::bce(rest, repeat(0.0));
            }
            Device::Cuda(work) => work.run(|context| {
                let logits = self.value(logits).on_gpu()?;
                gpu::bce(context, logits, [ones, count], loss.on_gpu_mut()?)
            }),
        }
        let needs = self.needs(logits);
        self.push_with(loss, needs, move |_, d, walk| {
            let mut gradient = walk.take_like(logits);
            pair_loss_backward(&mut gradient, walk.value(logits), ones, &d);
            walk.give(d);
            walk.flow(logits, gradient);
        })
    }
}

fn pair_loss_backward(gradient: &mut Tensor, logits: &Tensor, ones: usize, d: &Tensor) {
    match logits.device() {
        Device::Cpu => {
            let scale = d.data()[0];
            let (first, rest) = logits.data().split_at(ones);
            let (of_first, of_rest) = gradient.data_mut().split_at_mut(ones);
            cpu::bce_backward(of_first, first, 1.0, scale);
            cpu::bce_backward(of_rest, rest, 0.0, scale);
        }
        Device::Cuda(work) => work.run(|context| {
            let sizes = [ones, logits.data_len()];
            gpu::bce_backward(context, logits.on_gpu()?, sizes, d.on_gpu()?, gradient.on_gpu_mut()?)
        }),
    }
}

impl Backward for Bce {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        let Self { logits, mut targets } = *self;
        cpu::targets_to_gradients(targets.data_mut(), walk.value(logits).data(), d.data()[0]);
        walk.give(d);
        walk.flow(logits, targets);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        pool.give(self.targets);
    }
}
