//! The configured sources: created while the log is being read, started afterwards, stopped first when the daemon
//! ends.

mod gate;
mod moving;
mod topics;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam_channel::Sender;
use parking_lot::Mutex;

use self::gate::Gate;
use super::cluster::ClusterStatus;
use super::source_options::{dead_letter_target, decode_options, push_options};
use crate::api::{OperatorError, SourceReport};
use crate::appender::Index;
use crate::catalog::{Catalog, CatalogError, PausedSource};
use crate::config::{Config, LatePolicy};
use crate::event::{Intake, Submission};
use crate::ingest::admit::{Admission, AdmitOptions, LatePolicy as AdmitLate, NodeLimit};
use crate::ingest::dead_letter::DeadLetters;
use crate::ingest::generated::{self, GeneratedWorld};
use crate::ingest::kafka::{ClusterMemory, KafkaSource, KafkaState};
use crate::ingest::push::{PUSH_SOURCE, PushIntake};
use crate::ingest::rejection::IngestStats;
use crate::ingest::replay::{Replay, ReplayOptions, ReplayState};
use crate::ingest::{Holds, SourceWiring};

/// Every state a source can be in.
pub const STATES: [&str; 7] = ["connecting", "running", "paused", "degraded", "failed", "stopped", "ended"];
/// How long a source may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The built-in stream of the demo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneratedOptions {
    /// Seed of the generated stream.
    pub seed: u64,
    /// Its rate.
    pub events_per_second: f64,
}

/// All sources; clones share them.
#[derive(Clone)]
pub struct Sources(Arc<Inner>);

struct Inner {
    queue: Sender<Submission>,
    generated: Option<GeneratedOptions>,
    gate: Option<Arc<Gate>>,
    running: Mutex<Vec<Running>>,
    /// What each Kafka source is started with, by its name.
    kafka: OnceLock<topics::TopicSources>,
    /// Held while a source is taken to other positions.
    moving: Mutex<()>,
    stop: Arc<AtomicBool>,
    catalog: Arc<Mutex<Catalog>>,
    holds: Arc<Holds>,
    /// Paused sources by name.
    held: Mutex<BTreeMap<String, PausedSource>>,
}

enum Running {
    Generated { stats: Arc<IngestStats>, thread: Option<JoinHandle<()>> },
    Push { intake: Arc<PushIntake> },
    File { source: Replay },
    Kafka { source: Arc<KafkaSource> },
}

