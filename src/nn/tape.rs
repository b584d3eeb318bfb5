//! [`Tape`]: records the operations of one step in order and walks them backward.
//!
//! A node is a value (owned, or a parameter borrowed from [`Parameters`]) and, if a gradient has to flow through
//! it, the recorded operation behind a [`Backward`] object that owns what it saved. The backward walk visits
//! nodes from the loss down, hands each operation the gradient of its result, and the operation adds to its
//! inputs' gradients through [`Walk`]. Everything taken from the pool goes back to it.
//!
//! Knows nothing of what an operation computes: see `ops`.

mod walk;

use std::borrow::Cow;
use std::sync::Arc;

use crate::device::Device;

use super::cuda::sums::Later;
use super::{Gradients, ParamId, Parameters, TapePool, Tensor};
pub(super) use walk::Walk;

/// Whether a step is to be differentiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Operations save what their backward needs, and dropout drops.
    Train,
    /// Nothing is saved, dropout does nothing, and there is no backward.
    Inference,
}

/// A value on a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var(pub(super) usize);

pub(super) enum Value {
    Owned(Tensor),
    /// Read by other tapes as well.
    Shared(Arc<Tensor>),
    Param(ParamId),
}

pub(super) struct Node {
    value: Value,
    needs_gradient: bool,
    operation: Option<Box<dyn Backward>>,
}

/// A recorded operation.
pub(super) trait Backward: Send {
    /// Adds to the inputs' gradients, given the gradient `d` of the result, and gives all it holds back.
    fn backward(self: Box<Self>, result: Var, d: Tensor, walk: &mut Walk<'_>);
    /// Gives saved tensors back without a backward; most operations save none.
    fn release(self: Box<Self>, _pool: &mut TapePool) {}
}

/// An operation that saves no tensors: what its backward does.
struct Closure<F>(F);

impl<F: FnOnce(Var, Tensor, &mut Walk<'_>) + Send> Backward for Closure<F> {
    fn backward(self: Box<Self>, result: Var, d: Tensor, walk: &mut Walk<'_>) {
        (self.0)(result, d, walk);
    }
}

enum PoolHandle<'p> {
    Own(TapePool),
    PooledBuffer(&'p mut TapePool),
}

impl PoolHandle<'_> {
    fn get(&mut self) -> &mut TapePool {
        match self {
            PoolHandle::Own(pool) => pool,
            PoolHandle::PooledBuffer(pool) => pool,
        }
    }
}

/// One step's operations, in order.
pub struct Tape<'p> {
    device: Device,
    parameters: &'p Parameters,
    mode: Mode,
    pool: PoolHandle<'p>,
    nodes: Vec<Node>,
}

impl<'p> Tape<'p> {
    /// An empty tape with memory of its own.
    #[must_use]
    pub fn new(device: &Device, parameters: &'p Parameters, mode: Mode) -> Self {
        Self::with_handle(device, parameters, mode, PoolHandle::Own(TapePool::new()))
    }

    /// An empty tape that takes its memory from `pool` and gives it back when it is dropped.
    #[must_use]
    pub fn pooled(device: &Device, parameters: &'p Parameters, mode: Mode, pool: &'p mut TapePool) -> Self {
        Self::with_handle(device, parameters, mode, PoolHandle::PooledBuffer(pool))
    }

    fn with_handle(device: &Device, parameters: &'p Parameters, mode: Mode, pool: PoolHandle<'p>) -> Self {
        Self { device: device.clone(), parameters, mode, pool, nodes: Vec::with_capacity(64) }
    }

