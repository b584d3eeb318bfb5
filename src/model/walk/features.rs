//! The row of numbers that the network reads of a pair `(u, v)`.
//!
//! ```text
//! x = [H_0[u] .. H_k[u], H_0[v] .. H_k[v]]        2 (k + 1) vectors
//! ln(1 + max(x_i . x_j, 0)) for i <= j            (k + 1) (2 k + 3) numbers: 36 for k = 3
//! ln(1 + age) / 10, for u, v, u to v, v to u      4
//! ln(1 + events), for u, v                        2
//! 1 if seen, for u, v, u to v, v to u             4
//! ```
//! The paper feeds all `4 (k + 1)^2` inner products; the matrix is symmetric, so the others are these again
//! and give a linear layer nothing. With them, and the recency features, it would be 74 numbers for
//! `k = 3`; the distinct ones are 46.

use super::options::LANES;
use super::projection::{WalkProjection, Weights};
use super::recency::Seen;
use crate::device::simd::{Kernel, dispatch, fma};
use crate::nn::log_scale;

/// Numbers beside the inner products.
const BESIDE: usize = 10;

/// Ages are brought to the size of the other numbers.
const AGE_SCALE: f32 = 0.1;

/// Numbers of a row for walks of `steps` edges.
pub(super) fn count(steps: usize) -> usize {
    (steps + 1) * (2 * steps + 3) + BESIDE
}

/// All that the row of a pair is made of.
pub(super) struct PairInputs<'a> {
    /// The projection rows of `u` and `v`.
    pub rows: [&'a [f32]; 2],
    /// What their vectors count.
    pub weights: [Weights; 2],
    /// What was last seen of them.
    pub seen: Seen,
}

/// Number and length of the vectors of a projection row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub steps: usize,
    pub dimension: usize,
}

impl Shape {
    pub fn of(projection: &WalkProjection) -> Self {
        Self { steps: projection.steps(), dimension: projection.dimension() }
    }

    /// Writes the row of a pair into `out`, which has [`count`] numbers.
    pub fn write(self, pair: &PairInputs<'_>, out: &mut [f32]) {
        let (products, beside) = out.split_at_mut(count(self.steps) - BESIDE);
        let d = self.dimension;
        match self.steps {
            1 => dispatch(Products::<2> { pair, d, out: products }),
            2 => dispatch(Products::<3> { pair, d, out: products }),
            3 => dispatch(Products::<4> { pair, d, out: products }),
            _ => dispatch(Products::<5> { pair, d, out: products }),
        }
        let (ages, rest) = beside.split_at_mut(4);
        let (events, flags) = rest.split_at_mut(2);
        for ((age, out), flag) in pair.seen.ages.iter().zip(&mut *ages).zip(flags) {
            *out = age.unwrap_or_default();
            *flag = f32::from(u8::from(age.is_some()));
        }
        events.copy_from_slice(&pair.seen.events);
        let (logs, _) = out.split_at_mut(count(self.steps) - 4);
        log_scale(logs);
        logs[count(self.steps) - BESIDE..][..4].iter_mut().for_each(|age| *age *= AGE_SCALE);
    }
}

/// Inner products of the vectors of a pair, each pair of them once, weighted.
struct Products<'a, const L: usize> {
    pair: &'a PairInputs<'a>,
    d: usize,
    out: &'a mut [f32],
}

impl<const L: usize> Kernel for Products<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let ([a, b], [wa, wb]) = (self.pair.rows, &self.pair.weights);
        let aa = products::<L, true, FMA>(a, a, self.d);
        let bb = products::<L, true, FMA>(b, b, self.d);
        let ab = products::<L, false, FMA>(a, b, self.d);
        let mut out = self.out.iter_mut();
        let mut put = |value: f32| {
            if let Some(out) = out.next() {
                *out = value;
            }
        };
        for i in 0..L {
            for j in i..L {
                put(aa[i][j] * wa[i] * wa[j]);
            }
            for j in 0..L {
                put(ab[i][j] * wa[i] * wb[j]);
            }
        }
        for i in 0..L {
            for j in i..L {
                put(bb[i][j] * wb[i] * wb[j]);
            }
        }
    }
}

