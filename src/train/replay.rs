//! Training again on old events, against forgetting: how often, and on which.
//!
//! A draw is a function of its key and of the range of positions, never of what was drawn before, so a restored run
//! draws the same. A replayed event is scored and learned as at its own time, with the neighbors that it had then, and
//! with the node memory of today: memory of the past is not kept. Such memory has seen the event, and all that came
//! after it, so a model with memory can learn from a replay to trust it too much; one without memory learns what
//! it would have learned then. A replay leaves no trace in memory and mailbox.

use std::ops::Range;

use super::meanwhile::Meanwhile;
use super::orders::Order;
use super::pass::How;
use super::prepare::PreparedBatch;
use super::trainer::{StepReport, TrainError, Trainer};
use crate::device::rng;

/// Keeps these draws apart from everything else that is drawn from one seed.
pub const STREAM: u64 = 0x7265_706c_6179_6564;

/// Which old events are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayPolicy {
    /// All alike.
    #[default]
    Uniform,
    /// An event of half the age is twice as likely.
    Recent,
}

/// How much is replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReplayOptions {
    /// Gradient steps on old events per step on new ones; 0 is none.
    pub ratio: f64,
    /// Which events.
    pub policy: ReplayPolicy,
}

impl ReplayOptions {
    /// Steps on old events that are due with step number `step` on new ones: as even as whole numbers can be.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn due(&self, step: u64) -> u64 {
        let until = |step: u64| (step as f64 * self.ratio).floor() as u64;
        until(step + 1) - until(step)
    }

    /// First of `length` positions in a row out of `history`; `None` where there are not as many.
    #[must_use]
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn draw(&self, key: [u64; 3], history: &Range<u64>, length: u64) -> Option<u64> {
        let last = history.end.checked_sub(length.max(1))?;
        let places = last.checked_sub(history.start)? + 1;
        let random = rng::random_u64([STREAM, key[0], key[1], key[2]]);
        let back = match self.policy {
            ReplayPolicy::Uniform => ((u128::from(random) * u128::from(places)) >> 64) as u64,
            // The logarithm of the age is uniform.
            ReplayPolicy::Recent => {
                let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
                (places as f64).powf(share) as u64 - 1
            }
        };
        Some(last - back.min(places - 1))
    }
}

impl Trainer {
    /// Learns from a batch prepared to be trained on, and leaves memory, mailbox and the number of steps as they are.
    /// `key` picks the dropout; with the seed it must differ from replay to replay.
    ///
    /// # Errors
    /// The batch was prepared for another state, or the loss or a gradient is not finite; nothing was changed.
    pub fn replay_prepared(&mut self, batch: &PreparedBatch, key: u64) -> Result<StepReport, TrainError> {
        self.check_order(batch)?;
        let mut report = StepReport::default();
        if batch.positives().src.is_empty() {
            return Ok(report);
        }
        self.hand_out(Order::Replay(key), batch)?;
        let dropout = [self.options.seed ^ STREAM, key];
        match self.score((batch, Meanwhile::default()), &mut report, How::with_dropout(dropout))? {
            Ok(()) => Ok(report),
            Err(what) => Err(TrainError::NonFinite { what, step: self.steps }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_spread_evenly() {
        let due = |ratio| {
            let options = ReplayOptions { ratio, ..ReplayOptions::default() };
            (0..8).map(|step| options.due(step)).collect::<Vec<_>>()
        };
        assert_eq!(due(0.0), [0; 8]);
        assert_eq!(due(0.25), [0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(due(1.5), [1, 2, 1, 2, 1, 2, 1, 2]);
    }

    #[test]
    fn ranges_lie_in_history_and_follow_the_policy() {
        let drawn = |policy, history: Range<u64>| -> Vec<Option<u64>> {
            let options = ReplayOptions { ratio: 1.0, policy };
            (0..4000).map(|key| options.draw([1, key, 0], &history, 10)).collect()
        };
        for policy in [ReplayPolicy::Uniform, ReplayPolicy::Recent] {
            assert_eq!(drawn(policy, 5..14)[..3], [None; 3], "too short");
            assert_eq!(drawn(policy, 5..15)[..3], [Some(5); 3]);
            let all = drawn(policy, 1_000..101_009);
            assert_eq!(all, drawn(policy, 1_000..101_009), "by key alone");
            assert!(all.iter().flatten().all(|first| (1_000..=100_999).contains(first)));
            let share =
                |from: u64| all.iter().flatten().filter(|&&first| first >= from).count() as f64 / 4000.0;
            let (tenth, thousandth) = (share(91_000), share(100_900));
            match policy {
                ReplayPolicy::Uniform => assert!((0.08..0.12).contains(&tenth) && thousandth < 0.01),
                // Ages of up to 10,000 and 100 of 100,000: four and two fifths of the logarithm.
                ReplayPolicy::Recent => {
                    assert!((0.77..0.83).contains(&tenth) && (0.37..0.43).contains(&thousandth));
                }
            }
        }
    }
}
