//! Test-then-train: one pass over the stream, in which every batch is scored with what was learned
//! before it, and then learned. Negatives are those of a learner ([`StreamNegatives`]).
//!
//! The last 15 % are the events of the published protocol's test part: a batch ends where they begin.

use std::time::Instant;

use super::learned::Sight;
use super::{Contender, EvaluationError, Progress, Scores, Stage, Watch};
use crate::train::StepMode;
use crate::train::edgebank::EdgeBank;
use crate::train::protocol::{Batch, Draw, Split};
use crate::train::ranking::{RankingMeter, RankingSummary};
use crate::train::stream::Stream;
use crate::train::stream_negatives::StreamNegatives;

/// Parts of equal event count that the curve over the stream has.
pub const DECILES: usize = 10;

/// Figures of one contender over a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct PrequentialFigures {
    /// Over all batches.
    pub all: RankingSummary,
    /// Over the events after the 0.85 quantile of time; `None` if there are none.
    pub last15: Option<RankingSummary>,
    /// Mean average precision over the batches that begin in each tenth of the events; `None` where
    /// none does.
    pub deciles: [Option<f64>; DECILES],
}

/// Figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct PrequentialReport {
    /// The contender.
    pub contender: PrequentialFigures,
    /// The baseline on the same batches and negatives, if one ran beside.
    pub baseline: Option<PrequentialFigures>,
    /// Events tested and trained on per second, the baseline not counted.
    pub events_per_second: f64,
}

#[derive(Default)]
struct Meters {
    all: RankingMeter,
    last15: RankingMeter,
    deciles: [RankingMeter; DECILES],
}

impl Meters {
    fn push(&mut self, scores: &Scores, decile: usize, in_last15: bool) {
        self.all.push(&scores.positive, &scores.negative);
        if let Some(meter) = self.deciles.get_mut(decile) {
            meter.push(&scores.positive, &scores.negative);
        }
        if in_last15 {
            self.last15.push(&scores.positive, &scores.negative);
        }
    }

    fn figures(&self) -> Result<PrequentialFigures, EvaluationError> {
        Ok(PrequentialFigures {
            all: self.all.summary().ok_or(EvaluationError::NothingScored { part: "whole" })?,
            last15: self.last15.summary(),
            deciles: std::array::from_fn(|i| self.deciles[i].average_precision()),
        })
    }
}

/// Runs `contender`, and `baseline` beside it, over the whole stream once. The baseline sees of a batch what the
/// contender's sight shows of it.
///
/// # Errors
/// When the stream is empty or the contender fails.
pub fn evaluate_prequential(
    stream: &Stream,
    contender: &mut dyn Contender,
    mut baseline: Option<(EdgeBank, Sight)>,
    batch_size: usize,
    (seed, met_share): (u64, f64),
    watch: &mut Watch<'_>,
) -> Result<PrequentialReport, EvaluationError> {
    let last15 = Split::by_quantiles(stream.times()).test;
    let seed = Draw::Prequential.seed(seed, 0);
    let (mut own, mut others) = (Meters::default(), Meters::default());
    let (mut batch, mut pool) = (Batch::default(), StreamNegatives::new());
    pool.keep_met(met_share > 0.0);
    let (mut start, mut number, mut seconds) = (0, 0, 0.0);
    while start < stream.len() {
        let mut end = (start + batch_size.max(1)).min(stream.len());
        if start < last15 {
            end = end.min(last15);
        }
        batch.load(stream, start..end);
        batch.negative_src.clone_from(&batch.src);
        pool.draw([seed, number], met_share, (&batch.src, &batch.dst), &mut batch.negative_dst);
        let decile = start * DECILES / stream.len();
        let clock = Instant::now();
        let scores = contender.take(&batch, StepMode::Train)?;
        seconds += clock.elapsed().as_secs_f64();
        own.push(&scores, decile, start >= last15);
        if let Some((bank, sight)) = &mut baseline {
            let scores = match sight {
                Sight::EarlierBatches => bank.take(&batch, StepMode::Train)?,
                Sight::WithinBatch => {
                    let (src, dst, other) = (&batch.src, &batch.dst, &batch.negative_dst);
                    let (positive, negative) = bank.score_in_time(src, dst, other, &batch.times);
                    Scores { positive, negative }
                }
            };
            others.push(&scores, decile, start >= last15);
        }
        pool.observe(&batch.src, &batch.dst, &[]);
        (start, number) = (end, number + 1);
        watch(&Progress {
            stage: Stage::Prequential,
            epoch: 0,
            done: start,
            total: stream.len(),
            average_precision: own.all.average_precision(),
        });
    }
    Ok(PrequentialReport {
        contender: own.figures()?,
        baseline: baseline.map(|_| others.figures()).transpose()?,
        events_per_second: stream.len() as f64 / seconds.max(f64::MIN_POSITIVE),
    })
}
