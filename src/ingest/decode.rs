//! Bytes to events: one JSON object is one event; a null Kafka value may be a deletion.
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
//! fields take a value of any kind, so that the validation afterwards can report precisely what is wrong.
//! Hostile input is a [`Rejection`], never a panic. Feature dimensions, lateness and everything else that
//! depends on the stream is `admit`'s business.

use std::borrow::Cow;
use std::marker::PhantomData;

use xxhash_rust::xxh3::xxh3_128;

use super::document::Document;
use super::rejection::{Reason, Rejection};
use super::wire::{Row, Scalar, Wire, short};
use crate::event::{EdgeEvent, Event, EventTime, Incoming, NodeKey};

/// Longest node id, type name or idempotency key, in bytes.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Times beyond ± this many units are refused, so that time arithmetic never overflows.
pub const TIME_LIMIT: i64 = 1 << 62;

/// A number of a feature row as text, with its comma: the 17 digits of a double, sign, exponent, blank.
const NUMBER_BYTES: usize = 32;

/// What a Kafka message without a value does. It looks the same whether a deletion is meant or a row was deleted in the
/// database that the topic copies, and a node that was deleted does not come back; so a deletion has to be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tombstones {
    /// It deletes the node or the edges that its key names.
    DeleteNode,
    /// Nothing.
    Ignore,
    /// It is rejected.
    #[default]
    DeadLetter,
}

/// How an event is read, and its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Largest event in bytes.
    pub max_event_bytes: usize,
    /// Longest feature row.
    pub max_features: usize,
    /// Length of the stream's feature rows of edges, where it is known.
    pub edge_features: Option<usize>,
    /// The same of nodes.
    pub node_features: Option<usize>,
    /// What a message without a value does.
    pub tombstones: Tombstones,
}

impl DecodeOptions {
    /// The default, with room for feature rows of this length however their numbers are written.
    #[must_use]
    pub fn for_rows_of(dimension: usize) -> Self {
        let default = Self::default();
        Self {
            max_event_bytes: default.max_event_bytes.max(dimension.saturating_mul(NUMBER_BYTES) + (64 << 10)),
            max_features: default.max_features.max(dimension),
            ..default
        }
    }
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self {
            max_event_bytes: 1 << 20,
            max_features: 4096,
            edge_features: None,
            node_features: None,
            tombstones: Tombstones::default(),
        }
    }
}

/// Reads events within its bounds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    options: DecodeOptions,
}

impl Decoder {
    /// A decoder with these bounds.
    #[must_use]
    pub fn new(options: DecodeOptions) -> Self {
        Self { options }
    }

    /// The bounds.
    #[must_use]
    pub fn options(&self) -> &DecodeOptions {
        &self.options
    }

    /// # Errors
    /// When an event, or the message that has it, is too large.
    pub(super) fn check_size(&self, bytes: &[u8]) -> Result<(), Rejection> {
        let limit = self.options.max_event_bytes;
        if bytes.len() > limit {
            let detail = format!("the event has {} bytes, the limit is {limit}", bytes.len());
            return Err(Rejection::new(Reason::TooLarge, detail));
        }
        Ok(())
    }

    /// Reads one JSON event.
    ///
    /// # Errors
    /// The rejection names the field and what to send instead.
    pub fn event(&self, bytes: &[u8]) -> Result<Incoming, Rejection> {
        self.check_size(bytes)?;
        self.incoming(parse_object(bytes)?)
    }

