//! Floor 5: what readers see. [`QueryEngine`] turns published [`Weights`](crate::model::Weights),
//! [`NodeStates`] and the graph into responses; [`Progress`] tracks how fresh they are.
//!
//! Weights that were not promoted are published as such: then `baseline` scores pairs, or the response says so.
//!
//! The learner publishes here and queries read here: neither waits for the other. Knows nothing of
//! requests, wire formats, or how weights come about.

mod baseline;
mod engine;
mod pairs;
mod progress;
mod response;
mod states;
mod stores;
mod walks;

pub use engine::{Moment, QueryEngine};
pub use pairs::PairStates;
pub use progress::{Freshness, Progress};
pub use response::{
    EmbeddingResponse, NodeEmbedding, NodeNeighbor, NodeResponse, PairScore, QueryError, ScoreResponse,
    Source, UnknownKeys,
};
pub use states::NodeStates;
pub use stores::{Stores, World};
