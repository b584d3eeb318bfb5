//! Steps on old ranges of the log beside those on new events; see [`train::replay`](crate::train::replay).
//!
//! A range is read from the log, and of its edges those are taken that the graph still holds: none that was deleted,
//! none of a deleted node, none that was released for its age. Its negatives are drawn from the destinations of today.
//! A step on new events has precedence: while a full batch of live events waits, replays are skipped, and counted. So
//! is one that fails because of storage or non-finite numbers.

use std::time::Duration;

use super::step::world;
use super::{Feed, FeedMark, LearnBatch, Learner, LearnerError};
use crate::event::{EdgeId, EventTime};
use crate::graph::{GraphView, RetentionClock};
use crate::model::GatherError;
use crate::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};
use crate::train::replay::STREAM;
use crate::train::{Negatives, Positives, StepMode, TrainError};

/// Most edges of one node at one time that are searched for a replayed one.
const TIES_MAX: usize = 32;

impl Learner {
    /// The replays that are due with the step of `batch`, which ends `behind` records before what is indexed.
    pub(super) fn replay(&mut self, batch: &LearnBatch, behind: u64) -> Result<(), LearnerError> {
        let results = self.shared.metrics.train.replay_steps.clone();
        let due = self.replays_due(batch, behind, 0);
        let skipped = self.options.replay.due(self.trainer.steps()) - due;
        if skipped > 0 {
            results.with_label_values(&["skipped"]).inc_by(skipped);
        }
        for number in 0..due {
            let first_before = self.log.first();
            let result = match self.replay_one(batch, number) {
                Ok(true) => "trained",
                Ok(false) => continue,
                Err(LearnerError::Train(error @ (TrainError::NonFinite { .. } | TrainError::Storage(_)))) => {
                    tracing::warn!(%error, position = batch.first.0, "a replay was skipped");
                    "skipped"
                }
                Err(LearnerError::Log(error)) if self.log.first() > first_before => {
                    tracing::debug!(%error, "the range of a replay was cut off the log");
                    "skipped"
                }
                Err(error) => return Err(error),
            };
            results.with_label_values(&[result]).inc();
        }
        Ok(())
    }

    /// Replays that come behind the step of `batch`, `to_come` steps from now; none while new events wait. The batch
    /// ends `behind` records before what is indexed.
    pub(super) fn replays_due(&self, batch: &LearnBatch, behind: u64, to_come: u64) -> u64 {
        let live = !batch.is_history(self.options.began_unix_ms);
        if live && behind >= self.options.batch_events as u64 {
            return 0;
        }
        self.options.replay.due(self.trainer.steps() + to_come)
    }

    /// One replay; `false` if there is nothing old enough.
    pub(super) fn replay_one(&mut self, batch: &LearnBatch, number: u64) -> Result<bool, LearnerError> {
        let (length, seed) = (self.options.batch_events, self.options.seed);
        let history = batch.kept.first.max(self.log.first()).0..batch.first.0;
        let key = [seed, batch.first.0, number];
        let Some(first) = self.options.replay.draw(key, &history, length as u64) else { return Ok(false) };
        let (reader, progress) = (self.log.reader(EdgeId(first)), self.shared.progress.clone());
        let begin = FeedMark { clock: RetentionClock::new(None), known: 0 };
        let mut feed = Feed::new(reader, progress, EdgeId(first), begin).up_to(batch.first);
        let mut old = LearnBatch::default();
        feed.fill(&mut old, length, Duration::ZERO, Duration::ZERO)?;
        let world = world(&self.shared.engine, (&self.node_rows, self.sampler.as_ref()), batch);
        keep_live(world.view, &mut old).map_err(|error| TrainError::from(GatherError::from(error)))?;
        if old.edges.is_empty() {
            return Ok(false);
        }
        let mut drawn = Vec::new();
        let (key, pairs) = ([seed ^ STREAM ^ number, batch.first.0], (&old.src[..], &old.dst[..]));
        self.pool.draw(key, self.options.met_share, pairs, &mut drawn);
        let positives = Positives { src: &old.src, dst: &old.dst, times: &old.times, edges: &old.edges };
        let negatives = Negatives { src: &old.src, dst: &drawn };
        self.trainer.prepare(&world, &positives, &negatives, StepMode::Train, &mut self.replayed)?;
        self.trainer.replay_prepared(&self.replayed, batch.first.0.wrapping_add(number << 48))?;
        Ok(true)
    }
}

/// Keeps only the edges of `batch` that the view holds.
fn keep_live(view: GraphView<'_>, batch: &mut LearnBatch) -> Result<(), crate::sampler::SampleError> {
    let after: Vec<EventTime> = batch.times.iter().map(|time| EventTime(time.0.saturating_add(1))).collect();
    let policy = SamplingPolicy::Recent;
    // Of each source, the edges at just the time of its event.
    let request = SampleRequest { policy, fanout: TIES_MAX, window: Some(1), seed: 0, batch: 0, layer: 0 };
    let mut found = MessageFlowGraph::new();
    sample(view, Seeds { nodes: &batch.src, times: &after }, &request, &mut found)?;
    let live: Vec<bool> =
        (0..batch.edges.len()).map(|i| found.edges[found.filled(i)].contains(&batch.edges[i])).collect();
    retain(&mut batch.src, &live);
    retain(&mut batch.dst, &live);
    retain(&mut batch.times, &live);
    retain(&mut batch.edges, &live);
    Ok(())
}

fn retain<T>(column: &mut Vec<T>, live: &[bool]) {
    let mut live = live.iter();
    column.retain(|_| live.next().copied().unwrap_or(false));
}
