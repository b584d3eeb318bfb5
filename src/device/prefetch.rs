//! A word to the CPU: this will be read soon.

#![allow(unsafe_code)]

/// Asks for the cache line in which `thing` begins. Changes nothing but time.
#[inline(always)]
pub fn prefetch<T: ?Sized>(thing: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction, and it faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(thing).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = thing;
}

/// The same for many things that come one after the other: they are brought into the second-level cache, which can
/// wait for more of them at a time than the first.
#[inline(always)]
pub fn prefetch_near<T: ?Sized>(thing: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 CPU has the instruction, and it faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(thing).cast::<i8>()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = thing;
}
