//! Messages of any JSON shape as events. A mapping says where in a message the fields of an event stand:
//!
//! ```toml
//! [ingest.kafka]
//! topic = "shop.public.orders"
//! mapping = "orders"                  # likewise ingest.http.mapping and ingest.file.mapping
//!
//! [ingest.mappings.orders]
//! envelope = "debezium"
//! src = "user:{/after/user_id}"
//! dst = "product:{/after/product_id}"
//! ts = "/source/ts_ms"
//! ts_unit = "milliseconds"
//! features = ["/after/price", "/after/count"]
//! ```
//!
//! A field is read from
//!
//! | form | what it is |
//! | --- | --- |
//! | `/user/id` | an RFC 6901 pointer into the message's value |
//! | `item:/sku` | a pointer into an element of the array that `each` names, where one message is many events |
//! | `key:/id`, `key:` | a pointer into the message's key, or all of it |
//! | `header:NAME` | a header of the message |
//! | `attribute:NAME` | an attribute of a CloudEvent, wherever the message has it |
//! | `const:TEXT` | the text |
//! | `user:{/user/id}` | a text with such places in it, so that two number spaces do not collide |
//!
//! **Order of work.** The settings are compiled once (`source`, `plan`); a message is walked once (`extract`), which
//! finds every place and skips all else; what was found is judged (`judge`) by the rules of plain events. So an event
//! has the same bounds, and a rejection the same reasons, whichever way it came, and names the field, the pointer and
//! what was found there.
//!
//! **A message is taken whole or not at all.** One element that is no event makes the message a rejection, so that it
//! can be sent again when it, or the mapping, was mended. What the stream's other rules refuse (`admit`) is refused
//! event by event; a feature row of another length belongs to the message.
//!
//! Knows nothing of Kafka, HTTP or files: these hand in a [`Message`].

mod extract;
mod judge;
mod message;
mod plan;
mod propose;
mod reader;
mod reading;
mod source;
mod time;

use serde::Deserialize;
use thiserror::Error;

use self::extract::{Found, Walk};
use self::message::Around;
pub use self::message::{Decoded, Message};
use self::plan::Plan;
pub use self::propose::propose;
pub use self::reader::MessageReader;
use self::source::{Place, Plans, Source};
pub use self::time::TimeFormat;
use self::time::Times;
use super::decode::Decoder;
use super::document::Document;
use super::rejection::Rejection;
use crate::event::TimeUnit;

/// What a message is wrapped in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Envelope {
    /// Nothing: pointers begin at the value.
    #[default]
    None,
    /// A change of Debezium, with or without its schema: pointers begin at the payload. Rows that were created, read or
    /// updated are edges; in a deletion, what stands below `/after` is read below `/before`.
    Debezium,
    /// A CloudEvent, in binary or structured mode: pointers begin at its data.
    CloudEvents,
}

/// What a deletion in a message does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deletes {
    /// Nothing.
    Ignore,
    /// It deletes the edges `src -> dst` up to its time.
    DeleteEdges,
    /// It deletes the node `src` for good.
    DeleteNode,
    /// It is rejected.
    #[default]
    DeadLetter,
}

/// A mapping as the settings write it; an empty text is a field that is not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // the fields of an event, by their names
pub struct MappingOptions {
    pub envelope: Envelope,
    /// The array whose elements are events.
    pub each: String,
    pub src: String,
    pub dst: String,
    pub ts: String,
    pub ts_format: TimeFormat,
    /// The unit of `ts`; `None` is the stream's.
    pub ts_unit: Option<TimeUnit>,
    /// The unit of the stream, if the settings have it.
    pub stream_unit: Option<TimeUnit>,
    pub op: String,
    pub edge_type: String,
    pub label: String,
    pub idempotency_key: String,
    pub features: Vec<String>,
    pub deletes: Deletes,
}

/// Why a mapping cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{key}: {detail}")]
pub struct MappingError {
    /// The key of the mapping.
    pub key: &'static str,
    /// What is wrong with its value, and what to write.
    pub detail: String,
}

/// A field of events.
#[derive(Debug)]
struct Field {
    /// Its name and where it is read, for errors.
    label: Box<str>,
    source: Source,
}

