//! What was found in a message, as events: by the rules of plain ones, and with the pointer in every error. Where a
//! field is found is the matter of `reading`.

use std::borrow::Cow;

use super::extract::{Found, Seen, Walk};
use super::message::Around;
use super::reading::Reading;
use super::{Decoded, Deletes, Envelope, Field, Mapping};
use crate::event::{EdgeEvent, Event, EventTime, Incoming};
use crate::ingest::admit::check_dimension;
use crate::ingest::decode::{Decoder, edge_type, id, idempotency_hash, label};
use crate::ingest::document::Document;
use crate::ingest::rejection::{Reason, Rejection};
use crate::ingest::wire::{Scalar, short};

/// Where there is no key, nothing stands at its places.
const NO_KEY: Document<'static> = Document::Json(Cow::Borrowed(b"null"));

/// What an event of a message does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Upsert,
    Node,
    Delete,
}

/// The events of a message.
pub(super) fn events<'m, 'a: 'm>(
    mapping: &'m Mapping,
    (around, is_structured): (&'m Around<'a>, bool),
    found: &'m Found<'m>,
    decoder: &'m Decoder,
) -> Result<Decoded, Rejection> {
    let key = if mapping.plans.reads_key { Some(read_key(mapping, around)?) } else { None };
    let mut reading =
        Reading { mapping, around, is_structured, found, key, is_deletion: false, item: None, decoder };
    let change = reading.change()?;
    reading.is_deletion = change == Some(Action::Delete);
    let Some(each) = &mapping.each else {
        return Ok(reading.event(change)?.map_or(Decoded::Ignored, Decoded::One));
    };
    if reading.is_deletion && mapping.deletes == Deletes::Ignore {
        return Ok(Decoded::Ignored);
    }
    let Some(count) = found.count else {
        return Err(Rejection::new(Reason::WrongType, reading.no_value(each, "send an array")));
    };
    let width = mapping.plans.item.len();
    let mut events = Vec::with_capacity(count);
    // No message has more numbers than bytes, unless one row is copied into many elements.
    let (mut numbers, numbers_max) = (0, decoder.options().max_event_bytes);
    for (number, item) in found.items.chunks_exact(width).enumerate() {
        reading.item = Some((number, item));
        let event = reading.event(change).map_err(|rejection| Rejection {
            detail: format!("element {number} of {}: {}", reading.path(&each.source), rejection.detail),
            ..rejection
        })?;
        numbers += event.as_ref().map_or(0, |incoming| row_length(&incoming.event));
        if numbers > numbers_max {
            let detail = format!(
                "the feature rows of the elements have more than {numbers_max} numbers together; send several messages"
            );
            return Err(Rejection::new(Reason::TooLarge, detail));
        }
        events.extend(event);
    }
    Ok(if events.is_empty() { Decoded::Ignored } else { Decoded::Many(events) })
}

/// The places of the key. One that is no JSON is a text, where it is read as a whole.
fn read_key<'a>(mapping: &Mapping, around: &Around<'a>) -> Result<Found<'a>, Rejection> {
    let plan = &mapping.plans.key;
    let wrapper = (mapping.plans.envelope == Envelope::Debezium).then_some(("payload", 0));
    let walk = Walk { plan, items: &mapping.plans.item, root: 0, wrapper };
    let key = around.key.unwrap_or(&NO_KEY);
    let text = match key {
        Document::Json(bytes) if plan.is_leaf(0) => std::str::from_utf8(bytes).ok(),
        _ => None,
    };
    match (walk.read(key), text) {
        (Ok(found), _) => Ok(found),
        (Err(_), Some(text)) => {
            Ok(Found { places: vec![Seen::One(Scalar::Text(Cow::Borrowed(text)))], ..Found::default() })
        }
        // Else it is named already.
        (Err(error), None) if matches!(key, Document::Json(_)) => {
            Err(Rejection::new(error.reason, format!("the key of the message: {}", error.detail)))
        }
        (Err(error), None) => Err(error),
    }
}