impl Sources {
    /// Creates the sources without starting them; `queue` leads to the appender. Sources that are paused in the catalog
    /// stay paused.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub(super) fn prepare(
        config: &Config,
        queue: Sender<Submission>,
        generated: Option<GeneratedOptions>,
        catalog: Arc<Mutex<Catalog>>,
    ) -> Result<Self> {
        let is_mapped = !config.ingest.http.mapping.is_empty();
        let gate = config.ingest.http.enabled.then(|| Arc::new(Gate { is_mapped, ..Gate::default() }));
        let rows = catalog.lock().paused_sources()?;
        let holds = Arc::new(Holds::default());
        for PausedSource { source, by, .. } in &rows {
            tracing::warn!(source, by, "the source stays paused by an operator");
            holds.set(source, true);
        }
        let held = Mutex::new(rows.into_iter().map(|row| (row.source.clone(), row)).collect());
        let (running, stop) = (Mutex::default(), Arc::default());
        let (kafka, moving) = (OnceLock::new(), Mutex::default());
        let inner = Inner { queue, generated, gate, running, kafka, moving, stop, catalog, holds, held };
        Ok(Self(Arc::new(inner)))
    }

    /// The sources of a replica: none; pushed events are refused.
    pub(super) fn of_replica(
        config: &Config,
        cluster: Arc<ClusterStatus>,
        catalog: Arc<Mutex<Catalog>>,
    ) -> Self {
        let gate = Gate { replica: Some(cluster), ..Gate::default() };
        let gate = config.ingest.http.enabled.then(|| Arc::new(gate));
        // Nobody sends anything into it.
        let (queue, _) = crossbeam_channel::bounded(0);
        Self(Arc::new(Inner {
            queue,
            generated: None,
            gate,
            running: Mutex::default(),
            kafka: OnceLock::new(),
            moving: Mutex::default(),
            stop: Arc::default(),
            catalog,
            holds: Arc::default(),
            held: Mutex::default(),
        }))
    }

    /// Pauses or resumes a source until the next such request. Returns who paused it.
    ///
    /// # Errors
    /// When no source has the name so, or the catalog cannot store the decision; then nothing changes.
    pub(super) fn set_paused(
        &self,
        source: &str,
        paused: bool,
        by: &str,
    ) -> Result<Option<PausedSource>, OperatorError> {
        // One decision at a time. The list of paused sources is locked only briefly: reports read it.
        let names = self.0.running.lock().iter().map(|running| running.name().to_owned()).collect::<Vec<_>>();
        let catalog = self.0.catalog.lock();
        if !names.iter().any(|name| name == source) && !self.0.held.lock().contains_key(source) {
            return Err(OperatorError::UnknownSource { requested: source.to_owned(), known: names });
        }
        let not_stored = |error: CatalogError| OperatorError::Failed(format!("nothing was changed: {error}"));
        let row = paused.then(|| PausedSource {
            source: source.to_owned(),
            by: by.to_owned(),
            since_unix_ms: super::unix_ms(),
        });
        match &row {
            Some(row) => catalog.pause_source(row).map_err(not_stored)?,
            None => catalog.resume_source(source).map_err(not_stored)?,
        }
        let mut held = self.0.held.lock();
        match row {
            Some(row) => {
                held.entry(row.source.clone()).or_insert(row);
            }
            None => {
                held.remove(source);
            }
        }
        self.0.holds.set(source, paused);
        Ok(held.get(source).cloned())
    }

    /// The intake of pushed events; `None` where pushes are disabled.
    pub(super) fn intake(&self) -> Option<Arc<dyn Intake>> {
        self.0.gate.clone().map(|gate| gate as Arc<dyn Intake>)
    }

    /// What sources are connected to; to be made when `index` has been rebuilt.
    pub(super) fn wiring(&self, config: &Config, index: &Index) -> Result<SourceWiring> {
        let stream = &config.stream;
        let options = AdmitOptions {
            edge_feature_dim: stream.edge_feature_dimension,
            node_feature_dim: stream.node_feature_dimension,
            allowed_lateness: stream.lateness(),
            late: match stream.late_policy {
                LatePolicy::Accept => AdmitLate::Accept,
                LatePolicy::Drop => AdmitLate::Drop,
                LatePolicy::DeadLetter => AdmitLate::DeadLetter,
            },
            future_limit: stream.future_limit(),
        };
        if options.allowed_lateness.is_some() && options.future_limit.is_none() {
            tracing::warn!(
                "stream.allowed_lateness is set and stream.future_limit is not: one event with a wrong time makes \
                 the events after it in its partition late; set stream.future_limit above the longest gap of the \
                 stream"
            );
        }
        Ok(SourceWiring {
            submissions: self.0.queue.clone(),
            positions: index.positions.clone(),
            admission: Admission::with_nodes(
                options,
                (stream.nodes_max > 0)
                    .then(|| NodeLimit { nodes_max: stream.nodes_max, names: index.stores.keys.clone() }),
            ),
            dead_letters: DeadLetters::open(dead_letter_target(config))?,
            holds: self.0.holds.clone(),
        })
    }

    /// Starts every configured source.
    pub(super) fn start(
        &self,
        config: &Config,
        wiring: &SourceWiring,
        clusters: ClusterMemory,
    ) -> Result<()> {
        let mut running = self.0.running.lock();
        if let Some(gate) = &self.0.gate {
            let intake = PushIntake::new(push_options(config), wiring.clone());
            let intake = Arc::new(intake.with_mapping(config.mapping(&config.ingest.http.mapping)));
            running.push(Running::Push { intake: intake.clone() });
            // Set once: `start` is called once.
            let _ = gate.intake.set(intake);
        }
        if let Some(options) = self.0.generated {
            running.push(self.start_generated(options, wiring)?);
        }
        let file = &config.ingest.file;
        if file.path != Path::new("") {
            let mut options = ReplayOptions::new(&file.path);
            options.events_per_second = (file.events_per_second > 0.0).then_some(file.events_per_second);
            options.decode = decode_options(config);
            options.mapping = config.mapping(&file.mapping);
            running.push(Running::File { source: Replay::start(options, wiring.clone())? });
        }
        let topics = topics::sources(config, wiring, &clusters)?;
        for (options, wiring) in self.0.kafka.get_or_init(|| topics).values() {
            let source = KafkaSource::start(options.clone(), wiring.clone())
                .context("ingest.kafka: the settings cannot be used")?;
            running.push(Running::Kafka { source: Arc::new(source) });
        }
        Ok(())
    }

    fn start_generated(&self, options: GeneratedOptions, wiring: &SourceWiring) -> Result<Running> {
        let stats = Arc::new(IngestStats::default());
        let (counters, stop, wiring) = (stats.clone(), self.0.stop.clone(), wiring.clone());
        let world = GeneratedWorld { seed: options.seed, era_events: 0 };
        let thread = super::spawn("generated-source", move || {
            let (queue, positions) = ((&wiring.submissions, &*wiring.holds), &*wiring.positions);
            generated::run(world, options.events_per_second, positions, queue, &counters, &stop);
        })?;
        Ok(Running::Generated { stats, thread: Some(thread) })
    }

    /// Ends every source and waits for it.
    pub(super) fn stop(&self) {
        self.0.stop.store(true, Ordering::Release);
        // First: clients that push continuously would keep the appender busy forever.
        if let Some(gate) = &self.0.gate {
            gate.closed.store(true, Ordering::Release);
        }
        let mut running = self.0.running.lock();
        // All of them, before any is waited for.
        for source in running.iter() {
            if let Running::Kafka { source } = source {
                source.request_stop();
            }
        }
        for source in running.iter_mut() {
            let ended = match source {
                Running::Generated { thread, .. } => thread.take().is_none_or(|thread| thread.join().is_ok()),
                Running::Push { .. } => true,
                Running::File { source } => source.stop(STOP_LIMIT),
                Running::Kafka { source } => source.stop(STOP_LIMIT),
            };
            if !ended {
                tracing::warn!(
                    "a source did not end in time and is abandoned; its events are safe at their origin"
                );
            }
        }
    }

    /// Batches that wait for the log.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.0.queue.len()
    }

    /// Reports of all sources.
    #[must_use]
    pub fn reports(&self) -> Vec<SourceReport> {
        let stopping = self.0.stop.load(Ordering::Acquire);
        let held = self.0.held.lock().clone();
        let report = |source: &Running| {
            let report = source.report(stopping);
            match held.get(&report.name) {
                Some(row) => held_by(report, row),
                None => report,
            }
        };
        self.0.running.lock().iter().map(report).collect()
    }
}

