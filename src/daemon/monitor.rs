//! Watches the loops and the sources and tells the health checks: what is degraded, what is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use super::sources::Sources;
use super::{Parts, spawn};
use crate::api::{Health, State};
use crate::appender::AppenderStatus;
use crate::serving::Progress;

const PERIOD: Duration = Duration::from_millis(250);

/// Starts watching.
pub(super) fn watch(parts: &Parts, sources: &Sources, stop: Arc<AtomicBool>) -> Result<JoinHandle<()>> {
    let watcher = Watcher {
        health: parts.health.clone(),
        appender: parts.appender.clone(),
        progress: parts.progress.clone(),
        sources: sources.clone(),
    };
    spawn("monitor", move || {
        while !stop.load(Ordering::Acquire) {
            watcher.look();
            std::thread::sleep(PERIOD);
        }
    })
}

struct Watcher {
    health: Arc<Health>,
    appender: Arc<AppenderStatus>,
    progress: Arc<Progress>,
    sources: Sources,
}

impl Watcher {
    fn look(&self) {
        match self.appender.state().fault() {
            Some(fault) => self.health.set("log", State::Failed, fault),
            None => self.health.set("log", State::Ok, "writable"),
        }
        let behind = self.progress.indexed().0.saturating_sub(self.progress.learned().0);
        self.health.set("learner", State::Ok, format!("{behind} events behind"));
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
}
