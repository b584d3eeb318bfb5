//! The slots of attention: sizes, where the rows come from, and the small scratch matrix in which the rows of one
//! seed's occupied slots are brought together, with the two vector operations that read it.

use std::array::from_fn;

use crate::device::prefetch_near;
use crate::device::simd::fma;

/// Lanes of the widest vector; rows of scratch, `u` and `y` are padded to whole ones.
pub const LANES: usize = 16;
/// Values that are worked on at once where a row is long enough.
const WIDE: usize = 4 * LANES;

/// Sizes of one attention layer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub seeds: usize,
    /// Slots per seed.
    pub slots: usize,
    pub heads: usize,
    /// Columns of the output.
    pub model: usize,
    /// Columns of a slot: of the node row, the edge row, the time encoding, and together.
    pub node: usize,
    pub edge: usize,
    pub time: usize,
    pub width: usize,
    /// `width` rounded up to whole vectors.
    pub padded: usize,
}

impl Shape {
    pub fn new(
        seeds: usize,
        slots: usize,
        heads: usize,
        model: usize,
        [node, edge, time]: [usize; 3],
    ) -> Self {
        let width = node + edge + time;
        let padded = width.next_multiple_of(LANES);
        Self { seeds, slots, heads, model, node, edge, time, width, padded }
    }

    /// Zeroes the columns beyond `width` in every block of `padded` columns.
    pub fn clear_padding(&self, blocks: &mut [f32]) {
        if self.padded > self.width {
            blocks.chunks_exact_mut(self.padded).for_each(|b| b[self.width..].fill(0.0));
        }
    }
}

/// Where slot rows come from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Row of the queries per seed, or row i for seed i.
    pub queries: Option<&'a [u32]>,
    /// Row of `nodes` per slot, `u32::MAX` for none.
    pub slots: &'a [u32],
    pub nodes: &'a [f32],
    pub edges: &'a [f32],
    /// Row of `edges` per slot, or row i for slot i.
    pub edge_slots: Option<&'a [u32]>,
}

impl Source<'_> {
    /// The query of a seed.
    #[inline(always)]
    pub fn query(&self, seed: usize) -> usize {
        self.queries.map_or(seed, |of| of[seed] as usize)
    }

    /// Prefetches the rows of a seed's slots. There need not be such a seed.
    #[inline(always)]
    pub fn announce(&self, shape: &Shape, seed: usize) {
        let from = seed * shape.slots;
        let slots = self.slots.get(from..from + shape.slots).unwrap_or_default();
        for (k, &node) in slots.iter().enumerate().filter(|(_, node)| **node != u32::MAX) {
            let edge = self.edge_slots.map_or(from + k, |at| at[from + k] as usize);
            let nodes = self.nodes.get(node as usize * shape.node..).unwrap_or_default();
            let edges = self.edges.get(edge * shape.edge..).unwrap_or_default();
            for (row, width) in [(nodes, shape.node), (edges, shape.edge)] {
                row.iter().take(width).step_by(LANES).for_each(prefetch_near);
            }
        }
    }
}

/// `sum[l] += a[l] * b[l]` for every lane.
#[inline(always)]
fn accumulate<const FMA: bool, const N: usize>(sum: &mut [f32; N], a: &[f32; N], b: &[f32; N]) {
    for l in 0..N {
        sum[l] = fma::<FMA>(a[l], b[l], sum[l]);
    }
}

/// Sum of products; lengths are equal multiples of `LANES`. Several accumulators per lane, because each
/// multiply-add has to wait for the one before it in the same accumulator.
#[inline(always)]
pub fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut wide = [0.0f32; WIDE];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<WIDE>(), b.as_chunks::<WIDE>());
    for (a, b) in a.iter().zip(b) {
        accumulate::<FMA, WIDE>(&mut wide, a, b);
    }
    let mut sum = [0.0f32; LANES];
    for (a, b) in a_rest.as_chunks().0.iter().zip(b_rest.as_chunks().0) {
        accumulate::<FMA, LANES>(&mut sum, a, b);
    }
    for part in wide.as_chunks::<LANES>().0 {
        for l in 0..LANES {
            sum[l] += part[l];
        }
    }
    let eight: [f32; 8] = from_fn(|l| sum[l] + sum[l + 8]);
    let four: [f32; 4] = from_fn(|l| eight[l] + eight[l + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// `out = sum_j factors[j] * rows[j]`, rows `stride` apart; `out` has a multiple of `LANES` values.
#[inline(always)]
pub fn weighted_sum<const FMA: bool>(out: &mut [f32], factors: &[f32], rows: &[f32], stride: usize) {
    let (wide, rest) = out.as_chunks_mut::<WIDE>();
    let done = wide.len() * WIDE;
    for (c, out) in wide.iter_mut().enumerate() {
        *out = weighted_columns::<FMA, WIDE>(factors, rows, c * WIDE, stride);
    }
    for (c, out) in rest.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        *out = weighted_columns::<FMA, LANES>(factors, rows, done + c * LANES, stride);
    }
}

/// The columns from `at` on of the weighted sum, in registers.
#[inline(always)]
fn weighted_columns<const FMA: bool, const N: usize>(
    factors: &[f32],
    rows: &[f32],
    at: usize,
    stride: usize,
) -> [f32; N] {
    let mut sum = [0.0f32; N];
    for (j, factor) in factors.iter().enumerate() {
        if let Some(row) = rows[j * stride + at..].first_chunk::<N>() {
            accumulate::<FMA, N>(&mut sum, &[*factor; N], row);
        }
    }
    sum
}

/// The occupied slots of one seed and their rows.
pub struct Scratch {
    /// Rows of `padded` columns; the padding stays zero.
    pub rows: Vec<f32>,
    /// Which slot each row is.
    pub slots: Vec<usize>,
    /// One number per row, for the kernel's use.
    pub scores: Vec<f32>,
    /// As `scores`.
    pub more: Vec<f32>,
}

impl Scratch {
    pub fn new(shape: &Shape) -> Self {
        Self {
            rows: vec![0.0; shape.slots * shape.padded],
            slots: Vec::with_capacity(shape.slots),
            scores: vec![0.0; shape.slots],
            more: vec![0.0; shape.slots],
        }
    }

    /// Fills the node and edge columns; the time columns come from `phi` of this seed.
    #[inline(always)]
    pub fn fill(&mut self, shape: &Shape, source: &Source<'_>, seed: usize, phi: &[f32]) {
        let from = seed * shape.slots;
        let mut rows = self.rows.chunks_exact_mut(shape.padded);
        for k in self.slots.iter().copied() {
            let Some(row) = rows.next() else { return };
            let node = source.slots[from + k] as usize;
            row[..shape.node].copy_from_slice(&source.nodes[node * shape.node..][..shape.node]);
            if shape.edge > 0 {
                let edge = source.edge_slots.map_or(from + k, |at| at[from + k] as usize);
                row[shape.node..shape.node + shape.edge]
                    .copy_from_slice(&source.edges[edge * shape.edge..][..shape.edge]);
            }
            row[shape.node + shape.edge..shape.width].copy_from_slice(&phi[k * shape.time..][..shape.time]);
        }
    }

    #[inline(always)]
    pub fn occupy(&mut self, slots: &[u32]) {
        self.slots.clear();
        self.slots.extend((0..slots.len()).filter(|k| slots[*k] != u32::MAX));
    }
}
