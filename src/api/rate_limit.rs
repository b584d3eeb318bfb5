//! Rate limit of a key: requests per second, with a burst of one second's worth.
//!
//! This is the generic cell rate algorithm (ITU-T I.371), whose only state is the time at which the next request is due
//! if requests came evenly. A request is refused when it comes before that time by more than the burst.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Length of a burst.
const BURST: Duration = Duration::from_secs(1);

/// A limit of requests per second.
pub(super) struct RateLimit {
    per_second: NonZeroU32,
    due: Mutex<Option<Instant>>,
}

impl RateLimit {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        Self { per_second, due: Mutex::new(None) }
    }

    pub(super) fn per_second(&self) -> u32 {
        self.per_second.get()
    }

    /// Whether a request at `now` is allowed. A refused one does not count.
    pub(super) fn allows(&self, now: Instant) -> bool {
        let interval = BURST / self.per_second.get();
        let mut due = self.due.lock();
        let at = due.map_or(now, |due| due.max(now));
        let allowed = at.saturating_duration_since(now) + interval <= BURST;
        if allowed {
            *due = Some(at + interval);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(rate_limit: &RateLimit, at: Instant, requests: usize) -> usize {
        (0..requests).filter(|_| rate_limit.allows(at)).count()
    }

    #[test]
    fn a_burst_of_one_second_is_allowed_and_then_the_rate() {
        let (rate_limit, start) = (RateLimit::new(NonZeroU32::new(10).unwrap()), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(allowed(&rate_limit, at(0), 50), 10);
        assert_eq!(allowed(&rate_limit, at(99), 50), 0);
        assert_eq!(allowed(&rate_limit, at(100), 50), 1);
        assert_eq!(allowed(&rate_limit, at(600), 50), 5);
        assert_eq!(allowed(&rate_limit, at(60_000), 50), 10, "unused requests do not accumulate");
        let every_ten_ms = (60_100..70_100).step_by(10).filter(|&ms| rate_limit.allows(at(ms))).count();
        assert!((99..=101).contains(&every_ten_ms), "{every_ten_ms}");
    }

    #[test]
    fn the_lowest_and_the_highest_rate_limit_hold() {
        let start = Instant::now();
        let slow = RateLimit::new(NonZeroU32::MIN);
        assert_eq!(allowed(&slow, start, 9), 1);
        assert_eq!(allowed(&slow, start + Duration::from_millis(999), 9), 0);
        assert_eq!(allowed(&slow, start + Duration::from_secs(1), 9), 1);
        let fast = RateLimit::new(NonZeroU32::new(1_000_000).unwrap());
        assert_eq!(allowed(&fast, start, 2_000_000), 1_000_000);
    }
}
