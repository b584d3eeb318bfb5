//! A step of Adam by gradients the norm of which is bounded, decided on the GPU.

use std::sync::Arc;

use crate::device::cuda::layers::{Moved, adam_bounded_all, bound_norm, squares_of_all, squares_pieces};
use crate::device::cuda::twins::AdamStep;
use crate::device::cuda::{CudaError, CudaWork, PooledBuffer};
use crate::nn::Tensor;

/// Asks for a step by `gradients`, whose norm counts as `most` at most. Gives their norm and the factor they were taken
/// with, which is 0 where norm or `loss` is not finite: then nothing happened. Does not wait.
pub fn step(
    work: &Arc<CudaWork>,
    step: AdamStep,
    weights: &mut [Tensor],
    (first, second): (&mut [Tensor], &mut [Tensor]),
    gradients: &[Tensor],
    (most, loss): (f32, &Tensor),
) -> PooledBuffer<f32> {
    let pieces = gradients.iter().map(|gradient| squares_pieces(gradient.data_len())).sum();
    let (mut partials, mut bound) = (work.pooled::<f64>(pieces), work.pooled::<f32>(2));
    work.run(|context| {
        let given = gradients.iter().map(|gradient| Ok((gradient.on_gpu()?, gradient.data_len())));
        let given = given.collect::<Result<Vec<_>, CudaError>>()?;
        squares_of_all(work, &given, partials.get_mut()?)?;
        bound_norm(context, partials.get()?, most, loss.on_gpu()?, bound.get_mut()?)?;
        let moments = first.iter_mut().zip(second);
        let mut moved = Vec::with_capacity(given.len());
        for ((w, (gradient, count)), (m, v)) in weights.iter_mut().zip(given).zip(moments) {
            let (weights, first, second) = (w.on_gpu_mut()?, m.on_gpu_mut()?, v.on_gpu_mut()?);
            moved.push(Moved { weights, first, second, gradient, count });
        }
        adam_bounded_all(work, step, &mut moved, bound.get()?)
    });
    bound
}
