//! The element-wise part of recurrent cells, after the two matrix products.

use rayon::prelude::*;

use crate::device::simd::vectorized;

use super::math::{sigmoid, tanh};
use super::piece_rows;

/// Forward of a GRU. Rows of `width` in `out`, `h` and `hidden` (in: block n of `W_hh h`; out: with its bias), of
/// `3 * width` in `gates` (in: `W_ih x + b_ih`, blocks r and z with those of `W_hh h`; out: r, z, n) and `bias`
/// (`b_hh`).
pub fn gru(
    out: &mut [f32],
    gates: &mut [f32],
    hidden: &mut [f32],
    (h, bias): (&[f32], &[f32]),
    width: usize,
) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(width);
    out.par_chunks_mut(rows * width)
        .zip(gates.par_chunks_mut(3 * rows * width))
        .zip(hidden.par_chunks_mut(rows * width))
        .zip(h.par_chunks(rows * width))
        .for_each(|(((out, gates), hidden), h)| gru_rows(out, gates, hidden, h, bias, width));
}

vectorized! {
    fn gru_rows<const FMA: bool>(
        out: &mut [f32], gates: &mut [f32], hidden: &mut [f32], h: &[f32], bias: &[f32], width: usize,
    ) {
        let w = width;
        let (bias_rz, bias_n) = bias.split_at(2 * w);
        let rows = out.chunks_exact_mut(w).zip(gates.chunks_exact_mut(3 * w));
        for (((out, gates), hidden), h) in
            rows.zip(hidden.chunks_exact_mut(w)).zip(h.chunks_exact(w))
        {
            // Loops of few slices each: of many, they are not vectorized.
            let (rz, n) = gates.split_at_mut(2 * w);
            rz.iter_mut().zip(bias_rz).for_each(|(gate, bias)| *gate = sigmoid::<FMA>(*gate + bias));
            let (r, z) = rz.split_at(w);
            hidden.iter_mut().zip(bias_n).for_each(|(hidden, bias)| *hidden += bias);
            n.iter_mut().zip(r).zip(&*hidden).for_each(|((n, r), hidden)| *n = tanh::<FMA>(*n + r * hidden));
            for (((out, z), n), h) in out.iter_mut().zip(z).zip(&*n).zip(h) {
                *out = (1.0 - z) * n + z * h;
            }
        }
    }
}

/// Backward of [`gru`], in place: `gates` (r, z, n) becomes the gradient of `W_ih x + b_ih`, `hidden` that of block n
/// of `W_hh h + b_hh`, and `d` (of the result) the direct part of the gradient of `h`.
pub fn gru_backward(d: &mut [f32], gates: &mut [f32], hidden: &mut [f32], h: &[f32], width: usize) {
    if width == 0 {
        return;
    }
    let rows = piece_rows(width);
    d.par_chunks_mut(rows * width)
        .zip(gates.par_chunks_mut(3 * rows * width))
        .zip(hidden.par_chunks_mut(rows * width))
        .zip(h.par_chunks(rows * width))
        .for_each(|(((d, gates), hidden), h)| gru_backward_rows(d, gates, hidden, h, width));
}

vectorized! {
    fn gru_backward_rows<const FMA: bool>(
        d: &mut [f32], gates: &mut [f32], hidden: &mut [f32], h: &[f32], width: usize,
    ) {
        let w = width;
        let rows = d.chunks_exact_mut(w).zip(gates.chunks_exact_mut(3 * w));
        let rows = rows.zip(hidden.chunks_exact_mut(w)).zip(h.chunks_exact(w));
        for (((d, gates), hidden), h) in rows {
            let (r, rest) = gates.split_at_mut(w);
            let (z, n) = rest.split_at_mut(w);
            let (d, h, hidden) = (&mut d[..w], &h[..w], &mut hidden[..w]);
            for i in 0..w {
                let (ri, zi, ni) = (r[i], z[i], n[i]);
                let dn = d[i] * (1.0 - zi) * (1.0 - ni * ni);
                let dz = d[i] * (h[i] - ni) * zi * (1.0 - zi);
                let dr = dn * hidden[i] * ri * (1.0 - ri);
                (r[i], z[i], n[i]) = (dr, dz, dn);
                hidden[i] = dn * ri;
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
