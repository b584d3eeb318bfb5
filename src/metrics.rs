//! Beside all floors: every metric of the daemon, in one place, as typed handles.
//!
//! One line of a `group!` table declares a metric: its field, its handle, its name, its labels and its
//! help text, which is also the documentation of the field. From the same line come the registration and the
//! [`INVENTORY`], against which the dashboard is checked. Names follow Prometheus: prefix `evergraph_`, base units,
//! `_total` on counters; label values come from closed lists or the configuration, never from events.
//!
//! Numbers that are counted elsewhere (floors 0 to 6 know no metrics) are copied in at scrape time by the
//! hooks given to [`Metrics::on_scrape`]. Knows nothing of what is measured and imports nothing of ours.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry,
    TextEncoder,
};

use self::anomaly::ANOMALY;
use self::cluster::CLUSTER;
use self::device::DEVICE;
use self::feed::FEED;
use self::handle::{Handle, Spec};
use self::http::HTTP;
use self::index::INDEX;
use self::model::{GATE, MODEL};
use self::train::TRAIN;

mod handle;
mod set;

pub use anomaly::AnomalyMetrics;
pub use cluster::ClusterMetrics;
pub use device::DeviceMetrics;
pub use feed::FeedMetrics;
pub use http::{ADMIN_ACTIONS, HttpMetrics};
pub use index::IndexMetrics;
pub use model::{GateMetrics, ModelMetrics};
pub use set::{mirror, set_count, set_if_known, set_state};
pub use train::TrainMetrics;

/// Content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Name, type, labels and help of a metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricInfo {
    /// Full name.
    pub name: &'static str,
    /// Handle type: `IntCounter`, `Gauge`, `HistogramVec`, ...
    pub handle: &'static str,
    /// Label names, in the order in which handles take their values.
    pub labels: &'static [&'static str],
    /// Help text.
    pub help: &'static str,
}

/// The [`MetricInfo`] of one line of a group.
macro_rules! info {
    ($handle:ident $name:literal [$($label:literal),*] $help:literal) => {
        MetricInfo {
            name: concat!("evergraph_", $name),
            handle: stringify!($handle),
            labels: &[$($label),*],
            help: $help,
        }
    };
}

/// Declares a group of metrics: `field: Handle [labels] (buckets) = "name" "help";`.
macro_rules! group {
    ($(#[$doc:meta])* $group:ident, $inventory:ident; $(
        $field:ident: $handle:ident $([$($label:literal),+])? $(($buckets:expr))? = $name:literal $help:literal;
    )*) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $group { $(
            #[doc = $help]
            $(#[doc = concat!("\n\nLabels: ", $("`", $label, "` ",)+)])?
            pub $field: $handle,
        )* }

        pub(super) const $inventory: &[MetricInfo] = &[ $( info!($handle $name [$($($label),+)?] $help), )* ];

        impl $group {
            pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
                Ok(Self { $( $field: $handle::register(&Spec {
                    registry,
                    info: info!($handle $name [$($($label),+)?] $help),
                    buckets: { let _buckets: &[f64] = &[]; $(let _buckets: &[f64] = &$buckets;)? _buckets },
                })?, )* })
            }
        }
    };
}

/// Buckets for work that takes microseconds to seconds.
const SHORT_SECONDS: [f64; 14] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];
/// Buckets for checkpoints.
const LONG_SECONDS: [f64; 11] = [0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Buckets of pauses that nobody should notice.
const PAUSE_SECONDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 2.5];

group! {
    /// Events on their way in.
    IngestMetrics, INGEST;
    events: IntCounterVec ["source", "result"] = "ingest_events_total"
        "Events read from a source; result is accepted, duplicate, rejected, or ignored (messages without a value).";
    rejected_events: IntCounterVec ["reason"] = "ingest_rejected_events_total"
        "Events rejected by the rules of the stream, by reason.";
    dead_letters: IntCounterVec ["source"] = "ingest_dead_letters_total"
        "Rejected events written to the dead-letter topic or file.";
    reconnects: IntCounterVec ["source"] = "ingest_reconnects_total"
        "Times a source began with a new Kafka client because no broker was connected for 30 seconds.";
    token_failures: IntCounterVec ["source"] = "ingest_token_failures_total"
        "Times no token could be had with which a source logs in to Kafka (SASL/OAUTHBEARER).";
    late_events: IntCounterVec ["action"] = "ingest_late_events_total"
        "Events older than the allowed lateness, by the action of the policy: accept, drop or dead_letter.";
    lag_records: IntGaugeVec ["source", "partition"] = "ingest_lag_records"
        "Kafka consumer lag: records of a partition that this daemon reads and that are not in the log yet.";
    paused: IntGauge = "ingest_paused" "1 while all sources are paused, else 0.";
    source_state: IntGaugeVec ["source", "state"] = "ingest_source_state"
        "State of a source: 1 for its current state, 0 for the others.";
    latest_event_time: IntGaugeVec = "stream_latest_event_time"
        "Latest event time that the edges agree on, in the unit of the stream; absent before the first event.";
    watermark: IntGaugeVec = "stream_watermark"
        "Event time below which no event is expected from active partitions; absent without a lateness bound.";
}

