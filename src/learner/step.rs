//! One batch of the loop: how much of a step it gets, its negatives, what it reads, the step itself, and what
//! readers see of it afterwards.
//!
//! All that can fail because storage does comes first and changes nothing, so such a batch is simply tried again.

use super::measure::unix_seconds;
use super::{LearnBatch, Learner};
use crate::event::{EdgeId, NodeId};
use crate::serving::QueryEngine;
use crate::train::{Negatives, Positives, StepMode, StepReport, TrainError, World};

impl Learner {
    /// How much of a step a batch gets that ends `behind` records before what is indexed.
    pub(super) fn mode(&self, batch: &LearnBatch, behind: u64) -> StepMode {
        let history = batch.is_history(self.options.started_unix_ms);
        if behind > self.options.lag_events_max && !(history && self.options.train) {
            StepMode::Remember
        } else if self.options.train {
            StepMode::Train
        } else {
            StepMode::Score
        }
    }

    /// One random destination per edge, from those seen before the batch.
    pub(super) fn negatives(&mut self, batch: &LearnBatch) -> Vec<NodeId> {
        if self.pool.is_empty() {
            self.pool.extend(&batch.dst);
        }
        let mut drawn = Vec::new();
        self.pool.draw(self.options.seed, batch.first.0, batch.dst.len(), &mut drawn);
        drawn
    }

    /// Reads all that the step of `batch` will need.
    pub(super) fn prepare(
        &mut self,
        batch: &LearnBatch,
        negatives: &[NodeId],
        mode: StepMode,
    ) -> Result<(), TrainError> {
        let preparer = self.trainer.preparer().publishing();
        let world = world(&self.shared.engine, batch.end);
        let positives =
            Positives { src: &batch.src, dst: &batch.dst, times: &batch.times, edges: &batch.edges };
        let negatives = Negatives { src: &batch.src, dst: negatives };
        let mailbox = &self.trainer.state().mailbox;
        preparer.sample(&world, &positives, &negatives, mode, &mut self.prepared)?;
        preparer.expect(|node| mailbox.pending_edge(node), &mut self.prepared);
        preparer.gather(&world, &mut self.prepared)
    }

    /// The trainer's step with the prepared batch, which begins at `first`, and how much of it was done: a step
    /// whose numbers are not finite only remembers. Its scores are those of the model that readers have: without
    /// dropout.
    pub(super) fn step(&mut self, first: EdgeId) -> Result<(StepReport, StepMode), TrainError> {
        let mode = self.prepared.mode();
        let drops = mode == StepMode::Train && self.trainer.options().model.dropout > 0.0;
        let undropped = if drops { Some(self.trainer.score_prepared(&self.prepared)?) } else { None };
        match self.trainer.step_prepared(&self.prepared) {
            Err(error @ TrainError::NonFinite { .. }) => {
                self.shared.metrics.train.nonfinite.inc();
                tracing::warn!(%error, position = first.0, "a gradient step was skipped");
                Ok((StepReport::default(), StepMode::Remember))
            }
            done => {
                let mut report = done?;
                if let Some((positive, negative)) = undropped {
                    (report.positive, report.negative) = (positive, negative);
                }
                if report.refused_rows > 0 {
                    self.shared.metrics.train.nonfinite.inc();
                    let (rows, position) = (report.refused_rows, first.0);
                    tracing::warn!(
                        rows,
                        position,
                        "memory that is not finite was refused; nodes keep theirs"
                    );
                }
                Ok((report, mode))
            }
        }
    }

    /// Shows readers the memory of `nodes`.
    pub(super) fn publish_rows(&mut self, nodes: &[NodeId]) -> Result<(), TrainError> {
        let (states, rows) = (&self.shared.engine.states, &self.shared.engine.edge_features);
        self.trainer.publish_rows(rows, nodes, |node, row, updated| states.publish(node, row, updated))
    }

    /// Shows readers the memory of the nodes of the batch that was just learned.
    pub(super) fn publish_batch(&mut self) {
        let states = &self.shared.engine.states;
        self.trainer
            .publish_prepared(&self.prepared, |node, row, updated| states.publish(node, row, updated));
    }

    pub(super) fn publish_weights(&mut self) {
        let weights = self.trainer.weights();
        self.version = weights.version;
        if let Err(error) = self.shared.engine.publish(weights) {
            tracing::error!(%error, "weights could not be published");
        }
        self.shared.metrics.model.version.set(self.version.cast_signed());
        self.shared.metrics.model.published_timestamp.set(unix_seconds());
    }
}

/// What a step or a score may see: everything before `bound`.
pub(super) fn world(engine: &QueryEngine, bound: EdgeId) -> World<'_> {
    World {
        view: engine.graph.view_at(bound),
        edge_features: &engine.edge_features,
        node_features: &engine.node_features,
    }
}
