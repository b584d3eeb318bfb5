//! Liveness and readiness of the daemon, as its parts report them.
//!
//! A *check* is set by its owner: failed means "send no requests", degraded means "requests are served, with
//! this restriction". A *heartbeat* belongs to a supervised thread, which has to beat within its
//! limit; a thread that does not is the one reason to restart the process. Liveness therefore never depends
//! on a broker, a disk or a full queue. Knows nothing of the parts that report to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No problem.
    Ok,
    /// Requests are served, with a restriction that the detail names.
    Degraded,
    /// Requests should go elsewhere, or the process should be restarted.
    Failed,
}

/// One check as it is reported.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Check {
    /// State of the part.
    pub state: State,
    /// Why, in words.
    pub detail: String,
}

/// Many checks and the worst of them.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct HealthReport {
    /// The worst state of all checks.
    pub status: State,
    /// Every check by name.
    pub checks: BTreeMap<&'static str, Check>,
}

impl HealthReport {
    /// The report of these checks.
    fn of(checks: BTreeMap<&'static str, Check>) -> Self {
        let status = checks.values().map(|check| check.state).max().unwrap_or(State::Ok);
        Self { status, checks }
    }

    /// Whether a probe should pass.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.status != State::Failed
    }
}

/// The pulse of one supervised thread.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pulse: Arc<Pulse>,
}

#[derive(Debug)]
struct Pulse {
    task: &'static str,
    limit: Duration,
    start: Instant,
    last_millis: AtomicU64,
}

impl Heartbeat {
    /// Reports that the thread is alive. Cheap enough for every iteration of a loop.
    pub fn beat(&self) {
        self.pulse.last_millis.store(millis(self.pulse.start.elapsed()), Ordering::Relaxed);
    }
}

impl Pulse {
    fn check(&self) -> Check {
        let last = Duration::from_millis(self.last_millis.load(Ordering::Relaxed));
        let age = self.start.elapsed().saturating_sub(last);
        let state = if age <= self.limit { State::Ok } else { State::Failed };
        let detail =
            format!("last beat {:.1} s ago, limit {:.1} s", age.as_secs_f64(), self.limit.as_secs_f64());
        Check { state, detail }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// All checks and heartbeats.
#[derive(Debug)]
pub struct Health {
    checks: Mutex<BTreeMap<&'static str, Check>>,
    pulses: Mutex<Vec<Arc<Pulse>>>,
}

impl Health {
    /// The check that the daemon itself keeps: starting, running, draining.
    pub const DAEMON: &'static str = "daemon";
    /// The detail of that check until the daemon is ready for the first time.
    pub const STARTING: &'static str = "starting";

    /// Alive and not ready: the check [`Self::DAEMON`] stands at failed, "starting".
    #[must_use]
    pub fn new() -> Arc<Self> {
        let health = Arc::new(Self { checks: Mutex::default(), pulses: Mutex::default() });
        health.set(Self::DAEMON, State::Failed, Self::STARTING);
        health
    }

    /// Sets a check, new or known.
    pub fn set(&self, check: &'static str, state: State, detail: impl Into<String>) {
        self.checks.lock().insert(check, Check { state, detail: detail.into() });
    }

    /// Forgets a check; a name that is not known is no error.
    pub fn clear(&self, check: &'static str) {
        self.checks.lock().remove(check);
    }

    /// Supervises a thread: it has to beat at least every `limit`, from now on. A second heartbeat of the
    /// same task replaces the first.
    pub fn heartbeat(&self, task: &'static str, limit: Duration) -> Heartbeat {
        let pulse = Arc::new(Pulse { task, limit, start: Instant::now(), last_millis: AtomicU64::new(0) });
        let mut pulses = self.pulses.lock();
        pulses.retain(|known| known.task != task);
        pulses.push(Arc::clone(&pulse));
        Heartbeat { pulse }
    }

    /// Ends the supervision of a thread that has done its work.
    pub fn retire(&self, task: &'static str) {
        self.pulses.lock().retain(|known| known.task != task);
    }

    /// Whether every supervised thread beats.
    #[must_use]
    pub fn liveness(&self) -> HealthReport {
        HealthReport::of(self.pulses.lock().iter().map(|pulse| (pulse.task, pulse.check())).collect())
    }

    /// Whether requests should be sent here.
    #[must_use]
    pub fn readiness(&self) -> HealthReport {
        HealthReport::of(self.checks.lock().clone())
    }

    /// Both together.
    #[must_use]
    pub fn everything(&self) -> HealthReport {
        let mut checks = self.liveness().checks;
        checks.extend(self.readiness().checks);
        HealthReport::of(checks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_follows_the_worst_check_and_may_fall_again() {
        let health = Health::new();
        assert!(!health.readiness().passes(), "a daemon that starts is not ready");
        health.set(Health::DAEMON, State::Ok, "running");
        assert!(health.readiness().passes());
        health.set("kafka", State::Degraded, "no broker responds");
        assert_eq!(health.readiness().status, State::Degraded);
        assert!(health.readiness().passes(), "degraded is not dead");
        health.clear("kafka");
        assert_eq!(health.readiness().status, State::Ok);
        health.set(Health::DAEMON, State::Failed, "draining");
        assert!(!health.readiness().passes());
        assert!(health.liveness().passes(), "readiness does not touch liveness");
        assert!(!health.everything().passes());
    }

    #[test]
    fn a_thread_that_stops_beating_ends_liveness() {
        let health = Health::new();
        let beating = health.heartbeat("learner", Duration::from_secs(60));
        let stuck = health.heartbeat("appender", Duration::from_millis(5));
        std::thread::sleep(Duration::from_millis(30));
        beating.beat();
        let report = health.liveness();
        assert!(!report.passes());
        assert_eq!(report.checks["appender"].state, State::Failed);
        assert_eq!(report.checks["learner"].state, State::Ok);
        drop(stuck);
        health.retire("appender");
        assert!(health.liveness().passes());
    }
}
