//! AVX-512's own product of bf16 numbers, `VDPBF16PS`: a vector of sums gets the products of 16 pairs with a pair that
//! all have in common, twice the work of a multiply-add in f32.
//!
//! The sums of 8 rows and up to 48 columns stay in 24 of the 32 registers while the factors go by: for each pair of
//! places three vectors of the right factor, and of the left one a pair for each row.

use std::arch::x86_64::{
    __cpuid, __m512, __m512bh, __m512i, __mmask16, _mm512_add_ps, _mm512_dpbf16_ps, _mm512_loadu_si512,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_mul_ps, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_setzero_ps, _mm512_setzero_si512,
};
use std::mem::transmute;

use super::Into;
use super::pack::{LINES, PAIRS, Side, Tile};
use super::tiles::{Packed, Rows};

/// Rows whose sums are held at once: they divide a tile's lines.
const ROWS: usize = 8;

/// Whether this CPU computes them at twice the rate of f32, as AMD's do since Zen 4. Intel's that have the instruction
/// have AMX as well, or were not measured.
pub(super) fn are_fast() -> bool {
    let vendor = __cpuid(0);
    [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
}

/// Computes rows of a product.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn multiply(rows: &mut Rows<'_>, factors: Packed<'_>) {
    let runs = rows.columns.div_ceil(LINES);
    assert!(runs > 1, "{} columns", rows.columns);
    let mut run = 0;
    while run < runs {
        // Two and two rather than three and one, which would load more for each sum.
        let some = match runs - run {
            4 => 2,
            left => left.min(3),
        };
        match (factors.lies_as, some) {
            (Side::Left, 2) => multiply_runs::<2, PAIRS, 1>(rows, factors, run),
            (Side::Left, _) => multiply_runs::<3, PAIRS, 1>(rows, factors, run),
            (Side::Right, 2) => multiply_runs::<2, 1, LINES>(rows, factors, run),
            (Side::Right, _) => multiply_runs::<3, 1, LINES>(rows, factors, run),
        }
        run += some;
    }
}

/// Computes the columns of `C` runs of tiles, of which `run` is the first. `LINE` and `PAIR` are the steps in a tile of
/// the left factor from line to line and from pair to pair.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn multiply_runs<const C: usize, const LINE: usize, const PAIR: usize>(
    rows: &mut Rows<'_>,
    factors: Packed<'_>,
    run: usize,
) {
    let depth = factors.depth;
    let right = &factors.right[run * depth..][..C * depth];
    for first in (0..rows.count).step_by(ROWS) {
        let left = &factors.left[first / LINES * depth..][..depth];
        let sums = sums::<C, LINE, PAIR>((left, first % LINES), right, factors.pairs);
        for (row, sums) in sums.iter().enumerate().take(rows.count - first) {
            let row = &mut rows.data[(first + row) * rows.stride..][..rows.columns];
            for (values, sums) in row[run * LINES..].chunks_mut(LINES).zip(*sums) {
                put(values, sums, (rows.into, rows.scale));
            }
        }
    }
}

/// The sums of 8 lines of a run of tiles, from line `first` on, with the lines of `C` runs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn sums<const C: usize, const LINE: usize, const PAIR: usize>(
    (left, first): (&[Tile], usize),
    right: &[Tile],
    pairs: usize,
) -> [[__m512; C]; ROWS] {
    const { assert!((LINES - 1) * LINE + (PAIRS - 1) * PAIR < LINES * PAIRS) }
    let depth = left.len();
    assert!(first + ROWS <= LINES && right.len() == C * depth && pairs.div_ceil(PAIRS) == depth);
    let mut sums = [[_mm512_setzero_ps(); C]; ROWS];
    for (index, tile) in left.iter().enumerate() {
        let last = (pairs - index * PAIRS).min(PAIRS);
        assert!(last > 0);
        let mut pair = 0;
        // Not `for`: for a loop that may run zero times the compiler keeps the sums as they were, in memory.
        loop {
            let mut columns = [_mm512_setzero_si512(); C];
            for (run, column) in columns.iter_mut().enumerate() {
                // SAFETY: the run has `depth` tiles, and the tile a row of 64 bytes for each pair.
                *column = unsafe {
                    let tile = right.get_unchecked(run * depth + index);
                    _mm512_loadu_si512(tile.0.as_ptr().add(pair * LINES).cast())
                };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the tile has 16 pairs of each of 16 lines, one after another or side by side.
                let own = unsafe { *tile.0.get_unchecked((first + row) * LINE + pair * PAIR) };
                let own = in_bf16(_mm512_set1_epi32(own.cast_signed()));
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = _mm512_dpbf16_ps(*sum, own, in_bf16(column));
                }
            }
            pair += 1;
            if pair == last {
                break;
            }
        }
    }
    sums
}

/// Pairs of bf16 numbers as such.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn in_bf16(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits without a meaning of their own.
    unsafe { transmute(pairs) }
}

/// Puts as many sums as there are values, at most 16, to where they belong.
#[inline]
#[target_feature(enable = "avx512f")]
fn put(values: &mut [f32], sums: __m512, (into, scale): (Into, f32)) {
    let mask: __mmask16 = if values.len() >= LINES { u16::MAX } else { (1 << values.len()) - 1 };
    let scaled = _mm512_mul_ps(_mm512_set1_ps(scale), sums);
    let to = values.as_mut_ptr();
    // SAFETY: what lies beyond the slice is masked out, which reads and writes nothing there.
    unsafe {
        let all = match into {
            Into::Replace => scaled,
            Into::Add => _mm512_add_ps(_mm512_maskz_loadu_ps(mask, to), scaled),
        };
        _mm512_mask_storeu_ps(to, mask, all);
    }
}
