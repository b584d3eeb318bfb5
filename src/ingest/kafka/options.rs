//! How to reach the brokers and how to read. Any librdkafka property may be set besides, except those on
//! which exactly-once reading stands.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};

use super::fault::KafkaFault;
use super::login::{TOKEN_ENDPOINT, is_ours};
use crate::ingest::decode::DecodeOptions;
use crate::ingest::mapping::{Mapping, MessageReader};
use crate::ingest::registry::Wire;

/// Properties that the source sets itself; exactly-once reading stands on them.
const RESERVED: [&str; 7] = [
    "bootstrap.servers",
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "statistics.interval.ms",
];

/// How to reach the brokers.
#[derive(Clone, PartialEq, Eq)]
pub struct KafkaClientOptions {
    /// `host:port`, several separated by commas.
    pub brokers: String,
    /// Further librdkafka properties, for example `security.protocol` or `sasl.password`.
    pub properties: BTreeMap<String, String>,
}

impl KafkaClientOptions {
    /// Plain text, no authentication.
    #[must_use]
    pub fn new(brokers: &str) -> Self {
        Self { brokers: brokers.into(), properties: BTreeMap::new() }
    }

    /// The same with one more property.
    #[must_use]
    pub fn with(mut self, property: &str, value: &str) -> Self {
        self.properties.insert(property.into(), value.into());
        self
    }

    /// The properties with secrets replaced by `***`; the only form that may be shown.
    #[must_use]
    pub fn redacted(&self) -> BTreeMap<String, String> {
        let show = |(key, value): (&String, &String)| {
            // Where tokens are fetched is no secret, unless somebody has written one into it.
            let is_shown = !is_secret(key) || (key == TOKEN_ENDPOINT && !value.contains('@'));
            (key.clone(), if is_shown { value.clone() } else { "***".into() })
        };
        self.properties.iter().map(show).collect()
    }

    /// A configuration with these options. Reconnects quickly, so that a broker's return is noticed in a
    /// second.
    #[must_use]
    pub(in crate::ingest) fn config(&self, defaults: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", "evergraph")
            .set("reconnect.backoff.ms", "100")
            .set("reconnect.backoff.max.ms", "2000")
            .set("socket.keepalive.enable", "true")
            .set_log_level(RDKafkaLogLevel::Info);
        for (key, value) in defaults {
            config.set(*key, *value);
        }
        for (key, value) in self.properties.iter().filter(|(key, _)| !is_ours(&self.properties, key)) {
            config.set(key, value);
        }
        config
    }
}

impl fmt::Debug for KafkaClientOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaClientOptions")
            .field("brokers", &self.brokers)
            .field("properties", &self.redacted())
            .finish()
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["password", "secret", "token", "jaas", "oauthbearer.config", "key.pem", "credential"]
        .iter()
        .any(|part| key.contains(part))
}

/// What to do when offsets between the log's position and the broker's oldest message are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataLossPolicy {
    /// The source fails and names the offsets.
    #[default]
    Fail,
    /// The source continues with the oldest message there is, and logs it.
    Earliest,
}

/// From topic and cluster id to the recorded id, if that differs.
type RecordCluster = dyn Fn(&str, &str) -> Option<String> + Send + Sync;

/// Records the cluster of each topic: called with topic and cluster id before the first message is read, it returns the
/// id that was recorded first, if that is another one. The offsets of one cluster mean nothing in another.
#[derive(Clone)]
pub struct ClusterMemory(pub Arc<RecordCluster>);

impl Default for ClusterMemory {
    /// Records nothing.
    fn default() -> Self {
        Self(Arc::new(|_, _| None))
    }
}

impl fmt::Debug for ClusterMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterMemory")
    }
}

/// How a topic is read.
#[derive(Clone, Debug)]
pub struct KafkaSourceOptions {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// The topic.
    pub topic: String,
    /// The consumer group under which positions are committed, for outside tools.
    pub group: String,
    /// A partition's batch is handed over at so many messages, or …
    pub batch_events: usize,
    /// … after so long.
    pub batch_wait: Duration,
    /// While the partition's last batch is being stored, the next one grows to at most so many messages, …
    pub batch_max_events: usize,
    /// … or so many bytes; then reading waits.
    pub batch_max_bytes: usize,
    /// Bound of librdkafka's read-ahead, in KiB per partition.
    pub prefetch_kbytes: u32,
    /// A batch that the log refused, or whose dead letters could not be kept, is tried again after so long.
    pub retry_wait: Duration,
    /// After so long without a connection to any broker, the source begins with a new client.
    pub outage_max: Duration,
    /// What to do when offsets are gone by retention.
    pub data_loss: DataLossPolicy,
    /// Bounds of one event.
    pub decode: DecodeOptions,
    /// How messages of another shape are read.
    pub mapping: Option<Arc<Mapping>>,
    /// How messages are unwrapped that name a schema of a registry.
    pub wire: Option<Wire>,
    /// Knows whose offsets the log holds.
    pub clusters: ClusterMemory,
}

