//! The settings: one typed [`Config`], read once at start and passed on in parts.
//!
//! Layers, later ones win: the default file (compiled in from `deploy/evergraph.toml`, so the
//! documented default cannot drift) < a file < `EVERGRAPH__SECTION__KEY` < flags. Every key of every
//! layer must be known; an unknown one is an error that names its layer and suggests the nearest known key.
//! Values of the environment and of flags are text, read as what their key is: a password `007` stays one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use config::Environment;
use serde::Deserialize;
use thiserror::Error;

use crate::device::DeviceSpec;
use crate::device::disk::EngineChoice;
use crate::graph::Retention;
use crate::ingest::registry::Format;
use crate::model::walk::Decay;

mod bounds;
mod check;
mod cluster;
mod document;
mod examine;
mod explain;
mod layers;
mod learner;
mod mapping;
mod model;
mod outlets;
mod precision;
mod property_map;
mod schema;
mod text;
mod time_unit;
mod topics;

pub use self::layers::ignored_variables;
use self::layers::{Layer, blame, merged};
pub use check::level_filter;
pub use cluster::{ClusterAck, ClusterRole};
pub use examine::Fault;
pub use explain::{Origin, Setting};
pub use mapping::{Mapping, Texts};
pub use model::{AggregatorKind, ModelKind};
pub use outlets::{FeedFormat, OnNewVersion};
pub use precision::{MatmulPrecision, PrecisionError, RowPrecision};
pub use schema::json_schema;
pub use text::Secret;
pub use time_unit::StreamTimeUnit;
pub use topics::{Topic, TopicSection};

/// The default settings, with their documentation.
pub const DEFAULT_FILE: &str = include_str!("../deploy/evergraph.toml");

