//! The link predictor that all models share: how likely an event between two embedded nodes is.
//!
//! ```text
//! logit(u, v) = W_b relu(W_a x_uv + b_a) + b_b        the order of a pair matters
//! x_uv        = [z_u ; z_v]                           of models that know a node by what it did
//!               [z_u ; z_v ; z_u * z_v]               of models that know it by whom it met: the sum of the
//!                                                     products measures how far two nodes met the same ones
//! ```

use std::sync::Arc;

use crate::device::matmul::{self, View, ViewMut, matmul};
use crate::nn::{Columns, ParamId, Parameters, Tape, Var};

/// Two linear layers with a ReLU between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeParams {
    pub w_a: ParamId,
    pub b_a: ParamId,
    pub w_b: ParamId,
    pub b_b: ParamId,
}

impl MergeParams {
    /// `W_b relu(W_a x + b_a) + b_b`, x being the `parts` side by side.
    pub fn apply(&self, tape: &mut Tape<'_>, parts: Vec<Columns>) -> Var {
        let hidden = tape.linear_relu_joined(parts, self.w_a, self.b_a);
        tape.linear(hidden, self.w_b, Some(self.b_b))
    }
}

/// The link predictor of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkPredictor {
    pub merge: MergeParams,
    /// Whether it reads the products of the two rows.
    pub products: bool,
}

impl LinkPredictor {
    /// Logits `[pairs, 1]` of the pairs `(src[i], dst[i])`, each a row of `embeddings`.
    pub fn logits(&self, tape: &mut Tape<'_>, embeddings: Var, src: Vec<u32>, dst: Vec<u32>) -> Var {
        if !self.products {
            let ends = [src, dst].map(|rows| tape.distinct_columns(embeddings, rows));
            return self.merge.apply(tape, ends.into());
        }
        let [sources, destinations] = [src, dst].map(|rows| tape.gather(embeddings, rows));
        let products = tape.mul(sources, destinations);
        self.merge.apply(tape, [sources, destinations, products].map(Into::into).into())
    }
}

/// A link predictor without products as sums over the two ends of a pair, on the CPU:
///
/// ```text
/// logit(u, v) = w_b relu(q_u + p_v) + b_b       q_u = W_u z_u, p_v = W_v z_v + b_a, W_a = [W_u W_v]
/// ```
pub struct SplitLink {
    /// `[hidden, 2 * dimension]`
    w_a: Vec<f32>,
    b_a: Vec<f32>,
    w_b: Arc<Vec<f32>>,
}

impl LinkPredictor {
    /// Its parts, if it splits.
    pub fn split(&self, parameters: &Parameters) -> Option<SplitLink> {
        let values = |id| parameters.get(id).data().to_vec();
        let MergeParams { w_a, b_a, w_b, .. } = self.merge;
        (!self.products).then(|| SplitLink { w_a: values(w_a), b_a: values(b_a), w_b: Arc::new(values(w_b)) })
    }
}

impl SplitLink {
    /// Values of `q_u` and of `p_v`.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.b_a.len()
    }

    /// `w_b`, `hidden` values.
    #[must_use]
    pub fn output(&self) -> Arc<Vec<f32>> {
        self.w_b.clone()
    }

    /// `q_u` `[n, hidden]` of embeddings `[n, dimension]`.
    #[must_use]
    pub fn sources(&self, embeddings: &[f32]) -> Vec<f32> {
        let mut rows = vec![0.0; embeddings.len() / self.dimension() * self.hidden()];
        self.add_product(embeddings, 0, &mut rows);
        rows
    }

    /// `p_v` `[n, hidden]` of embeddings `[n, dimension]`.
    #[must_use]
    pub fn destinations(&self, embeddings: &[f32]) -> Vec<f32> {
        let mut rows = self.b_a.repeat(embeddings.len() / self.dimension());
        self.add_product(embeddings, self.dimension(), &mut rows);
        rows
    }

    fn dimension(&self) -> usize {
        self.w_a.len() / self.hidden() / 2
    }

    /// Adds the product with the columns of `W_a` from `from` on.
    fn add_product(&self, embeddings: &[f32], from: usize, rows: &mut [f32]) {
        let (dimension, hidden) = (self.dimension(), self.hidden());
        let count = embeddings.len() / dimension;
        let half = View::strided(&self.w_a[from..], hidden, dimension, 2 * dimension);
        let embeddings = View::new(embeddings, count, dimension);
        matmul(ViewMut::new(rows, count, hidden), matmul::Into::Add, 1.0, embeddings, half.t());
    }
}

/// The probability of a logit.
#[must_use]
pub fn probability(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_finite_for_any_logit() {
        assert_eq!(probability(0.0), 0.5);
        assert_eq!((probability(f32::MAX), probability(f32::MIN)), (1.0, 0.0));
        assert!(probability(-50.0) > 0.0);
    }
}
