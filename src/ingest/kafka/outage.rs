//! How long a client has had no connection to any broker.
//!
//! librdkafka connects again by itself, except when it has lost its list of brokers: a broker that is starting reports
//! none, the list becomes empty, and nothing ever fills it (librdkafka issue 5301). That looks like an outage that does
//! not end, so after a long one the source begins with a new client.

use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The value of `since_us` while a broker is connected.
const CONNECTED: i64 = -1;

/// An outage, on the clock of the client's statistics: a source that is busy elsewhere takes them up late.
#[derive(Debug)]
pub(super) struct Outage {
    since_us: AtomicI64,
    lasted_us: AtomicI64,
}

impl Outage {
    /// No outage.
    pub fn none() -> Self {
        Self { since_us: AtomicI64::new(CONNECTED), lasted_us: AtomicI64::new(0) }
    }

    /// Notes whether a broker was connected at a time in µs.
    pub fn note(&self, at_us: i64, is_connected: bool) {
        if is_connected {
            self.since_us.store(CONNECTED, Relaxed);
            self.lasted_us.store(0, Relaxed);
            return;
        }
        let since = match self.since_us.load(Relaxed) {
            CONNECTED => at_us,
            since => since,
        };
        self.since_us.store(since, Relaxed);
        self.lasted_us.store(at_us.saturating_sub(since), Relaxed);
    }

    /// Counts what lasts from now on as a new outage, so that the next attempt waits as the last one did.
    pub fn restart(&self) {
        self.note(0, true);
    }

    /// How long it has lasted; zero while a broker is connected.
    pub fn lasted(&self) -> Duration {
        Duration::from_micros(u64::try_from(self.lasted_us.load(Relaxed)).unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_the_first_report_without_a_connection_to_the_next_with_one() {
        let outage = Outage::none();
        outage.note(5_000_000, true);
        assert_eq!(outage.lasted(), Duration::ZERO);
        outage.note(6_000_000, false);
        outage.note(36_000_000, false);
        assert_eq!(outage.lasted(), Duration::from_secs(30));
        outage.note(37_000_000, true);
        outage.note(38_000_000, false);
        assert_eq!(outage.lasted(), Duration::ZERO, "a new one begins");
    }
}
