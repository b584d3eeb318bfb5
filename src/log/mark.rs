//! The mark: a small file beside the segments that says how far the log was durable. It is rewritten after every commit
//! and synced when the log is closed, so it is exact after a clean stop and after a killed process, and at worst some
//! seconds old after a loss of power. It never says more than is durable, because it is written last.
//!
//! Recovery needs it for the last commit, which no later frame vouches for: what stands before the mark was
//! acknowledged, and a broken frame there is damage, not a torn write.
//!
//! ```text
//! byte  0  magic "EVGD"                            4
//!       4  version, 1                              4
//!       8  first position of the last segment      8
//!      16  durable length of that segment, bytes   8
//!      24  position behind the last record         8
//!      32  CRC32C of bytes 0..32                   4
//! ```

use std::io;
use std::path::Path;

use super::LogError;
use super::segment::Segment;
use super::storage::{Access, LogFile, LogStorage};
use crate::event::EdgeId;

/// Name of the file.
pub(super) const NAME: &str = "DURABLE";

const MAGIC: [u8; 4] = *b"EVGD";
const VERSION: u32 = 1;
const BYTES: usize = 36;

/// What was durable at some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogMark {
    /// The last segment, with its durable length.
    pub segment: Segment,
    /// One past the last durable position.
    pub end: EdgeId,
}

/// What stands where the mark should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No file, or an empty one.
    Nothing,
    /// Bytes that are no mark.
    Unreadable,
    /// The mark.
    Mark(LogMark),
}

impl LogMark {
    pub(super) fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.segment.first.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.end.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..32]);
        bytes[32..36].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; BYTES]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let mark = Self {
            segment: Segment { first: EdgeId(number(8)), bytes: number(16) },
            end: EdgeId(number(24)),
        };
        // Every byte of a mark follows from its three numbers.
        (mark.to_bytes() == *bytes).then_some(mark)
    }

    /// The mark among the files `names` of `dir`.
    pub fn read(storage: &dyn LogStorage, dir: &Path, names: &[String]) -> Result<Found, LogError> {
        if !names.iter().any(|name| name == NAME) {
            return Ok(Found::Nothing);
        }
        let error = |operation, source| LogError::io(operation, dir.join(NAME), source);
        let file = storage.open(NAME, Access::Read).map_err(|source| error("open", source))?;
        let mut bytes = [0; BYTES];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(error("read", source)),
            }
        }
        Ok(match filled {
            0 => Found::Nothing,
            BYTES => Self::parse(&bytes).map_or(Found::Unreadable, Found::Mark),
            _ => Found::Unreadable,
        })
    }
}

/// The file of the mark, open for writing.
pub(super) struct MarkFile(Box<dyn LogFile>);

impl MarkFile {
    /// Opens it, and makes it if it is not there.
    pub fn open(storage: &dyn LogStorage, dir: &Path) -> Result<Self, LogError> {
        let file = match storage.open(NAME, Access::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => storage.create(NAME),
            opened => opened,
        };
        file.map(Self).map_err(|source| LogError::io("open", dir.join(NAME), source))
    }

    /// Moves the mark to what is durable now.
    pub fn write(&self, mark: LogMark) -> io::Result<()> {
        let bytes = mark.to_bytes();
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.0.write_at(rest, at as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes it survive a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