/// Why the settings cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A layer could not be read, or a value has the wrong type or an unknown name.
    #[error("{layer}: {detail}{suggestion}")]
    Unreadable {
        /// Which layer.
        layer: String,
        /// What is wrong.
        detail: String,
        /// A known key that looks like the unknown one, if there is one.
        suggestion: String,
    },
    /// A value is outside its range.
    #[error("{key} = {value}: {expected}")]
    OutOfRange {
        /// The key, as `section.key`.
        key: &'static str,
        /// The value found.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A mapping or a topic, which has a name of its own, cannot be used.
    #[error("{key}: {detail}")]
    Named {
        /// The key.
        key: String,
        /// What is wrong with it, and what to write.
        detail: String,
    },
    /// Faults that have been reported one by one.
    #[error(
        "{count} fault(s) in the settings; `evergraph config schema` and the default file list what is allowed"
    )]
    Faults {
        /// How many.
        count: usize,
    },
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$how:meta])* $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs)] // every key is documented in the default file, which is the reference
        pub struct $name { $($(#[$how])* pub $field: $type),+ }
    };
}

section!(/// All settings, section by section.
Config {
    data: Data, api: Api, stream: Stream, ingest: Ingest, log: Log, graph: Graph, memory: Memory, device: Device,
    model: Model, learner: Learner, checkpoint: Checkpoint, snapshot: Snapshot, io: Io, index: Index, feed: Feed,
    anomalies: Anomalies, cluster: Cluster, output: Output,
});
section!(/// `[data]`
    Data { dir: PathBuf });
section!(/// `[api]`
Api {
    #[serde(deserialize_with = "text::address")] listen: SocketAddr,
    #[serde(deserialize_with = "text::maybe_address")] operations_listen: Option<SocketAddr>,
    keys_file: PathBuf, tls_certificate: PathBuf, tls_key: PathBuf,
    allowed_hosts: String, connections_max: usize, header_timeout_ms: u64,
    bytes_per_second_min: u32, body_pause_ms_max: u64, late_bodies_max: usize, bodies_bytes_max: i64,
    responses_bytes_max: i64,
    body_bytes_max: usize, batch_items_max: usize, concurrent_requests_max: usize, wait_ms_max: u64,
    request_timeout_ms: u64, compress_bytes_min: usize, console_pages_max: usize,
});
section!(/// `[stream]`
Stream {
    edge_feature_dimension: usize, node_feature_dimension: usize, allowed_lateness: i64,
    late_policy: LatePolicy, future_limit: i64, time_unit: StreamTimeUnit, nodes_max: usize,
});
section!(/// `[ingest]`
Ingest {
    queue_batches_max: usize, idempotency_keys_max: usize, dead_letter_file_bytes_max: u64,
    http: IngestHttp, file: IngestFile, kafka: IngestKafka, mappings: BTreeMap<String, Mapping>,
});
section!(/// `[ingest.http]`
    IngestHttp { enabled: bool, mapping: String });
section!(/// `[ingest.file]`
    IngestFile { path: PathBuf, mapping: String, events_per_second: f64 });
section!(/// `[ingest.kafka]`
IngestKafka {
    brokers: String, topic: String, mapping: String, format: Format, group: String, dead_letter_topic: String,
    batch_messages_max: usize, batch_wait_ms: u64, lost_data_policy: LostDataPolicy, tombstones: Tombstones,
    properties: property_map::Properties, topics: BTreeMap<String, Topic>, registry: KafkaRegistry,
});
section!(/// `[ingest.kafka.registry]`
    KafkaRegistry { url: String, username: String, password: Secret, token: Secret, ca_file: PathBuf });
section!(/// `[log]`
    Log { segment_bytes: u64, commit_events_max: usize, commit_bytes_max: usize, retention_bytes: u64,
        retention_seconds: u64 });
section!(/// `[graph]`
    Graph { shards: usize, page_entries_max: usize, retention: i64, node_retention: i64 });
section!(/// `[memory]`
    Memory { graph_bytes_max: i64, rows_bytes_max: i64, engine: SpillEngine });
section!(/// `[device]`
Device {
    #[serde(rename = "use", deserialize_with = "text::spec")] spec: DeviceSpec,
    memory_bytes_max: u64, row_cache_bytes: u64, graph_bytes: u64, graph_host_bytes: u64,
    row_host_bytes: u64, kernel_dir: PathBuf, verified_by: PathBuf,
});
section!(/// `[model]`
Model {
    kind: ModelKind, memory_dimension: usize, time_dimension: usize, embedding_dimension: usize, heads: usize,
    fanout: usize, aggregator: AggregatorKind, edge_types: usize, edge_type_dimension: usize,
    snapshots: usize, snapshot_width: usize, walks: bool, walk_steps: usize, walk_dimension: usize,
    #[serde(deserialize_with = "text::decay")] walk_decay: Decay, dropout: f32, time_unit: StreamTimeUnit,
});
section!(/// `[learner]`
Learner {
    train: bool, start: StartPolicy, batch_events: usize, batch_wait_ms: u64, learning_rate: f32,
    gradient_delay_batches: u64, met_negatives: f64, seed: u64, matmul_precision: MatmulPrecision,
    lag_events_max: u64, lag_target_ms: u64, share_min: f64,
    quality_window_batches: usize, rank_queries_per_batch: usize,
    rank_candidates: usize, pairs_max: usize, threads: usize, nice: u64,
    ranks: usize, ranks_deadline_seconds: u64, schedule: Schedule, replay: Replay, gate: Gate,
});
section!(/// `[learner.schedule]`
    Schedule { warmup_steps: u64, decay: DecayKind, decay_steps: u64, floor: f32 });
section!(/// `[learner.replay]`
    Replay { ratio: f64, policy: ReplayKind });
section!(/// `[learner.gate]`
Gate {
    enabled: bool, every_batches: u64, window_batches: u64, promote_seconds: u64, confidence: f64,
    edgebank_tolerance: f64, rollback_windows: u64, before_promotion: BeforePromotionKind,
});
section!(/// `[checkpoint]`
    Checkpoint { interval_seconds: u64, keep: usize, keep_seconds: u64, keep_every_seconds: u64, full_every: u64 });
section!(/// `[snapshot]`
    Snapshot { log_bytes: u64, interval_seconds: u64, keep: usize });
section!(/// `[io]`
    Io { bytes_per_second_max: u64 });
section!(/// `[index]`
    Index { bytes_max: u64, precision: RowPrecision, cpu_share: f64, coalesce_ms: u64 });
section!(/// `[anomalies]`
Anomalies {
    percentile_min: f64, kept_max: usize, score_all: bool, topic: String, brokers: String, create_partitions: u64,
    queue_batches_max: usize,
});
section!(/// `[feed]`
Feed {
    topic: String, brokers: String, create_partitions: u64, format: FeedFormat, collection: String,
    on_new_version: OnNewVersion, coalesce_ms: u64, cpu_share: f64, rows_per_second_max: u64,
    queue_bytes_max: usize,
});

section!(/// `[cluster]`
    Cluster { role: ClusterRole, topics: String, brokers: String, advertise: String, ack: ClusterAck,
        coalesce_ms: u64, max_staleness_ms: u64 });
section!(/// `[output]`
    Output { level: String, format: OutputFormat, access_log: bool });

impl Api {
    /// The names in `allowed_hosts`.
    #[must_use]
    pub fn allowed_hosts(&self) -> Vec<String> {
        let names = self.allowed_hosts.split(',').map(str::trim);
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }
}

impl Stream {
    /// How far behind the newest event time an event may be; `None` means any distance.
    #[must_use]
    pub fn lateness(&self) -> Option<i64> {
        (self.allowed_lateness >= 0).then_some(self.allowed_lateness)
    }

    /// How far ahead of its partition an event may be; `None` means any distance.
    #[must_use]
    pub fn future_limit(&self) -> Option<i64> {
        (self.future_limit >= 0).then_some(self.future_limit)
    }
}

/// What the learning rate does after its rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecayKind {
    /// It stays.
    Constant,
    /// It falls ever more slowly.
    InverseSquareRoot,
    /// It falls in waves.
    Cosine,
}

