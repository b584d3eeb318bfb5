//! The loops of a scan: the scores of a block of rows for a few queries at a time.
//!
//! Rows are stored by [`LANES`]: value `j` of so many rows side by side. So a vector holds one value of different rows,
//! no sum goes across a vector, and a width that is no multiple of one costs nothing. Several queries share each value
//! that is read: alone, a query is bound by reading memory, in groups of [`GROUP`] by arithmetic.
//!
//! ```text
//! head     s_v = sum_j w_j relu(q_j + p_vj)
//! inner    s_v = sum_j q_j x_vj
//! ```

use crate::device::simd::{Kernel, fma};

/// Rows of a block.
pub(super) const LANES: usize = 32;

/// Queries that are scored together.
pub(super) const GROUP: usize = 4;

/// One value of so many rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub [f32; LANES]);

impl Lanes {
    pub(super) const ZERO: Self = Self([0.0; LANES]);
}

/// The same as multiples of the scales of the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(32))]
pub(super) struct Codes(pub [i8; LANES]);

impl Codes {
    pub(super) const ZERO: Self = Self([0; LANES]);
}

/// What a block is made of.
pub(super) trait Block: Copy {
    /// The values, of rows with these scales.
    fn values(&self, scales: &Lanes) -> [f32; LANES];
}

impl Block for Lanes {
    #[inline(always)]
    fn values(&self, _: &Lanes) -> [f32; LANES] {
        self.0
    }
}

impl Block for Codes {
    #[inline(always)]
    fn values(&self, scales: &Lanes) -> [f32; LANES] {
        // A loop: a closure would not be compiled for the vectors of its caller.
        let mut values = [0.0; LANES];
        for (value, (code, scale)) in values.iter_mut().zip(self.0.iter().zip(&scales.0)) {
            *value = f32::from(*code) * scale;
        }
        values
    }
}

/// Sums over the values of a block for each of the queries; `term` is what one value adds to the sum.
#[inline(always)]
fn sums<B: Block, const N: usize>(
    (block, scales): (&[B], &Lanes),
    queries: [&[f32]; N],
    term: impl Fn(usize, f32, f32, f32) -> f32,
) -> [Lanes; N] {
    let mut sums = [Lanes::ZERO; N];
    let queries = queries.map(|query| &query[..block.len()]);
    for (j, values) in block.iter().enumerate() {
        let values = values.values(scales);
        for (query, sum) in queries.iter().zip(&mut sums) {
            let q = query[j];
            for (sum, value) in sum.0.iter_mut().zip(&values) {
                *sum = term(j, q, *value, *sum);
            }
        }
    }
    sums
}

/// Scores by the link head, but for what all rows of a query have in common. A query is as long as the block.
pub(super) struct Heads<'a, B, const N: usize> {
    pub block: &'a [B],
    pub scales: &'a Lanes,
    pub queries: [&'a [f32]; N],
    pub weights: &'a [f32],
}

impl<B: Block, const N: usize> Kernel for Heads<'_, B, N> {
    type Output = [Lanes; N];

    #[inline(always)]
    fn run<const FMA: bool>(self) -> [Lanes; N] {
        let weights = &self.weights[..self.block.len()];
        sums((self.block, self.scales), self.queries, |j, q, value, sum| {
            let hidden = q + value;
            fma::<FMA>(weights[j], if hidden > 0.0 { hidden } else { 0.0 }, sum)
        })
    }
}

/// Inner products.
pub(super) struct Inners<'a, B, const N: usize> {
    pub block: &'a [B],
    pub scales: &'a Lanes,
    pub queries: [&'a [f32]; N],
}

impl<B: Block, const N: usize> Kernel for Inners<'_, B, N> {
    type Output = [Lanes; N];

    #[inline(always)]
    fn run<const FMA: bool>(self) -> [Lanes; N] {
        sums((self.block, self.scales), self.queries, |_, q, value, sum| fma::<FMA>(q, value, sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;
    use crate::device::simd::dispatch;

    fn number(key: [u64; 3]) -> f32 {
        below([key[0], key[1], key[2], 7], 2001) as f32 / 1000.0 - 1.0
    }

    /// Blocks of both kinds against sums of their values, row by row.
    fn compare<B: Block>(block: &[B], scales: &Lanes) {
        let width = block.len();
        let row = |v: usize| block.iter().map(move |lanes| lanes.values(scales)[v]);
        let query = |i: u64| -> Vec<f32> { (0..width).map(|j| number([2, i, j as u64])).collect() };
        let all: Vec<Vec<f32>> = (0..GROUP as u64).map(query).collect();
        let weights: Vec<f32> = (0..width).map(|j| number([3, 0, j as u64])).collect();
        let (queries, weights): ([&[f32]; GROUP], _) = (std::array::from_fn(|i| &all[i][..]), &weights[..]);
        let heads = dispatch(Heads { block, scales, queries, weights });
        let inners = dispatch(Inners { block, scales, queries });
        for (i, query) in all.iter().enumerate() {
            let queries = [&query[..]];
            let alone = dispatch(Heads { block, scales, queries, weights });
            assert_eq!(alone[0], heads[i], "alone as in a group");
            assert_eq!(dispatch(Inners { block, scales, queries })[0], inners[i]);
            for v in 0..LANES {
                let terms = row(v).zip(query).zip(weights);
                let head: f64 = terms.map(|((p, q), w)| f64::from(*w) * f64::from((q + p).max(0.0))).sum();
                let inner: f64 = row(v).zip(query).map(|(x, q)| f64::from(x) * f64::from(*q)).sum();
                assert!((f64::from(heads[i].0[v]) - head).abs() < 1e-5, "row {v} of query {i}");
                assert!((f64::from(inners[i].0[v]) - inner).abs() < 1e-5, "row {v} of query {i}");
            }
        }
    }

    #[test]
    fn scores_are_those_of_one_row_after_the_other() {
        for width in [1, 3, 100] {
            let at = |j: usize, v: usize| number([1, v as u64, j as u64]);
            let block: Vec<Lanes> = (0..width).map(|j| Lanes(std::array::from_fn(|v| at(j, v)))).collect();
            compare(&block, &Lanes::ZERO);
            let code = |j: usize, v: usize| (127.0 * at(j, v)) as i8;
            let block: Vec<Codes> = (0..width).map(|j| Codes(std::array::from_fn(|v| code(j, v)))).collect();
            compare(&block, &Lanes(std::array::from_fn(|v| number([4, v as u64, 0]).abs() / 127.0)));
        }
    }
}