/// A mapping that can be used.
#[derive(Debug)]
pub struct Mapping {
    plans: Plans,
    /// The array whose elements are events.
    each: Option<Field>,
    /// The operation of a Debezium change.
    change: Option<usize>,
    /// The version of the specification of a CloudEvent.
    version: Option<usize>,
    times: Times,
    src: Field,
    dst: Option<Field>,
    ts: Option<Field>,
    op: Option<Field>,
    edge_type: Option<Field>,
    event_label: Option<Field>,
    idempotency_key: Option<Field>,
    features: Vec<Field>,
    deletes: Deletes,
}

impl Mapping {
    /// Makes a mapping of the settings.
    ///
    /// # Errors
    /// When it cannot be used, with the key and what to write.
    pub fn compile(options: &MappingOptions) -> Result<Self, MappingError> {
        let mut plans = Plans::new(options.envelope, !options.each.is_empty());
        let each = match options.each.as_str() {
            "" => None,
            pointer => {
                Some(each(&mut plans, pointer).map_err(|detail| MappingError { key: "each", detail })?)
            }
        };
        let times = times(options)?;
        let mut field = |key: &'static str, text: &str| match text {
            "" => Ok(None),
            text => match plans.source(text) {
                Ok(source) => Ok(Some(Field { label: format!("{key} ({text})").into(), source })),
                Err(detail) => Err(MappingError { key, detail }),
            },
        };
        let missing = |key, what: &str| MappingError { key, detail: format!("must not be empty: {what}") };
        let src =
            field("src", &options.src)?.ok_or_else(|| missing("src", "every event has a source node"))?;
        let (dst, ts) = (field("dst", &options.dst)?, field("ts", &options.ts)?);
        let op = field("op", &options.op)?;
        if op.is_none() && dst.is_none() {
            return Err(missing("dst", "an edge has a destination node"));
        }
        if ts.is_none() {
            return Err(missing("ts", "every event has a time"));
        }
        let (edge_type, event_label) = (field("type", &options.edge_type)?, field("label", &options.label)?);
        let idempotency_key = field("idempotency_key", &options.idempotency_key)?;
        let rows = options.features.iter().map(|text| match field("features", text)? {
            Some(feature) => Ok(feature),
            None => Err(missing("features", "each text of the list names a number or an array of numbers")),
        });
        let features = rows.collect::<Result<Vec<_>, _>>()?;
        take_rows(&mut plans, &features, &options.each)?;
        let (mut change, mut version) = (None, None);
        match options.envelope {
            Envelope::None => {}
            Envelope::Debezium => change = plans.value.add(source::DATA, "/op").ok(),
            Envelope::CloudEvents => version = plans.value.add(plans.attributes, "/specversion").ok(),
        }
        Ok(Self {
            plans,
            each,
            change,
            version,
            times,
            src,
            dst,
            ts,
            op,
            edge_type,
            event_label,
            idempotency_key,
            features,
            deletes: options.deletes,
        })
    }

    /// Reads a message within the bounds of `decoder`.
    ///
    /// # Errors
    /// The rejection names the field, the pointer, and what was found there.
    fn read(
        &self,
        value: &Document<'_>,
        around: &Around<'_>,
        decoder: &Decoder,
    ) -> Result<Decoded, Rejection> {
        if let Document::Json(text) = value {
            decoder.check_size(text)?;
        }
        let is_structured = self.plans.envelope == Envelope::CloudEvents && is_structured(around);
        let found = self.walk(is_structured).read(value)?;
        judge::events(self, (around, is_structured), &found, decoder)
    }

    /// Whether anything is read from the message's key.
    pub(super) fn reads_key(&self) -> bool {
        self.plans.reads_key
    }

    /// Fields of a document without an envelope, at its top, in which something is read.
    pub(super) fn fields(&self) -> impl Iterator<Item = &str> {
        let is_bare = self.plans.envelope == Envelope::None;
        self.plans.value.names(source::DATA).filter(move |_| is_bare)
    }

    /// The places of a table's columns.
    ///
    /// # Errors
    /// With a column that is read and not there, or none where more than columns is read.
    pub(super) fn columns(&self, names: &[String]) -> Result<Vec<Option<usize>>, Option<String>> {
        let plan = &self.plans.value;
        if self.plans.envelope != Envelope::None || self.each.is_some() || !plan.is_flat(source::DATA) {
            return Err(None);
        }
        let is_there = |column: &&str| names.iter().any(|name| name == column);
        if let Some(missing) = self.fields().find(|column| !is_there(column)) {
            return Err(Some(missing.to_owned()));
        }
        Ok(names.iter().map(|name| plan.child(source::DATA, name)).collect())
    }

    /// Reads a row of a table: its fields with their places. A blank one is missing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(super) fn read_fields<'a>(
        &self,
        fields: impl Iterator<Item = (usize, &'a str)>,
        decoder: &Decoder,
    ) -> Result<Decoded, Rejection> {
        let found = Found::of_fields(self.plans.value.len(), fields);
        judge::events(self, (&Around::NOTHING, false), &found, decoder)
    }

    fn walk(&self, is_structured: bool) -> Walk<'_> {
        let (root, wrapper) = match self.plans.envelope {
            Envelope::Debezium => (source::DATA, Some(("payload", source::DATA))),
            Envelope::CloudEvents if is_structured => (self.plans.attributes, Some(("data", source::DATA))),
            _ => (source::DATA, None),
        };
        Walk { plan: &self.plans.value, items: &self.plans.item, root, wrapper }
    }
}