/// `a_i . b_j` over vectors of `d` values, a multiple of [`LANES`]; with `SYMMETRIC` only for `i <= j`.
#[inline(always)]
fn products<const L: usize, const SYMMETRIC: bool, const FMA: bool>(
    a: &[f32],
    b: &[f32],
    d: usize,
) -> [[f32; L]; L] {
    let mut sums = [[[0.0f32; LANES]; L]; L];
    let chunk = |of: &[f32], l: usize, at: usize| -> [f32; LANES] {
        of.get(l * d + at..).and_then(|of| of.first_chunk().copied()).unwrap_or([0.0; LANES])
    };
    for at in (0..d).step_by(LANES) {
        let x: [[f32; LANES]; L] = std::array::from_fn(|l| chunk(a, l, at));
        let y: [[f32; LANES]; L] = std::array::from_fn(|l| chunk(b, l, at));
        for i in 0..L {
            for j in (if SYMMETRIC { i } else { 0 })..L {
                for l in 0..LANES {
                    sums[i][j][l] = fma::<FMA>(x[i][l], y[j][l], sums[i][j][l]);
                }
            }
        }
    }
    // A loop, not `map`, which is a call that is not compiled for the wide vectors.
    let mut totals = [[0.0; L]; L];
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sums) in totals.iter_mut().zip(sums) {
            *total = in_halves(sums);
        }
    }
    totals
}

/// The sum of all lanes, in halves.
#[inline(always)]
fn in_halves(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::walk::options::STEPS_MAX;

    #[test]
    fn the_row_of_a_pair_follows_the_formulas() {
        for steps in 1..=STEPS_MAX {
            let (d, l) = (48, steps + 1);
            let value = |i: usize, k: usize| ((i * 37 + k * 101) % 23) as f32 / 11.0 - 0.9;
            let rows: [Vec<f32>; 2] = [1, 2].map(|k| (0..l * d).map(|i| value(i, k)).collect());
            let weights = [[1.0, 0.5, 0.25, 0.125, 0.0625], [1.0, 0.9, 0.81, 0.729, 0.6561]];
            let seen = Seen { ages: [Some(0.0), None, Some(1e6), None], events: [3.0, 0.0] };
            let mut out = vec![f32::NAN; count(steps)];
            let shape = Shape { steps, dimension: d };
            shape.write(&PairInputs { rows: [&rows[0], &rows[1]], weights, seen }, &mut out);

            let vectors: Vec<Vec<f64>> = (0..2 * l)
                .map(|i| {
                    let (side, level) = (i / l, i % l);
                    let weight = f64::from(weights[side][level]);
                    rows[side][level * d..][..d].iter().map(|v| f64::from(*v) * weight).collect()
                })
                .collect();
            let mut expected = Vec::new();
            for i in 0..2 * l {
                for j in i..2 * l {
                    let dot: f64 = vectors[i].iter().zip(&vectors[j]).map(|(x, y)| x * y).sum();
                    expected.push(dot.max(0.0).ln_1p());
                }
            }
            expected.extend([
                0.0,
                0.0,
                1e6_f64.ln_1p() / 10.0,
                0.0,
                3.0_f64.ln_1p(),
                0.0,
                1.0,
                0.0,
                1.0,
                0.0,
            ]);
            assert_eq!(out.len(), expected.len());
            for (i, (found, expected)) in out.iter().zip(&expected).enumerate() {
                assert!((f64::from(*found) - expected).abs() < 2e-5, "{steps} {i}: {found} {expected}");
            }
        }
        assert_eq!(count(3), 46);
    }
}
