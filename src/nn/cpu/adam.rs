//! One Adam step over one tensor, in one pass.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::PIECE;

/// Numbers that are the same for every element of a step.
#[derive(Clone, Copy)]
pub struct Step {
    pub beta1: f32,
    pub beta2: f32,
    /// `lr / (1 - beta1^t)`.
    pub size: f32,
    /// `sqrt(1 - beta2^t)`.
    pub root: f32,
    pub eps: f32,
    /// Decoupled decay: the weight is multiplied by `1 - lr * decay` first.
    pub shrink: f32,
}

vectorized! {
    fn adam_piece<const FMA: bool>(
        step: Step, weights: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32],
    ) {
        let s = step;
        let rows = weights.iter_mut().zip(first).zip(second).zip(gradient);
        for (((w, m), v), g) in rows {
            *m = s.beta1 * *m + (1.0 - s.beta1) * g;
            *v = s.beta2 * *v + (1.0 - s.beta2) * g * g;
            *w = *w * s.shrink - s.size * *m / (v.sqrt() / s.root + s.eps);
        }
    }
}

/// Updates weights and both moments.
pub fn adam(step: Step, weights: &mut [f32], first: &mut [f32], second: &mut [f32], gradient: &[f32]) {
    weights
        .par_chunks_mut(PIECE)
        .zip(first.par_chunks_mut(PIECE))
        .zip(second.par_chunks_mut(PIECE))
        .zip(gradient.par_chunks(PIECE))
        .for_each(|(((weights, first), second), gradient)| {
            adam_piece(step, weights, first, second, gradient);
        });
}