group! {
    /// The event log.
    LogMetrics, LOG;
    bytes: IntGauge = "log_bytes" "Size of the event log on disk in bytes.";
    first_position: IntGauge = "log_first_position" "The first position of the log: later than 0 once it was cut.";
    end_position: IntGauge = "log_end_position" "Position after the last durable record of the log.";
    replay_position: IntGauge = "log_replay_position"
        "Position that the current or latest read of the log at a start reached.";
    replay_end_position: IntGauge = "log_replay_end_position" "Position at which that read of the log ends.";
    commit_duration: Histogram (SHORT_SECONDS) = "log_commit_duration_seconds"
        "Latency of one log commit, fdatasync included.";
    commit_failures: IntCounter = "log_commit_failures_total" "Log commits that failed.";
    disk_full: IntGauge = "log_disk_full" "1 while the disk of the log is full, else 0.";
    torn_bytes: IntGauge = "log_torn_bytes"
        "Bytes of an interrupted write that the start cut off the end of the log; a copy is beside it.";
}

group! {
    /// The temporal graph in memory.
    GraphMetrics, GRAPH;
    nodes: IntGauge = "graph_nodes" "Nodes known to the graph.";
    edges: IntGauge = "graph_edges" "Live edges in the graph.";
    expired_edges: IntCounter = "graph_expired_edges_total" "Edges released by the retention.";
    idle_nodes_removed: IntCounter = "graph_idle_nodes_removed_total"
        "Nodes without an edge that graph.node_retention removed.";
    unknown_type_edges: IntCounter = "graph_unknown_type_edges_total"
        "Edges in the log with a type beyond model.edge_types; the model treats them as untyped.";
    blocks: IntGauge = "graph_blocks" "Temporal blocks that hold the adjacency lists.";
    bytes: IntGaugeVec ["part"] = "graph_bytes" "Memory of the graph in bytes, by part.";
    apply_duration: Histogram (SHORT_SECONDS) = "graph_apply_duration_seconds"
        "Latency of indexing one batch of records.";
}

group! {
    /// Stores that spill to disk beyond a memory budget; absent without a budget.
    SpillMetrics, SPILL;
    budget: IntGaugeVec ["store"] = "spill_budget_bytes"
        "Memory budget of a store in bytes; store is graph or rows.";
    bytes: IntGaugeVec ["store", "tier"] = "spill_bytes"
        "Bytes of a store with a memory budget; tier is memory or disk.";
    reads: IntCounterVec ["store"] = "spill_reads_total"
        "Reads of spilled chunks of edges and blocks of rows from disk.";
    failures: IntCounterVec ["store"] = "spill_failures_total" "Reads and writes of spilled data that failed.";
    degraded: IntGaugeVec ["store"] = "spill_degraded" "1 while the spill disk of a store fails, else 0.";
}

group! {
    /// Quality, measured on events before the model is trained on them.
    EvalMetrics, EVAL;
    average_precision: Gauge = "eval_average_precision"
        "Prequential average precision of the model over a sliding window.";
    auc: Gauge = "eval_auc" "Prequential area under the ROC curve over a sliding window.";
    mrr: Gauge = "eval_mrr" "Prequential mean reciprocal rank of the true destination over a sliding window.";
    baseline_average_precision: GaugeVec ["baseline"] = "eval_baseline_average_precision"
        "Average precision of a baseline on the same window; baseline is edgebank.";
}

group! {
    /// Checkpoints.
    CheckpointMetrics, CHECKPOINT;
    duration: Histogram (LONG_SECONDS) = "checkpoint_duration_seconds" "Time to write one checkpoint.";
    pause: Histogram (PAUSE_SECONDS) = "checkpoint_pause_seconds" "Time that one checkpoint stopped learning.";
    last_success_timestamp: Gauge = "checkpoint_last_success_timestamp_seconds"
        "When the latest complete checkpoint was written, seconds since the Unix epoch.";
    failures: IntCounter = "checkpoint_failures_total" "Checkpoints that could not be written.";
    bytes: IntGauge = "checkpoint_bytes" "Size of the latest complete checkpoint in bytes.";
    written_bytes: IntGauge = "checkpoint_written_bytes" "Bytes that the latest complete checkpoint wrote.";
}

