//! The thread that delivers how unusual events were to a topic of Kafka, where there is one. The learner never waits
//! for it: what it has no room for is left out, and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::source_options::anomaly_options;
use super::supervise::Supervisor;
use super::{PULSE_LIMIT, Parts};
use crate::api::{Health, State};
use crate::config::Config;
use crate::event::NodeKey;
use crate::graph::NodeDictionary;
use crate::ingest::produce::AnomalyTopic;
use crate::metrics::Metrics;
use crate::serving::{Anomaly, AnomalyOptions, QueryEngine};

/// How long the thread waits for events before it checks for a stop.
const IDLE: Duration = Duration::from_millis(100);

/// Pause after a delivery that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Events that are delivered at a time, about.
const EVENTS_MAX: usize = 5_000;

/// Batches of judged events.
type Batches = Receiver<Vec<Anomaly>>;

/// `engine` with what the settings have kept of unusual events, and what the thread is to deliver, if anything.
pub(super) fn watched(engine: QueryEngine, config: &Config) -> (QueryEngine, Option<Batches>) {
    let settings = &config.anomalies;
    let (outlet, batches): (Option<Sender<_>>, _) = if settings.topic.is_empty() {
        (None, None)
    } else {
        let (sender, receiver) = crossbeam_channel::bounded(settings.queue_batches_max);
        (Some(sender), Some(receiver))
    };
    #[allow(clippy::cast_possible_truncation)] // a share
    let percentile_min = settings.percentile_min as f32;
    let options = AnomalyOptions { percentile_min, kept_max: settings.kept_max, outlet };
    (engine.with_anomalies(options), batches)
}

/// Starts the thread, where there is a topic.
pub(super) fn start(
    config: &Config,
    parts: &Parts,
    supervisor: &Supervisor,
    stop: &Arc<AtomicBool>,
) -> Result<Option<JoinHandle<()>>> {
    let Some(batches) = parts.judged.clone() else { return Ok(None) };
    let outlet = Outlet {
        batches,
        topic: AnomalyTopic::new(anomaly_options(config)),
        keys: parts.engine.stores.keys.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
    };
    let (flag, pulse) = (stop.clone(), parts.health.heartbeat("anomalies", PULSE_LIMIT));
    let run = move || {
        outlet.run(&flag, || pulse.beat());
        Ok(())
    };
    supervisor.start("anomalies", "anomalies", stop, run).map(Some)
}

struct Outlet {
    batches: Batches,
    topic: AnomalyTopic,
    keys: Arc<NodeDictionary>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl Outlet {
    fn run(mut self, stop: &AtomicBool, pulse: impl Fn()) {
        self.health.set("anomalies", State::Ok, "judged events are delivered");
        loop {
            pulse();
            let stops = stop.load(Ordering::Acquire);
            match self.batches.recv_timeout(IDLE) {
                Ok(batch) => {
                    let events = self.named(batch);
                    if !self.deliver(&events, stop, &pulse) {
                        // A stop does not wait for brokers that are away.
                        let left: usize = self.batches.try_iter().map(|batch| batch.len()).sum();
                        self.metrics.anomaly.left_out.inc_by(left as u64);
                        return;
                    }
                }
                // What was judged before the stop was delivered first.
                Err(RecvTimeoutError::Timeout) if stops => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The events of this batch and of those behind it, without those of nodes that were deleted meanwhile.
    fn named(&self, first: Vec<Anomaly>) -> Vec<(NodeKey, NodeKey, Anomaly)> {
        let mut events = first;
        while events.len() < EVENTS_MAX
            && let Ok(more) = self.batches.try_recv()
        {
            events.extend(more);
        }
        let named = |event: Anomaly| Some((self.keys.key(event.src)?, self.keys.key(event.dst)?, event));
        events.into_iter().filter_map(named).collect()
    }

    /// Delivers events, again and again until it succeeds; after a stop, once. Whether it did.
    fn deliver(
        &mut self,
        events: &[(NodeKey, NodeKey, Anomaly)],
        stop: &AtomicBool,
        pulse: &impl Fn(),
    ) -> bool {
        let mut failed = false;
        while !events.is_empty() {
            pulse();
            match self.topic.deliver(events) {
                Ok(()) => break,
                Err(why) => {
                    if !std::mem::replace(&mut failed, true) {
                        tracing::error!(why, "judged events are not delivered; this is tried again");
                    }
                    self.health.set(
                        "anomalies",
                        State::Degraded,
                        format!("judged events are not delivered: {why}"),
                    );
                }
            }
            if stop.load(Ordering::Acquire) {
                self.metrics.anomaly.left_out.inc_by(events.len() as u64);
                return false;
            }
            std::thread::sleep(RETRY);
        }
        if failed {
            self.health.set("anomalies", State::Ok, "judged events are delivered");
        }
        self.metrics.anomaly.delivered.inc_by(events.len() as u64);
        true
    }
}
