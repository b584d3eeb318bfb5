//! The status document in its wire format: the figures of every part of the daemon, for `GET /v1/status`, the terminal
//! and `evergraph status`. Names contain their units. The daemon fills it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use utoipa::ToSchema;

use super::cluster::ClusterDocument;
use super::wire::{Freshness, Source};

/// The state of the daemon, part by part.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct StatusDocument {
    /// Version of the program.
    pub version: &'static str,
    /// Time since the start, seconds.
    pub uptime_seconds: f64,
    /// The device it computes on, with the reason for that choice.
    pub device: String,
    /// Resident memory of the process; 0 where unknown.
    pub resident_bytes: u64,
    /// Events on their way in.
    pub ingest: IngestStatus,
    /// The event log.
    pub log: LogStatus,
    /// The temporal graph in memory.
    pub graph: GraphStatus,
    /// Stores with a memory budget: `graph`, `rows`; empty without budgets.
    pub memory: BTreeMap<&'static str, TierStatus>,
    /// The learning loop.
    pub learner: LearnerDocument,
    /// The change feed; null where there is none.
    #[schema(required = true)]
    pub feed: Option<FeedDocument>,
    /// The leader or the replica that this is; null where the daemon stands alone.
    #[schema(required = true)]
    pub cluster: Option<ClusterDocument>,
    /// How fresh responses are now.
    pub freshness: Freshness,
}

/// The change feed.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct FeedDocument {
    /// Its topic.
    pub topic: String,
    #[schema(value_type = FeedState)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub state: &'static str,
    /// Why, in words; may be empty.
    pub detail: String,
    /// Every event below this log position is in what was delivered; null before all was for the first time.
    #[schema(required = true)]
    pub delivered_position: Option<u64>,
    /// Nodes whose embeddings have changed and are not delivered.
    pub pending_nodes: u64,
    /// For how long those that were taken last have not been; 0 where all are.
    pub behind_seconds: f64,
    /// Embeddings delivered since the start.
    pub delivered_rows: u64,
    /// Embeddings among them that the live index computed.
    pub delivered_index_rows: u64,
    /// Deleted nodes delivered since the start.
    pub delivered_deletions: u64,
    /// Deliveries that failed since the start.
    #[serde(skip)]
    pub failures: u64,
}

/// State of the change feed.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum FeedState {
    /// It delivers what changes.
    Running,
    /// The last delivery failed, and is tried again.
    Failing,
}

/// Events on their way in.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct IngestStatus {
    /// Events stored since the start.
    pub accepted_events: u64,
    /// Events since the start that had been stored before.
    pub duplicate_events: u64,
    /// Events rejected since the start, by reason.
    pub rejected_events: BTreeMap<&'static str, u64>,
    /// Batches that wait for the log.
    pub queue_batches: usize,
    /// Most batches that may wait.
    pub queue_batches_max: usize,
    /// The sources.
    pub sources: Vec<SourceReport>,
    /// How far each partition is in the log.
    pub positions: Vec<PositionDocument>,
}

/// One source of events.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct SourceReport {
    /// Its name.
    #[schema(example = "kafka:evergraph-events")]
    pub name: String,
    #[schema(value_type = SourceState)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub state: &'static str,
    /// Why, in words; may be empty.
    pub detail: String,
    /// Events read since the start, whatever became of them.
    pub received_events: u64,
    /// Events stored.
    pub accepted_events: u64,
    /// Events that had been stored before.
    pub duplicate_events: u64,
    /// Events rejected.
    pub rejected_events: u64,
    /// Late events that were stored.
    pub late_accepted_events: u64,
    /// Late events that were dropped.
    pub late_dropped_events: u64,
    /// Messages without a value that were ignored.
    pub ignored_events: u64,
    /// Events kept as dead letters.
    pub dead_letters: u64,
    /// Messages behind the end of each partition, where known.
    #[schema(value_type = BTreeMap<String, i64>)]
    pub lag_records: BTreeMap<i32, i64>,
    /// Who paused it, if an operator did.
    #[schema(required = true)]
    pub paused_by: Option<String>,
    /// Since when, milliseconds since the Unix epoch, if an operator paused it.
    #[schema(required = true)]
    pub paused_since_unix_ms: Option<i64>,
    /// Times it began with a new client because the old one found no broker.
    #[serde(skip)]
    pub reconnects: u64,
    /// Times no token to log in with could be had.
    #[serde(skip)]
    pub token_failures: u64,
    /// Events rejected, by reason.
    #[serde(skip)]
    pub rejected_by_reason: Vec<(&'static str, u64)>,
}

