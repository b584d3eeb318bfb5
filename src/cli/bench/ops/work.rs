//! Something to time: a forward, a backward where it has one, and its results for checks.

use std::time::Instant;

use super::inputs::{Inputs, Named, tensor};
use crate::device::Device;
use crate::nn::{Gradients, Mode, ParamId, Tape, TapePool, Tensor, Var};

/// What bounds a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Moving bytes.
    Copy,
    /// Multiplying and adding.
    Matmul,
}

/// The least work of one direction of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Bytes of values and indices that must be read and written once.
    pub bytes: f64,
    /// Floating-point operations.
    pub flops: f64,
    pub bound: Bound,
}

impl Cost {
    /// Of an operation that moves `values` of four bytes and computes little.
    #[allow(clippy::cast_precision_loss)]
    pub fn moving(values: usize, flops: usize) -> Self {
        Self { bytes: 4.0 * values as f64, flops: flops as f64, bound: Bound::Copy }
    }

    /// Of an operation that computes.
    #[allow(clippy::cast_precision_loss)]
    pub fn computing(values: usize, flops: usize) -> Self {
        Self { bound: Bound::Matmul, ..Self::moving(values, flops) }
    }
}

/// A result, or a gradient under the name `grad_<input>`.
pub struct Output {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// Called right before the clock starts.
pub type Before<'a> = &'a mut dyn FnMut();

/// An operation on inputs that are there.
pub trait Work {
    /// Seconds of one forward.
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64>;

    /// Seconds of one backward, or nothing where there is none.
    fn backward(&mut self, _before: Before<'_>) -> anyhow::Result<Option<f64>> {
        Ok(None)
    }

    /// The results, computed once more.
    fn outputs(&mut self) -> anyhow::Result<Vec<Output>>;

    /// Facts about it.
    fn about(&self) -> &About;
}

/// Facts about an operation.
pub struct About {
    /// Its inputs; with `grad_out` where there is a backward.
    pub inputs: Inputs,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// Of the forward, and of the backward where there is one.
    pub costs: (Cost, Option<Cost>),
}

/// Records an operation on a tape.
pub type Record = Box<dyn Fn(&mut Tape<'_>, &Named) -> anyhow::Result<Var>>;

/// An operation of the tape.
pub struct OnTape {
    about: About,
    named: Named,
    grad_out: Tensor,
    gradients: Gradients,
    pool: TapePool,
    record: Record,
}

impl OnTape {
    /// The operation that `record` records, with a result of `shape`.
    pub fn boxed(
        inputs: Inputs,
        shape: [usize; 2],
        costs: (Cost, Cost),
        record: impl Fn(&mut Tape<'_>, &Named) -> anyhow::Result<Var> + 'static,
    ) -> Box<dyn Work> {
        let named = Named::new(&inputs);
        let grad_out = tensor(shape[0], shape[1], inputs.list.len() as u64, -1.0, 1.0);
        let inputs = inputs.given("grad_out", shape);
        let gradients = Gradients::new(&Device::Cpu, &named.parameters);
        let record = Box::new(record);
        let about = About { inputs, shape: shape.to_vec(), costs: (costs.0, Some(costs.1)) };
        Box::new(Self { about, named, grad_out, gradients, pool: TapePool::new(), record })
    }

    /// A training forward, then the backward; `then` sees the value before that and the gradients after it.
    fn both(&mut self, before: Before<'_>, then: impl FnOnce(&Tensor)) -> anyhow::Result<f64> {
        self.gradients.start_over();
        let (parameters, pool) = (&self.named.parameters, &mut self.pool);
        let mut tape = Tape::pooled(&Device::Cpu, parameters, Mode::Train, pool);
        let out = (self.record)(&mut tape, &self.named)?;
        then(tape.value(out));
        let mut d = tape.take(self.grad_out.rows(), self.grad_out.cols());
        d.data_mut().copy_from_slice(self.grad_out.data());
        before();
        let started = Instant::now();
        tape.backward_from(out, d, &mut self.gradients);
        Ok(started.elapsed().as_secs_f64())
    }
}

impl Work for OnTape {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        before();
        let started = Instant::now();
        let mut tape = Tape::pooled(&Device::Cpu, &self.named.parameters, Mode::Inference, &mut self.pool);
        (self.record)(&mut tape, &self.named)?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn backward(&mut self, before: Before<'_>) -> anyhow::Result<Option<f64>> {
        self.both(before, |_| {}).map(Some)
    }

    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        let mut outputs = Vec::new();
        self.both(&mut || {}, |out| {
            let shape = vec![out.rows(), out.cols()];
            outputs.push(Output { name: "out".to_owned(), shape, values: out.to_vec() });
        })?;
        outputs.extend(gradients(&self.about.inputs, &self.named, &self.gradients));
        Ok(outputs)
    }

    fn about(&self) -> &About {
        &self.about
    }
}

/// The gradients of all learned inputs.
pub fn gradients<'a>(
    inputs: &'a Inputs,
    named: &'a Named,
    gradients: &'a Gradients,
) -> impl Iterator<Item = Output> + 'a {
    let learned = inputs.list.iter().filter_map(|input| {
        let id: ParamId = named.parameters.find(input.name)?;
        Some((input, id))
    });
    learned.map(|(input, id)| Output {
        name: format!("grad_{}", input.name),
        shape: input.shape.clone(),
        values: gradients.get(id).to_vec(),
    })
}
