//! The walk model as a contender: it has no graph to look into, so one form serves all protocols.

use super::node_label::Encoder;
use super::{Contender, EvaluationError, Scores, Trainable};
use crate::event::{EventTime, NodeId};
use crate::model::walk::WalkState;
use crate::nn::Parameters;
use crate::train::protocol::Batch;
use crate::train::{StepMode, WalkTrainer};

impl Contender for WalkTrainer {
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError> {
        let report = self.step(&batch.positives(), &batch.negatives(), mode)?;
        Ok(Scores { positive: report.positive, negative: report.negative })
    }

    fn score_candidates(
        &self,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError> {
        Ok(Self::score_candidates(self, src, time, candidates))
    }
}

impl Trainable for WalkTrainer {
    type Kept = (Parameters, WalkState);

    fn reset(&mut self) {
        self.reset_state();
    }

    fn keep(&self) -> Self::Kept {
        (self.parameters().clone(), self.state().clone())
    }

    fn restore(&mut self, (parameters, state): &Self::Kept) -> Result<(), EvaluationError> {
        self.set_parameters(parameters.clone());
        self.set_state(state.clone());
        Ok(())
    }
}

/// The row of the event's pair: where a source goes says as much about it as what it did before.
impl Encoder for WalkTrainer {
    fn encode(&self, batch: &Batch, rows: &mut Vec<f32>) -> Result<(), EvaluationError> {
        let from = rows.len();
        rows.resize(from + batch.rows.len() * self.state().feature_count(), 0.0);
        self.state().features(&batch.src, &batch.dst, &batch.times, &mut rows[from..]);
        Ok(())
    }
}
