//! The 48 bytes before every frame's payload: what is needed to check the payload, to skip it, and to
//! distinguish a torn write from damage. Knows nothing of columns.

use crate::event::EdgeId;

/// Length of a header, bytes.
pub(super) const HEADER_BYTES: usize = 48;

/// The first bytes of every frame. Magic, version and the header's checksum keep their places in every
/// version, so that a newer frame is distinguished from a damaged one.
pub(super) const MAGIC: [u8; 4] = *b"EVGF";

/// The format this module writes and reads.
pub(super) const VERSION: u16 = 1;

/// A frame's header. The layout is drawn in the module doc of `log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Which optional columns the payload holds.
    pub columns: u16,
    /// Position of the first record.
    pub first: EdgeId,
    /// Number of records.
    pub records: u32,
    /// Length of the payload, bytes.
    pub payload_bytes: u32,
    /// Offset in the segment at which the commit that wrote this frame began.
    pub commit_start: u64,
    /// When the oldest event was produced or received, milliseconds since the Unix epoch.
    pub origin_unix_ms: i64,
    /// CRC32C of the payload.
    pub payload_crc: u32,
}

/// Why 48 bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// They do not begin with the magic bytes.
    Magic { found: [u8; 4] },
    /// They were changed since they were written.
    Checksum { expected: u32, found: u32 },
    /// They are a header of another version.
    Version { found: u16 },
}

impl Header {
    /// The header as it stands in the file.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.columns.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.records.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.commit_start.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.origin_unix_ms.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Both checksums of the frame. They cover all of it, and where it stands.
    pub fn checksums(self) -> u64 {
        let bytes = self.to_bytes();
        u64::from_le_bytes(field(&bytes, 40))
    }

    /// The header in these bytes, if they are one.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, HeaderError> {
        let magic: [u8; 4] = field(bytes, 0);
        if magic != MAGIC {
            return Err(HeaderError::Magic { found: magic });
        }
        let found = u32::from_le_bytes(field(bytes, 44));
        let expected = crc32c::crc32c(&bytes[..44]);
        if found != expected {
            return Err(HeaderError::Checksum { expected, found });
        }
        let version = u16::from_le_bytes(field(bytes, 4));
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        Ok(Self {
            columns: u16::from_le_bytes(field(bytes, 6)),
            first: EdgeId(u64::from_le_bytes(field(bytes, 8))),
            records: u32::from_le_bytes(field(bytes, 16)),
            payload_bytes: u32::from_le_bytes(field(bytes, 20)),
            commit_start: u64::from_le_bytes(field(bytes, 24)),
            origin_unix_ms: i64::from_le_bytes(field(bytes, 32)),
            payload_crc: u32::from_le_bytes(field(bytes, 40)),
        })
    }

    /// Length of header and payload, bytes.
    pub fn frame_bytes(self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.payload_bytes)
    }

    /// One past the position of the last record; `None` if there is no such position.
    pub fn end(self) -> Option<EdgeId> {
        self.first.0.checked_add(u64::from(self.records)).map(EdgeId)
    }
}

/// `N` bytes from `at`, which is inside a header by construction.
fn field<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}
