//! Requests and responses in their wire format.
//!
//! Field names and shapes here are the public contract, checked against `tests/it/openapi.json`. Converts
//! to and from the types of the lower floors and knows nothing of HTTP.

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::{IntoParams, PartialSchema, ToSchema, schema};

use super::items::Items;
use crate::event::{NodeKey, RejectedEvent};
use crate::serving;

/// A node key in JSON: an integer or a string. `7` and `"7"` are the same key and both are returned as `7`.
#[derive(Clone, Debug, PartialEq)]
pub struct Key(pub NodeKey);

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            NodeKey::Int(number) => serializer.serialize_i64(*number),
            NodeKey::Text(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a node key: a string, or an integer of 64 bits with sign")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Key, E> {
        Ok(Key(NodeKey::Int(number)))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Key, E> {
        match i64::try_from(number) {
            Ok(number) => self.visit_i64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
        Ok(Key(NodeKey::from_text(text)))
    }
}

impl PartialSchema for Key {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::{ObjectBuilder, OneOfBuilder};
        OneOfBuilder::new()
            .item(schema!(i64))
            .item(ObjectBuilder::new().schema_type(utoipa::openapi::schema::Type::String))
            .description(Some("A node key: an integer or a string; `7` and `\"7\"` are the same key."))
            .into()
    }
}

impl ToSchema for Key {}

/// How fresh a response is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, ToSchema)]
pub struct Freshness {
    /// Version of the weights that computed the response; 0 before the first.
    pub model_version: u64,
    /// Event time below which no further event is expected, in the unit of the stream; null before the
    /// first event, and while the stream allows any lateness.
    pub watermark: Option<i64>,
    /// Every log position below is reflected in node states. Compare with `end_position` of a push.
    pub applied_position: u64,
    /// Every log position below is in the graph.
    pub indexed_position: u64,
    /// Every log position below survives a crash.
    pub durable_position: u64,
}

impl From<serving::Freshness> for Freshness {
    fn from(from: serving::Freshness) -> Self {
        Self {
            model_version: from.model_version,
            watermark: from.watermark.map(|time| time.0),
            applied_position: from.applied_position,
            indexed_position: from.indexed_position,
            durable_position: from.durable_position,
        }
    }
}

/// The log position that a response must reflect, and how long to wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wait {
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// What is returned for nodes that the graph does not know; default `error`.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnknownNodes {
    /// The error `unknown_node` for each such node; the request succeeds.
    #[default]
    Error,
    /// The model's prediction for a node without events, marked `cold`: the same for all such nodes.
    Prior,
}

impl From<UnknownNodes> for serving::UnknownKeys {
    fn from(from: UnknownNodes) -> Self {
        match from {
            UnknownNodes::Error => Self::Error,
            UnknownNodes::Prior => Self::Prior,
        }
    }
}

/// A request for embeddings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingsRequest {
    /// The nodes, in the order of the response.
    #[schema(min_items = 1, value_type = Vec<Key>)]
    pub nodes: Items<Key>,
    /// Event time to compute for, in the unit of the stream: only earlier events count. Default: just after the
    /// latest event. With `graph.retention`, a request for a past time finds only neighbors that are not released
    /// yet.
    pub at: Option<i64>,
    #[serde(default)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub unknown: UnknownNodes,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// The result for one node: an embedding, or an error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum NodeEmbedding {
    /// The node is known, or its embedding is the prior.
    Found {
        /// The node.
        node: Key,
        /// Its embedding.
        embedding: Vec<f32>,
        /// Event time of its latest event; null if it never had one.
        last_event: Option<i64>,
        /// Whether the model has learned nothing about this node yet: the embedding then comes from its
        /// neighbors and features alone, and for an unknown node it is the prior.
        cold: bool,
    },
    /// The node is unknown, or has no usable embedding.
    Missing {
        /// The node.
        node: Key,
        /// `unknown_node`, or `not_finite` if the model's output for it is not finite.
        #[schema(example = "unknown_node")]
        error: &'static str,
    },
}

/// Embeddings, one entry per requested node.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// Event time of the embeddings: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub embeddings: Vec<NodeEmbedding>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// A directed pair of nodes.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// Source node.
    pub src: Key,
    /// Destination node.
    pub dst: Key,
}

