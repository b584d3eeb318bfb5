//! What is in a directory of segments, and what a crash has left undone at its end. Only the last
//! segment is read through: earlier ones were durable before it was begun, and are checked when read. What stands
//! before the mark was durable, too, and is never taken for torn.
//!
//! Writes nothing; the caller cuts the torn tail if it means to write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use super::mark::{self, LogMark};
use super::segment::{READ_AHEAD, Segment, SegmentReader, file_name, parse_name};
use super::storage::LogStorage;
use crate::event::EdgeId;

/// What was found when the log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The next position.
    pub end: EdgeId,
    /// Number of segments.
    pub segments: usize,
    /// Length of all segments together, bytes, without the torn tail.
    pub bytes: u64,
    /// Frames of the last segment, all verified.
    pub frames_verified: u64,
    /// Length of the torn tail that was cut, bytes: a write that a crash had interrupted and that was never confirmed,
    /// unless power was lost and the last commit before that was damaged as well.
    pub truncated_bytes: u64,
    /// Where it was cut: the segment, and the length it has now.
    pub truncated_at: Option<(PathBuf, u64)>,
    /// Where a copy of it is; `None` if it was all zeros, or if there was no room for a copy.
    pub kept_in: Option<PathBuf>,
    /// Up to which position the log was recorded as durable before it was opened: all of that is there. `None` in a new
    /// log, and where the record is missing or unreadable.
    pub recorded: Option<EdgeId>,
    /// Whether the record of what was durable is there and cannot be read.
    pub record_unreadable: bool,
}

/// The durable segments in order, and the findings.
pub(super) fn scan(storage: &Arc<dyn LogStorage>, dir: &Path) -> Result<(Vec<Segment>, Recovery), LogError> {
    let list = || storage.list().map_err(|source| LogError::io("list", dir, source));
    // The mark before the segments: beside a writer, it then says less than they hold.
    let found = LogMark::read(&**storage, dir, &list()?)?;
    let mark = if let mark::Found::Mark(mark) = found { mark } else { LogMark::default() };
    let mut segments = Vec::new();
    for name in list()? {
        if let Some(first) = parse_name(dir, &name)? {
            segments.push(Segment { first, bytes: SegmentReader::open(&**storage, dir, first)?.length()? });
        }
    }
    segments.sort_unstable_by_key(|segment| segment.first);
    let mut recovery = Recovery { segments: segments.len(), ..Recovery::default() };
    recovery.record_unreadable = found == mark::Found::Unreadable;
    recovery.recorded = matches!(found, mark::Found::Mark(_)).then_some(mark.end);
    let last = segments.last().copied().unwrap_or_default();
    if last.first < mark.segment.first || (segments.is_empty() && mark.segment.bytes > 0) {
        return Err(cut_short(
            dir,
            mark,
            Segment { first: mark.segment.first, bytes: 0 },
            mark.segment.first,
        ));
    }
    if let Some(last) = segments.last_mut() {
        let mut reader = SegmentReader::open(&**storage, dir, last.first)?;
        let whole = last.bytes;
        let recorded = if mark.segment.first == last.first { mark.segment.bytes } else { 0 };
        (last.bytes, recovery.end, recovery.frames_verified) = verify(&mut reader, *last, recorded)?;
        if last.bytes < recorded {
            return Err(cut_short(dir, mark, *last, recovery.end));
        }
        if last.bytes < whole {
            recovery.truncated_bytes = whole - last.bytes;
            recovery.truncated_at = Some((reader.path().to_owned(), last.bytes));
        }
    }
    recovery.bytes = segments.iter().map(|segment| segment.bytes).sum();
    Ok((segments, recovery))
}

/// Records up to the mark are gone without a trace.
fn cut_short(dir: &Path, mark: LogMark, found: Segment, position: EdgeId) -> LogError {
    LogError::CutShort {
        path: dir.join(file_name(found.first)),
        expected: mark.segment.bytes,
        found: found.bytes,
        position,
        end: mark.end,
        mark: dir.join(mark::NAME),
    }
}

/// Reads the last segment through: the length of its whole frames, the position behind them, and their
/// number. Its first `recorded` bytes were durable.
fn verify(
    reader: &mut SegmentReader,
    segment: Segment,
    recorded: u64,
) -> Result<(u64, EdgeId, u64), LogError> {
    let (mut offset, mut next, mut frames) = (0, segment.first, 0);
    let limit = segment.bytes;
    while offset < limit {
        let mut search_from = offset + 1;
        let checked = match reader.header(offset, limit, next, READ_AHEAD) {
            Ok(header) => {
                search_from = offset + header.frame_bytes();
                reader.payload(offset, &header, limit, READ_AHEAD).map(|_| header)
            }
            Err(error) => Err(error),
        };
        match checked {
            Ok(header) => {
                next = header.end().unwrap_or(next);
                offset += header.frame_bytes();
                frames += 1;
            }
            Err(error @ LogError::Corrupt { .. }) => {
                if offset < recorded || reader.durable_frame_follows(offset, search_from, limit)? {
                    return Err(error);
                }
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok((offset, next, frames))
}
