//! Requests and responses of the routes over the live index in their wire format.
//!
//! As in [`wire`](super::wire): the public contract, checked against `tests/it/openapi.json`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::items::Items;
use super::key::Key;
use super::wire::{Freshness, ItemError, Source};
use crate::serving;

/// Which nodes may be found by what they did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CandidateRole {
    /// Nodes that were the destination of an event.
    Destination,
    /// All nodes.
    Any,
}

/// Which nodes may be found.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Candidates {
    /// Nodes of this role. Default: `destination` for links and `any` for similar nodes; ignored with `keys` and with
    /// `type`.
    pub role: Option<CandidateRole>,
    /// These nodes only: all of them are computed anew, without the index. Keys that the graph does not know are listed
    /// in `unknown_candidates`.
    #[schema(min_items = 1, value_type = Option<Vec<Key>>)]
    pub keys: Option<Items<Key>>,
    /// Nodes whose key, as text, begins so.
    #[schema(min_length = 1, max_length = 1024)]
    pub key_prefix: Option<String>,
    /// Nodes that were the destination of an event of this type. No node is one of a type that no event has had.
    #[serde(rename = "type")]
    #[schema(min_length = 1, max_length = 1024)]
    pub edge_type: Option<String>,
}

/// A request for the likeliest destinations.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TopLinksRequest {
    /// The sources, in the order of the response.
    #[schema(min_items = 1, value_type = Vec<Key>)]
    pub src: Items<Key>,
    /// Most destinations for each source; default 10. Times the number of sources, at most as many as one request may
    /// have items.
    #[schema(minimum = 1)]
    pub limit: Option<usize>,
    #[serde(default)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub candidates: Candidates,
    /// Whether to leave out destinations that the source had an event to. The newest 65536 events of a source are
    /// searched for them.
    #[serde(default)]
    pub exclude_met: bool,
    /// Whether to compute all candidates anew, without the index: slow, and for as many pairs as one request may have.
    #[serde(default)]
    pub exact: bool,
    /// Respond only once `index.complete_to_position` and `applied_position` are at least this log position: read your
    /// own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// What destinations are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RankedBy {
    /// The scores of the model.
    Model,
    /// The scores of the baseline; destinations that it knows nothing about by their number of edges.
    Baseline,
    /// The number of edges, because the graph does not know the source.
    Popularity,
}

impl From<serving::Order> for RankedBy {
    fn from(from: serving::Order) -> Self {
        match from {
            serving::Order::Model => Self::Model,
            serving::Order::Baseline => Self::Baseline,
            serving::Order::Popularity => Self::Popularity,
        }
    }
}

/// A destination that was found.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopLink {
    /// Destination node: as `candidates.keys` wrote it, else a number up to 2^53 - 1 in size or a string.
    pub dst: Key,
    /// What `POST /v1/links/score` returns for the source and this node, with `"unknown": "prior"` where the source is
    /// unknown.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// Whether the model has learned nothing yet about at least one of the two nodes.
    pub cold: bool,
}

/// The likeliest destinations of a source.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopLinks {
    /// The source, as the request wrote it.
    pub src: Key,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub ranked_by: RankedBy,
    /// Whether the model has learned nothing about the source yet.
    pub cold: bool,
    /// The likeliest first.
    pub top: Vec<TopLink>,
}

/// What the index had when a response was made; without the index, what the computation itself reflects.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct IndexFacts {
    /// Version of the weights that the rows are of. Scores are of `freshness.model_version`.
    pub model_version: u64,
    /// Every event at a log position below is in the rows of its own two nodes.
    pub complete_to_position: u64,
    /// Nodes whose rows are older than their last event or their deletion.
    pub pending_nodes: usize,
    /// Staleness of the most outdated row, seconds; 0 if all are current.
    pub oldest_row_seconds: f64,
    /// Candidates that were looked at for a source, at most.
    pub scanned: usize,
    /// Whether computing every candidate would have found the same.
    pub exact: bool,
}

