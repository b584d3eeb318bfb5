//! Layers on a GPU: bit for bit the CPU's where they work element by element; elsewhere within 1e-4 of sums in 64
//! bits, or of the tape.

use std::sync::Arc;

use evergraph::cli::bench::ops::gpu_layers::{LayerSizes, measure};
use evergraph::device::cuda::layers::{
    Attention, AttentionSizes, Partials, StreamContext, adam, attention_backward, attention_forward,
    gru_backward, gru_forward, layer_norm_backward, layer_norm_forward, layer_norm_parameters, pieces_of,
    sum_pieces, time_backward, time_encode,
};
use evergraph::device::cuda::twins::{AdamStep, Mask};
use evergraph::device::cuda::{Cuda, CudaBuffer, CudaWork};
use evergraph::device::rng;
use evergraph::nn::TimeEncoder;

use super::{Draws, gpu};
use crate::kernels_host::nn::{Inputs, moved_by_adam, twin_fuses};

/// What a GPU may differ by, as a share of the largest value.
const TOLERANCE: f64 = 1e-4;

#[track_caller]
pub fn agree(found: &CudaBuffer<f32>, expected: impl IntoIterator<Item = f64>, what: &str) {
    let (found, expected): (Vec<f32>, Vec<f64>) =
        (found.copy_to_host().unwrap(), expected.into_iter().collect());
    assert_eq!(found.len(), expected.len(), "{what}");
    let top = expected.iter().fold(1e-3_f64, |top, value| top.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let off = (f64::from(*found) - expected).abs() / top;
        assert!(off < TOLERANCE, "{what}: element {i} is {found}, not {expected}, of at most {top}");
    }
}

pub fn wide(values: &[f32]) -> impl Iterator<Item = f64> {
    values.iter().map(|value| f64::from(*value))
}

/// The sums of `[pieces, columns]` over pieces.
pub fn summed(
    cuda: &Arc<Cuda>,
    [pieces, columns]: [usize; 2],
    partials: &CudaBuffer<f32>,
) -> CudaBuffer<f32> {
    let mut sums = On(cuda).room(columns);
    let terms = Partials { values: partials, first: 0, step: columns, pieces };
    sum_pieces(&CudaWork::new(cuda.clone()), [((&mut sums, columns, true), vec![terms])]).unwrap();
    sums
}

/// Buffers of one GPU, for tests.
#[derive(Clone, Copy)]
pub struct On<'a>(pub &'a Cuda);

impl<'a> On<'a> {
    pub fn context(self) -> StreamContext<'a> {
        (self.0, self.0.compute())
    }

    pub fn copy<T: bytemuck::Pod>(self, values: &[T]) -> CudaBuffer<T> {
        CudaBuffer::from_slice(self.0, self.0.compute(), values, "a test").unwrap()
    }

    /// What is no number: whatever is not written shows.
    pub fn room(self, len: usize) -> CudaBuffer<f32> {
        self.copy(&vec![f32::NAN; len])
    }
}

