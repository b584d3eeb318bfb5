//! The end of a training step: what its gradients do to the weights, and what came of it.

use super::trainer::Trainer;
use crate::device::Device;
use crate::model::Model;
use crate::nn::{Bound, Gradients, Tensor};

/// Gradients of a larger norm are scaled down to it. The optimizer keeps the square of a gradient for
/// thousands of steps; without a bound, one strange event would all but stop learning for that long. On the
/// UCI messages half of all norms are below 0.8 and none reaches 5, so ordinary streams are not touched.
pub(super) const GRADIENT_NORM_MAX: f32 = 5.0;

/// The optimizer's update.
pub(super) enum WeightUpdate {
    /// None, or done.
    Nothing,
    /// Refused, for this reason.
    Refused(String),
    /// Enqueued on a GPU.
    Gpu(Bound),
}

impl WeightUpdate {
    /// Starts copying a GPU's outcome to the host.
    pub fn fetch(self) -> Self {
        match self {
            Self::Gpu(bound) => Self::Gpu(bound.fetch()),
            done => done,
        }
    }
}

impl Trainer {
    /// Changes the weights by the gradients at hand, bounded, if those and the loss are finite: the gradient step
    /// behind `steps` others. On a GPU, enqueues that.
    pub(super) fn update_weights(&mut self, loss: &Tensor, steps: u64) -> WeightUpdate {
        self.adam.options.learning_rate = self.learning_rate_after(steps);
        if *self.device() != Device::Cpu {
            let (parameters, gradients) = (&mut self.model.parameters, &self.gradients);
            let how = (steps + 1, GRADIENT_NORM_MAX, loss);
            return WeightUpdate::Gpu(self.adam.step_bounded(parameters, gradients, how));
        }
        if !loss.data().iter().all(|loss| loss.is_finite()) {
            return WeightUpdate::Nothing;
        }
        let norm = self.gradients.norm();
        if !norm.is_finite() {
            return WeightUpdate::Refused(out_of_range(&self.model, &self.gradients));
        }
        if norm > GRADIENT_NORM_MAX {
            self.gradients.scale(GRADIENT_NORM_MAX / norm);
        }
        self.adam.step(&mut self.model.parameters, &self.gradients);
        WeightUpdate::Nothing
    }

    /// The outcome of the weight update; the error names what was not finite.
    pub(super) fn check_update(&mut self, update: WeightUpdate, loss: f32) -> Result<(), String> {
        let refused = match update {
            WeightUpdate::Nothing => None,
            WeightUpdate::Refused(what) => Some(what),
            WeightUpdate::Gpu(bound) => {
                self.adam.took(bound).err().map(|norm| format!("the gradients' norm ({norm})"))
            }
        };
        if !loss.is_finite() {
            return Err(format!("the loss ({loss})"));
        }
        refused.map_or(Ok(()), Err)
    }
}

/// Names the first gradient that is not finite or, if all are, their size.
fn out_of_range(model: &Model, gradients: &Gradients) -> String {
    let finite = |name: &str| {
        let id = model.parameters.find(name);
        id.is_none_or(|id| gradients.get(id).data().iter().all(|value| value.is_finite()))
    };
    match model.parameters.iter().find(|(name, _)| !finite(name)) {
        Some((name, _)) => format!("the gradient of {name}"),
        None => "the gradients' norm".to_owned(),
    }
}
