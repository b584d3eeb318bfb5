//! Evaluation runs: what is measured, and the loop they share, which scores a batch from the state
//! before it and then lets the contender take it in.
//!
//! [`bank`] runs the EdgeBank baseline under the published protocol, [`learned`] a trained model, and
//! [`prequential`] tests and then trains on every batch of a stream once. Prints and reads nothing;
//! the caller watches through a callback.

pub mod bank;
pub mod learned;
pub mod prequential;

use thiserror::Error;

use super::TrainError;
use super::edgebank::EdgeBank;
use super::negative::DestinationPool;
use super::protocol::{Batch, Draw, NegativeSource, Populations, ProtocolError};
use super::ranking::{RankingMeter, RankingSummary, reciprocal_rank};
use super::stream::Stream;
use crate::event::{EventTime, NodeId};
use crate::feature::FeatureError;
use crate::graph::SpillError;
use crate::model::ModelError;

/// Why a run ended without figures.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// The stream and the protocol do not go together.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A training step failed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The model and its weights do not go together.
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

/// Hears after every batch where the run stands.
pub type Watch<'a> = dyn FnMut(&Progress) + 'a;

/// Scores of one batch: one positive and one negative per event, the higher the likelier.
pub struct Scores {
    /// Scores of the events.
    pub positive: Vec<f32>,
    /// Scores of the negatives beside them.
    pub negative: Vec<f32>,
}

/// Something that scores events before it knows them.
pub trait Contender {
    /// Scores the positives and negatives of `batch` from the state before it, then takes in its
    /// positives.
    ///
    /// # Errors
    /// When the contender can no longer score.
    fn score_then_observe(&mut self, batch: &Batch) -> Result<Scores, EvaluationError>;

    /// Scores an event from `src` to each of `candidates` at `time`; changes nothing.
    ///
    /// # Errors
    /// When the contender cannot read what it scores by.
    fn score_candidates(
        &self,
        src: NodeId,
        time: EventTime,
        candidates: &[NodeId],
    ) -> Result<Vec<f32>, EvaluationError>;
}

impl Contender for EdgeBank {
    fn score_then_observe(&mut self, batch: &Batch) -> Result<Scores, EvaluationError> {
        let positive = self.scores(&batch.src, &batch.dst);
        let negative = self.scores(&batch.negative_src, &batch.negative_dst);
        self.observe(&batch.src, &batch.dst, &batch.times);
        Ok(Scores { positive, negative })
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

/// Figures of one rolling pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassReport {
    /// Average precision and ROC-AUC.
    pub ranking: RankingSummary,
    /// Mean reciprocal rank among drawn candidates, if it was asked for.
    pub mean_reciprocal_rank: Option<f64>,
}

/// Figures under the published protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StaticReport {
    /// The validation part, at the epoch that was chosen.
    pub validation: PassReport,
    /// The test part: all of its events.
    pub test: PassReport,
    /// Test events of new nodes; `None` if there are none.
    pub inductive: Option<PassReport>,
    /// Epochs trained; 0 for a contender that is not trained.
    pub epochs: usize,
    /// The epoch with the highest validation average precision, counted from 1; 0 if there was none.
    pub best_epoch: usize,
    /// Events trained on per second of training time, all epochs together.
    pub train_events_per_second: Option<f64>,
}

/// The negatives of each part that is scored.
pub struct PartNegatives {
    /// Of the validation part.
    pub validation: NegativeSource,
    /// Of the test part.
    pub test: NegativeSource,
    /// Of the inductive test.
    pub inductive: NegativeSource,
}

impl PartNegatives {
    /// Negatives drawn by `seed`: from all distinct destinations of the stream, and for the inductive
    /// test from the destinations of its events.
    #[must_use]
    pub fn drawn(stream: &Stream, populations: &Populations, seed: u64) -> Self {
        let all = |draw: Draw| NegativeSource::drawn(stream, 0..stream.len(), draw.seed(seed, 0));
        let subset = populations.inductive.iter().copied();
        Self {
            validation: all(Draw::Validation),
            test: all(Draw::Test),
            inductive: NegativeSource::drawn(stream, subset, Draw::Inductive.seed(seed, 0)),
        }
    }
}

