//! Checks beyond types: ranges, relations between settings, and combinations that are allowed but probably mistakes.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use super::bounds::{AT_LEAST_ONE, AT_MOST};
use super::{Config, ConfigError, LatePolicy, ModelKind};
use crate::model::OptionsError;
use crate::model::walk::WalkOptionsError;

/// Longest time between two checkpoints, a year.
const CHECKPOINT_SECONDS_MAX: u64 = 31_536_000;
/// Longest wait of any kind, a day in milliseconds.
const WAIT_MS_MAX: u64 = 86_400_000;

/// What a memory budget may be.
const BUDGETS: &str =
    "must be -1, which derives it from the memory limit, 0, which means no limit, or at least 1048576";

/// Faults, in the order of the checks.
#[derive(Default)]
pub(super) struct Faults(Vec<ConfigError>);

impl Faults {
    pub(super) fn require(
        &mut self,
        holds: bool,
        key: &'static str,
        value: impl ToString,
        expected: &'static str,
    ) {
        // One number may break several rules; only the first is reported.
        let is_reported =
            |error: &ConfigError| matches!(error, ConfigError::OutOfRange { key: of, .. } if *of == key);
        if !holds && !self.0.iter().any(is_reported) {
            self.0.push(ConfigError::OutOfRange { key, value: value.to_string(), expected });
        }
    }
}

impl Config {
    /// Every breach of the relations and ranges that types cannot hold.
    pub(super) fn faults(&self) -> Vec<ConfigError> {
        let mut faults = Faults::default();
        for (key, value) in AT_LEAST_ONE {
            let value = value(self);
            faults.require(value >= 1, key, value, "must be at least 1");
        }
        for &(key, value, most, allowed) in AT_MOST {
            let value = value(self);
            faults.require(value <= most, key, value, allowed);
        }
        let named = !self.data.dir.as_os_str().is_empty();
        faults.require(named, "data.dir", "\"\"", "must not be empty");
        self.check_numbers(&mut faults);
        self.check_learning(&mut faults);
        self.check_waits(&mut faults);
        self.check_outlets(&mut faults);
        self.check_cluster(&mut faults);
        self.check_ranks(&mut faults);
        self.check_retention(&mut faults);
        self.check_relations(&mut faults);
        faults.0.extend(self.mapping_faults());
        faults.0.extend(self.topic_faults());
        faults.0.extend(level_filter(&self.output.level).err());
        faults.0
    }

    fn check_numbers(&self, faults: &mut Faults) {
        let speed = self.ingest.file.events_per_second;
        let possible = speed.is_finite() && speed >= 0.0;
        faults.require(possible, "ingest.file.events_per_second", speed, "must not be negative");
        let pages = self.graph.page_entries_max;
        let allowed = "must be a power of two and at least 4";
        faults.require(pages.is_power_of_two() && pages >= 4, "graph.page_entries_max", pages, allowed);
        let shards = self.graph.shards;
        faults.require(shards.is_power_of_two(), "graph.shards", shards, "must be a power of two");
        for (key, bytes) in [
            ("memory.graph_bytes_max", self.memory.graph_bytes_max),
            ("memory.rows_bytes_max", self.memory.rows_bytes_max),
        ] {
            let possible = matches!(bytes, -1 | 0) || bytes >= 1 << 20;
            faults.require(possible, key, bytes, BUDGETS);
        }
        let bytes = self.device.memory_bytes_max;
        let allowed = "must be 0, which means nine tenths of what is free, or at least 1048576";
        faults.require(bytes == 0 || bytes >= 1 << 20, "device.memory_bytes_max", bytes, allowed);
        let interval = self.checkpoint.interval_seconds;
        let possible = (1..=CHECKPOINT_SECONDS_MAX).contains(&interval);
        let allowed = "must be at least 1 and at most 31536000, a year";
        faults.require(possible, "checkpoint.interval_seconds", interval, allowed);
        let interval = self.snapshot.interval_seconds;
        let possible = (1..=CHECKPOINT_SECONDS_MAX).contains(&interval);
        faults.require(possible, "snapshot.interval_seconds", interval, allowed);
        let segment = self.log.segment_bytes;
        faults.require(segment >= 1 << 20, "log.segment_bytes", segment, "must be at least 1048576");
        let lateness = self.stream.allowed_lateness;
        let allowed = "must be -1, which means any distance, or at least 0";
        faults.require(lateness >= -1, "stream.allowed_lateness", lateness, allowed);
    }

