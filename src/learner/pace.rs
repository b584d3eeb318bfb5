//! Which batches get a gradient step: as large a share of them as keeps the learner near its target for the lag.
//!
//! A batch that has waited for less than the target is trained on. From there on the share falls, linearly, to a floor
//! at twice the target, where it also is while more events wait than may. In overload the lag comes to rest in between,
//! where the share is what the machine can train on, and a burst costs steps in proportion to what it makes others
//! wait. Which batches make up the share follows from a running sum, so they are spread evenly. Every batch is
//! remembered.

use std::time::Duration;

use super::LearnerOptions;

/// The running sum.
#[derive(Debug, Default)]
pub(super) struct Pace {
    credit: f64,
}

/// How far the learner is behind with a batch that others wait behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lag {
    /// How long the batch has waited.
    pub waited: Duration,
    /// Records behind the batch.
    pub behind: u64,
}

impl Pace {
    /// Whether the next batch is trained on.
    pub fn next(&mut self, lag: Lag, options: &LearnerOptions) -> bool {
        self.credit += share(lag, options);
        let trains = self.credit >= 1.0;
        if trains {
            self.credit -= 1.0;
        }
        trains
    }
}

/// The share of batches with this lag that are trained on.
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
