//! What queries answer with: plain values, no wire format.

use thiserror::Error;

use super::Freshness;
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::model::GatherError;

/// Embeddings of the nodes asked about, in the order asked.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingResponse {
    /// The time the embeddings are for: only events strictly before it count as neighbors.
    pub at: EventTime,
    /// Values per embedding.
    pub dimension: usize,
    /// One for each key asked about.
    pub embeddings: Vec<NodeEmbedding>,
    /// How fresh the answer is.
    pub freshness: Freshness,
}

/// What is answered for a key that no event ever named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownKeys {
    /// That it is unknown.
    #[default]
    Error,
    /// What the model makes of a node that has no event, no neighbor and no features: its prior. It has learned from
    /// the first events of many nodes what such a node is likely to do.
    Prior,
}

/// The embedding of one key.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeEmbedding {
    /// The node is known, or is answered by the prior.
    Found {
        /// Its embedding.
        vector: Vec<f32>,
        /// Time of its latest event in the graph; `None` if it has none.
        last_event: Option<EventTime>,
        /// Whether the model has not learned of the node yet: its memory counts as zeros.
        cold: bool,
    },
    /// No event ever named this key.
    Unknown,
    /// A value is not a finite number: what the model computed for this node is of no use.
    NotFinite,
}

/// Scores of the pairs asked about, in the order asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreResponse {
    /// The time the scores are for.
    pub at: EventTime,
    /// One for each pair asked about.
    pub scores: Vec<PairScore>,
    /// How fresh the answer is.
    pub freshness: Freshness,
}

/// The score of one pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairScore {
    /// Both nodes are known, or are answered by the prior.
    Found {
        /// How likely an event from the first to the second is, in `0.0..=1.0`; 0.5 and more means the
        /// model takes it for an event rather than for a random pair.
        probability: f32,
        /// Whether the model has learned of neither or only one of the two.
        cold: bool,
    },
    /// At least one key is unknown.
    Unknown {
        /// Whether the first is.
        src: bool,
        /// Whether the second is.
        dst: bool,
    },
    /// Both nodes are known, but what the model computed for them is not a number.
    NotFinite,
}

/// What is known of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeResponse {
    /// Its dense index.
    pub id: NodeId,
    /// Number of its edges, in both directions.
    pub degree: u64,
    /// Time of its latest event; `None` if it has no edge.
    pub last_event: Option<EventTime>,
    /// Time of the latest event the model has learned of; `None` if it has not learned of the node.
    pub learned_event: Option<EventTime>,
    /// Its newest neighbors, newest first; a node appears as often as it interacted.
    pub neighbors: Vec<NodeNeighbor>,
    /// How fresh the answer is.
    pub freshness: Freshness,
}

/// One interaction of a node, seen from it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeNeighbor {
    /// The other node.
    pub key: NodeKey,
    /// When it happened.
    pub time: EventTime,
    /// The edge.
    pub edge: EdgeId,
}

/// Why a query has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QueryError {
    /// No weights were published yet.
    #[error("the model is not ready: no weights were published yet")]
    NotReady,
    /// A model does not fit the rows that are served.
    #[error("the model expects {what} rows of {expected} values, {found} are served")]
    Mismatch {
        /// Which rows.
        what: &'static str,
        /// Width the model expects.
        expected: usize,
        /// Width served.
        found: usize,
    },
    /// What the answer needs could not be read from where it is kept.
    #[error("stored data could not be read: {0}")]
    Storage(#[from] GatherError),
}
