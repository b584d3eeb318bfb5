//! Bytes to events: one JSON object is one event, a null Kafka value is a deletion.
//!
//! ```json
//! {"src": "alice", "dst": 7, "ts": 1700000000, "features": [0.5], "type": "pays", "label": 0,
//!  "idempotency_key": "order-1"}
//! {"op": "delete", "src": "alice", "dst": 7, "ts": 1700000000}     edges alice -> 7 up to that time
//! {"op": "delete", "src": "alice"}                                 every edge of alice
//! {"op": "node", "node": "alice", "ts": 1700000000, "features": [0.1]}
//! ```
//!
//! Ids are texts or integers; `ts` is an integer, never a float; a null field is an absent one; a field
//! of another name is ignored. Each event is read in one pass over borrowed bytes into [`Wire`], whose
//! fields take a value of any kind, so that the judgement afterwards can say precisely what is wrong.
//! Hostile input is a [`Rejection`], never a panic. Feature dimensions, lateness and everything else that
//! depends on the stream is `admit`'s business.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use xxhash_rust::xxh3::xxh3_128;

use super::rejection::{Reason, Rejection};
use super::wire::{Row, Scalar, Wire, short};
use crate::event::{BodyFormat, EdgeEvent, Event, EventTime, Incoming, NodeKey};

/// Longest node id, type name or idempotency key, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Times beyond ± this many units are refused, so that time arithmetic never overflows.
pub const TIME_LIMIT: i64 = 1 << 62;

/// Bounds of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Largest event in bytes.
    pub max_event_bytes: usize,
    /// Longest feature row.
    pub max_features: usize,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { max_event_bytes: 1 << 20, max_features: 4096 }
    }
}

/// Reads events within its bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    options: DecodeOptions,
}

/// One event of a body: its bytes and what they say.
#[derive(Debug)]
pub struct BodyEvent<'a> {
    /// The event's own bytes, for the dead letter.
    pub raw: &'a [u8],
    /// The event, or why it is not one.
    pub decoded: Result<Incoming, Rejection>,
}

impl Decoder {
    /// A decoder with these bounds.
    #[must_use]
    pub fn new(options: DecodeOptions) -> Self {
        Self { options }
    }

    /// Reads one JSON event.
    ///
    /// # Errors
    /// The rejection names the field and what to send instead.
    pub fn event(&self, bytes: &[u8]) -> Result<Incoming, Rejection> {
        if bytes.len() > self.options.max_event_bytes {
            let limit = self.options.max_event_bytes;
            let detail = format!("the event has {} bytes, the limit is {limit}", bytes.len());
            return Err(Rejection::new(Reason::TooLarge, detail));
        }
        let wire = parse_object(bytes)?;
        let idempotency = idempotency_hash(&wire.idempotency_key)?;
        Ok(Incoming { event: self.judge(wire)?, idempotency })
    }

