//! Sums over rows, of which gradients of parameters are made: [`Sums`] of a layer, and those of a whole backward
//! ([`Pending`]).
//!
//! A layer leaves partial sums, one for each piece of its rows. They are added up when the backward is done, those of
//! all parameters in one launch: two dozen launches of a few microseconds would each wait for the one before. What
//! several layers add to one gradient is added in the order in which the backward came to them, behind what is not a
//! sum over rows. Until then all partial sums stay: 4 bytes a parameter for every 256 rows of a linear layer, so some
//! 6 MB of a TGN with the default options in batches of 200.

use std::fmt;
use std::sync::Arc;

use super::whole;
use crate::device::cuda::layers::{
    Layout, LinearSizes, Matrix, Partials, StreamContext, linear_pieces, linear_weights, sum_pieces,
};
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, PooledBuffer};
use crate::nn::tape::Walk;
use crate::nn::{ParamId, Tensor};

/// Partial sums of the gradients of some parameters, one behind the other.
pub struct Sums {
    work: Arc<CudaWork>,
    partials: PooledBuffer<f32>,
    pieces: usize,
    /// Values of a piece.
    count: usize,
}

impl Sums {
    /// Of `count` values, for each of the pieces that `ask` fills.
    pub fn of(
        work: &Arc<CudaWork>,
        [pieces, count]: [usize; 2],
        ask: impl FnOnce(StreamContext<'_>, &mut CudaBuffer<f32>) -> Result<(), CudaError>,
    ) -> Self {
        let mut partials = work.pooled(pieces * count);
        work.run(|context| ask(context, partials.get_mut()?));
        Self { work: work.clone(), partials, pieces, count }
    }

    /// Of `count` values of linear layers that `rows` rows went through; each value is to be written.
    pub fn over_rows(work: &Arc<CudaWork>, rows: usize, count: usize) -> Self {
        let pieces = linear_pieces(rows);
        Self { work: work.clone(), partials: work.pooled(pieces * count), pieces, count }
    }

    /// The same of layers with so many rows at most: what is not written counts as zero.
    pub fn over_rows_at_most(work: &Arc<CudaWork>, rows_max: usize, count: usize) -> Self {
        let mut sums = Self::over_rows(work, rows_max, count);
        sums.partials.clear();
        sums
    }

    /// Fills in those of a weight that met the rows of `x`, given the gradient `d` of the result; `at` is where they
    /// stand, and `bias` where those of the bias do, if it has one.
    pub fn linear(&mut self, d: &Tensor, x: &Tensor, at: Layout, bias: Option<usize>) {
        let sizes = LinearSizes::new([d.rows(), x.cols(), d.cols()]);
        let work = self.work.clone();
        work.run(|_| self.weights(sizes, whole(d)?, whole(x)?, (at, bias)));
    }

    /// The same of rows wherever they lie.
    ///
    /// # Errors
    /// The GPU's.
    pub fn weights(
        &mut self,
        sizes: LinearSizes,
        d: Matrix<'_>,
        a: Matrix<'_>,
        (at, bias): (Layout, Option<usize>),
    ) -> Result<(), CudaError> {
        let mismatch = || "sums of a bias before those of its weight".to_owned();
        let refused = || CudaError::Arguments { operation: "gradients of a bias", mismatch: mismatch() };
        let behind = bias.map(|bias| bias.checked_sub(at.first).ok_or_else(refused)).transpose()?;
        let partials = self.partials.get_mut()?;
        linear_weights(self.work.context(), sizes, d, a, (self.count, behind), (partials, at))
    }

    /// Adds them to the gradients of these parameters, when the backward is done.
    pub(in crate::nn) fn finish(self, walk: &mut Walk<'_>, ids: &[ParamId]) {
        let sums = Arc::new(self);
        let mut first = 0;
        for &id in ids {
            walk.add_later(PendingSum { id, sums: sums.clone(), first });
            first += walk.parameter(id).data_len();
        }
        debug_assert_eq!(first, sums.count, "sums of other parameters");
    }

    /// Replaces `results`, one behind the other, by them, at once.
    pub fn add_up(&self, results: &mut [&mut Tensor]) {
        self.work.run(|_| {
            let (mut placed, mut first) = (Vec::with_capacity(results.len()), 0);
            for result in results {
                let columns = result.data_len();
                placed.push(((result.on_gpu_mut()?, columns, true), vec![self.terms(first)?]));
                first += columns;
            }
            sum_pieces(&self.work, placed)
        });
    }

    fn terms(&self, first: usize) -> Result<Partials<'_>, CudaError> {
        Ok(Partials { values: self.partials.get()?, first, step: self.count, pieces: self.pieces })
    }
}

/// Sums of the gradient of one parameter: those from value `first` of each piece on.
#[derive(Clone)]
pub struct PendingSum {
    id: ParamId,
    sums: Arc<Sums>,
    first: usize,
}

/// The sums of a backward, in its order.
#[derive(Clone, Default)]
pub struct Pending(Vec<PendingSum>);

impl Pending {
    /// Takes more.
    pub fn push(&mut self, pending: PendingSum) {
        self.0.push(pending);
    }

    /// Adds all up to `gradients`, which are those of all parameters; of one that has sums, `overwrite` says whether it
    /// is replaced.
    pub fn add_up(self, gradients: &mut [Tensor], mut overwrite: impl FnMut(ParamId) -> bool) {
        let Some(PendingSum { sums, .. }) = self.0.first() else { return };
        sums.work.run(|_| {
            let mut results = Vec::new();
            for (i, gradient) in gradients.iter_mut().enumerate() {
                let own = self.0.iter().filter(|pending| pending.id == ParamId(i));
                let terms =
                    own.map(|pending| pending.sums.terms(pending.first)).collect::<Result<Vec<_>, _>>()?;
                if !terms.is_empty() {
                    let columns = gradient.data_len();
                    results.push(((gradient.on_gpu_mut()?, columns, overwrite(ParamId(i))), terms));
                }
            }
            sum_pieces(&sums.work, results)
        });
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sums", self.0.len())
    }
}
