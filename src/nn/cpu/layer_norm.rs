//! Layer normalisation of rows.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::vector::sum;
use super::{add_pairs, piece_rows};

vectorized! {
    fn forward_rows<const FMA: bool>(
        y: &mut [f32], moments: &mut [f32], x: &[f32], gamma: &[f32], beta: &[f32], eps: f32,
    ) {
        let cols = gamma.len();
        let rows = y.chunks_exact_mut(cols).zip(x.chunks_exact(cols));
        for ((y, x), m) in rows.zip(moments.chunks_exact_mut(2)) {
            let n = cols as f32;
            let mean = sum([x], |[x]| x) / n;
            let variance = sum([x], |[x]| (x - mean) * (x - mean)) / n;
            let rstd = 1.0 / (variance + eps).sqrt();
            m.copy_from_slice(&[mean, rstd]);
            for (((y, x), g), b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                *y = (x - mean) * rstd * g + b;
            }
        }
    }
}

/// `y = (x - mean) * rstd * gamma + beta` per row; `moments` gets mean and rstd per row.
pub fn forward(y: &mut [f32], moments: &mut [f32], x: &[f32], gamma: &[f32], beta: &[f32], eps: f32) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let rows = piece_rows(cols);
    y.par_chunks_mut(rows * cols)
        .zip(moments.par_chunks_mut(rows * 2))
        .zip(x.par_chunks(rows * cols))
        .for_each(|((y, moments), x)| forward_rows(y, moments, x, gamma, beta, eps));
}

vectorized! {
    fn backward_rows<const FMA: bool>(
        d: &mut [f32], x: &[f32], moments: &[f32], gamma: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let cols = gamma.len();
        let (mut dgamma, mut dbeta) = (vec![0.0f32; cols], vec![0.0f32; cols]);
        let rows = d.chunks_exact_mut(cols).zip(x.chunks_exact(cols));
        for ((d, x), m) in rows.zip(moments.chunks_exact(2)) {
            let (mean, rstd) = (m[0], m[1]);
            for (((dg, db), d), x) in dgamma.iter_mut().zip(dbeta.iter_mut()).zip(d.iter()).zip(x) {
                *dg += d * (x - mean) * rstd;
                *db += d;
            }
            let plain = sum([d, gamma], |[d, g]| d * g) / cols as f32;
            let along = sum([d, gamma, x], |[d, g, x]| d * g * (x - mean) * rstd) / cols as f32;
            for ((d, x), g) in d.iter_mut().zip(x).zip(gamma) {
                *d = rstd * (*d * g - plain - (x - mean) * rstd * along);
            }
        }
        (dgamma, dbeta)
    }
}

/// Turns the gradient of the result, `d`, into that of the input, in place, and returns those of gamma and beta.
/// Pieces of rows are summed separately, then in order.
pub fn backward(d: &mut [f32], x: &[f32], moments: &[f32], gamma: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let cols = gamma.len();
    if cols == 0 {
        return (Vec::new(), Vec::new());
    }
    let rows = piece_rows(cols);
    let pieces: Vec<_> = d
        .par_chunks_mut(rows * cols)
        .zip(x.par_chunks(rows * cols))
        .zip(moments.par_chunks(rows * 2))
        .map(|((d, x), moments)| backward_rows(d, x, moments, gamma))
        .collect();
    add_pairs(cols, pieces)
}
