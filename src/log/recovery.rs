//! What is in a directory of segments, and what a crash has left undone at its end. Only the last
//! segment is read through: earlier ones were durable before it was begun, and are checked when read.
//!
//! Writes nothing; the caller cuts the torn tail if it means to write.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use super::segment::{READ_AHEAD, Segment, SegmentReader, parse_name};
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
    /// Length of the torn tail that was cut, bytes: a write that a crash had interrupted, or that was
    /// never confirmed.
    pub truncated_bytes: u64,
    /// Where it was cut: the segment, and the length it has now.
    pub truncated_at: Option<(PathBuf, u64)>,
}

/// The durable segments in order, and the findings.
pub(super) fn scan(storage: &Arc<dyn LogStorage>, dir: &Path) -> Result<(Vec<Segment>, Recovery), LogError> {
    let mut segments = Vec::new();
    for name in storage.list().map_err(|source| LogError::io("list", dir, source))? {
        if let Some(first) = parse_name(dir, &name)? {
            segments.push(Segment { first, bytes: SegmentReader::open(&**storage, dir, first)?.length()? });
        }
    }
    segments.sort_unstable_by_key(|segment| segment.first);
    let mut recovery = Recovery { segments: segments.len(), ..Recovery::default() };
    if let Some(last) = segments.last_mut() {
        let mut reader = SegmentReader::open(&**storage, dir, last.first)?;
        let whole = last.bytes;
        (last.bytes, recovery.end, recovery.frames_verified) = verify(&mut reader, *last)?;
        if last.bytes < whole {
            recovery.truncated_bytes = whole - last.bytes;
            recovery.truncated_at = Some((reader.path().to_owned(), last.bytes));
        }
    }
    recovery.bytes = segments.iter().map(|segment| segment.bytes).sum();
    Ok((segments, recovery))
}

/// Reads the last segment through: the length of its whole frames, the position behind them, and their
/// number.
fn verify(reader: &mut SegmentReader, segment: Segment) -> Result<(u64, EdgeId, u64), LogError> {
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
                if reader.durable_frame_follows(offset, search_from, limit)? {
                    return Err(error);
                }
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok((offset, next, frames))
}