    /// Where the operations run.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The weights that operations read.
    #[must_use]
    pub fn parameters(&self) -> &'p Parameters {
        self.parameters
    }

    /// A value that no gradient flows into. Values of the CPU are copied to where the operations run.
    pub fn constant(&mut self, tensor: Tensor) -> Var {
        let there = self.sent(tensor);
        self.push(there, false, None)
    }

    /// A tensor where the operations run: one of the CPU is copied there.
    #[must_use]
    pub fn sent(&mut self, tensor: Tensor) -> Tensor {
        if *tensor.device() == self.device {
            return tensor;
        }
        let there = tensor.to(&self.device);
        self.give(tensor);
        there
    }

    /// A value of the CPU whose gradient is wanted: see [`backward_to`](Self::backward_to).
    pub fn leaf(&mut self, tensor: Tensor) -> Var {
        let needs_gradient = self.mode == Mode::Train;
        self.push(tensor, needs_gradient, None)
    }

    /// The same of a value that tapes share.
    pub fn shared_leaf(&mut self, tensor: Arc<Tensor>, needs_gradient: bool) -> Var {
        let needs_gradient = needs_gradient && self.mode == Mode::Train;
        self.nodes.push(Node { value: Value::Shared(tensor), needs_gradient, operation: None });
        Var(self.nodes.len() - 1)
    }

    /// A value for other tapes to read, and whether a gradient has to flow into it.
    ///
    /// # Panics
    /// If `var` is of another tape, or a parameter.
    pub fn share(&mut self, var: Var) -> (Arc<Tensor>, bool) {
        let node = &mut self.nodes[var.0];
        let shared = match std::mem::replace(&mut node.value, Value::Owned(Tensor::default())) {
            Value::Owned(tensor) => Arc::new(tensor),
            Value::Shared(tensor) => tensor,
            Value::Param(id) => panic!("parameter {} is there for all tapes", id.0),
        };
        node.value = Value::Shared(shared.clone());
        (shared, node.needs_gradient)
    }

    /// A parameter as a value; its gradient goes to [`Gradients`].
    pub fn param(&mut self, id: ParamId) -> Var {
        let needs_gradient = self.mode == Mode::Train;
        self.nodes.push(Node { value: Value::Param(id), needs_gradient, operation: None });
        Var(self.nodes.len() - 1)
    }

    /// A value's numbers in memory of the CPU, row by row. Waits for a GPU, where they are zeros after a fault.
    ///
    /// # Panics
    /// If `var` is of another tape.
    #[must_use]
    pub fn read(&self, var: Var) -> Cow<'_, [f32]> {
        self.value(var).read()
    }

    /// Takes a value off the tape, which must not be walked backward any more.
    ///
    /// # Panics
    /// If `var` is of another tape.
    #[must_use]
    pub fn take_value(&mut self, var: Var) -> Tensor {
        let nothing = Value::Owned(Tensor::default());
        match std::mem::replace(&mut self.nodes[var.0].value, nothing) {
            Value::Owned(tensor) => tensor,
            Value::Shared(tensor) => Arc::unwrap_or_clone(tensor),
            Value::Param(id) => self.parameters.get(id).clone(),
        }
    }

    /// A value, where the operations run.
    ///
    /// # Panics
    /// If `var` is of another tape.
    #[must_use]
    pub fn value(&self, var: Var) -> &Tensor {
        value_of(&self.nodes, self.parameters, var)
    }

    /// The one number of a `1 x 1` value. Waits for a GPU.
    ///
    /// # Panics
    /// If the value is not `1 x 1`.
    #[must_use]
    pub fn scalar(&self, var: Var) -> f32 {
        let value = self.value(var);
        assert_eq!(value.shape(), (1, 1), "scalar of a {:?} value", value.shape());
        self.read(var)[0]
    }

    /// A tensor of the CPU from the pool, to be filled by the caller (every value: it holds stale numbers) and
    /// handed to [`constant`](Self::constant).
    #[must_use]
    pub fn take(&mut self, rows: usize, cols: usize) -> Tensor {
        self.pool.get().take(&Device::Cpu, rows, cols)
    }

    /// Like [`take`](Self::take), with every value zero.
    #[must_use]
    pub fn take_zeroed(&mut self, rows: usize, cols: usize) -> Tensor {
        self.pool.get().take_zeroed(&Device::Cpu, rows, cols)
    }

    /// Room for a result, where the operations run: every value is to be written.
    pub(super) fn room(&mut self, rows: usize, cols: usize) -> Tensor {
        self.pool.get().take(&self.device, rows, cols)
    }

    /// Gives a tensor's memory back to the pool.
    pub fn give(&mut self, tensor: Tensor) {
        self.pool.get().give(tensor);
    }

    /// Adds the gradient of the `1 x 1` value `loss` by every parameter that it depends on to `gradients`.
    /// Consumes what the operations saved: once per tape.
    ///
    /// # Panics
    /// If `loss` is not `1 x 1`, depends on no parameter, or the tape is in [`Mode::Inference`].
    pub fn backward(&mut self, loss: Var, gradients: &mut Gradients) {
        self.backward_to(None, (loss, 1.0), gradients);
    }

    /// Like [`backward`](Self::backward) from `share` times the loss, and returns what flowed into a
    /// [`leaf`](Self::leaf); `None` if nothing did.
    ///
    /// # Panics
    /// As [`backward`](Self::backward).
    pub fn backward_to(
        &mut self,
        leaf: Option<Var>,
        (loss, share): (Var, f32),
        gradients: &mut Gradients,
    ) -> Option<Tensor> {
        assert_eq!(self.value(loss).shape(), (1, 1), "backward from a value that is not 1x1");
        let share = Tensor::from_slice(&self.device, 1, 1, &[share]);
        self.walk((loss, share), leaf, gradients)
    }

    /// Like [`backward_from`](Self::backward_from), and returns what flowed into a [`leaf`](Self::leaf).
    ///
    /// # Panics
    /// As [`backward_from`](Self::backward_from).
    pub fn backward_from_to(
        &mut self,
        leaf: Option<Var>,
        value: (Var, Tensor),
        gradients: &mut Gradients,
    ) -> Option<Tensor> {
        self.walk(value, leaf, gradients)
    }

    /// Like [`backward`](Self::backward), from any value whose gradient `d` is known.
    ///
    /// # Panics
    /// If `d` is not of the value's shape, the value depends on no parameter, or the tape is in
    /// [`Mode::Inference`].
    pub fn backward_from(&mut self, value: Var, d: Tensor, gradients: &mut Gradients) {
        self.walk((value, d), None, gradients);
    }

    fn walk(
        &mut self,
        (value, d): (Var, Tensor),
        leaf: Option<Var>,
        gradients: &mut Gradients,
    ) -> Option<Tensor> {
        assert_eq!(self.mode, Mode::Train, "backward on a tape in inference mode");
        assert_eq!(self.value(value).shape(), d.shape(), "a value and its gradient");
        assert!(self.nodes[value.0].needs_gradient, "the loss depends on no parameter");
        let mut flowing: Vec<Option<Tensor>> = Vec::new();
        flowing.resize_with(value.0 + 1, || None);
        flowing[value.0] = Some(d);
        let mut operations: Vec<_> = self.nodes.iter_mut().map(|node| node.operation.take()).collect();
        let mut walk = Walk {
            device: &self.device,
            nodes: &self.nodes,
            parameters: self.parameters,
            pool: self.pool.get(),
            flowing,
            gradients,
            later: Later::default(),
        };
        let mut wanted = None;
        for at in (0..=value.0).rev() {
            let Some(d) = walk.flowing[at].take() else { continue };
            match (operations[at].take(), &walk.nodes[at].value) {
                (Some(operation), _) => operation.backward(Var(at), d, &mut walk),
                (None, Value::Param(_)) => walk.flow(Var(at), d),
                (None, _) if leaf == Some(Var(at)) => wanted = Some(d),
                (None, _) => walk.give(d),
            }
        }
        let Walk { gradients, later, .. } = walk;
        gradients.settle(later);
        // Nothing flowed through these.
        for (node, operation) in self.nodes.iter_mut().zip(operations) {
            node.operation = operation;
        }
        wanted
    }

    pub(super) fn push(
        &mut self,
        tensor: Tensor,
        needs_gradient: bool,
        operation: Option<Box<dyn Backward>>,
    ) -> Var {
        self.nodes.push(Node { value: Value::Owned(tensor), needs_gradient, operation });
        Var(self.nodes.len() - 1)
    }

    /// The same of an operation that saves no tensors, by its [`Backward::backward`].
    pub(super) fn push_with(
        &mut self,
        tensor: Tensor,
        needs_gradient: bool,
        backward: impl FnOnce(Var, Tensor, &mut Walk<'_>) + Send + 'static,
    ) -> Var {
        self.push(tensor, needs_gradient, needs_gradient.then(|| Box::new(Closure(backward)) as _))
    }

    /// Whether a gradient has to flow into `var`.
    pub(super) fn needs(&self, var: Var) -> bool {
        self.nodes[var.0].needs_gradient
    }

    pub(super) fn training(&self) -> bool {
        self.mode == Mode::Train
    }
}

