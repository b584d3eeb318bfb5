//! How sources submit events and receive the outcome. These types stand on the lowest floor
//! because the edges that use them (sources, the HTTP interface) must not know one another, nor the
//! loop that stores the events.

use thiserror::Error;

use super::{EdgeId, EventBatch, NodeKey, SourceMark, StreamClock};

/// A batch on its way to the log, with the callback that receives the outcome.
pub struct Submission {
    /// What to store.
    pub batch: EventBatch,
    /// Called once, from the appender's thread, when the batch is durable and indexed or refused.
    pub reply: Option<Reply>,
}

/// Receives the outcome of a submission.
pub type Reply = Box<dyn FnOnce(Result<Receipt, SubmitError>) + Send>;

/// What became of a batch: its accepted events are durable and indexed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Position of the first record written.
    pub first: EdgeId,
    /// One past the position of the last record written; equals `first` when nothing was new.
    pub end: EdgeId,
    /// Number of events written. A deletion of what never was is written for its idempotency key only; without one it
    /// is not written, and is no duplicate either.
    pub accepted: u64,
    /// Number of events that had been written before (same idempotency key or source offset).
    pub duplicates: u64,
}

/// Why a batch was not stored. Nothing of the batch was applied, unless its outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SubmitError {
    /// The log's disk is full; the daemon accepts events again once there is room.
    #[error("the log's disk is full: {detail}; free space or move the data directory")]
    DiskFull {
        /// The operating system's words.
        detail: String,
    },
    /// The daemon has just started and is still reading its log.
    #[error("the daemon is still rebuilding its graph from the log")]
    Restoring,
    /// The source is held by an operator.
    #[error("the source is paused by an operator")]
    Paused,
    /// The daemon serves what a leader has; events are for that one.
    #[error("this daemon is a read replica: send events to its leader{}", named(.leader))]
    Replica {
        /// Where the leader takes them, as far as it has said so; else empty.
        leader: String,
    },
    /// The daemon is stopping.
    #[error("the daemon is shutting down")]
    ShuttingDown,
    /// The writer of the log ended while it had the batch.
    #[error("the writer of the log ended before it responded")]
    OutcomeUnknown,
    /// The batch can never be stored as it is.
    #[error("the batch can never be stored as it is: {detail}")]
    Unstorable {
        /// The events that it must be without; none if it is too large as a whole.
        events: Vec<UnstorableEvent>,
        /// The reason.
        detail: String,
    },
    /// The log could not be written for another reason.
    #[error("the event log could not be written: {detail}")]
    Failed {
        /// The operating system's words.
        detail: String,
    },
}

/// An address behind other words.
fn named(address: &str) -> String {
    if address.is_empty() { String::new() } else { format!(" at {address}") }
}

/// An event that the log can never take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstorableEvent {
    /// Its place in the batch, counted from 0.
    pub index: usize,
    /// Its offset, if its source has offsets.
    pub offset: Option<i64>,
    /// The reason.
    pub detail: String,
}

/// How a pushed body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// One JSON object, or an array of them.
    Json,
    /// One JSON object a line.
    JsonLines,
}

/// Takes pushed events. Implemented by the push source and called by the HTTP interface.
pub trait Intake: Send + Sync {
    /// Decodes `body`, stores what is acceptable and returns when it is durable and indexed. Blocks. With the
    /// idempotency `key` of a request, an event of it that was stored before is not stored again.
    ///
    /// # Errors
    /// When nothing of the body was stored, or when that is unknown; the variant is the reason.
    fn submit(
        &self,
        body: &[u8],
        format: BodyFormat,
        key: Option<&str>,
    ) -> Result<IntakeResponse, IntakeError>;

    /// Whether a mapping says how messages are read; without one they are plain events.
    fn is_mapped(&self) -> bool {
        false
    }
}

/// What became of a pushed body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntakeResponse {
    /// What was stored.
    pub receipt: Receipt,
    /// What was not, event by event; each is also kept as a dead letter.
    pub rejected: Vec<RejectedEvent>,
}

/// One event of a body that was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedEvent {
    /// Its place in the body, counted from 0.
    pub index: usize,
    /// The reason, from a short fixed list; also the label of the dead-letter counter.
    pub reason: &'static str,
    /// What exactly was wrong and what to do.
    pub detail: String,
}

/// Why nothing of a pushed body was stored, or is known to be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IntakeError {
    /// The queue to the log is full; the client should try again later.
    #[error("the ingest queue is full")]
    Overloaded,
    /// The body as a whole cannot be read.
    #[error("the body cannot be read: {0}")]
    Malformed(String),
    /// The body has more events than one body may have. They are not counted to the end.
    #[error("the body has at least {found_at_least} events, the limit is {limit}; send several bodies")]
    TooMany {
        /// So many were found before reading stopped.
        found_at_least: usize,
        /// So many may come.
        limit: usize,
    },
    /// There is no outcome: the events may be stored or not.
    #[error("{0}")]
    OutcomeUnknown(String),
    /// The log refused the batch.
    #[error(transparent)]
    Refused(#[from] SubmitError),
}

/// Which nodes there are, by the producers' names.
pub trait NodeNames: Send + Sync {
    /// How many nodes have a name; deleted ones have none.
    fn count(&self) -> usize;

    /// Whether a node has this name.
    fn has(&self, key: &NodeKey) -> bool;
}

/// Where a partition stands according to the log.
pub trait PositionLookup: Send + Sync {
    /// The next offset to read, or `None` if the log has nothing of this partition.
    fn position(&self, source: &str, partition: i32) -> Option<i64>;

    /// The last message that was read of this partition, if the source noted it.
    fn mark(&self, source: &str, partition: i32) -> Option<SourceMark> {
        let _ = (source, partition);
        None
    }

    /// The origin of the newest frame of this partition; see [`EventBatch`].
    fn origin_unix_ms(&self, source: &str, partition: i32) -> Option<i64> {
        let _ = (source, partition);
        None
    }

    /// Where in time the edges of this partition in the log stand. The empty name stands for all sources without
    /// offsets, which share one.
    fn clock(&self, source: &str, partition: i32) -> Option<StreamClock> {
        let _ = (source, partition);
        None
    }
}
