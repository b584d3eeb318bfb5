//! Events as they are pushed: JSON, bodies of many, rows of CSV files.

use std::path::Path;
use std::sync::Arc;

use evergraph::event::{BodyFormat, Event, NodeKey, TimeUnit};
use evergraph::ingest::body::{BodyError, cut_body};
use evergraph::ingest::csv::CsvReader;
use evergraph::ingest::decode::{DecodeOptions, Decoder, TEXT_BYTES_MAX, TIME_LIMIT, Tombstones};
use evergraph::ingest::file_error::FileError;
use evergraph::ingest::mapping::{
    Deletes, Envelope, Mapping, MappingOptions, Message, MessageReader, TimeFormat,
};
use evergraph::ingest::registry::{AvroSchema, Known, ProtobufSchema, Registry, Wire};
use evergraph::ingest::rejection::{Reason, Rejection};
use evergraph::ingest::rows::Rows;

use super::{Corpus, file};

const WORDS: &[&str] = &[
    "null",
    "true",
    "[]",
    "{}",
    "{\"src\":1}",
    ",\"op\":\"node\"",
    ",\"op\":\"delete\"",
    ",\"ts\":",
    ",\"features\":[",
    ",\"idempotency_key\":7",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\u{feff}",
    "\n",
    "1e5",
];

/// Where a rejection says that the fault is: a field, or a place in the text.
const PLACES: &[&str] = &[
    "src",
    "dst",
    "node",
    "ts",
    "features",
    "type",
    "label",
    "op",
    "idempotency_key",
    "key",
    "column",
    "bytes",
    "object",
    "each",
    "element",
    "specversion",
];

fn hold_key(key: &NodeKey) {
    if let NodeKey::Text(text) = key {
        assert!(!text.is_empty() && text.len() <= TEXT_BYTES_MAX, "a key of {} bytes", text.len());
    }
}

fn hold_row(row: &[f32]) {
    assert!(row.len() <= 4096 && row.iter().all(|value| value.is_finite()), "{row:?}");
}

fn hold_event(event: &Event) {
    let hold_time = |time: i64| assert!((-TIME_LIMIT..=TIME_LIMIT).contains(&time), "{time}");
    match event {
        Event::Edge(edge) => {
            hold_key(&edge.src);
            hold_key(&edge.dst);
            hold_time(edge.time.0);
            hold_row(&edge.features);
            assert!(edge.label.is_none_or(f32::is_finite), "{edge:?}");
            assert!(edge.edge_type.as_ref().is_none_or(|name| (1..=TEXT_BYTES_MAX).contains(&name.len())));
        }
        Event::DeleteEdge { src, dst, until } => {
            hold_key(src);
            hold_key(dst);
            until.iter().for_each(|time| hold_time(time.0));
        }
        Event::Node { key, time, features } => {
            hold_key(key);
            hold_time(time.0);
            hold_row(features);
        }
        Event::DeleteNode { key } => hold_key(key),
    }
}

fn hold_rejection(rejection: &Rejection) {
    let said = &rejection.detail;
    assert!(said.len() < 400, "a detail repeats the input: {} bytes", said.len());
    assert!(PLACES.iter().any(|place| said.contains(place)), "no place in {rejection}");
}

#[test]
fn an_event_is_one_or_is_refused_by_its_field() {
    let tombstones = Tombstones::DeleteNode;
    let decoder = Decoder::new(DecodeOptions { tombstones, ..DecodeOptions::default() });
    Corpus::read("event", WORDS).check(1, |bytes| {
        // The same bytes as the key of a deletion.
        match decoder.tombstone(Some(bytes)) {
            Ok(incoming) => hold_event(&incoming.expect("it is not ignored").event),
            Err(rejection) => hold_rejection(&rejection),
        }
        match decoder.event(bytes) {
            Ok(incoming) => {
                hold_event(&incoming.event);
                // Numbers of fields that are ignored may be out of any range.
                serde_json::from_slice::<serde::de::IgnoredAny>(bytes).expect("what is taken is JSON");
                true
            }
            Err(rejection) => {
                hold_rejection(&rejection);
                false
            }
        }
    });
}

/// A mapping of each kind of envelope, and one with many events.
fn mappings() -> [MappingOptions; 4] {
    let nested = MappingOptions {
        src: "user:{/user/id}".into(),
        dst: "{key:/id}".into(),
        ts: "/at".into(),
        edge_type: "/kind".into(),
        label: "/fraud".into(),
        features: vec!["/price".into(), "/vector".into()],
        idempotency_key: "/id".into(),
        ..MappingOptions::default()
    };
    let table = MappingOptions {
        envelope: Envelope::Debezium,
        src: "user:{/after/user_id}".into(),
        dst: "/after/product_id".into(),
        ts: "/source/ts_ms".into(),
        ts_unit: Some(TimeUnit::Milliseconds),
        stream_unit: Some(TimeUnit::Nanoseconds),
        deletes: Deletes::DeleteEdges,
        ..MappingOptions::default()
    };
    let cloud = MappingOptions {
        envelope: Envelope::CloudEvents,
        src: "/user".into(),
        dst: "attribute:subject".into(),
        ts: "attribute:time".into(),
        ts_format: TimeFormat::Rfc3339,
        stream_unit: Some(TimeUnit::Microseconds),
        ..MappingOptions::default()
    };
    let basket = MappingOptions {
        each: "/basket/items".into(),
        dst: "item:/sku".into(),
        features: vec!["item:/price".into()],
        ..nested.clone()
    };
    [nested, table, cloud, basket]
}

