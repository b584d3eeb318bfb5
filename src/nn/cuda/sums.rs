//! Sums over rows, of which gradients of parameters are made: [`Sums`] of a layer, and those of a whole backward
//! ([`Later`]).
//!
//! Nothing in a backward waits for the gradient of a parameter. So what it is made of is kept until the backward is
//! done: products of gradients and inputs, which leave partial sums, one for each piece of rows, are computed in one
//! launch, and all partial sums are added up in another. Two dozen launches, each too small for the GPU, would each
//! wait for the one before. What several layers add to one gradient is added in the order in which the backward came to
//! them, behind what is not a sum over rows.
//!
//! Until then the partial sums stay, 4 bytes a parameter for every 256 rows of a linear layer, and so does what is
//! multiplied. A product of a large gradient, which fills a GPU by itself, is computed at once
//! ([`CudaWork::compute_alone`]). Sizes vary from batch to batch, and where a launch comes and goes with them, the
//! graph of a step is built anew: so the bound is far above those of layers whose rows vary.

use std::sync::Arc;

use super::rows_behind;
use crate::device::cuda::layers::{
    Layout, LinearSizes, Partials, StreamContext, WeightGradient, WeightSums, linear_pieces, linear_weights,
    sum_pieces,
};
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, PooledBuffer};
use crate::nn::tape::Walk;
use crate::nn::{ParamId, Tensor};

/// Rows that a product reads, until it is computed.
#[derive(Clone)]
pub enum RowsRead<'a> {
    /// They stay as they are until the backward is done.
    Lasting(&'a Tensor),
    /// What the backward made and needs no more.
    Made(Arc<Tensor>),
}

impl RowsRead<'_> {
    /// The rows.
    pub fn get(&self) -> &Tensor {
        match self {
            Self::Lasting(tensor) => tensor,
            Self::Made(tensor) => tensor,
        }
    }
}

/// The gradient of a weight, and of its bias if it has one: `d`ᵀ `a`.
pub struct WeightProduct<'a> {
    /// Of the layer.
    pub sizes: LinearSizes,
    /// The gradient of the layer's result.
    pub d: (RowsRead<'a>, Layout),
    /// What the layer was given.
    pub a: (RowsRead<'a>, Layout),
    /// Where the weight's gradient begins in the layer's sums.
    pub at: Layout,
    /// Where the bias's does, behind the weight's.
    pub bias: Option<usize>,
}

impl<'a> WeightProduct<'a> {
    /// Of whole rows: all of `d`, and as many of `a` from row `first` on.
    pub fn new(d: RowsRead<'a>, (a, first): (RowsRead<'a>, usize), at: Layout, bias: Option<usize>) -> Self {
        let ((rows, outputs), inputs) = (d.get().shape(), a.get().cols());
        let (d_at, a_at) = (Layout::dense(outputs), rows_behind(a.get(), first));
        Self { sizes: LinearSizes::new([rows, inputs, outputs]), d: (d, d_at), a: (a, a_at), at, bias }
    }

    fn on_gpu(&self) -> Result<WeightGradient<'_>, CudaError> {
        let mismatch = || "sums of a bias before those of its weight".to_owned();
        let refused = || CudaError::Arguments { operation: "gradients of a bias", mismatch: mismatch() };
        Ok(WeightGradient {
            sizes: self.sizes,
            d: (self.d.0.get().on_gpu()?, self.d.1),
            a: (self.a.0.get().on_gpu()?, self.a.1),
            at: self.at,
            bias: self.bias.map(|bias| bias.checked_sub(self.at.first).ok_or_else(refused)).transpose()?,
        })
    }
}

/// Partial sums of the gradients of some parameters, one behind the other.
pub struct Sums<'a> {
    work: Arc<CudaWork>,
    partials: PooledBuffer<f32>,
    pieces: usize,
    /// Values of a piece.
    count: usize,
    /// What is still to be computed.
    products: Vec<WeightProduct<'a>>,
}

