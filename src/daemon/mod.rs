//! The whole program on one page: what is opened, which threads run, how they end.
//!
//! ```text
//! sources ──queue──▶ appender ──log, graph──▶ learner ──states, weights──▶ API
//!  1 thread each      1 thread                 1 thread                     tokio
//! ```
//!
//! Start: open the data directory, serve HTTP as "not ready", restore the newest checkpoint, load the newest snapshot
//! that fits it, read the log from there, start the loops, then the sources. Stop, in the other direction: readiness
//! goes false, sources end, the appender empties the queue, the learner writes a checkpoint, HTTP drains. Operators'
//! decisions about the weights of a stopped daemon are in [`promotion`].

mod anomalies;
mod automatic_device;
pub mod backup;
mod beginning;
mod checkpoint_keeping;
mod checkpoints;
pub mod clock_correction;
mod cluster;
mod device_selection;
mod feed;
mod http;
mod learning;
mod live_index;
pub mod log_level;
mod memory_limit;
mod monitor;
mod operator;
pub mod promotion;
pub mod ranks;
mod reload;
mod replica;
mod scrape;
pub mod seek;
pub mod service;
mod snapshot_files;
mod snapshot_settings;
mod snapshots;
pub mod source_options;
pub mod sources;
mod starting;
mod status;
pub mod stopped;
mod store;
mod supervise;
pub mod takeover;
mod threads;
mod tiers;
mod training;
mod verified_kernels;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use crossbeam_channel::Receiver;
use parking_lot::Mutex;

pub use crate::api::{StatusDocument, TierStatus};
pub use checkpoints::{Checkpoints, Restored};
pub use device_selection::DeviceSelection;
pub use feed::resend as resend_feed;
pub use memory_limit::limit_bytes;
pub use sources::{GeneratedOptions, STATES as SOURCE_STATES};
pub use starting::{Interrupted, Starting};
pub use status::{StatusSource, resident_bytes};
pub use store::{Store, fixed_settings};

use self::learning::{open_learned, open_learner};
use self::ranks::Ranks;
use self::reload::{ReadSettings, Reloading};
use self::snapshot_files::DamagedSnapshot;
use self::snapshot_settings::SharedSnapshotSettings;
use self::snapshots::SnapshotRequests;
use self::supervise::Supervisor;
use self::threads::{Stop, Threads};
use crate::api::{Health, ReloadResponse, State};
use crate::appender::{Appender, AppenderOptions, AppenderStatus};
use crate::catalog::Catalog;
use crate::config::{ClusterRole, Config, Setting};
use crate::device::exchange::Exchange;
use crate::learner::LearnerStatus;
use crate::metrics::{Metrics, set_count};
use crate::serving::{Anomaly, NodeStates, Progress, QueryEngine, StateChanges};

/// A loop without a heartbeat for this long is stuck.
const PULSE_LIMIT: Duration = Duration::from_secs(60);

/// The running daemon.
pub struct Daemon {
    address: SocketAddr,
    health: Arc<Health>,
    status: StatusSource,
    stop: Stop,
    sources: sources::Sources,
    /// What a reload changes, and what carries it out.
    reload: (Arc<SharedSnapshotSettings>, Arc<OnceLock<Reloading>>),
    supervisor: Supervisor,
    threads: Threads,
    http: http::Server,
}

impl Daemon {
    /// Starts everything and returns when the daemon is ready. Setting `interrupt` ends a start that is
    /// still reading.
    ///
    /// # Errors
    /// [`Interrupted`], or when the data directory, the address or a source cannot be opened; the message
    /// suggests what to do.
    pub fn start(
        config: &Config,
        generated: Option<GeneratedOptions>,
        interrupt: &AtomicBool,
    ) -> Result<Self> {
        ensure!(
            Ranks::expected(config) <= 1,
            "learner.ranks is for `evergraph serve`, which `mpiexec` starts"
        );
        Self::start_leading(config, &mut None, generated, interrupt)
    }

