//! Binary cross entropy of logits, as a mean.

use crate::device::Device;
use crate::device::cuda::layers as gpu;
use crate::nn::cpu::loss as cpu;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{Tape, TapePool, Tensor, Var};

struct Bce {
    logits: Var,
    targets: Targets,
}

enum Targets {
    /// One per logit; becomes the gradient.
    Each(Tensor),
    /// The same for all.
    Same(f32),
}

impl Tape<'_> {
    /// The mean over all elements of `max(x, 0) - x t + ln(1 + exp(-|x|))`, a `1 x 1` value: finite and exact
    /// for logits of any size. `targets` lie in `[0, 1]`, one per logit, row by row; on a GPU all are the same.
    ///
    /// # Panics
    /// If there is not one target per logit, or no logit.
    pub fn bce_with_logits(&mut self, logits: Var, targets: &[f32]) -> Var {
        let (rows, cols) = self.value(logits).shape();
        assert_eq!(rows * cols, targets.len(), "bce: {rows}x{cols} logits, {} targets", targets.len());
        assert!(!targets.is_empty(), "bce of no logits");
        let mut loss = self.room(1, 1);
        let same = match self.device() {
            Device::Cpu => {
                loss.data_mut()[0] = cpu::bce(self.value(logits).data(), targets);
                None
            }
            Device::Cuda(work) => {
                let target = targets.first().copied().unwrap_or_default();
                if targets.iter().any(|other| *other != target) {
                    work.refuse("a loss of several targets");
                }
                work.run(|context| {
                    let logits = self.value(logits).on_gpu()?;
                    gpu::bce(context, logits, target, targets.len(), loss.on_gpu_mut()?)
                });
                Some(target)
            }
        };
        if !self.needs(logits) {
            return self.push(loss, false, None);
        }
        let targets = match same {
            Some(target) => Targets::Same(target),
            None => {
                let mut kept = self.room(rows, cols);
                kept.data_mut().copy_from_slice(targets);
                Targets::Each(kept)
            }
        };
        self.push(loss, true, Some(Box::new(Bce { logits, targets })))
    }
}

impl Backward for Bce {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        let Self { logits, targets } = *self;
        let value = walk.value(logits);
        let gradient = match (targets, walk.device) {
            (Targets::Each(mut gradient), _) => {
                cpu::bce_backward(gradient.data_mut(), value.data(), d.data()[0]);
                gradient
            }
            (Targets::Same(target), Device::Cuda(work)) => {
                let mut gradient = walk.take_like(logits);
                work.run(|context| {
                    let (logits, count, scale) = (value.on_gpu()?, value.data_len(), d.on_gpu()?);
                    gpu::bce_backward(context, logits, target, scale, count, gradient.on_gpu_mut()?)
                });
                gradient
            }
            (Targets::Same(_), Device::Cpu) => unreachable!("the CPU keeps each target"),
        };
        walk.give(d);
        walk.flow(logits, gradient);
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        if let Targets::Each(targets) = self.targets {
            pool.give(targets);
        }
    }
}
