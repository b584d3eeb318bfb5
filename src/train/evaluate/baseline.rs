//! The baselines as contenders: they take in the training part once, whatever the number of epochs.

use super::{Contender, Epoch, EvaluationError, Scores, Trainable};
use crate::event::{EventTime, NodeId};
use crate::train::StepMode;
use crate::train::edgebank::EdgeBank;
use crate::train::popularity::Popularity;
use crate::train::protocol::Batch;

/// A contender that has seen what it has seen, and learns nothing.
pub trait Baseline: Contender + Clone {
    /// Forgets the stream.
    fn forget(&mut self);
}

impl<T: Baseline> Trainable for T {
    const LEARNS: bool = false;
    type Kept = Self;

    fn reset(&mut self) {
        self.forget();
    }

    fn train(&mut self, epoch: &mut Epoch<'_>) -> Result<(), EvaluationError> {
        let mut batch = Batch::default();
        while epoch.batches.load(&mut batch) {
            self.take(&batch, StepMode::StateOnly)?;
        }
        Ok(())
    }

    fn keep(&self) -> Result<Self, EvaluationError> {
        Ok(self.clone())
    }

    fn restore(&mut self, kept: &Self) -> Result<(), EvaluationError> {
        self.clone_from(kept);
        Ok(())
    }
}

impl Contender for EdgeBank {
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError> {
        let scores = match mode {
            StepMode::StateOnly => Scores::default(),
            StepMode::Train | StepMode::Score => Scores {
                positive: self.scores(&batch.src, &batch.dst),
                negative: self.scores(&batch.negative_src, &batch.negative_dst),
            },
        };
        self.observe(&batch.src, &batch.dst, &batch.times);
        Ok(scores)
    }

    fn score_candidates(
        &self,
        src: NodeId,
        _time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError> {
        Ok(candidates.iter().map(|&dst| self.score(src, dst)).collect())
    }
}

impl Baseline for EdgeBank {
    fn forget(&mut self) {
        *self = Self::new(self.rule());
    }
}

impl Contender for Popularity {
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError> {
        let of = |dst: &[NodeId]| dst.iter().map(|&dst| self.score(dst)).collect();
        let scores = match mode {
            StepMode::StateOnly => Scores::default(),
            StepMode::Train | StepMode::Score => {
                Scores { positive: of(&batch.dst), negative: of(&batch.negative_dst) }
            }
        };
        self.observe(&batch.dst);
        Ok(scores)
    }

    fn score_candidates(
        &self,
        _src: NodeId,
        _time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError> {
        Ok(candidates.iter().map(|&dst| self.score(dst)).collect())
    }
}

impl Baseline for Popularity {
    fn forget(&mut self) {
        self.reset();
    }
}
