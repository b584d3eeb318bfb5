//! The fused pass of temporal attention over the slots of each seed: forward, then backward.
//!
//! For one seed the rows of its occupied slots are brought together in a small scratch matrix that stays in the
//! first-level cache; every head then reads it twice (scores, weighted sum; or their gradients). Seeds are
//! independent, so threads share them out in pieces of fixed size.

use rayon::prelude::*;

use crate::device::simd::{fma, vectorized};

use super::dropout;
use super::math::exp;
use super::slots::{LANES, Scratch, dot, weighted_sum};
pub use super::slots::{Shape, Source};
use super::time::encode_row;

/// Seeds that are worked on together.
const SEEDS: usize = 32;

/// Time differences and their encoding.
pub struct Clock<'a> {
    pub deltas: &'a [f32],
    pub w: &'a [f32],
    pub b: &'a [f32],
}

/// Dropout of attention weights.
#[derive(Clone, Copy)]
pub struct Mask {
    pub p: f32,
    pub key: [u64; 3],
}

impl Mask {
    /// The factors of the weights of a seed (head, slot), from weight number `first` on.
    #[inline(always)]
    fn factors(self, factors: &mut [f32], first: usize) {
        if self.p > 0.0 {
            dropout::factors(factors, first, self.p, self.key);
        }
    }
}

/// What the forward writes.
pub struct Forward<'a> {
    /// `[seeds, heads * padded]`: weighted sums of slot rows.
    pub y: &'a mut [f32],
    /// `[seeds, heads * slots]`: weights before dropout, 0 for empty slots.
    pub weights: &'a mut [f32],
    /// `[seeds * slots, time]`: encodings of occupied slots.
    pub phi: &'a mut [f32],
}

/// Softmax in place.
#[inline(always)]
fn softmax<const FMA: bool>(scores: &mut [f32]) {
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for scores in scores.chunks_mut(LANES) {
        // A whole vector, whatever the number of slots.
        let mut lanes = [top; LANES];
        lanes[..scores.len()].copy_from_slice(scores);
        for lane in &mut lanes {
            *lane = exp::<FMA>(*lane - top);
        }
        scores.copy_from_slice(&lanes[..scores.len()]);
    }
    scores.iter().for_each(|s| sum += s);
    scores.iter_mut().for_each(|s| *s /= sum);
}

vectorized! {
    fn forward_seeds<const FMA: bool>(
        shape: Shape, source: Source<'_>, clock: &Clock<'_>, mask: Mask, first: usize, u: &[f32], out: Forward<'_>,
    ) {
        let (s, clock) = (shape, clock);
        let mut scratch = Scratch::new(&s);
        let mut factors = vec![1.0; s.heads * s.slots];
        for i in 0..out.y.len() / (s.heads * s.padded) {
            let seed = first + i;
            let query = source.query(seed);
            source.announce(&s, seed + 1);
            scratch.occupy(&source.slots[seed * s.slots..][..s.slots]);
            let phi = &mut out.phi[i * s.slots * s.time..][..s.slots * s.time];
            for k in scratch.slots.iter().copied() {
                let delta = clock.deltas[seed * s.slots + k];
                encode_row::<FMA>(&mut phi[k * s.time..][..s.time], delta, clock.w, clock.b);
            }
            scratch.fill(&s, &source, seed, phi);
            mask.factors(&mut factors, seed * s.heads * s.slots);
            let n = scratch.slots.len();
            for h in 0..s.heads {
                let block = (i * s.heads + h) * s.padded..(i * s.heads + h + 1) * s.padded;
                let weights = &mut out.weights[(i * s.heads + h) * s.slots..][..s.slots];
                let u = &u[(query * s.heads + h) * s.padded..][..s.padded];
                let scores = &mut scratch.scores[..n];
                for (score, row) in scores.iter_mut().zip(scratch.rows.chunks_exact(s.padded)) {
                    *score = dot::<FMA>(u, row);
                }
                softmax::<FMA>(scores);
                weights.fill(0.0);
                for (score, k) in scores.iter_mut().zip(&scratch.slots) {
                    weights[*k] = *score;
                    *score *= factors[h * s.slots + k];
                }
                weighted_sum::<FMA>(&mut out.y[block], scores, &scratch.rows, s.padded);
            }
        }
    }
}

