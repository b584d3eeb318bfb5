//! A frame and its bytes: what one [`append`](super::Log::append) writes, column by column. Encoding
//! and decoding are block copies of columns; only names (keys, types, sources) are walked one by one.
//!
//! Decoding trusts no length: every count is checked against the bytes that are left before anything
//! is allocated. It does not know which dense ids exist, nor where frames stand in files.

use std::sync::Arc;

use bytemuck::Pod;

use super::LogError;
use super::header::{HEADER_BYTES, Header};
use super::payload::{KEY_INT, KEY_TEXT, PayloadError, Rest};
use crate::event::{EdgeBatch, EventTime, FeatureColumn, NodeKey, Op, SourceRange};

#[cfg(target_endian = "big")]
compile_error!("the event log stores columns in little-endian byte order by copying them");

/// Longest payload of a frame, bytes.
pub(super) const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// Optional parts of a payload, one bit each, in the order in which they stand there.
mod part {
    /// Times are a base and 32-bit offsets from it.
    pub const TIME32: u16 = 1;
    pub const OP: u16 = 1 << 1;
    pub const EDGE_TYPE: u16 = 1 << 2;
    pub const LABEL: u16 = 1 << 3;
    pub const FEATURES: u16 = 1 << 4;
    pub const IDEMPOTENCY: u16 = 1 << 5;
    pub const KEYS: u16 = 1 << 6;
    pub const TYPES: u16 = 1 << 7;
    pub const SOURCES: u16 = 1 << 8;
    /// Each source is followed by its mark.
    pub const MARKS: u16 = 1 << 9;
    pub const ALL: u16 = (1 << 10) - 1;
}

/// What is written at once: records, the names they are the first to use, and where they were read
/// from. Either all of a frame is in the log or nothing of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Frame {
    /// The records, from position `batch.first`; there may be none.
    pub batch: EdgeBatch,
    /// Keys of the next dense node ids: `new_keys[i]` names node (number of keys in all earlier
    /// frames) + i.
    pub new_keys: Vec<NodeKey>,
    /// Names of the next edge types, numbered likewise; the first of the log has number 1.
    pub new_types: Vec<Box<str>>,
    /// How far the sources were read when this frame is in, or where an operator has taken them; empty for sources
    /// without offsets.
    pub sources: Vec<SourceRange>,
    /// When the oldest event was produced or received, milliseconds since the Unix epoch.
    pub origin_unix_ms: i64,
}

/// Appends the bytes of `frame`, a payload of at most `limit` bytes, to `buffer`, which is unchanged on an
/// error.
pub(super) fn encode(
    frame: &Frame,
    commit_start: u64,
    limit: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), LogError> {
    check_shape(&frame.batch)?;
    let start = buffer.len();
    buffer.resize(start + HEADER_BYTES, 0);
    let columns = put_columns(&frame.batch, buffer) | put_names(frame, buffer);
    let payload_bytes = (buffer.len() - start - HEADER_BYTES) as u64;
    let fits = (payload_bytes <= limit)
        .then_some(())
        .and_then(|()| Some((u32::try_from(frame.batch.len()).ok()?, u32::try_from(payload_bytes).ok()?)));
    let Some((records, payload_length)) = fits else {
        buffer.truncate(start);
        return Err(LogError::TooLarge { bytes: payload_bytes, limit });
    };
    let header = Header {
        columns,
        first: frame.batch.first,
        records,
        payload_bytes: payload_length,
        commit_start,
        origin_unix_ms: frame.origin_unix_ms,
        payload_crc: crc32c::crc32c(&buffer[start + HEADER_BYTES..]),
    };
    buffer[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
    Ok(())
}

fn check_shape(batch: &EdgeBatch) -> Result<(), LogError> {
    let n = batch.len();
    let features = &batch.features;
    let values = features.ends.last().map_or(0, |&end| end as usize);
    let columns = [
        ("src", n, batch.src.len()),
        ("dst", n, batch.dst.len()),
        ("time", n, batch.time.len()),
        ("edge_type", n, batch.edge_type.len()),
        ("label", n, batch.label.len()),
        ("features.ends", n.min(features.ends.len()), features.ends.len()),
        ("features.values", values, features.values.len()),
        ("idempotency", if batch.idempotency.is_empty() { 0 } else { n }, batch.idempotency.len()),
    ];
    for (column, expected, found) in columns {
        if expected != found {
            return Err(LogError::Shape { column, expected, found });
        }
    }
    if let Some(i) = features.ends.windows(2).position(|pair| pair[0] > pair[1]) {
        let (expected, found) = (features.ends[i] as usize, features.ends[i + 1] as usize);
        return Err(LogError::Shape { column: "features.ends (ascending)", expected, found });
    }
    Ok(())
}

fn put_columns(batch: &EdgeBatch, out: &mut Vec<u8>) -> u16 {
    let mut columns = 0;
    put_column(&batch.src, out);
    put_column(&batch.dst, out);
    columns |= put_times(&batch.time, out);
    if batch.op.iter().any(|&op| op != Op::Edge) {
        columns |= part::OP;
        out.extend(batch.op.iter().map(|&op| op as u8));
    }
    if batch.edge_type.iter().any(|&number| number != 0) {
        columns |= part::EDGE_TYPE;
        put_column(&batch.edge_type, out);
    }
    if batch.label.iter().any(|label| !label.is_nan()) {
        columns |= part::LABEL;
        put_column(&batch.label, out);
    }
    if !batch.features.ends.is_empty() {
        columns |= part::FEATURES;
        put_length(batch.features.ends.len(), out);
        put_length(batch.features.values.len(), out);
        put_column(&batch.features.ends, out);
        put_column(&batch.features.values, out);
    }
    if !batch.idempotency.is_empty() {
        columns |= part::IDEMPOTENCY;
        put_column(&batch.idempotency, out);
    }
    columns
}

/// Most frames span less than 2^32 units of time, and four bytes an event are saved.
fn put_times(times: &[EventTime], out: &mut Vec<u8>) -> u16 {
    let low = times.iter().map(|time| time.0).min().unwrap_or(0);
    let high = times.iter().map(|time| time.0).max().unwrap_or(0);
    // The true difference is below 2^64, so wrapping subtraction gives it as an unsigned number.
    if high.wrapping_sub(low).cast_unsigned() > u64::from(u32::MAX) {
        put_column(times, out);
        return 0;
    }
    out.extend_from_slice(&low.to_le_bytes());
    let start = out.len();
    out.resize(start + times.len() * 4, 0);
    for (slot, time) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(times) {
        *slot = (time.0.wrapping_sub(low).cast_unsigned() as u32).to_le_bytes();
    }
    part::TIME32
}

fn put_names(frame: &Frame, out: &mut Vec<u8>) -> u16 {
    let mut columns = 0;
    if !frame.new_keys.is_empty() {
        columns |= part::KEYS;
        put_length(frame.new_keys.len(), out);
        for key in &frame.new_keys {
            match key {
                NodeKey::Int(number) => {
                    out.push(KEY_INT);
                    out.extend_from_slice(&number.to_le_bytes());
                }
                NodeKey::Text(text) => {
                    out.push(KEY_TEXT);
                    put_text(text, out);
                }
            }
        }
    }
    if !frame.new_types.is_empty() {
        columns |= part::TYPES;
        put_length(frame.new_types.len(), out);
        frame.new_types.iter().for_each(|name| put_text(name, out));
    }
    if !frame.sources.is_empty() {
        let is_marked = frame.sources.iter().any(|range| range.mark.is_some());
        columns |= if is_marked { part::SOURCES | part::MARKS } else { part::SOURCES };
        put_length(frame.sources.len(), out);
        for range in &frame.sources {
            put_text(&range.source, out);
            out.extend_from_slice(&range.partition.to_le_bytes());
            out.extend_from_slice(&range.from.to_le_bytes());
            out.extend_from_slice(&range.to.to_le_bytes());
            if is_marked {
                let mark = range.mark.map(|mark| (1_u8, mark.offset, mark.hash));
                let (is_there, offset, hash) = mark.unwrap_or_default();
                out.push(is_there);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&hash.to_le_bytes());
            }
        }
    }
    columns
}

