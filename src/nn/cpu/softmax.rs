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

/// The values from `at` on of a group that ends at `end`; `filler` stands in the lanes beyond that.
#[inline(always)]
fn load(x: &[f32], at: usize, end: usize, filler: f32) -> [f32; LANES] {
    let left = end - at;
    let mut lanes = [filler; LANES];
    if let Some(whole) = x[at..].first_chunk::<LANES>() {
        // What follows the group is there to be read, and is masked out.
        for l in 0..LANES {
            lanes[l] = if l < left { whole[l] } else { filler };
        }
    } else {
        lanes[..left].copy_from_slice(&x[at..end]);
    }
    lanes
}

struct Forward<'a, R> {
    runs: &'a R,
    groups: Range<usize>,
    y: &'a mut [f32],
    x: &'a [f32],
    cols: usize,
}

impl<R: Runs> Forward<'_, R> {
    /// `y = x - max` for one group, the values of which begin at `begin`.
    #[inline(always)]
    fn shift(y: &mut [f32], x: &[f32], begin: usize, cols: usize) {
        let end = begin + y.len();
        if !LANES.is_multiple_of(cols) {
            for c in 0..cols {
                let column = || x[begin..end].iter().skip(c).step_by(cols);
                let top = column().copied().fold(f32::NEG_INFINITY, f32::max);
                y.iter_mut().skip(c).step_by(cols).zip(column()).for_each(|(y, x)| *y = x - top);
            }
            return;
        }
        let mut top = [f32::NEG_INFINITY; LANES];
        for at in (begin..end).step_by(LANES) {
            let v = load(x, at, end, f32::NEG_INFINITY);
            for l in 0..LANES {
                top[l] = if v[l] > top[l] { v[l] } else { top[l] };
            }
        }
        fold(&mut top, cols, |a, b| if a > b { a } else { b });
        for (y, x) in y.chunks_mut(LANES).zip(x[begin..end].chunks(LANES)) {
            y.iter_mut().zip(x).zip(&top).for_each(|((y, x), top)| *y = x - top);
        }
    }

    /// Divides the values of one group by their sums.
    #[inline(always)]
    fn divide(y: &mut [f32], cols: usize) {
        if !LANES.is_multiple_of(cols) {
            for c in 0..cols {
                let sum: f32 = y.iter().skip(c).step_by(cols).sum();
                y.iter_mut().skip(c).step_by(cols).for_each(|y| *y /= sum);
            }
            return;
        }
        let mut sum = [0.0f32; LANES];
        for at in (0..y.len()).step_by(LANES) {
            let v = load(y, at, y.len(), 0.0);
            for l in 0..LANES {
                sum[l] += v[l];
            }
        }
        fold(&mut sum, cols, |a, b| a + b);
        let share = sum.map(|sum| 1.0 / sum);
        for y in y.chunks_mut(LANES) {
            y.iter_mut().zip(&share).for_each(|(y, share)| *y *= share);
        }
    }
}

impl<R: Runs> Kernel for Forward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (cols, base) = (self.cols, self.runs.begin(self.groups.start));
        let place = |group: usize| {
            let (begin, end) = (self.runs.begin(group), self.runs.begin(group + 1));
            ((begin - base) * cols, self.runs.count(group) * cols, (end - base) * cols)
        };
        for group in self.groups.clone() {
            let (begin, values, end) = place(group);
            let (y, nobody) = self.y[begin..end].split_at_mut(values);
            nobody.fill(0.0);
            Self::shift(y, self.x, base * cols + begin, cols);
        }
        // One long loop over all groups: short ones of their own would leave most lanes empty.
        self.y.iter_mut().for_each(|y| *y = exp::<FMA>(*y));
        for group in self.groups.clone() {
            let (begin, values, end) = place(group);
            let (y, nobody) = self.y[begin..end].split_at_mut(values);
            nobody.fill(0.0);
            Self::divide(y, cols);
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
        for at in (0..d.len()).step_by(LANES) {
            let (d, y) = (load(d, at, d.len(), 0.0), load(y, at, d.len(), 0.0));
            for l in 0..LANES {
                along[l] += d[l] * y[l];
            }
        }
        fold(&mut along, cols, |a, b| a + b);
        let (y, y_rest) = y[..d.len()].as_chunks::<LANES>();
        let (whole, rest) = d.as_chunks_mut::<LANES>();
        for (d, y) in whole.iter_mut().zip(y) {
            for l in 0..LANES {
                d[l] = y[l] * (d[l] - along[l]);
            }
        }
        for ((d, y), along) in rest.iter_mut().zip(y_rest).zip(&along) {
            *d = y * (*d - along);
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
            let y = &self.y[begin * cols..];
            if LANES.is_multiple_of(cols) {
                Self::vectors(d, y, cols);
            } else {
                let y = &y[..d.len()];
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