/// Whether a CloudEvent is in its value; if not, its attributes are headers.
fn is_structured(around: &Around<'_>) -> bool {
    let is_envelope =
        |media: &[u8]| media.trim_ascii_start().to_ascii_lowercase().starts_with(b"application/cloudevents");
    let media = (around.header)("content-type").or_else(|| (around.header)("Content-Type"));
    media.is_some_and(is_envelope) || (around.header)("ce_specversion").is_none()
}

fn each(plans: &mut Plans, pointer: &str) -> Result<Field, String> {
    if !pointer.starts_with('/') {
        return Err(format!("{pointer:?} is no pointer to an array in the value; write one such as /items"));
    }
    // Only what a change has led to: elements of before and after would be one list.
    let after = plans.value.add(source::DATA, pointer)?;
    plans.value.take_each(after);
    let source = Source::Value(Place { after, before: None });
    Ok(Field { label: format!("each ({pointer})").into(), source })
}

fn times(options: &MappingOptions) -> Result<Times, MappingError> {
    let units = match (options.ts_format, options.ts_unit, options.stream_unit) {
        (TimeFormat::Integer, None, _) => None,
        (TimeFormat::Integer, Some(from), Some(to)) => Some((from, to)),
        (TimeFormat::Rfc3339, None, Some(to)) => Some((to, to)),
        (TimeFormat::Rfc3339, Some(_), _) => {
            let detail = "has no meaning for ts_format = \"rfc3339\"; leave it out".to_owned();
            return Err(MappingError { key: "ts_unit", detail });
        }
        (format, _, None) => {
            let key = if format == TimeFormat::Integer { "ts_unit" } else { "ts_format" };
            let detail = "needs the unit that times are converted to: set stream.time_unit".to_owned();
            return Err(MappingError { key, detail });
        }
    };
    Ok(Times { format: options.ts_format, units })
}

/// Lets features be arrays of numbers.
fn take_rows(plans: &mut Plans, features: &[Field], each: &str) -> Result<(), MappingError> {
    for feature in features {
        match feature.source {
            Source::Value(Place { after, before }) => {
                plans.value.take_row(after);
                before.into_iter().for_each(|before| plans.value.take_row(before));
            }
            Source::Item(place) => plans.item.take_row(place),
            Source::Key(place) => plans.key.take_row(place),
            _ => {}
        }
    }
    let plans = [&plans.value, &plans.item, &plans.key];
    match plans.into_iter().find_map(Plan::conflict) {
        None => Ok(()),
        Some(place) => Err(MappingError {
            key: if place == each { "each" } else { "features" },
            detail: format!(
                "{place} is taken as a whole, and a part of it is read as well; name the parts alone"
            ),
        }),
    }
}

#[cfg(test)]
pub(in crate::ingest) mod tests;
