//! Floor 0: the words of the stream. An [`Event`] is what a producer sends, an [`EventBatch`] is many
//! of them with the [`SourceRange`]s they were read from, and an [`EdgeBatch`] is the same with dense
//! ids, column by column: the shape in which the log stores them and the graph indexes them. A [`NodeTable`] holds a
//! value per node, on every floor above.
//!
//! Knows nothing of bytes, JSON, files or sockets, and imports nothing of ours.

mod batch;
mod clock;
mod id;
mod node_table;
mod source;
mod submission;
mod time_unit;

pub use batch::{EdgeBatch, FeatureColumn, Op};
pub use clock::{CONFIRMING_EVENTS, ClockRules, PARTITION_IDLE, StreamClock};
pub use id::{EdgeId, EventTime, NodeId, NodeKey};
pub use node_table::NodeTable;
pub use source::{EventBatch, ORIGIN_HISTORY, SourceMark, SourcePosition, SourceRange};
pub use submission::{
    BodyFormat, Intake, IntakeError, IntakeResponse, NodeNames, PositionLookup, Receipt, RejectedEvent,
    Reply, Submission, SubmitError, UnstorableEvent,
};
pub use time_unit::TimeUnit;

/// One thing that happened in the graph, in the producer's words.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An interaction between two nodes.
    Edge(EdgeEvent),
    /// Forgets every edge from `src` to `dst` with event time at most `until`; without `until`, every
    /// such edge that stands before this event in the log.
    DeleteEdge {
        /// Source node of the edges to forget.
        src: NodeKey,
        /// Destination node of the edges to forget.
        dst: NodeKey,
        /// Latest event time to forget, in the stream's unit; `None` means all.
        until: Option<EventTime>,
    },
    /// Registers a node or replaces its features.
    Node {
        /// The node.
        key: NodeKey,
        /// When the features became true, in the stream's unit.
        time: EventTime,
        /// Its feature row; empty when the event only registers the node.
        features: Vec<f32>,
    },
    /// Forgets every edge that touches a node, in both directions.
    DeleteNode {
        /// The node.
        key: NodeKey,
    },
}

/// One edge event: `src` interacted with `dst` at `time`.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeEvent {
    /// Source node.
    pub src: NodeKey,
    /// Destination node.
    pub dst: NodeKey,
    /// Event time in the stream's unit.
    pub time: EventTime,
    /// Name of the edge type, when the stream has several.
    pub edge_type: Option<Box<str>>,
    /// Feature row; empty when the event carries none. All values are finite.
    pub features: Vec<f32>,
    /// Label for node classification, when the stream has one.
    pub label: Option<f32>,
}

/// An event on its way in, with the producer's idempotency key if it gave one.
#[derive(Clone, Debug, PartialEq)]
pub struct Incoming {
    /// What happened.
    pub event: Event,
    /// 128-bit hash of the producer's idempotency key; an event whose key was seen within the
    /// remembered window is counted as a duplicate and not applied again.
    pub idempotency: Option<u128>,
}

impl Incoming {
    /// An event without an idempotency key.
    #[must_use]
    pub fn new(event: Event) -> Self {
        Self { event, idempotency: None }
    }
}
