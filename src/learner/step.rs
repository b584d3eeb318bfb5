//! One batch of the loop: how much of a step it gets, its negatives, what it reads, and the step itself.
//!
//! Everything that storage can fail comes first and changes nothing, so such a batch is simply retried.
//!
//! While the loop is behind, the next batch is known: it is sampled beside the step, and its rows are announced, so
//! that the disk reads them meanwhile. It sees the same graph as it would at its turn. If it is sampled while the GPU
//! computes the step, its own step is recorded then, for the GPU to go on with one launch; or, where steps are not
//! recorded ahead, it is decided which of its edge rows the GPU brings in behind the step.

use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::ahead::{Baseline, Next, Preparation};
use super::pace::{Choice, Lag};
use super::{Gate, LearnBatch, Learner, LearnerError, LearnerOptions, Predicted};
use crate::device::Device;
use crate::event::{EdgeId, NodeId};
use crate::feature::FeatureStore;
use crate::log::LogError;
use crate::metrics::Metrics;
use crate::sampler::DeviceSampler;
use crate::serving::QueryEngine;
use crate::train::edgebank::EdgeBank;
use crate::train::ranking::average_precision;
use crate::train::{
    GetReady, Meanwhile, Negatives, Positives, PreparedBatch, Preparer, StepMode, StepReport,
    StreamNegatives, TrainError, Trainer, World,
};

/// How long the sample of the next batch is waited for before the GPU is asked whether it still computes.
const SAMPLE_WAIT: Duration = Duration::from_micros(50);

/// A step that was taken.
pub(super) struct Taken {
    pub report: StepReport,
    /// How much of it was done.
    pub mode: StepMode,
    /// How well the published version and the anchor predicted the batch before it was learned, if evaluated.
    pub rivals: Option<[Option<Predicted>; 2]>,
    /// Seconds that the evaluation took.
    pub gate_seconds: f64,
}

impl Learner {
    /// How much of a step a batch gets that ends `behind` records before what is indexed. It is decided once.
    pub(super) fn decide(&mut self, batch: &LearnBatch, behind: u64) -> Choice {
        let Self { at_hand: Preparation { decided, .. }, share, options, shared, .. } = self;
        let lag = || Lag { waited: shared.progress.waited(batch.first), behind };
        decided.get_or_insert_with(|| Choice::of(batch, lag(), share, options)).clone()
    }

    /// One random destination per edge: those that the batch was sampled with, if it was.
    pub(super) fn negatives(&mut self, batch: &LearnBatch) -> Vec<NodeId> {
        let drawn = &mut self.at_hand.negatives;
        drawn.get_or_insert_with(|| negatives(&self.options, &self.pool, batch)).clone()
    }

    /// Takes the destinations of a batch into those that later negatives are drawn from.
    pub(super) fn observe_destinations(&mut self, batch: &LearnBatch) {
        batch.show_destinations(&mut self.pool);
        self.pool.remove(&batch.deleted);
    }

    /// Gets the batch after the one that was learned last: the one that was fetched ahead, or what the feed has.
    pub(super) fn fetch(&mut self, batch: &mut LearnBatch, idle: Duration) -> Result<(), LogError> {
        self.at_hand.begin_anew();
        if std::mem::take(&mut self.ahead.filled) {
            std::mem::swap(batch, &mut self.ahead.batch);
            std::mem::swap(&mut self.at_hand, &mut self.ahead.preparation);
            return Ok(());
        }
        self.feed.fill(batch, self.options.batch_events, idle, self.options.batch_wait)
    }

