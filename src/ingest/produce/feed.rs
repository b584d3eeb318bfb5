//! [`FeedTopic`]: embeddings that have changed, and nodes that were deleted, as messages of a compacted topic.
//!
//! The key of a message is the node's key as text, so that compaction keeps the latest message of each node. A message
//! without a value says that the node was deleted. What else a message has depends on the format:
//!
//! ```text
//! json    the value is an object: the node, its embedding, and what /v1/embeddings says beside it
//! binary  the value is the embedding, 32-bit floats in little-endian order; the rest is in headers evergraph.*
//! qdrant  the value is what Qdrant's connector for Kafka reads: a collection, an id, a vector and a payload
//! ```
//! An id of Qdrant is an unsigned integer or a UUID. Keys that are no unsigned integers have the UUID of version 5 that
//! follows from the key as text, in the namespace of URLs (RFC 9562), so that clients can compute it.

use std::time::Duration;

use rdkafka::message::{Header, OwnedHeaders};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use serde::Serialize;
use uuid::Uuid;

use super::TopicTarget;
use super::batch::{BatchOptions, BatchProducer, Record};
use crate::event::NodeKey;
use crate::ingest::kafka::{KafkaClientOptions, KafkaFault, KafkaSourceOptions, is_compacted, preflight};
use crate::serving::{ChangedRow, ChangedRows};

/// How long the check of a topic may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Which topic, and what its messages are.
#[derive(Clone, Debug)]
pub struct FeedOptions {
    /// How to reach the brokers.
    pub client: KafkaClientOptions,
    /// The topic.
    pub topic: String,
    /// Creates the topic, compacted, with so many partitions if it does not exist.
    pub create_partitions: Option<i32>,
    /// What messages are.
    pub format: FeedFormat,
    /// A delivery that takes longer has failed.
    pub timeout: Duration,
}

/// What messages are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedFormat {
    /// Objects of JSON.
    Json,
    /// Embeddings as bytes.
    Binary,
    /// Points for Qdrant, in this collection.
    Qdrant(String),
}

/// A topic that changes are delivered to.
pub struct FeedTopic {
    options: FeedOptions,
    producer: Option<BatchProducer>,
}

/// A message.
#[derive(Debug, Default, PartialEq)]
struct Message {
    key: String,
    value: Option<Vec<u8>>,
    headers: Vec<(&'static str, String)>,
}

/// A node's key: a number where every reader reads it exactly, else a text.
#[derive(Serialize)]
#[serde(untagged)]
enum Node<'a> {
    Number(i64),
    Text(&'a str),
}

#[derive(Serialize)]
struct Value<'a> {
    node: Node<'a>,
    embedding: &'a [f32],
    #[serde(flatten)]
    about: About,
}

/// What stands beside an embedding.
#[derive(Serialize)]
struct About {
    /// Event time that it is for.
    at: i64,
    last_event: Option<i64>,
    model_version: u64,
    source: &'static str,
    applied_position: u64,
    cold: bool,
}

#[derive(Serialize)]
struct Point<'a> {
    collection_name: &'a str,
    id: PointId,
    vector: &'a [f32],
    payload: Payload<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum PointId {
    Number(u64),
    Uuid(String),
}

#[derive(Serialize)]
struct Payload<'a> {
    node: Node<'a>,
    #[serde(flatten)]
    about: About,
}

impl FeedTopic {
    /// A topic that was not looked at yet.
    #[must_use]
    pub fn new(options: FeedOptions) -> Self {
        Self { options, producer: None }
    }

    /// Checks the topic, or creates it where the options say so; returns how many partitions it has.
    ///
    /// # Errors
    /// The fault that keeps it from being used.
    pub fn check(&self) -> Result<usize, KafkaFault> {
        let FeedOptions { client, topic, create_partitions, .. } = self.options.clone();
        let reader = self.reader();
        let target = TopicTarget { client, topic: topic.clone(), create_partitions };
        target.prepare_with(&[("cleanup.policy", "compact")])?;
        let partitions = preflight(&reader, CHECK_TIMEOUT)?.partitions.len();
        match is_compacted(&reader, CHECK_TIMEOUT) {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                topic,
                "the topic of the change feed is not compacted: a reader who begins late misses what its retention has \
                 removed; set its cleanup.policy to compact"
            ),
            Err(fault) => tracing::debug!(topic, %fault, "whether the topic is compacted is not known"),
        }
        Ok(partitions)
    }

    /// Delivers rows: returns when the brokers have acknowledged all of them.
    ///
    /// # Errors
    /// In words; they are to be delivered again.
    pub fn deliver_rows(&mut self, rows: &ChangedRows) -> Result<(), String> {
        let messages: Result<Vec<Message>, String> =
            rows.rows.iter().map(|row| self.options.format.message(row, rows)).collect();
        self.deliver(&messages?)
    }

    /// Delivers that nodes were deleted.
    ///
    /// # Errors
    /// In words; they are to be delivered again.
    pub fn deliver_deletions<'k>(&mut self, keys: impl Iterator<Item = &'k str>) -> Result<(), String> {
        let messages = keys.map(|key| Message { key: key.to_owned(), ..Message::default() });
        self.deliver(&messages.collect::<Vec<_>>())
    }

    fn deliver(&mut self, messages: &[Message]) -> Result<(), String> {
        let producer = match &mut self.producer {
            Some(producer) => producer,
            None => {
                let checked = self.check();
                checked.map_err(|fault| fault.to_string())?;
                let FeedOptions { client, topic, timeout, .. } = self.options.clone();
                let opened = BatchProducer::open(BatchOptions { client, topic, timeout });
                self.producer.insert(opened.map_err(|error| error.to_string())?)
            }
        };
        match producer.deliver(messages, complete) {
            Ok(too_large) if too_large.is_empty() => Ok(()),
            Ok(too_large) => Err(format!(
                "{} messages are larger than topic {} takes: raise its max.message.bytes and the property \
                 message.max.bytes",
                too_large.len(),
                self.options.topic
            )),
            Err(detail) => {
                // What the topic has become is looked at first.
                self.producer = None;
                Err(detail)
            }
        }
    }

    fn reader(&self) -> KafkaSourceOptions {
        let mut options = KafkaSourceOptions::new("", &self.options.topic, "evergraph-feed");
        options.client = self.options.client.clone();
        options
    }
}

