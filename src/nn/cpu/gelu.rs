//! The Gaussian error linear unit, with the dropout mask behind it. Loops that use it are `for` loops: a closure is
//! compiled apart from the kernel around it, without its vectors.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::PIECE;
use super::dropout::mask;
use super::math::{gelu, gelu_slope};

vectorized! {
    fn forward_piece<const FMA: bool>(y: &mut [f32], first: usize, x: &[f32], p: f32, key: [u64; 3]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = gelu::<FMA>(*x);
        }
        mask(y, first, p, key);
    }
}

/// `y = mask * gelu(x)`.
pub fn forward(y: &mut [f32], x: &[f32], p: f32, key: [u64; 3]) {
    let pieces = y.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).enumerate();
    pieces.for_each(|(n, (y, x))| forward_piece(y, n * PIECE, x, p, key));
}

vectorized! {
    fn backward_piece<const FMA: bool>(d: &mut [f32], first: usize, x: &[f32], p: f32, key: [u64; 3]) {
        for (d, x) in d.iter_mut().zip(x) {
            *d *= gelu_slope::<FMA>(*x);
        }
        mask(d, first, p, key);
    }
}

/// Turns the gradient of the result, `d`, into that of `x`, in place.
pub fn backward(d: &mut [f32], x: &[f32], p: f32, key: [u64; 3]) {
    let pieces = d.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).enumerate();
    pieces.for_each(|(n, (d, x))| backward_piece(d, n * PIECE, x, p, key));
}