/// State of a source.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum SourceState {
    /// It waits for its partitions.
    Connecting,
    /// It submits events.
    Running,
    /// It waits for the log, or an operator paused it.
    Paused,
    /// It goes on with a restriction.
    Degraded,
    /// It ended with a fault.
    Failed,
    /// The daemon stops.
    Stopped,
    /// It has submitted all that it has.
    Ended,
}

/// How far one partition is in the log.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PositionDocument {
    /// Name of the source.
    #[schema(value_type = String)]
    pub source: Arc<str>,
    /// Partition of the source.
    pub partition: i32,
    /// The offset after the last one in the log.
    pub next_offset: i64,
}

/// The event log.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct LogStatus {
    /// `writable`, or why it is not.
    #[schema(example = "writable")]
    pub state: String,
    /// Its size.
    pub bytes: u64,
    /// Every log position below survives a crash.
    pub durable_position: u64,
    /// Every log position below is in the graph.
    pub indexed_position: u64,
}

/// The temporal graph in memory.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct GraphStatus {
    /// Nodes that were ever named.
    pub nodes: u64,
    /// Live edges.
    pub edges: u64,
    /// Edges that came after later ones of a node.
    pub late_edges: u64,
    /// Edges released by the retention.
    pub expired_edges: u64,
    /// Edges with a type beyond `model.edge_types`.
    pub unknown_type_edges: u64,
    /// Blocks of memory that hold edges.
    pub blocks: u64,
    /// Memory by purpose.
    pub bytes: BTreeMap<&'static str, u64>,
    /// The latest event time; null before the first event.
    #[schema(required = true)]
    pub latest_event_time: Option<i64>,
    /// Event time below which no further event is expected; null before the first event, and while the stream allows
    /// any lateness.
    #[schema(required = true)]
    pub watermark: Option<i64>,
}

/// A store with a memory budget.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TierStatus {
    /// The configured budget, or the minimum if that is higher.
    pub budget_bytes: u64,
    /// What it has in memory.
    pub memory_bytes: u64,
    /// Read buffers, which do not count against the budget.
    pub buffer_bytes: u64,
    /// What it has on disk.
    pub disk_bytes: u64,
    /// Reads from disk so far: of chunks of edges, or of blocks of rows.
    pub reads: u64,
    /// Reads and writes that failed so far.
    pub failures: u64,
    /// How the disk is read.
    pub engine: String,
    /// Why the disk cannot be used, while it fails.
    #[schema(required = true)]
    pub failing: Option<String>,
}

