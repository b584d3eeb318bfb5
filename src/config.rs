//! The settings: one typed [`Config`], read once at start and handed on in parts.
//!
//! Layers, later ones win: the default file (compiled in from `deploy/evergraph.toml`, so the
//! documented default cannot drift) < a file < `EVERGRAPH__SECTION__KEY` < flags. Every key of every
//! layer must be known; an unknown one is an error that suggests the nearest known key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat};
use serde::Deserialize;
use thiserror::Error;

/// The default settings, with their documentation.
pub const DEFAULT_FILE: &str = include_str!("../deploy/evergraph.toml");

/// Longest time between two checkpoints, a year.
const CHECKPOINT_SECONDS_MAX: u64 = 31_536_000;

/// Why the settings cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A layer could not be read, or a value has the wrong type or an unknown name.
    #[error("{layer}: {detail}{suggestion}")]
    Unreadable {
        /// Which layer or layers.
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
}

macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs)] // every key is documented in the default file, which is the reference
        pub struct $name { $(pub $field: $type),+ }
    };
}

section!(/// All settings, section by section.
Config {
    data: Data, api: Api, stream: Stream, ingest: Ingest, log: Log, graph: Graph, model: Model,
    learner: Learner, checkpoint: Checkpoint, output: Output,
});
section!(/// `[data]`
    Data { dir: PathBuf });
section!(/// `[api]`
Api {
    listen: SocketAddr, body_bytes_max: usize, batch_items_max: usize, concurrent_requests_max: usize,
    wait_ms_max: u64, request_timeout_ms: u64,
});
section!(/// `[stream]`
Stream {
    edge_feature_dimension: usize, node_feature_dimension: usize, allowed_lateness: i64,
    late_policy: LatePolicy,
});
section!(/// `[ingest]`
Ingest {
    queue_batches_max: usize, idempotency_keys_max: usize, dead_letter_file_bytes_max: u64,
    http: IngestHttp, file: IngestFile, kafka: IngestKafka,
});
section!(/// `[ingest.http]`
    IngestHttp { enabled: bool });
section!(/// `[ingest.file]`
    IngestFile { path: PathBuf, events_per_second: f64 });
section!(/// `[ingest.kafka]`
IngestKafka {
    brokers: String, topic: String, group: String, instance_id: String, dead_letter_topic: String,
    batch_messages_max: usize, batch_wait_ms: u64, lost_data_policy: LostDataPolicy,
    properties: property_map::Properties,
});
section!(/// `[log]`
    Log { segment_bytes: u64, commit_events_max: usize, commit_bytes_max: usize });
section!(/// `[graph]`
    Graph { shards: usize, page_entries_max: usize });
section!(/// `[model]`
Model {
    memory_dimension: usize, time_dimension: usize, embedding_dimension: usize, heads: usize,
    fanout: usize, dropout: f32,
});
section!(/// `[learner]`
Learner {
    train: bool, batch_events: usize, batch_wait_ms: u64, learning_rate: f32, seed: u64,
    lag_events_max: u64, quality_window_batches: usize, rank_queries_per_batch: usize,
    rank_candidates: usize, threads: usize,
});
section!(/// `[checkpoint]`
    Checkpoint { interval_seconds: u64, keep: usize });
section!(/// `[output]`
    Output { level: String, format: OutputFormat });

/// What happens to an event that is later than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatePolicy {
    /// It is inserted in time order all the same.
    Accept,
    /// It is counted and not kept.
    Drop,
    /// It is counted and kept as a dead letter.
    DeadLetter,
}

/// What happens when the broker no longer has the messages after our position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LostDataPolicy {
    /// The source stops and says so.
    Fail,
    /// The source goes on from the earliest message that is left.
    Earliest,
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

/// Properties passed through to a library under dotted names.
mod property_map {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer};

    /// Dotted property names and their values, as text.
    #[derive(Clone, Debug, Default)]
    pub struct Properties(pub BTreeMap<String, String>);

    impl<'de> Deserialize<'de> for Properties {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let mut flat = BTreeMap::new();
            flatten("", serde_json::Value::deserialize(deserializer)?, &mut flat);
            Ok(Self(flat))
        }
    }

    /// `security.protocol` may be written as a quoted key or as nested tables; both mean the same.
    fn flatten(prefix: &str, value: serde_json::Value, flat: &mut BTreeMap<String, String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, inner) in map {
                    let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
                    flatten(&name, inner, flat);
                }
            }
            serde_json::Value::String(text) => drop(flat.insert(prefix.to_owned(), text)),
            other => drop(flat.insert(prefix.to_owned(), other.to_string())),
        }
    }
}

impl Config {
    /// Reads all layers: the default, `file` if given, the environment, then `flags`
    /// (`("section.key", "value")`).
    ///
    /// # Errors
    /// [`ConfigError`] names the layer, the key and what it must be.
    pub fn load(file: Option<&Path>, flags: &[(String, String)]) -> Result<Self, ConfigError> {
        let environment = Environment::with_prefix("EVERGRAPH").prefix_separator("__").separator("__");
        Self::from_layers(file, environment, flags)
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
        let mut layer = "the default settings".to_owned();
        let mut builder =
            config::Config::builder().add_source(File::from_str(DEFAULT_FILE, FileFormat::Toml));
        if let Some(path) = file {
            layer = path.display().to_string();
            builder =
                builder.add_source(File::from(path.to_path_buf()).format(FileFormat::Toml).required(true));
        }
        builder = builder.add_source(environment.try_parsing(true));
        for (key, value) in flags {
            builder =
                builder.set_override(key, value.as_str()).map_err(|error| unreadable(&layer, &error))?;
        }
        let settings = builder.build().map_err(|error| unreadable(&layer, &error))?;
        let config: Self = settings.try_deserialize().map_err(|error| unreadable(&layer, &error))?;
        config.check()?;
        Ok(config)
    }

