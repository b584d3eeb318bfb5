//! Moving blocks of columns and ranges of rows.

use rayon::prelude::*;

use super::piece_rows;

/// Copies `x` (rows of `width`) into the columns of `out` (rows of `cols`) that begin at `at`.
pub fn put_columns(out: &mut [f32], cols: usize, at: usize, x: &[f32], width: usize) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(cols);
    out.par_chunks_mut(rows * cols).zip(x.par_chunks(rows * width)).for_each(|(out, x)| {
        for (o, x) in out.chunks_exact_mut(cols).zip(x.chunks_exact(width)) {
            o[at..at + width].copy_from_slice(x);
        }
    });
}

/// The reverse: `dx = columns of d` (`overwrite`) or `dx += columns of d`.
pub fn get_columns(dx: &mut [f32], width: usize, d: &[f32], cols: usize, at: usize, overwrite: bool) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(cols);
    dx.par_chunks_mut(rows * width).zip(d.par_chunks(rows * cols)).for_each(|(dx, d)| {
        for (x, d) in dx.chunks_exact_mut(width).zip(d.chunks_exact(cols)) {
            let d = &d[at..at + width];
            if overwrite {
                x.copy_from_slice(d);
            } else {
                x.iter_mut().zip(d).for_each(|(x, d)| *x += d);
            }
        }
    });
}
