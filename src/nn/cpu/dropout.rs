//! Dropout masks from counters.

use rayon::prelude::*;

use crate::device::rng;
use crate::device::simd::vectorized;

use super::PIECE;

/// The chance of dropping in units of 1/65536, and the factor for what stays.
fn threshold(p: f32) -> (u64, f32) {
    let drop = (f64::from(p) * 65536.0).round().min(65535.0);
    (drop as u64, (65536.0 / (65536.0 - drop)) as f32)
}

/// The factor of element `index` as [`factors`] has it.
#[cfg(test)]
pub fn factor(p: f32, key: [u64; 3], index: u64) -> f32 {
    let (drop, keep) = threshold(p);
    let random = rng::random_u64([key[0], key[1], key[2], index / 4]);
    if (random >> (16 * (index % 4))) & 0xFFFF < drop { 0.0 } else { keep }
}

/// The factors of the elements from number `first` on: 0 with probability `p`, else `1 / (1 - p)`. One random number
/// serves four elements. For use inside kernels.
#[inline(always)]
pub fn factors(factors: &mut [f32], first: usize, p: f32, key: [u64; 3]) {
    let (drop, keep) = threshold(p);
    let prefix = rng::prefix(key);
    let mut index = first;
    let mut left = factors;
    while !left.is_empty() {
        let random = rng::draw(prefix, index as u64 / 4) >> (16 * (index % 4));
        let (four, others) = left.split_at_mut((4 - index % 4).min(left.len()));
        for (i, factor) in four.iter_mut().enumerate() {
            *factor = if (random >> (16 * i)) & 0xFFFF < drop { 0.0 } else { keep };
        }
        index += four.len();
        left = others;
    }
}

/// Random numbers that are drawn together.
const DRAWS: usize = 32;

/// Multiplies every element by its factor; the first is element `first`, a multiple of 4. For use inside kernels.
#[inline(always)]
pub fn mask(values: &mut [f32], first: usize, p: f32, key: [u64; 3]) {
    debug_assert!(first.is_multiple_of(4));
    let (drop, keep) = threshold(p);
    if drop == 0 {
        return;
    }
    let prefix = rng::prefix(key);
    let mut shares = [0u16; 4 * DRAWS];
    for (n, values) in values.chunks_mut(4 * DRAWS).enumerate() {
        let from = (first / 4 + n * DRAWS) as u64;
        for (i, four) in shares.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            let random = rng::draw(prefix, from + i as u64);
            *four = [random as u16, (random >> 16) as u16, (random >> 32) as u16, (random >> 48) as u16];
        }
        for (v, share) in values.iter_mut().zip(&shares) {
            *v = if u64::from(*share) < drop { 0.0 } else { *v * keep };
        }
    }
}

vectorized! {
    fn apply_piece<const FMA: bool>(values: &mut [f32], first: usize, p: f32, key: [u64; 3]) {
        mask(values, first, p, key);
    }
}

/// Multiplies every element by its factor.
pub fn apply(values: &mut [f32], p: f32, key: [u64; 3]) {
    let pieces = values.par_chunks_mut(PIECE).enumerate();
    pieces.for_each(|(n, values)| apply_piece(values, n * PIECE, p, key));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_asked_share_and_keeps_the_mean() {
        let mut values = vec![1.0f32; 200_000];
        apply(&mut values, 0.1, [1, 2, 3]);
        let dropped = values.iter().filter(|v| **v == 0.0).count() as f64 / 200_000.0;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / 200_000.0;
        assert!((dropped - 0.1).abs() < 0.003, "{dropped}");
        assert!((mean - 1.0).abs() < 0.005, "{mean}");
        for i in [0usize, 1, 5, 16_384, 16_387, 199_999] {
            assert_eq!(values[i], factor(0.1, [1, 2, 3], i as u64), "element {i}");
        }
        for (first, count) in [(0, 1), (3, 1), (5, 20), (16, 4), (7, 0), (1_022, 9)] {
            let mut some = vec![f32::NAN; count];
            factors(&mut some, first, 0.1, [1, 2, 3]);
            assert_eq!(some, values[first..first + count], "{count} from {first} on");
        }
        let mut other = vec![1.0f32; 200_000];
        apply(&mut other, 0.1, [1, 2, 4]);
        assert_ne!(values, other);
    }
}
