//! Elementary functions without branches or calls, so that loops over them vectorise. Polynomials are minimax
//! fits made for this file; errors are given relative to the exact function of the f32 argument.

use crate::device::simd::fma;

/// `1.5 * 2^23`: adding it rounds an f32 to the nearest integer, which then stands in the low mantissa bits.
const ROUND_F32: f32 = 12_582_912.0;
/// The same for f64.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;

/// `x / (2 pi)` minus the nearest integer: in `[-0.5, 0.5]`. Reduced in f64, so that the angle is right to
/// 2e-7 for `|x|` up to 1e9; beyond 1e15 the result is in range but arbitrary.
#[inline(always)]
fn turns(x: f32) -> f32 {
    let turns = f64::from(x) * (1.0 / std::f64::consts::TAU);
    (turns - ((turns + ROUND_F64) - ROUND_F64)) as f32
}

/// `f32::min` that keeps a NaN.
#[inline(always)]
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// `sin(2 pi z)` for `z` in `[-0.25, 0.25]`.
#[inline(always)]
fn sin_quarter<const FMA: bool>(z: f32) -> f32 {
    let s = z * z;
    let mut p = fma::<FMA>(s, SIN[5], SIN[4]);
    p = fma::<FMA>(s, p, SIN[3]);
    p = fma::<FMA>(s, p, SIN[2]);
    p = fma::<FMA>(s, p, SIN[1]);
    p = fma::<FMA>(s, p, SIN[0]);
    z * p
}

/// Cosine, with an absolute error below 1e-6 for `|x|` up to 1e9 and in `[-1, 1]` for any finite `x`.
#[inline(always)]
pub fn cos<const FMA: bool>(x: f32) -> f32 {
    let a = at_most(turns(x).abs(), 0.5);
    sin_quarter::<FMA>(0.25 - a)
}

/// Sine, as accurate as [`cos`].
#[inline(always)]
pub fn sin<const FMA: bool>(x: f32) -> f32 {
    // A quarter turn later than the cosine; the distance is folded back below half a turn.
    let a = at_most((turns(x) - 0.25).abs(), 0.75);
    sin_quarter::<FMA>((a - 0.5).abs() - 0.25)
}

/// Exponential for arguments clamped to `[-87, 88]`, relative error below 3e-7; NaN stays NaN.
#[inline(always)]
pub fn exp<const FMA: bool>(x: f32) -> f32 {
    let clamped = if x < -87.0 { -87.0 } else { x };
    let clamped = at_most(clamped, 88.0);
    let shifted = fma::<FMA>(clamped, std::f32::consts::LOG2_E, ROUND_F32);
    let n = shifted - ROUND_F32;
    // ln 2 in two parts, the first with few bits so that its product with n is exact.
    let r = fma::<FMA>(n, -0.693_359_4, clamped);
    let r = fma::<FMA>(n, 2.121_944_4e-4, r);
    let mut p = fma::<FMA>(r, EXP[6], EXP[5]);
    p = fma::<FMA>(r, p, EXP[4]);
    p = fma::<FMA>(r, p, EXP[3]);
    p = fma::<FMA>(r, p, EXP[2]);
    p = fma::<FMA>(r, p, EXP[1]);
    p = fma::<FMA>(r, p, EXP[0]);
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// `ln(1 + max(x, 0))`, with an error below 2e-7 plus 2e-7 of the result for any finite `x`.
#[inline(always)]
pub fn ln_1p<const FMA: bool>(x: f32) -> f32 {
    let y = 1.0 + if x > 0.0 { x } else { 0.0 };
    // y = 2^n (1 + r) with 1 + r in [sqrt(1/2), sqrt(2)): the offset carries into the exponent above that.
    let bits = y.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let n = (bits.cast_signed() >> 23) as f32;
    let r = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(SQRT_HALF_BITS)) - 1.0;
    // ln(1 + r) = 2 artanh(r / (2 + r)), a series in the square of the quotient.
    let q = r / (2.0 + r);
    let s = q * q;
    let mut p = fma::<FMA>(s, 2.0 / 9.0, 2.0 / 7.0);
    p = fma::<FMA>(s, p, 2.0 / 5.0);
    p = fma::<FMA>(s, p, 2.0 / 3.0);
    p = fma::<FMA>(s, p, 2.0);
    fma::<FMA>(n, std::f32::consts::LN_2, q * p)
}