fn complete<'a>(message: &'a Message, record: Record<'a>) -> Record<'a> {
    let mut headers = OwnedHeaders::new_with_capacity(message.headers.len());
    for (key, value) in &message.headers {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    let record = record.key(message.key.as_bytes()).headers(headers);
    match &message.value {
        Some(value) => record.payload(value),
        None => record,
    }
}

impl FeedFormat {
    fn message(&self, row: &ChangedRow, rows: &ChangedRows) -> Result<Message, String> {
        let key = row.node.to_string();
        let node = || row.node.exact_number().map_or(Node::Text(&key), Node::Number);
        let about = About {
            at: rows.at.0,
            last_event: row.last_event.map(|time| time.0),
            model_version: rows.freshness.model_version,
            source: rows.source.name(),
            applied_position: rows.freshness.applied_position,
            cold: row.cold,
        };
        let embedding = row.vector.as_slice();
        let (value, headers) = match self {
            Self::Json => (serde_json::to_vec(&Value { node: node(), embedding, about }), Vec::new()),
            Self::Binary => {
                let bytes = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
                (Ok(bytes), about.headers())
            }
            Self::Qdrant(collection_name) => {
                let (id, payload) = (PointId::of(&row.node, &key), Payload { node: node(), about });
                (serde_json::to_vec(&Point { collection_name, id, vector: embedding, payload }), Vec::new())
            }
        };
        let value = value.map_err(|error| format!("the row of node {key} cannot be written: {error}"))?;
        Ok(Message { value: Some(value), headers, key })
    }
}

impl About {
    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("evergraph.at", self.at.to_string()),
            ("evergraph.model_version", self.model_version.to_string()),
            ("evergraph.source", self.source.to_owned()),
            ("evergraph.applied_position", self.applied_position.to_string()),
            ("evergraph.cold", self.cold.to_string()),
        ];
        headers.extend(self.last_event.map(|time| ("evergraph.last_event", time.to_string())));
        headers
    }
}

impl PointId {
    fn of(node: &NodeKey, text: &str) -> Self {
        if let NodeKey::Int(number) = node
            && let Ok(number) = u64::try_from(*number)
        {
            return Self::Number(number);
        }
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(Uuid::NAMESPACE_URL.as_bytes());
        hash.update(text.as_bytes());
        let digest = hash.finish();
        let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
        Self::Uuid(uuid::Builder::from_sha1_bytes(first).into_uuid().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventTime;
    use crate::serving::{Freshness, Source};

    fn message(format: FeedFormat, node: &str) -> Message {
        let row = ChangedRow {
            node: NodeKey::from_text(node),
            vector: vec![0.25, -3.5e-8],
            last_event: Some(EventTime(41)),
            cold: false,
        };
        let freshness = Freshness { model_version: 7, applied_position: 99, ..Freshness::default() };
        let (nodes, at, source) = (Vec::new(), EventTime(42), Source::Candidate);
        let rows = ChangedRows { nodes, rows: Vec::new(), at, source, freshness };
        format.message(&row, &rows).unwrap()
    }

    #[test]
    fn messages_of_each_format_are_what_is_documented() {
        let json = message(FeedFormat::Json, "user:1");
        assert_eq!(json.key, "user:1");
        let text =
            r#"{"node":"user:1","embedding":[0.25,-3.5e-8],"at":42,"last_event":41,"model_version":7,"#;
        let text = text.to_owned() + r#""source":"candidate","applied_position":99,"cold":false}"#;
        assert_eq!(String::from_utf8(json.value.unwrap()).unwrap(), text);
        let binary = message(FeedFormat::Binary, "7");
        let bytes = [0.25_f32.to_le_bytes(), (-3.5e-8_f32).to_le_bytes()].concat();
        assert_eq!((binary.key.as_str(), binary.value), ("7", Some(bytes)));
        let header =
            |name| binary.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str());
        assert_eq!([header("evergraph.at"), header("evergraph.last_event")], [Some("42"), Some("41")]);
        assert_eq!(header("evergraph.source"), Some("candidate"));
    }

    #[test]
    fn points_have_ids_that_clients_can_compute() {
        let id = |node| {
            let point = message(FeedFormat::Qdrant("nodes".to_owned()), node).value.unwrap();
            let point: serde_json::Value = serde_json::from_slice(&point).unwrap();
            assert_eq!((&point["collection_name"], &point["vector"][0]), (&"nodes".into(), &0.25.into()));
            assert_eq!(point["payload"]["applied_position"], 99);
            point["id"].clone()
        };
        assert_eq!(id("9223372036854775807"), i64::MAX);
        // uuid.uuid5(uuid.NAMESPACE_URL, key) of Python.
        assert_eq!(id("user:1"), "ba634983-1b35-53ae-b2d4-c379f806b36b");
        assert_eq!(id("-7"), "bde9e496-392e-59b2-a266-1374bd4edff6");
    }
}
