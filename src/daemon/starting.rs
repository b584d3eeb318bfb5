//! The part of a start that takes as long as the log is: what is said meanwhile, and how it is cut short.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::service;
use crate::event::EdgeId;

/// How often a start says how far it is.
const PERIOD: Duration = Duration::from_secs(1);

/// The start was cut short; nothing has been changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the daemon was told to stop before it was ready")]
pub struct Interrupted;

/// A start that is going on.
pub struct Starting<'a> {
    /// Ends it when set.
    pub interrupt: &'a AtomicBool,
}

impl Starting<'_> {
    /// What a long reading of the log up to `end` calls with every position: tells people and the service
    /// manager that it goes on, and breaks when the start is to end.
    pub fn proceed(&self, what: &'static str, end: EdgeId) -> impl FnMut(EdgeId) -> ControlFlow<()> {
        // The service manager's clock has been running since the process began.
        service::busy();
        let mut last_report = Instant::now();
        move |at| {
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
