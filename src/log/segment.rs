//! One segment for reading: its name, its checked headers and payloads, and the search for durable
//! frames behind a damaged one. Does not decode payloads and does not know what is durable: callers
//! give the length up to which the file may be read.

use std::io;
use std::path::{Path, PathBuf};

use super::LogError;
use super::header::{HEADER_BYTES, Header, HeaderError, MAGIC};
use super::storage::{Access, LogFile, LogStorage};
use crate::event::EdgeId;

/// Read ahead when frames are read one after another, bytes.
pub(super) const READ_AHEAD: usize = 256 << 10;

/// The search for durable frames behind a damaged one reads this much at a time, bytes.
const SEARCH_BYTES: u64 = 1 << 20;

const SUFFIX: &str = ".log";

/// Digits of a position in a file name: all that 64 bits can need, so that names sort as positions do.
const DIGITS: usize = 20;

/// A segment and how much of it is durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segment {
    /// Position of its first record, which is its name.
    pub first: EdgeId,
    /// Durable length, bytes.
    pub bytes: u64,
}

/// Name of the segment that begins with this position.
pub(super) fn file_name(first: EdgeId) -> String {
    format!("{:0width$}{SUFFIX}", first.0, width = DIGITS)
}

/// The first position of the segment of this name; `None` if the name is not meant as a segment's.
pub(super) fn parse_name(dir: &Path, name: &str) -> Result<Option<EdgeId>, LogError> {
    let Some(digits) = name.strip_suffix(SUFFIX) else { return Ok(None) };
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse() {
        Ok(first) if plain => Ok(Some(EdgeId(first))),
        _ => Err(LogError::Foreign { path: dir.join(name), found: name.as_bytes().to_vec() }),
    }
}

/// A segment open for reading.
pub(super) struct SegmentReader {
    path: PathBuf,
    file: Box<dyn LogFile>,
    /// Bytes of the file from `window_start`, read ahead.
    window: Vec<u8>,
    window_start: u64,
}

