//! Factors of a product as tiles of bf16 numbers, in the order in which the sums are computed.
//!
//! A line is what a sum runs along: a row of the left factor, a column of the right one. A tile has 32 values of each
//! of 16 lines, as 16 x 16 pairs of neighbors. In a tile of the left factor a row is a line; in one of the right factor
//! a row is a place, and holds a pair of each line. Beyond the end of a matrix are zeros. Numbers are rounded to the
//! nearest, ties to even; subnormal ones become zero.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_si512, _mm512_maskz_loadu_ps,
    _mm512_permutexvar_epi16, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_shuffle_i32x4,
    _mm512_storeu_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};
use std::mem::transmute;

/// Lines of a tile.
pub(super) const LINES: usize = 16;
/// Values of a line in a tile.
pub(super) const DEPTH: usize = 32;
/// Pairs in a row of a tile.
pub(super) const PAIRS: usize = 16;

/// 16 rows of 16 pairs of bf16 numbers: 1 KiB.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Tile(pub(super) [u32; LINES * PAIRS]);

impl Tile {
    /// Of zeros.
    pub(super) const ZERO: Self = Self([0; LINES * PAIRS]);
}

/// A factor: value `i` of line `l` is `data[l * line_stride + i * place_stride]`, all of `lines * depth` values are
/// there, and one of the strides is 1.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    pub data: &'a [f32],
    pub lines: usize,
    pub depth: usize,
    pub line_stride: usize,
    pub place_stride: usize,
}

impl Factor<'_> {
    /// The side whose tiles have its values in the order of memory.
    pub(super) fn lies_as(&self) -> Side {
        if self.place_stride == 1 { Side::Left } else { Side::Right }
    }
}

/// Which factor of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// Values `from..from + depth` of lines `first..first + lines`, at most a tile of them.
#[derive(Clone, Copy)]
struct Part {
    first: usize,
    lines: usize,
    from: usize,
    depth: usize,
}

/// Packs lines `first..first + 16` into tiles laid out as those of a side, one for every 32 values of their depth. Only
/// the side that the factor [lies as](Factor::lies_as) takes no transposing.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) fn pack(tiles: &mut [Tile], factor: Factor<'_>, first: usize, side: Side) {
    let (lines, lies_as) = (LINES.min(factor.lines - first), factor.lies_as());
    for (index, tile) in tiles.iter_mut().enumerate() {
        let from = index * DEPTH;
        let part = Part { first, lines, from, depth: DEPTH.min(factor.depth - from) };
        match lies_as {
            Side::Left => along_lines(tile, factor, part),
            Side::Right => across_lines(tile, factor, part),
        }
        if side != lies_as {
            transpose(tile);
        }
    }
}

/// A row of a tile for each line, where its values are neighbors in memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn along_lines(tile: &mut Tile, factor: Factor<'_>, part: Part) {
    for (line, row) in tile.0.chunks_exact_mut(PAIRS).enumerate() {
        if line >= part.lines {
            row.fill(0);
            continue;
        }
        let values = &factor.data[(part.first + line) * factor.line_stride + part.from..][..part.depth];
        let (low, high) = values.split_at(values.len().min(16));
        store(row, pairs(load(low), load(high)));
    }
}

/// A row of a tile for each pair of places, where values of all lines are neighbors in memory.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn across_lines(tile: &mut Tile, factor: Factor<'_>, part: Part) {
    /// Number i of the lower half, then number i of the upper half.
    const ALTERNATE: [u32; PAIRS] = {
        let mut order = [0; PAIRS];
        let mut i = 0;
        while i < PAIRS {
            order[i] = i as u32 | (i as u32 + 16) << 16;
            i += 1;
        }
        order
    };
    let alternate = fetch(&ALTERNATE);
    for (pair, row) in tile.0.chunks_exact_mut(PAIRS).enumerate() {
        let place = |place: usize| {
            if place >= part.depth {
                return _mm512_setzero_ps();
            }
            load(&factor.data[(part.from + place) * factor.place_stride + part.first..][..part.lines])
        };
        store(row, _mm512_permutexvar_epi16(alternate, pairs(place(2 * pair), place(2 * pair + 1))));
    }
}

/// Exchanges rows and columns of a tile's pairs.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(tile: &mut Tile) {
    let mut rows = [_mm512_setzero_si512(); LINES];
    for (row, pairs) in rows.iter_mut().zip(tile.0.chunks_exact(PAIRS)) {
        *row = fetch(pairs);
    }
    // Blocks of 2 x 2, then of 4 x 4, inside the quarters of a vector; then the quarters.
    let mut twos = rows;
    for (two, row) in twos.chunks_exact_mut(2).zip(rows.chunks_exact(2)) {
        two[0] = _mm512_unpacklo_epi32(row[0], row[1]);
        two[1] = _mm512_unpackhi_epi32(row[0], row[1]);
    }
    let mut fours = twos;
    for (four, two) in fours.chunks_exact_mut(4).zip(twos.chunks_exact(4)) {
        four[0] = _mm512_unpacklo_epi64(two[0], two[2]);
        four[1] = _mm512_unpackhi_epi64(two[0], two[2]);
        four[2] = _mm512_unpacklo_epi64(two[1], two[3]);
        four[3] = _mm512_unpackhi_epi64(two[1], two[3]);
    }
    for i in 0..4 {
        let even = |a, b| _mm512_shuffle_i32x4::<0x88>(a, b);
        let odd = |a, b| _mm512_shuffle_i32x4::<0xdd>(a, b);
        let (a, b, c, d) = (fours[i], fours[4 + i], fours[8 + i], fours[12 + i]);
        rows[i] = even(even(a, b), even(c, d));
        rows[4 + i] = even(odd(a, b), odd(c, d));
        rows[8 + i] = odd(even(a, b), even(c, d));
        rows[12 + i] = odd(odd(a, b), odd(c, d));
    }
    for (row, pairs) in rows.iter().zip(tile.0.chunks_exact_mut(PAIRS)) {
        store(pairs, *row);
    }
}

/// Values, zeros behind them up to 16.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(values: &[f32]) -> __m512 {
    let mask = if values.len() >= 16 { u16::MAX } else { (1 << values.len()) - 1 };
    // SAFETY: what lies beyond the slice is masked out, which reads nothing there.
    unsafe { _mm512_maskz_loadu_ps(mask, values.as_ptr()) }
}

/// All of `low`, then all of `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 512 bits without a meaning of their own.
    unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn fetch(row: &[u32]) -> __m512i {
    assert_eq!(row.len(), PAIRS);
    // SAFETY: the row has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(row: &mut [u32], pairs: __m512i) {
    assert_eq!(row.len(), PAIRS);
    // SAFETY: the row has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), pairs) }
}
