//! [`Number`]: what a sum over parts of a batch is rounded to. Numbers of half the size take half as long on their way
//! to another process, and a sum that is rounded alike everywhere is the same wherever it is made.

use bytemuck::Pod;
use half::bf16;

use super::elementwise::{Each, each};
use crate::device::simd::dispatch;

/// A number that an f32 is rounded to, to the nearest, of two equally near ones to the even one.
pub trait Number: Pod + Send + Sync {
    /// Rounded.
    fn of(value: f32) -> Self;
    /// The same number.
    fn value(self) -> f32;

    /// `value`, rounded.
    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        Self::of(value).value()
    }
}

impl Number for f32 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
}

/// Has the range of an f32 and 8 significant bits.
impl Number for bf16 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        Self::from_f32(value)
    }

    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }

    /// In fewer instructions than by way of 16 bits: half of the next number is added and what is behind it cut off,
    /// and a NaN keeps its place.
    #[inline(always)]
    fn rounded(value: f32) -> f32 {
        let bits = value.to_bits();
        let carried = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        f32::from_bits(if value.is_nan() { bits | 0x0040_0000 } else { carried } & 0xffff_0000)
    }
}

/// Rounds all values.
pub fn round<N: Number>(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = N::rounded(*value));
}

/// Adds `x` to `sum`: each term is rounded, and so is each sum.
pub fn add_rounded<N: Number>(sum: &mut [f32], x: &[f32]) {
    each(sum, x, |sum, x| *sum = N::rounded(N::rounded(*sum) + N::rounded(x)));
}

/// `to` = `from`, rounded. Both have one length.
pub fn pack<N: Number>(to: &mut [N], from: &[f32]) {
    dispatch(Each { out: to, x: from, change: |to: &mut N, from| *to = N::of(from) });
}

/// `to` = `from`. Both have one length.
pub fn unpack<N: Number>(to: &mut [f32], from: &[N]) {
    dispatch(Each { out: to, x: from, change: |to: &mut f32, from: N| *to = from.value() });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two equally near numbers the one whose last bit is 0; NaN and what has no end stay what they are.
    #[test]
    fn values_are_rounded_to_the_nearest() {
        let values = [
            (1.0, 1.0),
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.0 + 4.0 / 256.0),
            (-1.0 - 1.5 / 256.0, -1.0 - 2.0 / 256.0),
            (-0.0, -0.0),
            (f32::from_bits(0x1_7fff), f32::from_bits(0x1_0000)),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for (value, expected) in values {
            let found = bf16::rounded(value);
            assert_eq!(found.to_bits(), expected.to_bits(), "{value}: {found}, not {expected}");
            assert_eq!(f32::rounded(value).to_bits(), value.to_bits());
        }
        // Every sign, exponent and first bits of the rest, with bits behind them on either side of a half.
        for bits in (0..=u32::from(u16::MAX))
            .flat_map(|high| [0, 1, 0x7fff, 0x8000, 0x8001].map(|low| high << 16 | low))
        {
            let value = f32::from_bits(bits);
            let (found, expected) = (bf16::rounded(value), bf16::of(value).value());
            assert_eq!(found.to_bits(), expected.to_bits(), "{value} {bits:x}");
        }
    }

    #[test]
    fn sums_are_those_of_what_is_packed() {
        let draw = |i: u32, scale: f32| (f32::from((i * 7919 % 1009) as u16) - 504.0) * scale;
        let (a, b): (Vec<f32>, Vec<f32>) = (0..1000).map(|i| (draw(i, 0.37), draw(i + 3, 1e-3))).unzip();
        let packed = |values: &[f32]| {
            let (mut numbers, mut values_again) = (vec![bf16::ZERO; 1000], vec![0.0; 1000]);
            pack(&mut numbers, values);
            unpack(&mut values_again, &numbers);
            values_again
        };
        let mut sum = a.clone();
        add_rounded::<bf16>(&mut sum, &b);
        let plain: Vec<f32> = packed(&a).iter().zip(packed(&b)).map(|(a, b)| a + b).collect();
        assert_eq!(sum, packed(&plain));
        assert_eq!(packed(&sum), sum, "what is rounded stays");
        let mut exact = a.clone();
        add_rounded::<f32>(&mut exact, &b);
        assert!(exact.iter().zip(a.iter().zip(&b)).all(|(sum, (a, b))| *sum == a + b));
        assert_ne!(exact, sum);
    }
}