    /// Reads all that the step of `batch` will need.
    pub(super) fn prepare(
        &mut self,
        batch: &LearnBatch,
        negatives: &[NodeId],
        choice: &Choice,
    ) -> Result<(), TrainError> {
        let preparer = self.trainer.preparer().publishing();
        let world = world(&self.shared.engine, (&self.node_rows, self.sampler.as_ref()), batch);
        let mailbox = &self.trainer.state().mailbox;
        let Preparation { prepared, sampled, .. } = &mut self.at_hand;
        let is_sampled = *sampled && prepared.mode() == choice.mode;
        if is_sampled && self.trainer.is_ready(prepared) {
            return Ok(());
        }
        if choice.mode == StepMode::Train {
            self.trainer.step_begins();
        }
        if !(is_sampled && self.trainer.can_read_sample(prepared)) {
            sample(&preparer, &world, batch, negatives, choice, prepared)?;
            *sampled = true;
        }
        preparer.expect(|node| mailbox.pending_event(node), prepared);
        preparer.gather(&world, prepared)
    }

    /// The step of the prepared `batch`, and EdgeBank's scores of it, if they are not known. If `behind` more records
    /// fill a batch, that one is sampled beside the step, and EdgeBank scores there too.
    pub(super) fn step(
        &mut self,
        batch: &LearnBatch,
        negatives: &[NodeId],
        behind: u64,
    ) -> Result<Taken, LearnerError> {
        // A replay or a deletion comes between this step and the next one otherwise.
        let is_followed = batch.deleted.is_empty() && self.replays_due(batch, behind, 1) == 0;
        let Self { bank, trainer, shared, options, gate, .. } = self;
        let Preparation { prepared, baseline: known, .. } = &mut self.at_hand;
        let prepared = &*prepared;
        let preparer = trainer.preparer().publishing();
        let (in_time, on_gpu) = (trainer.model().needs().fanout > 0, *trainer.device() != Device::Cpu);
        let mut measure = || {
            known.get_or_insert_with(|| baseline(bank, batch, (prepared.scored(), negatives), in_time));
        };
        let mut step = |meanwhile: Meanwhile<'_>| {
            take_step(trainer, gate.as_ref(), &shared.metrics, (prepared, meanwhile), batch.first)
        };
        let is_next_known = behind >= options.batch_events as u64 && !self.ahead.filled;
        let Some(helper) = self.helper.as_ref().filter(|_| is_next_known) else {
            measure();
            return Ok(step(Meanwhile::default())?);
        };
        let (feed, share, ahead) = (&mut self.feed, &mut self.share, &mut self.ahead);
        let (pool, node_rows, sampler) = (&self.pool, &self.node_rows, self.sampler.as_ref());
        let next = Next { feed, share, pool, node_rows, sampler, shared, options, preparer: &preparer };
        let (sender, sampled) = bounded::<(&LearnBatch, &mut Preparation)>(1);
        let prepare_next = || {
            let (sampled, sender) = (next.fetch_and_sample(ahead), sender);
            // Nobody takes it where the step is over.
            let sampled = sampled.map(|next| next.map(|next| drop(sender.send(next))));
            measure();
            sampled
        };
        let mut get_ready = |trainer: &mut Trainer| {
            let (batch, next) = loop {
                match sampled.recv_timeout(SAMPLE_WAIT) {
                    Ok(sampled) => break sampled,
                    Err(RecvTimeoutError::Timeout) if trainer.is_computing() => {}
                    Err(_) => return None,
                }
            };
            let world = world(&shared.engine, (node_rows, sampler), batch);
            if is_followed {
                return next.get_ready(trainer, (&preparer, &world), prepared);
            }
            next.foresee(trainer, &preparer, (&[prepared], world.edge_features));
            None
        };
        let get_ready: Option<GetReady<'_>> = if on_gpu { Some(&mut get_ready) } else { None };
        let meanwhile = Meanwhile::getting_ready(get_ready);
        let (prepared_next, stepped, _) = helper.beside(prepare_next, || step(meanwhile));
        if let (Err(_), Err(error)) = (&prepared_next, &stepped) {
            tracing::error!(%error, "the step failed too");
        }
        // First what ends the loop: a feed that failed midway must not be asked again.
        prepared_next?;
        Ok(stepped?)
    }
}

