//! Evaluation runs: what is measured, and the loops that every contender shares.
//!
//! A [`Contender`] scores a batch from the state before it and then takes it in; one that is [`Trainable`]
//! also learns over epochs. [`dyglib`] is the published protocol of average precision, [`mrr`] ranks one
//! positive against many, [`node_label`] reads labels of nodes out of a frozen model, [`prequential`]
//! tests and then trains on every batch of a stream once. [`baseline`] and [`learned`] are the
//! contenders. Prints and reads nothing; the caller watches through a callback.

pub mod baseline;
mod candidates;
mod contender;
pub mod dyglib;
mod fit;
pub mod learned;
pub mod mrr;
pub mod node_label;
mod pass;
pub mod prequential;

pub use candidates::Candidates;
pub use contender::{Contender, Epoch, EpochBatches, EpochRecord, Scores, Trainable};
pub use fit::{EpochOptions, Fitted};
pub use pass::{Pass, PassReport};

use thiserror::Error;

use super::TrainError;
use super::protocol::ProtocolError;
use crate::feature::FeatureError;
use crate::graph::SpillError;
use crate::model::ModelError;

/// Why a run ended without figures.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The stream and the protocol do not match.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A training step failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The model and its weights do not match.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The stream's feature rows have different lengths.
    #[error(transparent)]
    Features(#[from] FeatureError),
    /// The graph cannot read back what it keeps on disk.
    #[error(transparent)]
    Graph(#[from] SpillError),
    /// No batch could be scored.
    #[error("no batch of the {part} part could be scored: it has no event")]
    NothingScored {
        /// Which part.
        part: &'static str,
    },
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Training on the training part.
    Train,
    /// Scoring the validation part.
    Validation,
    /// Scoring the test part.
    Test,
    /// Scoring the test events of new nodes.
    Inductive,
    /// Following the stream with what was learned.
    Encode,
    /// Testing and then training on each batch.
    Prequential,
}

/// Where a run stands.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// What it is doing.
    pub stage: Stage,
    /// Epoch, counted from 1; 0 outside of epochs.
    pub epoch: usize,
    /// Events of the stage done.
    pub done: usize,
    /// Events of the stage.
    pub total: usize,
    /// Mean over the stage's batches so far of average precision.
    pub average_precision: Option<f64>,
}

/// Called after every batch with the progress of the run.
pub type Watch<'a> = dyn FnMut(&Progress) + 'a;

#[cfg(test)]
mod tests {
    use super::dyglib::{PartNegatives, evaluate_dyglib};
    use super::learned::Sight;
    use super::prequential::evaluate_prequential;
    use super::*;
    use crate::event::{EventTime, NodeId};
    use crate::train::StepMode;
    use crate::train::edgebank::{BankRule, EdgeBank};
    use crate::train::protocol::{Batch, NegativeSource, Populations};
    use crate::train::stream::{Stream, of_events};

    fn stream(events: impl IntoIterator<Item = (i64, i64)>) -> Stream {
        of_events((0..).zip(events).map(|(time, (src, dst))| (src, dst, time)))
    }

    /// Knows the last event taken in; checks that it is never asked about an event it has taken in.
    #[derive(Default)]
    struct Recorder {
        observed: usize,
        batches: Vec<usize>,
        destinations: Vec<Vec<NodeId>>,
    }

    impl Contender for Recorder {
        fn take(&mut self, batch: &Batch, _: StepMode) -> Result<Scores, EvaluationError> {
            assert_eq!(batch.rows.first(), Some(&self.observed), "batches follow one another");
            self.observed += batch.rows.len();
            self.batches.push(batch.rows.len());
            self.destinations.push(batch.negative_dst.clone());
            Ok(Scores { positive: vec![1.0; batch.rows.len()], negative: vec![0.0; batch.rows.len()] })
        }

        fn score_candidates(
            &self,
            _: NodeId,
            _: EventTime,
            candidates: &[NodeId],
        ) -> Result<Vec<f32>, EvaluationError> {
            Ok(vec![0.5; candidates.len()])
        }
    }

