//! One rolling pass over a part of the stream, in which every batch is scored from the state before it.

use super::{Candidates, Contender, EvaluationError, Progress, Stage, Watch};
use crate::train::StepMode;
use crate::train::protocol::{Batch, NegativeSource};
use crate::train::ranking::{RankMeter, RankSummary, RankingMeter, RankingSummary};
use crate::train::stream::Stream;

/// Figures of one rolling pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassReport {
    /// Average precision and ROC-AUC.
    pub ranking: RankingSummary,
    /// Ranks among candidates, if they were asked for.
    pub ranks: Option<RankSummary>,
}

/// One rolling pass over a part of the stream.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// Rows of the part, ascending.
    pub rows: &'a [usize],
    /// Its negatives.
    pub negatives: &'a NegativeSource,
    /// Events a batch, at least 1.
    pub batch_size: usize,
    /// Candidates that events are ranked among, if ranks are wanted.
    pub candidates: Option<&'a Candidates>,
    /// Which part it is.
    pub stage: Stage,
    /// Epoch, counted from 1; 0 outside of epochs.
    pub epoch: usize,
}

impl Pass<'_> {
    /// Lets `contender` score the part batch by batch, each from the state before it.
    ///
    /// # Errors
    /// When the contender fails or there is nothing to score.
    pub fn run(
        &self,
        contender: &mut dyn Contender,
        watch: &mut Watch<'_>,
    ) -> Result<PassReport, EvaluationError> {
        let (mut meter, mut ranks) = (RankingMeter::default(), RankMeter::default());
        self.each_batch(|batch, done| {
            if let Some(candidates) = self.candidates {
                candidates.rank(contender, batch, &mut ranks)?;
            }
            let scores = contender.take(batch, StepMode::Score)?;
            meter.push(&scores.positive, &scores.negative);
            watch(&self.progress(done, meter.average_precision()));
            Ok(())
        })?;
        let ranking = meter.summary().ok_or_else(|| self.nothing())?;
        Ok(PassReport { ranking, ranks: ranks.summary() })
    }

    /// Lets `contender` rank every event of the part among its candidates, batch by batch, each from the
    /// state before it, and take it in. The negatives beside the events are ignored.
    ///
    /// # Errors
    /// When the contender fails or there is nothing to rank.
    pub fn run_ranks(
        &self,
        contender: &mut dyn Contender,
        watch: &mut Watch<'_>,
    ) -> Result<RankSummary, EvaluationError> {
        let mut ranks = RankMeter::default();
        self.each_batch(|batch, done| {
            if let Some(candidates) = self.candidates {
                candidates.rank(contender, batch, &mut ranks)?;
            }
            contender.take(batch, StepMode::StateOnly)?;
            watch(&self.progress(done, None));
            Ok(())
        })?;
        ranks.summary().ok_or_else(|| self.nothing())
    }

    /// Calls `turn` with every batch and with the number of events up to its end.
    fn each_batch(
        &self,
        mut turn: impl FnMut(&Batch, usize) -> Result<(), EvaluationError>,
    ) -> Result<(), EvaluationError> {
        let (mut batch, mut done) = (Batch::default(), 0);
        for (number, rows) in self.rows.chunks(self.batch_size.max(1)).enumerate() {
            batch.load(self.stream, rows.iter().copied());
            batch.load_negatives(self.negatives, number, done);
            done += rows.len();
            turn(&batch, done)?;
        }
        Ok(())
    }

    fn progress(&self, done: usize, average_precision: Option<f64>) -> Progress {
        Progress { stage: self.stage, epoch: self.epoch, done, total: self.rows.len(), average_precision }
    }

    fn nothing(&self) -> EvaluationError {
        let part = match self.stage {
            Stage::Validation => "validation",
            Stage::Inductive => "inductive",
            _ => "test",
        };
        EvaluationError::NothingScored { part }
    }
}
