//! The bound on feature values: what keeps one absurd number from drowning everything the model knows.
//!
//! ```text
//! |x| <= 100      x
//! beyond          +-100 (1 + ln(|x| / 100))
//! ```
//! Ordinary values pass unchanged. Larger ones keep their sign and their order, and the largest finite one
//! comes out near 8,500, where attention scores and squares are far from the end of 32 bits. The curve
//! and its slope are continuous, so nothing jumps at 100. Applied wherever a row of features is read.

/// Values up to this size pass unchanged.
const ORDINARY_MAX: f32 = 100.0;

/// Values that are looked through together.
const COUNTED: usize = 256;

/// Bounds `values` in place. NaN stays NaN.
pub(super) fn limit(values: &mut [f32]) {
    let is_beyond = |value: &f32| value.abs() > ORDINARY_MAX;
    for values in values.chunks_mut(COUNTED) {
        // Nearly all values are ordinary, and counting the others takes a vector at a time.
        if values.iter().filter(|value| is_beyond(value)).count() == 0 {
            continue;
        }
        for value in values.iter_mut().filter(|value| is_beyond(value)) {
            let size = value.abs().min(f32::MAX);
            *value = (ORDINARY_MAX * (1.0 + (size / ORDINARY_MAX).ln())).copysign(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_values_pass_and_others_keep_sign_and_order() {
        let ordinary = [0.0, -0.0, 1e-30, -17.5, 99.99, 100.0, -100.0];
        let mut values = ordinary;
        limit(&mut values);
        assert_eq!(values.map(f32::to_bits), ordinary.map(f32::to_bits));
        let mut values = [101.0, 1e4, 1e6, 1e20, 1e38, f32::MAX];
        limit(&mut values);
        assert!((values[0] - 101.0).abs() < 0.01, "no jump: {}", values[0]);
        assert!(values.is_sorted() && values[5] < 1e4, "{values:?}");
        let mut values = [f32::INFINITY, f32::NEG_INFINITY, -1e38];
        limit(&mut values);
        assert!(values[0] < 1e4 && values[1] == -values[0] && values[2] < -8e3, "{values:?}");
        let mut nan = [f32::NAN];
        limit(&mut nan);
        assert!(nan[0].is_nan());
    }
}