impl<'a> Sums<'a> {
    /// Of `count` values, for each of the pieces that `ask` fills.
    pub fn of(
        work: &Arc<CudaWork>,
        [pieces, count]: [usize; 2],
        ask: impl FnOnce(StreamContext<'_>, &mut CudaBuffer<f32>) -> Result<(), CudaError>,
    ) -> Self {
        let mut partials = work.pooled(pieces * count);
        work.run(|context| ask(context, partials.get_mut()?));
        Self { work: work.clone(), partials, pieces, count, products: Vec::new() }
    }

    /// Of `count` values of linear layers that `rows` rows went through at most; each value is to be of a product.
    pub fn over_rows(work: &Arc<CudaWork>, rows: usize, count: usize) -> Self {
        let pieces = linear_pieces(rows);
        let partials = work.pooled(pieces * count);
        Self { work: work.clone(), partials, pieces, count, products: Vec::new() }
    }

    /// Takes a product. Those of one `Sums` have no value in common.
    pub fn add(&mut self, product: WeightProduct<'a>) {
        let alone = self.work.computes_alone(product.d.0.get().data_len() * size_of::<f32>());
        self.products.push(product);
        if alone {
            compute([self].into_iter());
        }
    }

    /// Adds them to the gradients of these parameters, when the backward is done.
    pub(in crate::nn) fn finish(self, walk: &mut Walk<'a>, ids: &[ParamId]) {
        let mut first = 0;
        for &id in ids {
            walk.later.terms.push(Term { id, sums: walk.later.sums.len(), first });
            first += walk.parameter(id).data_len();
        }
        debug_assert_eq!(first, self.count, "sums of other parameters");
        walk.later.sums.push(self);
    }

    /// Replaces `results`, one behind the other, by them, at once.
    pub fn add_up(mut self, results: &mut [&mut Tensor]) {
        compute([&mut self].into_iter());
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

/// Computes all products that wait, and lets go what they read.
fn compute<'s, 'a: 's>(sums: impl Iterator<Item = &'s mut Sums<'a>>) {
    let waiting: Vec<_> = sums.filter(|sums| !sums.products.is_empty()).collect();
    let Some(work) = waiting.first().map(|sums| sums.work.clone()) else { return };
    let mut taken: Vec<_> =
        waiting.into_iter().map(|sums| (std::mem::take(&mut sums.products), sums)).collect();
    work.run(|_| {
        let mut all = Vec::with_capacity(taken.len());
        for (products, Sums { partials, pieces, count, .. }) in &mut taken {
            let products = products.iter().map(WeightProduct::on_gpu).collect::<Result<_, _>>()?;
            all.push(WeightSums { partials: partials.get_mut()?, step: *count, pieces: *pieces, products });
        }
        linear_weights(&work, all)
    });
}

/// A part of the gradient of one parameter: sums from value `first` of each piece on.
struct Term {
    id: ParamId,
    /// Whose.
    sums: usize,
    first: usize,
}

/// What a backward adds to the gradients of parameters when it is done, in its order.
#[derive(Default)]
pub(in crate::nn) struct Later<'a> {
    sums: Vec<Sums<'a>>,
    terms: Vec<Term>,
}

impl Later<'_> {
    /// Adds all up to `gradients`, which are those of all parameters; of one that has sums, `overwrite` says whether it
    /// is replaced.
    pub fn add_up(mut self, gradients: &mut [Tensor], mut overwrite: impl FnMut(ParamId) -> bool) {
        compute(self.sums.iter_mut());
        let Some(work) = self.sums.first().map(|sums| sums.work.clone()) else { return };
        work.run(|_| {
            let mut results = Vec::new();
            for (i, gradient) in gradients.iter_mut().enumerate() {
                let own = self.terms.iter().filter(|term| term.id == ParamId(i));
                let terms =
                    own.map(|term| self.sums[term.sums].terms(term.first)).collect::<Result<Vec<_>, _>>()?;
                if !terms.is_empty() {
                    let columns = gradient.data_len();
                    results.push(((gradient.on_gpu_mut()?, columns, overwrite(ParamId(i))), terms));
                }
            }
            sum_pieces(&work, results)
        });
    }
}
