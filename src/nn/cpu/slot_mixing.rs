//! Mixing the slots of each seed, column by column: the token mixing block of an MLP-Mixer, all of it while the rows
//! of a seed are near. Nothing is transposed: a layer over slots is a weighted sum of their rows. Backward computes
//! the forward again, which costs less than keeping what it made.

use rayon::prelude::*;

use crate::device::simd::{fma, vectorized};

use super::dropout;
use super::math::{gelu, gelu_slope};
use super::slots::{LANES, weighted_sum};
use super::vector;

/// Sizes: K slots of `cols` values per seed, `hidden` values between the two layers.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub slots: usize,
    pub cols: usize,
    pub hidden: usize,
}

impl Shape {
    fn values(&self) -> usize {
        self.slots * self.cols
    }

    /// `cols` in whole vectors.
    fn padded(&self) -> usize {
        self.cols.next_multiple_of(LANES)
    }

    /// Seeds that are worked on together.
    fn piece(&self) -> usize {
        (super::PIECE / self.values().max(1)).max(1)
    }

    /// Values of all parameters together.
    pub fn parameters(&self) -> usize {
        let (k, h) = (self.slots, self.hidden);
        2 * k + h * k + h + k * h + k
    }
}

/// What both directions read. `gamma`, `beta` `[K]`, `w_a` `[hidden, K]`, `b_a` `[hidden]`, `w_b` `[K, hidden]`, `b_b`
/// `[K]`; the two keys name the masks behind the two layers, whose rows are padded to whole vectors.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    pub gamma: &'a [f32],
    pub beta: &'a [f32],
    pub w_a: &'a [f32],
    pub b_a: &'a [f32],
    pub w_b: &'a [f32],
    pub b_b: &'a [f32],
    pub eps: f32,
    pub dropout: f32,
    pub keys: [[u64; 3]; 2],
}

/// What is computed for one seed: rows of `padded` columns.
struct Scratch {
    padded: usize,
    /// `[K]` rows, normalized.
    unit: Vec<f32>,
    /// `[K]` rows, normalized, scaled and shifted.
    norm: Vec<f32>,
    /// 1 / deviation of each column.
    rstd: Vec<f32>,
    /// A row that sums are made in.
    sum: Vec<f32>,
    /// `[hidden]` rows before and after the nonlinearity and its mask.
    before: Vec<f32>,
    after: Vec<f32>,
    /// `[K]` rows of the result, or of its gradient.
    out: Vec<f32>,
}

impl Scratch {
    fn new(s: &Shape) -> Self {
        let padded = s.padded();
        let [slots, hidden] = [s.slots, s.hidden].map(|rows| vec![0.0; rows * padded]);
        let row = vec![0.0; padded];
        let (norm, out, after) = (slots.clone(), slots.clone(), hidden.clone());
        Self { padded, unit: slots, norm, rstd: row.clone(), sum: row, before: hidden, after, out }
    }

    /// The rows of one seed, normalized over the slots.
    #[inline(always)]
    fn normalise(&mut self, s: &Shape, x: &[f32], i: &Inputs<'_>) {
        let (width, count) = (self.padded, s.slots as f32);
        let (mean, rstd) = (&mut self.sum[..width], &mut self.rstd[..width]);
        mean.fill(0.0);
        rstd.fill(0.0);
        for (row, x) in self.unit.chunks_exact_mut(width).zip(x.chunks_exact(s.cols)) {
            row[..s.cols].copy_from_slice(x);
            for (m, v) in mean.iter_mut().zip(row.iter()) {
                *m += v;
            }
        }
        for m in mean.iter_mut() {
            *m /= count;
        }
        for row in self.unit.chunks_exact_mut(width) {
            for ((v, m), r) in row.iter_mut().zip(mean.iter()).zip(rstd.iter_mut()) {
                *v -= m;
                *r += *v * *v;
            }
        }
        for r in rstd.iter_mut() {
            *r = 1.0 / (*r / count + i.eps).sqrt();
        }
        let rows = self.unit.chunks_exact_mut(width).zip(self.norm.chunks_exact_mut(width));
        for ((row, norm), (gamma, beta)) in rows.zip(i.gamma.iter().zip(i.beta)) {
            for ((v, n), r) in row.iter_mut().zip(norm.iter_mut()).zip(rstd.iter()) {
                *v *= r;
                *n = *v * gamma + beta;
            }
        }
    }

    /// The first layer and its nonlinearity, of the seed with this number.
    #[inline(always)]
    fn first_layer<const FMA: bool>(&mut self, s: &Shape, seed: usize, i: &Inputs<'_>) {
        let width = self.padded;
        let rows = self.before.chunks_exact_mut(width).zip(self.after.chunks_exact_mut(width));
        for ((before, after), (w, b)) in rows.zip(i.w_a.chunks_exact(s.slots).zip(i.b_a)) {
            weighted_sum::<FMA>(before, w, &self.norm, width);
            for (before, after) in before.iter_mut().zip(after.iter_mut()) {
                *before += b;
                *after = gelu::<FMA>(*before);
            }
        }
        dropout::mask(&mut self.after, seed * s.hidden * width, i.dropout, i.keys[0]);
    }
}

