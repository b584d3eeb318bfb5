//! How far the learner is with what was in the log before it started: after a restart, or without a checkpoint.

use std::time::Instant;

use crate::event::EdgeId;

/// What was in the log at the start and is not learned yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CatchUp {
    /// The learner's position at the start.
    pub from: EdgeId,
    /// One past the last record that was in the graph at the start.
    pub until: EdgeId,
    /// When the loop was made.
    since: Instant,
}

impl CatchUp {
    /// That of a loop that begins at `from`.
    pub(super) fn new(from: EdgeId, until: EdgeId) -> Self {
        Self { from, until, since: Instant::now() }
    }

    /// Records that are left at `position`, and the seconds that they take at the rate so far; `None` when nothing is
    /// left. The time is unknown before there is a rate.
    #[must_use]
    pub fn left(&self, position: EdgeId) -> Option<(u64, Option<f64>)> {
        let left = self.until.0.checked_sub(position.0).filter(|left| *left > 0)?;
        Some((
            left,
            seconds(self.since.elapsed().as_secs_f64(), position.0.saturating_sub(self.from.0), left),
        ))
    }
}

/// The seconds that `left` records take, if `done` took `elapsed`.
#[allow(clippy::cast_precision_loss)] // an estimate
fn seconds(elapsed: f64, done: u64, left: u64) -> Option<f64> {
    (done > 0).then(|| elapsed * left as f64 / done as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_and_its_time_is_estimated_from_the_rate_so_far() {
        let start = CatchUp::new(EdgeId(100), EdgeId(300));
        assert_eq!(start.left(EdgeId(100)), Some((200, None)));
        assert!(matches!(start.left(EdgeId(150)), Some((150, Some(_)))));
        assert_eq!((start.left(EdgeId(300)), start.left(EdgeId(400))), (None, None));
        assert_eq!(seconds(5.0, 50, 150), Some(15.0));
    }
}
