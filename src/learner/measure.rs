//! What the loop measures: quality on a batch before it is learned, the time of each phase.
//! Changes neither weights nor memory.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::step::{Taken, world};
use super::{BatchQuality, LearnBatch, Learner, LearnerOptions, QualityWindow};
use crate::device::exchange::Traffic;
use crate::event::NodeId;
use crate::feature::cache::GpuRowCounts;
use crate::model::RowReads;
use crate::sampler::{DeviceSampler, SampleCounts};
use crate::train::ranking::{average_precision, reciprocal_rank, roc_auc};
use crate::train::{PhaseSeconds, RankQuery, StepMode, StepReport, TrainError};

/// As many positives are ranked at once, in one pass: a pass for each took a tenth of the learner's time.
pub(super) const RANKS_AT_ONCE: usize = 8;

/// A window over as many batches as the settings say, and over as many ranked positives as those batches have.
pub(super) fn quality_window(options: &LearnerOptions) -> QualityWindow {
    let (batches, queries) = (options.quality_window_batches, options.rank_queries);
    QualityWindow::new(batches, batches.saturating_mul(queries) / queries.max(RANKS_AT_ONCE))
}

/// Seconds that a batch takes besides its step.
#[derive(Default)]
pub(super) struct BesideStep {
    /// To rank positives against candidates.
    pub rank: f64,
    /// To score the batch by EdgeBank, which may be beside the step.
    pub baseline: f64,
    /// To decide on weights, and to publish what was learned.
    pub publish: f64,
}

/// Does some work, and has the seconds that it took.
pub(super) fn timed<R>(seconds: &mut f64, work: impl FnOnce() -> R) -> R {
    let clock = Instant::now();
    let done = work();
    *seconds = clock.elapsed().as_secs_f64();
    done
}

impl Learner {
    /// Ranks a few positives of the prepared batch against candidates drawn like negatives, the true destination
    /// left out: in proportion to the events that are scored, those of several batches at once. Changes no state.
    /// `None` if nothing was ranked.
    pub(super) fn mean_reciprocal_rank(&mut self, batch: &LearnBatch) -> Result<Option<f64>, TrainError> {
        let (queries, due) = self.ranks_due();
        if queries == 0 {
            self.ranks_due = due;
            return Ok(None);
        }
        let stride = batch.edges.len() / queries.max(1);
        let mut ranked: Vec<(usize, Vec<NodeId>)> = Vec::new();
        let rivals = self.pool.rivals(&batch.src, &batch.dst);
        // In the middle of its stretch: the first events of a batch are those that memory is freshest for.
        for i in (0..queries).map(|query| query * stride + stride / 2) {
            let key = self.options.seed ^ 0x7261_6e6b;
            let mut candidates = rivals.of([key, batch.edges[i].0], i, self.options.rank_candidates);
            if !candidates.is_empty() {
                candidates.push(batch.dst[i]);
                ranked.push((i, candidates));
            }
        }
        let asked = ranked.len();
        let queries: Vec<RankQuery<'_>> = ranked
            .iter()
            .map(|(i, candidates)| RankQuery { src: batch.src[*i], time: batch.times[*i], candidates })
            .collect();
        let world = world(&self.shared.engine, (&self.node_rows, self.sampler.as_ref()), batch);
        let scores = self.trainer.score_queries(&world, &queries)?;
        // A failure above is retried. What nobody could be ranked against stays due, and does not add up.
        self.ranks_due = (due - asked as f64).clamp(0.0, RANKS_AT_ONCE.max(self.options.rank_queries) as f64);
        let rank = |scores: &Vec<f32>| {
            scores.split_last().map(|(positive, rivals)| reciprocal_rank(*positive, rivals))
        };
        let ranks: Vec<f64> = scores.iter().filter_map(rank).collect();
        #[allow(clippy::cast_precision_loss)] // a handful
        Ok((!ranks.is_empty()).then(|| ranks.iter().sum::<f64>() / ranks.len() as f64))
    }

    /// How many positives of the prepared batch are to be ranked, once so many are due, and what is due with all that
    /// was scored.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a handful
    fn ranks_due(&self) -> (usize, f64) {
        let scored = self.at_hand.prepared.scored().len();
        let per_event = self.options.rank_queries as f64 / self.options.batch_events.max(1) as f64;
        let due = self.ranks_due + per_event * scored as f64;
        let queries = (due + 1e-6) as usize;
        let enough = queries >= RANKS_AT_ONCE && self.options.rank_queries > 0;
        (if enough { queries.min(scored) } else { 0 }, due)
    }

