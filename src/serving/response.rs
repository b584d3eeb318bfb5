//! Responses of queries: plain values, no wire format.

use thiserror::Error;

use super::Freshness;
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::model::GatherError;

/// What computes a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Weights that were promoted, or that no gate stands before.
    #[default]
    Model,
    /// Weights in training; none were promoted yet.
    Candidate,
    /// The baseline; no weights were promoted yet.
    Baseline,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Model, Self::Candidate, Self::Baseline];

    /// As it is written in responses, in the status and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Candidate => "candidate",
            Self::Baseline => "baseline",
        }
    }
}

/// Embeddings of the requested nodes, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingResponse {
    /// Time of the embeddings: only events strictly before it count as neighbors.
    pub at: EventTime,
    /// Values per embedding.
    pub dimension: usize,
    /// One per requested key.
    pub embeddings: Vec<NodeEmbedding>,
    /// What computed them; never the baseline, which has none.
    pub source: Source,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// What is returned for a key that no event has named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// An error for this key.
    #[default]
    Error,
    /// The prior: the model's prediction for a node without events, neighbors and features, which it has learned from
    /// the first events of many nodes.
    Prior,
}

/// The embedding of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEmbedding {
    /// The node is known, or its embedding is the prior.
    Found {
        /// Its embedding.
        vector: Vec<f32>,
        /// Time of its latest event in the graph; `None` if it has none.
        last_event: Option<EventTime>,
        /// Whether the model has learned nothing about the node yet: its memory counts as zeros.
        cold: bool,
    },
    /// No event has named this key.
    Unknown,
    /// A value is not finite: the model's output for this node is unusable.
    NotFinite,
}

/// Scores of the requested pairs, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreResponse {
    /// Time of the scores.
    pub at: EventTime,
    /// One per requested pair.
    pub scores: Vec<PairScore>,
    /// What computed them.
    pub source: Source,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// The score of one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairScore {
    /// Both nodes are known, or are scored by the prior.
    Found {
        /// Probability, in `0.0..=1.0`, that the pair is an event rather than a drawn negative, as many of which the
        /// model was trained on; not how often such events happen. Of the baseline it is a score, and no probability.
        probability: f32,
        /// How unusual an event of this score would be, among the latest events; `None` while there are too few, and of
        /// the baseline.
        percentile: Option<f32>,
        /// Whether the model has learned nothing about at least one of the two nodes.
        cold: bool,
    },
    /// At least one key is unknown.
    Unknown {
        /// Whether the first is.
        src: bool,
        /// Whether the second is.
        dst: bool,
    },
    /// Both nodes are known, but the model's output for them is not finite.
    NotFinite,
}

/// A node's record in the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeResponse {
    /// Its dense index.
    pub id: NodeId,
    /// Number of its edges, in both directions.
    pub degree: u64,
    /// Time of its latest event; `None` if it has no edge.
    pub last_event: Option<EventTime>,
    /// Time of the latest event that the model has learned; `None` if it has learned nothing of the node.
    pub learned_event: Option<EventTime>,
    /// Its newest neighbors, newest first; a node appears as often as it interacted.
    pub neighbors: Vec<NodeNeighbor>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// One interaction of the requested node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeNeighbor {
    /// The other node.
    pub key: NodeKey,
    /// When it happened.
    pub time: EventTime,
    /// The edge.
    pub edge: EdgeId,
}

/// Why a query failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// No weights were published yet.
    #[error("the model is not ready: no version of its weights was promoted yet")]
    NotReady,
    /// The model does not match the stored rows.
    #[error("the model expects {what} rows of {expected} values, {found} are served")]
    Mismatch {
        /// Which rows.
        what: &'static str,
        /// Width the model expects.
        expected: usize,
        /// Width served.
        found: usize,
    },
    /// There is no live index.
    #[error(
        "this daemon has no live index: set index.bytes_max in its configuration, or list the candidates in \
         candidates.keys"
    )]
    NoIndex,
    /// The live index has no rows yet.
    #[error("the live index is not ready: {done} of {of} nodes have a row; retry in a moment")]
    IndexFilling {
        /// Nodes that are done.
        done: usize,
        /// Nodes in all.
        of: usize,
    },
    /// The rows do not fit.
    #[error(
        "the live index would take {needed} bytes and index.bytes_max is {bytes_max}: raise it and start again"
    )]
    IndexFull {
        /// Bytes of two generations of rows.
        needed: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// More pairs would be scored anew than one request may.
    #[error("{found} pairs of a source and a candidate, at most {limit} are scored in one request")]
    TooManyPairs {
        /// Sources times candidates.
        found: usize,
        /// How many may be.
        limit: usize,
    },
    /// Data for the response could not be read from storage.
    #[error("stored data could not be read: {0}")]
    Storage(#[from] GatherError),
}
