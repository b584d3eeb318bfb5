//! The service manager, where there is one: gets notifications of the state and watchdog pings while all is well, so
//! that it can restart a daemon that hangs.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Interval of watchdog pings where the service manager sets none.
const RELAXED: Duration = Duration::from_secs(10);
/// Time by which a notification of progress extends the timeout; the next one comes long before.
const MORE_TIME_US: u32 = 120_000_000;

/// The daemon is ready.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// The daemon drains and ends.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

/// Starting or stopping makes progress and needs more time.
pub fn busy() {
    notify(NotifyState::ExtendTimeoutUsec(MORE_TIME_US));
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "the service manager was not notified");
    }
}

/// The service manager's watchdog, which restarts the daemon without timely pings.
pub(super) struct Watchdog {
    every: Duration,
    fed: Option<Instant>,
}

impl Watchdog {
    pub(super) fn new() -> Self {
        Self { every: sd_notify::watchdog_enabled().map_or(RELAXED, |limit| limit / 4), fed: None }
    }

    /// To be called often, while all is well.
    pub(super) fn feed(&mut self) {
        if self.fed.is_none_or(|fed| fed.elapsed() >= self.every) {
            self.fed = Some(Instant::now());
            notify(NotifyState::Watchdog);
        }
    }
}