#[test]
fn sums_of_many_results_are_those_of_their_terms_in_order() {
    let cuda = gpu();
    let (on, work) = (On(&cuda), CudaWork::new(cuda.clone()));
    let mut draws = Draws::new(6);
    let (columns, pieces, step) = ([1, 300, 130, 5], [3, 2, 7, 0], 450);
    let given: Vec<Vec<f32>> = (0..4).map(|_| draws.floats(7 * step, 1.0)).collect();
    let partials: Vec<CudaBuffer<f32>> = given.iter().map(|values| on.copy(values)).collect();
    let terms = |i: usize, first: usize| Partials { values: &partials[i], first, step, pieces: pieces[i] };
    // Replaced by one, by two, with two added, and by a sum of no pieces; the second and third are of one buffer.
    let each =
        || [vec![terms(0, 9)], vec![terms(1, 0), terms(2, 17)], vec![terms(1, 300)], vec![terms(3, 0)]];
    let overwrite = [true, true, false, true];
    let mut out: Vec<CudaBuffer<f32>> = columns.iter().map(|&columns| on.copy(&vec![1.0; columns])).collect();
    let results = out.iter_mut().zip(columns).zip(overwrite).zip(each());
    let results = results.map(|(((out, columns), overwrite), terms)| ((out, columns, overwrite), terms));
    sum_pieces(&work, results).unwrap();
    for (r, (out, terms)) in out.iter().zip(each()).enumerate() {
        let mut expected = vec![if overwrite[r] { None } else { Some(1.0_f32) }; columns[r]];
        for term in &terms {
            let i = partials.iter().position(|partials| std::ptr::eq(partials, term.values)).unwrap();
            for (c, expected) in expected.iter_mut().enumerate() {
                let sum = (0..term.pieces).fold(0.0, |sum, p| sum + given[i][term.first + p * step + c]);
                *expected = Some(expected.map_or(sum, |before| before + sum));
            }
        }
        let expected: Vec<f32> = expected.into_iter().flatten().collect();
        assert_eq!(out.copy_to_host().unwrap(), expected, "result {r}");
    }

    let beyond = Partials { values: &partials[0], first: 7 * step - 3, step: 0, pieces: 1 };
    let error = sum_pieces(&work, [((&mut out[3], 5, true), vec![beyond])]).unwrap_err().to_string();
    assert!(error.contains("partial sums: 3150 values, and 3152 are needed"), "{error}");
    let error = sum_pieces(&work, [((&mut out[0], 5, true), vec![terms(0, 0)])]).unwrap_err().to_string();
    assert!(error.contains("sums: 1 values, and 5 are needed"), "{error}");
}

#[test]
fn times_are_encoded_on_a_gpu_bit_for_bit() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(1);
    for (dim, rows) in [(1, 1), (100, 300), (33, 130)] {
        let (w, b) = (TimeEncoder::frequencies(dim), draws.floats(dim, 1.0));
        let deltas: Vec<f32> = (0_i32..)
            .zip(draws.floats(rows, 1.0))
            .map(|(i, delta)| delta.abs() * 10_f32.powi(i % 10))
            .collect();
        // The gradients of encodings as parts of longer rows.
        let (first, stride) = (3, dim + 5);
        let d = draws.floats(rows * stride + first, 1.0);
        let dense: Vec<f32> = (0..rows).flat_map(|i| d[first + i * stride..][..dim].to_vec()).collect();
        let inputs = Inputs::new(&[("w", dim, &w), ("b", dim, &b)]);
        let (value, gradients) = inputs.run(&dense, &["w", "b"], |tape, parameters| {
            let (w, b) = (parameters.find("w").unwrap(), parameters.find("b").unwrap());
            tape.time_encoding(&deltas, &TimeEncoder::Trained { w, b })
        });
        let (deltas, w, b, d) = (on.copy(&deltas), on.copy(&w), on.copy(&b), on.copy(&d));
        let mut out = on.room(rows * dim);
        time_encode(on.context(), &deltas, (&w, &b), &mut out).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let same = bits(&out.copy_to_host().unwrap()) == bits(&value);
        assert!(same || !twin_fuses(), "{rows} encodings of {dim}");
        let mut partials = on.room(pieces_of(rows) * 2 * dim);
        time_backward(on.context(), (&deltas, deltas.len()), (&w, &b), (&d, first, stride), &mut partials)
            .unwrap();
        let sums = summed(&cuda, [pieces_of(rows), 2 * dim], &partials);
        agree(&sums, wide(&gradients.concat()), "gradients of frequencies and phases");
        let error = time_backward(
            on.context(),
            (&deltas, deltas.len()),
            (&w, &b),
            (&d, first + 6, stride),
            &mut partials,
        );
        assert!(error.unwrap_err().to_string().contains("gradients: "), "one row too far is refused");
    }
}