/// A request for link scores.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScoresRequest {
    /// The pairs, in the order of the response.
    #[schema(min_items = 1, value_type = Vec<Pair>)]
    pub pairs: Items<Pair>,
    /// Event time to compute for, in the unit of the stream: only earlier events count. Default: just after the
    /// latest event. With `graph.retention`, a request for a past time finds only neighbors that are not released
    /// yet.
    pub at: Option<i64>,
    #[serde(default)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub unknown: UnknownNodes,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// The result for one pair: a score, or an error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PairScore {
    /// Both nodes are known, or are scored by the prior.
    Scored {
        /// Source node.
        src: Key,
        /// Destination node.
        dst: Key,
        /// Probability of an edge from `src` to `dst` at the requested time.
        #[schema(minimum = 0, maximum = 1)]
        score: f32,
        /// Whether the model has learned nothing yet about at least one of the two nodes.
        cold: bool,
    },
    /// A node is unknown, or the pair has no usable score.
    Missing {
        /// Source node.
        src: Key,
        /// Destination node.
        dst: Key,
        /// `unknown_node`, or `not_finite` if the model's output for the pair is not finite.
        #[schema(example = "unknown_node")]
        error: &'static str,
        /// Which of the two are unknown.
        unknown: Vec<Key>,
    },
}

/// Scores, one entry per requested pair.
#[derive(Debug, Serialize, ToSchema)]
pub struct ScoresResponse {
    /// Event time of the scores: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub scores: Vec<PairScore>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// Query parameters of a node request.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodeQuery {
    /// How many of the newest neighbors to list; default 10.
    pub neighbors: Option<usize>,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// One edge of the requested node.
#[derive(Debug, Serialize, ToSchema)]
pub struct Neighbor {
    /// The node at the other end.
    pub node: Key,
    /// Event time of the edge.
    pub time: i64,
    /// Log position of the edge.
    pub position: u64,
}

/// A node's record in the graph.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeResponse {
    /// The node.
    pub node: Key,
    /// Number of its live edges in both directions. With `graph.retention`, expired edges count until their page is
    /// released.
    pub degree: u64,
    /// Event time of its latest edge; null if it has none.
    pub last_event: Option<i64>,
    /// Event time of the latest edge that the model has learned; null if it has learned nothing of the node.
    pub learned_event: Option<i64>,
    /// Its newest edges, newest first; a node appears as often as it interacted.
    pub neighbors: Vec<Neighbor>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// Pushed events, for the OpenAPI document only: the intake parses bodies.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum EventsDocument {
    /// One event.
    One(EventDocument),
    /// Many events.
    Many(Vec<EventDocument>),
}

/// An event: an edge, unless `op` is something else.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({
    "src": "alice", "dst": 7, "ts": 1_700_000_000, "type": "pays", "features": [0.5], "idempotency_key": "order-1"
}))]
pub struct EventDocument {
    /// `upsert` (default) adds an edge. `delete` with `src` and `dst` deletes their edges up to `ts`, with
    /// `src` alone every edge of that node. `node` registers `node` and replaces its `features`.
    pub op: Option<String>,
    /// Source node.
    pub src: Option<Key>,
    /// Destination node.
    pub dst: Option<Key>,
    /// The node of `"op": "node"`.
    pub node: Option<Key>,
    /// Event time, in the unit of the stream.
    pub ts: Option<i64>,
    /// Name of the edge type.
    #[serde(rename = "type")]
    pub edge_type: Option<String>,
    /// Feature row; as long as every other row of the stream.
    pub features: Option<Vec<f32>>,
    /// Label of the event.
    pub label: Option<f32>,
    /// Two events with the same text here are stored once.
    pub idempotency_key: Option<String>,
}

/// An event that was not stored.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Rejected {
    /// Its index in the body, from 0.
    pub index: usize,
    /// Why, a word from a fixed list.
    pub reason: &'static str,
    /// What is wrong and what to do.
    pub detail: String,
}

impl From<RejectedEvent> for Rejected {
    fn from(from: RejectedEvent) -> Self {
        Self { index: from.index, reason: from.reason, detail: from.detail }
    }
}

/// The outcome of a push. Events counted in `accepted` are durable and in the graph.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventsResponse {
    /// Log position of the first event stored.
    pub first_position: u64,
    /// One past the log position of the last event stored. Pass it as `min_position` to read your own write.
    pub end_position: u64,
    /// Number of events stored.
    pub accepted: u64,
    /// Number of events that had been stored before, by their idempotency keys.
    pub duplicates: u64,
    /// Events that were not stored; each is also kept as a dead letter.
    pub rejected: Vec<Rejected>,
    /// How fresh responses are now.
    pub freshness: Freshness,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(json: &str) -> Result<Key, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_come_back_in_canonical_form() {
        for (sent, returned) in [
            ("7", "7"),
            ("\"7\"", "7"),
            ("-7", "-7"),
            ("\"07\"", "\"07\""),
            ("\"a b\"", "\"a b\""),
            ("\"9223372036854775808\"", "\"9223372036854775808\""),
        ] {
            assert_eq!(serde_json::to_string(&key(sent).unwrap()).unwrap(), returned, "{sent}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for sent in ["1.5", "1e3", "true", "null", "[7]", "{}", "9223372036854775808", "-9223372036854775809"]
        {
            let refused = key(sent).unwrap_err();
            assert!(refused.contains("a node key"), "{sent}: {refused}");
        }
    }
}