    /// Reads a Kafka message without a value: its key says what to delete. A key `{"src", "dst"}` deletes
    /// edges, `{"node"}` or any other text (or JSON text) deletes a node.
    ///
    /// # Errors
    /// When there is no key, or the key names nothing.
    pub fn tombstone(&self, key: Option<&[u8]>) -> Result<Incoming, Rejection> {
        let key = key.unwrap_or_default();
        if key.is_empty() {
            let detail =
                "a message without a value is a deletion and needs a key that names a node or an edge";
            return Err(Rejection::new(Reason::MissingKey, detail));
        }
        if first_byte(key) == Some(b'{') {
            let wire = parse_object(key)?;
            return deletion(&wire).map(Incoming::new);
        }
        let text = std::str::from_utf8(key)
            .map_err(|_| Rejection::new(Reason::BadId, "the key of a deletion is not UTF-8"))?;
        let text = match serde_json::from_str::<Cow<'_, str>>(text) {
            Ok(unquoted) => unquoted,
            Err(_) => Cow::Borrowed(text),
        };
        Ok(Incoming::new(Event::DeleteNode { key: text_key("key", &text)? }))
    }

    /// Reads a body of many events. Events are judged one by one.
    ///
    /// # Errors
    /// When the body as a whole cannot be read; the text says where.
    pub fn body<'a>(&self, body: &'a [u8], format: BodyFormat) -> Result<Vec<BodyEvent<'a>>, String> {
        let read = |raw: &'a [u8]| BodyEvent { raw, decoded: self.event(raw) };
        match (format, first_byte(body)) {
            (_, None) => Err("it is empty; send at least one JSON object".into()),
            (BodyFormat::JsonLines, _) => Ok(body
                .split(|&b| b == b'\n')
                .map(<[u8]>::trim_ascii)
                .filter(|l| !l.is_empty())
                .map(read)
                .collect()),
            (BodyFormat::Json, Some(b'[')) => {
                let items: Vec<&'a RawValue> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
                Ok(items.into_iter().map(|item| read(item.get().as_bytes())).collect())
            }
            (BodyFormat::Json, Some(b'{')) => {
                serde_json::from_slice::<IgnoredAny>(body).map_err(|e| e.to_string())?;
                Ok(vec![read(body)])
            }
            (BodyFormat::Json, Some(_)) => Err("expected a JSON object or an array of objects".into()),
        }
    }

    fn judge(&self, wire: Wire<'_>) -> Result<Event, Rejection> {
        match &wire.op {
            Scalar::Absent => self.edge(wire),
            Scalar::Text(op) => match op.as_ref() {
                "upsert" => self.edge(wire),
                "delete" => deletion(&wire),
                "node" => self.node(wire),
                other => {
                    let detail = format!("op is {:?}; known are upsert, delete and node", short(other));
                    Err(Rejection::new(Reason::UnknownOp, detail))
                }
            },
            other => {
                let detail = format!("op is {other}; known are \"upsert\", \"delete\" and \"node\"");
                Err(Rejection::new(Reason::WrongType, detail))
            }
        }
    }

    fn edge(&self, wire: Wire<'_>) -> Result<Event, Rejection> {
        Ok(Event::Edge(EdgeEvent {
            src: id("src", &wire.src)?,
            dst: id("dst", &wire.dst)?,
            time: time(&wire.ts)?.ok_or_else(|| missing("ts"))?,
            edge_type: edge_type(&wire.edge_type)?,
            features: self.row(wire.features)?,
            label: label(&wire.label)?,
        }))
    }

    fn node(&self, wire: Wire<'_>) -> Result<Event, Rejection> {
        let (name, value) = node_field(&wire);
        Ok(Event::Node {
            key: id(name, value)?,
            time: time(&wire.ts)?.ok_or_else(|| missing("ts"))?,
            features: self.row(wire.features)?,
        })
    }

    fn row(&self, row: Row) -> Result<Vec<f32>, Rejection> {
        let values = match row {
            Row::Absent => Vec::new(),
            Row::Values(values) => values,
            Row::Bad(detail) => return Err(Rejection::new(Reason::BadFeatures, detail)),
            Row::Other(kind) => {
                let detail = format!("features is {kind}; send an array of numbers");
                return Err(Rejection::new(Reason::WrongType, detail));
            }
        };
        let limit = self.options.max_features;
        if values.len() > limit {
            let detail = format!("features has {} numbers, the limit is {limit}", values.len());
            return Err(Rejection::new(Reason::TooLarge, detail));
        }
        Ok(values)
    }
}

fn deletion(wire: &Wire<'_>) -> Result<Event, Rejection> {
    if matches!(wire.dst, Scalar::Absent) {
        let (name, value) = node_field(wire);
        return Ok(Event::DeleteNode { key: id(name, value)? });
    }
    Ok(Event::DeleteEdge { src: id("src", &wire.src)?, dst: id("dst", &wire.dst)?, until: time(&wire.ts)? })
}

/// A node event names its node `node`, or `src` as an edge would.
fn node_field<'w, 'a>(wire: &'w Wire<'a>) -> (&'static str, &'w Scalar<'a>) {
    match wire.node {
        Scalar::Absent => ("src", &wire.src),
        _ => ("node", &wire.node),
    }
}

/// The key that an id field names.
fn id(field: &'static str, value: &Scalar<'_>) -> Result<NodeKey, Rejection> {
    match value {
        Scalar::Absent => Err(missing(field)),
        Scalar::Int(number) => Ok(NodeKey::Int(*number)),
        // One text has one key, also where the text is a number above i64.
        Scalar::Large(number) => Ok(NodeKey::from_text(&number.to_string())),
        Scalar::Text(text) => text_key(field, text),
        other => {
            let detail =
                format!("{field} is {other}; an id is a text or an integer (send larger numbers as texts)");
            Err(Rejection::new(Reason::BadId, detail))
        }
    }
}

