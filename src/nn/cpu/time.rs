//! The time encoding and its gradient.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::math::{cos, sin};
use super::{add_pairs, piece_rows};

/// One row: `cos(w * delta + b)`. The product and the sum are rounded separately, as in the frameworks.
#[inline(always)]
pub fn encode_row<const FMA: bool>(out: &mut [f32], delta: f32, w: &[f32], b: &[f32]) {
    for ((o, w), b) in out.iter_mut().zip(w).zip(b) {
        *o = cos::<FMA>(w * delta + b);
    }
}

vectorized! {
    fn encode_rows<const FMA: bool>(out: &mut [f32], deltas: &[f32], w: &[f32], b: &[f32]) {
        for (row, delta) in out.chunks_exact_mut(w.len()).zip(deltas) {
            encode_row::<FMA>(row, *delta, w, b);
        }
    }
}

/// `out[i] = cos(w * deltas[i] + b)`.
pub fn encode(out: &mut [f32], deltas: &[f32], w: &[f32], b: &[f32]) {
    if w.is_empty() {
        return;
    }
    let rows = piece_rows(w.len());
    out.par_chunks_mut(rows * w.len())
        .zip(deltas.par_chunks(rows))
        .for_each(|(out, deltas)| encode_rows(out, deltas, w, b));
}

vectorized! {
    fn gradients<const FMA: bool>(
        deltas: &[f32], w: &[f32], b: &[f32], d: &[f32], stride: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let dim = w.len();
        let (mut dw, mut db) = (vec![0.0f32; dim], vec![0.0f32; dim]);
        for (i, delta) in deltas.iter().enumerate() {
            let d = &d[i * stride..][..dim];
            let (dw, db) = (&mut dw[..dim], &mut db[..dim]);
            for j in 0..dim {
                let slope = -sin::<FMA>(w[j] * delta + b[j]) * d[j];
                dw[j] += slope * delta;
                db[j] += slope;
            }
        }
        (dw, db)
    }
}

/// Gradients of `w` and `b`; row `i` of `d` starts at `i * stride`. Pieces are summed in order.
pub fn backward(deltas: &[f32], w: &[f32], b: &[f32], d: &[f32], stride: usize) -> (Vec<f32>, Vec<f32>) {
    let rows = piece_rows(w.len());
    let pieces: Vec<_> = deltas
        .par_chunks(rows)
        .enumerate()
        .map(|(i, deltas)| gradients(deltas, w, b, &d[i * rows * stride..], stride))
        .collect();
    add_pairs(w.len(), pieces)
}