vectorized! {
    fn forward_seeds<const FMA: bool>(
        shape: Shape, first: usize, inputs: Inputs<'_>, x: &[f32], y: &mut [f32],
    ) {
        let (s, i) = (shape, inputs);
        let mut scratch = Scratch::new(&s);
        let width = scratch.padded;
        let seeds = y.chunks_exact_mut(s.values()).zip(x.chunks_exact(s.values()));
        for (n, (y, x)) in seeds.enumerate() {
            let seed = first + n;
            scratch.normalise(&s, x, &i);
            scratch.first_layer::<FMA>(&s, seed, &i);
            let rows = scratch.out.chunks_exact_mut(width);
            for (out, (w, b)) in rows.zip(i.w_b.chunks_exact(s.hidden).zip(i.b_b)) {
                weighted_sum::<FMA>(out, w, &scratch.after, width);
                for v in out.iter_mut() {
                    *v += b;
                }
            }
            dropout::mask(&mut scratch.out, seed * s.slots * width, i.dropout, i.keys[1]);
            let rows = y.chunks_exact_mut(s.cols).zip(x.chunks_exact(s.cols));
            for ((y, x), out) in rows.zip(scratch.out.chunks_exact(width)) {
                for ((y, x), out) in y.iter_mut().zip(x).zip(out) {
                    *y = x + out;
                }
            }
        }
    }
}

/// `y = x + mask(W_b mask(gelu(W_a norm(x) + b_a)) + b_b)` in each column of each seed's K rows.
pub fn forward(shape: Shape, inputs: Inputs<'_>, x: &[f32], y: &mut [f32]) {
    if shape.values() == 0 {
        return;
    }
    let piece = shape.piece();
    y.par_chunks_mut(piece * shape.values())
        .zip(x.par_chunks(piece * shape.values()))
        .enumerate()
        .for_each(|(n, (y, x))| forward_seeds(shape, n * piece, inputs, x, y));
}

/// Gradients of the parameters, one after another in the order of [`Inputs`].
struct Sums<'a> {
    gamma: &'a mut [f32],
    beta: &'a mut [f32],
    w_a: &'a mut [f32],
    b_a: &'a mut [f32],
    w_b: &'a mut [f32],
    b_b: &'a mut [f32],
}

impl<'a> Sums<'a> {
    fn over(all: &'a mut [f32], s: &Shape) -> Self {
        let (gamma, rest) = all.split_at_mut(s.slots);
        let (beta, rest) = rest.split_at_mut(s.slots);
        let (w_a, rest) = rest.split_at_mut(s.hidden * s.slots);
        let (b_a, rest) = rest.split_at_mut(s.hidden);
        let (w_b, b_b) = rest.split_at_mut(s.slots * s.hidden);
        Self { gamma, beta, w_a, b_a, w_b, b_b }
    }
}

/// `[rows, cols]` as `[cols, rows]`.
fn transposed(x: &[f32], cols: usize) -> Vec<f32> {
    (0..cols).flat_map(|c| x.iter().skip(c).step_by(cols).copied()).collect()
}

/// Gradients of a layer over slots, lane by lane: adding up the lanes of each seed takes longer than its products.
struct LayerSums {
    /// Of the weights, `[out, in]`.
    w: Vec<[f32; LANES]>,
    /// Of the bias, `[out]`.
    b: Vec<[f32; LANES]>,
}

impl LayerSums {
    fn new(out: usize, into: usize) -> Self {
        Self { w: vec![[0.0; LANES]; out * into], b: vec![[0.0; LANES]; out] }
    }

    /// Adds the products of rows of `d` and rows of `x`, and the rows of `d`.
    #[inline(always)]
    fn add<const FMA: bool>(&mut self, d: &[f32], x: &[f32], width: usize) {
        let cols = x.len() / width;
        let sums = self.w.chunks_exact_mut(cols).zip(&mut self.b);
        for ((sums, bias), d) in sums.zip(d.chunks_exact(width)) {
            let d = d.as_chunks::<LANES>().0;
            for d in d {
                for l in 0..LANES {
                    bias[l] += d[l];
                }
            }
            for (sum, x) in sums.iter_mut().zip(x.chunks_exact(width)) {
                let mut lanes = *sum;
                for (d, x) in d.iter().zip(x.as_chunks::<LANES>().0) {
                    for l in 0..LANES {
                        lanes[l] = fma::<FMA>(d[l], x[l], lanes[l]);
                    }
                }
                *sum = lanes;
            }
        }
    }

    fn write(&self, dw: &mut [f32], db: &mut [f32]) {
        let total = |lanes: &[f32; LANES]| lanes.iter().sum::<f32>();
        dw.iter_mut().zip(&self.w).for_each(|(dw, lanes)| *dw = total(lanes));
        db.iter_mut().zip(&self.b).for_each(|(db, lanes)| *db = total(lanes));
    }
}

