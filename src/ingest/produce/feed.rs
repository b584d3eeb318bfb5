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

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use serde::Serialize;
use uuid::Uuid;

use super::outlet::{Message, OutletOptions, TopicOutlet};
use crate::event::NodeKey;
use crate::ingest::kafka::KafkaFault;
use crate::serving::{ChangedRow, ChangedRows};

/// About how long the text of a message is, but for names and numbers, and that of a number with its comma.
const TEXT_BYTES: usize = 256;
const NUMBER_BYTES: usize = 13;

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
    outlet: TopicOutlet,
    format: FeedFormat,
}

/// A node's key: a number where every reader reads it exactly, else a text.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Node<'a> {
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
    pub fn new(options: OutletOptions, format: FeedFormat) -> Self {
        Self { outlet: TopicOutlet::new(options), format }
    }

    /// Checks the topic, or creates it where the options say so; returns how many partitions it has.
    ///
    /// # Errors
    /// The fault that keeps it from being used.
    pub fn check(&mut self) -> Result<usize, KafkaFault> {
        self.outlet.check()
    }

    /// Whether the topic was created since the last call: then nothing is in it.
    pub fn take_created(&mut self) -> bool {
        self.outlet.take_created()
    }

    /// Delivers the rows of one moment after those of another: returns when the brokers have acknowledged all of them.
    ///
    /// # Errors
    /// In words; they are to be delivered again.
    pub fn deliver_rows(&mut self, moments: &[ChangedRows]) -> Result<(), String> {
        let of_moment = |rows: &'_ ChangedRows| {
            rows.rows.iter().map(|row| self.format.message(row, rows)).collect::<Vec<_>>()
        };
        let messages: Result<Vec<Message>, String> = moments.iter().flat_map(of_moment).collect();
        self.outlet.deliver(&messages?)
    }

    /// Delivers that nodes were deleted.
    ///
    /// # Errors
    /// In words; they are to be delivered again.
    pub fn deliver_deletions<'k>(&mut self, keys: impl Iterator<Item = &'k str>) -> Result<(), String> {
        let messages = keys.map(|key| Message { key: key.to_owned(), ..Message::default() });
        self.outlet.deliver(&messages.collect::<Vec<_>>())
    }
}

impl<'a> Node<'a> {
    /// The node `key`, which is `text` as text.
    pub(super) fn of(key: &NodeKey, text: &'a str) -> Self {
        key.exact_number().map_or(Self::Text(text), Self::Number)
    }
}

impl FeedFormat {
    fn message(&self, row: &ChangedRow, rows: &ChangedRows) -> Result<Message, String> {
        let key = row.node.to_string();
        let node = || Node::of(&row.node, &key);
        let about = About {
            at: rows.at.0,
            last_event: row.last_event.map(|time| time.0),
            model_version: rows.freshness.model_version,
            source: rows.source.name(),
            applied_position: rows.freshness.applied_position,
            cold: row.cold,
        };
        let embedding = row.vector.as_slice();
        let text_of = |written: &dyn Fn(&mut Vec<u8>) -> serde_json::Result<()>| {
            let mut text = Vec::with_capacity(TEXT_BYTES + NUMBER_BYTES * embedding.len() + 2 * key.len());
            written(&mut text).map(|()| text)
        };
        let (value, headers) = match self {
            Self::Json => {
                let value = Value { node: node(), embedding, about };
                (text_of(&|text| serde_json::to_writer(text, &value)), Vec::new())
            }
            Self::Binary => {
                let bytes = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
                (Ok(bytes), about.headers())
            }
            Self::Qdrant(collection_name) => {
                let (id, payload) = (PointId::of(&row.node, &key), Payload { node: node(), about });
                let point = Point { collection_name, id, vector: embedding, payload };
                (text_of(&|text| serde_json::to_writer(text, &point)), Vec::new())
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
        let rows = ChangedRows { nodes, rows: Vec::new(), at, source, freshness, is_indexed: false };
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
