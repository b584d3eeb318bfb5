//! The element-wise part of recurrent cells, after the two matrix products.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch};

use super::math::{sigmoid, tanh};
use super::piece_rows;

/// Forward of a GRU. Rows of `width` in `out` and `h`, of `3 * width` in `gates` (in: `W_ih x + b`; out: r, z, n)
/// and `hidden` (`W_hh h + b`).
pub fn gru(out: &mut [f32], gates: &mut [f32], hidden: &[f32], h: &[f32], width: usize) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(width);
    out.par_chunks_mut(rows * width)
        .zip(gates.par_chunks_mut(3 * rows * width))
        .zip(hidden.par_chunks(3 * rows * width))
        .zip(h.par_chunks(rows * width))
        .for_each(|(((out, gates), hidden), h)| dispatch(Gru { out, gates, hidden, h, width }));
}

struct Gru<'a> {
    out: &'a mut [f32],
    gates: &'a mut [f32],
    hidden: &'a [f32],
    h: &'a [f32],
    width: usize,
}

impl Kernel for Gru<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let w = self.width;
        let rows = self.out.chunks_exact_mut(w).zip(self.gates.chunks_exact_mut(3 * w));
        for (((out, gates), hidden), h) in
            rows.zip(self.hidden.chunks_exact(3 * w)).zip(self.h.chunks_exact(w))
        {
            // Loops of few slices each: of many, they are not vectorised.
            let (rz, n) = gates.split_at_mut(2 * w);
            let (hidden_rz, hidden_n) = hidden.split_at(2 * w);
            rz.iter_mut().zip(hidden_rz).for_each(|(gate, hidden)| *gate = sigmoid::<FMA>(*gate + hidden));
            let (r, z) = rz.split_at(w);
            n.iter_mut().zip(r).zip(hidden_n).for_each(|((n, r), hidden)| *n = tanh::<FMA>(*n + r * hidden));
            for (((out, z), n), h) in out.iter_mut().zip(z).zip(&*n).zip(h) {
                *out = (1.0 - z) * n + z * h;
            }
        }
    }
}

/// Backward of [`gru`], in place: `gates` (r, z, n) becomes the gradient of `W_ih x + b`, `hidden` that of
/// `W_hh h + b`, and `d` (of the result) the direct part of the gradient of `h`.
pub fn gru_backward(d: &mut [f32], gates: &mut [f32], hidden: &mut [f32], h: &[f32], width: usize) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(width);
    d.par_chunks_mut(rows * width)
        .zip(gates.par_chunks_mut(3 * rows * width))
        .zip(hidden.par_chunks_mut(3 * rows * width))
        .zip(h.par_chunks(rows * width))
        .for_each(|(((d, gates), hidden), h)| dispatch(GruBackward { d, gates, hidden, h, width }));
}

struct GruBackward<'a> {
    d: &'a mut [f32],
    gates: &'a mut [f32],
    hidden: &'a mut [f32],
    h: &'a [f32],
    width: usize,
}

impl Kernel for GruBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let w = self.width;
        let rows = self.d.chunks_exact_mut(w).zip(self.gates.chunks_exact_mut(3 * w));
        let rows = rows.zip(self.hidden.chunks_exact_mut(3 * w)).zip(self.h.chunks_exact(w));
        for (((d, gates), hidden), h) in rows {
            let (r, rest) = gates.split_at_mut(w);
            let (z, n) = rest.split_at_mut(w);
            let (hr, rest) = hidden.split_at_mut(w);
            let (hz, hn) = rest.split_at_mut(w);
            let (d, h) = (&mut d[..w], &h[..w]);
            for i in 0..w {
                let (ri, zi, ni) = (r[i], z[i], n[i]);
                let dn = d[i] * (1.0 - zi) * (1.0 - ni * ni);
                let dz = d[i] * (h[i] - ni) * zi * (1.0 - zi);
                let dr = dn * hn[i] * ri * (1.0 - ri);
                (r[i], z[i], n[i]) = (dr, dz, dn);
                (hr[i], hz[i], hn[i]) = (dr, dz, dn * ri);
                d[i] *= zi;
            }
        }
    }
}

/// `out = tanh(out + hidden)`.
pub fn rnn(out: &mut [f32], hidden: &[f32]) {
    for (o, h) in out.iter_mut().zip(hidden) {
        *o = tanh::<false>(*o + h);
    }
}

/// Turns the gradient of `result = tanh(s)` into that of `s`, in place.
pub fn rnn_backward(d: &mut [f32], result: &[f32]) {
    for (d, y) in d.iter_mut().zip(result) {
        *d *= 1.0 - y * y;
    }
}
