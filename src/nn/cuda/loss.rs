//! The cross entropy of logits, all of which have one target.

use crate::device::cuda::CudaWork;
use crate::device::cuda::layers;
use crate::nn::Tensor;

/// The target that all logits have; a GPU knows no others.
pub fn target(work: &CudaWork, targets: &[f32]) -> f32 {
    let first = targets.first().copied().unwrap_or_default();
    if targets.iter().any(|target| *target != first) {
        work.refuse("a loss of several targets");
    }
    first
}

/// The mean over all logits.
pub fn forward(work: &CudaWork, loss: &mut Tensor, logits: &Tensor, target: f32) {
    let count = logits.data_len();
    work.run(|context| layers::bce(context, logits.on_gpu()?, target, count, loss.on_gpu_mut()?));
}

/// The gradient of the logits, given that of the loss.
pub fn backward(work: &CudaWork, d: &mut Tensor, logits: &Tensor, target: f32, of_loss: &Tensor) {
    let count = logits.data_len();
    work.run(|context| {
        layers::bce_backward(context, logits.on_gpu()?, target, of_loss.on_gpu()?, count, d.on_gpu_mut()?)
    });
}
