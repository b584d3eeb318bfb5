//! Rows by index. The scatter-add of the backward is turned around: [`InverseIndex`] lists, for every row, who read it,
//! in order; then each row sums its readers, so that the result does not depend on threads.
//!
//! Reads at random places ask for their rows some way ahead, because no CPU guesses them; results beyond
//! the caches are put together in a small block and written past them.

use rayon::prelude::*;

use crate::device::prefetch_near;
use crate::device::simd::vectorized;
use crate::device::stream;

pub use super::inverse_index::InverseIndex;
use super::piece_rows;

/// Values of a table from which on its rows are asked for ahead: less stays in the second-level cache.
const FAR_FROM: usize = 1 << 18;
/// Values of a result from which on it is written past the caches.
const STREAM_FROM: usize = 6 << 20;
/// Values that are put together before they are written past the caches.
const BLOCK: usize = 2048;
/// Values of one cache line.
const LINE: usize = 16;

/// Asks for a row ahead of its use, all of it: the CPU sees the pattern of a row only when it is over.
#[inline(always)]
pub fn ask_for(x: &[f32], at: usize, cols: usize) {
    for line in (0..cols.min(64 * LINE)).step_by(LINE) {
        if let Some(value) = x.get(at + line) {
            prefetch_near(value);
        }
    }
}

/// How many rows ahead to ask for; 0 for tables that are near anyway.
#[inline(always)]
pub fn ahead(values: usize, cols: usize) -> usize {
    if values < FAR_FROM { 0 } else { (2048 / cols.max(1)).clamp(2, 64) }
}

vectorized! {
    /// Rows of `x` by `index`. The first of the rows to come, `coming`, is that of `index[0]`. The width is known while
    /// compiling where that pays: a call per row would take longer than the row.
    fn rows_of<const FMA: bool>(out: &mut [f32], x: &[f32], cols: usize, index: &[u32], coming: &[u32]) {
        match cols {
            4 => narrow_rows::<4>(out, x, index, coming),
            8 => narrow_rows::<8>(out, x, index, coming),
            16 => narrow_rows::<16>(out, x, index, coming),
            32 => narrow_rows::<32>(out, x, index, coming),
            64 => narrow_rows::<64>(out, x, index, coming),
            100 => narrow_rows::<100>(out, x, index, coming),
            _ => {
                let ahead = ahead(x.len(), cols);
                for (i, (out, row)) in out.chunks_exact_mut(cols).zip(index).enumerate() {
                    if let Some(next) = coming.get(i + ahead).filter(|_| ahead > 0) {
                        ask_for(x, *next as usize * cols, cols);
                    }
                    out.copy_from_slice(&x[*row as usize * cols..][..cols]);
                }
            }
        }
    }
}

#[inline(always)]
fn narrow_rows<const COLS: usize>(out: &mut [f32], x: &[f32], index: &[u32], coming: &[u32]) {
    let ahead = ahead(x.len(), COLS);
    for (i, (out, row)) in out.as_chunks_mut::<COLS>().0.iter_mut().zip(index).enumerate() {
        if let Some(next) = coming.get(i + ahead).filter(|_| ahead > 0) {
            ask_for(x, *next as usize * COLS, COLS);
        }
        if let Some(row) = x[*row as usize * COLS..].first_chunk::<COLS>() {
            *out = *row;
        }
    }
}

/// `out[i] = x[index[i]]`, rows of `cols`.
pub fn gather(out: &mut [f32], x: &[f32], cols: usize, index: &[u32]) {
    if cols == 0 {
        return;
    }
    let rows = piece_rows(cols);
    let far = out.len() >= STREAM_FROM && cols <= BLOCK;
    out.par_chunks_mut(rows * cols).enumerate().for_each(|(piece, out)| {
        let coming = &index[piece * rows..];
        if !far {
            let index = &coming[..out.len() / cols];
            return rows_of(out, x, cols, index, coming);
        }
        let mut block = [0.0f32; BLOCK];
        let some = BLOCK / cols;
        for (b, out) in out.chunks_mut(some * cols).enumerate() {
            let block = &mut block[..out.len()];
            let coming = &coming[b * some..];
            let index = &coming[..out.len() / cols];
            rows_of(block, x, cols, index, coming);
            stream::copy(out, block);
        }
    });
}

/// `out[i] = x[index[i]]` (`overwrite`) or `out[i] += x[index[i]]`.
pub fn gather_add(out: &mut [f32], x: &[f32], cols: usize, index: &[u32], overwrite: bool) {
    if cols == 0 {
        return;
    }
    if overwrite {
        return gather(out, x, cols, index);
    }
    let rows = piece_rows(cols);
    out.par_chunks_mut(rows * cols).zip(index.par_chunks(rows)).for_each(|(out, index)| {
        for (o, i) in out.chunks_exact_mut(cols).zip(index) {
            let row = &x[*i as usize * cols..][..cols];
            o.iter_mut().zip(row).for_each(|(o, v)| *o += v);
        }
    });
}

/// `out[i] = x[i] + table[index[i]]`.
pub fn sum_gathered(out: &mut [f32], x: &[f32], table: &[f32], cols: usize, index: &[u32]) {
    if cols == 0 {
        return;
    }
    let rows = piece_rows(cols);
    let pieces = out.par_chunks_mut(rows * cols).zip(x.par_chunks(rows * cols)).zip(index.par_chunks(rows));
    pieces.for_each(|((out, x), index)| {
        for ((out, x), i) in out.chunks_exact_mut(cols).zip(x.chunks_exact(cols)).zip(index) {
            let row = &table[*i as usize * cols..][..cols];
            out.iter_mut().zip(x).zip(row).for_each(|((o, x), t)| *o = x + t);
        }
    });
}

/// `out[index[i]] = x[i]`.
pub fn put_rows(out: &mut [f32], cols: usize, index: &[u32], x: &[f32]) {
    if cols == 0 {
        return;
    }
    for (x, i) in x.chunks_exact(cols).zip(index) {
        out[*i as usize * cols..][..cols].copy_from_slice(x);
    }
}

/// `out[index[i]] = 0`.
pub fn clear_rows(out: &mut [f32], cols: usize, index: &[u32]) {
    for i in index {
        out[*i as usize * cols..][..cols].fill(0.0);
    }
}

/// `dx[r] (+)= sum over readers p of r of d[p]`: rows of `cols` in `dx`, rows `stride` apart in `d`. Fresh rows
/// without readers become zero.
pub fn scatter_add(
    dx: &mut [f32],
    cols: usize,
    overwrite: bool,
    inverse: &InverseIndex,
    d: &[f32],
    stride: usize,
) {
    super::segment::sum(dx, cols, overwrite, inverse, d, stride, false);
}