#[test]
fn rows_are_normalized_on_a_gpu_like_on_the_tape() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(2);
    for (rows, cols) in [(1, 1), (130, 33), (7, 372)] {
        let (x, d) = (draws.floats(rows * cols, 3.0), draws.floats(rows * cols, 1.0));
        let (gamma, beta) = (draws.floats(cols, 1.0), draws.floats(cols, 1.0));
        let inputs = Inputs::new(&[("x", cols, &x), ("gamma", cols, &gamma), ("beta", cols, &beta)]);
        let (value, gradients) = inputs.run(&d, &["x", "gamma", "beta"], |tape, parameters| {
            let x = tape.param(parameters.find("x").unwrap());
            tape.layer_norm(x, parameters.find("gamma").unwrap(), parameters.find("beta").unwrap(), 1e-5)
        });
        let (x, gamma, beta, mut d) = (on.copy(&x), on.copy(&gamma), on.copy(&beta), on.copy(&d));
        let (mut y, mut moments) = (on.room(rows * cols), on.room(2 * rows));
        let sizes = [rows, cols];
        layer_norm_forward(on.context(), sizes, &x, (&gamma, &beta, 1e-5), (&mut y, &mut moments)).unwrap();
        agree(&y, wide(&value), "rows");
        let pieces = pieces_of(rows);
        let mut partials = on.room(pieces * 2 * cols);
        layer_norm_parameters(on.context(), sizes, (&d, &x), &moments, &mut partials).unwrap();
        let sums = summed(&cuda, [pieces, 2 * cols], &partials);
        agree(&sums, wide(&gradients[1..].concat()), "gradients of gamma and beta");
        layer_norm_backward(on.context(), sizes, &mut d, (&x, &moments), &gamma).unwrap();
        agree(&d, wide(&gradients[0]), "gradient of rows");
        let error = layer_norm_backward(on.context(), [rows + 1, cols], &mut d, (&x, &moments), &gamma);
        let message = error.unwrap_err().to_string();
        assert!(
            message.contains(&format!("{} values, and {} are needed", rows * cols, (rows + 1) * cols)),
            "{message}"
        );
    }
}