/// The key that `text` names, if it is neither empty nor too long.
pub(super) fn text_key(field: &str, text: &str) -> Result<NodeKey, Rejection> {
    if text.is_empty() {
        return Err(Rejection::new(Reason::BadId, format!("{field} is empty")));
    }
    if text.len() > TEXT_BYTES_MAX {
        let detail = format!("{field} has {} bytes, the limit is {TEXT_BYTES_MAX}", text.len());
        return Err(Rejection::new(Reason::BadId, detail));
    }
    Ok(NodeKey::from_text(text))
}

fn time(value: &Scalar<'_>) -> Result<Option<EventTime>, Rejection> {
    let detail = match value {
        Scalar::Absent => return Ok(None),
        Scalar::Int(t) if (-TIME_LIMIT..=TIME_LIMIT).contains(t) => return Ok(Some(EventTime(*t))),
        Scalar::Int(_) | Scalar::Large(_) => format!("ts is {value}; it must lie within ±2^62"),
        Scalar::Real(real) if real.fract() == 0.0 && real.abs() < 9.0e15 => {
            format!("ts is written as a float; send the integer {real:.0}")
        }
        _ => format!("ts is {value}; send an integer in the stream's unit"),
    };
    Err(Rejection::new(Reason::BadTime, detail))
}

fn edge_type(value: &Scalar<'_>) -> Result<Option<Box<str>>, Rejection> {
    match value {
        Scalar::Absent => Ok(None),
        Scalar::Text(text) if text.is_empty() => Ok(None),
        Scalar::Text(text) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.as_ref().into())),
        Scalar::Text(text) => {
            let detail = format!("type has {} bytes, the limit is {TEXT_BYTES_MAX}", text.len());
            Err(Rejection::new(Reason::TooLarge, detail))
        }
        Scalar::Int(number) => Ok(Some(number.to_string().into())),
        other => Err(Rejection::new(Reason::WrongType, format!("type is {other}; send a text"))),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
fn label(value: &Scalar<'_>) -> Result<Option<f32>, Rejection> {
    let number = match value {
        Scalar::Absent => return Ok(None),
        Scalar::Int(number) => *number as f32,
        Scalar::Large(number) => *number as f32,
        Scalar::Real(real) => *real as f32,
        _ => f32::NAN,
    };
    if number.is_finite() {
        return Ok(Some(number));
    }
    Err(Rejection::new(Reason::BadLabel, format!("label is {value}; send a finite number")))
}

fn idempotency_hash(value: &Scalar<'_>) -> Result<Option<u128>, Rejection> {
    let text = match value {
        Scalar::Absent => return Ok(None),
        Scalar::Text(text) => Cow::Borrowed(text.as_ref()),
        Scalar::Int(number) => Cow::Owned(number.to_string()),
        Scalar::Large(number) => Cow::Owned(number.to_string()),
        other => {
            let detail = format!("idempotency_key is {other}; send a text");
            return Err(Rejection::new(Reason::WrongType, detail));
        }
    };
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        let detail = format!("idempotency_key has {} bytes; 1 to {TEXT_BYTES_MAX} are allowed", text.len());
        return Err(Rejection::new(Reason::WrongType, detail));
    }
    Ok(Some(hash_idempotency_key(&text)))
}

/// The hash under which an idempotency key is remembered; never 0, which stands for "none".
#[must_use]
pub fn hash_idempotency_key(key: &str) -> u128 {
    xxh3_128(key.as_bytes()).max(1)
}

fn missing(field: &str) -> Rejection {
    Rejection::new(Reason::MissingField, format!("{field} is missing"))
}

fn parse_object(bytes: &[u8]) -> Result<Wire<'_>, Rejection> {
    // Serde would also take an array for a struct, field by field.
    if first_byte(bytes) != Some(b'{') {
        return Err(Rejection::new(Reason::MalformedJson, "expected one JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|e| Rejection::new(Reason::MalformedJson, e.to_string()))
}

fn first_byte(bytes: &[u8]) -> Option<u8> {
    bytes.trim_ascii_start().first().copied()
}