    /// The same, and its learner trains together with other processes, if there are any, and has them from then on.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_leading(
        config: &Config,
        others: &mut Option<Box<dyn Exchange>>,
        generated: Option<GeneratedOptions>,
        interrupt: &AtomicBool,
    ) -> Result<Self> {
        loop {
            let started = match config.cluster.role {
                ClusterRole::Replica => Self::attempt_replica(config, interrupt),
                ClusterRole::Single | ClusterRole::Leader => {
                    Self::attempt(config, others, generated, interrupt)
                }
            };
            match started {
                Err(error) if error.is::<DamagedSnapshot>() => {
                    tracing::warn!("the start begins again, with an older snapshot or the log");
                }
                started => return started,
            }
        }
    }

    fn attempt(
        config: &Config,
        others: &mut Option<Box<dyn Exchange>>,
        generated: Option<GeneratedOptions>,
        interrupt: &AtomicBool,
    ) -> Result<Self> {
        let placement = DeviceSelection::of(config);
        let mut store = Store::open(config)?;
        let parts = Parts::new(config, &store);
        let deletions = feed::prepare(config, &store)?;
        set_count(&parts.metrics.log.torn_bytes, store.recovery.truncated_bytes);
        let starting = Starting { interrupt, metrics: &parts.metrics };
        placement.report(&parts.health, &parts.metrics);
        let (sender, queue) = crossbeam_channel::bounded(config.ingest.queue_batches_max);
        let sources = sources::Sources::prepare(config, sender, generated, parts.catalog.clone())?;
        let status = StatusSource::new(config, &store, &parts, &sources, &placement.reason);
        let machine = scrape::Machine::new(config, parts.health.clone());
        let shown = (status.clone(), parts.engine.clone());
        scrape::register(&parts.metrics, shown, &placement.reason, machine);
        let http = http::Server::start(config, &parts, &sources, &status, &placement.reason)?;

        let found = store.checkpoints.newest(&store.log.readers())?;
        let began_unix_ms = beginning::began(found.as_ref().map(|found| found.file.head), unix_ms());
        let mut learned = open_learned(config, &store, found, &placement.device)?;
        if let Some(precision) = learned.trainer.precision() {
            let (matmul_precision, unit) = (precision.name(), precision.unit());
            tracing::info!(matmul_precision, unit, "the CPU computes what is learned");
        }
        let keeping = learned.keeping(&store.index.stores.graph);
        let snapshot = store.rebuild(keeping, &starting)?;
        let wiring = sources.wiring(config, &store.index)?;
        let clusters = store.checkpoints.clusters();
        let learner = open_learner(config, &store, (learned, began_unix_ms), &parts, &starting)?;
        let learner = learner.leading(others.take());
        let snapshots = snapshots::Writer::new(config, &parts, &store, snapshot);
        let snapshots = snapshots.recording(deletions.clone());
        let (stop, supervisor) = (Stop::default(), Supervisor::new(parts.health.clone()));
        let feed = feed::start(config, (&parts, &store), deletions, &supervisor, &stop.feed)?;
        let cluster = cluster::ship(config, (&parts, &store), &supervisor, &stop)?;
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
            appender.run(&queue, &flag, || pulse.beat());
            Ok(())
        })?;
        let (flag, pulse) = (stop.learner.clone(), parts.health.heartbeat("learner", PULSE_LIMIT));
        let learner = supervisor.start("learner", "learner", &stop.learner, move || {
            learner.run(&flag, || pulse.beat()).map_err(|error| error.to_string())
        })?;
        let live_index = live_index::start(config, &parts, &supervisor, &stop.live_index)?;
        let anomalies = anomalies::start(config, &parts, &supervisor, &stop.anomalies)?;
        let snapshots = snapshots.start(&supervisor, &stop.snapshots)?;
        sources.start(config, &wiring, clusters)?;
        parts.health.set(Health::DAEMON, State::Ok, "running");
        let monitor = monitor::watch(&parts, &sources, &supervisor, &stop)?;
        let address = http.address();
        tracing::info!(%address, "ready");
        let Parts { health, snapshot_settings, reloading, .. } = parts;
        let (snapshots, learner) = (Some(snapshots), Some(learner));
        let threads = Threads { snapshots, appender, learner, monitor, live_index, feed, anomalies, cluster };
        let reload = (snapshot_settings, reloading);
        Ok(Self { address, health, status, stop, sources, reload, supervisor, threads, http })
    }

    /// Where the HTTP interface listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets settings be reloaded from now on: `read` reads them, and those of the start are `effective`.
    pub fn reload_from(&self, read: ReadSettings, effective: Vec<Setting>) {
        let (snapshots, reloading) = &self.reload;
        let (snapshots, effective) = (snapshots.clone(), Mutex::new(effective));
        // Set once: a second call changes nothing.
        let _ = reloading.set(Reloading { read, effective, snapshots });
    }

    /// Reloads the settings.
    ///
    /// # Errors
    /// When they have faults, or [`reload_from`](Self::reload_from) was not called.
    pub fn reload(&self) -> Result<ReloadResponse> {
        self.reload.1.get().context("there is nothing to reload settings from")?.reload()
    }

    /// The status document.
    #[must_use]
    pub fn status(&self) -> StatusDocument {
        self.status.document()
    }

    /// Why the daemon should be restarted: a loop has ended unexpectedly.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        let faults = self.supervisor.faults();
        (!faults.is_empty()).then(|| faults.into_values().collect::<Vec<_>>().join("; "))
    }

    /// Drains, writes a checkpoint and ends.
    ///
    /// # Errors
    /// When a loop ended unexpectedly; the message has the loop and the reason.
    pub fn stop(self) -> Result<()> {
        self.health.set(Health::DAEMON, State::Failed, "draining");
        self.stop.draining.store(true, Ordering::Release);
        self.sources.stop();
        self.threads.end(&self.stop);
        self.http.stop();
        let faults = self.supervisor.faults();
        ensure!(faults.is_empty(), "{}", faults.into_values().collect::<Vec<_>>().join("; "));
        Ok(())
    }
}

