//! Compiles a loop several times, for AVX-512, for AVX2 with fused multiply-add, and for the baseline of
//! the target, and runs the widest version this CPU has.
//!
//! [`vectorized!`] declares such a loop as a function. Where it is generic over types, [`dispatch`] runs a [`Kernel`],
//! a struct of its arguments. All that the inner loops call is `#[inline(always)]`, so that the whole body is compiled
//! inside the function that enables the features. Both are generic over `FMA`: multiply-add through [`fma`] is one
//! rounding where the instruction exists and two where it would be a slow library call.

#![allow(unsafe_code)]

/// A loop to be compiled for several vector widths.
pub trait Kernel {
    /// What the loop computes.
    type Output;
    /// The loop. Mark the implementation `#[inline(always)]`.
    fn run<const FMA: bool>(self) -> Self::Output;
}

/// `a * b + c`, fused when `FMA`.
#[inline(always)]
#[must_use]
pub fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The vectors that this CPU has.
#[derive(Clone, Copy)]
pub enum Vectors {
    /// Those of the target.
    Baseline,
    /// AVX2 with fused multiply-add.
    Avx2,
    /// AVX-512.
    Avx512,
}

/// The widest.
#[inline]
#[must_use]
pub fn vectors() -> Vectors {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512vl")
            && std::is_x86_feature_detected!("avx512dq")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("fma")
        {
            return Vectors::Avx512;
        }
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            return Vectors::Avx2;
        }
    }
    Vectors::Baseline
}

/// Declares loops: `fn name<const FMA: bool>(…)` becomes the function `name(…)`, which runs the version of its body
/// with the widest vectors this CPU has.
macro_rules! vectorized {
    ($(
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident<const $fma:ident: bool>($($argument:ident: $type:ty),+ $(,)?)
        $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$doc])*
        #[inline]
        #[allow(unsafe_code)]
        $visibility fn $name($($argument: $type),+) $(-> $result)? {
            #[inline(always)]
            fn body<const $fma: bool>($($argument: $type),+) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
            fn avx512($($argument: $type),+) $(-> $result)? { body::<true>($($argument),+) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),+) $(-> $result)? { body::<true>($($argument),+) }

            match $crate::device::simd::vectors() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the CPU has every feature that the function enables.
                $crate::device::simd::Vectors::Avx512 => unsafe { avx512($($argument),+) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the CPU has every feature that the function enables.
                $crate::device::simd::Vectors::Avx2 => unsafe { avx2($($argument),+) },
                _ => body::<{ cfg!(target_arch = "aarch64") }>($($argument),+),
            }
        }
    )+};
}
pub(crate) use vectorized;

/// Runs the kernel with the widest vectors this CPU has.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match vectors() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has every feature that the function enables.
        Vectors::Avx512 => unsafe { avx512(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has every feature that the function enables.
        Vectors::Avx2 => unsafe { avx2(kernel) },
        _ => kernel.run::<{ cfg!(target_arch = "aarch64") }>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<true>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32]);

    impl Kernel for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<const FMA: bool>(self) -> f32 {
            self.0.iter().fold(0.0, |sum, v| fma::<FMA>(*v, 2.0, sum))
        }
    }

    #[test]
    fn every_version_computes_the_same_sum() {
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(dispatch(Sum(&values)), 9900.0);
        assert_eq!(Sum(&values).run::<false>(), 9900.0);
        assert_eq!(sum(&values), 9900.0);
    }

    vectorized! {
        fn sum<const FMA: bool>(values: &[f32]) -> f32 {
            values.iter().fold(0.0, |sum, v| fma::<FMA>(*v, 2.0, sum))
        }
    }
}
