//! Attention over slots whose keys and values are there as rows. A row of a slot is read as it lies, all heads in
//! turn, since heads may be narrow. Seeds are independent, so threads share them out in pieces of fixed size.

use rayon::prelude::*;

use crate::device::simd::{fma, vectorized};

use super::math::exp;
use super::vector::sum;

/// Sizes: `slots` slots per seed, rows of `heads * width` columns.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub slots: usize,
    pub heads: usize,
    pub width: usize,
}

impl Shape {
    fn cols(&self) -> usize {
        self.heads * self.width
    }

    /// Seeds that are worked on together.
    fn piece(&self) -> usize {
        (super::PIECE / (self.slots * self.cols()).max(1)).max(1)
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width as f32).sqrt()
    }
}

/// What both directions read: queries `[seeds, cols]`, keys and values `[seeds * slots, cols]`, occupied slots.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub counts: &'a [u32],
}

/// `out += factor * x`.
#[inline(always)]
fn add_scaled<const FMA: bool>(out: &mut [f32], factor: f32, x: &[f32]) {
    out.iter_mut().zip(x).for_each(|(o, x)| *o = fma::<FMA>(factor, *x, *o));
}

/// `out = factor * x`.
#[inline(always)]
fn scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    out.iter_mut().zip(x).for_each(|(o, x)| *o = factor * x);
}

vectorized! {
    fn forward_seeds<const FMA: bool>(
        shape: Shape, first: usize, inputs: Inputs<'_>, out: &mut [f32], weights: &mut [f32],
    ) {
        let (s, i, cols) = (shape, inputs, shape.cols());
        let (rows, scale) = (s.heads * s.slots, s.scale());
        let slots = |seed: usize| {
            let count = i.counts[seed] as usize;
            (count, seed * s.slots * cols..(seed * s.slots + count) * cols)
        };
        for (n, weights) in weights.chunks_exact_mut(rows).enumerate() {
            let seed = first + n;
            let (count, range) = slots(seed);
            let q = &i.q[seed * cols..][..cols];
            for (slot, k) in i.k[range].chunks_exact(cols).enumerate() {
                for (h, (q, k)) in q.chunks_exact(s.width).zip(k.chunks_exact(s.width)).enumerate() {
                    weights[h * s.slots + slot] = sum([q, k], |[q, k]| q * k) * scale;
                }
            }
            for weights in weights.chunks_exact_mut(s.slots) {
                let (weights, empty) = weights.split_at_mut(count);
                let top = weights.iter().fold(f32::NEG_INFINITY, |top, w| if *w > top { *w } else { top });
                weights.iter_mut().for_each(|w| *w -= top);
                empty.fill(0.0);
            }
        }
        // One long loop over all seeds: short ones of their own would leave most lanes empty.
        weights.iter_mut().for_each(|w| *w = exp::<FMA>(*w));
        let weights = weights.chunks_exact_mut(rows);
        for (n, (out, weights)) in out.chunks_exact_mut(cols).zip(weights).enumerate() {
            let (count, range) = slots(first + n);
            for weights in weights.chunks_exact_mut(s.slots) {
                let (weights, empty) = weights.split_at_mut(count);
                let share = 1.0 / weights.iter().sum::<f32>();
                weights.iter_mut().for_each(|w| *w *= share);
                empty.fill(0.0);
            }
            out.fill(0.0);
            for (slot, v) in i.v[range].chunks_exact(cols).enumerate() {
                for (h, (out, v)) in out.chunks_exact_mut(s.width).zip(v.chunks_exact(s.width)).enumerate() {
                    add_scaled::<FMA>(out, weights[h * s.slots + slot], v);
                }
            }
        }
    }
}

