//! [`ClusterStatus`]: what the threads of a leader or a replica report, for status, metrics and health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::api::{ClusterDocument, Health, State};
use crate::config::{ClusterRole, Config};
use crate::event::EdgeId;

/// The health check.
const CHECK: &str = "cluster";

/// The threads that ship or receive.
pub(super) const FRAMES: &str = "frames";
pub(super) const STATES: &str = "states";

/// What is reported.
pub(crate) struct ClusterStatus {
    role: ClusterRole,
    max_staleness: Duration,
    started: Instant,
    health: Arc<Health>,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    leader: String,
    frames: Option<EdgeId>,
    states: Option<EdgeId>,
    /// When states were shipped or applied last.
    at: Option<Instant>,
    /// Why a thread fails, by what it does.
    failing: BTreeMap<&'static str, String>,
    failures: u64,
}

impl ClusterStatus {
    pub fn new(config: &Config, health: Arc<Health>) -> Self {
        let cluster = &config.cluster;
        let max_staleness = Duration::from_millis(cluster.max_staleness_ms);
        let started = Instant::now();
        Self { role: cluster.role, max_staleness, started, health, inner: Mutex::default() }
    }

    /// One of the threads has done its work.
    pub fn running(&self, what: &'static str) {
        if self.inner.lock().failing.remove(what).is_some() {
            tracing::info!("replication of {what} goes on");
        }
        self.report();
    }

    /// One of the threads could not do it, and tries again.
    pub fn failing(&self, what: &'static str, why: &str) {
        let mut inner = self.inner.lock();
        inner.failures += 1;
        if inner.failing.insert(what, why.to_owned()).is_none_or(|before| before != why) {
            tracing::warn!(why, "replication of {what} waits");
        }
        drop(inner);
        self.report();
    }

    /// Frames up to a position are shipped, or received.
    pub fn frames_at(&self, position: EdgeId) {
        self.inner.lock().frames = Some(position);
    }

    /// Whether nothing fails.
    pub fn is_running(&self) -> bool {
        self.inner.lock().failing.is_empty()
    }

    /// Whether it is known where frames are.
    pub fn has_frames(&self) -> bool {
        self.inner.lock().frames.is_some()
    }

    /// Where frames are.
    pub fn frames(&self) -> EdgeId {
        self.inner.lock().frames.unwrap_or_default()
    }

    /// The leader is there, though what it has shipped is not applied.
    pub fn alive(&self) {
        let mut inner = self.inner.lock();
        inner.at = inner.at.map(|_| Instant::now());
    }

    /// States of a position are shipped, or applied, which were so old; what their leader calls itself.
    pub fn states_at(&self, position: EdgeId, leader: &str, age: Duration) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        (inner.states, inner.at) = (Some(position), Some(now.checked_sub(age).unwrap_or(now)));
        if inner.leader != leader {
            leader.clone_into(&mut inner.leader);
        }
    }

    /// Where the leader takes events, as far as it has said so.
    pub fn leader(&self) -> String {
        self.inner.lock().leader.clone()
    }

    /// Sets the health check. A leader goes on without its replicas; a replica that is too stale is not ready.
    pub fn report(&self) {
        if self.role == ClusterRole::Single {
            return;
        }
        let inner = self.inner.lock();
        let why = inner.failing.values().cloned().collect::<Vec<_>>().join("; ");
        let reason = if why.is_empty() { String::new() } else { format!(": {why}") };
        let stale = inner.at.map(|at| at.elapsed());
        drop(inner);
        let (state, detail) = match (self.role, stale) {
            (ClusterRole::Replica, None) => {
                (State::Failed, format!("no state of the leader was received yet{reason}"))
            }
            (ClusterRole::Replica, Some(stale)) if stale > self.max_staleness => {
                let seconds = stale.as_secs();
                (State::Failed, format!("nothing was received from the leader for {seconds} s{reason}"))
            }
            _ if why.is_empty() => (State::Ok, "replication runs".to_owned()),
            _ => (State::Degraded, format!("replication waits{reason}")),
        };
        self.health.set(CHECK, state, detail);
    }

    /// For the status document; `None` where the daemon stands alone.
    pub fn document(&self) -> Option<ClusterDocument> {
        let role = match self.role {
            ClusterRole::Single => return None,
            ClusterRole::Leader => "leader",
            ClusterRole::Replica => "replica",
        };
        let inner = self.inner.lock();
        let failing = inner.failing.values().cloned().collect::<Vec<_>>().join("; ");
        Some(ClusterDocument {
            role,
            state: if inner.failing.is_empty() { "running" } else { "failing" },
            detail: failing,
            leader: inner.leader.clone(),
            frames_position: inner.frames.unwrap_or_default().0,
            states_position: inner.states.map(|position| position.0),
            staleness_seconds: inner.at.unwrap_or(self.started).elapsed().as_secs_f64(),
            failures: inner.failures,
        })
    }
}