group! {
    /// Snapshots of the index.
    SnapshotMetrics, SNAPSHOT;
    duration: Histogram (LONG_SECONDS) = "snapshot_duration_seconds" "Time to write one snapshot.";
    last_success_timestamp: Gauge = "snapshot_last_success_timestamp_seconds"
        "When the latest complete snapshot was written, seconds since the Unix epoch.";
    failures: IntCounter = "snapshot_failures_total" "Snapshots that could not be written.";
    bytes: IntGauge = "snapshot_bytes" "Size of the latest complete snapshot in bytes.";
    position: IntGauge = "snapshot_position"
        "Log position of the latest complete snapshot: a start reads the log from there.";
}

mod anomaly;
mod cluster;
mod device;
mod feed;
mod http;
mod index;
mod model;
mod train;

group! {
    /// What runs, and on what.
    BuildMetrics, BUILD;
    info: IntGaugeVec ["version", "device"] = "build_info" "Always 1; the labels are the version and the device.";
    ready: IntGauge = "ready" "1 while requests are served, else 0: during a start, a stop, or after a fault.";
    memory_limit: IntGaugeVec = "memory_limit_bytes"
        "Memory this process may use: its control group's limit, or what the machine has; absent where unknown.";
    disk_size: IntGaugeVec = "data_disk_size_bytes" "Size of the disk of data.dir in bytes; absent where unknown.";
    disk_free: IntGaugeVec = "data_disk_free_bytes"
        "Bytes that are free on the disk that holds data.dir; absent where unknown.";
    last_backup: IntGaugeVec = "backup_last_success_timestamp_seconds"
        "When data.dir was backed up last, seconds since the Unix epoch; absent if it never was.";
}

/// Every metric of the daemon except those of the `process_` collector.
pub const INVENTORY: [&[MetricInfo]; 17] = [
    INGEST, LOG, GRAPH, SPILL, TRAIN, EVAL, GATE, MODEL, CHECKPOINT, SNAPSHOT, INDEX, FEED, CLUSTER, ANOMALY,
    HTTP, DEVICE, BUILD,
];

