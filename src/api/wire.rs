//! Requests and responses of queries in their wire format.
//!
//! Field names and shapes here are the public contract, checked against `tests/it/openapi.json`. Converts
//! to and from the types of the lower floors and knows nothing of HTTP.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::items::Items;
use super::key::Key;
use super::vector::{EncodingFormat, Vector};
use crate::serving;

/// How fresh a response is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, ToSchema)]
pub struct Freshness {
    /// Version of the weights that computed the response; 0 before the first, and where the baseline did.
    pub model_version: u64,
    /// Event time below which no further event is expected, in the unit of the stream; null before the
    /// first event, and while the stream allows any lateness.
    #[schema(required = true)]
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

/// What computed a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Weights that passed the promotion gate, or that no gate stands before.
    Model,
    /// Weights in training, none of which was promoted yet: they change with every step.
    Candidate,
    /// The baseline EdgeBank, because no weights were promoted yet: 0 for a pair that never met in this direction, and
    /// from 0.5 to 1 for one that did, the higher the later it did last.
    Baseline,
}

impl From<serving::Source> for Source {
    fn from(from: serving::Source) -> Self {
        match from {
            serving::Source::Model => Self::Model,
            serving::Source::Candidate => Self::Candidate,
            serving::Source::Baseline => Self::Baseline,
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
    #[serde(default)]
    #[allow(missing_docs)] // the same
    pub encoding_format: EncodingFormat,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// Why a node or a pair of a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemError {
    /// The graph does not know a node.
    UnknownNode,
    /// The model's output is not finite.
    NotFinite,
}

/// The result for one node: an embedding, or an error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum NodeEmbedding {
    /// The node is known, or its embedding is the prior.
    Found(FoundEmbedding),
    /// The node is unknown, or has no usable embedding.
    Missing(MissingEmbedding),
}

/// The embedding of a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundEmbedding {
    /// The node, as the request wrote it.
    pub node: Key,
    /// Its embedding, as `encoding_format` asks for it.
    pub embedding: Vector,
    /// Event time of its latest event; null if it never had one.
    #[schema(required = true)]
    pub last_event: Option<i64>,
    /// Whether the model has learned nothing about this node yet: the embedding then comes from its neighbors and
    /// features alone, and for an unknown node it is the prior.
    pub cold: bool,
}

/// Why a node has no embedding.
#[derive(Debug, Serialize, ToSchema)]
pub struct MissingEmbedding {
    /// The node, as the request wrote it.
    pub node: Key,
    /// Why it has none.
    pub error: ItemError,
}

/// Embeddings, one entry per requested node.
#[derive(Debug, Serialize, ToSchema)]
pub struct EmbeddingsResponse {
    /// Event time of the embeddings: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub embeddings: Vec<NodeEmbedding>,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub source: Source,
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
    Found(FoundScore),
    /// A node is unknown, or the pair has no usable score.
    Missing(MissingScore),
}

/// The score of a pair.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundScore {
    /// Source node, as the request wrote it.
    pub src: Key,
    /// Destination node, as the request wrote it.
    pub dst: Key,
    /// How likely the model finds an event from `src` to `dst` at the requested time. It orders pairs: above 0.5 the
    /// model takes the pair for an event rather than for a drawn negative, which is not how often such events happen.
    /// For a threshold, use `percentile`. Of the baseline it is a score that orders pairs too.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// How unusual an event of this score would be: the share of the latest events that the model thought likelier
    /// before it had learned them. Null while it has scored too few, and where the baseline scores.
    #[schema(required = true, minimum = 0, maximum = 1)]
    pub percentile: Option<f32>,
    /// Whether the model has learned nothing yet about at least one of the two nodes.
    pub cold: bool,
}

/// Why a pair has no score.
#[derive(Debug, Serialize, ToSchema)]
pub struct MissingScore {
    /// Source node, as the request wrote it.
    pub src: Key,
    /// Destination node, as the request wrote it.
    pub dst: Key,
    /// Why it has none.
    pub error: ItemError,
    /// Which of the two are unknown.
    #[schema(max_items = 2)]
    pub unknown: Vec<Key>,
}

/// Scores, one entry per requested pair.
#[derive(Debug, Serialize, ToSchema)]
pub struct ScoresResponse {
    /// Event time of the scores: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub scores: Vec<PairScore>,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub source: Source,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// Query parameters of a node request.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NodeQuery {
    /// How many of the newest neighbors to list; default 10.
    #[param(example = 2)]
    pub neighbors: Option<usize>,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// One edge of the requested node.
#[derive(Debug, Serialize, ToSchema)]
pub struct Neighbor {
    /// The node at the other end: a number up to 2^53 - 1 in size, else a string.
    pub node: Key,
    /// Event time of the edge.
    pub time: i64,
    /// Log position of the edge.
    pub position: u64,
}

/// A node's record in the graph.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeResponse {
    /// The node: a number if its key is an integer up to 2^53 - 1 in size, else a string, however the path wrote it.
    pub node: Key,
    /// Number of its live edges in both directions. With `graph.retention`, expired edges count until their page is
    /// released.
    pub degree: u64,
    /// Event time of its latest edge; null if it has none.
    #[schema(required = true)]
    pub last_event: Option<i64>,
    /// Event time of the latest edge that the model has learned; null if it has learned nothing of the node.
    #[schema(required = true)]
    pub learned_event: Option<i64>,
    /// Its newest edges, newest first; a node appears as often as it interacted.
    pub neighbors: Vec<Neighbor>,
    /// How fresh the response is.
    pub freshness: Freshness,
}
