//! Every operation against PyTorch: values, losses and gradients written by `tests/golden/make_ops.py`.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;

use evergraph::device::Device;
use evergraph::nn::{
    Adam, AdamOptions, Gradients, GruParams, Mode, ParamId, Parameters, Tape, TemporalAttention, Tensor,
    TimeEncoder, Var,
};
use safetensors::SafeTensors;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ops.safetensors");

/// All tensors of the file; integers are kept as their bits.
struct Golden(HashMap<String, (usize, usize, Vec<u32>)>);

impl Golden {
    fn open() -> Self {
        let bytes = std::fs::read(FILE).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let one = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let words = view.data().as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            let (rows, cols) = match *view.shape() {
                [cols] => (1, cols),
                [rows, cols] => (rows, cols),
                ref other => panic!("{name} has shape {other:?}"),
            };
            (name, (rows, cols, words))
        };
        Self(file.tensors().into_iter().map(one).collect())
    }

    fn words(&self, name: &str) -> &[u32] {
        &self.0.get(name).unwrap_or_else(|| panic!("{name} is not in the file")).2
    }

    fn values(&self, name: &str) -> Vec<f32> {
        self.words(name).iter().map(|w| f32::from_bits(*w)).collect()
    }

    fn tensor(&self, name: &str) -> Tensor {
        let values = self.values(name);
        Tensor::from_vec(&Device::Cpu, self.0[name].0, self.0[name].1, values)
    }

    fn agrees(&self, ours: &[f32], name: &str) {
        let theirs = self.values(name);
        assert_eq!(ours.len(), theirs.len(), "{name}");
        let top = theirs.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let off = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off / top < 1e-5, "{name}: off by {} of its largest element {top}", off / top);
        assert!(ours.iter().all(|v| v.is_finite()), "{name}");
    }
}

/// Runs `forward` with the named inputs and parameters and compares value, loss and all gradients.
fn case(
    name: &str,
    inputs: &[&str],
    forward: impl Fn(&Golden, &mut Tape<'_>, &dyn Fn(&str) -> ParamId) -> Var,
) {
    let golden = Golden::open();
    let mut parameters = Parameters::new();
    for input in inputs {
        let role = if golden.0.contains_key(&format!("{name}.in.{input}")) { "in" } else { "p" };
        parameters.add(input, golden.tensor(&format!("{name}.{role}.{input}")));
    }
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let y = forward(&golden, &mut tape, &|input| parameters.find(input).unwrap());
    golden.agrees(tape.value(y).data(), &format!("{name}.out.value"));
    let loss = tape.bce_with_logits(y, &golden.values(&format!("{name}.in.targets")));
    golden.agrees(&[tape.scalar(loss)], &format!("{name}.out.loss"));
    tape.backward(loss, &mut gradients);
    for input in inputs {
        let id = parameters.find(input).unwrap();
        golden.agrees(gradients.get(id).data(), &format!("{name}.d.{input}"));
    }
}

#[test]
fn linear() {
    case("linear", &["x", "weight", "bias"], |_, tape, id| {
        let x = tape.param(id("x"));
        tape.linear(x, id("weight"), Some(id("bias")))
    });
}

#[test]
fn layer_norm() {
    case("norm", &["x", "weight", "bias"], |_, tape, id| {
        let x = tape.param(id("x"));
        tape.layer_norm(x, id("weight"), id("bias"), 1e-5)
    });
}

#[test]
fn gru_cell() {
    case("gru", &["x", "h", "weight_ih", "weight_hh", "bias_ih", "bias_hh"], |_, tape, id| {
        let (x, h) = (tape.param(id("x")), tape.param(id("h")));
        let (w_ih, w_hh) = (id("weight_ih"), id("weight_hh"));
        tape.gru_cell(x, h, &GruParams { w_ih, w_hh, b_ih: id("bias_ih"), b_hh: id("bias_hh") })
    });
}

#[test]
fn attention() {
    case("attention", &["query", "nodes", "w_q", "w_k", "w_v"], |golden, tape, id| {
        let w = golden.values("attention.in.w");
        let time = TimeEncoder::Fixed { b: vec![0.0; w.len()].into(), w: w.into() };
        let (query, nodes) = (tape.param(id("query")), tape.param(id("nodes")));
        tape.temporal_attention(TemporalAttention {
            tail: Vec::new(),
            query,
            queries: None,
            nodes,
            // -1 as bits is the mark of an empty slot.
            slots: golden.words("attention.in.slots").to_vec().into(),
            readers: None,
            deltas: golden.values("attention.in.deltas").into(),
            edge_rows: Some(golden.tensor("attention.in.edges").into()),
            edge_slots: None,
            w_q: id("w_q"),
            w_k: id("w_k"),
            w_v: id("w_v"),
            heads: 2,
            time: &time,
            dropout: 0.0,
            key: [0; 3],
        })
    });
}

#[test]
fn time_encoding() {
    let golden = Golden::open();
    let parameters = Parameters::new();
    let (w, b, deltas) =
        (golden.values("time.in.w"), golden.values("time.in.b"), golden.values("time.in.deltas"));
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Inference);
    let with_phase = tape.time_encoding(&deltas, &TimeEncoder::Fixed { w: w.clone().into(), b: b.into() });
    golden.agrees(tape.value(with_phase).data(), "time.out.value");
    let zeros = vec![0.0; w.len()].into();
    let without = tape.time_encoding(&deltas, &TimeEncoder::Fixed { w: w.into(), b: zeros });
    golden.agrees(tape.value(without).data(), "time.out.zero_phase");
}

#[test]
fn loss_of_extreme_logits() {
    let golden = Golden::open();
    let mut parameters = Parameters::new();
    let x = parameters.add("x", golden.tensor("bce.in.x"));
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
    let logits = tape.param(x);
    let loss = tape.bce_with_logits(logits, &golden.values("bce.in.targets"));
    golden.agrees(&[tape.scalar(loss)], "bce.out.loss");
    tape.backward(loss, &mut gradients);
    golden.agrees(gradients.get(x).data(), "bce.d.x");
}

#[test]
fn three_steps_of_adam() {
    let golden = Golden::open();
    let mut parameters = Parameters::new();
    let w = parameters.add("w", golden.tensor("adam.in.w"));
    let mut gradients = Gradients::new(&Device::Cpu, &parameters);
    let mut adam = Adam::new(&Device::Cpu, &parameters, AdamOptions::default());
    for step in 0..3 {
        *gradients.get_mut(w) = golden.tensor(&format!("adam.in.gradient{step}"));
        adam.step(&mut parameters, &gradients);
        golden.agrees(parameters.get(w).data(), &format!("adam.out.w{step}"));
    }
}
