//! A first mapping for messages that are seen: their envelope, what looks like nodes, and a time. A guess for people to
//! correct; nothing is read by it unasked.

use std::collections::BTreeMap;

use chrono::DateTime;
use serde_json::Value;

use super::{Envelope, MappingOptions, Message, TimeFormat};
use crate::event::{EventTime, TimeUnit};

/// Deepest field that is looked at, and most fields of a message.
const DEPTH_MAX: usize = 5;
const FIELDS_MAX: usize = 500;

/// Parts of names that say which end of an edge a field is.
const SOURCES: [&str; 10] =
    ["user", "customer", "account", "client", "member", "sender", "from", "src", "source", "session"];
const DESTINATIONS: [&str; 12] = [
    "product",
    "item",
    "article",
    "sku",
    "page",
    "merchant",
    "shop",
    "recipient",
    "receiver",
    "target",
    "dst",
    "to",
];

/// A field of messages: where it is, as a mapping writes it, and a value of it.
struct Field {
    place: String,
    name: String,
    value: Value,
}

/// A mapping for messages like this one; `None` if nothing in it looks like two nodes and a time.
#[must_use]
pub fn propose(message: &Message<'_>) -> Option<MappingOptions> {
    let document: Value = serde_json::from_slice(message.value).ok()?;
    let mut options = MappingOptions::default();
    let inner = document.get("payload").unwrap_or(&document);
    let mut fields = Vec::new();
    if inner.get("op").is_some_and(Value::is_string)
        && (inner.get("after").is_some() || inner.get("before").is_some())
    {
        options.envelope = Envelope::Debezium;
        // A deletion shows the row as it was; it is read below /after all the same.
        let row = inner.get("after").filter(|row| row.is_object()).or_else(|| inner.get("before"))?;
        gather("/after", row, 0, &mut fields);
        (options.ts, options.ts_unit) = ("/source/ts_ms".to_owned(), Some(TimeUnit::Milliseconds));
    } else if (message.header)("ce_specversion").is_some() || document.get("specversion").is_some() {
        options.envelope = Envelope::CloudEvents;
        let is_binary = (message.header)("ce_specversion").is_some();
        gather("", if is_binary { &document } else { document.get("data")? }, 0, &mut fields);
        options.ts = "attribute:time".to_owned();
        options.ts_format = TimeFormat::Rfc3339;
        options.edge_type = "attribute:type".to_owned();
        options.idempotency_key = "{attribute:source} {attribute:id}".to_owned();
    } else {
        gather("", &document, 0, &mut fields);
    }
    if options.ts.is_empty() {
        let (place, format, unit) = time(&fields)?;
        (options.ts, options.ts_format, options.ts_unit) = (place, format, unit);
    }
    let items = each(&document, &options, &mut fields);
    options.each = items.unwrap_or_default();
    let (src, dst) = ends(&fields, &options)?;
    (options.src, options.dst) = (src, dst);
    Some(options)
}

/// The fields of an object, with its parts.
fn gather(place: &str, value: &Value, depth: usize, fields: &mut Vec<Field>) {
    let Value::Object(object) = value else { return };
    for (name, value) in object {
        let place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
        if value.is_object() && depth < DEPTH_MAX {
            gather(&place, value, depth + 1, fields);
        } else if fields.len() < FIELDS_MAX {
            fields.push(Field { place, name: name.to_lowercase(), value: value.clone() });
        }
    }
}

/// An array of objects, whose fields then count as well.
fn each(document: &Value, options: &MappingOptions, fields: &mut Vec<Field>) -> Option<String> {
    if options.envelope != Envelope::None {
        return None;
    }
    let array = fields.iter().find(|field| field.value.get(0).is_some_and(Value::is_object))?;
    let place = array.place.clone();
    let element = document.pointer(&place)?.get(0)?.clone();
    let mut inner = Vec::new();
    gather("", &element, 0, &mut inner);
    fields.extend(inner.into_iter().map(|field| Field { place: format!("item:{}", field.place), ..field }));
    Some(place)
}

/// What may be the name of a node.
fn is_id(field: &Field) -> bool {
    match &field.value {
        Value::String(text) => {
            !text.is_empty() && text.len() <= 128 && DateTime::parse_from_rfc3339(text).is_err()
        }
        Value::Number(number) => number.is_i64() || number.is_u64(),
        _ => false,
    }
}

/// What a field's place says of it: of `/user/id` that it is a user's.
fn words(field: &Field) -> String {
    let parts = field.place.trim_start_matches("item:").to_lowercase();
    let mut parts: Vec<&str> = parts.split('/').filter(|part| !part.is_empty()).collect();
    if parts.first() == Some(&"after") {
        parts.remove(0);
    }
    let from = parts.len().saturating_sub(2);
    parts.split_off(from).join("_")
}

/// How much a field looks like one of these ends of an edge.
fn likeness(field: &Field, kinds: &[&str]) -> usize {
    let text = words(field);
    let parts: Vec<&str> = text.split(['_', '-', '.']).collect();
    let is_named = |kind: &&str| parts.contains(kind) || kind.len() > 3 && text.contains(*kind);
    let named = kinds.iter().any(is_named);
    let is_key = ["id", "key", "uuid", "sku", "src", "dst"].iter().any(|end| field.name.ends_with(end));
    4 * usize::from(named) + 2 * usize::from(is_key && field.name != "id") + usize::from(is_key)
}