#[test]
fn a_mapped_message_is_events_or_is_refused_by_its_field_and_pointer() {
    let readers = mappings().map(|options| {
        MessageReader::new(DecodeOptions::default(), Some(Mapping::compile(&options).unwrap().into()))
    });
    let words = &[
        "null",
        "[]",
        "{}",
        "\"payload\":{",
        "\"data\":{",
        "\"after\":null,",
        "\"before\":{",
        "\"op\":\"d\",",
        "\"items\":[{}],",
        "\"user\":{\"id\":1},",
        "\"id\":",
        "\"\\ud800\"",
        "1e5",
        "2026-13-01T00:00:00Z",
        "9999-12-31T23:59:60Z",
    ];
    Corpus::read("mapping", words).check(1, |bytes| {
        let mut taken = false;
        for reader in &readers {
            // The same bytes as the key.
            let message = Message { key: Some(bytes), ..Message::of_value(bytes) };
            match reader.read(&message) {
                Ok(events) => {
                    events.into_events().for_each(|incoming| hold_event(&incoming.event));
                    serde_json::from_slice::<serde::de::IgnoredAny>(bytes).expect("what is taken is JSON");
                    taken = true;
                }
                Err(rejection) => hold_rejection(&rejection),
            }
        }
        taken
    });
}

/// A schema in the first line, and behind it the places of a message, and what was written by that.
#[test]
fn a_value_of_protobuf_is_json_within_bounds_or_is_refused_whatever_its_schema_is() {
    const BYTES_MAX: usize = 64 << 10;
    let words = &[
        "syntax = \"proto3\";",
        "message A {",
        "repeated string a = 1;",
        "map<string, A> b = 2;",
        "optional bytes c = 3;",
        "google.protobuf.Any d = 4;",
        "import \"google/protobuf/any.proto\";",
        "oneof e {",
        "enum F { G = 0; }",
        "option deprecated = true;",
        "reserved 1 to max;",
        "extensions 5;",
        "\n",
    ];
    Corpus::read("protobuf", words).check(1, |bytes| {
        let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let Ok(schema) = std::str::from_utf8(&bytes[..cut]) else { return false };
        let schema = match ProtobufSchema::parse(schema, &[]) {
            Ok(schema) => schema,
            Err(why) => {
                assert!(!why.is_empty());
                return false;
            }
        };
        match schema.to_json(bytes.get(cut + 1..).unwrap_or_default(), BYTES_MAX) {
            Ok(text) => {
                assert!(text.len() <= BYTES_MAX, "{} bytes", text.len());
                serde_json::from_slice::<serde::de::IgnoredAny>(&text).expect("what is taken is JSON");
                true
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                false
            }
        }
    });
}

/// A schema in the first line, and behind it what was written by that schema. Whether it is an event or not, it is the
/// same as its text.
#[test]
fn a_value_of_avro_is_json_within_bounds_or_is_refused_whatever_its_schema_is() {
    const BYTES_MAX: usize = 64 << 10;
    let words = &[
        "\"null\"",
        "\"string\"",
        "[\"null\",\"long\"]",
        "{\"type\":\"array\",\"items\":\"null\"}",
        "{\"type\":\"map\",\"values\":\"bytes\"}",
        "{\"type\":\"fixed\",\"name\":\"X\",\"size\":",
        "\"logicalType\":\"decimal\",\"precision\":4,\"scale\":2,",
        "\"logicalType\":\"big-decimal\",",
        "\"logicalType\":\"duration\",",
        "\"namespace\":\"a.b\",",
        "\"Value\"",
        "\n",
    ];
    Corpus::read("avro", words).check(1, |bytes| {
        let cut = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        let Ok(schema) = std::str::from_utf8(&bytes[..cut]) else { return false };
        let schema = match AvroSchema::parse(schema, &[]) {
            Ok(schema) => schema,
            Err(why) => {
                assert!(!why.is_empty());
                return false;
            }
        };
        let wire = Wire::BySchema(Arc::new(Registry::of_schemas([(1, Known::Avro(schema))])));
        let plain = MessageReader::new(
            DecodeOptions { max_event_bytes: BYTES_MAX, ..DecodeOptions::default() },
            None,
        );
        let reader = plain.clone().with_wire(Some(wire));
        let value = [&[0, 0, 0, 0, 1][..], bytes.get(cut + 1..).unwrap_or_default()].concat();
        let event = reader.read(&Message::of_value(&value));
        match reader.text(&value) {
            Ok(text) => {
                assert!(text.len() <= BYTES_MAX, "{} bytes", text.len());
                serde_json::from_slice::<serde::de::IgnoredAny>(&text).expect("what is taken is JSON");
                let expected = plain.read(&Message::of_value(&text));
                assert_eq!(event.is_ok(), expected.is_ok(), "{event:?}, and as text {expected:?}");
                true
            }
            Err(rejection) => {
                assert!(!rejection.detail.is_empty());
                assert!(rejection.reason == Reason::TooLarge || event.is_err(), "{rejection}, and {event:?}");
                false
            }
        }
    });
}

