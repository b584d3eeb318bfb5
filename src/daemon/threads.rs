//! The threads that run until the daemon ends, and the flags by which it ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The threads that run until they are stopped.
pub(super) struct Threads {
    pub snapshots: Option<JoinHandle<()>>,
    pub appender: JoinHandle<()>,
    pub learner: Option<JoinHandle<()>>,
    pub monitor: JoinHandle<()>,
    pub live_index: Option<JoinHandle<()>>,
    pub feed: Option<JoinHandle<()>>,
    pub anomalies: Option<JoinHandle<()>>,
    /// Those that ship or receive.
    pub cluster: Vec<JoinHandle<()>>,
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
    pub cluster: Arc<AtomicBool>,
    pub monitor: Arc<AtomicBool>,
}

impl Threads {
    /// Ends one after another, in the direction of events.
    pub(super) fn end(self, stop: &Stop) {
        let Threads { snapshots, appender, learner, monitor, live_index, feed, anomalies, cluster } = self;
        let stages = [
            (&stop.snapshots, Vec::from_iter(snapshots)),
            (&stop.appender, vec![appender]),
            (&stop.learner, Vec::from_iter(learner)),
            (&stop.cluster, cluster),
            (&stop.live_index, Vec::from_iter(live_index)),
            (&stop.feed, Vec::from_iter(feed)),
            (&stop.anomalies, Vec::from_iter(anomalies)),
            (&stop.monitor, vec![monitor]),
        ];
        for (flag, threads) in stages {
            flag.store(true, Ordering::Release);
            // A panic is among the faults.
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
}