    /// Relations and ranges that types cannot hold.
    fn check(&self) -> Result<(), ConfigError> {
        let at_least_one: [(&'static str, usize); 14] = [
            ("api.body_bytes_max", self.api.body_bytes_max),
            ("api.batch_items_max", self.api.batch_items_max),
            ("api.concurrent_requests_max", self.api.concurrent_requests_max),
            ("ingest.queue_batches_max", self.ingest.queue_batches_max),
            ("ingest.kafka.batch_messages_max", self.ingest.kafka.batch_messages_max),
            ("log.commit_events_max", self.log.commit_events_max),
            ("log.commit_bytes_max", self.log.commit_bytes_max),
            ("graph.shards", self.graph.shards),
            ("model.memory_dimension", self.model.memory_dimension),
            ("model.time_dimension", self.model.time_dimension),
            ("model.embedding_dimension", self.model.embedding_dimension),
            ("model.fanout", self.model.fanout),
            ("learner.batch_events", self.learner.batch_events),
            ("checkpoint.keep", self.checkpoint.keep),
        ];
        for (key, value) in at_least_one {
            require(value >= 1, key, value, "must be at least 1")?;
        }
        let model = &self.model;
        require(model.heads >= 1, "model.heads", model.heads, "must be at least 1")?;
        require(
            (model.memory_dimension + model.time_dimension).is_multiple_of(model.heads),
            "model.heads",
            model.heads,
            "must divide model.memory_dimension + model.time_dimension",
        )?;
        let dropout = model.dropout;
        require((0.0..1.0).contains(&dropout), "model.dropout", dropout, "must be at least 0 and below 1")?;
        let rate = self.learner.learning_rate;
        require(rate.is_finite() && rate > 0.0, "learner.learning_rate", rate, "must be a positive number")?;
        let speed = self.ingest.file.events_per_second;
        require(
            speed.is_finite() && speed >= 0.0,
            "ingest.file.events_per_second",
            speed,
            "must not be negative",
        )?;
        let pages = self.graph.page_entries_max;
        require(
            pages.is_power_of_two() && pages >= 4,
            "graph.page_entries_max",
            pages,
            "must be a power of two and at least 4",
        )?;
        let shards = self.graph.shards;
        require(shards.is_power_of_two(), "graph.shards", shards, "must be a power of two")?;
        let interval = self.checkpoint.interval_seconds;
        require(
            (1..=CHECKPOINT_SECONDS_MAX).contains(&interval),
            "checkpoint.interval_seconds",
            interval,
            "must be at least 1 and at most 31536000, a year",
        )?;
        let segment = self.log.segment_bytes;
        require(segment >= 1 << 20, "log.segment_bytes", segment, "must be at least 1048576")
    }
}

fn require(
    holds: bool,
    key: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::OutOfRange { key, value: value.to_string(), expected }) }
}

fn unreadable(layer: &str, error: &config::ConfigError) -> ConfigError {
    let detail = error.to_string();
    let suggestion = suggest(&detail).unwrap_or_default();
    ConfigError::Unreadable { layer: format!("settings ({layer} and the environment)"), detail, suggestion }
}

/// Finds `unknown field `x`, expected one of `a`, `b`` in a message and names the nearest.
fn suggest(message: &str) -> Option<String> {
    let mut quoted = message.split("unknown field `").nth(1)?.split('`');
    let unknown = quoted.next()?;
    let nearest = quoted
        .skip(1)
        .step_by(2)
        .map(|known| (strsim::jaro_winkler(unknown, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (nearest.0 > 0.7).then(|| format!("; did you mean `{}`?", nearest.1))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            Environment::with_prefix("EVERGRAPH").prefix_separator("__").separator("__").source(Some(
                [
                    ("EVERGRAPH__API__LISTEN".to_owned(), "127.0.0.1:2".to_owned()),
                    ("EVERGRAPH__LEARNER__SEED".to_owned(), "2".to_owned()),
                ]
                .into_iter()
                .collect(),
            ));
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
    fn a_value_outside_its_range_names_key_value_and_range() {
        let error = from_text("[graph]\npage_entries_max = 100\n").unwrap_err().to_string();
        assert!(error.contains("graph.page_entries_max = 100: must be a power of two"), "{error}");
        let error = from_text("[model]\nheads = 3\n").unwrap_err().to_string();
        assert!(error.contains("model.heads = 3"), "{error}");
        for seconds in [0, i64::MAX] {
            let text = format!("[checkpoint]\ninterval_seconds = {seconds}\n");
            let error = from_text(&text).unwrap_err().to_string();
            assert!(error.contains("must be at least 1 and at most 31536000"), "{error}");
        }
    }

    #[test]
    fn kafka_properties_keep_their_dots_and_case() {
        let text =
            "[ingest.kafka.properties]\n\"security.protocol\" = \"SASL_SSL\"\nsasl.mechanism = \"PLAIN\"\n";
        let properties = from_text(text).unwrap().ingest.kafka.properties.0;
        assert_eq!(properties["security.protocol"], "SASL_SSL");
        assert_eq!(properties["sasl.mechanism"], "PLAIN");
    }
}
