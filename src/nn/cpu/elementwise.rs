//! Sum, product, rectifier, scaling, element by element.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch, vectorized};

use super::{PIECE, math};

/// `change(out, x)` for every pair of elements.
pub(super) struct Each<'a, O, X, F> {
    pub out: &'a mut [O],
    pub x: &'a [X],
    pub change: F,
}

impl<O, X: Copy, F: Fn(&mut O, X)> Kernel for Each<'_, O, X, F> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        for (o, x) in self.out.iter_mut().zip(self.x) {
            (self.change)(o, *x);
        }
    }
}

#[inline]
pub(super) fn each(out: &mut [f32], x: &[f32], change: impl Fn(&mut f32, f32) + Copy + Sync) {
    debug_assert_eq!(out.len(), x.len());
    if out.len() <= PIECE {
        return dispatch(Each { out, x, change });
    }
    let pieces = out.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE));
    pieces.for_each(|(out, x)| dispatch(Each { out, x, change }));
}

vectorized! {
    /// `ln(1 + max(x, 0))` of every value, in place, with an error of about 1e-7.
    pub fn log_scale<const FMA: bool>(values: &mut [f32]) {
        values.iter_mut().for_each(|value| *value = math::ln_1p::<FMA>(*value));
    }
}

/// `out = x + y`.
pub fn add(out: &mut [f32], x: &[f32], y: &[f32]) {
    out.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).zip(y.par_chunks(PIECE)).for_each(|((out, x), y)| {
        for ((o, x), y) in out.iter_mut().zip(x).zip(y) {
            *o = x + y;
        }
    });
}

/// `out = x * y` (`overwrite`) or `out += x * y`.
pub fn mul(out: &mut [f32], x: &[f32], y: &[f32], overwrite: bool) {
    out.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).zip(y.par_chunks(PIECE)).for_each(|((out, x), y)| {
        for ((o, x), y) in out.iter_mut().zip(x).zip(y) {
            *o = if overwrite { x * y } else { *o + x * y };
        }
    });
}

/// `out = d` (`overwrite`) or `out += d`.
pub fn accumulate(out: &mut [f32], d: &[f32], overwrite: bool) {
    if overwrite {
        out.copy_from_slice(d);
    } else {
        each(out, d, |o, d| *o += d);
    }
}

/// `out = max(x, 0)`; NaN stays NaN.
pub fn relu(out: &mut [f32], x: &[f32]) {
    each(out, x, |o, x| *o = if x < 0.0 { 0.0 } else { x });
}

/// The same in place.
pub fn rectify(values: &mut [f32]) {
    let change = |part: &mut [f32]| part.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { *v });
    if values.len() <= PIECE {
        return change(values);
    }
    values.par_chunks_mut(PIECE).for_each(change);
}

/// Clears `d` where the rectifier's result is not positive.
pub fn relu_backward(d: &mut [f32], result: &[f32]) {
    each(d, result, |d, y| *d = if y <= 0.0 { 0.0 } else { *d });
}

/// `out = factor * x`.
pub fn scale(out: &mut [f32], x: &[f32], factor: f32) {
    each(out, x, |o, x| *o = factor * x);
}
