//! Sums and means over groups of rows. [`Members`] lists which rows belong to a group: runs of rows
//! ([`Csr`]), the first few of a fixed number of slots ([`Slots`]), or a list
//! ([`InverseIndex`](super::inverse_index::InverseIndex)).
//!
//! One group is summed by one thread in the order of its members; groups are shared out in pieces of about equal
//! work that depend on the shapes alone. Narrow rows are summed in registers, a block of columns at a time or, for the
//! common widths, whole.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

use super::PIECE;
use super::gather::{ahead, ask_for};

/// Columns from which on a row is summed where it lies: fewer are summed in registers.
const WIDE: usize = 512;

/// Which rows belong to which group.
pub trait Members: Sync {
    /// Number of members of a group.
    fn count(&self, group: usize) -> usize;
    /// The row of the `nth` member of a group.
    fn member(&self, group: usize, nth: usize) -> usize;
    /// The row that is read `nth` reads after the first of this group, where the CPU cannot guess it.
    fn later(&self, _group: usize, _nth: usize) -> Option<usize> {
        None
    }
}

/// Group `i` is the rows from `offsets[i]` to `offsets[i + 1]`.
pub struct Csr<'a>(pub &'a [u32]);

impl Members for Csr<'_> {
    #[inline(always)]
    fn count(&self, group: usize) -> usize {
        (self.0[group + 1] - self.0[group]) as usize
    }

    #[inline(always)]
    fn member(&self, group: usize, nth: usize) -> usize {
        self.0[group] as usize + nth
    }
}

/// Group `i` is the first `counts[i]` of the `slots` rows from `i * slots` on.
pub struct Slots<'a> {
    pub counts: &'a [u32],
    pub slots: usize,
}

impl Members for Slots<'_> {
    #[inline(always)]
    fn count(&self, group: usize) -> usize {
        self.counts[group] as usize
    }

    #[inline(always)]
    fn member(&self, group: usize, nth: usize) -> usize {
        group * self.slots + nth
    }
}

/// Groups per piece, for `groups` groups over `values` values of input.
pub fn piece_groups(groups: usize, cols: usize, values: usize) -> usize {
    let each = (values / groups.max(1)).max(cols).max(1);
    (PIECE / each).max(1)
}

struct Sum<'a, M> {
    out: &'a mut [f32],
    cols: usize,
    overwrite: bool,
    members: &'a M,
    first: usize,
    x: &'a [f32],
    stride: usize,
    mean: bool,
}

impl<M: Members> Sum<'_, M> {
    /// Columns `at..at + N` of one group, in registers.
    #[inline(always)]
    fn block<const N: usize>(&self, group: usize, count: usize, at: usize, old: &[f32; N]) -> [f32; N] {
        let mut sum = if self.overwrite { [0.0; N] } else { *old };
        for nth in 0..count {
            let from = self.members.member(group, nth) * self.stride + at;
            if let Some(row) = self.x[from..].first_chunk::<N>() {
                for l in 0..N {
                    sum[l] += row[l];
                }
            }
        }
        if self.mean && count > 0 {
            let by = count as f32;
            sum.iter_mut().for_each(|s| *s /= by);
        }
        sum
    }

    /// Asks for rows that are read some way behind this group.
    #[inline(always)]
    fn ask_ahead(&self, group: usize, count: usize, ahead: usize) {
        for nth in 0..if ahead > 0 { count } else { 0 } {
            if let Some(row) = self.members.later(group, nth + ahead) {
                ask_for(self.x, row * self.stride, self.cols);
            }
        }
    }

    /// Rows of a width that is known while compiling: each is read once, from front to back.
    #[inline(always)]
    fn whole<const COLS: usize>(mut self) {
        let ahead = ahead(self.x.len(), COLS);
        let out = std::mem::take(&mut self.out);
        for (group, out) in (self.first..).zip(out.as_chunks_mut::<COLS>().0) {
            let count = self.members.count(group);
            self.ask_ahead(group, count, ahead);
            *out = self.block(group, count, 0, out);
        }
    }

    /// Rows of any width, a block of columns at a time.
    #[inline(always)]
    fn narrow(mut self) {
        let ahead = ahead(self.x.len(), self.cols);
        let out = std::mem::take(&mut self.out);
        for (group, out) in (self.first..).zip(out.chunks_exact_mut(self.cols)) {
            let count = self.members.count(group);
            self.ask_ahead(group, count, ahead);
            let mut at = 0;
            self.blocks::<256>(group, count, &mut at, out);
            self.blocks::<64>(group, count, &mut at, out);
            self.blocks::<32>(group, count, &mut at, out);
            self.blocks::<16>(group, count, &mut at, out);
            self.blocks::<4>(group, count, &mut at, out);
            self.blocks::<1>(group, count, &mut at, out);
        }
    }

    /// Rows that follow one another and are too wide for the registers, added up in place: the sum stays in the
    /// nearest cache, and the rows are read from front to back.
    #[inline(always)]
    fn wide(mut self) {
        let ahead = ahead(self.x.len(), self.cols);
        let out = std::mem::take(&mut self.out);
        for (group, out) in (self.first..).zip(out.chunks_exact_mut(self.cols)) {
            let count = self.members.count(group);
            self.ask_ahead(group, count, ahead);
            if self.overwrite {
                out.fill(0.0);
            }
            for nth in 0..count {
                let row = &self.x[self.members.member(group, nth) * self.stride..][..self.cols];
                out.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            if self.mean && count > 0 {
                let by = count as f32;
                out.iter_mut().for_each(|sum| *sum /= by);
            }
        }
    }

    #[inline(always)]
    fn blocks<const N: usize>(&self, group: usize, count: usize, at: &mut usize, out: &mut [f32]) {
        let (blocks, _) = out[*at..].as_chunks_mut::<N>();
        for block in blocks {
            *block = self.block(group, count, *at, block);
            *at += N;
        }
    }
}

impl<M: Members> Kernel for Sum<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        match self.cols {
            4 => self.whole::<4>(),
            100 => self.whole::<100>(),
            WIDE.. if self.members.later(self.first, 0).is_none() => self.wide(),
            _ => self.narrow(),
        }
    }
}

/// `out[g] (+)= sum (or mean) of the rows of group g`: rows of `cols` in `out`, rows `stride` apart in `x`. A fresh
/// group without rows becomes zero.
pub fn sum<M: Members>(
    out: &mut [f32],
    cols: usize,
    overwrite: bool,
    members: &M,
    x: &[f32],
    stride: usize,
    mean: bool,
) {
    if cols == 0 {
        return;
    }
    let groups = piece_groups(out.len() / cols, cols, x.len());
    out.par_chunks_mut(groups * cols).enumerate().for_each(|(piece, out)| {
        dispatch(Sum { out, cols, overwrite, members, first: piece * groups, x, stride, mean });
    });
}