    /// Of the model and the learner.
    fn check_learning(&self, faults: &mut Faults) {
        let dropout = self.model.dropout;
        let allowed = "must be at least 0 and below 1";
        faults.require((0.0..1.0).contains(&dropout), "model.dropout", dropout, allowed);
        let rate = self.learner.learning_rate;
        let (is_positive, allowed) = (rate.is_finite() && rate > 0.0, "must be a positive number");
        faults.require(is_positive, "learner.learning_rate", rate, allowed);
        let delay = self.learner.gradient_delay_batches;
        let allowed = "must be at most 50: weights move on while gradients wait";
        faults.require(delay <= 50, "learner.gradient_delay_batches", delay, allowed);
        let objection = self.learner.matmul_precision.objection();
        let (is_there, allowed) = (objection.is_none(), objection.unwrap_or_default());
        faults.require(is_there, "learner.matmul_precision", "bf16", allowed);
        let met = self.learner.met_negatives;
        let allowed =
            "must be from 0 to 1, or -1, which means 0.25 with model.walks, 0.1 of walk and otherwise 0";
        faults.require(met == -1.0 || (0.0..=1.0).contains(&met), "learner.met_negatives", met, allowed);
        let nice = self.learner.nice;
        faults.require(nice <= 19, "learner.nice", nice, "must be at most 19");
        let types = self.model.edge_types;
        let allowed = "must be at least 0 and at most 65535: the log numbers no more types";
        faults.require(types <= usize::from(u16::MAX), "model.edge_types", types, allowed);
        let ratio = self.learner.replay.ratio;
        let allowed = "must be at least 0 and at most 100";
        faults.require((0.0..=100.0).contains(&ratio), "learner.replay.ratio", ratio, allowed);
        for (key, value) in [
            ("learner.schedule.floor", f64::from(self.learner.schedule.floor)),
            ("learner.share_min", self.learner.share_min),
            ("learner.gate.edgebank_tolerance", self.learner.gate.edgebank_tolerance),
        ] {
            faults.require((0.0..=1.0).contains(&value), key, value, "must be at least 0 and at most 1");
        }
        let confidence = self.learner.gate.confidence;
        let allowed = "must be at least 0.5 and less than 1";
        faults.require((0.5..1.0).contains(&confidence), "learner.gate.confidence", confidence, allowed);
    }

    fn check_waits(&self, faults: &mut Faults) {
        let waits = [
            ("api.wait_ms_max", self.api.wait_ms_max),
            ("api.request_timeout_ms", self.api.request_timeout_ms),
            ("api.header_timeout_ms", self.api.header_timeout_ms),
            ("api.body_pause_ms_max", self.api.body_pause_ms_max),
            ("ingest.kafka.batch_wait_ms", self.ingest.kafka.batch_wait_ms),
            ("learner.batch_wait_ms", self.learner.batch_wait_ms),
            ("index.coalesce_ms", self.index.coalesce_ms),
            ("feed.coalesce_ms", self.feed.coalesce_ms),
            ("cluster.max_staleness_ms", self.cluster.max_staleness_ms),
        ];
        for (key, value) in waits {
            faults.require(value <= WAIT_MS_MAX, key, value, "must be at most 86400000, a day");
        }
        let allowed = "must be at least 0.01 and at most 1";
        for (key, share) in
            [("index.cpu_share", self.index.cpu_share), ("feed.cpu_share", self.feed.cpu_share)]
        {
            faults.require((0.01..=1.0).contains(&share), key, share, allowed);
        }
    }

