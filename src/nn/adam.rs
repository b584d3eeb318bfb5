//! [`Adam`]: the optimizer, with its state.

use crate::device::Device;
use crate::device::cuda::twins::AdamStep;
use crate::device::cuda::{PendingCopy, PooledBuffer};

use super::cpu::adam as cpu;
use super::cuda::adam as cuda;
use super::{Gradients, Parameters, Tensor};

/// Settings of [`Adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub learning_rate: f32,
    /// Decay of the mean of gradients, in `[0, 1)`.
    pub beta1: f32,
    /// Decay of the mean of squared gradients, in `[0, 1)`.
    pub beta2: f32,
    /// Added to the root of the mean square.
    pub eps: f32,
    /// Decoupled weight decay (AdamW); 0 is plain Adam.
    pub weight_decay: f32,
}

impl Default for AdamOptions {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}

impl AdamOptions {
    /// What step `number`, from 1, works with: the learning rate over what the mean of gradients lacks, the root of
    /// what the mean of squares lacks, and what a weight is multiplied by.
    pub(crate) fn of_step(&self, number: u64) -> [f32; 3] {
        let left = |beta: f32| 1.0 - f64::from(beta).powf(number as f64);
        let size = (f64::from(self.learning_rate) / left(self.beta1)) as f32;
        [size, left(self.beta2).sqrt() as f32, 1.0 - self.learning_rate * self.weight_decay]
    }
}

/// Norm and factor of a step that a GPU takes.
pub struct Bound {
    outcome: PooledBuffer<f32>,
    pending: Option<PendingCopy<f32>>,
}

impl Bound {
    /// Requests the copy, and does not wait.
    #[must_use]
    pub fn fetch(self) -> Self {
        Self { pending: Some(self.outcome.fetch(2)), ..self }
    }
}

/// Adam (Kingma and Ba), with decoupled weight decay if asked for. Holds two moments per parameter.
#[derive(Clone, Debug)]
pub struct Adam {
    /// Settings; may be changed between steps.
    pub options: AdamOptions,
    pub(super) steps: u64,
    pub(super) first: Vec<Tensor>,
    pub(super) second: Vec<Tensor>,
}

impl Adam {
    /// Zero moments for every parameter.
    #[must_use]
    pub fn new(device: &Device, parameters: &Parameters, options: AdamOptions) -> Self {
        let zeros = || parameters.iter().map(|(_, t)| Tensor::zeros(device, t.rows(), t.cols())).collect();
        Self { options, steps: 0, first: zeros(), second: zeros() }
    }

    /// Number of steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Moves every parameter against its gradient, on the CPU.
    ///
    /// # Panics
    /// If the parameters are not those that the optimizer was made for, or are on a GPU.
    pub fn step(&mut self, parameters: &mut Parameters, gradients: &Gradients) {
        assert_eq!(parameters.len(), self.first.len(), "Adam was made for other parameters");
        self.steps += 1;
        let o = self.options;
        let [size, root, shrink] = o.of_step(self.steps);
        let step = cpu::Step { beta1: o.beta1, beta2: o.beta2, size, root, eps: o.eps, shrink };
        let moments = self.first.iter_mut().zip(&mut self.second);
        for ((w, g), (m, v)) in parameters.tensors_mut().iter_mut().zip(gradients.tensors()).zip(moments) {
            assert_eq!(w.shape(), g.shape(), "Adam: a weight and its gradient");
            cpu::adam(step, w.data_mut(), m.data_mut(), v.data_mut(), g.data());
        }
    }

    /// Asks a GPU to take step `number`, from 1: to move every parameter against its gradient, the norm of all
    /// gradients counting as `most` at most; nothing moves where that or `loss`, a `1 x 1` value, is not finite.
    /// [`took`](Self::took) is to be called with what comes of it.
    ///
    /// # Panics
    /// If the parameters are not those that the optimizer was made for, or are not on a GPU.
    pub fn step_bounded(
        &mut self,
        parameters: &mut Parameters,
        gradients: &Gradients,
        (number, most, loss): (u64, f32, &Tensor),
    ) -> Bound {
        assert_eq!(parameters.len(), self.first.len(), "Adam was made for other parameters");
        let Device::Cuda(work) = loss.device().clone() else { panic!("a bounded step of the CPU") };
        let o = self.options;
        let [size, root, shrink] = o.of_step(number);
        let step = AdamStep { beta1: o.beta1, beta2: o.beta2, size, root, eps: o.eps, shrink };
        let moments = (&mut self.first[..], &mut self.second[..]);
        let (weights, gradients) = (parameters.tensors_mut(), gradients.tensors());
        let outcome = cuda::step(&work, step, weights, moments, gradients, (most, loss));
        Bound { outcome, pending: None }
    }

    /// Counts the step that `bound` came of, if it was taken. Waits for the GPU.
    ///
    /// # Errors
    /// The norm of the gradients, if nothing moved because that or the loss was not finite.
    pub fn took(&mut self, bound: Bound) -> Result<(), f32> {
        let outcome = bound.pending.unwrap_or_else(|| bound.outcome.fetch(2)).wait();
        match outcome[..] {
            [norm, 0.0] => Err(norm),
            _ => {
                self.steps += 1;
                Ok(())
            }
        }
    }
}
