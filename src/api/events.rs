//! Pushed events and their outcome in their wire format. The intake parses bodies; how an event is written stands here
//! for the OpenAPI document only.

use serde::Serialize;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::key::Key;
use super::wire::Freshness;
use crate::event::RejectedEvent;

/// Pushed events.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum EventsDocument {
    /// One event.
    One(EventDocument),
    /// Many events.
    Many(Vec<EventDocument>),
}

/// An event; `op` says of which kind. A field that is null counts as absent, and one of another name is ignored.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum EventDocument {
    /// Adds an edge.
    Edge(EdgeEvent),
    /// Registers a node.
    Node(NodeEvent),
    /// Deletes edges.
    DeleteEdges(DeleteEdgesEvent),
    /// Deletes a node.
    DeleteNode(DeleteNodeEvent),
}

/// Adds an edge.
#[derive(Serialize, ToSchema)]
pub struct EdgeEvent {
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub op: Option<EdgeOp>,
    /// Source node.
    pub src: Key,
    /// Destination node.
    pub dst: Key,
    /// Event time, in the unit of the stream.
    #[schema(minimum = -4_611_686_018_427_387_904_i64, maximum = 4_611_686_018_427_387_904_i64)]
    pub ts: i64,
    /// Name of the edge type.
    #[serde(rename = "type")]
    #[schema(max_length = 1024)]
    pub edge_type: Option<String>,
    /// Feature row; as long as every other row of edges of the stream (`/v1/info` has the length).
    pub features: Option<Vec<f32>>,
    /// Label of the event.
    pub label: Option<f32>,
    /// Two events with the same text here are stored once.
    #[schema(min_length = 1, max_length = 1024)]
    pub idempotency_key: Option<String>,
}

/// The operation that adds an edge, and the default.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum EdgeOp {
    /// Adds an edge.
    Upsert,
}

/// Registers a node and replaces its feature row.
#[derive(Serialize, ToSchema)]
pub struct NodeEvent {
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub op: NodeOp,
    /// The node.
    pub node: Key,
    /// Event time, in the unit of the stream.
    #[schema(minimum = -4_611_686_018_427_387_904_i64, maximum = 4_611_686_018_427_387_904_i64)]
    pub ts: i64,
    /// Feature row; as long as every other row of nodes of the stream (`/v1/info` has the length).
    pub features: Option<Vec<f32>>,
    /// Two events with the same text here are stored once.
    #[schema(min_length = 1, max_length = 1024)]
    pub idempotency_key: Option<String>,
}

/// The operation that registers a node.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum NodeOp {
    /// Registers a node.
    Node,
}

/// Deletes the edges from `src` to `dst` up to `ts`.
#[derive(Serialize, ToSchema)]
pub struct DeleteEdgesEvent {
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub op: DeleteOp,
    /// Source node.
    pub src: Key,
    /// Destination node.
    pub dst: Key,
    /// Event time of the latest edge to delete; absent: every one.
    #[schema(minimum = -4_611_686_018_427_387_904_i64, maximum = 4_611_686_018_427_387_904_i64)]
    pub ts: Option<i64>,
    /// Two events with the same text here are stored once.
    #[schema(min_length = 1, max_length = 1024)]
    pub idempotency_key: Option<String>,
}

/// Deletes a node: its name, edges, features and memory are forgotten.
#[derive(Serialize, ToSchema)]
pub struct DeleteNodeEvent {
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub op: DeleteOp,
    /// The node.
    pub node: Key,
    /// Two events with the same text here are stored once.
    #[schema(min_length = 1, max_length = 1024)]
    pub idempotency_key: Option<String>,
}

/// The operation that deletes: edges with `src` and `dst`, a node with `node`.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum DeleteOp {
    /// Deletes.
    Delete,
}

/// Every reason for which an event is rejected. The list may grow.
pub const REJECTION_REASONS: [&str; 20] = [
    "malformed_json",
    "malformed_row",
    "missing_field",
    "wrong_type",
    "bad_id",
    "bad_time",
    "bad_features",
    "bad_label",
    "feature_dimension",
    "too_large",
    "too_late",
    "too_far_ahead",
    "unknown_op",
    "missing_key",
    "too_many_nodes",
    "tombstone",
    "deletion",
    "unstorable",
    "unknown_schema",
    "undecodable",
];

/// One of [`REJECTION_REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RejectionReason(pub &'static str);

impl PartialSchema for RejectionReason {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(REJECTION_REASONS))
            .description(Some("Why an event was rejected. Later versions may add words."))
            .into()
    }
}

impl ToSchema for RejectionReason {}

/// An event that was not stored.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Rejected {
    /// Its index in the body, from 0.
    pub index: usize,
    /// Why, for programs.
    pub reason: RejectionReason,
    /// What is wrong and what to do.
    pub detail: String,
}

impl From<RejectedEvent> for Rejected {
    fn from(from: RejectedEvent) -> Self {
        Self { index: from.index, reason: RejectionReason(from.reason), detail: from.detail }
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
