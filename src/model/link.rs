//! [`LinkPredictor`]: how likely an event between two embedded nodes is.

use super::Tgn;
use super::tgn::MergeParams;
use crate::nn::{Tape, Var};

impl MergeParams {
    /// `W_b relu(W_a x + b_a) + b_b`.
    pub(super) fn apply(&self, tape: &mut Tape<'_>, x: Var) -> Var {
        let hidden = tape.linear(x, self.w_a, Some(self.b_a));
        let hidden = tape.relu(hidden);
        tape.linear(hidden, self.w_b, Some(self.b_b))
    }
}

/// Scores pairs of embeddings by a merge layer on `[z_u ; z_v]`. The order of a pair matters.
#[derive(Clone, Copy, Debug)]
pub struct LinkPredictor<'a> {
    tgn: &'a Tgn,
}

impl<'a> LinkPredictor<'a> {
    /// The link predictor of a model.
    #[must_use]
    pub fn of(tgn: &'a Tgn) -> Self {
        Self { tgn }
    }

    /// Logits `[pairs, 1]` of the pairs `(src[i], dst[i])`, each a row of `embeddings`.
    pub fn logits(&self, tape: &mut Tape<'_>, embeddings: Var, src: Vec<u32>, dst: Vec<u32>) -> Var {
        let sources = tape.gather(embeddings, src);
        let destinations = tape.gather(embeddings, dst);
        let pairs = tape.concat(&[sources, destinations]);
        self.tgn.link.apply(tape, pairs)
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
