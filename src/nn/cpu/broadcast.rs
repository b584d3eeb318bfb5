//! The backward of sums and means over groups: the gradient of a group goes out to its rows.
//!
//! Groups are runs of rows, so that the gradient of the rows is cut at the borders of groups and every piece is
//! written by one thread, from front to back.

use std::ops::Range;

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

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
fn cut<'a>(runs: &impl Runs, mut dx: &'a mut [f32], cols: usize) -> Vec<Piece<'a>> {
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
    cols: usize,
    mean: bool,
}

impl<R: Runs> Spread<'_, R> {
    /// The rows of a group.
    #[inline(always)]
    fn rows(&self, out: &mut [f32], group: usize) {
        let (cols, count) = (self.cols, self.runs.count(group));
        let (members, nobody) = out.split_at_mut(count * cols);
        nobody.fill(0.0);
        let d = &self.d[group * cols..][..cols];
        let share = if self.mean { 1.0 / count as f32 } else { 1.0 };
        match cols {
            4 => Self::copies::<4>(members, d, share),
            16 => Self::copies::<16>(members, d, share),
            64 => Self::copies::<64>(members, d, share),
            100 => Self::copies::<100>(members, d, share),
            _ => {
                for out in members.chunks_exact_mut(cols) {
                    out.iter_mut().zip(d).for_each(|(o, d)| *o = d * share);
                }
            }
        }
    }

    /// `d * share` into every row, for a width that is known while compiling.
    #[inline(always)]
    fn copies<const COLS: usize>(out: &mut [f32], d: &[f32], share: f32) {
        let Some(d) = d.first_chunk::<COLS>() else { return };
        let d = d.map(|d| d * share);
        out.as_chunks_mut::<COLS>().0.iter_mut().for_each(|row| *row = d);
    }
}

impl<R: Runs> Kernel for Spread<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(mut self) {
        let dx = std::mem::take(&mut self.dx);
        let base = self.runs.begin(self.groups.start);
        for group in self.groups.clone() {
            let rows = self.runs.begin(group) - base..self.runs.begin(group + 1) - base;
            self.rows(&mut dx[rows.start * self.cols..rows.end * self.cols], group);
        }
    }
}

/// `dx[row] = d[its group]`, or a member's share of that (`mean`); 0 for rows of nobody.
pub fn broadcast<R: Runs>(dx: &mut [f32], runs: &R, d: &[f32], cols: usize, mean: bool) {
    if cols == 0 {
        return;
    }
    cut(runs, dx, cols).into_par_iter().for_each(|(groups, dx)| {
        dispatch(Spread { runs, groups, dx, d, cols, mean });
    });
}
