//! [`Values`]: the numbers of the rows of a chunk, in 32 bits or in 8, by [`LANES`] as a [scan](super::scan) reads
//! them.
//!
//! In 8 bits, a row has a scale of its own, and each number is the nearest multiple of it:
//!
//! ```text
//! scale_v = max_j |x_vj| / 127     code_vj = round(x_vj / scale_v)     |x_vj - scale_v code_vj| <= scale_v / 2
//! ```
//! So they take a quarter of the memory and of what a scan reads, and order candidates nearly as the numbers
//! themselves do: what is found is scored anew in any case.

use super::scan::{Block, Codes, Heads, Inners, LANES, Lanes};
use crate::device::simd::dispatch;

/// In which numbers the index keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexPrecision {
    /// 32-bit floats.
    F32,
    /// 8-bit integers, and a scale for each row.
    Int8,
}

impl IndexPrecision {
    /// Bytes of `width` numbers of a row.
    #[must_use]
    pub fn bytes_of(self, width: usize) -> usize {
        match self {
            Self::F32 => width * size_of::<f32>(),
            Self::Int8 if width == 0 => 0,
            Self::Int8 => width + size_of::<f32>(),
        }
    }
}

/// `width` numbers of each row of a chunk; the rows of a block of [`LANES`] side by side.
pub(super) struct Values {
    width: usize,
    numbers: Numbers,
}

enum Numbers {
    /// `[blocks, width]`.
    F32(Vec<Lanes>),
    /// `[blocks, width]` and `[blocks]`.
    Int8(Vec<Codes>, Vec<Lanes>),
}

impl Values {
    /// Zeros in every row of so many blocks.
    pub(super) fn new(precision: IndexPrecision, blocks: usize, width: usize) -> Self {
        let numbers = match precision {
            IndexPrecision::F32 => Numbers::F32(vec![Lanes::ZERO; blocks * width]),
            IndexPrecision::Int8 => Numbers::Int8(
                vec![Codes::ZERO; blocks * width],
                vec![Lanes::ZERO; blocks.min(blocks * width)],
            ),
        };
        Self { width, numbers }
    }

    /// Stores `width` finite numbers as the row at `place`.
    #[allow(clippy::cast_possible_truncation)] // 127 at most
    pub(super) fn set(&mut self, place: usize, row: impl Iterator<Item = f32> + Clone) {
        let (block, lane) = (place / LANES, place % LANES);
        match &mut self.numbers {
            Numbers::F32(values) => {
                let values = values[block * self.width..].iter_mut().take(self.width);
                values.zip(row).for_each(|(lanes, value)| lanes.0[lane] = value);
            }
            Numbers::Int8(codes, scales) => {
                let Some(scales) = scales.get_mut(block) else { return };
                let largest = row.clone().fold(0.0, |largest: f32, value| largest.max(value.abs()));
                // Beyond it, a quotient of the smallest numbers would not be finite.
                let scale = if largest > f32::MIN_POSITIVE { largest / 127.0 } else { 0.0 };
                scales.0[lane] = scale;
                let code = |value: f32| if scale > 0.0 { (value / scale).round() as i8 } else { 0 };
                let codes = codes[block * self.width..].iter_mut().take(self.width);
                codes.zip(row).for_each(|(lanes, value)| lanes.0[lane] = code(value));
            }
        }
    }

    /// The numbers of the row at `place`.
    pub(super) fn row(&self, place: usize) -> impl Iterator<Item = f32> {
        let (start, lane) = (place / LANES * self.width, place % LANES);
        (start..start + self.width).map(move |at| match &self.numbers {
            Numbers::F32(values) => values[at].0[lane],
            Numbers::Int8(codes, scales) => f32::from(codes[at].0[lane]) * scales[place / LANES].0[lane],
        })
    }

    /// Scores the rows of a block by the link head, for each query.
    pub(super) fn heads<const N: usize>(
        &self,
        block: usize,
        queries: [&[f32]; N],
        weights: &[f32],
    ) -> [Lanes; N] {
        match &self.numbers {
            Numbers::F32(values) => {
                let (block, scales) = (self.block(values, block), &Lanes::ZERO);
                dispatch(Heads { block, scales, queries, weights })
            }
            Numbers::Int8(codes, scales) => {
                let scales = scales.get(block).unwrap_or(&Lanes::ZERO);
                dispatch(Heads { block: self.block(codes, block), scales, queries, weights })
            }
        }
    }

    /// The inner products of the rows of a block with each query.
    pub(super) fn inners<const N: usize>(&self, block: usize, queries: [&[f32]; N]) -> [Lanes; N] {
        match &self.numbers {
            Numbers::F32(values) => {
                dispatch(Inners { block: self.block(values, block), scales: &Lanes::ZERO, queries })
            }
            Numbers::Int8(codes, scales) => {
                let scales = scales.get(block).unwrap_or(&Lanes::ZERO);
                dispatch(Inners { block: self.block(codes, block), scales, queries })
            }
        }
    }

    fn block<'a, B: Block>(&self, numbers: &'a [B], block: usize) -> &'a [B] {
        &numbers[block * self.width..][..self.width]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 3;

    #[test]
    fn numbers_come_back_exactly_or_within_half_a_step_of_the_largest() {
        let rows = [[0.5, -1.0, 0.25], [0.0; 3], [3e38, -1e38, 7.0], [1e-42, 0.0, -1e-42]];
        for precision in [IndexPrecision::F32, IndexPrecision::Int8] {
            let mut values = Values::new(precision, 2, WIDTH);
            for (row, place) in rows.iter().zip([0, 31, 32, 63]) {
                values.set(place, row.iter().copied());
            }
            for (row, place) in rows.iter().zip([0, 31, 32, 63]) {
                let largest = row.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
                let step = if precision == IndexPrecision::F32 { 0.0 } else { largest / 253.9 };
                // Numbers that are not normal are kept as zeros.
                let near = |(found, value): (f32, &f32)| (found - value).abs() <= step.max(f32::MIN_POSITIVE);
                assert!(values.row(place).zip(row).all(near), "{precision:?} {row:?}");
            }
            values.set(0, std::iter::repeat_n(0.0, WIDTH));
            assert!(values.row(0).all(|value| value == 0.0) && values.row(31).all(|value| value == 0.0));
        }
        assert_eq!(IndexPrecision::F32.bytes_of(100), 400);
        assert_eq!((IndexPrecision::Int8.bytes_of(100), IndexPrecision::Int8.bytes_of(0)), (104, 0));
        Values::new(IndexPrecision::Int8, 2, 0).set(40, std::iter::empty());
    }
}
