//! A frame as bytes outside of a log, for whoever takes it to another one. They are those of the log but for the place
//! of the commit, so equal frames are equal bytes whatever commits they were part of.

use thiserror::Error;

use super::frame::{self, Frame, PAYLOAD_BYTES_MAX};
use super::header::{HEADER_BYTES, Header, HeaderError};
use super::{LogError, payload::PayloadError};

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} is {found:#x}, expected {expected:#x}")]
pub struct NoFrame {
    what: &'static str,
    expected: u64,
    found: u64,
}

impl From<PayloadError> for NoFrame {
    fn from(error: PayloadError) -> Self {
        Self { what: error.what, expected: error.expected, found: error.found }
    }
}

impl From<HeaderError> for NoFrame {
    fn from(error: HeaderError) -> Self {
        let (what, expected, found) = match error {
            HeaderError::Magic { found } => {
                let expected = u32::from_le_bytes(super::header::MAGIC);
                ("the first word of a frame", expected.into(), u32::from_le_bytes(found).into())
            }
            HeaderError::Checksum { expected, found } => {
                ("the checksum of a frame's header", expected.into(), found.into())
            }
            HeaderError::Version { found } => {
                ("the format of a frame", super::header::VERSION.into(), found.into())
            }
        };
        Self { what, expected, found }
    }
}

impl Frame {
    /// Appends the frame's bytes to `out`.
    ///
    /// # Errors
    /// The columns of the frame contradict each other, or it is too large; `out` is unchanged.
    pub fn write_to(&self, out: &mut Vec<u8>) -> Result<(), LogError> {
        frame::encode(self, 0, PAYLOAD_BYTES_MAX, out)
    }

    /// The frame of these bytes, all of them.
    ///
    /// # Errors
    /// They are no frame, or not the bytes that were written.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, NoFrame> {
        let (header, payload) = header_of(bytes)?;
        let found = crc32c::crc32c(payload);
        if found != header.payload_crc {
            let what = "the checksum of a frame's payload";
            return Err(NoFrame { what, expected: header.payload_crc.into(), found: found.into() });
        }
        Ok(frame::decode(&header, payload)?)
    }

    /// Identifies the content and the position of a frame by its bytes.
    ///
    /// # Errors
    /// They are no frame.
    pub fn identity_of(bytes: &[u8]) -> Result<u64, NoFrame> {
        header_of(bytes).map(|(header, _)| header.checksums())
    }
}

fn header_of(bytes: &[u8]) -> Result<(Header, &[u8]), NoFrame> {
    let short = || NoFrame {
        what: "the number of bytes of a frame",
        expected: HEADER_BYTES as u64,
        found: bytes.len() as u64,
    };
    let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(short)?;
    let header = Header::parse(head)?;
    if u64::from(header.payload_bytes) != payload.len() as u64 {
        let what = "the number of bytes of a frame's payload";
        return Err(NoFrame { what, expected: header.payload_bytes.into(), found: payload.len() as u64 });
    }
    Ok((header, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, SourceRange};

    fn frame(first: u64) -> Frame {
        let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
        batch.push_edge(NodeId(0), NodeId(1), EventTime(5));
        let range = SourceRange { source: "kafka:t".into(), partition: 1, from: 3, to: 4, mark: None };
        let (new_keys, sources) = (vec!["a".into(), 7.into()], vec![range]);
        Frame { batch, new_keys, sources, origin_unix_ms: 9, ..Frame::default() }
    }

    #[test]
    fn a_frame_comes_back_and_is_identified_by_its_place_and_content() {
        let mut bytes = Vec::new();
        frame(4).write_to(&mut bytes).unwrap();
        // Edges without a label have none that equals itself.
        let (mut again, back) = (Vec::new(), Frame::from_bytes(&bytes).unwrap());
        back.write_to(&mut again).unwrap();
        assert_eq!(
            (again, &back.sources, &back.new_keys),
            (bytes.clone(), &frame(4).sources, &frame(4).new_keys)
        );
        let mut others = [Vec::new(), Vec::new()];
        frame(5).write_to(&mut others[0]).unwrap();
        Frame { origin_unix_ms: 8, ..frame(4) }.write_to(&mut others[1]).unwrap();
        let identity = Frame::identity_of(&bytes).unwrap();
        assert!(others.iter().all(|other| Frame::identity_of(other).unwrap() != identity));
    }

    #[test]
    fn every_changed_or_missing_byte_is_noticed() {
        let mut bytes = Vec::new();
        frame(4).write_to(&mut bytes).unwrap();
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            assert!(Frame::from_bytes(&changed).is_err(), "byte {place}");
            assert!(Frame::from_bytes(&bytes[..place]).is_err(), "{place} bytes");
        }
        bytes.push(0);
        assert!(Frame::from_bytes(&bytes).is_err());
    }
}
