//! The part of a start that grows with the log: progress reports, and interruption.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::service;
use crate::event::EdgeId;
use crate::metrics::Metrics;

/// Interval of progress reports.
const PERIOD: Duration = Duration::from_secs(1);

/// The start was interrupted; nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the daemon was stopped before it was ready")]
pub struct Interrupted;

/// A start in progress.
pub struct Starting<'a> {
    /// Interrupts it when set.
    pub interrupt: &'a AtomicBool,
    /// Where progress is shown.
    pub metrics: &'a Metrics,
}

impl Starting<'_> {
    /// Callback for each position of a long read of the log up to `end`: reports progress to the log and the service
    /// manager, and breaks when the start is interrupted.
    pub fn proceed(&self, what: &'static str, end: EdgeId) -> impl FnMut(EdgeId) -> ControlFlow<()> {
        // The service manager's clock has been running since the process began.
        service::busy();
        let mut last_report = Instant::now();
        let (position, last) = (&self.metrics.log.replay_position, &self.metrics.log.replay_end_position);
        let number = |position: EdgeId| i64::try_from(position.0).unwrap_or(i64::MAX);
        last.set(number(end));
        move |at| {
            position.set(number(at));
            if self.interrupt.load(Ordering::Acquire) {
                return ControlFlow::Break(());
            }
            if last_report.elapsed() >= PERIOD {
                last_report = Instant::now();
                service::busy();
                tracing::info!(position = at.0, end = end.0, "{what}");
            }
            ControlFlow::Continue(())
        }
    }
}
