//! Reads frames in order, behind the writer or without one. Sees only what is durable: it never reads
//! past the length that the last successful commit has published.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::frame::{self, Frame};
use super::header::Header;
use super::segment::{READ_AHEAD, Segment, SegmentReader, file_name};
use super::storage::{Directory, LogStorage};
use super::{LogError, recovery};
use crate::event::EdgeId;

/// Read ahead while frames are skipped by their headers, bytes.
const SKIP_AHEAD: usize = 4 << 10;

/// What the writer publishes to readers, once it is durable.
pub(super) struct Durable {
    /// In order of position. Segments are added at the end and removed at the beginning.
    pub segments: Vec<Segment>,
    /// How many were removed.
    pub removed: usize,
    /// One past the last durable position.
    pub end: EdgeId,
}

/// Makes readers of one log, from any thread, for as long as anyone keeps it.
#[derive(Clone)]
pub struct LogReaders {
    pub(super) dir: PathBuf,
    pub(super) storage: Arc<dyn LogStorage>,
    pub(super) durable: Arc<Mutex<Durable>>,
}

impl LogReaders {
    /// A reader from position `from` on; see [`LogReader::next_frame`].
    #[must_use]
    pub fn reader(&self, from: EdgeId) -> LogReader {
        LogReader { log: self.clone(), position: from, place: None, checksums: 0 }
    }

    /// Identifies the history of the log that ends at `position`: the checksums of the frame that holds the record
    /// before it, 0 at position 0. A log that was cut and went on with other records returns another value
    /// from the cut on, and the same before it.
    ///
    /// # Errors
    /// When the log cannot be read there.
    pub fn history(&self, position: EdgeId) -> Result<u64, LogError> {
        let Some(last) = position.0.checked_sub(1) else { return Ok(0) };
        let mut reader = self.reader(EdgeId(last));
        while let Some(frame) = reader.next_frame()? {
            if frame.batch.end() >= position {
                return Ok(reader.checksums);
            }
        }
        Ok(0)
    }

    /// The first position: 0, unless the log was cut.
    #[must_use]
    pub fn first(&self) -> EdgeId {
        let durable = self.durable.lock();
        durable.segments.first().map_or(durable.end, |segment| segment.first)
    }

    /// One past the last durable position.
    #[must_use]
    pub fn durable_end(&self) -> EdgeId {
        self.durable.lock().end
    }

    /// The first position of the oldest segment that was written to at `time` or later: what is below is older. A
    /// segment counts as new if its time cannot be read.
    #[must_use]
    pub fn written_since(&self, time: SystemTime) -> EdgeId {
        let (segments, end) = {
            let durable = self.durable.lock();
            (durable.segments.clone(), durable.end)
        };
        let is_old = |segment: &&Segment| {
            let about = self.dir.join(file_name(segment.first)).metadata();
            about.and_then(|about| about.modified()).is_ok_and(|written| written < time)
        };
        segments.iter().find(|segment| !is_old(segment)).map_or(end, |segment| segment.first)
    }
}

/// Reads the durable frames of a log in order, and follows its writer.
pub struct LogReader {
    log: LogReaders,
    position: EdgeId,
    /// Where the next frame stands, once a segment is open.
    place: Option<Place>,
    /// Of the frame that was given last.
    checksums: u64,
}

struct Place {
    segment: SegmentReader,
    /// Number of the segment among all that there were since the log was opened.
    index: usize,
    offset: u64,
    /// Durable length of the segment at the last check, bytes.
    limit: u64,
    /// The position that stands at `offset`.
    next: EdgeId,
}