    /// Reads one event of a document, whose fields have the names of JSON events.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    pub(super) fn document(&self, document: &Document<'_>) -> Result<Incoming, Rejection> {
        match document {
            Document::Json(text) => self.event(text),
            Document::Value(_) | Document::Avro(_) => self.incoming(document.read(PhantomData::<Wire<'_>>)?),
        }
    }

    fn incoming(&self, wire: Wire<'_>) -> Result<Incoming, Rejection> {
        let idempotency = idempotency_hash("idempotency_key", &wire.idempotency_key)?;
        Ok(Incoming { event: self.judge(wire)?, idempotency })
    }

    /// Reads a Kafka message without a value; `None` if it is to be ignored.
    ///
    /// # Errors
    /// When it is to be rejected, or its key names nothing to delete.
    pub fn tombstone(&self, key: Option<&[u8]>) -> Result<Option<Incoming>, Rejection> {
        match self.options.tombstones {
            Tombstones::DeleteNode => deletion_by_key(key).map(Some),
            Tombstones::Ignore => Ok(None),
            Tombstones::DeadLetter => Err(Rejection::new(
                Reason::Tombstone,
                "a message without a value; ingest.kafka.tombstones, or tombstones of its topic, decides whether it \
                 deletes what its key names",
            )),
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
            edge_type: edge_type("type", &wire.edge_type)?,
            features: self.row(wire.features)?,
            label: label("label", &wire.label)?,
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

/// A message without a value whose key names what to delete. A key `{"src", "dst"}` deletes edges, `{"node"}` or any
/// other text (or JSON text) deletes a node.
fn deletion_by_key(key: Option<&[u8]>) -> Result<Incoming, Rejection> {
    let key = key.unwrap_or_default();
    if key.is_empty() {
        let detail = "a message without a value is a deletion and needs a key that names a node or an edge";
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
pub(super) fn id(field: &str, value: &Scalar<'_>) -> Result<NodeKey, Rejection> {
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

pub(super) fn edge_type(field: &str, value: &Scalar<'_>) -> Result<Option<Box<str>>, Rejection> {
    match value {
        Scalar::Absent => Ok(None),
        Scalar::Text(text) if text.is_empty() => Ok(None),
        Scalar::Text(text) if text.len() <= TEXT_BYTES_MAX => Ok(Some(text.as_ref().into())),
        Scalar::Text(text) => {
            let detail = format!("{field} has {} bytes, the limit is {TEXT_BYTES_MAX}", text.len());
            Err(Rejection::new(Reason::TooLarge, detail))
        }
        Scalar::Int(number) => Ok(Some(number.to_string().into())),
        other => Err(Rejection::new(Reason::WrongType, format!("{field} is {other}; send a text"))),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
pub(super) fn label(field: &str, value: &Scalar<'_>) -> Result<Option<f32>, Rejection> {
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
    Err(Rejection::new(Reason::BadLabel, format!("{field} is {value}; send a finite number")))
}

pub(super) fn idempotency_hash(field: &str, value: &Scalar<'_>) -> Result<Option<u128>, Rejection> {
    let text = match value {
        Scalar::Absent => return Ok(None),
        Scalar::Text(text) => Cow::Borrowed(text.as_ref()),
        Scalar::Int(number) => Cow::Owned(number.to_string()),
        Scalar::Large(number) => Cow::Owned(number.to_string()),
        other => {
            let detail = format!("{field} is {other}; send a text");
            return Err(Rejection::new(Reason::WrongType, detail));
        }
    };
    if text.is_empty() || text.len() > TEXT_BYTES_MAX {
        let detail = format!("{field} has {} bytes; 1 to {TEXT_BYTES_MAX} are allowed", text.len());
        return Err(Rejection::new(Reason::WrongType, detail));
    }
    Ok(Some(hash_idempotency_key(&text)))
}

/// The hash under which an idempotency key is stored; never 0, which stands for "none".
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

pub(super) fn first_byte(bytes: &[u8]) -> Option<u8> {
    bytes.trim_ascii_start().first().copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(text: &str) -> Result<Event, Rejection> {
        Decoder::default().event(text.as_bytes()).map(|incoming| incoming.event)
    }

    fn edge(src: &str, dst: &str, time: i64) -> EdgeEvent {
        EdgeEvent {
            src: src.into(),
            dst: dst.into(),
            time: EventTime(time),
            edge_type: None,
            features: Vec::new(),
            label: None,
        }
    }

    #[test]
    fn events_of_every_kind() {
        let table = [
            (r#"{"src":"a","dst":"b","ts":5}"#, Event::Edge(edge("a", "b", 5))),
            (
                r#" {"dst":7,"ts":-5,"src":"7","op":"upsert","more":[{"x":1}]} "#,
                Event::Edge(edge("7", "7", -5)),
            ),
            (
                r#"{"src":18446744073709551615,"dst":"é\"","ts":0}"#,
                Event::Edge(edge("18446744073709551615", "é\"", 0)),
            ),
            (
                r#"{"src":1,"dst":2,"ts":0,"features":[1,-2.5,1e3],"type":"pays","label":1}"#,
                Event::Edge(EdgeEvent {
                    features: vec![1.0, -2.5, 1000.0],
                    edge_type: Some("pays".into()),
                    label: Some(1.0),
                    ..edge("1", "2", 0)
                }),
            ),
            (
                r#"{"src":1,"dst":2,"ts":0,"features":null,"type":"","label":null,"op":null}"#,
                Event::Edge(edge("1", "2", 0)),
            ),
            (
                r#"{"op":"delete","src":1,"dst":2}"#,
                Event::DeleteEdge { src: 1.into(), dst: 2.into(), until: None },
            ),
            (
                r#"{"op":"delete","src":1,"dst":2,"ts":9}"#,
                Event::DeleteEdge { src: 1.into(), dst: 2.into(), until: Some(EventTime(9)) },
            ),
            (r#"{"op":"delete","src":"x"}"#, Event::DeleteNode { key: "x".into() }),
            (r#"{"op":"delete","node":"x"}"#, Event::DeleteNode { key: "x".into() }),
            (
                r#"{"op":"node","node":"x","ts":3,"features":[0.5]}"#,
                Event::Node { key: "x".into(), time: EventTime(3), features: vec![0.5] },
            ),
            (
                r#"{"op":"node","src":"x","ts":3}"#,
                Event::Node { key: "x".into(), time: EventTime(3), features: vec![] },
            ),
        ];
        for (text, expected) in table {
            assert_eq!(decode(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn hostile_and_mistaken_events_are_named() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        let long_id = format!(r#"{{"src":"{long}","dst":2,"ts":0}}"#);
        let long_type = format!(r#"{{"src":1,"dst":2,"ts":0,"type":"{long}"}}"#);
        let many = format!(r#"{{"src":1,"dst":2,"ts":0,"features":[{}1]}}"#, "1,".repeat(4096));
        let deep =
            format!(r#"{{"src":1,"dst":2,"ts":0,"x":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let deep_id = format!(r#"{{"src":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let big = format!(r#"{{"src":1,"dst":2,"ts":0,"pad":"{}"}}"#, "x".repeat(1 << 20));
        let table: &[(&str, Reason, &str)] = &[
            ("", Reason::MalformedJson, ""),
            ("null", Reason::MalformedJson, "object"),
            (r#"["a","b",1]"#, Reason::MalformedJson, "object"),
            (r#"{"src":1,"dst":2,"ts":0"#, Reason::MalformedJson, ""),
            (r#"{"src":1,"dst":2,"ts":0} x"#, Reason::MalformedJson, "trailing"),
            (r#"{"src":1,"src":1,"dst":2,"ts":0}"#, Reason::MalformedJson, "duplicate field"),
            (r#"{"src":NaN,"dst":2,"ts":0}"#, Reason::MalformedJson, ""),
            ("{\"src\":\"\u{1}\",\"dst\":2,\"ts\":0}", Reason::MalformedJson, "control"),
            (&deep_id, Reason::BadId, "an array"),
            (r#"{"dst":2,"ts":0}"#, Reason::MissingField, "src"),
            (r#"{"src":1,"ts":0}"#, Reason::MissingField, "dst"),
            (r#"{"src":1,"dst":2}"#, Reason::MissingField, "ts"),
            (r#"{"src":1,"dst":2,"ts":null}"#, Reason::MissingField, "ts"),
            (r#"{"op":"node","ts":0}"#, Reason::MissingField, "src"),
            (r#"{"op":"delete"}"#, Reason::MissingField, "src"),
            (r#"{"src":1.0,"dst":2,"ts":0}"#, Reason::BadId, "1.0"),
            (r#"{"src":true,"dst":2,"ts":0}"#, Reason::BadId, "boolean"),
            (r#"{"src":"","dst":2,"ts":0}"#, Reason::BadId, "src is empty"),
            (r#"{"src":1,"dst":{"id":2},"ts":0}"#, Reason::BadId, "an object"),
            (r#"{"src":99999999999999999999,"dst":2,"ts":0}"#, Reason::BadId, "as texts"),
            (&long_id, Reason::BadId, "1025 bytes"),
            (r#"{"src":1,"dst":2,"ts":1.0e9}"#, Reason::BadTime, "the integer 1000000000"),
            (r#"{"src":1,"dst":2,"ts":1.5}"#, Reason::BadTime, "1.5"),
            (r#"{"src":1,"dst":2,"ts":"12"}"#, Reason::BadTime, "the text \"12\""),
            (r#"{"src":1,"dst":2,"ts":9223372036854775807}"#, Reason::BadTime, "2^62"),
            (r#"{"src":1,"dst":2,"ts":18446744073709551615}"#, Reason::BadTime, "2^62"),
            (r#"{"op":"delete","src":1,"dst":2,"ts":"x"}"#, Reason::BadTime, ""),
            (r#"{"src":1,"dst":2,"ts":0,"features":[1,"2"]}"#, Reason::BadFeatures, "features[1]"),
            (r#"{"src":1,"dst":2,"ts":0,"features":[1,null]}"#, Reason::BadFeatures, "features[1]"),
            (r#"{"src":1,"dst":2,"ts":0,"features":[1e39]}"#, Reason::BadFeatures, "f32"),
            (r#"{"src":1,"dst":2,"ts":0,"features":[[1]]}"#, Reason::BadFeatures, "an array"),
            (r#"{"src":1,"dst":2,"ts":0,"features":0.5}"#, Reason::WrongType, "a number"),
            (&many, Reason::TooLarge, "4097"),
            (&big, Reason::TooLarge, "bytes"),
            (&long_type, Reason::TooLarge, "type"),
            (r#"{"src":1,"dst":2,"ts":0,"type":[]}"#, Reason::WrongType, "type"),
            (r#"{"src":1,"dst":2,"ts":0,"label":"x"}"#, Reason::BadLabel, "label"),
            (r#"{"src":1,"dst":2,"ts":0,"label":1e39}"#, Reason::BadLabel, "label"),
            (r#"{"src":1,"dst":2,"ts":0,"op":"drop"}"#, Reason::UnknownOp, "\"drop\""),
            (r#"{"src":1,"dst":2,"ts":0,"op":1}"#, Reason::WrongType, "op"),
            (r#"{"src":1,"dst":2,"ts":0,"idempotency_key":""}"#, Reason::WrongType, "0 bytes"),
        ];
        for (text, reason, part) in table {
            let shown: String = text.chars().take(80).collect();
            let rejection = decode(text).unwrap_err();
            assert_eq!(rejection.reason, *reason, "{shown}: {rejection}");
            assert!(rejection.detail.contains(part), "{shown}: {rejection}");
            assert!(rejection.detail.len() < 300, "{shown}: a detail does not repeat the input");
        }
        assert!(decode(&deep).is_ok(), "what is ignored may be deep");
    }

    #[test]
    fn rows_of_the_streams_length_are_never_too_long() {
        let number = "-1.23456789012345678e-10";
        let event =
            |n: usize| format!(r#"{{"src":1,"dst":2,"ts":0,"features":[{}]}}"#, vec![number; n].join(", "));
        let decoder = Decoder::new(DecodeOptions::for_rows_of(100_000));
        assert!(decoder.event(event(100_000).as_bytes()).is_ok());
        assert_eq!(decoder.event(event(100_001).as_bytes()).unwrap_err().reason, Reason::TooLarge);
        assert_eq!(DecodeOptions::for_rows_of(8), DecodeOptions::default());
    }

    #[test]
    fn idempotency_keys_are_hashed_and_never_zero() {
        let key = |text: &str| Decoder::default().event(text.as_bytes()).unwrap().idempotency;
        let a = key(r#"{"src":1,"dst":2,"ts":0,"idempotency_key":"a"}"#);
        assert_eq!(a, Some(hash_idempotency_key("a")));
        assert_ne!(a, key(r#"{"src":1,"dst":2,"ts":0,"idempotency_key":"b"}"#));
        assert_eq!(
            key(r#"{"src":1,"dst":2,"ts":0,"idempotency_key":7}"#),
            key(r#"{"src":3,"dst":4,"ts":0,"idempotency_key":"7"}"#)
        );
        assert_eq!(key(r#"{"src":1,"dst":2,"ts":0}"#), None);
        assert_ne!(hash_idempotency_key(""), 0);
    }

    #[test]
    fn tombstones_delete_what_their_key_names() {
        let decoder = |tombstones| Decoder::new(DecodeOptions { tombstones, ..DecodeOptions::default() });
        let deleting = decoder(Tombstones::DeleteNode);
        let decode = |key: &[u8]| deleting.tombstone(Some(key)).map(|incoming| incoming.unwrap().event);
        let edge = Event::DeleteEdge { src: 1.into(), dst: "b".into(), until: None };
        assert_eq!(decode(br#"{"src":1,"dst":"b"}"#), Ok(edge));
        for key in [&br#"{"node":"alice"}"#[..], br#"{"src":"alice"}"#, b"alice", br#""alice""#] {
            assert_eq!(decode(key), Ok(Event::DeleteNode { key: "alice".into() }));
        }
        assert_eq!(decode(b"42"), Ok(Event::DeleteNode { key: 42.into() }));
        assert_eq!(decode(b"\xff").unwrap_err().reason, Reason::BadId);
        assert_eq!(decode(b"\"\"").unwrap_err().reason, Reason::BadId);
        assert_eq!(decode(b"{\"src\":").unwrap_err().reason, Reason::MalformedJson);
        assert_eq!(decode(b"{}").unwrap_err().reason, Reason::MissingField);
        assert_eq!(decode(b"").unwrap_err().reason, Reason::MissingKey);
        assert_eq!(deleting.tombstone(None).unwrap_err().reason, Reason::MissingKey);
        for key in [None, Some(&b"alice"[..])] {
            assert_eq!(decoder(Tombstones::Ignore).tombstone(key), Ok(None));
            let rejection = Decoder::default().tombstone(key).unwrap_err();
            assert_eq!(rejection.reason, Reason::Tombstone, "nothing is deleted unless it is asked for");
            assert!(rejection.detail.contains("ingest.kafka.tombstones"), "{rejection}");
        }
    }

    /// Texts that are almost events: JSON of the right shape with values of any kind.
    fn almost_event() -> impl Strategy<Value = String> {
        let value = prop_oneof![
            any::<i64>().prop_map(|v| v.to_string()),
            any::<f64>().prop_map(|v| v.to_string()),
            ".{0,12}".prop_map(|v| serde_json::to_string(&v).unwrap()),
            Just("null".to_owned()),
            Just("[1,2,null]".to_owned()),
            Just("{\"a\":[]}".to_owned()),
            Just("\"delete\"".to_owned()),
            Just("1e999".to_owned()),
        ];
        let name = prop::sample::select(vec![
            "src",
            "dst",
            "ts",
            "node",
            "features",
            "op",
            "type",
            "label",
            "idempotency_key",
            "x",
        ]);
        prop::collection::vec((name, value), 0..8).prop_map(|fields| {
            let fields: Vec<String> = fields.into_iter().map(|(n, v)| format!("\"{n}\":{v}")).collect();
            format!("{{{}}}", fields.join(","))
        })
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let decoder = Decoder::default();
            let _ = decoder.event(&bytes);
            let _ = decoder.tombstone(Some(&bytes));
        }

        #[test]
        fn almost_events_are_events_or_named(text in almost_event()) {
            match decode(&text) {
                Ok(Event::Edge(edge)) => {
                    prop_assert!(edge.features.iter().all(|f| f.is_finite()));
                    prop_assert!((-TIME_LIMIT..=TIME_LIMIT).contains(&edge.time.0));
                }
                Ok(_) => {}
                Err(rejection) => prop_assert!(!rejection.detail.is_empty()),
            }
        }
    }
}
