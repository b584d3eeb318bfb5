//! Attention over slots whose keys and values are there as rows: one pass over the slots of a seed and head,
//! forward, then backward. Seeds are independent, so threads share them out in pieces of fixed size.

use rayon::prelude::*;

use crate::device::simd::{Kernel, dispatch, fma};

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

struct Forward<'a> {
    shape: Shape,
    first: usize,
    inputs: Inputs<'a>,
    out: &'a mut [f32],
    weights: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (s, i, cols) = (self.shape, self.inputs, self.shape.cols());
        let weights = self.weights.chunks_exact_mut(s.heads * s.slots);
        for (n, (out, weights)) in self.out.chunks_exact_mut(cols).zip(weights).enumerate() {
            let seed = self.first + n;
            let count = i.counts[seed] as usize;
            let slots = seed * s.slots * cols..(seed * s.slots + count) * cols;
            let (k, v) = (&i.k[slots.clone()], &i.v[slots]);
            let q = &i.q[seed * cols..][..cols];
            for h in 0..s.heads {
                let columns = h * s.width..(h + 1) * s.width;
                let (weights, empty) = weights[h * s.slots..][..s.slots].split_at_mut(count);
                empty.fill(0.0);
                let mut top = f32::NEG_INFINITY;
                for (w, k) in weights.iter_mut().zip(k.chunks_exact(cols)) {
                    *w = sum([&q[columns.clone()], &k[columns.clone()]], |[q, k]| q * k) * s.scale();
                    top = top.max(*w);
                }
                let mut all = 0.0;
                for w in weights.iter_mut() {
                    *w = exp::<FMA>(*w - top);
                    all += *w;
                }
                let out = &mut out[columns.clone()];
                out.fill(0.0);
                for (w, v) in weights.iter_mut().zip(v.chunks_exact(cols)) {
                    *w /= all;
                    add_scaled::<FMA>(out, *w, &v[columns.clone()]);
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
            dispatch(Forward { shape, first: n * piece, inputs, out, weights });
        });
}

/// The gradients of queries, keys and values, every element of which is written.
pub struct Gradients<'a> {
    pub dq: &'a mut [f32],
    pub dk: &'a mut [f32],
    pub dv: &'a mut [f32],
}

struct Backward<'a> {
    shape: Shape,
    first: usize,
    inputs: Inputs<'a>,
    weights: &'a [f32],
    d: &'a [f32],
    out: Gradients<'a>,
}

impl Kernel for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<const FMA: bool>(self) {
        let (s, i, cols) = (self.shape, self.inputs, self.shape.cols());
        let mut scores = vec![0.0f32; s.slots];
        let rows =
            self.out.dk.chunks_exact_mut(s.slots * cols).zip(self.out.dv.chunks_exact_mut(s.slots * cols));
        for (n, (dq, (dk, dv))) in self.out.dq.chunks_exact_mut(cols).zip(rows).enumerate() {
            let seed = self.first + n;
            let count = i.counts[seed] as usize;
            let slots = seed * s.slots * cols..(seed * s.slots + count) * cols;
            let (k, v) = (&i.k[slots.clone()], &i.v[slots]);
            let (q, d) = (&i.q[seed * cols..][..cols], &self.d[seed * cols..][..cols]);
            dk[count * cols..].fill(0.0);
            dv[count * cols..].fill(0.0);
            dq.fill(0.0);
            for h in 0..s.heads {
                let columns = h * s.width..(h + 1) * s.width;
                let weights = &self.weights[(seed * s.heads + h) * s.slots..][..count];
                let (q, d, dq) = (&q[columns.clone()], &d[columns.clone()], &mut dq[columns.clone()]);
                let mut mean = 0.0;
                for ((ds, w), v) in scores.iter_mut().zip(weights).zip(v.chunks_exact(cols)) {
                    *ds = sum([d, &v[columns.clone()]], |[d, v]| d * v);
                    mean += *ds * w;
                }
                let rows = dk.chunks_exact_mut(cols).zip(dv.chunks_exact_mut(cols)).zip(k.chunks_exact(cols));
                for (((dk, dv), k), (ds, w)) in rows.zip(scores.iter().zip(weights)) {
                    let ds = w * (ds - mean) * s.scale();
                    add_scaled::<FMA>(dq, ds, &k[columns.clone()]);
                    dk[columns.clone()].iter_mut().zip(q).for_each(|(dk, q)| *dk = ds * q);
                    dv[columns.clone()].iter_mut().zip(d).for_each(|(dv, d)| *dv = w * d);
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
        dispatch(Backward { shape, first: n * piece, inputs, weights, d, out });
    });
}
