//! The link predictor that all models share: how likely an event between two embedded nodes is.
//!
//! ```text
//! logit(u, v) = W_b relu(W_a x_uv + b_a) + b_b        the order of a pair matters
//! x_uv        = [z_u ; z_v]                           of models that know a node by what it did
//!               [z_u ; z_v ; z_u * z_v]               of models that know it by whom it met: the sum of the
//!                                                     products measures how far two nodes met the same ones
//! ```

use crate::nn::{Columns, ParamId, Tape, Var};

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
        let hidden = tape.linear_joined(parts, self.w_a, self.b_a);
        let hidden = tape.relu(hidden);
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
            let ends = [src, dst].map(|rows| tape.gather_distinct(embeddings, rows));
            return self.merge.apply(tape, ends.into());
        }
        let [sources, destinations] = [src, dst].map(|rows| tape.gather(embeddings, rows));
        let products = tape.mul(sources, destinations);
        self.merge.apply(tape, [sources, destinations, products].map(Into::into).into())
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
