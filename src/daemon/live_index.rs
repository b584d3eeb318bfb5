//! The thread that keeps the live index, where there is one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

use super::supervise::Supervisor;
use super::{PULSE_LIMIT, Parts};
use crate::config::Config;
use crate::device::stand_back;
use crate::serving::{IndexLoop, IndexOptions, QueryEngine};

/// `engine` with the live index that the settings ask for.
pub(super) fn indexed(engine: QueryEngine, config: &Config) -> QueryEngine {
    let index = &config.index;
    if index.bytes_max == 0 {
        return engine;
    }
    engine.with_index(IndexOptions {
        bytes_max: index.bytes_max,
        precision: index.precision.into(),
        cpu_share: index.cpu_share,
        coalesce: Duration::from_millis(index.coalesce_ms),
    })
}

/// Starts the thread, at the priority of large requests.
pub(super) fn start(
    config: &Config,
    parts: &Parts,
    supervisor: &Supervisor,
    stop: &Arc<AtomicBool>,
) -> Result<Option<JoinHandle<()>>> {
    let Some(index) = IndexLoop::new(parts.engine.clone()) else { return Ok(None) };
    let (flag, pulse) = (stop.clone(), parts.health.heartbeat("live-index", PULSE_LIMIT));
    let nice = u8::try_from(config.learner.nice / 2).unwrap_or_default();
    let run = move || {
        stand_back(nice, "learner.nice");
        index.run(&flag, || pulse.beat());
        Ok(())
    };
    supervisor.start("live-index", "index", stop, run).map(Some)
}