fn put_column<T: Pod>(column: &[T], out: &mut Vec<u8>) {
    out.extend_from_slice(bytemuck::cast_slice(column));
}

/// A length beyond 32 bits is written cut off; such a payload is over the limit and refused as a whole.
fn put_length(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_text(text: &str, out: &mut Vec<u8>) {
    put_length(text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// The frame with this header and payload, whose checksum holds.
pub(super) fn decode(header: &Header, payload: &[u8]) -> Result<Frame, PayloadError> {
    let unknown = header.columns & !part::ALL;
    if unknown != 0 {
        return Err(PayloadError { what: "set of unknown columns", expected: 0, found: u64::from(unknown) });
    }
    let mut rest = Rest { bytes: payload };
    let frame = Frame {
        batch: take_columns(header, &mut rest)?,
        new_keys: rest.list(header.columns & part::KEYS, 5, Rest::key)?,
        new_types: rest.list(header.columns & part::TYPES, 4, |rest| Ok(rest.text()?.into()))?,
        sources: take_sources(header.columns, &mut rest)?,
        origin_unix_ms: header.origin_unix_ms,
    };
    match rest.bytes.len() {
        0 => Ok(frame),
        left => Err(PayloadError {
            what: "number of bytes after the last column",
            expected: 0,
            found: left as u64,
        }),
    }
}

fn take_columns(header: &Header, rest: &mut Rest<'_>) -> Result<EdgeBatch, PayloadError> {
    let n = header.records as usize;
    let has = |bit: u16| header.columns & bit != 0;
    let src = rest.column(n)?;
    let dst = rest.column(n)?;
    let time = if has(part::TIME32) { rest.short_times(n)? } else { rest.column(n)? };
    let op = if has(part::OP) { rest.ops(n)? } else { vec![Op::Edge; n] };
    let edge_type = if has(part::EDGE_TYPE) { rest.column(n)? } else { vec![0; n] };
    let label = if has(part::LABEL) { rest.column(n)? } else { vec![f32::NAN; n] };
    let features = if has(part::FEATURES) { rest.features(n)? } else { FeatureColumn::default() };
    let idempotency = if has(part::IDEMPOTENCY) { rest.column(n)? } else { Vec::new() };
    Ok(EdgeBatch { first: header.first, op, src, dst, time, edge_type, label, features, idempotency })
}

fn take_sources(columns: u16, rest: &mut Rest<'_>) -> Result<Vec<SourceRange>, PayloadError> {
    let mut last: Option<Arc<str>> = None;
    rest.list(columns & part::SOURCES, 24, |rest| {
        let name = rest.text()?;
        let source = match &last {
            Some(source) if **source == *name => Arc::clone(source),
            _ => Arc::from(name),
        };
        last = Some(Arc::clone(&source));
        let partition = i32::from_le_bytes(rest.array()?);
        let from = i64::from_le_bytes(rest.array()?);
        let to = i64::from_le_bytes(rest.array()?);
        let mark = if columns & part::MARKS == 0 { None } else { rest.mark()? };
        Ok(SourceRange { source, partition, from, to, mark })
    })
}
