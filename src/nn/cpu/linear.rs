//! What a linear layer needs beside the matrix product.

use rayon::prelude::*;

use super::piece_rows;

/// Copies `row` into every row of `out`.
pub fn fill_rows(out: &mut [f32], row: &[f32]) {
    if row.is_empty() {
        return;
    }
    out.chunks_exact_mut(row.len()).for_each(|r| r.copy_from_slice(row));
}

/// Adds the column sums of `rows` to `sums`. Pieces of rows are summed separately, then in order.
pub fn add_column_sums(sums: &mut [f32], rows: &[f32]) {
    let cols = sums.len();
    if cols == 0 {
        return;
    }
    let sum = |piece: &[f32]| {
        let mut sum = vec![0.0f32; cols];
        for row in piece.chunks_exact(cols) {
            sum.iter_mut().zip(row).for_each(|(s, v)| *s += v);
        }
        sum
    };
    let pieces: Vec<Vec<f32>> = rows.par_chunks(piece_rows(cols) * cols).map(sum).collect();
    for piece in pieces {
        sums.iter_mut().zip(&piece).for_each(|(s, v)| *s += v);
    }
}
