//! The durable part of a log as files, for a copy of it beside a writer or without one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::mark::{self, LogMark};
use super::segment::{file_name, parse_name};
use super::storage::{Directory, LogStorage};
use super::{LogError, recovery};
use crate::event::EdgeId;

/// Name of the file that says how much of a log is durable.
pub const MARK_NAME: &str = mark::NAME;

/// A segment as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    /// Its first position.
    pub first: EdgeId,
    /// File name inside the log's directory.
    pub name: String,
    /// Length of what is durable, bytes; the file may be longer.
    pub bytes: u64,
}

/// What to copy of a log.
#[derive(Clone, Debug)]
pub struct LogFiles {
    /// The segments in order. The last one was read through.
    pub segments: Vec<SegmentFile>,
    /// One past the last durable position.
    pub end: EdgeId,
    /// Content of the file [`MARK_NAME`] beside a copy of exactly these segments.
    pub mark: Vec<u8>,
}

impl LogFiles {
    /// The segments that a reader from `position` on needs, and one that asks for the history there: the one that holds
    /// the record before it, and all that follow.
    #[must_use]
    pub fn from(&self, position: EdgeId) -> &[SegmentFile] {
        let holding = self.segments.partition_point(|segment| segment.first < position);
        &self.segments[holding.saturating_sub(1)..]
    }
}

/// What to copy of the log in `dir`.
///
/// # Errors
/// When it cannot be read, or its last segment is damaged.
pub fn files(dir: &Path) -> Result<LogFiles, LogError> {
    let storage: Arc<dyn LogStorage> = Arc::new(Directory::existing(dir));
    let (segments, found) = recovery::scan(&storage, dir)?;
    let mark = LogMark { segment: segments.last().copied().unwrap_or_default(), end: found.end };
    let to_file = |segment: &super::segment::Segment| SegmentFile {
        first: segment.first,
        name: file_name(segment.first),
        bytes: segment.bytes,
    };
    let segments = segments.iter().map(to_file).collect();
    Ok(LogFiles { segments, end: found.end, mark: mark.to_bytes().to_vec() })
}

/// Whether a file of this name belongs to a log.
#[must_use]
pub fn is_file_of_log(name: &str) -> bool {
    name == MARK_NAME || matches!(parse_name(&PathBuf::new(), name), Ok(Some(_)))
}