/// `out = sum_k a_k v_k` with `a = softmax(q . k / sqrt(width))` over the occupied slots; `weights` gets `a`,
/// `[seeds, heads * slots]`, 0 for empty slots.
pub fn forward(shape: Shape, inputs: Inputs<'_>, out: &mut [f32], weights: &mut [f32]) {
    if shape.cols() == 0 {
        return;
    }
    if shape.slots == 0 {
        return out.fill(0.0);
    }
    let piece = shape.piece();
    out.par_chunks_mut(piece * shape.cols())
        .zip(weights.par_chunks_mut(piece * shape.heads * shape.slots))
        .enumerate()
        .for_each(|(n, (out, weights))| {
            forward_seeds(shape, n * piece, inputs, out, weights);
        });
}

/// The gradients of queries, keys and values, every element of which is written.
pub struct Gradients<'a> {
    pub dq: &'a mut [f32],
    pub dk: &'a mut [f32],
    pub dv: &'a mut [f32],
}

vectorized! {
    fn backward_seeds<const FMA: bool>(
        shape: Shape, first: usize, inputs: Inputs<'_>, weights: &[f32], d: &[f32], out: Gradients<'_>,
    ) {
        let (s, i, cols) = (shape, inputs, shape.cols());
        let (mut scores, scale) = (vec![0.0f32; s.heads * s.slots], s.scale());
        let rows =
            out.dk.chunks_exact_mut(s.slots * cols).zip(out.dv.chunks_exact_mut(s.slots * cols));
        for (n, (dq, (dk, dv))) in out.dq.chunks_exact_mut(cols).zip(rows).enumerate() {
            let seed = first + n;
            let count = i.counts[seed] as usize;
            let slots = seed * s.slots * cols..(seed * s.slots + count) * cols;
            let (k, v) = (&i.k[slots.clone()], &i.v[slots]);
            let (q, d) = (&i.q[seed * cols..][..cols], &d[seed * cols..][..cols]);
            dk[count * cols..].fill(0.0);
            dv[count * cols..].fill(0.0);
            dq.fill(0.0);
            let weights = &weights[seed * s.heads * s.slots..][..s.heads * s.slots];
            for (slot, v) in v.chunks_exact(cols).enumerate() {
                for (h, (d, v)) in d.chunks_exact(s.width).zip(v.chunks_exact(s.width)).enumerate() {
                    scores[h * s.slots + slot] = sum([d, v], |[d, v]| d * v);
                }
            }
            for (ds, w) in scores.chunks_exact_mut(s.slots).zip(weights.chunks_exact(s.slots)) {
                let (ds, w) = (&mut ds[..count], &w[..count]);
                let mean: f32 = ds.iter().zip(w).map(|(ds, w)| ds * w).sum();
                ds.iter_mut().zip(w).for_each(|(ds, w)| *ds = w * (*ds - mean) * scale);
            }
            let rows = dk.chunks_exact_mut(cols).zip(dv.chunks_exact_mut(cols)).zip(k.chunks_exact(cols));
            for (slot, ((dk, dv), k)) in rows.enumerate() {
                for h in 0..s.heads {
                    let columns = h * s.width..(h + 1) * s.width;
                    let (ds, w) = (scores[h * s.slots + slot], weights[h * s.slots + slot]);
                    add_scaled::<FMA>(&mut dq[columns.clone()], ds, &k[columns.clone()]);
                    scaled(&mut dk[columns.clone()], ds, &q[columns.clone()]);
                    scaled(&mut dv[columns.clone()], w, &d[columns]);
                }
            }
        }
    }
}

/// Gradients, given that of the result and the weights of the forward.
pub fn backward(shape: Shape, inputs: Inputs<'_>, weights: &[f32], d: &[f32], out: Gradients<'_>) {
    if shape.cols() == 0 {
        return;
    }
    if shape.slots == 0 {
        return out.dq.fill(0.0);
    }
    let (piece, cols) = (shape.piece(), shape.cols());
    let rows = out.dk.par_chunks_mut(piece * shape.slots * cols);
    let rows = rows.zip(out.dv.par_chunks_mut(piece * shape.slots * cols));
    out.dq.par_chunks_mut(piece * cols).zip(rows).enumerate().for_each(|(n, (dq, (dk, dv)))| {
        let out = Gradients { dq, dk, dv };
        backward_seeds(shape, n * piece, inputs, weights, d, out);
    });
}