/// What happens to events in the log when no checkpoint can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StartPolicy {
    /// They are learned again, and trained on.
    Resume,
    /// They update node memory and are not trained on.
    Remember,
    /// They are left out.
    Latest,
}

/// Which old events are trained on again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ReplayKind {
    /// All alike.
    Uniform,
    /// The younger the likelier.
    Recent,
}

/// What is served until a version of the weights is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BeforePromotionKind {
    /// Scores of the baseline, and embeddings of the candidate.
    Baseline,
    /// Nothing: requests are refused.
    NotReady,
    /// The candidate.
    Candidate,
}

/// How what does not fit in memory is read from disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SpillEngine {
    /// Through io_uring where the kernel allows it.
    Auto,
    /// By plain reads.
    Pread,
}

impl From<SpillEngine> for EngineChoice {
    fn from(engine: SpillEngine) -> Self {
        match engine {
            SpillEngine::Auto => Self::Auto,
            SpillEngine::Pread => Self::Pread,
        }
    }
}

/// What happens to an event that is later than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatePolicy {
    /// It is inserted in time order.
    Accept,
    /// It is counted and dropped.
    Drop,
    /// It is counted and kept as a dead letter.
    DeadLetter,
}

/// What happens when the broker no longer has the messages after our position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LostDataPolicy {
    /// The source fails with an error.
    Fail,
    /// The source continues from the earliest message that is left.
    Earliest,
}

/// What a Kafka message without a value does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tombstones {
    /// It deletes what its key names.
    DeleteNode,
    /// Nothing; it is counted.
    Ignore,
    /// It becomes a dead letter.
    DeadLetter,
}