/// The report of a source that an operator paused. A fault of the source takes precedence.
fn held_by(report: SourceReport, row: &PausedSource) -> SourceReport {
    let report = SourceReport {
        paused_by: Some(row.by.clone()),
        paused_since_unix_ms: Some(row.since_unix_ms),
        ..report
    };
    if !matches!(report.state, "running" | "connecting" | "paused") {
        return report;
    }
    let seconds = super::unix_ms().saturating_sub(row.since_unix_ms).max(0) / 1000;
    let detail = format!("paused by {} for {seconds} s; `evergraph source resume` resumes it", row.by);
    SourceReport { state: "paused", detail, ..report }
}

impl Running {
    fn name(&self) -> &str {
        match self {
            Self::Generated { .. } => generated::SOURCE,
            Self::Push { .. } => PUSH_SOURCE,
            Self::File { source } => source.name(),
            Self::Kafka { source } => source.name(),
        }
    }

    fn report(&self, stopping: bool) -> SourceReport {
        let plain = if stopping { "stopped" } else { "running" };
        match self {
            Self::Generated { stats, .. } => report(generated::SOURCE, plain, String::new(), stats),
            Self::Push { intake } => report(PUSH_SOURCE, plain, String::new(), intake.stats()),
            Self::File { source } => {
                let (state, detail) = match source.state() {
                    ReplayState::Running => ("running", String::new()),
                    ReplayState::Done => ("ended", "the whole file is in the log".to_owned()),
                    ReplayState::Degraded { reason } => ("degraded", reason),
                    ReplayState::Stopped => ("stopped", String::new()),
                    ReplayState::Failed { reason } => ("failed", reason),
                };
                report(source.name(), state, detail, source.stats())
            }
            Self::Kafka { source } => {
                let status = source.status();
                let (state, detail) = match status.state {
                    KafkaState::Running if status.back_pressure => ("paused", "the log is behind".to_owned()),
                    KafkaState::Running => ("running", String::new()),
                    KafkaState::Connecting => ("connecting", "waiting for partitions".to_owned()),
                    KafkaState::Paused => ("paused", "paused by an operator".to_owned()),
                    KafkaState::Degraded { reason, .. } => ("degraded", reason),
                    KafkaState::Failed { reason, .. } => ("failed", reason),
                    KafkaState::Stopped => ("stopped", String::new()),
                };
                let mut report = report(source.name(), state, detail, source.stats());
                report.lag_records = status
                    .partitions
                    .iter()
                    .filter_map(|(id, partition)| Some((*id, partition.lag?)))
                    .collect();
                report
            }
        }
    }
}

fn report(name: &str, state: &'static str, detail: String, stats: &IngestStats) -> SourceReport {
    let counts = stats.snapshot();
    SourceReport {
        name: name.to_owned(),
        state,
        detail,
        received_events: counts.received,
        accepted_events: counts.stored,
        duplicate_events: counts.duplicates,
        rejected_events: counts.rejected.iter().map(|(_, count)| count).sum(),
        late_accepted_events: counts.late_accepted,
        late_dropped_events: counts.late_dropped,
        ignored_events: counts.ignored,
        dead_letters: counts.dead_letters,
        lag_records: BTreeMap::new(),
        paused_by: None,
        paused_since_unix_ms: None,
        reconnects: counts.reconnects,
        token_failures: counts.token_failures,
        rejected_by_reason: counts.rejected,
    }
}
