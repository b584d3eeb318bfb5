//! What evaluation asks of a model or baseline: [`Contender`], and [`Trainable`] for protocols with epochs;
//! [`Epoch`] is the training part as it is handed to them.

use std::slice::Chunks;
use std::time::Instant;

use super::{EvaluationError, Progress, Stage, Watch};
use crate::event::{EventTime, NodeId};
use crate::train::protocol::{Batch, NegativeSource};
use crate::train::ranking::RankingMeter;
use crate::train::stream::Stream;
use crate::train::{RankQuery, StepMode};

/// Scores of one batch: one positive and one negative per event, the higher the likelier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Scores of the events.
    pub positive: Vec<f32>,
    /// Scores of the negatives beside them.
    pub negative: Vec<f32>,
}

/// Something that scores events before it knows them.
pub trait Contender {
    /// Scores the positives and negatives of `batch` from the state before it, learns from them in
    /// [`StepMode::Train`], then takes in the positives. In [`StepMode::StateOnly`] there are no scores.
    ///
    /// # Errors
    /// When the contender can no longer score.
    fn take(&mut self, batch: &Batch, mode: StepMode) -> Result<Scores, EvaluationError>;

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

    /// The same for each of several queries. A contender that is faster asked at once has its own way.
    ///
    /// # Errors
    /// As [`Self::score_candidates`].
    fn score_queries(&self, queries: &[RankQuery<'_>]) -> Result<Vec<Vec<f32>>, EvaluationError> {
        queries.iter().map(|query| self.score_candidates(query.src, query.time, query.candidates)).collect()
    }
}

/// A contender that can go through a training part, more than once if it learns.
pub trait Trainable: Contender {
    /// Whether a second pass over the training part could change anything.
    const LEARNS: bool = true;

    /// What must be put back to be as before: weights and state.
    type Kept;

    /// Forgets the stream, as at the start of an epoch; what was learned stays.
    fn reset(&mut self);

    /// Learns from every batch of `epoch` in turn.
    ///
    /// # Errors
    /// When a step fails.
    fn train(&mut self, epoch: &mut Epoch<'_>) -> Result<(), EvaluationError> {
        let mut batch = Batch::default();
        while epoch.batches.load(&mut batch) {
            let clock = Instant::now();
            let scores = self.take(&batch, StepMode::Train)?;
            epoch.record.push(&scores.positive, &scores.negative, clock.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// What the contender is at this moment.
    fn keep(&self) -> Result<Self::Kept, EvaluationError>;

    /// Makes the contender what it was.
    ///
    /// # Errors
    /// When it was kept of another contender.
    fn restore(&mut self, kept: &Self::Kept) -> Result<(), EvaluationError>;
}

/// The training part of one epoch: where its batches come from, and what came of them.
pub struct Epoch<'a> {
    /// The batches.
    pub batches: EpochBatches<'a>,
    /// The scores.
    pub record: EpochRecord<'a>,
}

impl<'a> Epoch<'a> {
    pub(super) fn new(
        stream: &'a Stream,
        rows: &'a [usize],
        negatives: &'a NegativeSource,
        batch_size: usize,
        number: usize,
        watch: &'a mut Watch<'a>,
    ) -> Self {
        let chunks = rows.chunks(batch_size.max(1));
        Self {
            batches: EpochBatches { stream, chunks, negatives, number: 0, taken: 0 },
            record: EpochRecord {
                epoch: number,
                done: 0,
                total: rows.len(),
                meter: RankingMeter::default(),
                seconds: 0.0,
                watch,
            },
        }
    }
}

/// Hands out the batches of an epoch.
pub struct EpochBatches<'a> {
    stream: &'a Stream,
    chunks: Chunks<'a, usize>,
    negatives: &'a NegativeSource,
    number: usize,
    taken: usize,
}

impl EpochBatches<'_> {
    /// Fills `batch` with the next batch and its negatives; `false` when there is none.
    pub fn load(&mut self, batch: &mut Batch) -> bool {
        let Some(rows) = self.chunks.next() else { return false };
        batch.load(self.stream, rows.iter().copied());
        batch.load_negatives(self.negatives, self.number, self.taken);
        self.number += 1;
        self.taken += rows.len();
        true
    }
}

/// Collects what came of the batches of an epoch.
pub struct EpochRecord<'a> {
    epoch: usize,
    done: usize,
    total: usize,
    meter: RankingMeter,
    pub(super) seconds: f64,
    watch: &'a mut Watch<'a>,
}

impl EpochRecord<'_> {
    /// Takes in the scores of the next batch, which took `seconds`.
    pub fn push(&mut self, positive: &[f32], negative: &[f32], seconds: f64) {
        self.meter.push(positive, negative);
        self.done += positive.len();
        self.seconds += seconds;
        (self.watch)(&Progress {
            stage: Stage::Train,
            epoch: self.epoch,
            done: self.done,
            total: self.total,
            average_precision: self.meter.average_precision(),
        });
    }
}