    fn check_retention(&self, faults: &mut Faults) {
        let retention = self.graph.retention;
        let allowed = "must be 0, which keeps everything, or at least stream.allowed_lateness";
        let lateness = self.stream.allowed_lateness;
        faults.require(retention == 0 || retention >= lateness.max(1), "graph.retention", retention, allowed);
        let nodes = self.graph.node_retention;
        faults.require(
            nodes == 0 || nodes > 0 && self.graph.retention > 0 && self.stream.future_limit >= 0,
            "graph.node_retention",
            nodes,
            "must be 0, which keeps nodes, or more where graph.retention is set, which takes the edges of nodes first, \
             and stream.future_limit, without which some wrong times would delete nodes for good",
        );
    }

    fn check_relations(&self, faults: &mut Faults) {
        let cuts = self.log.retention_bytes > 0 || self.log.retention_seconds > 0;
        faults.require(
            !cuts || self.snapshot.keep >= 2,
            "snapshot.keep",
            self.snapshot.keep,
            "must be at least 2 where log.retention_bytes or log.retention_seconds is set: the log is cut behind the \
             older of two",
        );
        let (bodies, body) = (self.api.bodies_bytes_max, self.api.body_bytes_max);
        let allowed =
            "must be -1, which derives it from the memory limit, or at least twice api.body_bytes_max";
        let possible = bodies == -1 || usize::try_from(bodies / 2).is_ok_and(|half| half >= body);
        faults.require(possible, "api.bodies_bytes_max", bodies, allowed);
        let (responses, allowed) = (
            self.api.responses_bytes_max,
            "must be -1, which derives it from the memory limit, or at least 1048576",
        );
        let possible = responses == -1 || responses >= 1 << 20;
        faults.require(possible, "api.responses_bytes_max", responses, allowed);
        let (certificate, key) = (&self.api.tls_certificate, &self.api.tls_key);
        let both = certificate.as_os_str().is_empty() == key.as_os_str().is_empty();
        faults.require(both, "api.tls_key", key.display(), "must be set together with api.tls_certificate");
        let (model, shape) = (&self.model, self.model_options().validate());
        faults.require(
            !matches!(shape, Err(OptionsError::Heads { .. })),
            "model.heads",
            model.heads,
            "must divide what attention is as wide as: model.memory_dimension + model.time_dimension for tgn, \
             model.time_dimension and model.embedding_dimension for tgat, model.embedding_dimension for gat and dysat",
        );
        faults.require(
            !matches!(shape, Err(OptionsError::EmbeddingWidth { .. })),
            "model.embedding_dimension",
            model.embedding_dimension,
            "must be model.memory_dimension for jodie",
        );
        let walk = match shape {
            Err(OptionsError::Walk(error)) => Some(error),
            _ => None,
        };
        faults.require(
            !matches!(walk, Some(WalkOptionsError::Steps { .. })),
            "model.walk_steps",
            model.walk_steps,
            "must be 1 to 4",
        );
        faults.require(
            !matches!(walk, Some(WalkOptionsError::Dimension { .. })),
            "model.walk_dimension",
            model.walk_dimension,
            "must be a multiple of 16 up to 1024",
        );
        let alone = !(model.walks && model.kind == ModelKind::Walk);
        let allowed = "must be false for model.kind = \"walk\", which scores pairs by walks alone";
        faults.require(alone, "model.walks", model.walks, allowed);
        let ratio = self.learner.replay.ratio;
        let replayed = self.model_options().needs().walks.is_none() || ratio == 0.0;
        let allowed = "must be 0 with walks: they have no past state, and today's has seen every old event";
        faults.require(replayed, "learner.replay.ratio", ratio, allowed);
        let named = !self.device.kernel_dir.as_os_str().is_empty();
        faults.require(named, "device.kernel_dir", "\"\"", "must not be empty");
        let kafka = &self.ingest.kafka;
        let named = kafka.brokers.is_empty() || !kafka.group.is_empty();
        let allowed = "must not be empty while ingest.kafka.brokers is set";
        faults.require(named, "ingest.kafka.group", "\"\"", allowed);
    }

