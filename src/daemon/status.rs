//! The status document: the figures of every part of the daemon, for `GET /v1/status`, the terminal and
//! `evergraph status`. Key names contain their units.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::sources::{SourceReport, Sources};
use super::tiers::{self, TierStatus};
use super::{Parts, Store};
use crate::appender::{AppenderStatus, Positions};
use crate::config::Config;
use crate::event::SourcePosition;
use crate::learner::{Decision, GateReport, LearnerStatus};
use crate::serving::{NodeStates, Progress, Stores};

/// The state of the daemon.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names explain themselves and contain units
pub struct StatusDocument {
    pub version: &'static str,
    pub uptime_seconds: f64,
    pub device: String,
    pub resident_bytes: u64,
    pub ingest: IngestStatus,
    pub log: LogStatus,
    pub graph: GraphStatus,
    /// Stores with a memory budget: `graph`, `rows`; empty without budgets.
    pub memory: BTreeMap<&'static str, TierStatus>,
    pub learner: LearnerDocument,
}

/// Events on their way in.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct IngestStatus {
    pub accepted_events: u64,
    pub duplicate_events: u64,
    pub rejected_events: BTreeMap<&'static str, u64>,
    pub queue_batches: usize,
    pub queue_batches_max: usize,
    pub sources: Vec<SourceReport>,
    pub positions: Vec<PositionDocument>,
}

/// How far one partition is in the log.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct PositionDocument {
    pub source: Arc<str>,
    pub partition: i32,
    pub next_offset: i64,
}

/// The event log.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct LogStatus {
    pub state: String,
    pub bytes: u64,
    pub durable_position: u64,
    pub indexed_position: u64,
}

/// The temporal graph in memory.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct GraphStatus {
    pub nodes: u64,
    pub edges: u64,
    pub late_edges: u64,
    /// Released by the retention.
    pub expired_edges: u64,
    /// Edges with a type beyond `model.edge_types`.
    pub unknown_type_edges: u64,
    pub blocks: u64,
    pub bytes: BTreeMap<&'static str, u64>,
    pub latest_event_time: Option<i64>,
    pub watermark: Option<i64>,
}

/// The learning loop.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct LearnerDocument {
    pub model: &'static str,
    pub model_version: u64,
    pub applied_position: u64,
    pub lag_events: u64,
    pub trained_events: u64,
    pub skipped_events: u64,
    /// Whether the learner is at history: events from before it first began, which are always trained on.
    pub training_on_history: bool,
    pub loss: Option<f32>,
    pub average_precision: Option<f64>,
    pub auc: Option<f64>,
    pub mrr: Option<f64>,
    pub edgebank_average_precision: Option<f64>,
    pub end_to_end_freshness_p50_seconds: Option<f64>,
    pub end_to_end_freshness_p99_seconds: Option<f64>,
    /// The promotion gate; `None` where it is disabled.
    pub gate: Option<GateDocument>,
    pub node_state_bytes: u64,
    /// What only the learner reads: memory, mailbox, EdgeBank's pairs, destinations for negatives, feature rows of nodes.
    pub bytes: BTreeMap<&'static str, u64>,
}

/// The promotion gate: counts of decisions since the start, and the latest decision.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct GateDocument {
    pub promoted: u64,
    pub held: u64,
    pub rolled_back: u64,
    /// Version that a rollback would publish.
    pub previous_version: Option<u64>,
    pub last: Option<DecisionDocument>,
}

/// One decision of the gate, with average precision over its window.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct DecisionDocument {
    pub verdict: &'static str,
    pub position: u64,
    pub candidate_version: u64,
    pub published_version: Option<u64>,
    pub previous_version: Option<u64>,
    pub candidate_average_precision: f64,
    pub published_average_precision: Option<f64>,
    pub previous_average_precision: Option<f64>,
    pub edgebank_average_precision: f64,
}

impl From<GateReport> for GateDocument {
    fn from(report: GateReport) -> Self {
        let GateReport { promoted, held, rolled_back, last, kept } = report;
        Self { promoted, held, rolled_back, previous_version: kept, last: last.map(DecisionDocument::from) }
    }
}

impl From<Decision> for DecisionDocument {
    fn from(decision: Decision) -> Self {
        let figures = decision.figures;
        Self {
            verdict: decision.verdict.name(),
            position: decision.position,
            candidate_version: decision.candidate,
            published_version: decision.published,
            previous_version: decision.kept,
            candidate_average_precision: figures.candidate,
            published_average_precision: figures.published,
            previous_average_precision: figures.kept,
            edgebank_average_precision: figures.edgebank,
        }
    }
}

/// Builds the document on request.
#[derive(Clone)]
pub struct StatusSource(Arc<Inputs>);

struct Inputs {
    started: Instant,
    device: String,
    queue_batches_max: usize,
    gated: bool,
    model: &'static str,
    unknown_type_edges: Arc<AtomicU64>,
    stores: Stores,
    positions: Arc<Positions>,
    progress: Arc<Progress>,
    states: Arc<NodeStates>,
    appender: Arc<AppenderStatus>,
    learner: Arc<LearnerStatus>,
    sources: Sources,
}