    /// Adds what a step showed to the window, the metrics and the status.
    pub(super) fn measure(
        &mut self,
        batch: &LearnBatch,
        baseline: Option<f64>,
        report: &StepReport,
        mode: StepMode,
        mrr: Option<f64>,
    ) {
        self.count_cached_rows();
        self.count_row_reads();
        self.count_samples();
        let metrics = &self.shared.metrics;
        let events = batch.edges.len() as u64;
        let LearnerOptions { train, train_history, began_unix_ms, .. } = self.options;
        let trained = if mode == StepMode::Train { report.positive.len() as u64 } else { 0 };
        // Where weights are not to be trained, nothing is skipped.
        let trains = train && (train_history || !batch.is_history(began_unix_ms));
        let skipped = if trains { events - trained } else { 0 };
        metrics.train.skipped_events.inc_by(skipped);
        if mode == StepMode::StateOnly {
            metrics.train.steps.with_label_values(&["state_only"]).inc();
            self.shared.status.update(|report| {
                report.skipped += skipped;
                report.applied += events;
            });
            return;
        }
        if mode == StepMode::Score {
            metrics.train.steps.with_label_values(&["score"]).inc();
        }
        if mode == StepMode::Train {
            metrics.train.steps.with_label_values(&["train"]).inc();
            metrics.train.events.inc_by(trained);
            metrics.train.loss.set(f64::from(report.loss));
            metrics.train.learning_rate.set(f64::from(self.trainer.learning_rate()));
        }
        if let Some(baseline) = baseline
            && let Some(ap) = average_precision(&report.positive, &report.negative)
            && let Some(auc) = roc_auc(&report.positive, &report.negative)
        {
            self.quality.push(BatchQuality { average_precision: ap, auc, mrr, baseline });
        }
        let quality = self.quality.mean();
        if let Some(quality) = quality {
            metrics.eval.average_precision.set(quality.average_precision);
            metrics.eval.auc.set(quality.auc);
            quality.mrr.into_iter().for_each(|mrr| metrics.eval.mrr.set(mrr));
            metrics.eval.baseline_average_precision.with_label_values(&["edgebank"]).set(quality.baseline);
        }
        self.shared.status.update(|status| {
            status.trained += trained;
            status.skipped += skipped;
            status.applied += events;
            status.loss = Some(report.loss);
            status.quality = quality;
        });
    }

    /// Reports the cache of edge rows on a GPU, if there is one.
    fn count_cached_rows(&self) {
        let Some(counts) = self.trainer.cached_rows() else { return };
        let GpuRowCounts { hits, misses, bypassed, restored } = counts;
        let metric = &self.shared.metrics.device.row_cache_rows;
        let results =
            [("hit", hits), ("miss", misses - bypassed), ("bypassed", bypassed), ("restored", restored)];
        for (result, rows) in results {
            let counter = metric.with_label_values(&[result]);
            counter.inc_by(rows.saturating_sub(counter.get()));
        }
    }

    /// Reports where edge rows were read, if a GPU computes.
    fn count_row_reads(&self) {
        let Some(RowReads { on_device, on_host }) = self.trainer.row_reads() else { return };
        for (place, rows) in [("gpu", on_device), ("cpu", on_host)] {
            let counter = self.shared.metrics.device.edge_rows.with_label_values(&[place]);
            counter.inc_by(rows.saturating_sub(counter.get()));
        }
    }

    /// Reports where batches and scores were sampled, if a GPU was to.
    pub(super) fn count_samples(&self) {
        let Some(SampleCounts { on_device, on_cpu }) = self.sampler.as_ref().map(DeviceSampler::counts)
        else {
            return;
        };
        for (place, samples) in [("gpu", on_device), ("cpu", on_cpu)] {
            let counter = self.shared.metrics.device.samples.with_label_values(&[place]);
            counter.inc_by(samples.saturating_sub(counter.get()));
        }
    }

    /// Reports what this process has passed to those that train with it, and the time that took of the step in `mode`
    /// that was just taken, before which it had exchanged `before`.
    pub(super) fn count_exchanged(&mut self, before: Traffic, mode: StepMode) {
        let traffic = self.trainer.traffic();
        crate::metrics::mirror(&self.shared.metrics.train.exchanged_bytes, traffic.bytes);
        if traffic.rounds > before.rounds && mode != StepMode::StateOnly {
            let seconds = traffic.seconds - before.seconds;
            self.shared.metrics.train.step_duration.with_label_values(&["exchange"]).observe(seconds);
        }
    }

    /// Adds the phases of a step that scored to the metrics, with what took place beside it.
    pub(super) fn observe_phases(&self, taken: &Taken, beside: &BesideStep) {
        if taken.mode == StepMode::StateOnly {
            return;
        }
        let PhaseSeconds { sample, gather, forward, backward, optimizer, settle, memory } =
            taken.report.phases;
        let phases = [
            ("sample", sample),
            ("gather", gather),
            ("forward", forward),
            ("backward", backward),
            ("optimizer", optimizer),
            ("settle", settle),
            ("memory", memory),
            ("gate", taken.gate_seconds),
            ("rank", beside.rank),
            ("baseline", beside.baseline),
            ("publish", beside.publish),
        ];
        for (phase, seconds) in phases {
            self.shared.metrics.train.step_duration.with_label_values(&[phase]).observe(seconds);
        }
    }
}

/// Seconds since the Unix epoch.
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
