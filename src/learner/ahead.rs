//! The batch after the one at hand: how it is fetched and sampled while that has its step.

use std::time::{Duration, Instant};

use super::gpu::follow;
use super::pace::{Choice, Lag};
use super::step::{negatives, sample, world};
use super::{Feed, LearnBatch, LearnerOptions, Shared};
use crate::event::NodeId;
use crate::feature::FeatureStore;
use crate::log::LogError;
use crate::sampler::DeviceSampler;
use crate::train::share::Share;
use crate::train::{PreparedBatch, Preparer, StepMode, StreamNegatives, Trainer, World};

/// What is known of a batch before its step.
#[derive(Default)]
pub(super) struct Preparation {
    /// Its sample, if `sampled`, and what that reads.
    pub prepared: PreparedBatch,
    pub sampled: bool,
    /// Its negatives, if they are drawn.
    pub negatives: Option<Vec<NodeId>>,
    /// How much of a step it gets, once that is decided.
    pub decided: Option<Choice>,
    /// Whether the GPU that trains knows which edge rows it will read.
    pub foreseen: bool,
    /// Whether later negatives are drawn from its destinations.
    pub observed: bool,
    /// EdgeBank's scores of it, which has seen it then.
    pub baseline: Option<Baseline>,
}

impl Preparation {
    /// Of another batch, of which nothing is known.
    pub fn begin_anew(&mut self) {
        let prepared = std::mem::take(&mut self.prepared);
        *self = Self { prepared, ..Self::default() };
    }

    /// Gathers what the batch reads, if its step can be recorded while the GPU computes that of the batch `before` it,
    /// and no disk has to be waited for, which readers would wait for too; if not, has the GPU know which edge rows it
    /// will read. Returns it where it is ready, and the seconds that this took.
    pub fn get_ready(
        &mut self,
        trainer: &mut Trainer,
        (preparer, world): (&Preparer, &World<'_>),
        before: &PreparedBatch,
    ) -> Option<(&PreparedBatch, f64)> {
        let (clock, batch) = (Instant::now(), &mut self.prepared);
        // Rows of nodes are those of the batch's turn.
        let is_free = trainer.model().needs().node_feature_dim == 0 && !batch.waits_for_disk();
        if batch.mode() == StepMode::Train && is_free && trainer.looks_ahead() {
            preparer.expect_behind(&[before], &trainer.state().mailbox, batch);
            // What fails is met again, and reported, at the batch's turn.
            let _ = preparer.gather(world, batch);
        }
        if !self.prepared.has_rows() {
            self.foresee(trainer, preparer, (&[before], world.edge_features));
            return None;
        }
        Some((&self.prepared, clock.elapsed().as_secs_f64()))
    }

    /// Has the GPU that trains know which edge rows the batch will read, behind the steps of the batches `before` it
    /// that are not over.
    pub fn foresee(
        &mut self,
        trainer: &mut Trainer,
        preparer: &Preparer,
        (before, edge_rows): (&[&PreparedBatch], &FeatureStore),
    ) {
        // What is gathered was expected behind the same steps.
        if !self.prepared.has_rows() {
            preparer.expect_behind(before, &trainer.state().mailbox, &mut self.prepared);
        }
        trainer.foresee(edge_rows, &self.prepared);
        self.foreseen = true;
    }
}

/// EdgeBank on the batch at hand.
#[derive(Clone, Copy)]
pub(super) struct Baseline {
    /// Its average precision, if any event is scored.
    pub average_precision: Option<f64>,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The batch after the current one.
#[derive(Default)]
pub(super) struct Ahead {
    pub batch: LearnBatch,
    /// Whether the feed has handed it out.
    pub filled: bool,
    pub preparation: Preparation,
}

/// What fetching and sampling the next batch needs.
pub(super) struct Next<'a> {
    pub feed: &'a mut Feed,
    pub share: &'a mut Share,
    pub pool: &'a StreamNegatives,
    pub node_rows: &'a FeatureStore,
    pub sampler: Option<&'a DeviceSampler>,
    pub shared: &'a Shared,
    pub options: &'a LearnerOptions,
    pub preparer: &'a Preparer,
}

impl Next<'_> {
    /// Fetches the next batch, if there is one by now, samples it and announces its rows. Returns it if that went well.
    ///
    /// # Errors
    /// The log cannot be read. Another failure is met again, and reported, at the batch's turn.
    pub fn fetch_and_sample(
        self,
        ahead: &mut Ahead,
    ) -> Result<Option<(&LearnBatch, &mut Preparation)>, LogError> {
        let Self { feed, share, pool, node_rows, sampler, shared, options, preparer } = self;
        let (engine, progress) = (&shared.engine, &shared.progress);
        let Ahead { batch, filled, preparation } = ahead;
        feed.fill(batch, options.batch_events, Duration::ZERO, Duration::ZERO)?;
        *filled = batch.end > batch.first;
        follow(sampler, &engine.stores.graph, batch);
        if batch.edges.is_empty() {
            return Ok(None);
        }
        let behind = progress.indexed().0.saturating_sub(batch.end.0);
        let lag = Lag { waited: progress.waited(batch.first), behind };
        let choice = preparation.decided.insert(Choice::of(batch, lag, share, options));
        // Rows of nodes are gathered at the batch's turn.
        let world = world(engine, (node_rows, sampler), batch);
        let against = preparation.negatives.insert(negatives(options, pool, batch));
        let prepared = &mut preparation.prepared;
        preparation.sampled = sample(preparer, &world, batch, against, choice, prepared).is_ok();
        if !preparation.sampled {
            return Ok(None);
        }
        preparer.announce(&world, prepared);
        Ok(Some((batch, preparation)))
    }
}
