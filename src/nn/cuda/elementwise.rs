//! Element by element.

use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{self, drop_out};
use crate::device::cuda::twins::Mask;
use crate::nn::Tensor;

/// `sum = d`, or adds it.
pub fn accumulate(work: &CudaWork, sum: &mut Tensor, d: &Tensor, overwrite: bool) {
    let count = d.data_len();
    work.run(|context| layers::accumulate(context, d.on_gpu()?, count, overwrite, sum.on_gpu_mut()?));
}

/// A gradient becomes the values of `sums` from `first` on, or has them added.
pub fn settle(work: &CudaWork, gradient: &mut Tensor, sums: &Tensor, first: usize, overwrite: bool) {
    let len = gradient.data_len();
    work.run(|context| {
        layers::accumulate_from(context, (sums.on_gpu()?, first), len, overwrite, gradient.on_gpu_mut()?)
    });
}

/// `sum = x + y`.
pub fn add(work: &CudaWork, sum: &mut Tensor, x: &Tensor, y: &Tensor) {
    let count = x.data_len();
    work.run(|context| layers::add(context, x.on_gpu()?, y.on_gpu()?, count, sum.on_gpu_mut()?));
}

/// `out = x * y`, or adds it.
pub fn mul(work: &CudaWork, out: &mut Tensor, x: &Tensor, y: &Tensor, overwrite: bool) {
    let count = x.data_len();
    work.run(|context| {
        layers::multiply(context, x.on_gpu()?, y.on_gpu()?, count, overwrite, out.on_gpu_mut()?)
    });
}

/// `y = max(x, 0)`.
pub fn relu(work: &CudaWork, y: &mut Tensor, x: &Tensor) {
    let count = x.data_len();
    work.run(|context| layers::relu(context, x.on_gpu()?, count, y.on_gpu_mut()?));
}

/// Clears `d` where `result` is not positive.
pub fn relu_backward(work: &CudaWork, d: &mut Tensor, result: &Tensor) {
    let count = d.data_len();
    work.run(|context| layers::relu_backward(context, d.on_gpu_mut()?, result.on_gpu()?, count));
}

/// `y = factor * x`.
pub fn scale(work: &CudaWork, y: &mut Tensor, x: &Tensor, factor: f32) {
    let count = x.data_len();
    work.run(|context| layers::scale(context, factor, x.on_gpu()?, count, y.on_gpu_mut()?));
}

/// Multiplies `x` by a factor.
pub fn scale_in_place(work: &CudaWork, x: &mut Tensor, factor: f32) {
    let count = x.data_len();
    work.run(|context| layers::scale_in_place(context, factor, x.on_gpu_mut()?, count));
}

/// Multiplies every value by its factor of a dropout mask.
pub fn apply_mask(work: &CudaWork, x: &mut Tensor, p: f32, key: [u64; 3]) {
    let count = x.data_len();
    work.run(|context| drop_out(context, Mask::new(p, key), x.on_gpu_mut()?, count));
}

/// The error linear unit of `x`, masked.
pub fn gelu(work: &CudaWork, y: &mut Tensor, x: &Tensor, p: f32, key: [u64; 3]) {
    let count = x.data_len();
    work.run(|context| layers::gelu(context, Mask::new(p, key), x.on_gpu()?, count, y.on_gpu_mut()?));
}

/// Its gradient in the place of that of the result.
pub fn gelu_backward(work: &CudaWork, d: &mut Tensor, x: &Tensor, p: f32, key: [u64; 3]) {
    let count = x.data_len();
    work.run(|context| {
        layers::gelu_backward(context, Mask::new(p, key), x.on_gpu()?, count, d.on_gpu_mut()?)
    });
}
