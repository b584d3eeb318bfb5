//! What a daemon does around a step: the gate scores some batches before they are learned, and after each step the rows
//! that it changed are published and, where they are new, the weights. Timed apart from the step, so that the figures
//! separate both costs.
//!
//! The gate scores as often as by default, and each window of scored batches ends in a promotion that leaves the
//! first one the anchor: from the second on two versions are scored beside the one that is trained, which is the most
//! expensive case. Its baseline is left out, which no model computes.

use std::sync::Arc;

use anyhow::Context;

use super::super::seconds;
use crate::config::Config;
use crate::learner::Gate;
use crate::model::{Needs, Weights};
use crate::serving::NodeStates;
use crate::train::{PreparedBatch, StepReport, TrainError, Trainer};

/// Published states, and the gate before them.
pub struct Served {
    gate: Gate,
    window_batches: u64,
    judged: u64,
    states: NodeStates,
    weights: Option<Arc<Weights>>,
    /// Seconds that the gate took.
    pub gate_seconds: f64,
    /// Seconds that publishing took.
    pub publish_seconds: f64,
}

impl Served {
    /// Nothing is published yet for a model with these needs.
    pub fn new(needs: &Needs) -> anyhow::Result<Self> {
        let options =
            Config::default_settings()?.gate_options().context("the default settings have no gate")?;
        Ok(Self {
            gate: Gate::new(options),
            window_batches: options.window_batches,
            judged: 0,
            states: NodeStates::new(needs.row_dim()),
            weights: None,
            gate_seconds: 0.0,
            publish_seconds: 0.0,
        })
    }

    /// Bytes of the published node states.
    pub fn bytes(&self) -> usize {
        self.states.bytes()
    }

    /// Takes the step of a batch that was prepared to be published, where the `next` one may be known.
    pub fn step(
        &mut self,
        trainer: &mut Trainer,
        (batch, next): (&PreparedBatch, Option<&PreparedBatch>),
    ) -> Result<StepReport, TrainError> {
        let (before, rivals) = seconds(|| self.gate.rivals(trainer, batch));
        let judged = rivals?.is_some();
        let report = trainer.step_before(batch, next)?;
        let (after, promoted) = seconds(|| if judged { self.judge(trainer) } else { Ok(false) });
        self.gate_seconds += before + after;
        let promoted = promoted?;
        let (publishing, published) = seconds(|| self.publish(trainer, batch, promoted));
        self.publish_seconds += publishing;
        published?;
        Ok(report)
    }

    /// Counts a scored batch. Returns whether it is the last of its window, and the trained weights are promoted.
    fn judge(&mut self, trainer: &Trainer) -> Result<bool, TrainError> {
        self.judged += 1;
        let last = self.judged == self.window_batches;
        if last {
            self.judged = 0;
            self.gate.promote(trainer.weights()?, 0);
        }
        Ok(last)
    }

    fn publish(
        &mut self,
        trainer: &Trainer,
        batch: &PreparedBatch,
        promoted: bool,
    ) -> Result<(), TrainError> {
        let published = self.gate.published();
        if promoted || published.is_none() {
            self.weights =
                Some(Arc::new(published.map_or_else(|| trainer.weights(), |kept| Ok(kept.clone()))?));
        }
        let placed = published.map(|published| trainer.place(published));
        let model = placed.as_deref().unwrap_or_else(|| trainer.model());
        let publish = |node, row: &[f32], updated| self.states.publish(node, row, updated);
        trainer.publish_prepared(model, batch, publish)
    }
}