/// One rolling pass over a part of the stream.
pub struct Pass<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// Rows of the part, ascending.
    pub rows: &'a [usize],
    /// Its negatives.
    pub negatives: &'a NegativeSource,
    /// Events a batch, at least 1.
    pub batch_size: usize,
    /// Candidates for the mean reciprocal rank, if it is wanted.
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
        let (mut batch, mut meter, mut ranks) = (Batch::default(), RankingMeter::default(), 0.0);
        let mut done = 0;
        for (number, rows) in self.rows.chunks(self.batch_size.max(1)).enumerate() {
            batch.load(self.stream, rows.iter().copied());
            batch.load_negatives(self.negatives, number, done);
            if let Some(candidates) = self.candidates {
                ranks += candidates.reciprocal_ranks(contender, &batch)?;
            }
            let scores = contender.score_then_observe(&batch)?;
            meter.push(&scores.positive, &scores.negative);
            done += rows.len();
            watch(&Progress {
                stage: self.stage,
                epoch: self.epoch,
                done,
                total: self.rows.len(),
                average_precision: meter.average_precision(),
            });
        }
        let part = match self.stage {
            Stage::Validation => "validation",
            Stage::Inductive => "inductive",
            _ => "test",
        };
        let ranking = meter.summary().ok_or(EvaluationError::NothingScored { part })?;
        let mean_reciprocal_rank = self.candidates.map(|_| ranks / self.rows.len() as f64);
        Ok(PassReport { ranking, mean_reciprocal_rank })
    }
}

/// Draws the destinations that an event's true destination is ranked among.
#[derive(Debug)]
pub struct Candidates {
    pool: DestinationPool,
    count: usize,
    seed: u64,
}

impl Candidates {
    /// `count` candidates per event, drawn by `seed` uniformly from the distinct destinations of the
    /// stream.
    #[must_use]
    pub fn new(stream: &Stream, count: usize, seed: u64) -> Self {
        let mut pool = DestinationPool::new();
        pool.extend(stream.dst());
        Self { pool, count, seed: Draw::Candidates.seed(seed, 0) }
    }

    /// Sum of the reciprocal ranks of the batch's events, scored from the state before the batch.
    fn reciprocal_ranks(&self, contender: &dyn Contender, batch: &Batch) -> Result<f64, EvaluationError> {
        let (mut sum, mut drawn, mut asked) = (0.0, Vec::new(), Vec::new());
        for (((&row, &src), &dst), &time) in
            batch.rows.iter().zip(&batch.src).zip(&batch.dst).zip(&batch.times)
        {
            self.pool.draw(self.seed, row as u64, self.count, &mut drawn);
            asked.clear();
            asked.push(dst);
            asked.extend(drawn.iter().filter(|&&other| other != dst));
            let scores = contender.score_candidates(src, time, &asked)?;
            if let Some((&positive, others)) = scores.split_first() {
                sum += reciprocal_rank(positive, others);
            }
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::prequential::evaluate_prequential;
    use super::*;
    use crate::event::{EdgeEvent, NodeKey};
    use crate::train::edgebank::BankRule;
    use crate::train::stream::StreamBuilder;

    fn stream(events: impl IntoIterator<Item = (i64, i64)>) -> Stream {
        let mut builder = StreamBuilder::new();
        for (time, (src, dst)) in events.into_iter().enumerate() {
            builder.push(&EdgeEvent {
                src: NodeKey::Int(src),
                dst: NodeKey::Int(dst),
                time: EventTime(time as i64),
                edge_type: None,
                features: vec![],
                label: None,
            });
        }
        builder.finish()
    }

    /// Knows the last event taken in; checks that it is never asked about an event it has taken in.
    #[derive(Default)]
    struct Recorder {
        observed: usize,
        batches: Vec<usize>,
        destinations: Vec<Vec<NodeId>>,
    }

    impl Contender for Recorder {
        fn score_then_observe(&mut self, batch: &Batch) -> Result<Scores, EvaluationError> {
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
    fn test_then_train_cuts_at_the_last_15_percent_and_draws_what_was_seen() {
        let stream = stream((0..100).map(|t| (t % 3, 10 + t)));
        let mut recorder = Recorder::default();
        let mut done = Vec::new();
        let bank = Some(EdgeBank::new(BankRule::Unlimited));
        let report =
            evaluate_prequential(&stream, &mut recorder, bank, 30, 0, &mut |p| done.push(p.done)).unwrap();
        // The 0.85 quantile of 0..=99 is 84.15: 85 events stand before the last part.
        assert_eq!(recorder.batches, [30, 30, 25, 15]);
        assert_eq!(done, [30, 60, 85, 100]);
        // The first batch draws from its own 30 events, each other from what stood before it.
        for (drawn, seen) in recorder.destinations.iter().zip([30, 30, 60, 85]) {
            for node in drawn {
                let row = stream.dst().iter().position(|dst| dst == node).unwrap();
                assert!(row < seen, "row {row} was drawn with {seen} seen");
            }
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
        let candidates = Candidates::new(&stream, 9, 0);
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
        let mrr = report.mean_reciprocal_rank.unwrap();
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
            let rule = BankRule::Unlimited;
            bank::evaluate_bank(&stream, &populations, &negatives, rule, batch, None, &mut |_| ()).unwrap()
        };
        assert_eq!(run(50), run(50));
        let report = run(50);
        assert_eq!(report.test.ranking.events, populations.test().len());
        assert_eq!(report.inductive.unwrap().ranking.events, populations.inductive.len());
        assert_eq!(report.validation.ranking.events, populations.validation().len());
    }
}
