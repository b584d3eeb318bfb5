//! Linear layers, whole or by columns of their weight.

use std::sync::Arc;

use super::sums::{Product, Rows, Sums};
use super::{whole, whole_mut};
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{Layout, LinearSizes, Put, linear_forward, linear_input};
use crate::nn::Tensor;

/// Where the columns of a weight from `from` on stand.
pub fn columns(w: &Tensor, from: usize) -> Layout {
    Layout::dense(w.cols()).at(from)
}

/// What happens with a gradient and what is there.
pub fn put(overwrite: bool) -> Put {
    if overwrite { Put::REPLACE } else { Put::ADD }
}

/// `y = x w^T`, or adds it, with the columns of `w` that `at` names; a bias is added to it, and what comes out is
/// rectified if asked for.
pub fn forward(
    work: &CudaWork,
    y: &mut Tensor,
    put: Put,
    x: &Tensor,
    (w, at): (&Tensor, Layout),
    bias: Option<&Tensor>,
) {
    let sizes = LinearSizes::new([x.rows(), x.cols(), y.cols()]);
    work.run(|context| {
        let bias = bias.map(Tensor::on_gpu).transpose()?;
        linear_forward(context, sizes, whole(x)?, (w.on_gpu()?, at), bias, put, whole_mut(y)?)
    });
}

/// `dx = d w`, or adds it.
pub fn backward_input(
    work: &CudaWork,
    dx: &mut Tensor,
    overwrite: bool,
    d: &Tensor,
    (w, at): (&Tensor, Layout),
) {
    let sizes = LinearSizes::new([d.rows(), dx.cols(), d.cols()]);
    work.run(|context| {
        linear_input(context, sizes, whole(d)?, (w.on_gpu()?, at), put(overwrite), whole_mut(dx)?)
    });
}

/// Sums of the gradient of a weight that met the rows `a` and, behind it, of its bias, if it has one.
pub fn backward_parameters<'a>(work: &Arc<CudaWork>, d: Rows<'a>, a: Rows<'a>, biased: bool) -> Sums<'a> {
    let product = Product::new(d, a, Layout::dense(0), None);
    let LinearSizes { rows, inputs, outputs, .. } = product.sizes;
    let weights = inputs * outputs;
    let mut sums = Sums::over_rows(work, rows, weights + if biased { outputs } else { 0 });
    sums.add(Product { at: Layout::dense(inputs), bias: biased.then_some(weights), ..product });
    sums
}