/// Plain events, and rows that a mapping takes apart.
#[test]
fn a_parquet_file_is_events_within_bounds_or_is_refused() {
    let nested = MappingOptions {
        each: "/items".into(),
        src: "/user/id".into(),
        dst: "item:/sku".into(),
        ts: "/at".into(),
        features: vec!["item:/price".into()],
        ..MappingOptions::default()
    };
    let nested = Arc::new(Mapping::compile(&nested).unwrap());
    let read = |path: &Path, mapping| -> Result<(), FileError> {
        let mut rows = Rows::open(path, DecodeOptions::default(), mapping)?;
        while let Some(row) = rows.next_row()? {
            match row {
                Ok(decoded) => decoded.into_events().for_each(|incoming| hold_event(&incoming.event)),
                Err(rejection) => assert!(rejection.detail.contains("row"), "{rejection}"),
            }
        }
        Ok(())
    };
    Corpus::read("parquet", &["PAR1", "\u{15}\u{2}\u{19}", "f0", "src", "items"]).check(1, |bytes| {
        let file = file(bytes, ".parquet");
        let outcomes = [None, Some(Arc::clone(&nested))].map(|mapping| read(file.path(), mapping));
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            assert!(error.to_string().contains("hostile-"), "{error}");
        }
        outcomes.iter().any(Result::is_ok)
    });
}

/// Most events of a body.
const EVENTS_MAX: usize = 16;

/// Cuts a body into messages and reads each, plain ones and through a mapping, as what is pushed is.
fn body_is_taken(bytes: &[u8], format: BodyFormat) -> bool {
    let messages = match cut_body(bytes, format, EVENTS_MAX) {
        Ok(messages) => messages,
        Err(BodyError::TooMany) => return false,
        Err(BodyError::Malformed(said)) => {
            assert!(said.len() < 300, "the body is repeated: {} bytes", said.len());
            let placed = ["column", "empty", "expected"].iter().any(|place| said.contains(place));
            assert!(placed, "no place in {said}");
            return false;
        }
    };
    assert!(messages.len() <= EVENTS_MAX);
    let inside = bytes.as_ptr_range();
    let mapped = MappingOptions {
        src: "/src".into(),
        dst: "thing:{/dst}".into(),
        ts: "/ts".into(),
        ..MappingOptions::default()
    };
    let mapped = Arc::new(Mapping::compile(&mapped).unwrap());
    let readers = [None, Some(mapped)].map(|mapping| MessageReader::new(DecodeOptions::default(), mapping));
    for (message, reader) in
        messages.iter().flat_map(|message| readers.iter().map(move |reader| (message, reader)))
    {
        let raw = message.as_ptr_range();
        assert!(
            inside.start <= raw.start && raw.end <= inside.end,
            "a message's bytes are those of the body"
        );
        match reader.read(&Message::of_value(message)) {
            Ok(decoded) => decoded.into_events().for_each(|incoming| hold_event(&incoming.event)),
            Err(rejection) => hold_rejection(&rejection),
        }
    }
    true
}

#[test]
fn a_body_of_json_is_events_or_is_refused_with_a_place() {
    Corpus::read("body-json", WORDS).check(1, |bytes| body_is_taken(bytes, BodyFormat::Json));
}

#[test]
fn a_body_of_lines_is_events_line_by_line() {
    Corpus::read("body-lines", WORDS).check(1, |bytes| body_is_taken(bytes, BodyFormat::JsonLines));
}

#[test]
fn a_file_of_rows_is_read_to_its_end_and_each_bad_row_is_named() {
    let words = &[
        "src", "dst", "ts", "f0", "f1", "type", "label", ",", ",,", "\"", "\"\"", "\r\n", "\n\n", "\u{feff}",
    ];
    Corpus::read("csv", words).check(2, |bytes| {
        let file = file(bytes, ".csv");
        let path = file.path().to_str().unwrap();
        let reader = match CsvReader::open(file.path()) {
            Ok(reader) => reader,
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains(path), "{said}");
                return false;
            }
        };
        let (mut bad, mut rows) = (0, 0);
        for row in reader {
            rows += 1;
            match row {
                Ok(edge) => {
                    hold_row(&edge.features);
                    assert!(edge.label.is_none_or(f32::is_finite), "{edge:?}");
                }
                Err(error) => {
                    bad += 1;
                    let said = error.to_string();
                    assert!(said.contains(path) && said.contains("line"), "{said}");
                    assert!(said.len() < 500, "the row is repeated: {} bytes", said.len());
                }
            }
        }
        assert!(rows <= 2_000_000, "{rows} rows of {} bytes", bytes.len());
        bad == 0
    });
}