impl StatusSource {
    pub(super) fn new(
        config: &Config,
        store: &Store,
        parts: &Parts,
        sources: &Sources,
        device: &str,
    ) -> Self {
        Self(Arc::new(Inputs {
            started: Instant::now(),
            device: device.to_owned(),
            queue_batches_max: config.ingest.queue_batches_max,
            gated: config.learner.gate.enabled,
            model: config.model_options().name(),
            unknown_type_edges: store.index.unknown_type_edges.clone(),
            stores: store.index.stores.clone(),
            positions: store.index.positions.clone(),
            progress: parts.progress.clone(),
            states: parts.engine.states.clone(),
            appender: parts.appender.clone(),
            learner: parts.learner.clone(),
            sources: sources.clone(),
        }))
    }

    /// The current document.
    #[must_use]
    pub fn document(&self) -> StatusDocument {
        StatusDocument {
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: self.0.started.elapsed().as_secs_f64(),
            device: self.0.device.clone(),
            resident_bytes: resident_bytes(),
            ingest: self.0.ingest(),
            log: self.0.log(),
            graph: self.0.graph(),
            memory: tiers::stores(&self.0.stores.graph, &self.0.stores.edge_features),
            learner: self.0.learner(),
        }
    }
}

impl Inputs {
    fn ingest(&self) -> IngestStatus {
        let sources = self.sources.reports();
        let mut rejected_events = BTreeMap::new();
        for (reason, count) in sources.iter().flat_map(|source| &source.rejected_by_reason) {
            *rejected_events.entry(*reason).or_default() += count;
        }
        let positions = self.positions.all().into_iter().map(PositionDocument::from).collect();
        IngestStatus {
            accepted_events: self.appender.accepted(),
            duplicate_events: self.appender.duplicates(),
            rejected_events,
            queue_batches: self.sources.queued(),
            queue_batches_max: self.queue_batches_max,
            sources,
            positions,
        }
    }

    fn log(&self) -> LogStatus {
        LogStatus {
            state: self.appender.state().fault().unwrap_or_else(|| "writable".to_owned()),
            bytes: self.appender.log_bytes(),
            durable_position: self.progress.durable().0,
            indexed_position: self.progress.indexed().0,
        }
    }

    fn graph(&self) -> GraphStatus {
        let stats = self.stores.graph.stats();
        let bytes = BTreeMap::from([
            // Spilled bytes are listed under `memory`.
            ("entries", stats.bytes.entries.saturating_sub(stats.bytes.on_disk)),
            ("slack", stats.bytes.slack),
            ("headers", stats.bytes.headers),
            ("directories", stats.bytes.directories),
            ("locks", stats.bytes.locks),
            ("plan", stats.bytes.plan),
            ("dictionary", self.stores.keys.bytes()),
            ("features", self.stores.edge_features.bytes() + self.stores.node_features.bytes()),
        ]);
        GraphStatus {
            nodes: self.stores.keys.len() as u64,
            edges: stats.edges,
            late_edges: stats.late_edges,
            expired_edges: stats.expired_edges,
            unknown_type_edges: self.unknown_type_edges.load(Ordering::Relaxed),
            blocks: stats.blocks,
            bytes,
            latest_event_time: self.stores.graph.latest_time().map(|time| time.0),
            watermark: self.progress.watermark().map(|time| time.0),
        }
    }

    fn learner(&self) -> LearnerDocument {
        let report = self.learner.report();
        let freshness = self.learner.freshness_seconds();
        LearnerDocument {
            model: self.model,
            model_version: report.model_version,
            applied_position: report.position.0,
            lag_events: self.progress.behind(),
            trained_events: report.trained,
            skipped_events: report.skipped,
            training_on_history: report.history,
            loss: report.loss,
            average_precision: report.quality.map(|quality| quality.average_precision),
            auc: report.quality.map(|quality| quality.auc),
            mrr: report.quality.and_then(|quality| quality.mrr),
            edgebank_average_precision: report.quality.map(|quality| quality.baseline),
            end_to_end_freshness_p50_seconds: freshness.map(|(p50, _)| p50),
            end_to_end_freshness_p99_seconds: freshness.map(|(_, p99)| p99),
            gate: self.gated.then(|| report.gate.into()),
            node_state_bytes: self.states.bytes() as u64,
            bytes: BTreeMap::from([
                ("memory", report.bytes.memory),
                ("mailbox", report.bytes.mailbox),
                ("edgebank", report.bytes.edgebank),
                ("destinations", report.bytes.destinations),
                ("node_rows", report.bytes.node_rows),
            ]),
        }
    }
}

impl From<SourcePosition> for PositionDocument {
    fn from(position: SourcePosition) -> Self {
        Self { source: position.source, partition: position.partition, next_offset: position.next_offset }
    }
}

/// Resident memory of this process; 0 where unknown.
#[must_use]
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
