//! When a batch was produced, as far as that is known.
//!
//! A producer's clock may be wrong, and a timestamp may be no time at all (seconds where milliseconds belong, the time
//! of the event). So offsets decide what is history: what the broker had when the partition was read for the first
//! time, up to its end at that moment. A partition whose last batch in the log is history is still there, also after a
//! restart. Behind that, a timestamp is believed only if it lies between the last batch in the log, or the first start,
//! and now.

use crate::event::ORIGIN_HISTORY;

/// Decides the origin of a partition's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origins {
    /// Messages below this offset are history.
    history_until: i64,
    /// The earliest time that a later message can have been produced at.
    since_unix_ms: i64,
}

impl Origins {
    /// For a partition that the broker has up to `high` now; `logged` is the origin of its newest batch in the log.
    pub fn new(logged: Option<i64>, high: i64, now_unix_ms: i64) -> Self {
        match logged.filter(|&origin| origin != ORIGIN_HISTORY) {
            Some(origin) => Self { history_until: i64::MIN, since_unix_ms: origin.min(now_unix_ms) },
            None => Self { history_until: high, since_unix_ms: now_unix_ms },
        }
    }

    /// The origin of the message at `offset` with this timestamp.
    pub fn of(&self, offset: i64, timestamp: Option<i64>, now_unix_ms: i64) -> i64 {
        if offset < self.history_until {
            return ORIGIN_HISTORY;
        }
        let possible = self.since_unix_ms..=now_unix_ms;
        timestamp.filter(|time| possible.contains(time)).unwrap_or(now_unix_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000_000;

    #[test]
    fn what_was_there_before_the_first_reader_is_history_also_after_a_restart() {
        for logged in [None, Some(ORIGIN_HISTORY)] {
            let origins = Origins::new(logged, 100, NOW);
            assert_eq!(origins.of(99, Some(NOW), NOW + 5), ORIGIN_HISTORY);
            assert_eq!(origins.of(100, Some(NOW + 3), NOW + 5), NOW + 3);
        }
        let caught_up = Origins::new(Some(NOW - 50), 100, NOW);
        assert_eq!(caught_up.of(10, Some(NOW - 20), NOW), NOW - 20, "it waited at the broker, and is live");
    }

    #[test]
    fn a_timestamp_that_cannot_be_right_is_replaced_by_the_time_of_arrival() {
        let origins = Origins::new(None, 0, NOW);
        for timestamp in [None, Some(-1), Some(NOW / 1000), Some(NOW - 1), Some(NOW + 6)] {
            assert_eq!(origins.of(0, timestamp, NOW + 5), NOW + 5, "{timestamp:?}");
        }
        assert_eq!(origins.of(0, Some(NOW), NOW + 5), NOW);
    }
}