/// One destination per edge of the batch.
pub(super) fn negatives(options: &LearnerOptions, pool: &StreamNegatives, batch: &LearnBatch) -> Vec<NodeId> {
    let mut drawn = Vec::new();
    let (key, pairs) = ([options.seed, batch.first.0], (&batch.src[..], &batch.dst[..]));
    pool.draw(key, options.met_share, pairs, &mut drawn);
    drawn
}

/// Average precision of EdgeBank on the events of a batch that are `scored`. It sees what the model sees: earlier
/// batches, and of this one the events strictly before the one that is scored, if the model samples neighbors in time.
/// Afterwards it has seen the batch.
fn baseline(
    bank: &mut EdgeBank,
    batch: &LearnBatch,
    (scored, negatives): (&[u32], &[NodeId]),
    in_time: bool,
) -> Baseline {
    let (clock, LearnBatch { src, dst, times, .. }) = (Instant::now(), batch);
    let average_precision = if scored.is_empty() {
        bank.observe(src, dst, times);
        None
    } else {
        let (positive, negative) = if in_time {
            bank.score_in_time(src, dst, negatives, times)
        } else {
            let scores = (bank.scores(src, dst), bank.scores(src, negatives));
            bank.observe(src, dst, times);
            scores
        };
        let of_scored =
            |scores: &[f32]| scored.iter().map(|&place| scores[place as usize]).collect::<Vec<f32>>();
        average_precision(&of_scored(&positive), &of_scored(&negative))
    };
    Baseline { average_precision, seconds: clock.elapsed().as_secs_f64() }
}

/// Samples `batch` in the view that it gets.
///
/// # Errors
/// Storage failed.
pub(super) fn sample(
    preparer: &Preparer,
    world: &World<'_>,
    batch: &LearnBatch,
    negatives: &[NodeId],
    choice: &Choice,
    into: &mut PreparedBatch,
) -> Result<(), TrainError> {
    let preparer = preparer.clone().scoring(choice.scored.clone());
    let positives = Positives { src: &batch.src, dst: &batch.dst, times: &batch.times, edges: &batch.edges };
    let negatives = Negatives { src: &batch.src, dst: negatives };
    preparer.sample(world, &positives, &negatives, choice.mode, into)
}

/// The trainer's step, with the scores of readers; one whose numbers are not finite becomes a state-only update.
fn take_step(
    trainer: &mut Trainer,
    gate: Option<&Gate>,
    metrics: &Metrics,
    (batch, meanwhile): (&PreparedBatch, Meanwhile<'_>),
    first: EdgeId,
) -> Result<Taken, TrainError> {
    let mode = batch.mode();
    let clock = Instant::now();
    let rivals = match gate.filter(|_| mode == StepMode::Train) {
        Some(gate) => gate.rivals(trainer, batch)?,
        None => None,
    };
    let gate_seconds = clock.elapsed().as_secs_f64();
    match trainer.test_and_step_while(batch, meanwhile) {
        Err(error @ TrainError::NonFinite { .. }) => {
            metrics.train.nonfinite.inc();
            tracing::warn!(%error, position = first.0, "a gradient step was skipped");
            Ok(Taken { report: StepReport::default(), mode: StepMode::StateOnly, rivals, gate_seconds })
        }
        done => {
            let report = done?;
            if report.refused_rows > 0 {
                metrics.train.nonfinite.inc();
                let (rows, position) = (report.refused_rows, first.0);
                tracing::warn!(
                    rows,
                    position,
                    "node memory with NaN or infinite values was discarded; those nodes keep what they had"
                );
            }
            Ok(Taken { report, mode, rivals, gate_seconds })
        }
    }
}

/// What a step or a score of `batch` may see: everything before its end that retention keeps, and rows of nodes as of
/// the learner's cursor.
pub(super) fn world<'a>(
    engine: &'a QueryEngine,
    (node_features, sampler): (&'a FeatureStore, Option<&'a DeviceSampler>),
    batch: &LearnBatch,
) -> World<'a> {
    let view =
        engine.stores.graph.view_at(batch.end).keeping(batch.kept.since).with_rows_from(batch.kept.first);
    let world = engine.stores.world(view);
    World { node_features, sampler, ..world }
}