impl LogReader {
    /// The next frame, or `None` at the durable end: call again later. The first frame is the one that
    /// holds the position the reader was made for, whole; frames without records that stand at that
    /// position come too, so their source ranges are not missed.
    ///
    /// # Errors
    /// When the log cannot be read or is damaged there. The reader stays where it is.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, LogError> {
        while self.settle()? {
            let Some(place) = &mut self.place else { break };
            let skipping = place.next < self.position;
            let header = place.header(if skipping { SKIP_AHEAD } else { READ_AHEAD })?;
            let end = header.end().unwrap_or(place.next);
            let wanted = end > self.position || (header.records == 0 && end == self.position);
            let frame = if wanted { Some(place.frame(&header)?) } else { None };
            place.offset += header.frame_bytes();
            place.next = end;
            if frame.is_some() {
                self.position = end;
                self.checksums = header.checksums();
                return Ok(frame);
            }
        }
        Ok(None)
    }

    /// Moves a reader that has read nothing yet to `position`.
    pub fn start_at(&mut self, position: EdgeId) {
        self.position = position;
    }

    /// Moves a reader that has read nothing yet to the beginning of the last segment, and returns its position.
    pub fn start_at_last_segment(&mut self) -> EdgeId {
        self.position = self.log.durable.lock().segments.last().map_or(EdgeId(0), |segment| segment.first);
        self.position
    }

    /// The position that [`next_frame`](Self::next_frame) gives next: the one the reader was made for,
    /// then the end of the last frame.
    #[must_use]
    pub fn position(&self) -> EdgeId {
        self.position
    }

    /// One past the last durable position of the log.
    #[must_use]
    pub fn durable_end(&self) -> EdgeId {
        self.log.durable_end()
    }

    /// Stands before a durable frame, or returns `false` at the durable end.
    fn settle(&mut self) -> Result<bool, LogError> {
        if self.place.as_ref().is_some_and(|place| place.offset < place.limit) {
            return Ok(true);
        }
        loop {
            let Some((index, segment)) = self.next_segment()? else { return Ok(false) };
            match &mut self.place {
                Some(place) if place.index == index => place.limit = segment.bytes,
                _ => {
                    let reader = SegmentReader::open(&*self.log.storage, &self.log.dir, segment.first)?;
                    let (offset, next) = (0, segment.first);
                    self.place = Some(Place { segment: reader, index, offset, limit: segment.bytes, next });
                }
            }
            if segment.bytes > 0 {
                return Ok(true);
            }
        }
    }

    /// The segment to read on in, with more to read than is known or not begun; `None` at the end.
    fn next_segment(&self) -> Result<Option<(usize, Segment)>, LogError> {
        let durable = self.log.durable.lock();
        let (segments, removed) = (&durable.segments, durable.removed);
        let segment_at = |index: usize| segments.get(index.checked_sub(removed)?);
        let (index, expected) = match &self.place {
            Some(place) => match segment_at(place.index) {
                Some(segment) if segment.bytes > place.offset => return Ok(Some((place.index, *segment))),
                _ => (place.index + 1, Some(place.next)),
            },
            None => {
                // Frames without records that stand at a segment's first position may end the segment before.
                let behind = segments.partition_point(|segment| segment.first < self.position);
                (removed + behind.saturating_sub(1), (behind == 0).then_some(self.position))
            }
        };
        // A reader that is overtaken by a cut goes on with what there is, and finds the gap.
        let index = index.max(removed);
        let Some(segment) = segment_at(index) else { return Ok(None) };
        match expected {
            Some(expected) if expected != segment.first => Err(LogError::Gap {
                path: self.log.dir.join(super::segment::file_name(segment.first)),
                offset: 0,
                expected,
                found: segment.first,
            }),
            _ => Ok(Some((index, *segment))),
        }
    }
}

impl Place {
    fn header(&mut self, read_ahead: usize) -> Result<Header, LogError> {
        self.segment.header(self.offset, self.limit, self.next, read_ahead)
    }

    fn frame(&mut self, header: &Header) -> Result<Frame, LogError> {
        let payload = self.segment.payload(self.offset, header, self.limit, READ_AHEAD)?;
        match frame::decode(header, payload) {
            Ok(frame) => Ok(frame),
            Err(error) => Err(self.segment.malformed(self.offset, error.what, error.expected, error.found)),
        }
    }
}

/// Reads a log without its lock, for tools: what is there when it is opened, from its first position to
/// its end or to a torn tail. Changes nothing and does not follow a writer.
///
/// # Errors
/// When the directory cannot be read or its last segment is damaged.
pub fn read_only(dir: &Path) -> Result<LogReader, LogError> {
    let storage: Arc<dyn LogStorage> = Arc::new(Directory::existing(dir));
    let (segments, found) = recovery::scan(&storage, dir)?;
    let first = segments.first().map_or(found.end, |segment| segment.first);
    let durable = Arc::new(Mutex::new(Durable { segments, removed: 0, end: found.end }));
    Ok(LogReaders { dir: dir.to_owned(), storage, durable }.reader(first))
}