    /// What is allowed and probably not meant, a sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let (stream, api) = (&self.stream, &self.api);
        if !api.listen.ip().is_loopback() && api.keys_file.as_os_str().is_empty() {
            warnings.push(format!(
                "api.listen = {} can be reached from other machines without authentication; set api.keys_file, \
                 or keep others out in another way",
                api.listen
            ));
        }
        if !api.listen.ip().is_loopback() && api.tls_certificate.as_os_str().is_empty() {
            warnings.push(format!(
                "api.listen = {} can be reached from other machines and serves plain HTTP: keys and responses can be \
                 read on the way; set api.tls_certificate and api.tls_key, or let a proxy speak HTTPS",
                api.listen
            ));
        }
        if stream.allowed_lateness == -1 && stream.late_policy != LatePolicy::Accept {
            warnings.push(
                "stream.late_policy never decides, because stream.allowed_lateness = -1 allows any distance; \
                 set stream.allowed_lateness to 0 or more"
                    .to_owned(),
            );
        }
        if self.graph.retention > 0 && stream.future_limit == -1 {
            warnings.push(
                "graph.retention is set and stream.future_limit is not: ten events with wrong times far \
                 ahead make all others too old; set stream.future_limit"
                    .to_owned(),
            );
        }
        let kafka = &self.ingest.kafka;
        if kafka.brokers.is_empty() && !kafka.dead_letter_topic.is_empty() {
            warnings.push(
                "ingest.kafka.dead_letter_topic is not used, because ingest.kafka.brokers is empty; dead letters \
                 go to the file"
                    .to_owned(),
            );
        }
        warnings.extend(self.mapping_warnings());
        warnings.extend(self.topic_warnings());
        warnings
    }
}

/// Logged below `warn` only where a filter names them: migrations report at `info` that there is nothing to do.
const QUIET: &str = "refinery_core=warn";