impl Reading<'_, '_> {
    /// What an envelope says that happened.
    fn change(&self) -> Result<Option<Action>, Rejection> {
        let mapping = self.mapping;
        if let Some(place) = mapping.version.filter(|_| self.is_structured)
            && !matches!(self.found.places.get(place), Some(Seen::One(Scalar::Text(_))))
        {
            let detail =
                "specversion is missing: neither the value nor its headers are those of a CloudEvent";
            return Err(Rejection::new(Reason::MissingField, detail));
        }
        let Some(place) = mapping.change else { return Ok(None) };
        let found = self.found.places.get(place);
        let detail = match found {
            Some(Seen::One(Scalar::Text(op))) => match op.as_ref() {
                "c" | "r" | "u" => return Ok(Some(Action::Upsert)),
                "d" => return Ok(Some(Action::Delete)),
                other => {
                    let detail = format!("op is {:?}; of Debezium's, c, r, u and d are known", short(other));
                    return Err(Rejection::new(Reason::UnknownOp, detail));
                }
            },
            Some(Seen::One(other)) => format!("op is {other}; the value is no change of Debezium"),
            _ => "op is missing: the value is no change of Debezium".to_owned(),
        };
        Err(Rejection::new(Reason::MissingField, detail))
    }

    /// The event that the message or its element is; `None` for a deletion that is ignored.
    fn event(&self, change: Option<Action>) -> Result<Option<Incoming>, Rejection> {
        let action = match change {
            Some(Action::Delete) => Action::Delete,
            _ => self.action()?,
        };
        let event = match action {
            Action::Upsert => Event::Edge(self.edge()?),
            Action::Node => Event::Node {
                key: id(&self.mapping.src.label, &self.required(&self.mapping.src)?)?,
                time: self.required_time()?,
                features: self.features("node", self.decoder.options().node_features)?,
            },
            Action::Delete => match self.deletion()? {
                Some(event) => event,
                None => return Ok(None),
            },
        };
        Ok(Some(Incoming { event, idempotency: self.idempotency()? }))
    }

    fn action(&self) -> Result<Action, Rejection> {
        let Some(field) = &self.mapping.op else { return Ok(Action::Upsert) };
        match self.value(field)? {
            Scalar::Absent => Ok(Action::Upsert),
            Scalar::Text(op) => match op.as_ref() {
                "upsert" | "c" | "r" | "u" => Ok(Action::Upsert),
                "delete" | "d" => Ok(Action::Delete),
                "node" => Ok(Action::Node),
                other => {
                    let detail =
                        format!("{} is {:?}; known are upsert, delete and node", field.label, short(other));
                    Err(Rejection::new(Reason::UnknownOp, detail))
                }
            },
            other => Err(Rejection::new(
                Reason::WrongType,
                format!("{} is {other}; known are \"upsert\", \"delete\" and \"node\"", field.label),
            )),
        }
    }

    fn edge(&self) -> Result<EdgeEvent, Rejection> {
        let mapping = self.mapping;
        let Some(dst) = &mapping.dst else {
            return Err(Rejection::new(
                Reason::MissingField,
                "dst is not in the mapping, and an edge has one",
            ));
        };
        Ok(EdgeEvent {
            src: id(&mapping.src.label, &self.required(&mapping.src)?)?,
            dst: id(&dst.label, &self.required(dst)?)?,
            time: self.required_time()?,
            edge_type: self.optional(mapping.edge_type.as_ref(), edge_type)?,
            features: self.features("edge", self.decoder.options().edge_features)?,
            label: self
                .optional(mapping.event_label.as_ref(), |name, value| label(name, &as_number(value)))?,
        })
    }

    fn deletion(&self) -> Result<Option<Event>, Rejection> {
        let mapping = self.mapping;
        let src = || id(&mapping.src.label, &self.required(&mapping.src)?);
        match (mapping.deletes, &mapping.dst) {
            (Deletes::Ignore, _) => Ok(None),
            (Deletes::DeadLetter, _) => Err(Rejection::new(
                Reason::Deletion,
                "the message deletes; deletes decides in the mapping what that does: ignore, delete_edges or \
                 delete_node",
            )),
            (Deletes::DeleteNode, _) => Ok(Some(Event::DeleteNode { key: src()? })),
            (Deletes::DeleteEdges, None) => {
                Err(Rejection::new(Reason::MissingField, "dst is not in the mapping, and edges have one"))
            }
            (Deletes::DeleteEdges, Some(dst)) => Ok(Some(Event::DeleteEdge {
                src: src()?,
                dst: id(&dst.label, &self.required(dst)?)?,
                // Without its time, edges that came later would go as well.
                until: Some(self.required_time()?),
            })),
        }
    }

    fn time(&self) -> Result<Option<EventTime>, Rejection> {
        match &self.mapping.ts {
            None => Ok(None),
            Some(ts) => self.mapping.times.read(&ts.label, &self.value(ts)?),
        }
    }