    #[test]
    fn test_then_train_cuts_at_the_last_15_percent_and_draws_new_destinations_too() {
        let stream = stream((0..100).map(|t| (t % 3, 10 + t)));
        let mut recorder = Recorder::default();
        let mut done = Vec::new();
        let bank = Some((EdgeBank::new(BankRule::Unlimited), Sight::EarlierBatches));
        let report =
            evaluate_prequential(&stream, &mut recorder, bank, 30, (0, 0.0), &mut |p| done.push(p.done))
                .unwrap();
        // The 0.85 quantile of 0..=99 is 84.15: 85 events stand before the last part.
        assert_eq!(recorder.batches, [30, 30, 25, 15]);
        assert_eq!(done, [30, 60, 85, 100]);
        // Every destination is new, and so are almost all negatives: the last of a batch have none after them.
        for (drawn, [begin, end]) in
            recorder.destinations.iter().zip([[0, 30], [30, 60], [60, 85], [85, 100]])
        {
            let rows = drawn.iter().map(|node| stream.dst().iter().position(|dst| dst == node).unwrap());
            assert!(rows.clone().all(|row| row < end), "of a later batch");
            let new = rows.enumerate().filter(|(i, row)| *row > begin + i).count();
            assert!(new >= (end - begin) * 2 / 3, "{new} of {}", end - begin);
        }
        let own = &report.contender;
        assert_eq!((own.all.average_precision, own.all.events), (1.0, 100));
        assert_eq!(own.last15.map(|last| last.events), Some(15));
        assert_eq!(own.deciles.iter().flatten().count(), 4);
        let baseline = report.baseline.unwrap();
        assert!(baseline.all.average_precision <= 0.5, "no pair repeats");
    }

    #[test]
    fn a_constant_contender_ranks_in_the_middle() {
        let stream = stream((0..1000).map(|t| (t % 10, 10 + t * 7919 % 500)));
        let rows: Vec<usize> = (0..1000).collect();
        let negatives = NegativeSource::drawn(&stream, 0..1000, 1);
        let candidates = Candidates::drawn(&stream, 9, 0);
        let pass = Pass {
            stream: &stream,
            rows: &rows,
            negatives: &negatives,
            batch_size: 64,
            candidates: Some(&candidates),
            stage: Stage::Test,
            epoch: 0,
        };
        let report = pass.run(&mut Recorder::default(), &mut |_| ()).unwrap();
        let mrr = report.ranks.unwrap().mean_reciprocal_rank;
        // Nine candidates, now and then one fewer because it is the true destination.
        assert!((mrr - 2.0 / 11.0).abs() < 2e-3, "{mrr}");
        assert_eq!(report.ranking.batches, 16);
        let nothing = Pass { rows: &[], ..pass }.run(&mut Recorder::default(), &mut |_| ());
        assert!(matches!(nothing, Err(EvaluationError::NothingScored { part: "test" })));
    }

    #[test]
    fn bank_passes_are_repeatable_and_independent_of_each_other() {
        let stream = stream((0..600).map(|t| (t * 31 % 17, 100 + t * 53 % 23)));
        let populations = Populations::new(&stream, &[NodeId(0), NodeId(5)]).unwrap();
        let negatives = PartNegatives::drawn(&stream, &populations, 9);
        let run = |batch| {
            let mut bank = EdgeBank::new(BankRule::Unlimited);
            let options = EpochOptions { epochs: 3, batch_size: batch, met_share: 0.0, seed: 0 };
            evaluate_dyglib(&stream, &populations, &negatives, &mut bank, &options, None, &mut |_| ())
                .unwrap()
        };
        assert_eq!(run(50), run(50));
        let report = run(50);
        assert_eq!(report.test.ranking.events, populations.test().len());
        assert_eq!(report.inductive.unwrap().ranking.events, populations.inductive.len());
        assert_eq!(report.fitted.validation.ranking.events, populations.validation().len());
        assert_eq!((report.fitted.epochs, report.fitted.best_epoch), (0, 0), "nothing to learn");
    }
}
