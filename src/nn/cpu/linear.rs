//! What a linear layer needs beside the matrix product.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::{piece_rows, vector};

/// Rows that are added up before they are added to the others: in one long sum of values that nearly cancel, the
/// rounding of each addition is as large as what comes out.
const RUN: usize = 32;

/// Copies `row` into every row of `out`.
pub fn fill_rows(out: &mut [f32], row: &[f32]) {
    if row.is_empty() {
        return;
    }
    let rows = piece_rows(row.len());
    out.par_chunks_mut(rows * row.len())
        .for_each(|piece| piece.chunks_exact_mut(row.len()).for_each(|r| r.copy_from_slice(row)));
}

vectorized! {
    fn sums_of_columns<const FMA: bool>(cols: usize, rows: &[f32]) -> Vec<f32> {
        if cols == 1 {
            return vec![vector::sum([rows], |[value]| value)];
        }
        let mut sum = vec![0.0f32; cols];
        let mut part = vec![0.0f32; cols];
        for rows in rows.chunks(RUN * cols) {
            part.fill(0.0);
            for row in rows.chunks_exact(cols) {
                part.iter_mut().zip(row).for_each(|(s, v)| *s += v);
            }
            sum.iter_mut().zip(&part).for_each(|(s, v)| *s += v);
        }
        sum
    }
}

/// `sums = column sums of rows` (`overwrite`) or `sums += column sums`. Pieces of rows are summed separately, then in
/// order.
pub fn column_sums(sums: &mut [f32], rows: &[f32], overwrite: bool) {
    let cols = sums.len();
    if overwrite {
        sums.fill(0.0);
    }
    if cols == 0 {
        return;
    }
    let sum = |rows: &[f32]| sums_of_columns(cols, rows);
    let pieces: Vec<Vec<f32>> = rows.par_chunks(piece_rows(cols) * cols).map(sum).collect();
    for piece in pieces {
        sums.iter_mut().zip(&piece).for_each(|(s, v)| *s += v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_values_that_nearly_cancel_are_near_the_exact_ones() {
        for cols in [1, 2, 3, 100] {
            let value = |i: usize| ((i * 2_654_435_761) % 1_000_003) as f32 / 500_001.5 - 1.0;
            let rows: Vec<f32> = (0..4_000 * cols).map(value).collect();
            let mut sums = vec![7.0; cols];
            column_sums(&mut sums, &rows, true);
            for (col, sum) in sums.iter().enumerate() {
                let exact: f64 = rows[col..].iter().step_by(cols).map(|&v| f64::from(v)).sum();
                assert!((f64::from(*sum) - exact).abs() < 2e-5, "{cols} {col}: {sum} {exact}");
            }
        }
    }
}
