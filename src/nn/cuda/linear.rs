//! Linear layers, whole or by columns of their weight.

use std::sync::Arc;

use super::{whole, whole_mut};
use crate::device::cuda::layers::{
    Layout, LinearSizes, Matrix, Put, linear_bias, linear_forward, linear_input, linear_pieces,
    linear_weights, sum_pieces,
};
use crate::device::cuda::{CudaError, CudaWork, PooledBuffer};
use crate::nn::Tensor;

/// Where the columns of a weight from `from` on stand.
pub fn columns(w: &Tensor, from: usize) -> Layout {
    Layout::dense(w.cols()).at(from)
}

/// What happens with a gradient and what is there.
pub fn put(overwrite: bool) -> Put {
    if overwrite { Put::REPLACE } else { Put::ADD }
}

/// `y = x w^T`, or adds it, with the columns of `w` that `at` names; a bias is added to it.
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

/// The gradient of a whole weight that met the rows of `x`.
pub fn backward_weight(work: &Arc<CudaWork>, dw: &mut Tensor, overwrite: bool, d: &Tensor, x: &Tensor) {
    let mut sums = Sums::new(work, d.rows(), dw.data_len());
    sums.of(d, x, Layout::dense(x.cols()));
    sums.finish((dw, overwrite));
}

/// The gradient of a bias.
pub fn backward_bias(work: &Arc<CudaWork>, db: &mut Tensor, overwrite: bool, d: &Tensor) {
    let mut sums = Sums::new(work, d.rows(), d.cols());
    work.run(|_| sums.bias([d.rows(), d.cols()], whole(d)?, 0));
    sums.finish((db, overwrite));
}

/// Sums over rows that a gradient is made of, piece by piece; several products may write parts of it, one each.
pub struct Sums<'a> {
    work: &'a Arc<CudaWork>,
    partials: PooledBuffer<f32>,
    pieces: usize,
    count: usize,
}

impl<'a> Sums<'a> {
    /// For a gradient of `count` values over `rows` rows, all of which are written.
    pub fn new(work: &'a Arc<CudaWork>, rows: usize, count: usize) -> Self {
        let pieces = linear_pieces(rows);
        Self { work, partials: work.pooled(pieces * count), pieces, count }
    }

    /// The same over so many rows at most: what is not written counts as zero.
    pub fn of_parts(work: &'a Arc<CudaWork>, rows_max: usize, count: usize) -> Self {
        let mut sums = Self::new(work, rows_max, count);
        sums.partials.clear();
        sums
    }

    /// Of a weight that met the rows of `x`, given the gradient `d` of the result; `at` is where it stands.
    pub fn of(&mut self, d: &Tensor, x: &Tensor, at: Layout) {
        let sizes = LinearSizes::new([d.rows(), x.cols(), d.cols()]);
        let work = self.work;
        work.run(|_| self.weights(sizes, whole(d)?, whole(x)?, at));
    }

    /// Of a weight that met the rows `a`, given the gradient `d` of the result; `at` is where it stands in the whole.
    ///
    /// # Errors
    /// The GPU's.
    pub fn weights(
        &mut self,
        sizes: LinearSizes,
        d: Matrix<'_>,
        a: Matrix<'_>,
        at: Layout,
    ) -> Result<(), CudaError> {
        let (count, partials) = (self.count, self.partials.get_mut()?);
        linear_weights(self.work.context(), sizes, d, a, count, (partials, at))
    }

    /// Of a bias that was added to rows, from value `first` of the whole on.
    ///
    /// # Errors
    /// The GPU's.
    pub fn bias(&mut self, sizes: [usize; 2], d: Matrix<'_>, first: usize) -> Result<(), CudaError> {
        let (count, partials) = (self.count, self.partials.get_mut()?);
        linear_bias(self.work.context(), sizes, d, count, (partials, first))
    }

    /// Replaces `gradient` by the sums, or adds them.
    pub fn finish(self, (gradient, overwrite): (&mut Tensor, bool)) {
        let Self { work, partials, pieces, count } = self;
        work.run(|context| {
            sum_pieces(context, [pieces, count], partials.get()?, gradient.on_gpu_mut()?, overwrite)
        });
    }
}
