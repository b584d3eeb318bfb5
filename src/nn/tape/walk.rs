//! [`Walk`]: a tape while it is walked backward, as its operations see it: values to read, gradients to add to, memory.

use std::ops::Range;
use std::sync::Arc;

use crate::device::Device;
use crate::nn::cuda::sums::Later;
use crate::nn::ops::elementwise::accumulate;
use crate::nn::{Gradients, ParamId, Parameters, TapePool, Tensor};

use super::{Node, Value, Var, value_of};

/// What an operation sees of the tape while it is walked backward.
pub(in crate::nn) struct Walk<'a> {
    pub(in crate::nn) device: &'a Device,
    pub(super) nodes: &'a [Node],
    pub(super) parameters: &'a Parameters,
    pub(super) pool: &'a mut TapePool,
    pub(super) flowing: Vec<Option<Tensor>>,
    pub(super) gradients: &'a mut Gradients,
    /// What a GPU adds to gradients of parameters when the walk is done.
    pub(in crate::nn) later: Later<'a>,
}

impl<'a> Walk<'a> {
    pub(in crate::nn) fn value(&self, var: Var) -> &'a Tensor {
        value_of(self.nodes, self.parameters, var)
    }

    pub(in crate::nn) fn parameters(&self) -> &'a Parameters {
        self.parameters
    }

    pub(in crate::nn) fn parameter(&self, id: ParamId) -> &'a Tensor {
        self.parameters.get(id)
    }

    /// The gradient of a parameter, and whether it is to be overwritten (`true`) or added to.
    pub(in crate::nn) fn gradient(&mut self, id: ParamId) -> (&mut Tensor, bool) {
        self.gradients.slot(id)
    }

    /// Whether a parameter's gradient is to be overwritten.
    pub(in crate::nn) fn gradient_is_fresh(&self, id: ParamId) -> bool {
        self.gradients.overwrites(id)
    }

    pub(in crate::nn) fn needs(&self, var: Var) -> bool {
        self.nodes[var.0].needs_gradient
    }

    /// Whether nothing has flowed into `var` yet.
    pub(in crate::nn) fn overwrites(&self, var: Var) -> bool {
        match self.nodes[var.0].value {
            Value::Param(id) => self.gradients.overwrites(id),
            _ => self.flowing[var.0].is_none(),
        }
    }

    pub(in crate::nn) fn take(&mut self, rows: usize, cols: usize) -> Tensor {
        self.pool.take(self.device, rows, cols)
    }

    /// Memory of the shape of `var`, to be written whole.
    pub(in crate::nn) fn take_like(&mut self, var: Var) -> Tensor {
        let (rows, cols) = self.value(var).shape();
        self.take(rows, cols)
    }

    pub(in crate::nn) fn give(&mut self, tensor: Tensor) {
        self.pool.give(tensor);
    }

    /// Gives back what others may share, if nobody does.
    pub(in crate::nn) fn give_shared(&mut self, tensor: Arc<Tensor>) {
        if let Some(tensor) = Arc::into_inner(tensor) {
            self.give(tensor);
        }
    }

    pub(in crate::nn) fn pool(&mut self) -> &mut TapePool {
        self.pool
    }

    /// Adds the whole gradient `d` to what flows into `var`.
    pub(in crate::nn) fn flow(&mut self, var: Var, mut d: Tensor) {
        debug_assert_eq!(d.shape(), self.value(var).shape());
        if !self.needs(var) {
            return self.pool.give(d);
        }
        if let Value::Param(id) = self.nodes[var.0].value {
            match self.gradients.slot(id) {
                (gradient, true) => std::mem::swap(gradient, &mut d),
                (gradient, false) => accumulate(gradient, &d, false),
            }
            return self.pool.give(d);
        }
        match &mut self.flowing[var.0] {
            slot @ None => *slot = Some(d),
            Some(sum) => {
                accumulate(sum, &d, false);
                self.pool.give(d);
            }
        }
    }

    /// As [`flow_with`](Self::flow_with), of what flows into these rows of `var` alone: in fresh memory the others
    /// become zeros.
    pub(in crate::nn) fn flow_into_rows(
        &mut self,
        var: Var,
        range: &Range<usize>,
        add: impl FnOnce(&mut Tensor, bool),
    ) {
        self.flow_with(var, |d, mut overwrite| {
            if overwrite && range.len() < d.rows() {
                match d.device() {
                    Device::Cpu => {
                        let cols = d.cols();
                        let (before, others) = d.data_mut().split_at_mut(range.start * cols);
                        before.fill(0.0);
                        others[range.len() * cols..].fill(0.0);
                    }
                    Device::Cuda(_) => {
                        d.clear();
                        overwrite = false;
                    }
                }
            }
            add(d, overwrite);
        });
    }

    /// Hands `add` what flows into `var` and whether that is fresh memory to be overwritten (`true`) or a
    /// sum to be added to (`false`). Not called if no gradient has to flow into `var`.
    pub(in crate::nn) fn flow_with(&mut self, var: Var, add: impl FnOnce(&mut Tensor, bool)) {
        if !self.needs(var) {
            return;
        }
        if let Value::Param(id) = self.nodes[var.0].value {
            let (gradient, overwrite) = self.gradients.slot(id);
            return add(gradient, overwrite);
        }
        let (rows, cols) = self.value(var).shape();
        let (mut d, overwrite) = match self.flowing[var.0].take() {
            Some(sum) => (sum, false),
            None => (self.take(rows, cols), true),
        };
        add(&mut d, overwrite);
        self.flowing[var.0] = Some(d);
    }
}
