//! Layers on a GPU against the tape: values and gradients. What a GPU computes element by element has the same
//! bits; sums run in another order, and agree to rounding.

use std::sync::Arc;

use evergraph::device::{Device, rng};
use evergraph::nn::{
    Adam, AdamOptions, Gradients, GruParams, Mode, Parameters, Tape, TemporalAttention, Tensor, TimeEncoder,
    Var,
};

use super::{Arrays, run};

fn drawn(seed: u64, word: u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count as u64).map(|i| rng::normal_f32([seed, word, i, 17]) * scale).collect()
}

fn below(seed: u64, word: u64, i: u64, n: usize) -> u32 {
    rng::below([seed, word, i, 18], n as u32)
}

#[track_caller]
fn agree(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let top = expected.iter().fold(1e-3_f32, |top, value| top.max(value.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs() / top;
        assert!(off < 2e-5, "{what}: element {i} is {found}, not {expected}, of at most {top}");
    }
}

/// Inputs as parameters of a tape, so that each gets a gradient.
pub struct Inputs(Parameters);

impl Inputs {
    pub fn new(inputs: &[(&str, usize, &[f32])]) -> Self {
        let mut parameters = Parameters::new();
        for &(name, cols, values) in inputs {
            parameters.add(name, Tensor::from_slice(&Device::Cpu, values.len() / cols, cols, values));
        }
        Self(parameters)
    }

    /// The value of `forward`, and the gradients of `wanted` when that of the value is `d`.
    pub fn run(
        &self,
        d: &[f32],
        wanted: &[&str],
        forward: impl FnOnce(&mut Tape<'_>, &Parameters) -> Var,
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let mut gradients = Gradients::new(&Device::Cpu, &self.0);
        let mut tape = Tape::new(&Device::Cpu, &self.0, Mode::Train);
        let value = forward(&mut tape, &self.0);
        let (rows, cols) = tape.value(value).shape();
        let result = tape.value(value).to_vec();
        tape.backward_from(value, Tensor::from_slice(&Device::Cpu, rows, cols, d), &mut gradients);
        let of = |name: &&str| gradients.get(self.0.find(name).unwrap()).to_vec();
        (result, wanted.iter().map(of).collect())
    }
}

/// Whether the CPU's twin fuses multiply and add, as a GPU does.
pub fn twin_fuses() -> bool {
    cfg!(target_arch = "aarch64") || (cfg!(target_arch = "x86_64") && std::is_x86_feature_detected!("fma"))
}

#[test]
fn times_are_encoded_alike_bit_for_bit() {
    for (dim, rows) in [(1, 1), (100, 300), (33, 130)] {
        let w = TimeEncoder::frequencies(dim);
        let b = drawn(1, 1, dim, 1.0);
        let deltas: Vec<f32> = drawn(1, 2, rows, 1.0)
            .iter()
            .enumerate()
            .map(|(i, x)| x.abs() * 10_f32.powi(i as i32 % 10))
            .collect();
        let d = drawn(1, 3, rows * dim, 1.0);
        let inputs = Inputs::new(&[("w", dim, &w), ("b", dim, &b)]);
        let (value, gradients) = inputs.run(&d, &["w", "b"], |tape, parameters| {
            let (w, b) = (parameters.find("w").unwrap(), parameters.find("b").unwrap());
            tape.time_encoding(&deltas, &TimeEncoder::Trained { w, b })
        });
        let mut job = Arrays::default();
        job.push(&[0_u64]).push(&deltas).push(&w).push(&b).push(&d);
        let mut output = run("nn", &job);
        let found: Vec<f32> = output.take();
        let same = found.iter().zip(&value).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same || !twin_fuses(), "{rows} encodings of {dim}");
        agree(&found, &value, "encodings");
        agree(&output.take::<f32>(), &gradients.concat(), "gradients of frequencies and phases");
    }
}

struct Case {
    seeds: usize,
    slots: usize,
    heads: usize,
    node: usize,
    edge: usize,
    time: usize,
    model: usize,
    asked: usize,
    /// Whether seeds share queries and slots share edge rows.
    shared: bool,
    dropout: f32,
}

impl Case {
    fn check(&self, seed: u64) {
        let Self { seeds, slots, heads, node, edge, time, model, asked, shared, dropout } = *self;
        let (width, count, rows) = (node + edge + time, if shared { 3 } else { seeds }, 7);
        let queries: Vec<u32> = (0..seeds as u64).map(|i| below(seed, 1, i, count)).collect();
        let occupied = |i: usize| below(seed, 2, i as u64, 4) > 0 && i / slots != 1;
        let numbers =
            (0..seeds * slots).map(|i| if occupied(i) { below(seed, 3, i as u64, rows) } else { u32::MAX });
        let numbers: Vec<u32> = numbers.collect();
        let edge_rows = if shared { 5 } else { seeds * slots };
        let edge_slots: Vec<u32> = (0..seeds * slots).map(|i| below(seed, 4, i as u64, edge_rows)).collect();
        let deltas: Vec<f32> = drawn(seed, 5, seeds * slots, 1e4).iter().map(|x| x.abs()).collect();
        let key = [seed, 8, 9];
        let query = drawn(seed, 6, count * asked, 1.0);
        let (nodes, edges) = (drawn(seed, 7, rows * node, 1.0), drawn(seed, 8, edge_rows * edge, 1.0));
        let (w, b) = (TimeEncoder::frequencies(time), drawn(seed, 9, time, 1.0));
        let weights = [(10, asked), (11, width), (12, width)]
            .map(|(word, cols)| drawn(seed, word, model * cols, 1.0 / (cols as f32).sqrt()));
        let d = drawn(seed, 13, seeds * model, 1.0);
        let inputs = Inputs::new(&[
            ("query", asked, &query),
            ("nodes", node, &nodes),
            ("w_q", asked, &weights[0]),
            ("w_k", width, &weights[1]),
            ("w_v", width, &weights[2]),
            ("w", time, &w),
            ("b", time, &b),
        ]);
        let names = ["query", "nodes", "w_q", "w_k", "w_v", "w", "b"];
        let (value, gradients) = inputs.run(&d, &names, |tape, parameters| {
            let id = |name| parameters.find(name).unwrap();
            let (query, nodes) = (tape.param(id("query")), tape.param(id("nodes")));
            tape.temporal_attention(TemporalAttention {
                tail: Vec::new(),
                query,
                queries: shared.then(|| Arc::new(queries.clone())),
                nodes,
                slots: numbers.clone().into(),
                readers: None,
                deltas: deltas.clone().into(),
                edge_rows: (edge > 0)
                    .then(|| Arc::new(Tensor::from_slice(&Device::Cpu, edge_rows, edge, &edges))),
                edge_slots: shared.then(|| edge_slots.clone().into()),
                w_q: id("w_q"),
                w_k: id("w_k"),
                w_v: id("w_v"),
                heads,
                time: &TimeEncoder::Trained { w: id("w"), b: id("b") },
                dropout,
                key,
            })
        });
        let drop = (f64::from(dropout) * 65_536.0).round();
        let sizes = [seeds, slots, heads, node, edge, time, model, drop as usize].map(|n| n as u64);
        let none: [u32; 0] = [];
        let mut job = Arrays::default();
        job.push(&[1_u64]).push(&[&sizes[..], &[rng::prefix(key)]].concat());
        job.push(&[(65_536.0 / (65_536.0 - drop)) as f32])
            .push(&query)
            .push(&nodes)
            .push(&edges)
            .push(&deltas);
        job.push(&w).push(&b).push(&weights[0]).push(&weights[1]).push(&weights[2]).push(&d);
        job.push(if shared { &queries } else { &none[..] }).push(&numbers);
        job.push(if shared { &edge_slots } else { &none[..] });
        let mut output = run("nn", &job);
        agree(&output.take::<f32>(), &value, "result");
        for (name, gradient) in names.iter().zip(&gradients).take(5) {
            agree(&output.take::<f32>(), gradient, name);
        }
        agree(&output.take::<f32>(), &gradients[5..].concat(), "frequencies and phases");
        assert!(output.is_empty());
    }
}

#[test]
fn attention_gives_the_result_and_the_gradients_of_the_tape() {
    let case = Case {
        seeds: 9,
        slots: 10,
        heads: 2,
        node: 100,
        edge: 172,
        time: 100,
        model: 100,
        asked: 200,
        shared: false,
        dropout: 0.0,
    };
    case.check(1);
    Case { shared: true, dropout: 0.25, ..case }.check(2);
    Case { heads: 1, model: 7, edge: 0, slots: 1, ..case }.check(3);
    Case { heads: 4, model: 16, node: 40, edge: 3, time: 5, slots: 32, shared: true, ..case }.check(4);
    Case { heads: 4, node: 100, edge: 100, time: 56, dropout: 0.5, ..case }.check(5);
    Case { heads: 1, node: 172, edge: 172, time: 168, slots: 20, ..case }.check(6);
    Case { seeds: 30, heads: 2, node: 5, edge: 1, time: 1, slots: 3, ..case }.check(7);
}

#[test]
fn a_gru_cell_steps_forward_and_back_like_the_tape() {
    for (rows, width, asked) in [(1, 1, 1), (40, 33, 17), (9, 100, 172)] {
        let [x, h] = [(1, asked), (2, width)].map(|(word, cols)| drawn(4, word, rows * cols, 2.0));
        let [w_ih, w_hh] = [(3, asked), (4, width)].map(|(word, cols)| drawn(4, word, 3 * width * cols, 0.3));
        let [b_ih, b_hh] = [5, 6].map(|word| drawn(4, word, 3 * width, 0.5));
        let d = drawn(4, 7, rows * width, 1.0);
        let inputs = Inputs::new(&[
            ("x", asked, &x),
            ("h", width, &h),
            ("w_ih", asked, &w_ih),
            ("w_hh", width, &w_hh),
            ("b_ih", 3 * width, &b_ih),
            ("b_hh", 3 * width, &b_hh),
        ]);
        let (value, gradients) = inputs.run(&d, &["x", "h"], |tape, parameters| {
            let id = |name| parameters.find(name).unwrap();
            let (x, h) = (tape.param(id("x")), tape.param(id("h")));
            let weights =
                GruParams { w_ih: id("w_ih"), w_hh: id("w_hh"), b_ih: id("b_ih"), b_hh: id("b_hh") };
            tape.gru_cell(x, h, &weights)
        });
        let mut job = Arrays::default();
        job.push(&[2_u64]).push(&x).push(&h).push(&w_ih).push(&w_hh).push(&b_ih).push(&b_hh).push(&d);
        let mut output = run("nn", &job);
        agree(&output.take::<f32>(), &value, "result");
        agree(&output.take::<f32>(), &gradients[0], "gradient of x");
        agree(&output.take::<f32>(), &gradients[1], "gradient of h");
    }
}

#[test]
fn rows_are_normalized_forward_and_back_like_the_tape() {
    for (rows, cols) in [(1, 1), (130, 33), (7, 372), (65, 100)] {
        let (x, d) = (drawn(5, 1, rows * cols, 3.0), drawn(5, 2, rows * cols, 1.0));
        let (gamma, beta) = (drawn(5, 3, cols, 1.0), drawn(5, 4, cols, 1.0));
        let inputs = Inputs::new(&[("x", cols, &x), ("gamma", cols, &gamma), ("beta", cols, &beta)]);
        let (value, gradients) = inputs.run(&d, &["x", "gamma", "beta"], |tape, parameters| {
            let x = tape.param(parameters.find("x").unwrap());
            tape.layer_norm(x, parameters.find("gamma").unwrap(), parameters.find("beta").unwrap(), 1e-5)
        });
        let mut job = Arrays::default();
        job.push(&[3_u64]).push(&x).push(&gamma).push(&beta).push(&d).push(&[1e-5_f32]);
        let mut output = run("nn", &job);
        agree(&output.take::<f32>(), &value, "result");
        agree(&output.take::<f32>(), &gradients[0], "gradient of x");
        agree(&output.take::<f32>(), &gradients[1..].concat(), "gradients of gamma and beta");
    }
}

/// Weights before, the gradients of each step one after the other, the numbers of each step as a kernel takes them, and
/// the weights that the CPU's Adam leaves.
pub fn moved_by_adam(count: usize, steps: usize) -> (Vec<f32>, Vec<f32>, Vec<[f32; 6]>, Vec<f32>) {
    let options = AdamOptions { weight_decay: 0.1, ..AdamOptions::default() };
    let (start, given) = (drawn(6, 1, count, 1.0), drawn(6, 2, steps * count, 0.1));
    let mut parameters = Parameters::new();
    let id = parameters.add("w", Tensor::from_slice(&Device::Cpu, 1, count, &start));
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut adam = Adam::new(&Device::Cpu, &parameters, options);
    let mut numbers = Vec::new();
    for (t, gradient) in given.chunks(count).enumerate() {
        gradients.get_mut(id).data_mut().copy_from_slice(gradient);
        adam.step(&mut parameters, &gradients);
        let left = |beta: f32| 1.0 - f64::from(beta).powf(t as f64 + 1.0);
        let AdamOptions { learning_rate, beta1, beta2, eps, weight_decay } = options;
        let size = (f64::from(learning_rate) / left(beta1)) as f32;
        let root = left(beta2).sqrt() as f32;
        numbers.push([beta1, beta2, size, root, eps, 1.0 - learning_rate * weight_decay]);
    }
    let moved = parameters.get(id).data().to_vec();
    assert_ne!(moved, start);
    (start, given, numbers, moved)
}

#[test]
fn adam_moves_weights_alike_bit_for_bit() {
    let (start, given, numbers, moved) = moved_by_adam(1_000, 5);
    let mut job = Arrays::default();
    job.push(&[4_u64]).push(&start).push(&given).push(numbers.as_flattened());
    let found: Vec<f32> = run("nn", &job).take();
    assert_eq!(found, moved);
}