impl SegmentReader {
    pub fn open(storage: &dyn LogStorage, dir: &Path, first: EdgeId) -> Result<Self, LogError> {
        let name = file_name(first);
        let path = dir.join(&name);
        match storage.open(&name, Access::Read) {
            Ok(file) => Ok(Self { path, file, window: Vec::new(), window_start: 0 }),
            Err(source) => Err(LogError::io("open", path, source)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn length(&self) -> Result<u64, LogError> {
        self.file.length().map_err(|source| LogError::io("read the length of", &self.path, source))
    }

    /// The header at `offset`, checked against everything but its payload. `next` is the position it
    /// must begin with, `limit` the length up to which the file may be read.
    pub fn header(
        &mut self,
        offset: u64,
        limit: u64,
        next: EdgeId,
        read_ahead: usize,
    ) -> Result<Header, LogError> {
        let left = limit.saturating_sub(offset);
        if left < HEADER_BYTES as u64 {
            return Err(self.corrupt(offset, next, "number of bytes of a header", HEADER_BYTES as u64, left));
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(self.bytes(offset, HEADER_BYTES, limit, read_ahead)?);
        let header = Header::parse(&bytes).map_err(|error| self.name_error(error, offset, next))?;
        if header.first != next {
            let (path, found) = (self.path.clone(), header.first);
            return Err(LogError::Gap { path, offset, expected: next, found });
        }
        if header.commit_start > offset {
            return Err(self.malformed(offset, "start of the commit", offset, header.commit_start));
        }
        if header.end().is_none() {
            return Err(self.malformed(
                offset,
                "number of records",
                u64::MAX - next.0,
                header.records.into(),
            ));
        }
        let payload_left = left - HEADER_BYTES as u64;
        if u64::from(header.payload_bytes) > payload_left {
            let expected = header.payload_bytes.into();
            return Err(self.corrupt(offset, next, "number of bytes of a payload", expected, payload_left));
        }
        Ok(header)
    }

    /// The payload of the frame at `offset`, whose header was checked against the same `limit`.
    pub fn payload(
        &mut self,
        offset: u64,
        header: &Header,
        limit: u64,
        read_ahead: usize,
    ) -> Result<&[u8], LogError> {
        let start = offset + HEADER_BYTES as u64;
        let found = crc32c::crc32c(self.bytes(start, header.payload_bytes as usize, limit, read_ahead)?);
        if found != header.payload_crc {
            let expected = header.payload_crc.into();
            return Err(self.corrupt(offset, header.first, "payload checksum", expected, found.into()));
        }
        self.bytes(start, header.payload_bytes as usize, limit, read_ahead)
    }

    /// Whether a frame at or behind `search_from` belongs to a commit that began behind `damaged`. A
    /// commit begins only after the one before it is durable, so the damaged frame was durable then,
    /// and a crash cannot have torn it. Frames of the same commit prove nothing: a crash may keep any of
    /// its pages.
    pub fn durable_frame_follows(
        &mut self,
        damaged: u64,
        search_from: u64,
        limit: u64,
    ) -> Result<bool, LogError> {
        let mut at = search_from;
        while limit.saturating_sub(at) >= HEADER_BYTES as u64 {
            let length = SEARCH_BYTES.min(limit - at) as usize;
            let chunk = self.bytes(at, length, limit, 0)?;
            let proves = |(i, bytes): (usize, &[u8])| {
                bytes.starts_with(&MAGIC)
                    && bytes.first_chunk().is_some_and(|bytes| {
                        Header::parse(bytes).is_ok_and(|header| {
                            header.commit_start > damaged && header.commit_start <= at + i as u64
                        })
                    })
            };
            if chunk.windows(HEADER_BYTES).enumerate().any(proves) {
                return Ok(true);
            }
            at += (length - HEADER_BYTES + 1) as u64;
        }
        Ok(false)
    }

    /// A payload whose checksum holds but whose content contradicts itself.
    pub fn malformed(&self, offset: u64, what: &'static str, expected: u64, found: u64) -> LogError {
        LogError::Malformed { path: self.path.clone(), offset, what, expected, found }
    }

    fn corrupt(
        &self,
        offset: u64,
        position: EdgeId,
        what: &'static str,
        expected: u64,
        found: u64,
    ) -> LogError {
        LogError::Corrupt { path: self.path.clone(), offset, position, what, expected, found }
    }

    fn name_error(&self, error: HeaderError, offset: u64, position: EdgeId) -> LogError {
        match error {
            // A crash can leave zeros at the start of a segment, but nobody else's bytes.
            HeaderError::Magic { found } if offset == 0 && found != [0; 4] => {
                LogError::Foreign { path: self.path.clone(), found: found.to_vec() }
            }
            HeaderError::Magic { found } => {
                let (expected, found) = (u32::from_be_bytes(MAGIC), u32::from_be_bytes(found));
                self.corrupt(offset, position, "frame magic", expected.into(), found.into())
            }
            HeaderError::Checksum { expected, found } => {
                self.corrupt(offset, position, "header checksum", expected.into(), found.into())
            }
            HeaderError::Version { found } => {
                let (path, expected) = (self.path.clone(), super::header::VERSION);
                LogError::Version { path, offset, expected, found }
            }
        }
    }

    /// `length` bytes at `offset`, which the caller knows to end at or before `limit`; reads
    /// `read_ahead` bytes at once where that stays within `limit`.
    fn bytes(
        &mut self,
        offset: u64,
        length: usize,
        limit: u64,
        read_ahead: usize,
    ) -> Result<&[u8], LogError> {
        let skip = offset.checked_sub(self.window_start).and_then(|skip| usize::try_from(skip).ok());
        let cached = skip.filter(|skip| skip.saturating_add(length) <= self.window.len());
        let skip = match cached {
            Some(skip) => skip,
            None => {
                self.fill(offset, length, limit, read_ahead)?;
                0
            }
        };
        Ok(&self.window[skip..skip + length])
    }

    fn fill(&mut self, offset: u64, length: usize, limit: u64, read_ahead: usize) -> Result<(), LogError> {
        let available = usize::try_from(limit.saturating_sub(offset)).unwrap_or(usize::MAX);
        self.window.clear();
        self.window.resize(length.max(read_ahead.min(available)), 0);
        self.window_start = offset;
        let mut filled = 0;
        while filled < self.window.len() {
            match self.file.read_at(&mut self.window[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    self.window.clear();
                    return Err(LogError::io("read", &self.path, source));
                }
            }
        }
        self.window.truncate(filled);
        if filled < length {
            return Err(LogError::io("read", &self.path, io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(())
    }
}
