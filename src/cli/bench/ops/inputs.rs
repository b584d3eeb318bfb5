//! The inputs of an operation: numbers that follow from a seed, so that anyone can generate them, and indices.
//!
//! Element `i` of the values of stream `s` is `low + (high - low) * f` with `f = (u >> 40) * 2^-24` and
//! `u = splitmix64(seed + s * 0x9E3779B97F4A7C15 + i)`.

use std::sync::Arc;

use anyhow::Context;
use rayon::prelude::*;

use crate::device::{Device, rng};
use crate::nn::{ParamId, Parameters, Tensor};

/// The seed of everything that is generated.
pub const SEED: u64 = 20_220_704;
const STREAM: u64 = 0x9E37_79B9_7F4A_7C15;

/// Fills `out` with the values of a stream.
#[allow(clippy::cast_precision_loss)] // 24 bits fit
pub fn fill(out: &mut [f32], stream: u64, low: f32, high: f32) {
    let base = SEED.wrapping_add(stream.wrapping_mul(STREAM));
    out.par_chunks_mut(1 << 14).enumerate().for_each(|(piece, out)| {
        for (i, v) in (piece as u64 * (1 << 14)..).zip(out) {
            let u = rng::draw(base.wrapping_add(i), 0);
            *v = low + (high - low) * ((u >> 40) as f32 * (1.0 / 16_777_216.0));
        }
    });
}

/// Numbers of an input.
#[derive(Clone)]
pub enum Data {
    /// Generated.
    Values { stream: u64, low: f32, high: f32 },
    /// Written to a file for others.
    U32(Arc<Vec<u32>>),
    /// Written to a file for others.
    F32(Arc<Vec<f32>>),
}

/// One input of an operation.
#[derive(Clone)]
pub struct Input {
    pub name: &'static str,
    pub shape: Vec<usize>,
    pub data: Data,
    /// Whether its gradient is requested.
    pub gradient: bool,
}

/// The inputs of a point, in the order in which they were declared.
#[derive(Default)]
pub struct Inputs {
    pub list: Vec<Input>,
}

impl Inputs {
    fn values(mut self, name: &'static str, shape: [usize; 2], range: [f32; 2], gradient: bool) -> Self {
        let data = Data::Values { stream: self.list.len() as u64, low: range[0], high: range[1] };
        self.list.push(Input { name, shape: shape.to_vec(), data, gradient });
        self
    }

    /// Values in `[-1, 1)` whose gradient is requested.
    pub fn learned(self, name: &'static str, shape: [usize; 2]) -> Self {
        self.values(name, shape, [-1.0, 1.0], true)
    }

    /// Values in `[-size, size)` whose gradient is requested.
    pub fn small(self, name: &'static str, shape: [usize; 2], size: f32) -> Self {
        self.values(name, shape, [-size, size], true)
    }

    /// Values in `[-1, 1)` without a gradient.
    pub fn given(self, name: &'static str, shape: [usize; 2]) -> Self {
        self.values(name, shape, [-1.0, 1.0], false)
    }

    /// Whole numbers from a file.
    pub fn numbers(mut self, name: &'static str, numbers: Vec<u32>) -> Self {
        let shape = vec![numbers.len()];
        self.list.push(Input { name, shape, data: Data::U32(Arc::new(numbers)), gradient: false });
        self
    }

    /// Time differences from a file: `n` of them, whole seconds below 100.
    #[allow(clippy::cast_precision_loss)]
    pub fn deltas(mut self, name: &'static str, n: usize) -> Self {
        let one = |i: u64| rng::below([SEED, 2, i, 0], 100) as f32;
        let deltas = Arc::new((0..n as u64).map(one).collect::<Vec<f32>>());
        self.list.push(Input { name, shape: vec![n], data: Data::F32(deltas), gradient: false });
        self
    }
}

/// The inputs as the tape takes them.
pub struct Named {
    pub parameters: Parameters,
    tensors: Vec<(&'static str, Arc<Tensor>)>,
    inputs: Vec<Input>,
}

/// A generated matrix.
pub fn tensor(rows: usize, cols: usize, stream: u64, low: f32, high: f32) -> Tensor {
    let mut tensor = Tensor::zeros(&Device::Cpu, rows, cols);
    fill(tensor.data_mut(), stream, low, high);
    tensor
}

impl Named {
    /// Generates the inputs.
    pub fn new(inputs: &Inputs) -> Self {
        let (mut parameters, mut tensors) = (Parameters::new(), Vec::new());
        for input in &inputs.list {
            let (Data::Values { stream, low, high }, [rows, cols]) = (&input.data, &input.shape[..]) else {
                continue;
            };
            let values = tensor(*rows, *cols, *stream, *low, *high);
            if input.gradient {
                parameters.add(input.name, values);
            } else {
                tensors.push((input.name, Arc::new(values)));
            }
        }
        Self { parameters, tensors, inputs: inputs.list.clone() }
    }

    /// An input whose gradient is requested.
    pub fn param(&self, name: &str) -> anyhow::Result<ParamId> {
        self.parameters.find(name).with_context(|| format!("no learned input {name}"))
    }

    /// An input without a gradient.
    pub fn tensor(&self, name: &str) -> anyhow::Result<Arc<Tensor>> {
        let found = self.tensors.iter().find(|(other, _)| *other == name);
        Ok(found.with_context(|| format!("no given input {name}"))?.1.clone())
    }

    /// Whole numbers.
    pub fn numbers(&self, name: &str) -> anyhow::Result<Arc<Vec<u32>>> {
        let found = self.inputs.iter().find(|input| input.name == name);
        match found.map(|input| &input.data) {
            Some(Data::U32(numbers)) => Ok(numbers.clone()),
            _ => anyhow::bail!("no numbers {name}"),
        }
    }

    /// Time differences.
    pub fn floats(&self, name: &str) -> anyhow::Result<Arc<Vec<f32>>> {
        let found = self.inputs.iter().find(|input| input.name == name);
        match found.map(|input| &input.data) {
            Some(Data::F32(floats)) => Ok(floats.clone()),
            _ => anyhow::bail!("no time differences {name}"),
        }
    }
}
