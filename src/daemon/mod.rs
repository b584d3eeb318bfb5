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
pub mod backup;
mod beginning;
mod checkpoint_keeping;
mod checkpoints;
pub mod clock_correction;
mod device_selection;
mod feed;
mod http;
mod live_index;
pub mod log_level;
mod memory_limit;
mod monitor;
mod operator;
pub mod promotion;
mod reload;
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
mod store;
mod supervise;
mod threads;
mod tiers;
mod training;

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

use self::checkpoint_keeping::Keeping;
use self::reload::{ReadSettings, Reloading};
use self::snapshot_files::DamagedSnapshot;
use self::snapshot_settings::SharedSnapshotSettings;
use self::snapshots::SnapshotRequests;
use self::supervise::Supervisor;
use self::threads::{Stop, Threads};
use self::training::TrainingPause;
use crate::api::{Health, ReloadResponse, State};
use crate::appender::{Appender, AppenderOptions, AppenderStatus};
use crate::catalog::Catalog;
use crate::config::{Config, Setting, StartPolicy};
use crate::device::Device;
use crate::event::EdgeId;
use crate::learner::checkpoint::Checkpoint;
use crate::learner::{Around, Learned, Learner, LearnerOptions, LearnerStatus, Recorders, Shared};
use crate::metrics::{Metrics, set_count};
use crate::serving::{Anomaly, NodeStates, Progress, QueryEngine};
use crate::train::LoadError;

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
        loop {
            match Self::attempt(config, generated, interrupt) {
                Err(error) if error.is::<DamagedSnapshot>() => {
                    tracing::warn!("the start begins again, with an older snapshot or the log");
                }
                started => return started,
            }
        }
    }

    fn attempt(config: &Config, generated: Option<GeneratedOptions>, interrupt: &AtomicBool) -> Result<Self> {
        let placement = DeviceSelection::of(config, Some(config.data.dir.join(&config.device.kernel_dir)));
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
            tracing::info!(matmul_precision = precision.name(), "the CPU computes what is learned");
        }
        let keeping = learned.keeping(&store.index.stores.graph);
        let snapshot = store.rebuild(keeping, &starting)?;
        let wiring = sources.wiring(config, &store.index)?;
        let clusters = store.checkpoints.clusters();
        let learner = open_learner(config, &store, (learned, began_unix_ms), &parts, &starting)?;
        let snapshots = snapshots::Writer::new(config, &parts, &store, snapshot);
        let snapshots = snapshots.recording(deletions.clone());
        let (stop, supervisor) = (Stop::default(), Supervisor::new(parts.health.clone()));
        let feed = feed::start(config, (&parts, &store), deletions, &supervisor, &stop.feed)?;
        let appender = Appender::new(
            store.log,
            store.index,
            parts.progress.clone(),
            parts.appender.clone(),
            parts.metrics.clone(),
            AppenderOptions {
                commit_events_max: config.log.commit_events_max,
                commit_bytes_max: config.log.commit_bytes_max,
                allowed_lateness: config.stream.lateness(),
                nodes_max: config.stream.nodes_max,
            },
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
        let threads = Threads { snapshots, appender, learner, monitor, live_index, feed, anomalies };
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
        let (engine, judged) = anomalies::watched(live_index::indexed(engine, config), config);
        Self {
            engine: Arc::new(engine),
            judged,
            progress,
            feed: Arc::new(feed::FeedStatus::new(health.clone())),
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

/// What the learner goes on from: the checkpoint that was found, or nothing.
fn open_learned(
    config: &Config,
    store: &Store,
    found: Option<Checkpoint>,
    device: &Device,
) -> Result<Learned> {
    let first = store.log.readers().first();
    let Some(found) = found else { return beginning::learned(config, store, device) };
    let path = store.checkpoints.dir().join(&found.file.name);
    let learned = restore(config, store, device, found).with_context(|| {
        let path = path.display();
        format!("{path} cannot be used; set [model] and [stream] back, or use another data.dir")
    })?;
    hold_stream(&learned, first)?;
    let (position, steps) = (learned.position.0, learned.trainer.steps());
    tracing::info!(position, steps, "restored the learned state");
    Ok(learned)
}

/// An error if a learner would have to read what was cut off the log, which begins at `first`.
fn hold_stream(learned: &Learned, first: EdgeId) -> Result<()> {
    ensure!(
        learned.stream.is_some() || first == EdgeId(0),
        "what the learner knows of the stream would have to be read from the log again, because graph.retention, \
         learner.pairs_max or stream.node_feature_dimension was changed, but the log was cut: set them back, or use \
         another data.dir"
    );
    Ok(())
}

fn open_learner(
    config: &Config,
    store: &Store,
    (mut learned, began_unix_ms): (Learned, i64),
    parts: &Parts,
    starting: &Starting<'_>,
) -> Result<Learner> {
    let learner = &config.learner;
    learned.trainer.cache_rows(config.device.row_cache_bytes);
    learned.trainer.read_rows_in_place(config.device.row_host_bytes);
    learned.trainer.sample_on_device(config.sampler_options());
    let paused = TrainingPause::of(&parts.catalog.lock())?;
    if let Some(TrainingPause { by, .. }) = &paused {
        tracing::warn!(by, "training stays paused by an operator");
    }
    let options = LearnerOptions {
        clock: || u64::try_from(unix_ms() / 1000).unwrap_or_default(),
        train: learner.train && paused.is_none(),
        train_history: learner.start != StartPolicy::Remember,
        batch_events: learner.batch_events,
        batch_wait: Duration::from_millis(learner.batch_wait_ms),
        lag_events_max: learner.lag_events_max,
        lag_target: Duration::from_millis(learner.lag_target_ms),
        share_min: learner.share_min,
        score_all: config.anomalies.score_all,
        began_unix_ms,
        quality_window_batches: learner.quality_window_batches,
        rank_queries: learner.rank_queries_per_batch,
        rank_candidates: learner.rank_candidates,
        pairs_max: learner.pairs_max,
        replay: config.replay_options(),
        met_share: config.met_share(),
        seed: learner.seed,
        threads: learner.threads,
        nice: u8::try_from(learner.nice).unwrap_or(19),
        checkpoint_dir: store.checkpoints.dir().to_path_buf(),
        checkpoint_interval: Duration::from_secs(config.checkpoint.interval_seconds),
        checkpoint_full_every: config.checkpoint.full_every,
        write_rate: parts.snapshot_settings.rate.clone(),
    };
    let shared = Shared {
        engine: parts.engine.clone(),
        progress: parts.progress.clone(),
        status: parts.learner.clone(),
        metrics: parts.metrics.clone(),
    };
    parts.progress.set_durable(store.log.durable_end());
    parts.progress.set_indexed(store.index.end());
    let (health, metrics) = (parts.health.clone(), parts.metrics.clone());
    let device_lost = Box::new(move |why: &str| device_selection::report_loss(&health, &metrics, why));
    let recorders = Recorders { device_lost, ..store.checkpoints.recorders(Keeping::of(config)) };
    let proceed = starting.proceed("reading the log up to the checkpoint", learned.position);
    let log = store.log.readers();
    let learner = Learner::new(learned, log, shared, options, recorders, proceed)?;
    learner.ok_or_else(|| Interrupted.into())
}

/// What a checkpoint holds, for a learner with these settings.
fn restore(
    config: &Config,
    store: &Store,
    device: &Device,
    mut found: Checkpoint,
) -> Result<Learned, LoadError> {
    let options = (config.trainer_options(), config.gate_options());
    let log_is_whole = store.log.readers().first() == EdgeId(0);
    let around = Around { stores: &store.index.stores, pairs_max: config.learner.pairs_max, log_is_whole };
    Learned::load(found.file.head.position, options, device, around, &mut found.payload)
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
