//! Monitors the loops and the sources, and sets the health checks: what is degraded, what is down. Pings the service
//! manager's watchdog as long as every loop runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::service::{self, Watchdog};
use super::sources::Sources;
use super::{Parts, Stop, Supervisor, tiers};
use crate::api::{Health, State};
use crate::appender::AppenderStatus;
use crate::serving::{Progress, QueryEngine};

const PERIOD: Duration = Duration::from_millis(250);

/// Starts monitoring.
pub(super) fn watch(
    parts: &Parts,
    sources: &Sources,
    supervisor: &Supervisor,
    stop: &Stop,
) -> anyhow::Result<JoinHandle<()>> {
    let watcher = Watcher {
        health: parts.health.clone(),
        appender: parts.appender.clone(),
        progress: parts.progress.clone(),
        engine: parts.engine.clone(),
        sources: sources.clone(),
        supervisor: supervisor.clone(),
        draining: stop.draining.clone(),
    };
    let (stopped, mut watchdog) = (stop.monitor.clone(), Watchdog::new());
    supervisor.start("monitor", "monitor", &stop.monitor, move || {
        while !stopped.load(Ordering::Acquire) {
            watcher.check(&mut watchdog);
            std::thread::sleep(PERIOD);
        }
        Ok(())
    })
}

struct Watcher {
    health: Arc<Health>,
    appender: Arc<AppenderStatus>,
    progress: Arc<Progress>,
    engine: Arc<QueryEngine>,
    sources: Sources,
    supervisor: Supervisor,
    draining: Arc<AtomicBool>,
}

impl Watcher {
    fn check(&self, watchdog: &mut Watchdog) {
        let alive = self.health.liveness();
        if alive.passes() {
            watchdog.feed();
            if self.draining.load(Ordering::Acquire) {
                service::busy();
            }
        }
        let faults = self.supervisor.faults();
        // Why a loop is dead, if so: it has ended, or it is stuck.
        let dead = |task: &str, check: &str| {
            let stuck = || {
                let pulse = alive.checks.get(task).filter(|pulse| pulse.state == State::Failed)?;
                Some(format!("the {task} is stuck: {}", pulse.detail))
            };
            faults.get(check).cloned().or_else(stuck)
        };
        match (dead("appender", "log"), self.appender.state().fault()) {
            (Some(fault), _) => self.health.set("log", State::Failed, fault),
            // Requests are served from memory whether the log can be written or not; pushes get the reason.
            (None, Some(fault)) => {
                let restriction = format!("events are not stored: {fault}");
                self.health.set("log", State::Degraded, restriction);
            }
            (None, None) => self.health.set("log", State::Ok, "writable"),
        }
        let behind = self.progress.behind();
        match dead("learner", "learner") {
            Some(fault) => self.health.set("learner", State::Failed, fault),
            None => self.health.set("learner", State::Ok, format!("learner lag: {behind} events")),
        }
        self.check_disk();
        let troubled: Vec<String> = self
            .sources
            .reports()
            .iter()
            .filter(|report| !matches!(report.state, "running" | "ended"))
            .map(|report| format!("{} is {}: {}", report.name, report.state, report.detail))
            .collect();
        if troubled.is_empty() {
            self.health.set("sources", State::Ok, "all running");
        } else {
            self.health.set("sources", State::Degraded, troubled.join("; "));
        }
    }

    /// Whether spilled data can be written and read.
    fn check_disk(&self) {
        let stores = tiers::stores(&self.engine.stores.graph, &self.engine.stores.edge_features);
        if stores.is_empty() {
            return;
        }
        let failing = stores.iter().filter_map(|(name, store)| {
            if let Some(reason) = &store.failing {
                return Some(format!("the disk behind memory.{name}_bytes_max fails: {reason}"));
            }
            // A batch may exceed the budget for a moment.
            let most = store.budget_bytes + store.budget_bytes / 4 + (8 << 20);
            let (takes, may) = (store.memory_bytes, store.budget_bytes);
            (takes > most)
                .then(|| format!("memory.{name}_bytes_max is {may}, but {takes} are used: raise the budget"))
        });
        let failing: Vec<String> = failing.collect();
        if failing.is_empty() {
            self.health.set("memory", State::Ok, "within budget");
        } else {
            self.health.set("memory", State::Degraded, failing.join("; "));
        }
    }
}