impl IndexFacts {
    /// Those of a response whose candidates were found so.
    pub(super) fn new(coverage: serving::Coverage, freshness: serving::Freshness) -> Self {
        let serving::Coverage { index, scanned, exact } = coverage;
        let state = index.unwrap_or(serving::IndexState {
            model_version: freshness.model_version,
            complete_to: freshness.applied_position,
            pending_nodes: 0,
            oldest_row_seconds: 0.0,
        });
        Self {
            model_version: state.model_version,
            complete_to_position: state.complete_to,
            pending_nodes: state.pending_nodes,
            oldest_row_seconds: state.oldest_row_seconds,
            scanned,
            exact,
        }
    }
}

/// The likeliest destinations, one entry per source.
#[derive(Debug, Serialize, ToSchema)]
pub struct TopLinksResponse {
    /// Event time of the scores: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub results: Vec<TopLinks>,
    /// Keys of `candidates.keys` that the graph does not know.
    pub unknown_candidates: Vec<Key>,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub source: Source,
    /// How fresh the scores are.
    pub freshness: Freshness,
    /// How far the rows are that tell which nodes are scored.
    pub index: IndexFacts,
}

/// How alike two vectors are; default `cosine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The cosine of the angle between them.
    #[default]
    Cosine,
    /// Their inner product.
    Dot,
}

impl From<Metric> for serving::Metric {
    fn from(from: Metric) -> Self {
        match from {
            Metric::Cosine => Self::Cosine,
            Metric::Dot => Self::Dot,
        }
    }
}

/// A request for similar nodes. It has `nodes` or `vectors`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SimilarNodesRequest {
    /// What results are like, in the order of the response.
    #[schema(min_items = 1, value_type = Option<Vec<Key>>)]
    pub nodes: Option<Items<Key>>,
    /// The same as vectors, each as long as an embedding and of the model version of the index.
    #[schema(min_items = 1, value_type = Option<Vec<Vec<f32>>>)]
    pub vectors: Option<Items<Items<f32>>>,
    /// Most results for each; default 10. Times the number of nodes or vectors, at most as many as one request may have
    /// items.
    #[schema(minimum = 1)]
    pub limit: Option<usize>,
    #[serde(default)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub candidates: Candidates,
    #[serde(default)]
    #[allow(missing_docs)] // the same
    pub metric: Metric,
    /// Respond only once `index.complete_to_position` and `applied_position` are at least this log position: read your
    /// own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// A node that is like another.
#[derive(Debug, Serialize, ToSchema)]
pub struct SimilarNode {
    /// The node: as `candidates.keys` wrote it, else a number up to 2^53 - 1 in size or a string.
    pub node: Key,
    /// How alike the two are: more is more.
    pub score: f32,
    /// Whether the model has learned nothing about this node yet.
    pub cold: bool,
}

/// The result for one node or vector: similar nodes, or an error.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum SimilarNodes {
    /// What was found.
    Found(FoundSimilar),
    /// The node is unknown, or has no usable embedding.
    Missing(MissingSimilar),
}

/// The nodes that are like another, or like a vector.
#[derive(Debug, Serialize, ToSchema)]
pub struct FoundSimilar {
    /// The node, as the request wrote it; absent of a vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Key>,
    /// The most similar first.
    pub similar: Vec<SimilarNode>,
}

/// Why there is nothing like a node.
#[derive(Debug, Serialize, ToSchema)]
pub struct MissingSimilar {
    /// The node, as the request wrote it; absent of a vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<Key>,
    /// Why it has none.
    pub error: ItemError,
}

/// Similar nodes, one entry per node or vector.
#[derive(Debug, Serialize, ToSchema)]
pub struct SimilarNodesResponse {
    /// Event time of the embeddings: only events before it count.
    pub at: i64,
    /// In the order of the request.
    pub results: Vec<SimilarNodes>,
    /// Keys of `candidates.keys` that the graph does not know.
    pub unknown_candidates: Vec<Key>,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub source: Source,
    /// How fresh the embeddings are; `model_version` is that of the index, which follows the served version.
    pub freshness: Freshness,
    /// How far the rows are that tell which nodes are compared.
    pub index: IndexFacts,
}
