//! The backward of sums, means and maxima over groups: the gradient of a group goes out to its rows.
//!
//! Groups are runs of rows, so that the gradient of the rows is cut at the borders of groups and every piece is
//! written by one thread, from front to back.

use std::ops::Range;

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};
use crate::device::stream;

use super::gather::{BLOCK, STREAM_FROM};
use super::segment::{Csr, Members, Slots, piece_groups};

/// Groups that are runs of rows, with or without rows behind them that belong to nobody.
pub trait Runs: Members {
    /// The row at which a group begins; of the group behind the last one, where the rows end.
    fn begin(&self, group: usize) -> usize;
    /// Number of groups.
    fn groups(&self) -> usize;
}

impl Runs for Csr<'_> {
    fn begin(&self, group: usize) -> usize {
        self.0[group] as usize
    }

    fn groups(&self) -> usize {
        self.0.len().saturating_sub(1)
    }
}

impl Runs for Slots<'_> {
    fn begin(&self, group: usize) -> usize {
        group * self.slots
    }

    fn groups(&self) -> usize {
        self.counts.len()
    }
}

/// A piece of the rows, and its groups.
type Piece<'a> = (Range<usize>, &'a mut [f32]);

/// Cuts `dx` where groups begin, into pieces of about equal work.
pub fn cut<'a>(runs: &impl Runs, mut dx: &'a mut [f32], cols: usize) -> Vec<Piece<'a>> {
    let all = runs.groups();
    let some = piece_groups(all, cols, dx.len());
    let mut pieces = Vec::with_capacity(all.div_ceil(some));
    for first in (0..all).step_by(some) {
        let groups = first..all.min(first + some);
        let rows = runs.begin(groups.end) - runs.begin(groups.start);
        let piece;
        (piece, dx) = dx.split_at_mut(rows * cols);
        pieces.push((groups, piece));
    }
    pieces
}

struct Spread<'a, R> {
    runs: &'a R,
    groups: Range<usize>,
    dx: &'a mut [f32],
    d: &'a [f32],
    which: &'a [u32],
    cols: usize,
    mean: bool,
    far: bool,
}

impl<R: Runs> Spread<'_, R> {
    /// One row of the gradient, from that of its group.
    #[inline(always)]
    fn row(&self, out: &mut [f32], group: usize, nth: usize, count: usize) {
        if nth >= count {
            return out.fill(0.0);
        }
        let d = &self.d[group * self.cols..][..self.cols];
        if let Some(which) = self.which.get(group * self.cols..).and_then(|rest| rest.get(..self.cols)) {
            for ((o, d), which) in out.iter_mut().zip(d).zip(which) {
                *o = if *which == nth as u32 { *d } else { 0.0 };
            }
        } else if self.mean {
            let share = 1.0 / count as f32;
            out.iter_mut().zip(d).for_each(|(o, d)| *o = d * share);
        } else {
            out.copy_from_slice(d);
        }
    }
}

impl<R: Runs> Kernel for Spread<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(mut self) {
        let dx = std::mem::take(&mut self.dx);
        let (cols, base) = (self.cols, self.runs.begin(self.groups.start));
        let mut block = [0.0f32; BLOCK];
        let (mut filled, mut written) = (0, 0);
        for group in self.groups.clone() {
            let (begin, end) = (self.runs.begin(group), self.runs.begin(group + 1));
            let count = self.runs.count(group);
            for (nth, row) in (begin - base..end - base).enumerate() {
                if !self.far {
                    self.row(&mut dx[row * cols..][..cols], group, nth, count);
                    continue;
                }
                if filled + cols > BLOCK {
                    stream::copy(&mut dx[written..written + filled], &block[..filled]);
                    (written, filled) = (written + filled, 0);
                }
                self.row(&mut block[filled..filled + cols], group, nth, count);
                filled += cols;
            }
        }
        if self.far {
            stream::copy(&mut dx[written..written + filled], &block[..filled]);
        }
    }
}

/// `dx[row] = d[its group]`, or a member's share of that (`mean`), or that where `which` says that the greatest came
/// from this member; 0 for rows of nobody.
pub fn spread<R: Runs>(dx: &mut [f32], runs: &R, d: &[f32], which: &[u32], cols: usize, mean: bool) {
    if cols == 0 {
        return;
    }
    let far = dx.len() >= STREAM_FROM && cols <= BLOCK;
    cut(runs, dx, cols).into_par_iter().for_each(|(groups, dx)| {
        dispatch(Spread { runs, groups, dx, d, which, cols, mean, far });
    });
}