impl Drop for Tape<'_> {
    fn drop(&mut self) {
        let pool = self.pool.get();
        for node in self.nodes.drain(..) {
            if let Some(operation) = node.operation {
                operation.release(pool);
            }
            match node.value {
                Value::Owned(tensor) => pool.give(tensor),
                // Whoever is last keeps the memory.
                Value::Shared(tensor) => Arc::into_inner(tensor).into_iter().for_each(|t| pool.give(t)),
                Value::Param(_) => {}
            }
        }
    }
}

fn value_of<'a>(nodes: &'a [Node], parameters: &'a Parameters, var: Var) -> &'a Tensor {
    match &nodes[var.0].value {
        Value::Owned(tensor) => tensor,
        Value::Shared(tensor) => tensor,
        Value::Param(id) => parameters.get(*id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_step_takes_nothing_new() {
        let device = Device::Cpu;
        let mut parameters = Parameters::new();
        let w = parameters.add("w", Tensor::from_vec(&device, 3, 4, vec![0.1; 12]));
        let mut pool = TapePool::new();
        let mut gradients = Gradients::new(&device, &parameters);
        let mut held = Vec::new();
        for _ in 0..3 {
            gradients.start_over();
            let mut tape = Tape::pooled(&device, &parameters, Mode::Train, &mut pool);
            let mut x = tape.take(5, 4);
            x.data_mut().fill(1.0);
            let x = tape.constant(x);
            let y = tape.linear(x, w, None);
            let y = tape.relu(y);
            let ones = tape.rows(y, 0..1);
            let loss = tape.bce_with_logits(ones, &[1.0, 0.0, 1.0]);
            tape.backward(loss, &mut gradients);
            drop(tape);
            held.push(pool.bytes());
        }
        assert!(held[0] > 0);
        assert_eq!(held[0], held[1]);
        assert_eq!(held[1], held[2]);
    }

    #[test]
    fn a_value_used_twice_gets_both_gradients() {
        let device = Device::Cpu;
        let mut parameters = Parameters::new();
        let w = parameters.add("w", Tensor::from_vec(&device, 1, 1, vec![0.7]));
        let mut gradients = Gradients::new(&device, &parameters);
        let mut tape = Tape::new(&device, &parameters, Mode::Train);
        let x = tape.param(w);
        let twice = tape.add(x, x);
        let thrice = tape.add(twice, x);
        tape.backward(thrice, &mut gradients);
        assert_eq!(gradients.get(w).data(), &[3.0]);
    }

    #[test]
    #[should_panic(expected = "depends on no parameter")]
    fn a_loss_of_constants_is_refused() {
        let parameters = Parameters::new();
        let mut gradients = Gradients::new(&Device::Cpu, &parameters);
        let mut tape = Tape::new(&Device::Cpu, &parameters, Mode::Train);
        let x = tape.constant(Tensor::zeros(&Device::Cpu, 1, 1));
        tape.backward(x, &mut gradients);
    }
}
