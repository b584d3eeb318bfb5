//! Normalization of rows.

use std::sync::Arc;

use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{
    layer_norm_backward, layer_norm_forward, layer_norm_parameters, pieces_of, sum_pieces,
};
use crate::nn::Tensor;

/// The normalized rows of `x`, and their moments.
pub fn forward(
    work: &CudaWork,
    (y, moments): (&mut Tensor, &mut Tensor),
    x: &Tensor,
    (gamma, beta, eps): (&Tensor, &Tensor, f32),
) {
    let (rows, cols) = x.shape();
    work.run(|context| {
        let learned = (gamma.on_gpu()?, beta.on_gpu()?, eps);
        layer_norm_forward(
            context,
            [rows, cols],
            x.on_gpu()?,
            learned,
            (y.on_gpu_mut()?, moments.on_gpu_mut()?),
        )
    });
}

/// Sums of the gradients of gamma and beta, side by side.
pub fn backward_parameters(work: &Arc<CudaWork>, d: &Tensor, x: &Tensor, moments: &Tensor) -> Tensor {
    let (rows, cols) = x.shape();
    let pieces = pieces_of(rows);
    let mut partials = work.pooled(pieces * 2 * cols);
    let mut both = Tensor::room(&crate::device::Device::Cuda(work.clone()), 1, 2 * cols);
    work.run(|context| {
        let given = (d.on_gpu()?, x.on_gpu()?);
        layer_norm_parameters(context, [rows, cols], given, moments.on_gpu()?, partials.get_mut()?)?;
        sum_pieces(context, [pieces, 2 * cols], partials.get()?, both.on_gpu_mut()?, true)
    });
    both
}

/// The gradient of `x` in the place of that of the result.
pub fn backward(work: &CudaWork, d: &mut Tensor, x: &Tensor, moments: &Tensor, gamma: &Tensor) {
    let (rows, cols) = x.shape();
    work.run(|context| {
        let saved = (x.on_gpu()?, moments.on_gpu()?);
        layer_norm_backward(context, [rows, cols], d.on_gpu_mut()?, saved, gamma.on_gpu()?)
    });
}
