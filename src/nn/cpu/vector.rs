//! Sums over vectors of any length, for use inside kernels: many accumulators, a fixed order.

/// Lanes of the widest vector.
const LANES: usize = 16;
/// Accumulators: each addition has to wait for the one before it in the same accumulator.
const WIDE: usize = 4 * LANES;

/// `sum_i term([x[0][i], x[1][i], …])` over slices of one length. The order of additions depends on the length
/// alone.
#[inline(always)]
pub fn sum<const N: usize>(x: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let len = x.first().map_or(0, |x| x.len());
    let mut wide = [0.0f32; WIDE];
    let mut at = 0;
    while at + WIDE <= len {
        let parts: [&[f32; WIDE]; N] = x.map(|x| x[at..].first_chunk().unwrap_or(&[0.0; WIDE]));
        for l in 0..WIDE {
            wide[l] += term(parts.map(|part| part[l]));
        }
        at += WIDE;
    }
    let mut sum = [0.0f32; LANES];
    while at + LANES <= len {
        let parts: [&[f32; LANES]; N] = x.map(|x| x[at..].first_chunk().unwrap_or(&[0.0; LANES]));
        for l in 0..LANES {
            sum[l] += term(parts.map(|part| part[l]));
        }
        at += LANES;
    }
    for part in wide.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            sum[l] += part[l];
        }
    }
    for (l, i) in (at..len).enumerate() {
        sum[l] += term(x.map(|x| x[i]));
    }
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            sum[l] += sum[l + half];
        }
    }
    sum[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_any_length() {
        for n in [0, 1, 15, 16, 17, 63, 64, 100, 172, 200] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let want: usize = (0..n).map(|i| i * i + 1).sum();
            assert_eq!(sum([&x, &x], |[a, b]| a * b + 1.0), want as f32, "{n}");
        }
    }
}