/// Logistic function.
#[inline(always)]
pub fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<FMA>(-x))
}

/// Hyperbolic tangent, relative error below 1e-6: a polynomial near zero, exponentials elsewhere.
#[inline(always)]
pub fn tanh<const FMA: bool>(x: f32) -> f32 {
    let s = x * x;
    let mut p = fma::<FMA>(s, TANH[5], TANH[4]);
    p = fma::<FMA>(s, p, TANH[3]);
    p = fma::<FMA>(s, p, TANH[2]);
    p = fma::<FMA>(s, p, TANH[1]);
    p = fma::<FMA>(s, p, TANH[0]);
    let near = x * p;
    let far = (1.0 - 2.0 / (exp::<FMA>(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < 0.6 { near } else { far }
}

/// The part of a normal distribution below `x` and its density there. The first by Abramowitz and Stegun, formula
/// 7.1.26: absolute error below 2e-7.
#[inline(always)]
fn normal<const FMA: bool>(x: f32) -> (f32, f32) {
    let bell = exp::<FMA>(-0.5 * x * x);
    let t = 1.0 / fma::<FMA>(0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2, x.abs(), 1.0);
    let mut p = fma::<FMA>(t, NORMAL[4], NORMAL[3]);
    p = fma::<FMA>(t, p, NORMAL[2]);
    p = fma::<FMA>(t, p, NORMAL[1]);
    p = fma::<FMA>(t, p, NORMAL[0]);
    let tail = 0.5 * t * p * bell;
    (if x > 0.0 { 1.0 - tail } else { tail }, bell * 0.398_942_3)
}

/// `x` times the part of a normal distribution below it, with an error below 2e-7 times `|x|`.
#[inline(always)]
pub fn gelu<const FMA: bool>(x: f32) -> f32 {
    x * normal::<FMA>(x).0
}

/// The slope of [`gelu`].
#[inline(always)]
pub fn gelu_slope<const FMA: bool>(x: f32) -> f32 {
    let (below, density) = normal::<FMA>(x);
    fma::<FMA>(x, density, below)
}

const NORMAL: [f32; 5] = [0.254_829_6, -0.284_496_72, 1.421_413_8, -1.453_152_1, 1.061_405_4];
/// Bits of `sqrt(1/2)`.
const SQRT_HALF_BITS: u32 = 0x3F35_04F3;
const SIN: [f32; 6] = [std::f32::consts::TAU, -41.341_7, 81.605_23, -76.704_285, 42.009_83, -14.394_304];
const EXP: [f32; 7] = [1.0, 1.0, 0.5, 0.166_664_15, 0.041_666_083, 0.008_375_135, 0.001_395_605_4];
const TANH: [f32; 6] = [1.0, -0.333_332_85, 0.133_317_29, -0.053_771_846, 0.020_763_578, -0.005_863_209];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    /// Both compilations of a function, at random points of `[-range, range]` on a logarithmic scale.
    fn worst(range: f64, f: impl Fn(f32) -> f64) -> f64 {
        (0..200_000u64)
            .map(|i| {
                let u = f64::from(rng::unit_f32([7, i, 0, 0])) * 2.0 - 1.0;
                let x = u.signum() * (u.abs() * (range.ln() + 10.0) - 10.0).exp();
                f(x as f32)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn cosine_and_sine_hold_their_bounds_far_out() {
        for range in [1.0, 1e5, 1e9, 2e9] {
            let error = worst(range, |x| {
                let exact = f64::from(x);
                let c = (f64::from(cos::<true>(x)) - exact.cos()).abs();
                let s = (f64::from(sin::<true>(x)) - exact.sin()).abs();
                let c2 = (f64::from(cos::<false>(x)) - exact.cos()).abs();
                c.max(s).max(c2)
            });
            assert!(error < 1e-6, "{error} up to {range}");
        }
        assert!((f64::from(cos::<true>(0.0)) - 1.0).abs() < 1e-6);
        for x in [1e15f32, 1e18, 9e18, f32::MAX] {
            assert!(cos::<true>(x).abs() <= 1.0001 && cos::<true>(-x).abs() <= 1.0001, "{x}");
            assert!(sin::<true>(x).abs() <= 1.0001, "{x}");
        }
        assert!(cos::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn logarithms_hold_their_bounds() {
        let error = worst(1e30, |x| {
            let exact = f64::from(x).max(0.0).ln_1p();
            let error = |found: f32| ((f64::from(found) - exact).abs() - 2e-7).max(0.0) / exact.max(1e-30);
            error(ln_1p::<true>(x)).max(error(ln_1p::<false>(x)))
        });
        assert!(error < 2e-7, "{error}");
        assert_eq!((ln_1p::<true>(0.0), ln_1p::<true>(-5.0), ln_1p::<false>(-0.0)), (0.0, 0.0, 0.0));
        assert!(ln_1p::<true>(f32::MAX) > 88.0);
    }

    #[test]
    fn exponentials_hold_their_bounds() {
        let relative = |a: f32, b: f64| (f64::from(a) - b).abs() / b.abs().max(1e-300);
        let error = worst(86.0, |x| {
            let exact = f64::from(x);
            relative(exp::<true>(x), exact.exp()).max(relative(exp::<false>(x), exact.exp()))
        });
        assert!(error < 3e-7, "exp {error}");
        let error = worst(80.0, |x| {
            let exact = f64::from(x);
            relative(tanh::<true>(x), exact.tanh())
                .max(relative(tanh::<false>(x), exact.tanh()))
                .max((f64::from(sigmoid::<true>(x)) - 1.0 / (1.0 + (-exact).exp())).abs())
        });
        assert!(error < 1e-6, "tanh and sigmoid {error}");
        assert_eq!(tanh::<true>(0.0), 0.0);
        assert!(exp::<true>(-1000.0) < 1e-37 && exp::<true>(1000.0).is_finite());
        assert!(exp::<true>(f32::NAN).is_nan() && tanh::<true>(f32::NAN).is_nan());
        assert!(sigmoid::<true>(f32::NAN).is_nan());
    }

    #[test]
    fn the_gaussian_unit_holds_its_bound_and_its_slope_is_its_slope() {
        // The part below x by Simpson's rule from far below.
        let below = |x: f64| {
            let (from, n) = (-12.0, 4_000);
            let h = (x - from) / f64::from(n);
            let density = |i: i32| (-0.5 * (from + h * f64::from(i)).powi(2)).exp();
            let weight = |i: i32| if i == 0 || i == n { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
            (0..=n).map(|i| weight(i) * density(i)).sum::<f64>() * h / 3.0 / std::f64::consts::TAU.sqrt()
        };
        for i in -240..=240 {
            let x = f64::from(i) / 40.0;
            let exact = x * below(x);
            let bound = 2e-7 * x.abs() + 1e-12;
            for found in [gelu::<true>(x as f32), gelu::<false>(x as f32)] {
                assert!((f64::from(found) - exact).abs() < bound, "{x}: {found}, not {exact}");
            }
            let slope = below(x) + x * (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            assert!((f64::from(gelu_slope::<true>(x as f32)) - slope).abs() < 1e-6, "{x}");
        }
        assert!(gelu::<true>(-1e20).abs() < 1e-30);
        assert_eq!((gelu::<true>(1e20), gelu_slope::<true>(1e10)), (1e20, 1.0));
        assert!(gelu::<true>(f32::NAN).is_nan() && gelu_slope::<true>(f32::NAN).is_nan());
    }
}
