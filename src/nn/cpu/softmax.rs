//! The softmax within groups of rows, every column for itself, and its gradient.
//!
//! A group is a run of a few rows of a few columns, so its numbers are worked on as one vector: with a number of
//! columns that divides the width of a vector, lane `l` always holds column `l % cols`.

use std::ops::Range;

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

use super::math::exp;
use super::spread::{Runs, cut};

/// Lanes of the widest vector.
const LANES: usize = 16;

/// Folds lanes that hold the same column, and gives every lane of a column the result.
#[inline(always)]
fn fold(lanes: &mut [f32; LANES], cols: usize, with: impl Fn(f32, f32) -> f32) {
    let mut half = LANES / 2;
    while half >= cols {
        for l in 0..half {
            lanes[l] = with(lanes[l], lanes[l + half]);
        }
        half /= 2;
    }
    let mut known = cols;
    while known < LANES {
        for l in 0..known {
            lanes[l + known] = lanes[l];
        }
        known *= 2;
    }
}

/// The values of a group by vectors, what is missing in the last one filled up.
#[inline(always)]
fn vectors(values: &[f32], filler: f32) -> impl Iterator<Item = [f32; LANES]> {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut last = [filler; LANES];
    last[..rest.len()].copy_from_slice(rest);
    whole.iter().copied().chain((!rest.is_empty()).then_some(last))
}

#[inline(always)]
fn put(out: &mut [f32], vector: &[f32; LANES]) {
    let n = out.len();
    out.copy_from_slice(&vector[..n]);
}

struct Forward<'a, R> {
    runs: &'a R,
    groups: Range<usize>,
    y: &'a mut [f32],
    x: &'a [f32],
    cols: usize,
}

impl<R: Runs> Forward<'_, R> {
    #[inline(always)]
    fn vectors<const FMA: bool>(y: &mut [f32], x: &[f32], cols: usize) {
        let mut top = [f32::NEG_INFINITY; LANES];
        for v in vectors(x, f32::NEG_INFINITY) {
            for l in 0..LANES {
                top[l] = if v[l] > top[l] { v[l] } else { top[l] };
            }
        }
        fold(&mut top, cols, |a, b| if a > b { a } else { b });
        let mut sum = [0.0f32; LANES];
        for (out, v) in y.chunks_mut(LANES).zip(vectors(x, f32::NEG_INFINITY)) {
            let mut e = [0.0f32; LANES];
            for l in 0..LANES {
                e[l] = exp::<FMA>(v[l] - top[l]);
            }
            e[out.len()..].fill(0.0);
            for l in 0..LANES {
                sum[l] += e[l];
            }
            put(out, &e);
        }
        fold(&mut sum, cols, |a, b| a + b);
        for out in y.chunks_mut(LANES) {
            out.iter_mut().zip(&sum).for_each(|(o, s)| *o /= s);
        }
    }

    /// For any number of columns: one column after the other.
    #[inline(always)]
    fn columns<const FMA: bool>(y: &mut [f32], x: &[f32], cols: usize) {
        for c in 0..cols {
            let column = || x.iter().skip(c).step_by(cols);
            let top = column().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for (y, x) in y.iter_mut().skip(c).step_by(cols).zip(column()) {
                *y = exp::<FMA>(x - top);
                sum += *y;
            }
            y.iter_mut().skip(c).step_by(cols).for_each(|y| *y /= sum);
        }
    }
}

impl<R: Runs> Kernel for Forward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (cols, base) = (self.cols, self.runs.begin(self.groups.start));
        for group in self.groups.clone() {
            let (begin, end) = (self.runs.begin(group), self.runs.begin(group + 1));
            let y = &mut self.y[(begin - base) * cols..(end - base) * cols];
            let (y, nobody) = y.split_at_mut(self.runs.count(group) * cols);
            nobody.fill(0.0);
            let x = &self.x[begin * cols..][..y.len()];
            if LANES.is_multiple_of(cols) {
                Self::vectors::<FMA>(y, x, cols);
            } else {
                Self::columns::<FMA>(y, x, cols);
            }
        }
    }
}

/// `y = exp(x - max) / sum exp(x - max)` within each group and column.
pub fn forward<R: Runs>(y: &mut [f32], cols: usize, runs: &R, x: &[f32]) {
    if cols == 0 {
        return;
    }
    cut(runs, y, cols).into_par_iter().for_each(|(groups, y)| dispatch(Forward { runs, groups, y, x, cols }));
}

struct Backward<'a, R> {
    runs: &'a R,
    groups: Range<usize>,
    d: &'a mut [f32],
    y: &'a [f32],
    cols: usize,
}

impl<R: Runs> Backward<'_, R> {
    #[inline(always)]
    fn vectors(d: &mut [f32], y: &[f32], cols: usize) {
        let mut along = [0.0f32; LANES];
        for (d, y) in vectors(d, 0.0).zip(vectors(y, 0.0)) {
            for l in 0..LANES {
                along[l] += d[l] * y[l];
            }
        }
        fold(&mut along, cols, |a, b| a + b);
        for (d, y) in d.chunks_mut(LANES).zip(y.chunks(LANES)) {
            for ((d, y), along) in d.iter_mut().zip(y).zip(&along) {
                *d = y * (*d - along);
            }
        }
    }

    #[inline(always)]
    fn columns(d: &mut [f32], y: &[f32], cols: usize) {
        for c in 0..cols {
            let y = || y.iter().skip(c).step_by(cols);
            let along: f32 = d.iter().skip(c).step_by(cols).zip(y()).map(|(d, y)| d * y).sum();
            d.iter_mut().skip(c).step_by(cols).zip(y()).for_each(|(d, y)| *d = y * (*d - along));
        }
    }
}

impl<R: Runs> Kernel for Backward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (cols, base) = (self.cols, self.runs.begin(self.groups.start));
        for group in self.groups.clone() {
            let (begin, end) = (self.runs.begin(group), self.runs.begin(group + 1));
            let d = &mut self.d[(begin - base) * cols..(end - base) * cols];
            let (d, nobody) = d.split_at_mut(self.runs.count(group) * cols);
            nobody.fill(0.0);
            let y = &self.y[begin * cols..][..d.len()];
            if LANES.is_multiple_of(cols) {
                Self::vectors(d, y, cols);
            } else {
                Self::columns(d, y, cols);
            }
        }
    }
}

/// Turns the gradient of the result `y` into that of the input, in place.
pub fn backward<R: Runs>(d: &mut [f32], cols: usize, runs: &R, y: &[f32]) {
    if cols == 0 {
        return;
    }
    cut(runs, d, cols)
        .into_par_iter()
        .for_each(|(groups, d)| dispatch(Backward { runs, groups, d, y, cols }));
}
