//! The threads that run until the daemon ends, and the flags by which it ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The threads that run until they are stopped.
pub(super) struct Threads {
    pub snapshots: JoinHandle<()>,
    pub appender: JoinHandle<()>,
    pub learner: JoinHandle<()>,
    pub monitor: JoinHandle<()>,
    pub live_index: Option<JoinHandle<()>>,
    pub feed: Option<JoinHandle<()>>,
    pub anomalies: Option<JoinHandle<()>>,
}

/// One flag per stage, because the stages end one after another.
#[derive(Clone, Default)]
pub(super) struct Stop {
    pub draining: Arc<AtomicBool>,
    pub snapshots: Arc<AtomicBool>,
    pub appender: Arc<AtomicBool>,
    pub learner: Arc<AtomicBool>,
    pub live_index: Arc<AtomicBool>,
    pub feed: Arc<AtomicBool>,
    pub anomalies: Arc<AtomicBool>,
    pub monitor: Arc<AtomicBool>,
}

impl Threads {
    /// Ends one after another, in the direction of events.
    pub(super) fn end(self, stop: &Stop) {
        let Threads { snapshots, appender, learner, monitor, live_index, feed, anomalies } = self;
        let stages = [
            (&stop.snapshots, Some(snapshots)),
            (&stop.appender, Some(appender)),
            (&stop.learner, Some(learner)),
            (&stop.live_index, live_index),
            (&stop.feed, feed),
            (&stop.anomalies, anomalies),
            (&stop.monitor, Some(monitor)),
        ];
        for (flag, thread) in stages {
            flag.store(true, Ordering::Release);
            // A panic is among the faults.
            let _ = thread.map(JoinHandle::join);
        }
    }
}
