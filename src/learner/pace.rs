//! How much of a step a batch gets: as many of its events are trained on as keep the learner near its target for
//! the lag.
//!
//! A batch that has waited for less than the target is trained on as a whole. From there on the share falls,
//! linearly, to a floor at twice the target, where it also is while more events wait than may. In overload the lag
//! comes to rest in between, where the share is what the machine can train on, and a burst costs steps in proportion
//! to what it makes others wait. Every batch is remembered.
//!
//! Where all live events are to be scored, a batch is trained on as a whole or scored as a whole, as many of them as
//! make up the share.

use std::time::Duration;

use super::{LearnBatch, LearnerOptions};
use crate::train::StepMode;
use crate::train::share::{Chosen, Share};

/// How far the learner is behind with a batch that others wait behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lag {
    /// How long the batch has waited.
    pub waited: Duration,
    /// Records behind the batch.
    pub behind: u64,
}

/// How much of a step a batch gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub mode: StepMode,
    /// Places of the events that are scored, and trained on; `None`: all of them.
    pub scored: Option<Vec<u32>>,
}

impl Choice {
    /// All events.
    pub fn all(mode: StepMode) -> Self {
        Self { mode, scored: None }
    }

    /// How much of a step `batch` gets, which has events and stands so in the stream.
    pub fn of(batch: &LearnBatch, lag: Lag, taken: &mut Share, options: &LearnerOptions) -> Self {
        let history = batch.is_history(options.began_unix_ms);
        let share = match share(lag, options) {
            _ if history && !options.train_history => 0.0,
            _ if history && options.train => 1.0,
            // A score is left out wherever not all would be trained on.
            share if share < 1.0 && !options.train => 0.0,
            share => share,
        };
        let (key, events) = ([options.seed, batch.first.0], (batch.edges.len(), options.batch_events));
        let mode = if options.train { StepMode::Train } else { StepMode::Score };
        if options.score_all && !history {
            return Self::all(if taken.takes_whole(share, events.0) { mode } else { StepMode::Score });
        }
        match taken.next(key, share, events) {
            Chosen::All => Self::all(mode),
            Chosen::Part(places) => Self { mode, scored: Some(places) },
            Chosen::Nothing => Self::all(StepMode::StateOnly),
        }
    }
}

/// The share of events of batches with this lag that are trained on.
pub(super) fn share(Lag { waited, behind }: Lag, options: &LearnerOptions) -> f64 {
    let (target, floor) = (options.lag_target.as_secs_f64(), options.share_min);
    if behind > options.lag_events_max {
        return floor;
    }
    // Skipping a batch that nothing waits behind would gain nothing.
    if target == 0.0 || behind < options.batch_events as u64 {
        return 1.0;
    }
    let left = (2.0 - waited.as_secs_f64() / target).clamp(0.0, 1.0);
    floor + (1.0 - floor) * left
}