/// What several stages share.
pub(crate) struct Parts {
    engine: Arc<QueryEngine>,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    appender: Arc<AppenderStatus>,
    learner: Arc<LearnerStatus>,
    snapshots: Arc<SnapshotRequests>,
    snapshot_settings: Arc<SharedSnapshotSettings>,
    reloading: Arc<OnceLock<Reloading>>,
    catalog: Arc<Mutex<Catalog>>,
    feed: Arc<feed::FeedStatus>,
    cluster: Arc<cluster::ClusterStatus>,
    /// Events that were judged, where there is a topic for them.
    judged: Option<Receiver<Vec<Anomaly>>>,
}

impl Parts {
    fn new(config: &Config, store: &Store) -> Self {
        let progress = Arc::new(Progress::new());
        let engine = QueryEngine::new(
            store.index.stores.clone(),
            Arc::new(NodeStates::new(config.model_options().needs().row_dim())),
            progress.clone(),
        );
        let (metrics, health) = (Metrics::new(), Health::new());
        if config.cluster.role == ClusterRole::Leader {
            StateChanges::follow(&engine.states);
        }
        let (engine, judged) = anomalies::watched(live_index::indexed(engine, config), config);
        Self {
            engine: Arc::new(engine),
            judged,
            progress,
            feed: Arc::new(feed::FeedStatus::new(health.clone())),
            cluster: Arc::new(cluster::ClusterStatus::new(config, health.clone())),
            metrics,
            health,
            appender: Arc::default(),
            learner: Arc::default(),
            snapshots: snapshots::requests(),
            snapshot_settings: SharedSnapshotSettings::new(config),
            reloading: Arc::default(),
            catalog: store.checkpoints.catalog(),
        }
    }
}

fn appender_options(config: &Config) -> AppenderOptions {
    AppenderOptions {
        commit_events_max: config.log.commit_events_max,
        commit_bytes_max: config.log.commit_bytes_max,
        allowed_lateness: config.stream.lateness(),
        nodes_max: config.stream.nodes_max,
    }
}

/// Milliseconds since the Unix epoch.
fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).with_context(|| format!("cannot start the thread {name}"))
}