/// Scores, weights and weighted sums of all seeds; `u` is `[queries, heads * padded]` with zero padding.
pub fn forward(
    shape: &Shape,
    source: &Source<'_>,
    clock: &Clock<'_>,
    mask: Mask,
    u: &[f32],
    out: &mut Forward<'_>,
) {
    let blocks = SEEDS * shape.heads * shape.padded;
    if blocks == 0 {
        return;
    }
    if shape.slots == 0 {
        out.y.fill(0.0);
        return;
    }
    let kernel = |piece: usize, y: &mut [f32], weights: &mut [f32], phi: &mut [f32]| {
        let out = Forward { y, weights, phi };
        forward_seeds(*shape, *source, clock, mask, piece * SEEDS, u, out);
    };
    let pieces = out.y.par_chunks_mut(blocks);
    let pieces = pieces.zip(out.weights.par_chunks_mut(SEEDS * shape.heads * shape.slots)).enumerate();
    if shape.time == 0 {
        return pieces.for_each(|(piece, (y, weights))| kernel(piece, y, weights, &mut []));
    }
    let pieces = pieces.zip(out.phi.par_chunks_mut(SEEDS * shape.slots * shape.time));
    pieces.for_each(|((piece, (y, weights)), phi)| kernel(piece, y, weights, phi));
}

/// Which columns of a slot row get a gradient, and where they stand: the node row first, then the encoding.
#[derive(Clone, Copy)]
pub struct SlotColumns {
    node: usize,
    time: usize,
}

impl SlotColumns {
    pub fn new(shape: &Shape, node: bool, time: bool) -> Self {
        Self { node: if node { shape.node } else { 0 }, time: if time { shape.time } else { 0 } }
    }

    pub fn width(&self) -> usize {
        self.node + self.time
    }
}

/// What the forward left for the backward, and the gradient of `y`.
pub struct Saved<'a> {
    pub u: &'a [f32],
    pub dy: &'a [f32],
    pub weights: &'a [f32],
    pub phi: &'a [f32],
}

/// What the backward writes.
pub struct Gradients<'a> {
    /// `[seeds, heads * padded]`.
    pub du: &'a mut [f32],
    /// `[seeds * slots, columns]`: of slot rows; zero for empty slots.
    pub dx: &'a mut [f32],
    pub columns: SlotColumns,
}