/// Turns `dnorm`, the gradient of the normalized rows, into what the input gets of it and adds that to `d`.
#[inline(always)]
fn input_gradient(s: &Shape, i: &Inputs<'_>, scratch: &mut Scratch, sums: &mut Sums<'_>, d: &mut [f32]) {
    let (width, count) = (scratch.padded, s.slots as f32);
    let (plain, along) = (&mut scratch.sum[..width], &mut scratch.before[..width]);
    plain.fill(0.0);
    along.fill(0.0);
    // The rows of `norm` hold the gradient by now.
    let rows = scratch.norm.chunks_exact_mut(width).zip(scratch.unit.chunks_exact(width));
    let learned = sums.gamma.iter_mut().zip(sums.beta.iter_mut()).zip(i.gamma);
    for ((g, unit), ((dgamma, dbeta), gamma)) in rows.zip(learned) {
        *dgamma += vector::sum([&*g, unit], |[g, u]| g * u);
        *dbeta += vector::sum([&*g], |[g]| g);
        let columns = plain.iter_mut().zip(along.iter_mut());
        for ((g, u), (plain, along)) in g.iter_mut().zip(unit).zip(columns) {
            *g *= gamma;
            *plain += *g;
            *along += *g * u;
        }
    }
    let rows = scratch.norm.chunks_exact(width).zip(scratch.unit.chunks_exact(width));
    for ((g, unit), d) in rows.zip(d.chunks_exact_mut(s.cols)) {
        let columns = plain.iter().zip(along.iter()).zip(&scratch.rstd);
        for (((d, g), u), ((plain, along), rstd)) in d.iter_mut().zip(g).zip(unit).zip(columns) {
            *d += rstd * (g - plain / count - u * along / count);
        }
    }
}

vectorized! {
    fn backward_seeds<const FMA: bool>(
        shape: Shape, first: usize, inputs: Inputs<'_>, x: &[f32], d: &mut [f32],
    ) -> Vec<f32> {
        let (s, i) = (shape, inputs);
        let mut all = vec![0.0; s.parameters()];
        let mut sums = Sums::over(&mut all, &s);
        let (across_a, across_b) = (transposed(i.w_a, s.slots), transposed(i.w_b, s.hidden));
        let mut scratch = Scratch::new(&s);
        let width = scratch.padded;
        let mut hidden = vec![0.0; s.hidden * width];
        let (mut first_layer, mut second) =
            (LayerSums::new(s.hidden, s.slots), LayerSums::new(s.slots, s.hidden));
        let seeds = d.chunks_exact_mut(s.values()).zip(x.chunks_exact(s.values()));
        for (n, (d, x)) in seeds.enumerate() {
            let seed = first + n;
            scratch.normalise(&s, x, &i);
            scratch.first_layer::<FMA>(&s, seed, &i);
            for (out, d) in scratch.out.chunks_exact_mut(width).zip(d.chunks_exact(s.cols)) {
                out[..s.cols].copy_from_slice(d);
            }
            dropout::mask(&mut scratch.out, seed * s.slots * width, i.dropout, i.keys[1]);
            second.add::<FMA>(&scratch.out, &scratch.after, width);
            for (hidden, w) in hidden.chunks_exact_mut(width).zip(across_b.chunks_exact(s.slots)) {
                weighted_sum::<FMA>(hidden, w, &scratch.out, width);
            }
            dropout::mask(&mut hidden, seed * s.hidden * width, i.dropout, i.keys[0]);
            for (d, x) in hidden.iter_mut().zip(&scratch.before) {
                *d *= gelu_slope::<FMA>(*x);
            }
            first_layer.add::<FMA>(&hidden, &scratch.norm, width);
            for (norm, w) in scratch.norm.chunks_exact_mut(width).zip(across_a.chunks_exact(s.hidden)) {
                weighted_sum::<FMA>(norm, w, &hidden, width);
            }
            input_gradient(&s, &i, &mut scratch, &mut sums, d);
        }
        first_layer.write(sums.w_a, sums.b_a);
        second.write(sums.w_b, sums.b_b);
        all
    }
}

/// Turns the gradient of the result, `d`, into that of the input, in place, and returns those of the parameters, one
/// after another in the order of [`Inputs`]. Pieces of seeds are summed separately, then in order.
pub fn backward(shape: Shape, inputs: Inputs<'_>, x: &[f32], d: &mut [f32]) -> Vec<f32> {
    let mut all = vec![0.0; shape.parameters()];
    if shape.values() == 0 {
        return all;
    }
    let piece = shape.piece();
    let pieces: Vec<Vec<f32>> = d
        .par_chunks_mut(piece * shape.values())
        .zip(x.par_chunks(piece * shape.values()))
        .enumerate()
        .map(|(n, (d, x))| backward_seeds(shape, n * piece, inputs, x, d))
        .collect();
    for part in pieces {
        all.iter_mut().zip(&part).for_each(|(sum, v)| *sum += v);
    }
    all
}