/// A filter of tracing-subscriber, without the form in which one word means "everything of this module":
/// there a misspelt level would silence all else.
///
/// # Errors
/// When it is invalid; the message lists what is allowed.
pub fn level_filter(level: &str) -> Result<EnvFilter, ConfigError> {
    let is_level = |word: &str| !word.trim().is_empty() && word.trim().parse::<LevelFilter>().is_ok();
    let parts_known = level.split(',').all(|part| part.contains(['=', '[']) || is_level(part));
    let filter = if parts_known { EnvFilter::try_new(format!("{QUIET},{level}")).ok() } else { None };
    filter.ok_or_else(|| ConfigError::OutOfRange {
        key: "output.level",
        value: format!("{level:?}"),
        expected: "must be error, warn, info, debug or trace, or a filter such as info,evergraph::ingest=debug",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let flags: Vec<_> = settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let none = config::Environment::default().source(Some(config::Map::new()));
        Config::from_layers(None, none, &flags)
    }

    #[test]
    fn a_value_outside_its_range_names_key_value_and_range() {
        for (key, value, expected) in [
            ("graph.page_entries_max", "100", "must be a power of two"),
            ("graph.shards", "3", "must be a power of two"),
            ("memory.graph_bytes_max", "1000", "0, which means no limit, or at least 1048576"),
            ("memory.rows_bytes_max", "-2", "must be -1, which derives it from the memory limit"),
            (
                "device.memory_bytes_max",
                "1024",
                "must be 0, which means nine tenths of what is free, or at least 1048576",
            ),
            ("device.kernel_dir", "", "must not be empty"),
            ("data.dir", "", "must not be empty"),
            ("model.heads", "3", "must divide"),
            ("model.memory_dimension", "1000000000", "must be at most 16384"),
            ("model.fanout", "100000000", "must be at most 10000"),
            ("stream.edge_feature_dimension", "65537", "must be at most 65536"),
            ("learner.batch_events", "99999999999", "must be at most 1000000"),
            ("learner.threads", "100000", "must be at most 4096"),
            ("model.heads", "0", "at least 1"),
            ("model.snapshot_width", "0", "at least 1"),
            ("model.dropout", "1", "below 1"),
            ("api.request_timeout_ms", "0", "at least 1"),
            ("api.concurrent_requests_max", "10001", "at most 10000"),
            ("learner.rank_candidates", "0", "at least 1"),
            ("learner.nice", "20", "at most 19"),
            ("learner.batch_wait_ms", "18446744073709551615", "at most 86400000"),
            ("ingest.kafka.batch_wait_ms", "86400001", "at most 86400000"),
            ("learner.quality_window_batches", "0", "at least 1"),
            ("learner.schedule.floor", "-0.1", "at least 0 and at most 1"),
            ("learner.schedule.decay_steps", "0", "at least 1"),
            ("learner.replay.ratio", "101", "at least 0 and at most 100"),
            ("learner.gate.window_batches", "0", "at least 1"),
            ("learner.gate.confidence", "1", "at least 0.5 and less than 1"),
            ("learner.gate.edgebank_tolerance", "nan", "at least 0 and at most 1"),
            ("checkpoint.interval_seconds", "0", "at least 1 and at most 31536000"),
            ("checkpoint.interval_seconds", "9223372036854775807", "at least 1 and at most 31536000"),
            ("stream.allowed_lateness", "-7", "-1, which means any distance"),
            ("graph.retention", "-1", "must be 0, which keeps everything, or at least"),
            ("output.level", "inof", "must be error, warn"),
            ("output.level", "info,evergraph=loud", "must be error, warn"),
            ("output.level", "", "must be error, warn"),
        ] {
            let error = with(&[(key, value)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{key} = ")) && error.contains(expected), "{error}");
        }
        for level in ["warn", "off", "info,evergraph::ingest=debug", "evergraph[push]=trace"] {
            assert!(with(&[("output.level", level)]).is_ok(), "{level}");
        }
    }

    #[test]
    fn retention_is_no_shorter_than_the_lateness() {
        let late = |lateness: &str, retention: &str| {
            with(&[("stream.allowed_lateness", lateness), ("graph.retention", retention)])
        };
        for (lateness, retention) in [("-1", "1"), ("0", "1"), ("50", "50"), ("50", "0")] {
            assert!(late(lateness, retention).is_ok(), "{lateness} {retention}");
        }
        let error = late("50", "49").unwrap_err().to_string();
        assert!(error.starts_with("graph.retention = 49: must be 0"), "{error}");
        let kept = late("-1", "7").unwrap().retention();
        assert_eq!(kept, Some(crate::graph::Retention { age: 7, lateness: 0 }));
        assert_eq!(with(&[]).unwrap().retention(), None);
    }

    #[test]
    fn a_broker_needs_a_group() {
        let none = ("ingest.kafka.group", "");
        assert!(with(&[none]).is_ok(), "not checked without a broker");
        let error = with(&[("ingest.kafka.brokers", "localhost:9092"), none]).unwrap_err().to_string();
        assert!(error.starts_with("ingest.kafka.group = \"\": must not be empty"), "{error}");
    }

    #[test]
    fn probable_mistakes_are_reported() {
        let open = ("api.listen", "0.0.0.0:8080");
        let warnings = with(&[open]).unwrap().warnings();
        assert!(
            matches!(&warnings[..], [keys, tls] if keys.contains("keys_file") && tls.contains("tls_key"))
        );
        let guarded = [open, ("api.keys_file", "k"), ("api.tls_certificate", "c"), ("api.tls_key", "k")];
        assert!(with(&guarded).unwrap().warnings().is_empty());
        assert!(with(&[]).unwrap().warnings().is_empty());
        let drop = ("stream.late_policy", "drop");
        let warnings = with(&[drop]).unwrap().warnings();
        assert!(matches!(&warnings[..], [only] if only.contains("late_policy")), "{warnings:?}");
        assert!(with(&[drop, ("stream.allowed_lateness", "5")]).unwrap().warnings().is_empty());
        let retention = ("graph.retention", "9");
        let warnings = with(&[retention]).unwrap().warnings();
        assert!(matches!(&warnings[..], [only] if only.contains("future_limit")), "{warnings:?}");
        assert!(with(&[retention, ("stream.future_limit", "5")]).unwrap().warnings().is_empty());
        let warnings = with(&[("ingest.kafka.dead_letter_topic", "letters")]).unwrap().warnings();
        assert!(matches!(&warnings[..], [only] if only.contains("dead_letter_topic")), "{warnings:?}");
    }
}