vectorized! {
    fn backward_seeds<const FMA: bool>(
        shape: Shape, source: Source<'_>, mask: Mask, first: usize, saved: &Saved<'_>, out: Gradients<'_>,
    ) {
        let (s, columns) = (shape, out.columns);
        let mut scratch = Scratch::new(&s);
        let mut dx = vec![0.0f32; s.slots * s.padded];
        let mut factors = vec![1.0; s.heads * s.slots];
        // The node columns come first, the time columns last.
        let span = if columns.time > 0 { s.padded } else { columns.node };
        for i in 0..out.du.len() / (s.heads * s.padded) {
            let seed = first + i;
            let query = source.query(seed);
            source.announce(&s, seed + 1);
            scratch.occupy(&source.slots[seed * s.slots..][..s.slots]);
            let phi = &saved.phi[seed * s.slots * s.time..][..s.slots * s.time];
            scratch.fill(&s, &source, seed, phi);
            mask.factors(&mut factors, seed * s.heads * s.slots);
            for h in 0..s.heads {
                let at = seed * s.heads + h;
                let u = &saved.u[(query * s.heads + h) * s.padded..][..s.padded];
                let dy = &saved.dy[at * s.padded..][..s.padded];
                let weights = &saved.weights[at * s.slots..][..s.slots];
                let factors = &factors[h * s.slots..][..s.slots];
                score_gradients::<FMA>(&mut scratch, s.padded, dy, (weights, factors));
                let n = scratch.slots.len();
                let du = &mut out.du[(i * s.heads + h) * s.padded..][..s.padded];
                weighted_sum::<FMA>(du, &scratch.scores[..n], &scratch.rows, s.padded);
                if columns.width() > 0 {
                    let rows = dx.chunks_exact_mut(s.padded).zip(&scratch.scores[..n]).zip(&scratch.more);
                    for ((dx, ds), a) in rows {
                        add_two::<FMA>(&mut dx[..span], h == 0, (*a, dy), (*ds, u));
                    }
                }
            }
            let width = columns.width();
            let out = &mut out.dx[i * s.slots * width..][..s.slots * width];
            if columns.time > 0 {
                out.fill(0.0);
            }
            for (dx, k) in dx.chunks_exact(s.padded).zip(&scratch.slots) {
                let (node, time) = out[k * width..][..width].split_at_mut(columns.node);
                node.copy_from_slice(&dx[..columns.node]);
                time.copy_from_slice(&dx[s.width - columns.time..s.width]);
            }
        }
    }
}

/// For one seed and head: `scratch.scores` becomes the gradient of the scores, `scratch.more` the weights after
/// dropout.
#[inline(always)]
fn score_gradients<const FMA: bool>(
    scratch: &mut Scratch,
    padded: usize,
    dy: &[f32],
    (weights, factors): (&[f32], &[f32]),
) {
    let mut mean = 0.0f32;
    let rows = scratch.rows.chunks_exact(padded).zip(&scratch.slots);
    for ((row, k), (ds, a)) in rows.zip(scratch.scores.iter_mut().zip(scratch.more.iter_mut())) {
        let factor = factors[*k];
        *ds = dot::<FMA>(dy, row) * factor;
        *a = weights[*k] * factor;
        mean += *ds * weights[*k];
    }
    for (ds, k) in scratch.scores.iter_mut().zip(&scratch.slots) {
        *ds = weights[*k] * (*ds - mean);
    }
}

/// `out (+)= a * x + b * y`.
#[inline(always)]
fn add_two<const FMA: bool>(out: &mut [f32], overwrite: bool, (a, x): (f32, &[f32]), (b, y): (f32, &[f32])) {
    for ((o, x), y) in out.iter_mut().zip(x).zip(y) {
        let old = if overwrite { 0.0 } else { *o };
        *o = fma::<FMA>(a, *x, fma::<FMA>(b, *y, old));
    }
}

/// Gradients of `u` and of the slot rows, given that of `y`.
pub fn backward(shape: &Shape, source: &Source<'_>, mask: Mask, saved: &Saved<'_>, out: &mut Gradients<'_>) {
    let blocks = SEEDS * shape.heads * shape.padded;
    if blocks == 0 {
        return;
    }
    if shape.slots == 0 {
        out.du.fill(0.0);
        return;
    }
    let columns = out.columns;
    let kernel = |piece: usize, du: &mut [f32], dx: &mut [f32]| {
        let out = Gradients { du, dx, columns };
        backward_seeds(*shape, *source, mask, piece * SEEDS, saved, out);
    };
    if columns.width() == 0 {
        out.du.par_chunks_mut(blocks).enumerate().for_each(|(piece, du)| kernel(piece, du, &mut []));
        return;
    }
    let slots = SEEDS * shape.slots * columns.width();
    let pieces = out.du.par_chunks_mut(blocks).zip(out.dx.par_chunks_mut(slots)).enumerate();
    pieces.for_each(|(piece, (du, dx))| kernel(piece, du, dx));
}