/// How the daemon writes its own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// How long edges are kept; `None` means for ever.
    #[must_use]
    pub fn retention(&self) -> Option<Retention> {
        let age = self.graph.retention;
        (age > 0).then(|| Retention { age, lateness: self.stream.lateness().unwrap_or(0) })
    }

    /// How long a segment of the log is kept after its last write; `None` means for ever.
    #[must_use]
    pub fn log_age_kept(&self) -> Option<Duration> {
        (self.log.retention_seconds > 0).then(|| Duration::from_secs(self.log.retention_seconds))
    }

    /// Reads all layers: the default, `file` if given, the environment, then `flags`
    /// (`("section.key", "value")`).
    ///
    /// # Errors
    /// [`ConfigError`] names the layer, the key and what it must be.
    pub fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        Self::from_layers(file, layers::environment(), flags)
    }

    /// The default settings alone.
    ///
    /// # Errors
    /// Never for the file that is compiled in; a test holds it.
    pub fn default_settings() -> Result<Self, ConfigError> {
        let none = Environment::default().source(Some(config::Map::new()));
        Self::from_layers(None, none, &[])
    }

    fn from_layers(
        file: Option<&Path>,
        environment: Environment,
        flags: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let layers = Layer::all(file, environment, flags).into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut config: Self = merged(&layers).map_err(|error| blame(&layers, &error))?;
        // Flattened layer by layer: one may write a name with dots, another as nested tables.
        let mut properties = property_map::Properties::default();
        for layer in &layers {
            properties.0.extend(layer.properties()?);
        }
        config.ingest.kafka.properties = properties;
        config.faults().into_iter().next().map_or(Ok(config), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_environment(pairs: &[(&str, &str)]) -> Environment {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let environment = Environment::with_prefix("EVERGRAPH").prefix_separator("__").separator("__");
        environment.source(Some(pairs.collect()))
    }

    fn from_text(text: &str) -> Result<Config, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evergraph.toml");
        std::fs::write(&path, text).unwrap();
        Config::from_layers(Some(&path), Environment::default().source(Some(config::Map::new())), &[])
    }

    #[test]
    fn the_default_file_is_complete_and_valid() {
        let config = Config::default_settings().unwrap();
        assert!(config.api.listen.ip().is_loopback());
        assert_eq!(config.model.fanout, 10);
    }

    #[test]
    fn a_file_changes_only_what_it_names() {
        let config = from_text("[learner]\nbatch_events = 64\n").unwrap();
        assert_eq!(config.learner.batch_events, 64);
        assert_eq!(config.learner.lag_events_max, Config::default_settings().unwrap().learner.lag_events_max);
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evergraph.toml");
        std::fs::write(&path, "[api]\nlisten = \"127.0.0.1:1\"\n[learner]\nseed = 1\nbatch_events = 7")
            .unwrap();
        let environment =
            from_environment(&[("EVERGRAPH__API__LISTEN", "127.0.0.1:2"), ("EVERGRAPH__LEARNER__SEED", "2")]);
        let flags = [("api.listen".to_owned(), "127.0.0.1:3".to_owned())];
        let config = Config::from_layers(Some(&path), environment, &flags).unwrap();
        assert_eq!(config.api.listen.port(), 3);
        assert_eq!(config.learner.seed, 2);
        assert_eq!(config.learner.batch_events, 7);
    }

    #[test]
    fn an_unknown_key_is_an_error_with_a_suggestion() {
        let error = from_text("[learner]\nbatch_event = 64\n").unwrap_err().to_string();
        assert!(error.contains("batch_event") && error.contains("did you mean `batch_events`"), "{error}");
    }

    #[test]
    fn kafka_properties_keep_their_dots_and_case() {
        let text =
            "[ingest.kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\nsasl.mechanism = \"PLAIN\"\n";
        let properties = from_text(text).unwrap().ingest.kafka.properties.0;
        assert_eq!(properties["security.protocol"], "SASL_SSL");
        assert_eq!(properties["sasl.mechanism"], "PLAIN");
    }

    #[test]
    fn text_of_the_environment_stays_text_and_numbers_become_numbers() {
        let environment = from_environment(&[
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD", "007"),
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__USERNAME", "1e5"),
            ("EVERGRAPH__INGEST__KAFKA__GROUP", "true"),
            ("EVERGRAPH__LEARNER__TRAIN", "false"),
            ("EVERGRAPH__LEARNER__BATCH_EVENTS", "64"),
            ("EVERGRAPH__LEARNER__LEARNING_RATE", "1e-2"),
            ("EVERGRAPH__STREAM__ALLOWED_LATENESS", "-1"),
        ]);
        let config = Config::from_layers(None, environment, &[]).unwrap();
        let properties = &config.ingest.kafka.properties.0;
        assert_eq!((&*properties["sasl.password"], &*properties["sasl.username"]), ("007", "1e5"));
        assert_eq!(config.ingest.kafka.group, "true");
        assert!(!config.learner.train);
        assert_eq!((config.learner.batch_events, config.learner.learning_rate), (64, 0.01));
    }

    #[test]
    fn a_property_of_the_environment_wins_however_the_file_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("evergraph.toml");
        let text = "\"sasl.password\" = \"file\"\nsasl.username = \"file\"\n\"ssl.ca.location\" = \"file\"\n";
        std::fs::write(&path, format!("[ingest.kafka.properties]\n{text}")).unwrap();
        let environment = from_environment(&[
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__PASSWORD", "environment"),
            ("EVERGRAPH__INGEST__KAFKA__PROPERTIES__SASL__USERNAME", "environment"),
        ]);
        let flags = [("ingest.kafka.properties.sasl.username".to_owned(), "flag".to_owned())];
        let properties =
            Config::from_layers(Some(&path), environment, &flags).unwrap().ingest.kafka.properties.0;
        assert_eq!(properties["sasl.password"], "environment");
        assert_eq!(properties["sasl.username"], "flag");
        assert_eq!(properties["ssl.ca.location"], "file");
    }

    #[test]
    fn an_error_names_the_layer_it_comes_from() {
        let environment = from_environment(&[("EVERGRAPH__LEARNER__SEED", "many")]);
        let error = Config::from_layers(None, environment, &[]).unwrap_err().to_string();
        assert!(error.starts_with("settings (the environment): "), "{error}");
        let flags = [("learner.batch_event".to_owned(), "9".to_owned())];
        let error = Config::from_layers(None, from_environment(&[]), &flags).unwrap_err().to_string();
        assert!(error.starts_with("settings (the flag --set learner.batch_event): "), "{error}");
        let error = from_text("learner = 3").unwrap_err().to_string();
        assert!(error.contains("evergraph.toml): "), "{error}");
    }

    #[test]
    fn the_address_to_listen_on_may_be_a_name() {
        let listen = |text: &str| {
            let flags = [("api.listen".to_owned(), text.to_owned())];
            Config::from_layers(None, from_environment(&[]), &flags)
        };
        assert_eq!(listen("localhost:0").unwrap().api.listen.to_string(), "127.0.0.1:0");
        assert_eq!(listen("[::1]:80").unwrap().api.listen.to_string(), "[::1]:80");
        for wrong in ["localhost", "8080", "127.0.0.1:x"] {
            let error = listen(wrong).unwrap_err().to_string();
            assert!(
                error.starts_with("settings (the flag --listen): ") && error.contains("HOST:PORT"),
                "{error}"
            );
        }
    }
}