/// The learning loop.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct LearnerDocument {
    /// The kind of model.
    pub model: &'static str,
    /// Version of the served weights; 0 before the first.
    pub model_version: u64,
    #[schema(required = true)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub score_source: Option<Source>,
    /// Every log position below is reflected in node states.
    pub applied_position: u64,
    /// Events in the graph that are not learned yet.
    pub lag_events: u64,
    /// Events trained on since the start.
    pub trained_events: u64,
    /// Events since the start whose gradient steps were skipped to stay fresh.
    pub skipped_events: u64,
    /// Whether weights are trained: not where `learner.train` is false or an operator paused training.
    pub training: bool,
    /// Whether the learner is at history: events from before it first began.
    pub training_on_history: bool,
    /// Processes that compute each step together (`learner.ranks`), this one included; 0 on a replica, which learns
    /// nothing.
    pub ranks: u64,
    /// What was in the log at the start and is not learned yet; null when it is.
    #[schema(required = true)]
    pub catch_up: Option<CatchUpDocument>,
    /// Loss of the latest step; null before the first.
    #[schema(required = true)]
    pub loss: Option<f32>,
    /// Average precision over the last `learner.quality_window_batches` batches; null before the first.
    #[schema(required = true)]
    pub average_precision: Option<f64>,
    /// Area under the ROC curve over the window.
    #[schema(required = true)]
    pub auc: Option<f64>,
    /// Mean reciprocal rank over the window.
    #[schema(required = true)]
    pub mrr: Option<f64>,
    /// Average precision of the baseline EdgeBank over the window.
    #[schema(required = true)]
    pub edgebank_average_precision: Option<f64>,
    /// Median time from an event's arrival until responses reflect it.
    #[schema(required = true)]
    pub end_to_end_freshness_p50_seconds: Option<f64>,
    /// 99th percentile of that time.
    #[schema(required = true)]
    pub end_to_end_freshness_p99_seconds: Option<f64>,
    /// The promotion gate; null where it is disabled.
    #[schema(required = true)]
    pub gate: Option<GateDocument>,
    /// Memory of published node states.
    pub node_state_bytes: u64,
    /// What only the learner reads: memory, mailbox, EdgeBank's pairs, destinations for negatives, feature rows of
    /// nodes.
    pub bytes: BTreeMap<&'static str, u64>,
}

/// What was in the log at the start and is not learned yet.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CatchUpDocument {
    /// The position below which all was in the log.
    pub until_position: u64,
    /// Records that are left.
    pub remaining_events: u64,
    /// How long they take at the rate so far; null before there is one.
    #[schema(required = true)]
    pub remaining_seconds: Option<f64>,
}

/// The promotion gate: counts of decisions since the start, and the latest decision.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct GateDocument {
    /// Candidates promoted.
    pub promoted: u64,
    /// Verdicts after which the published version stayed.
    pub held: u64,
    /// Returns to an earlier version.
    pub rolled_back: u64,
    /// Version that an operator's rollback would publish.
    #[schema(required = true)]
    pub previous_version: Option<u64>,
    /// The best version that was promoted in the last day, which candidates are compared with.
    #[schema(required = true)]
    pub anchor_version: Option<u64>,
    /// The latest decision; null before the first.
    #[schema(required = true)]
    pub last: Option<DecisionDocument>,
}

/// One decision of the gate, with means over the batches that it rests on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DecisionDocument {
    #[schema(value_type = GateVerdict)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub verdict: &'static str,
    /// Log position of the decision.
    pub position: u64,
    /// Version of the candidate.
    pub candidate_version: u64,
    /// Version that was published.
    #[schema(required = true)]
    pub published_version: Option<u64>,
    /// The best version that was promoted in the last day.
    #[schema(required = true)]
    pub anchor_version: Option<u64>,
    /// Average precision of the candidate.
    pub candidate_average_precision: f64,
    /// Average precision of the published version.
    #[schema(required = true)]
    pub published_average_precision: Option<f64>,
    /// Average precision of the anchor.
    #[schema(required = true)]
    pub anchor_average_precision: Option<f64>,
    /// Average precision of the baseline EdgeBank.
    pub edgebank_average_precision: f64,
    /// Mean negative log-likelihood of the candidate, in nats, at most 30.
    pub candidate_log_loss: f64,
    /// That of the published version.
    #[schema(required = true)]
    pub published_log_loss: Option<f64>,
    /// That of the anchor.
    #[schema(required = true)]
    pub anchor_log_loss: Option<f64>,
}

/// A verdict of the gate.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum GateVerdict {
    /// The candidate is published.
    Promoted,
    /// The published version stays.
    Held,
    /// The anchor is published again.
    RolledBack,
}
