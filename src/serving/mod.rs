//! Floor 5: what readers see. [`QueryEngine`] turns published [`Weights`](crate::model::Weights),
//! [`NodeStates`] and the graph into responses; [`Progress`] tracks how fresh they are.
//!
//! Weights that were not promoted are published as such: then `baseline` scores pairs, or the response says so.
//!
//! [`LiveIndex`] finds the best of all nodes: the likeliest destinations, the most similar ones.
//!
//! [`Anomalies`] are the events that the model thought unlikely before it had learned them.
//!
//! `export` reads everything as of one moment, slice by slice; [`ChangeFeed`] what has changed.
//!
//! [`StateChanges`] are what a leader ships to its replicas, which a [`StateFollower`] applies there.
//!
//! The learner publishes here and queries read here: neither waits for the other. Knows nothing of
//! requests, wire formats, or how weights come about.

mod anomalies;
mod baseline;
mod change_feed;
mod engine;
mod export;
mod index;
mod moment;
mod neighbors;
mod pace;
mod pairs;
mod principal;
mod progress;
mod received;
mod replication;
mod response;
mod scores;
mod spread;
mod states;
mod stores;
mod touched;
mod walks;

pub use anomalies::{Anomalies, Anomaly, AnomalyOptions, Judged, percentile, surprise};
pub use change_feed::{ChangeFeed, ChangedRow, ChangedRows, FeedOptions};
pub use engine::QueryEngine;
pub use export::{EdgeExport, EdgeSlice, EmbeddingExport, EmbeddingSlice};
pub use index::{
    Candidates, Condition, Coverage, FoundNode, IndexLoop, IndexOptions, IndexPrecision, IndexReport,
    IndexState, LiveIndex, Metric, Order, SimilarItem, SimilarRequest, SimilarResponse, SimilarResult,
    SimilarTo, TopRequest, TopResponse, TopResult, TopSource,
};
pub use moment::Moment;
pub use neighbors::{EdgeRow, NeighborEdge, NeighborsRequest, NeighborsResponse};
pub use pace::{compute_alone, pause, pause_for_share};
pub use pairs::PairStates;
pub use principal::{Plane, plane};
pub use progress::{Freshness, Progress};
pub use received::ReceivedTypes;
pub use replication::{Applied, SentStates, StateChanges, StateFollower, StateMark, StateRow};
pub use response::{
    EmbeddingResponse, NodeEmbedding, NodeNeighbor, NodeResponse, PairScore, QueryError, ScoreResponse,
    Source, UnknownKeys,
};
pub use spread::SpreadNode;
pub use states::NodeStates;
pub use stores::{Stores, World};
pub use touched::TouchedNodes;
