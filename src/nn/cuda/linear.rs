//! Linear layers, whole or by columns of their weight.

use std::sync::Arc;

use super::sums::{RowsRead, Sums, WeightProduct};
use super::{rows_behind, whole, whole_mut};
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
/// rectified if asked for. Of `x` as many rows count as `y` has, from `first` on.
pub fn forward(
    work: &CudaWork,
    y: &mut Tensor,
    put: Put,
    (x, first): (&Tensor, usize),
    (w, at): (&Tensor, Layout),
    bias: Option<&Tensor>,
) {
    let sizes = LinearSizes::new([y.rows(), x.cols(), y.cols()]);
    work.run(|context| {
        let (x, bias) = ((x.on_gpu()?, rows_behind(x, first)), bias.map(Tensor::on_gpu).transpose()?);
        linear_forward(context, sizes, x, (w.on_gpu()?, at), bias, put, whole_mut(y)?)
    });
}

/// The rows of `dx` from `first` on, as many as `d` has, become `d w`, or have it added.
pub fn backward_input(
    work: &CudaWork,
    (dx, first): (&mut Tensor, usize),
    overwrite: bool,
    d: &Tensor,
    (w, at): (&Tensor, Layout),
) {
    let (sizes, layout) = (LinearSizes::new([d.rows(), dx.cols(), d.cols()]), rows_behind(dx, first));
    work.run(|context| {
        let into = (dx.on_gpu_mut()?, layout);
        linear_input(context, sizes, whole(d)?, (w.on_gpu()?, at), put(overwrite), into)
    });
}

/// Sums of the gradient of a weight that met the rows `a` and, behind it, of its bias, if it has one.
pub fn backward_parameters<'a>(
    work: &Arc<CudaWork>,
    d: RowsRead<'a>,
    a: RowsRead<'a>,
    biased: bool,
) -> Sums<'a> {
    let product = WeightProduct::new(d, (a, 0), Layout::dense(0), None);
    let LinearSizes { rows, inputs, outputs, .. } = product.sizes;
    let weights = inputs * outputs;
    let mut sums = Sums::over_rows(work, rows, weights + if biased { outputs } else { 0 });
    sums.add(WeightProduct { at: Layout::dense(inputs), bias: biased.then_some(weights), ..product });
    sums
}
