//! Checks of every operation against plain f64 arithmetic: the value against a reference written for reading,
//! and every element of every gradient against central differences of that reference.

mod attention;
mod cells;
mod groups;
mod mixing;
mod reference;
mod threads;

use crate::device::{Device, rng};

use super::{Gradients, Mode, ParamId, Parameters, Tape, Tensor, Var};
use reference::Matrix;

const STEP: f64 = 1e-5;

/// One operation on random inputs, all of which get gradients.
struct Check<'a> {
    name: &'a str,
    /// Shapes of the inputs; their values are random in `[-1, 1)`.
    inputs: &'a [(usize, usize)],
    ours: &'a dyn Fn(&mut Tape<'_>, &[ParamId]) -> Var,
    reference: &'a dyn Fn(&[Matrix]) -> Matrix,
}

fn random(rows: usize, cols: usize, key: u64) -> Matrix {
    // Through f32, so that both sides see the same numbers.
    let one = |i: usize| f64::from(rng::unit_f32([key, i as u64, 3, 4]) * 2.0 - 1.0);
    Matrix { rows, cols, values: (0..rows * cols).map(one).collect() }
}

fn tensor(m: &Matrix) -> Tensor {
    Tensor::from_vec(&Device::Cpu, m.rows, m.cols, m.values.iter().map(|v| *v as f32).collect())
}

/// `max |a - b| / max |b|`.
fn relative(ours: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(ours.len(), reference.len());
    let top = reference.iter().fold(1e-30, |m: f64, v| m.max(v.abs()));
    ours.iter().zip(reference).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / top
}

impl Check<'_> {
    fn run(&self) {
        for seed in 1..=3u64 {
            self.run_with(seed);
        }
    }

    fn run_with(&self, seed: u64) {
        let name = format!("{} (seed {seed})", self.name);
        let shapes = self.inputs.iter().enumerate();
        let inputs: Vec<Matrix> = shapes.map(|(i, s)| random(s.0, s.1, 100 * seed + i as u64)).collect();
        let mut parameters = Parameters::new();
        let ids: Vec<ParamId> =
            inputs.iter().enumerate().map(|(i, m)| parameters.add(format!("input {i}"), tensor(m))).collect();
        let mut gradients = Gradients::new(&Device::Cpu, &parameters);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let y = (self.ours)(&mut tape, &ids);
        let want = (self.reference)(&inputs);
        assert_eq!(tape.value(y).shape(), (want.rows, want.cols), "{name}: shape");
        let error = relative(tape.value(y).data(), &want.values);
        assert!(error < 1e-5, "{name}: value is off by {error}");

        let targets = random(want.rows, want.cols, 9000 + seed).map(|v| 0.5 + 0.5 * v);
        let loss = tape.bce_with_logits(y, tensor(&targets).data());
        let want = reference::bce(&want, &targets);
        assert!((f64::from(tape.scalar(loss)) - want).abs() < 1e-6 * want.abs().max(1.0), "{name}: loss");
        tape.backward(loss, &mut gradients);
        for (i, id) in ids.iter().enumerate() {
            let differences = self.differences(&inputs, i, &targets);
            let top = differences.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            for (e, (ours, want)) in gradients.get(*id).data().iter().zip(&differences).enumerate() {
                let error = (f64::from(*ours) - want).abs();
                let allowed = 1e-4 * want.abs() + 1e-5 * top + 1e-9;
                assert!(error <= allowed, "{name}: gradient {e} of input {i} is {ours}, expected {want}");
            }
        }
        self.inference_agrees(&parameters, &ids, &name);
    }

    /// Central differences of the reference's loss by every element of one input.
    fn differences(&self, inputs: &[Matrix], input: usize, targets: &Matrix) -> Vec<f64> {
        let mut inputs = inputs.to_vec();
        let mut at = |e: usize, to: f64| {
            let old = std::mem::replace(&mut inputs[input].values[e], to);
            let loss = reference::bce(&(self.reference)(&inputs), targets);
            inputs[input].values[e] = old;
            (loss, old)
        };
        let len = self.inputs[input].0 * self.inputs[input].1;
        (0..len)
            .map(|e| {
                let (_, old) = at(e, 0.0);
                (at(e, old + STEP).0 - at(e, old - STEP).0) / (2.0 * STEP)
            })
            .collect()
    }

    /// Without dropout, inference computes the same bits as training.
    fn inference_agrees(&self, parameters: &Parameters, ids: &[ParamId], name: &str) {
        if self.name.contains("dropout") {
            return;
        }
        let run = |mode| {
            let mut tape = Tape::new(&Device::Cpu, parameters, mode);
            let y = (self.ours)(&mut tape, ids);
            tape.value(y).to_vec()
        };
        assert_eq!(run(Mode::Train), run(Mode::Inference), "{name}: inference");
    }
}
