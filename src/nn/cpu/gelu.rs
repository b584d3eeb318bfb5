//! The Gaussian error linear unit, with the dropout mask behind it. Loops that use it are `for` loops: a closure is
//! compiled apart from the kernel around it, without its vectors.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

use super::PIECE;
use super::dropout::mask;
use super::math::{gelu, gelu_slope};

struct Forward<'a> {
    y: &'a mut [f32],
    first: usize,
    x: &'a [f32],
    p: f32,
    key: [u64; 3],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = gelu::<FMA>(*x);
        }
        mask(self.y, self.first, self.p, self.key);
    }
}

/// `y = mask * gelu(x)`.
pub fn forward(y: &mut [f32], x: &[f32], p: f32, key: [u64; 3]) {
    let pieces = y.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).enumerate();
    pieces.for_each(|(n, (y, x))| dispatch(Forward { y, first: n * PIECE, x, p, key }));
}

struct Backward<'a> {
    d: &'a mut [f32],
    first: usize,
    x: &'a [f32],
    p: f32,
    key: [u64; 3],
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (d, x) in self.d.iter_mut().zip(self.x) {
            *d *= gelu_slope::<FMA>(*x);
        }
        mask(self.d, self.first, self.p, self.key);
    }
}

/// Turns the gradient of the result, `d`, into that of `x`, in place.
pub fn backward(d: &mut [f32], x: &[f32], p: f32, key: [u64; 3]) {
    let pieces = d.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).enumerate();
    pieces.for_each(|(n, (d, x))| dispatch(Backward { d, first: n * PIECE, x, p, key }));
}
