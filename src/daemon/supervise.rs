//! Threads that run until they are stopped. One that ends before, by an error, a panic or a return, is a fault of the
//! daemon: its health check fails with the reason, and [`Supervisor::faults`] returns it, so that the caller can stop
//! the rest and the process can be restarted.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;
use parking_lot::Mutex;

use super::spawn;
use crate::api::{Health, State};

/// Supervises threads; clones share their state.
#[derive(Clone)]
pub(super) struct Supervisor {
    health: Arc<Health>,
    faults: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Supervisor {
    pub(super) fn new(health: Arc<Health>) -> Self {
        Self { health, faults: Arc::default() }
    }

    /// Why threads ended unexpectedly, by the name of the health check.
    pub(super) fn faults(&self) -> BTreeMap<&'static str, String> {
        self.faults.lock().clone()
    }

    /// Starts a thread that runs until `stop` is set; `check` is what fails if it does not.
    pub(super) fn start(
        &self,
        name: &'static str,
        check: &'static str,
        stop: &Arc<AtomicBool>,
        run: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<JoinHandle<()>> {
        let (supervisor, stop) = (self.clone(), stop.clone());
        spawn(name, move || {
            // Drops what the thread owned, so nothing waits for it.
            let ended = catch_unwind(AssertUnwindSafe(run));
            match ended {
                Ok(Ok(())) if stop.load(Ordering::Acquire) => supervisor.health.retire(name),
                Ok(Ok(())) => supervisor.report(name, check, "it ended unexpectedly"),
                Ok(Err(error)) => supervisor.report(name, check, &error),
                Err(panic) => supervisor.report(name, check, &format!("it panicked: {}", words(&*panic))),
            }
        })
    }

    fn report(&self, name: &str, check: &'static str, why: &str) {
        let fault = format!("the {name} has ended: {why}");
        tracing::error!(fault, "a part of the daemon has ended; the daemon stops");
        self.health.set(check, State::Failed, fault.clone());
        self.faults.lock().insert(check, fault);
    }
}

/// The message of a panic.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ends_before_its_time_is_named_and_one_that_was_stopped_is_not() {
        let supervisor = Supervisor::new(Health::new());
        let (stop, running) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let pulse = supervisor.health.heartbeat("fine", std::time::Duration::ZERO);
        let threads = [
            supervisor.start("fine", "a", &stop, || Ok(())),
            supervisor.start("short", "b", &running, || Ok(())),
            supervisor.start("broken", "c", &running, || Err("no disk".to_owned())),
            supervisor.start("wild", "d", &running, || panic!("at {}", 7)),
        ];
        threads.into_iter().for_each(|thread| thread.unwrap().join().unwrap());
        drop(pulse);
        let faults = supervisor.faults();
        assert_eq!(faults.keys().copied().collect::<Vec<_>>(), ["b", "c", "d"]);
        assert_eq!(faults["c"], "the broken has ended: no disk");
        assert_eq!(faults["d"], "the wild has ended: it panicked: at 7");
        assert_eq!(supervisor.health.readiness().checks["d"].state, State::Failed);
        assert!(supervisor.health.liveness().passes(), "a thread that was stopped has no heartbeat");
    }
}