    fn required_time(&self) -> Result<EventTime, Rejection> {
        let missing = || {
            self.mapping.ts.as_ref().map_or_else(|| "ts is missing".to_owned(), |ts| self.no_value(ts, ""))
        };
        self.time()?.ok_or_else(|| Rejection::new(Reason::MissingField, missing()))
    }

    fn idempotency(&self) -> Result<Option<u128>, Rejection> {
        let Some(field) = &self.mapping.idempotency_key else { return Ok(None) };
        let value = self.value(field)?;
        // With an empty text in its place, many events would have the same key.
        if self.blank_piece(field).is_some() {
            return Ok(None);
        }
        let Some((number, _)) = self.item.filter(|_| !field.source.reads_item()) else {
            return idempotency_hash(&field.label, &value);
        };
        // The key is of the whole message: each of its events has its own.
        idempotency_hash(&field.label, &value)?;
        let text = match &value {
            Scalar::Absent => return Ok(None),
            Scalar::Text(text) => format!("{text}#{number}"),
            Scalar::Int(key) => format!("{key}#{number}"),
            Scalar::Large(key) => format!("{key}#{number}"),
            _ => return Ok(None),
        };
        Ok(Some(crate::ingest::decode::hash_idempotency_key(&text)))
    }

    fn optional<T>(
        &self,
        field: Option<&Field>,
        read: impl Fn(&str, &Scalar<'_>) -> Result<Option<T>, Rejection>,
    ) -> Result<Option<T>, Rejection> {
        let Some(field) = field else { return Ok(None) };
        read(&field.label, &self.value(field)?)
    }

    /// The value of a field of nodes: of a template with an empty text in it, many nodes would be one.
    fn required<'s>(&'s self, field: &'s Field) -> Result<Scalar<'s>, Rejection> {
        let value = self.value(field)?;
        if self.blank_piece(field).is_some() {
            return Err(Rejection::new(Reason::MissingField, self.no_value(field, "")));
        }
        match value {
            Scalar::Absent => Err(Rejection::new(Reason::MissingField, self.no_value(field, ""))),
            value => Ok(value),
        }
    }

    /// A row of numbers; none if no feature is there. One of another length than the stream's is refused with its
    /// message: each element would have a copy.
    fn features(&self, what: &str, dimension: Option<usize>) -> Result<Vec<f32>, Rejection> {
        let (mut row, mut missing) = (Vec::with_capacity(self.mapping.features.len()), None);
        for field in &self.mapping.features {
            match self.seen(&field.source) {
                Some(Seen::Row(values)) => row.extend_from_slice(values),
                Some(Seen::BadRow(detail)) => {
                    return Err(Rejection::new(Reason::BadFeatures, format!("{}: {detail}", field.label)));
                }
                _ => match self.value(field)? {
                    Scalar::Absent => missing = missing.or(Some(field)),
                    value => row.push(feature(&field.label, &value)?),
                },
            }
        }
        let limit = self.decoder.options().max_features;
        match missing {
            Some(field) if !row.is_empty() => {
                Err(Rejection::new(Reason::BadFeatures, self.no_value(field, "send all features or none")))
            }
            _ if row.len() > limit => Err(Rejection::new(
                Reason::TooLarge,
                format!("features has {} numbers, the limit is {limit}", row.len()),
            )),
            _ => {
                if let Some(dimension) = dimension {
                    check_dimension(what, row.len(), dimension)?;
                }
                Ok(row)
            }
        }
    }
}

/// How many numbers the feature rows of an event have.
fn row_length(event: &Event) -> usize {
    match event {
        Event::Edge(edge) => edge.features.len(),
        Event::Node { features, .. } => features.len(),
        Event::DeleteEdge { .. } | Event::DeleteNode { .. } => 0,
    }
}

/// Headers, keys and decimals of databases come as texts.
fn as_number<'v>(value: &'v Scalar<'_>) -> Scalar<'v> {
    match value {
        Scalar::Text(text) if text.bytes().any(|byte| byte.is_ascii_digit()) => {
            text.parse().map_or_else(|_| value.borrowed(), Scalar::Real)
        }
        value => value.borrowed(),
    }
}

fn feature(field: &str, value: &Scalar<'_>) -> Result<f32, Rejection> {
    let number = as_number(value).feature();
    if number.is_finite() {
        return Ok(number);
    }
    let detail = format!("{field} is {value}; send a finite number within f32, or an array of them");
    Err(Rejection::new(Reason::BadFeatures, detail))
}
