//! One batch of the loop: how much of a step it gets, its negatives, what it reads, and the step itself.
//!
//! Everything that storage can fail comes first and changes nothing, so such a batch is simply retried.
//!
//! While the loop is behind, the next batch is known: it is sampled beside the step, and its rows are announced, so
//! that the disk reads them meanwhile. It sees the same graph as it would at its turn.

use std::time::{Duration, Instant};

use super::gpu::follow;
use super::pace::{Choice, Lag};
use super::{Gate, LearnBatch, Learner, LearnerError, LearnerOptions, Predicted};
use crate::event::{EdgeId, NodeId};
use crate::feature::FeatureStore;
use crate::log::LogError;
use crate::metrics::Metrics;
use crate::sampler::DeviceSampler;
use crate::serving::QueryEngine;
use crate::train::{
    Negatives, Positives, PreparedBatch, Preparer, StepMode, StepReport, StreamNegatives, TrainError,
    Trainer, World,
};

/// The batch after the current one.
#[derive(Default)]
pub(super) struct Ahead {
    pub batch: LearnBatch,
    /// Its sample, if `sampled`.
    pub prepared: PreparedBatch,
    /// Whether the feed has handed it out.
    pub filled: bool,
    /// How much of a step it will get.
    pub decided: Option<Choice>,
    pub sampled: bool,
}

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
        let Self { decided, share, options, shared, .. } = self;
        let lag = || Lag { waited: shared.progress.waited(batch.first), behind };
        decided.get_or_insert_with(|| Choice::of(batch, lag(), share, options)).clone()
    }

    /// One random destination per edge.
    pub(super) fn negatives(&self, batch: &LearnBatch) -> Vec<NodeId> {
        negatives(&self.options, &self.pool, batch)
    }

    /// Takes the destinations of a batch into those that later negatives are drawn from.
    pub(super) fn observe_destinations(&mut self, batch: &LearnBatch) {
        batch.show_destinations(&mut self.pool);
        self.pool.remove(&batch.deleted);
    }

    /// Gets the batch after the one that was learned last: the one that was fetched ahead, or what the feed has.
    pub(super) fn fetch(&mut self, batch: &mut LearnBatch, idle: Duration) -> Result<(), LogError> {
        (self.decided, self.sampled) = (self.ahead.decided.take(), std::mem::take(&mut self.ahead.sampled));
        if std::mem::take(&mut self.ahead.filled) {
            std::mem::swap(batch, &mut self.ahead.batch);
            std::mem::swap(&mut self.prepared, &mut self.ahead.prepared);
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
        if !(self.sampled && self.prepared.mode() == choice.mode) {
            sample(&preparer, &world, batch, negatives, choice, &mut self.prepared)?;
            self.sampled = true;
        }
        preparer.expect(|node| mailbox.pending_event(node), &mut self.prepared);
        preparer.gather(&world, &mut self.prepared)
    }

    /// The step of the prepared batch, which begins at `first`. If `behind` more records fill a batch, that one is
    /// sampled beside the step.
    pub(super) fn step(&mut self, first: EdgeId, behind: u64) -> Result<Taken, LearnerError> {
        let Self {
            trainer,
            shared,
            options,
            feed,
            pool,
            node_rows,
            sampler,
            prepared,
            ahead,
            helper,
            gate,
            share,
            ..
        } = self;
        let sampler = sampler.as_ref();
        let preparer = trainer.preparer().publishing();
        let mut step = || take_step(trainer, gate.as_ref(), &shared.metrics, prepared, first);
        let known = behind >= options.batch_events as u64 && !ahead.filled;
        let Some(helper) = helper.as_ref().filter(|_| known) else { return Ok(step()?) };
        let (engine, progress) = (&shared.engine, &shared.progress);
        let prepare_next = || {
            let none = Duration::ZERO;
            feed.fill(&mut ahead.batch, options.batch_events, none, none)?;
            let batch = &ahead.batch;
            ahead.filled = batch.end > batch.first;
            follow(sampler, &engine.stores.graph, batch);
            if batch.edges.is_empty() {
                return Ok(());
            }
            let behind = progress.indexed().0.saturating_sub(batch.end.0);
            let lag = Lag { waited: progress.waited(batch.first), behind };
            let choice = ahead.decided.insert(Choice::of(batch, lag, share, options));
            // Rows of nodes are gathered at the batch's turn.
            let (world, against) =
                (world(engine, (node_rows, sampler), batch), negatives(options, pool, batch));
            // A failure here is retried, and reported, at the batch's turn.
            ahead.sampled = sample(&preparer, &world, batch, &against, choice, &mut ahead.prepared).is_ok();
            if ahead.sampled {
                preparer.announce(&world, &mut ahead.prepared);
            }
            Ok::<(), LogError>(())
        };
        let (prepared_next, stepped, _) = helper.beside(prepare_next, step);
        let stepped = stepped?;
        prepared_next?;
        Ok(stepped)
    }
}

/// One destination per edge of the batch.
fn negatives(options: &LearnerOptions, pool: &StreamNegatives, batch: &LearnBatch) -> Vec<NodeId> {
    let mut drawn = Vec::new();
    let (key, pairs) = ([options.seed, batch.first.0], (&batch.src[..], &batch.dst[..]));
    pool.draw(key, options.met_share, pairs, &mut drawn);
    drawn
}

fn sample(
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
    batch: &PreparedBatch,
    first: EdgeId,
) -> Result<Taken, TrainError> {
    let mode = batch.mode();
    let clock = Instant::now();
    let rivals = match gate.filter(|_| mode == StepMode::Train) {
        Some(gate) => gate.rivals(trainer, batch)?,
        None => None,
    };
    let gate_seconds = clock.elapsed().as_secs_f64();
    match trainer.test_and_step(batch) {
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
                tracing::warn!(rows, position, "memory that is not finite was refused; nodes keep theirs");
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
