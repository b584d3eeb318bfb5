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

use crate::device::simd::{fma, vectorized};

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

/// Sums over the values of a block for each of the queries; `term` is what one value adds to the sum.
#[inline(always)]
fn sums<const N: usize>(
    block: &[Lanes],
    queries: [&[f32]; N],
    term: impl Fn(usize, f32, f32, f32) -> f32,
) -> [Lanes; N] {
    let mut sums = [Lanes::ZERO; N];
    let queries = queries.map(|query| &query[..block.len()]);
    for (j, values) in block.iter().enumerate() {
        for (query, sum) in queries.iter().zip(&mut sums) {
            let q = query[j];
            for (sum, value) in sum.0.iter_mut().zip(&values.0) {
                *sum = term(j, q, *value, *sum);
            }
        }
    }
    sums
}

#[inline(always)]
fn head_sums<const FMA: bool, const N: usize>(
    block: &[Lanes],
    queries: [&[f32]; N],
    weights: &[f32],
) -> [Lanes; N] {
    let weights = &weights[..block.len()];
    sums(block, queries, |j, q, value, sum| {
        let hidden = q + value;
        fma::<FMA>(weights[j], if hidden > 0.0 { hidden } else { 0.0 }, sum)
    })
}

#[inline(always)]
fn inner_sums<const FMA: bool, const N: usize>(block: &[Lanes], queries: [&[f32]; N]) -> [Lanes; N] {
    sums(block, queries, |_, q, value, sum| fma::<FMA>(q, value, sum))
}

vectorized! {
    /// Scores by the link head, but for what all rows of a query have in common. A query is as long as the block.
    pub(super) fn head_one<const FMA: bool>(block: &[Lanes], query: &[f32], weights: &[f32]) -> [Lanes; 1] {
        head_sums::<FMA, 1>(block, [query], weights)
    }

    /// The same for a group of queries.
    pub(super) fn head_group<const FMA: bool>(
        block: &[Lanes],
        queries: [&[f32]; GROUP],
        weights: &[f32],
    ) -> [Lanes; GROUP] {
        head_sums::<FMA, GROUP>(block, queries, weights)
    }

    /// Inner products.
    pub(super) fn inner_one<const FMA: bool>(block: &[Lanes], query: &[f32]) -> [Lanes; 1] {
        inner_sums::<FMA, 1>(block, [query])
    }

    /// The same for a group of queries.
    pub(super) fn inner_group<const FMA: bool>(block: &[Lanes], queries: [&[f32]; GROUP]) -> [Lanes; GROUP] {
        inner_sums::<FMA, GROUP>(block, queries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;

    fn number(key: [u64; 3]) -> f32 {
        below([key[0], key[1], key[2], 7], 2001) as f32 / 1000.0 - 1.0
    }

    #[test]
    fn scores_are_those_of_one_row_after_the_other() {
        for width in [1, 3, 100] {
            let row = |v: usize| (0..width).map(move |j| number([1, v as u64, j as u64]));
            let block: Vec<Lanes> =
                (0..width).map(|j| Lanes(std::array::from_fn(|v| number([1, v as u64, j as u64])))).collect();
            let query = |i: u64| -> Vec<f32> { (0..width).map(|j| number([2, i, j as u64])).collect() };
            let queries: Vec<Vec<f32>> = (0..GROUP as u64).map(query).collect();
            let weights: Vec<f32> = (0..width).map(|j| number([3, 0, j as u64])).collect();
            let group: [&[f32]; GROUP] = std::array::from_fn(|i| &queries[i][..]);
            let (heads, inners) = (head_group(&block, group, &weights), inner_group(&block, group));
            for (i, query) in queries.iter().enumerate() {
                assert_eq!(head_one(&block, query, &weights)[0], heads[i], "alone as in a group");
                assert_eq!(inner_one(&block, query)[0], inners[i]);
                for v in 0..LANES {
                    let terms = row(v).zip(query).zip(&weights);
                    let head: f64 =
                        terms.map(|((p, q), w)| f64::from(*w) * f64::from((q + p).max(0.0))).sum();
                    let inner: f64 = row(v).zip(query).map(|(x, q)| f64::from(x) * f64::from(*q)).sum();
                    assert!((f64::from(heads[i].0[v]) - head).abs() < 1e-5, "row {v} of query {i}");
                    assert!((f64::from(inners[i].0[v]) - inner).abs() < 1e-5, "row {v} of query {i}");
                }
            }
        }
    }
}
