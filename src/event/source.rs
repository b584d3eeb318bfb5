//! Where events were read from. Positions travel with the events they produced, into the same log
//! frame, so that "applied" and "read up to" can never disagree.

use std::sync::Arc;

use super::Incoming;

/// How far one partition of a source was read: the next offset to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourcePosition {
    /// Name of the source, for example `kafka:payments`.
    pub source: Arc<str>,
    /// Partition of the source; 0 where a source has no partitions.
    pub partition: i32,
    /// The next offset to read.
    pub next_offset: i64,
}

/// A message that was read, by what it is: a message never changes, so one that differs at the same offset belongs to
/// another stream of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceMark {
    /// Its offset.
    pub offset: i64,
    /// Hash of its key, value and timestamp.
    pub hash: u64,
}

/// The origin of a batch with events that had been produced before their source was first read to its end. Producers'
/// clocks do not decide that.
pub const ORIGIN_HISTORY: i64 = 0;

/// A run of offsets `from..to` of one partition that a batch accounts for, rejected events included. A run without a
/// batch is an operator's: what it covers is skipped, and one that ends before it begins takes the partition back, to
/// be read again from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRange {
    /// Name of the source, for example `kafka:payments`.
    pub source: Arc<str>,
    /// Partition of the source; 0 where a source has no partitions.
    pub partition: i32,
    /// First offset of the run.
    pub from: i64,
    /// One past the last offset of the run.
    pub to: i64,
    /// The last message below `to`, where the source can be read again to compare.
    pub mark: Option<SourceMark>,
}

/// Many events with the positions they were read from.
#[derive(Clone, Debug, Default)]
pub struct EventBatch {
    /// The accepted events, in order of arrival.
    pub events: Vec<Incoming>,
    /// For sources with offsets: `offsets[i]` is the offset of `events[i]` in `ranges[0]`'s partition.
    /// Empty for sources without offsets. A batch holds events of one partition at most.
    pub offsets: Vec<i64>,
    /// What the batch accounts for; empty for sources without offsets.
    pub ranges: Vec<SourceRange>,
    /// Whether the ranges may begin behind the position that the log has of their partition: the offsets
    /// between are lost at their origin, and the source is configured to continue without them. Offsets that never
    /// held an event (compacted, transaction markers) need no permission: they belong to a range.
    pub gap_allowed: bool,
    /// When the oldest event of the batch was produced (timestamp of a message if it can be right, last change of a
    /// file) or received, milliseconds since the Unix epoch, or [`ORIGIN_HISTORY`]. Freshness is measured from here,
    /// and it separates history from what happened since the learning began.
    pub origin_unix_ms: i64,
}