impl KafkaSourceOptions {
    /// Defaults for a topic on these brokers.
    #[must_use]
    pub fn new(brokers: &str, topic: &str, group: &str) -> Self {
        Self {
            client: KafkaClientOptions::new(brokers),
            topic: topic.into(),
            group: group.into(),
            batch_events: 1000,
            batch_wait: Duration::from_millis(20),
            batch_max_events: 16_384,
            batch_max_bytes: 16 << 20,
            prefetch_kbytes: 16_384,
            retry_wait: Duration::from_secs(1),
            outage_max: Duration::from_secs(30),
            data_loss: DataLossPolicy::Fail,
            decode: DecodeOptions::default(),
            mapping: None,
            wire: None,
            clusters: ClusterMemory::default(),
        }
    }

    /// The name under which the log keeps positions of this topic.
    #[must_use]
    pub fn source_name(&self) -> String {
        format!("kafka:{}", self.topic)
    }

    /// Reads the topic's messages as events.
    #[must_use]
    pub fn reader(&self) -> MessageReader {
        MessageReader::new(self.decode, self.mapping.clone()).with_wire(self.wire.clone())
    }

    /// # Errors
    /// When a property is set that the source sets itself.
    pub(in crate::ingest) fn consumer_config(&self) -> Result<ClientConfig, KafkaFault> {
        if let Some(property) = RESERVED.iter().find(|p| self.client.properties.contains_key(**p)) {
            let detail = "the source sets it itself; remove it".to_owned();
            return Err(KafkaFault::BadOption { property: (*property).into(), detail });
        }
        let mut config = self.client.config(&[
            ("isolation.level", "read_committed"),
            ("queued.max.messages.kbytes", &self.prefetch_kbytes.to_string()),
            ("topic.metadata.refresh.interval.ms", "30000"),
        ]);
        config
            .set("group.id", &self.group)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            // The start of every partition is set on assignment; a position that the broker does not have
            // is an error to be named, not a reason to jump.
            .set("auto.offset.reset", "error")
            // Offsets without messages at the end of a partition are accounted for there.
            .set("enable.partition.eof", "true")
            .set("statistics.interval.ms", "1000");
        Ok(config)
    }

    /// The same for a reader that notices when the topic changes its id, which librdkafka only logs.
    ///
    /// # Errors
    /// When a property is set that the source sets itself.
    pub(super) fn source_config(&self) -> Result<ClientConfig, KafkaFault> {
        let mut config = self.consumer_config()?;
        let parts =
            config.get("debug").map_or_else(|| "metadata".to_owned(), |parts| format!("{parts},metadata"));
        config.set("debug", parts).set_log_level(RDKafkaLogLevel::Debug);
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_shown() {
        let options = KafkaClientOptions::new("b:1")
            .with("sasl.password", "hunter2")
            .with("ssl.key.pem", "hunter2")
            .with("sasl.oauthbearer.client.secret", "hunter2")
            .with("sasl.oauthbearer.client.credentials.client.secret", "hunter2")
            .with("sasl.oauthbearer.token.endpoint.url", "https://issuer/token")
            .with("sasl.username", "me");
        let shown = format!("{options:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("https://issuer/token"), "{shown}");
        assert!(shown.contains("sasl.username\": \"me"), "{shown}");
    }

    #[test]
    fn what_librdkafka_cannot_do_is_not_passed_on() {
        let options = KafkaClientOptions::new("b:1")
            .with("security.protocol", "SASL_SSL")
            .with("sasl.oauthbearer.client.id", "me")
            .with("https.ca.location", "ca.pem");
        let names = ["security.protocol", "sasl.oauthbearer.client.id", "https.ca.location"];
        let passed_on = |options: &KafkaClientOptions| {
            let config = options.config(&[]);
            names.map(|name| config.get(name).is_some())
        };
        assert_eq!(passed_on(&options), [true; 3]);
        assert_eq!(passed_on(&options.with("sasl.mechanism", "OAUTHBEARER")), [true, false, false]);
    }

    #[test]
    fn what_exactly_once_stands_on_cannot_be_set() {
        let mut options = KafkaSourceOptions::new("b:1", "t", "g");
        options.client = options.client.with("enable.auto.commit", "true");
        assert!(matches!(options.consumer_config(), Err(KafkaFault::BadOption { .. })));
    }
}