fn ends(fields: &[Field], options: &MappingOptions) -> Option<(String, String)> {
    let best = |kinds: &[&str], other: Option<&str>| {
        let free = fields.iter().filter(|field| is_id(field) && Some(field.place.as_str()) != other);
        let free = free.filter(|field| field.place != options.ts);
        // The first of several that are alike.
        let rated = free.map(|field| (likeness(field, kinds), field)).filter(|(likeness, _)| *likeness >= 2);
        rated.fold(
            None,
            |best: Option<(usize, &Field)>, next| {
                if best.is_none_or(|b| next.0 > b.0) { Some(next) } else { best }
            },
        )
    };
    let (_, src) = best(&SOURCES, None)?;
    let (_, dst) = best(&DESTINATIONS, Some(&src.place))?;
    Some((template(src, &SOURCES), template(dst, &DESTINATIONS)))
}

/// A number gets a name in front of it, so that two number spaces do not collide.
fn template(field: &Field, kinds: &[&str]) -> String {
    if !field.value.is_number() {
        return field.place.clone();
    }
    let text = words(field);
    let kind = kinds.iter().find(|kind| text.contains(**kind)).copied();
    let name = kind.unwrap_or_else(|| text.split('_').next().unwrap_or("node"));
    format!("{name}:{{{}}}", field.place)
}

/// A field that is a time, by its value and best also by its name.
fn time(fields: &[Field]) -> Option<(String, TimeFormat, Option<TimeUnit>)> {
    let mut found = BTreeMap::new();
    for field in fields {
        let named = ["ts", "time", "timestamp", "at", "date", "created", "when"].iter().any(|word| {
            field.name == *word || field.name.ends_with(&format!("_{word}")) || field.name.contains("time")
        });
        let kind = match &field.value {
            Value::String(text) if DateTime::parse_from_rfc3339(text).is_ok() => {
                Some((TimeFormat::Rfc3339, None))
            }
            Value::Number(number) => number.as_i64().and_then(|number| {
                let unit = TimeUnit::of_instant(EventTime(number));
                (named || unit.is_some()).then_some((TimeFormat::Integer, unit))
            }),
            _ => None,
        };
        if let Some((format, unit)) = kind {
            found.entry(!named).or_insert((field.place.clone(), format, unit));
        }
    }
    found.into_values().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::decode::DecodeOptions;
    use crate::ingest::mapping::{Mapping, MessageReader};

    /// What is proposed for a message, and the events that it then is.
    fn proposed(value: &str) -> (MappingOptions, usize) {
        let message = Message::of_value(value.as_bytes());
        let mut options = propose(&message).unwrap_or_else(|| panic!("nothing for {value}"));
        options.stream_unit = Some(TimeUnit::Milliseconds);
        let mapping = Mapping::compile(&options).unwrap();
        let reader = MessageReader::new(DecodeOptions::default(), Some(mapping.into()));
        let events = reader.read(&message).unwrap_or_else(|error| panic!("{value}: {error}"));
        (options, events.into_events().count())
    }

    #[test]
    fn shapes_that_teams_have_are_read_by_what_is_proposed() {
        let change = r#"{"before":null,"after":{"id":1,"user_id":7,"product_id":12,"price":"1.0"},
            "source":{"ts_ms":1769860800000},"op":"c"}"#;
        for value in [change.to_owned(), format!(r#"{{"schema":{{}},"payload":{change}}}"#)] {
            let (options, events) = proposed(&value);
            assert_eq!((options.envelope, events), (Envelope::Debezium, 1));
            assert_eq!(
                (&*options.src, &*options.dst),
                ("user:{/after/user_id}", "product:{/after/product_id}")
            );
        }
        let cloud = r#"{"specversion":"1.0","id":"1","source":"/w","type":"c","time":"2026-01-31T12:00:00Z",
            "data":{"userId":"mia","page":{"key":"home"}}}"#;
        let (options, events) = proposed(cloud);
        assert_eq!((options.envelope, events), (Envelope::CloudEvents, 1));
        assert_eq!((&*options.src, &*options.dst), ("/userId", "/page/key"));
        let nested =
            r#"{"created_at":"2026-01-31T12:00:00Z","customer":{"id":7},"items":[{"sku":"a"},{"sku":"b"}]}"#;
        let (options, events) = proposed(nested);
        assert_eq!(
            (&*options.each, &*options.src, &*options.dst),
            ("/items", "customer:{/customer/id}", "item:/sku")
        );
        assert_eq!((options.ts_format, events), (TimeFormat::Rfc3339, 2));
        let (options, _) = proposed(r#"{"timestamp":1700000000,"sender":"a","receiver_id":3}"#);
        assert_eq!((options.ts_unit, &*options.dst), (Some(TimeUnit::Seconds), "receiver:{/receiver_id}"));
    }

    #[test]
    fn nothing_is_proposed_where_nothing_is_seen() {
        for value in ["", "[]", "7", "{}", r#"{"a":1,"b":2}"#, r#"{"time":1700000000,"x":1}"#, "\u{0}"] {
            assert_eq!(propose(&Message::of_value(value.as_bytes())), None, "{value}");
        }
    }
}