#[test]
fn adam_moves_weights_on_a_gpu_bit_for_bit() {
    let cuda = gpu();
    let on = On(&cuda);
    let (start, given, steps, expected) = moved_by_adam(1_000, 5);
    let (mut weights, mut first, mut second) =
        (on.copy(&start), on.copy(&vec![0.0_f32; 1_000]), on.copy(&vec![0.0_f32; 1_000]));
    for (step, gradient) in steps.iter().zip(given.chunks(1_000)) {
        let &[beta1, beta2, size, root, eps, shrink] = step;
        let step = AdamStep { beta1, beta2, size, root, eps, shrink };
        adam(on.context(), step, &mut weights, (&mut first, &mut second), &on.copy(gradient)).unwrap();
    }
    assert_eq!(weights.copy_to_host().unwrap(), expected);
    let step = AdamStep::default();
    let error = adam(on.context(), step, &mut weights, (&mut first, &mut second), &on.copy(&[0.0; 999]));
    assert!(error.unwrap_err().to_string().contains("the gradient: 999 values"));
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[test]
fn a_gru_cell_steps_forward_and_back_on_a_gpu() {
    let cuda = gpu();
    let on = On(&cuda);
    let mut draws = Draws::new(3);
    for (rows, width) in [(1, 1), (40, 33), (9, 100)] {
        let (gates, hidden) = (draws.floats(3 * rows * width, 1.0), draws.floats(3 * rows * width, 1.0));
        let (h, bias) = (draws.floats(rows * width, 1.0), draws.floats(3 * width, 0.5));
        let d = draws.floats(rows * width, 1.0);
        let (mut out, mut back) = (Vec::new(), [const { Vec::new() }; 3]);
        back[1].resize(3 * rows * width, 0.0);
        back[2].resize(3 * rows * width, 0.0);
        for i in 0..rows * width {
            let (row, column) = (i / width, i % width);
            let place = |k: usize| (3 * row + k) * width + column;
            let gate = |k: usize| f64::from(gates[place(k)]);
            let of_h = |k: usize| f64::from(hidden[place(k)]) + f64::from(bias[k * width + column]);
            let (r, z) = (sigmoid(gate(0) + of_h(0)), sigmoid(gate(1) + of_h(1)));
            let inner = of_h(2);
            let n = (gate(2) + r * inner).tanh();
            let (before, d) = (f64::from(h[i]), f64::from(d[i]));
            out.push((1.0 - z) * n + z * before);
            let dn = d * (1.0 - z) * (1.0 - n * n);
            let (dr, dz) = (dn * inner * r * (1.0 - r), d * (before - n) * z * (1.0 - z));
            for (k, [of_x, of_h]) in [[dr, dr], [dz, dz], [dn, dn * r]].into_iter().enumerate() {
                back[1][place(k)] = of_x;
                back[2][place(k)] = of_h;
            }
            back[0].push(d * z);
        }
        let (mut gates, mut hidden, h, bias) =
            (on.copy(&gates), on.copy(&hidden), on.copy(&h), on.copy(&bias));
        let (mut d, mut found) = (on.copy(&d), on.room(rows * width));
        gru_forward(on.context(), [rows, width], (&mut gates, &mut hidden), (&h, &bias), &mut found).unwrap();
        agree(&found, out, "states");
        gru_backward(on.context(), [rows, width], &mut d, (&mut gates, &mut hidden), &h).unwrap();
        let [dh, dgates, dhidden] = back;
        agree(&d, dh, "gradient of states");
        agree(&gates, dgates, "gradients of gates");
        agree(&hidden, dhidden, "gradients of what the state adds to them");
        let error = gru_backward(on.context(), [rows, width + 1], &mut d, (&mut gates, &mut hidden), &h);
        assert!(error.unwrap_err().to_string().contains("the gradient: "));
    }
}

/// What attention is asked, on the host.
struct Case {
    sizes: AttentionSizes,
    queries: Option<Vec<u32>>,
    slots: Vec<u32>,
    edge_slots: Option<Vec<u32>>,
    nodes: Vec<f32>,
    edges: Vec<f32>,
    deltas: Vec<f32>,
    w: Vec<f32>,
    b: Vec<f32>,
    mask: Mask,
    u: Vec<f32>,
    dy: Vec<f32>,
}

const NODE_ROWS: usize = 7;
const EDGE_ROWS: usize = 5;
const QUERY_ROWS: usize = 3;

impl Case {
    fn new(seed: u64, sizes: AttentionSizes, shared: bool, dropout: f64) -> Self {
        let AttentionSizes { seeds, slots, heads, node, edge, time } = sizes;
        let mut draws = Draws::new(seed);
        let all = seeds * slots;
        let number = |draws: &mut Draws, i: usize| match draws.below(4) {
            _ if i / slots == 1 => u32::MAX,
            0 => u32::MAX,
            // A row that there is not counts as an empty slot.
            1 if i.is_multiple_of(11) => NODE_ROWS as u32,
            _ => draws.below(NODE_ROWS) as u32,
        };
        let width = node + edge + time;
        let mut padded = |rows: usize| {
            let padded = sizes.padded();
            let mut values = draws.floats(rows * heads * padded, 0.3);
            values.chunks_mut(padded).for_each(|row| row[width..].fill(0.0));
            values
        };
        let (u, dy) = (padded(if shared { QUERY_ROWS } else { seeds }), padded(seeds));
        let drop = (dropout * 65_536.0).round();
        Self {
            sizes,
            queries: shared.then(|| (0..seeds).map(|_| draws.below(QUERY_ROWS) as u32).collect()),
            slots: (0..all).map(|i| number(&mut draws, i)).collect(),
            edge_slots: shared.then(|| (0..all).map(|_| draws.below(EDGE_ROWS + 1) as u32).collect()),
            nodes: draws.floats(NODE_ROWS * node, 1.0),
            edges: draws.floats(if shared { EDGE_ROWS } else { all } * edge, 1.0),
            deltas: draws.floats(all, 1e3).iter().map(|delta| delta.abs()).collect(),
            w: TimeEncoder::frequencies(time),
            b: draws.floats(time, 1.0),
            mask: Mask {
                prefix: rng::prefix([seed, 8, 9]),
                drop: drop as u32,
                keep: (65_536.0 / (65_536.0 - drop)) as f32,
            },
            u,
            dy,
        }
    }

    /// The row in a slot, if it is occupied.
    fn row(&self, at: usize) -> Option<Vec<f64>> {
        let AttentionSizes { node, edge, .. } = self.sizes;
        let slot = self.slots[at] as usize;
        let edge_row = self.edge_slots.as_ref().map_or(at, |rows| rows[at] as usize);
        if slot >= NODE_ROWS || (edge > 0 && (edge_row + 1) * edge > self.edges.len()) {
            return None;
        }
        let delta = self.deltas[at];
        // The product and the sum are rounded one by one, as the encoding is defined.
        let encoded = self.w.iter().zip(&self.b).map(|(w, b)| f64::from(w * delta + b).cos());
        let columns =
            wide(&self.nodes[slot * node..][..node]).chain(wide(&self.edges[edge_row * edge..][..edge]));
        Some(columns.chain(encoded).collect())
    }

    fn factor(&self, index: u64) -> f64 {
        let random = rng::draw(self.mask.prefix, index / 4) >> (16 * (index % 4)) & 0xFFFF;
        match random < u64::from(self.mask.drop) {
            true => 0.0,
            false if self.mask.drop == 0 => 1.0,
            false => f64::from(self.mask.keep),
        }
    }

    /// y, weights, du and dx, by the formulas in 64 bits.
    fn expected(&self) -> [Vec<f64>; 4] {
        let AttentionSizes { seeds, slots, heads, node, edge, time } = self.sizes;
        let (padded, columns) = (self.sizes.padded(), node + time);
        let mut y = vec![0.0; seeds * heads * padded];
        let mut weights = vec![0.0; seeds * heads * slots];
        let (mut du, mut dx) = (y.clone(), vec![0.0; seeds * slots * columns]);
        for s in 0..seeds {
            let rows: Vec<Option<Vec<f64>>> = (0..slots).map(|k| self.row(s * slots + k)).collect();
            let query = self.queries.as_ref().map_or(s, |rows| rows[s] as usize);
            for h in 0..heads {
                let u: Vec<f64> = wide(&self.u[(query * heads + h) * padded..][..padded]).collect();
                let dy: Vec<f64> = wide(&self.dy[(s * heads + h) * padded..][..padded]).collect();
                let dot = |a: &[f64], row: &[f64]| a.iter().zip(row).map(|(a, x)| a * x).sum::<f64>();
                let scores: Vec<Option<f64>> =
                    rows.iter().map(|row| row.as_ref().map(|row| dot(&u, row))).collect();
                let top = scores.iter().flatten().fold(f64::MIN, |top, score| top.max(*score));
                let total: f64 = scores.iter().flatten().map(|score| (score - top).exp()).sum();
                let at = (s * heads + h) * slots;
                let share = |k: usize| scores[k].map_or(0.0, |score| (score - top).exp() / total);
                let kept = |k: usize| self.factor((at + k) as u64);
                // Of the loss with the gradient dy: by each weight, and their mean.
                let slope: Vec<f64> =
                    (0..slots).map(|k| rows[k].as_ref().map_or(0.0, |row| kept(k) * dot(&dy, row))).collect();
                let mean: f64 = (0..slots).map(|k| share(k) * slope[k]).sum();
                for (k, row) in rows.iter().enumerate() {
                    let Some(row) = row else { continue };
                    weights[at + k] = share(k);
                    let score = share(k) * (slope[k] - mean);
                    for (c, x) in row.iter().enumerate() {
                        y[(s * heads + h) * padded + c] += share(k) * kept(k) * x;
                        du[(s * heads + h) * padded + c] += score * x;
                        let back = share(k) * kept(k) * dy[c] + score * u[c];
                        let column =
                            if c < node { Some(c) } else { c.checked_sub(edge).filter(|c| *c >= node) };
                        if let Some(column) = column {
                            dx[(s * slots + k) * columns + column] += back;
                        }
                    }
                }
            }
        }
        [y, weights, du, dx]
    }

    fn check(&self, on: On<'_>) {
        let AttentionSizes { seeds, slots, heads, node, edge, time } = self.sizes;
        let copied = |rows: &Option<Vec<u32>>| rows.as_ref().map(|rows| on.copy(rows));
        let (queries, edge_slots) = (copied(&self.queries), copied(&self.edge_slots));
        let (slot_rows, deltas) = (on.copy(&self.slots), on.copy(&self.deltas));
        let (nodes, edges) = (on.copy(&self.nodes), on.copy(&self.edges));
        let (w, b, u, dy) = (on.copy(&self.w), on.copy(&self.b), on.copy(&self.u), on.copy(&self.dy));
        let edge_rows = if self.edge_slots.is_some() { EDGE_ROWS } else { seeds * slots };
        let attention = Attention {
            sizes: self.sizes,
            queries: queries.as_ref(),
            slots: &slot_rows,
            edge_slots: edge_slots.as_ref(),
            nodes: (&nodes, NODE_ROWS),
            edges: (&edges, if edge == 0 { 0 } else { edge_rows }),
            deltas: &deltas,
            encoding: (&w, &b),
            mask: self.mask,
            u: (&u, if queries.is_some() { QUERY_ROWS } else { seeds }),
        };
        let block = seeds * heads * self.sizes.padded();
        let (mut y, mut weights) = (on.room(block), on.room(seeds * heads * slots));
        attention_forward(on.context(), &attention, (&mut y, &mut weights)).unwrap();
        let [expected_y, expected_weights, expected_du, expected_dx] = self.expected();
        agree(&y, expected_y, "y");
        agree(&weights, expected_weights, "weights");
        let (mut du, mut dx) = (on.room(block), on.room(seeds * slots * (node + time)));
        let backward = |wanted: (bool, bool), du: &mut CudaBuffer<f32>, dx: &mut CudaBuffer<f32>| {
            attention_backward(on.context(), &attention, (&y, &weights, &dy), wanted, (du, dx))
        };
        backward((true, true), &mut du, &mut dx).unwrap();
        agree(&du, expected_du, "gradient of u");
        agree(&dx, expected_dx.iter().copied(), "gradients of slots");
        // Only the encoding's columns: those of nodes are given, not learned.
        let mut less = on.room(seeds * slots * time);
        backward((false, true), &mut du, &mut less).unwrap();
        let of_times = expected_dx.chunks(node + time).flat_map(|row| row[node..].to_vec());
        agree(&less, of_times, "gradients of encodings");
        if node > 0 {
            let error = backward((true, true), &mut du, &mut less).unwrap_err().to_string();
            assert!(error.contains("gradients of slots: "), "{error}");
        }
    }
}

#[test]
fn attention_on_a_gpu_is_that_of_the_formulas() {
    let cuda = gpu();
    let case = AttentionSizes { seeds: 9, slots: 10, heads: 2, node: 100, edge: 172, time: 100 };
    for (seed, sizes, shared, dropout) in [
        (1, case, false, 0.0),
        (2, case, true, 0.25),
        (3, AttentionSizes { heads: 1, edge: 0, slots: 1, ..case }, false, 0.0),
        (4, AttentionSizes { heads: 4, node: 40, edge: 3, time: 5, slots: 32, ..case }, true, 0.0),
        (5, AttentionSizes { heads: 4, node: 100, edge: 100, time: 56, ..case }, false, 0.5),
        (6, AttentionSizes { heads: 1, node: 172, edge: 172, time: 168, slots: 20, ..case }, false, 0.0),
        (7, AttentionSizes { seeds: 30, node: 5, edge: 1, time: 1, slots: 3, ..case }, true, 0.1),
    ] {
        Case::new(seed, sizes, shared, dropout).check(On(&cuda));
    }
}

#[test]
fn a_benchmark_of_layers_times_each_of_them_both_ways() {
    let sizes = LayerSizes {
        linear: &[[70, 9, 5]],
        gru: &[[70, 7, 5]],
        attention: &[[4, 3, 2, 5, 0, 4], [4, 3, 2, 5, 6, 4]],
        layer_norm: &[[7, 20]],
        adam: &[100],
        how: (2, 2),
    };
    let rows = measure(&gpu(), &sizes).unwrap();
    let listed: Vec<String> = rows.iter().map(|row| format!("{} {}", row["id"], row["direction"])).collect();
    assert_eq!(listed.len(), 11, "{listed:?}");
    for (at, words) in [
        (0, r#""linear m=70 k=9 n=5" "forward""#),
        (3, r#""gru_cell rows=70 input=7 hidden=5" "backward""#),
        (6, r#""slot_attention seeds=4 slots=3 heads=2 node=5 edge=6 time=4" "forward""#),
        (10, r#""adam n=100" "step""#),
    ] {
        assert_eq!(listed[at], words);
    }
    for row in &rows {
        let seconds = row["seconds"]["median"].as_f64().unwrap();
        assert!(seconds.is_finite() && seconds >= 0.0 && row["shape"].is_object(), "{row}");
    }
}
