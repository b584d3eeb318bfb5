//! Sums over vectors of any length, for use inside kernels: a vector of sums, a fixed order.

use crate::device::simd::vectorized;

/// Lanes of the widest vector.
const LANES: usize = 16;

/// `sum_i term([x[0][i], x[1][i], …])` over slices of one length. The order of additions depends on the length
/// alone.
#[inline(always)]
pub fn sum<const N: usize>(x: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let len = x.first().map_or(0, |x| x.len());
    let whole = len - len % LANES;
    // Indexed by constants only, so that it stays in registers.
    let mut lanes = [0.0f32; LANES];
    let mut at = 0;
    while at < whole {
        let parts = x.map(|x| &x[at..at + LANES]);
        for l in 0..LANES {
            lanes[l] += term(parts.map(|part| part[l]));
        }
        at += LANES;
    }
    let rest = len - whole;
    if rest > 0 && whole > 0 {
        // The last vector once more, but for what was added already.
        let parts = x.map(|x| &x[len - LANES..len]);
        for l in 0..LANES {
            let term = term(parts.map(|part| part[l]));
            lanes[l] += if l >= LANES - rest { term } else { 0.0 };
        }
    } else if rest > 0 {
        return (0..len).map(|i| term(x.map(|x| x[i]))).sum();
    }
    let halves: [f32; 8] = std::array::from_fn(|l| lanes[l] + lanes[l + 8]);
    let quarters: [f32; 4] = std::array::from_fn(|l| halves[l] + halves[l + 4]);
    (quarters[0] + quarters[2]) + (quarters[1] + quarters[3])
}

vectorized! {
    /// `sum_i x[i]^2` in 64 bits, in an order that depends on the length alone.
    pub fn sum_of_squares<const FMA: bool>(x: &[f32]) -> f64 {
        let mut lanes = [0.0_f64; 2 * LANES];
        let (whole, rest) = x.as_chunks::<{ 2 * LANES }>();
        for part in whole {
            for l in 0..2 * LANES {
                lanes[l] += f64::from(part[l]) * f64::from(part[l]);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_any_length() {
        for n in [0, 1, 15, 16, 17, 63, 64, 100, 172, 200] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let want: usize = (0..n).map(|i| i * i + 1).sum();
            let squares: usize = (0..n).map(|i| i * i).sum();
            assert_eq!(sum_of_squares(&x), squares as f64, "{n}");
            assert_eq!(sum([&x, &x], |[a, b]| a * b + 1.0), want as f32, "{n}");
        }
    }
}
