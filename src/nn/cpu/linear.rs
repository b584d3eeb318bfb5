//! What a linear layer needs beside the matrix product.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

use super::piece_rows;

/// Copies `row` into every row of `out`.
pub fn fill_rows(out: &mut [f32], row: &[f32]) {
    if row.is_empty() {
        return;
    }
    let rows = piece_rows(row.len());
    out.par_chunks_mut(rows * row.len())
        .for_each(|piece| piece.chunks_exact_mut(row.len()).for_each(|r| r.copy_from_slice(row)));
}

struct ColumnSums<'a> {
    cols: usize,
    rows: &'a [f32],
}

impl Kernel for ColumnSums<'_> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<const FMA: bool>(self) -> Vec<f32> {
        let mut sum = vec![0.0f32; self.cols];
        for row in self.rows.chunks_exact(self.cols) {
            sum.iter_mut().zip(row).for_each(|(s, v)| *s += v);
        }
        sum
    }
}

/// `sums = column sums of rows` (fresh) or `sums += column sums`. Pieces of rows are summed separately, then in
/// order.
pub fn column_sums(sums: &mut [f32], rows: &[f32], fresh: bool) {
    let cols = sums.len();
    if fresh {
        sums.fill(0.0);
    }
    if cols == 0 {
        return;
    }
    let sum = |rows: &[f32]| dispatch(ColumnSums { cols, rows });
    let pieces: Vec<Vec<f32>> = rows.par_chunks(piece_rows(cols) * cols).map(sum).collect();
    for piece in pieces {
        sums.iter_mut().zip(&piece).for_each(|(s, v)| *s += v);
    }
}
