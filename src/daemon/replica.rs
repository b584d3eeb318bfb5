//! The start of a replica: as that of a daemon, without sources and without a learner. Its appender writes what a
//! leader has written, and its node states are the leader's. Of its graph it writes snapshots, as every daemon does.

use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::sources::Sources;
use super::{
    Daemon, DeviceSelection, PULSE_LIMIT, Parts, Starting, StatusSource, Stop, Store, Supervisor, Threads,
    appender_options, cluster, http, live_index, monitor, scrape, snapshots,
};
use crate::api::{Health, State};
use crate::appender::Appender;
use crate::config::Config;
use crate::metrics::set_count;

impl Daemon {
    /// Starts a replica and returns when it follows its leader; it is ready when it has received the leader's state.
    pub(super) fn attempt_replica(config: &Config, interrupt: &AtomicBool) -> Result<Self> {
        let placement = DeviceSelection::of(config);
        let mut store = Store::open(config)?;
        let parts = Parts::new(config, &store);
        set_count(&parts.metrics.log.torn_bytes, store.recovery.truncated_bytes);
        let starting = Starting { interrupt, metrics: &parts.metrics };
        placement.report(&parts.health, &parts.metrics);
        let sources = Sources::of_replica(config, parts.cluster.clone(), parts.catalog.clone());
        let status = StatusSource::new(config, &store, &parts, &sources, &placement.reason);
        let machine = scrape::Machine::new(config, parts.health.clone());
        scrape::register(&parts.metrics, (status.clone(), parts.engine.clone()), &placement.reason, machine);
        let http = http::Server::start(config, &parts, &sources, &status, &placement.reason)?;
        parts.cluster.report();
        // Operators' requests to a learner have no taker here.
        parts.learner.close();

        let snapshot = store.rebuild_of_replica(&starting)?;
        // As the learner of the leader does.
        parts.engine.states.pairs.limit(config.learner.pairs_max);
        let (stop, supervisor) = (Stop::default(), Supervisor::new(parts.health.clone()));
        let snapshots = snapshots::Writer::new(config, &parts, &store, snapshot);
        let cluster::Receiving { threads, frames } =
            cluster::receive(config, (&parts, &store), &supervisor, &stop)?;
        let appender = Appender::new(
            store.log,
            store.index,
            parts.progress.clone(),
            parts.appender.clone(),
            parts.metrics.clone(),
            appender_options(config),
        );
        let (flag, pulse) = (stop.appender.clone(), parts.health.heartbeat("appender", PULSE_LIMIT));
        let appender = supervisor.start("appender", "log", &stop.appender, move || {
            appender.replicate(&frames, &flag, || pulse.beat())
        })?;
        let snapshots = snapshots.start(&supervisor, &stop.snapshots)?;
        let live_index = live_index::start(config, &parts, &supervisor, &stop.live_index)?;
        parts.health.set(Health::DAEMON, State::Ok, "running");
        let monitor = monitor::watch(&parts, &sources, &supervisor, &stop)?;
        let address = http.address();
        tracing::info!(%address, role = "replica", "ready");
        let Parts { health, snapshot_settings, reloading, .. } = parts;
        let threads = Threads {
            snapshots: Some(snapshots),
            appender,
            learner: None,
            monitor,
            live_index,
            feed: None,
            anomalies: None,
            cluster: threads,
        };
        let reload = (snapshot_settings, reloading);
        Ok(Self { address, health, status, stop, sources, reload, supervisor, threads, http })
    }
}
