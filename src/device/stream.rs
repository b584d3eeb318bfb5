//! Writing past the caches: for results so big that they would push out everything else, and of which the next
//! reader would find nothing there.
//!
//! An ordinary store first reads the line that it writes to; a streaming store does not, which is a third of the
//! traffic of a copy.

#![allow(unsafe_code)]

/// Values per cache line.
const LINE: usize = 16;

/// Copies `x` to `out`, both of one length, without bringing the whole lines of `out` into the caches.
///
/// # Panics
/// If the lengths differ.
pub fn copy(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len(), "a copy between two lengths");
    #[cfg(target_arch = "x86_64")]
    {
        // Whole lines only; what lies before and behind them is copied as usual.
        let head = out.as_ptr().align_offset(LINE * size_of::<f32>()).min(out.len());
        let (out_head, out) = out.split_at_mut(head);
        let (x_head, x) = x.split_at(head);
        out_head.copy_from_slice(x_head);
        let (lines, out_tail) = out.as_chunks_mut::<LINE>();
        let (from, x_tail) = x.as_chunks::<LINE>();
        for (line, from) in lines.iter_mut().zip(from) {
            stream_line(line, from);
        }
        out_tail.copy_from_slice(x_tail);
        // SAFETY: every x86-64 CPU has the instruction. It orders the streaming stores before all that
        // follows, such as notifying another thread that the values are there.
        unsafe { std::arch::x86_64::_mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    out.copy_from_slice(x);
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn stream_line(line: &mut [f32; LINE], from: &[f32; LINE]) {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
    for at in (0..LINE).step_by(4) {
        // SAFETY: `at + 4 <= LINE`, so both accesses stay inside the arrays; `line` begins at a multiple of 64
        // bytes, as the caller made sure, so the store is aligned; every x86-64 CPU has the instructions.
        unsafe { _mm_stream_ps(line.as_mut_ptr().add(at), _mm_loadu_ps(from.as_ptr().add(at))) };
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn copies_whatever_the_alignment() {
        let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let mut out = vec![-1.0f32; 1000];
        for from in [0, 1, 7, 16] {
            for len in [0, 1, 15, 16, 17, 100, 900] {
                out.fill(-1.0);
                super::copy(&mut out[from..from + len], &x[3..3 + len]);
                assert_eq!(out[from..from + len], x[3..3 + len], "{from} {len}");
                assert!(out[..from].iter().chain(&out[from + len..]).all(|v| *v == -1.0));
            }
        }
    }
}
