//! Fills the status document with the figures of every part of the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::cluster::ClusterStatus;
use super::feed::FeedStatus;
use super::sources::Sources;
use super::{Parts, Store, tiers};
use crate::api::{
    CatchUpDocument, DecisionDocument, GateDocument, GraphStatus, IngestStatus, LearnerDocument, LogStatus,
    PositionDocument, StatusDocument,
};
use crate::appender::{AppenderStatus, Positions};
use crate::config::{ClusterRole, Config};
use crate::event::SourcePosition;
use crate::learner::{Decision, GateReport, LearnerBytes, LearnerStatus, Versions};
use crate::serving::{NodeStates, Progress, QueryEngine, Stores};

impl From<GateReport> for GateDocument {
    fn from(report: GateReport) -> Self {
        let GateReport { promoted, held, rolled_back, last, versions } = report;
        let Versions { kept: previous_version, anchor: anchor_version, .. } = versions;
        Self { promoted, held, rolled_back, previous_version, anchor_version, last: last.and_then(document) }
    }
}

/// A decision of the gate; `None` for an operator's, which no figures led to.
fn document(decision: Decision) -> Option<DecisionDocument> {
    let (figures, versions) = (decision.figures?, decision.versions);
    Some(DecisionDocument {
        verdict: decision.verdict.name(),
        position: decision.position,
        candidate_version: decision.candidate,
        published_version: versions.published,
        anchor_version: versions.anchor,
        candidate_average_precision: figures.candidate.average_precision,
        published_average_precision: figures.published.map(|found| found.average_precision),
        anchor_average_precision: figures.anchor.map(|found| found.average_precision),
        edgebank_average_precision: figures.edgebank,
        candidate_log_loss: figures.candidate.log_loss,
        published_log_loss: figures.published.map(|found| found.log_loss),
        anchor_log_loss: figures.anchor.map(|found| found.log_loss),
    })
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
    ranks: usize,
    unknown_type_edges: Arc<AtomicU64>,
    stores: Stores,
    positions: Arc<Positions>,
    progress: Arc<Progress>,
    states: Arc<NodeStates>,
    engine: Arc<QueryEngine>,
    appender: Arc<AppenderStatus>,
    learner: Arc<LearnerStatus>,
    sources: Sources,
    feed: Arc<FeedStatus>,
    cluster: Arc<ClusterStatus>,
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
            // It has started with as many, or not at all.
            ranks: if config.cluster.role == ClusterRole::Replica { 0 } else { config.learner.ranks },
            unknown_type_edges: store.index.unknown_type_edges.clone(),
            stores: store.index.stores.clone(),
            positions: store.index.positions.clone(),
            progress: parts.progress.clone(),
            states: parts.engine.states.clone(),
            engine: parts.engine.clone(),
            appender: parts.appender.clone(),
            learner: parts.learner.clone(),
            sources: sources.clone(),
            feed: parts.feed.clone(),
            cluster: parts.cluster.clone(),
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
            feed: self.0.feed.document(),
            cluster: self.0.cluster.document(),
            freshness: self.0.engine.freshness().into(),
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
            ranks: self.ranks as u64,
            model_version: report.model_version,
            score_source: self.engine.scores().map(Into::into),
            applied_position: report.position.0,
            lag_events: self.progress.behind(),
            trained_events: report.trained,
            skipped_events: report.skipped,
            training: report.trains,
            training_on_history: report.history,
            catch_up: report.start.and_then(|start| {
                let (remaining_events, remaining_seconds) = start.left(report.position)?;
                Some(CatchUpDocument { until_position: start.until.0, remaining_events, remaining_seconds })
            }),
            loss: report.loss,
            average_precision: report.quality.map(|quality| quality.average_precision),
            auc: report.quality.map(|quality| quality.auc),
            mrr: report.quality.and_then(|quality| quality.mrr),
            edgebank_average_precision: report.quality.map(|quality| quality.baseline),
            end_to_end_freshness_p50_seconds: freshness.map(|(p50, _)| p50),
            end_to_end_freshness_p99_seconds: freshness.map(|(_, p99)| p99),
            gate: self.gated.then(|| report.gate.into()),
            node_state_bytes: self.states.bytes() as u64,
            bytes: by_purpose(report.bytes),
        }
    }
}

/// The learner's memory by purpose; the copy of the graph for a GPU where there is one.
fn by_purpose(bytes: LearnerBytes) -> BTreeMap<&'static str, u64> {
    let LearnerBytes { memory, mailbox, edgebank, destinations, node_rows, graph_copy, edge_rows } = bytes;
    let mut purposes = BTreeMap::from([
        ("memory", memory),
        ("mailbox", mailbox),
        ("edgebank", edgebank),
        ("destinations", destinations),
        ("node_rows", node_rows),
    ]);
    if graph_copy > 0 {
        purposes.insert("graph_copy", graph_copy);
    }
    if edge_rows > 0 {
        purposes.insert("edge_rows", edge_rows);
    }
    purposes
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