/// Names of the process collector's metrics.
pub const PROCESS_METRICS: [&str; 7] = [
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// Copies counts that are kept elsewhere into the metrics before a scrape.
type ScrapeHook = Box<dyn Fn(&Metrics) + Send + Sync>;

/// All handles, on a registry of their own.
pub struct Metrics {
    /// Events on their way in.
    pub ingest: IngestMetrics,
    /// The event log.
    pub log: LogMetrics,
    /// The temporal graph in memory.
    pub graph: GraphMetrics,
    /// Stores with a memory budget.
    pub spill: SpillMetrics,
    /// The learning loop.
    pub train: TrainMetrics,
    /// Prequential quality.
    pub eval: EvalMetrics,
    /// The promotion gate.
    pub gate: GateMetrics,
    /// The published model.
    pub model: ModelMetrics,
    /// Checkpoints.
    pub checkpoint: CheckpointMetrics,
    /// Snapshots of the index.
    pub snapshot: SnapshotMetrics,
    /// The live index.
    pub index: IndexMetrics,
    /// The change feed.
    pub feed: FeedMetrics,
    /// A leader and its replicas.
    pub cluster: ClusterMetrics,
    /// How unusual events are.
    pub anomaly: AnomalyMetrics,
    /// The HTTP interface.
    pub http: HttpMetrics,
    /// The requested GPU.
    pub device: DeviceMetrics,
    /// What runs.
    pub build: BuildMetrics,
    registry: Registry,
    hooks: Mutex<Vec<ScrapeHook>>,
}

impl Metrics {
    /// All metrics at zero, with the process collector beside them.
    ///
    /// # Panics
    /// If two metrics share a name or a name is malformed: a mistake in this file that every test meets.
    #[must_use]
    #[allow(clippy::expect_used)]
    pub fn new() -> Arc<Self> {
        Arc::new(
            Self::register(Registry::new()).expect("the metrics of this file are well named and distinct"),
        )
    }

    fn register(registry: Registry) -> prometheus::Result<Self> {
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let metrics = Self {
            ingest: IngestMetrics::register(&registry)?,
            log: LogMetrics::register(&registry)?,
            graph: GraphMetrics::register(&registry)?,
            spill: SpillMetrics::register(&registry)?,
            train: TrainMetrics::register(&registry)?,
            eval: EvalMetrics::register(&registry)?,
            gate: GateMetrics::register(&registry)?,
            model: ModelMetrics::register(&registry)?,
            checkpoint: CheckpointMetrics::register(&registry)?,
            snapshot: SnapshotMetrics::register(&registry)?,
            index: IndexMetrics::register(&registry)?,
            feed: FeedMetrics::register(&registry)?,
            cluster: ClusterMetrics::register(&registry)?,
            anomaly: AnomalyMetrics::register(&registry)?,
            http: HttpMetrics::register(&registry)?,
            device: DeviceMetrics::register(&registry)?,
            build: BuildMetrics::register(&registry)?,
            registry,
            hooks: Mutex::default(),
        };
        metrics.start_closed_lists();
        Ok(metrics)
    }

    /// Series whose labels are known beforehand start at 0, so that their first increase is a rate and
    /// not a gap.
    fn start_closed_lists(&self) {
        for verdict in ["promoted", "held", "rolled_back"] {
            self.gate.decisions.with_label_values(&[verdict]);
        }
        for action in ["accept", "drop", "dead_letter"] {
            self.ingest.late_events.with_label_values(&[action]);
        }
        self.train.start_closed_lists();
        self.http.start_closed_lists();
    }

    /// Adds a hook that runs at every scrape, before the values are read. A hook must not block: it
    /// copies counters, see [`mirror`].
    pub fn on_scrape(&self, hook: Box<dyn Fn(&Self) + Send + Sync>) {
        self.hooks.lock().push(hook);
    }

    /// All metrics in the Prometheus text format ([`CONTENT_TYPE`]), hooks run first. Scrapes run one
    /// at a time.
    ///
    /// # Errors
    /// If a metric cannot be written as text.
    pub fn encode(&self) -> prometheus::Result<Vec<u8>> {
        let hooks = self.hooks.lock();
        for hook in hooks.iter() {
            hook(self);
        }
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.encode().unwrap()).unwrap()
    }

    #[test]
    fn names_keep_the_rules() {
        for info in INVENTORY.into_iter().flatten() {
            let name = info.name;
            let counter = info.handle.starts_with("IntCounter");
            assert!(name.starts_with("evergraph_"), "{name}");
            assert_eq!(counter, name.ends_with("_total"), "{name}: `_total` is for counters");
            let may_be_absent = info.help.contains("; absent ");
            let vector = !info.labels.is_empty() || may_be_absent;
            assert_eq!(info.handle.ends_with("Vec"), vector, "{name}: a vector has labels or may be absent");
            if info.handle.starts_with("Histogram") {
                let measured = ["_seconds", "_items", "_nats"].iter().any(|unit| name.ends_with(unit));
                assert!(measured, "{name}: a histogram here measures time or surprise, or counts items");
            }
            assert!(info.help.ends_with('.') && info.help.len() > 20, "{name}: help is a sentence");
        }
    }

    #[test]
    fn a_hook_copies_counts_at_every_scrape_and_counters_never_decrease() {
        let metrics = Metrics::new();
        let outside = Arc::new(Mutex::new(7_u64));
        let seen = Arc::clone(&outside);
        metrics.on_scrape(Box::new(move |m| {
            mirror(&m.ingest.dead_letters.with_label_values(&["push"]), *seen.lock());
            set_count(&m.graph.nodes, *seen.lock());
        }));
        for (value, counted) in [(7, 7), (12, 12), (3, 12)] {
            *outside.lock() = value;
            let text = text(&metrics);
            let line = format!("evergraph_ingest_dead_letters_total{{source=\"push\"}} {counted}\n");
            assert!(text.contains(&line), "{line} not in\n{text}");
            assert!(text.contains(&format!("\nevergraph_graph_nodes {value}\n")), "{text}");
        }
    }

    #[test]
    fn a_subject_is_in_one_state() {
        let metrics = Metrics::new();
        let states = ["starting", "running", "failed"];
        set_state(&metrics.ingest.source_state, "kafka:a", "starting", &states);
        set_state(&metrics.ingest.source_state, "kafka:a", "running", &states);
        let on: Vec<i64> = states
            .iter()
            .map(|state| metrics.ingest.source_state.with_label_values(&["kafka:a", state]).get())
            .collect();
        assert_eq!(on, [0, 1, 0]);
    }

    #[test]
    fn the_process_is_measured() {
        let text = text(&Metrics::new());
        for name in PROCESS_METRICS {
            assert!(text.contains(&format!("\n{name} ")), "{name} not in\n{text}");
        }
    }

    #[test]
    fn counts_beyond_the_gauge_stand_at_its_bound() {
        let metrics = Metrics::new();
        set_count(&metrics.log.bytes, u64::MAX);
        assert_eq!(metrics.log.bytes.get(), i64::MAX);
    }
}
