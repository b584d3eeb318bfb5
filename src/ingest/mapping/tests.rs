//! Messages of all envelopes, hostile and mistaken ones, and any JSON against pointers of `serde_json`.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::event::{EdgeEvent, Event, EventTime, Incoming, TimeUnit};
use crate::ingest::decode::{DecodeOptions, hash_idempotency_key};
use crate::ingest::registry::{AvroSchema, Known, Registry, Wire};
use crate::ingest::rejection::Reason;

fn options() -> MappingOptions {
    MappingOptions { src: "/src".into(), dst: "/dst".into(), ts: "/ts".into(), ..MappingOptions::default() }
}

/// Messages such as `{"id": 1, "at": [5, 6]}`: an edge at each of the times.
pub(in crate::ingest) fn each_time() -> std::sync::Arc<Mapping> {
    let options = MappingOptions {
        each: "/at".into(),
        src: "/id".into(),
        dst: "const:b".into(),
        ts: "item:".into(),
        ..MappingOptions::default()
    };
    Mapping::compile(&options).unwrap().into()
}

fn reader(options: &MappingOptions) -> MessageReader {
    MessageReader::new(DecodeOptions::default(), Some(Mapping::compile(options).unwrap().into()))
}

fn read(options: &MappingOptions, value: &str) -> Result<Vec<Incoming>, Rejection> {
    reader(options).read(&Message::of_value(value.as_bytes())).map(|decoded| decoded.into_events().collect())
}

fn event(options: &MappingOptions, value: &str) -> Event {
    let mut events = read(options, value).unwrap();
    assert_eq!(events.len(), 1, "{value}");
    events.remove(0).event
}

fn edge(src: &str, dst: &str, time: i64) -> EdgeEvent {
    let (src, dst, time) = (src.into(), dst.into(), EventTime(time));
    EdgeEvent { src, dst, time, edge_type: None, features: Vec::new(), label: None }
}

fn nested() -> MappingOptions {
    MappingOptions {
        src: "user:{/user/id}".into(),
        dst: "shop:{/shop/0/id}".into(),
        ts: "/at".into(),
        edge_type: "/kind".into(),
        label: "/fraud".into(),
        idempotency_key: "/id".into(),
        features: vec!["/price".into(), "/vector".into()],
        ..options()
    }
}

#[test]
fn nested_fields_templates_and_rows_are_read() {
    let value = r#"{"more":{"user":{"id":9}},"user":{"name":"x","id":7},"shop":[{"id":"a"},{"id":"b"}],"at":5,
        "kind":"buys","fraud":"1","id":"order-1","price":"12.50","vector":[1,-2.5]}"#;
    let events = read(&nested(), value).unwrap();
    let expected = EdgeEvent {
        edge_type: Some("buys".into()),
        features: vec![12.5, 1.0, -2.5],
        label: Some(1.0),
        ..edge("user:7", "shop:a", 5)
    };
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].event, Event::Edge(expected));
    assert_eq!(events[0].idempotency, Some(hash_idempotency_key("order-1")));
    let plain = r#"{"user":{"id":7},"shop":[{"id":"a"}],"at":5}"#;
    assert_eq!(event(&nested(), plain), Event::Edge(edge("user:7", "shop:a", 5)));
}

#[test]
fn a_mapping_of_our_own_shape_reads_what_the_plain_decoder_reads() {
    let own = MappingOptions {
        op: "/op".into(),
        edge_type: "/type".into(),
        label: "/label".into(),
        features: vec!["/features".into()],
        idempotency_key: "/idempotency_key".into(),
        deletes: Deletes::DeleteEdges,
        ..options()
    };
    let mapped = reader(&own);
    let plain = MessageReader::new(DecodeOptions::default(), None);
    for text in [
        r#"{"src":"a","dst":"b","ts":5}"#,
        r#"{"src":1,"dst":18446744073709551615,"ts":-5,"features":[0.5,1],"type":"pays","label":0}"#,
        r#"{"src":"7","dst":"\u00e9\"","ts":0,"idempotency_key":7,"op":"upsert","more":{"src":8}}"#,
        r#"{"op":"delete","src":1,"dst":2,"ts":9}"#,
        r#"{"op":"node","src":"x","ts":3,"features":[0.5]}"#,
    ] {
        let message = Message::of_value(text.as_bytes());
        assert_eq!(mapped.read(&message), plain.read(&message), "{text}");
    }
}

#[test]
fn one_message_is_many_events_with_a_key_each() {
    let basket = MappingOptions {
        each: "/basket/items".into(),
        src: "user:{/user}".into(),
        dst: "item:/sku".into(),
        ts: "/at".into(),
        features: vec!["item:/price".into()],
        idempotency_key: "/id".into(),
        ..MappingOptions::default()
    };
    // What stands behind the array counts as well.
    let value =
        r#"{"basket":{"items":[{"sku":"a","price":1},{"price":2,"sku":"b"}]},"user":1,"at":9,"id":"x"}"#;
    let events = read(&basket, value).unwrap();
    let expected = [("a", 1.0), ("b", 2.0)]
        .map(|(sku, price)| Event::Edge(EdgeEvent { features: vec![price], ..edge("user:1", sku, 9) }));
    assert_eq!(events.iter().map(|incoming| incoming.event.clone()).collect::<Vec<_>>(), expected);
    assert_ne!(events[0].idempotency, events[1].idempotency);
    assert_eq!(read(&basket, r#"{"basket":{"items":[]},"user":1,"at":9}"#).unwrap(), []);
    let own = MappingOptions { idempotency_key: "item:/sku".into(), ..basket.clone() };
    assert_eq!(read(&own, value).unwrap()[0].idempotency, Some(hash_idempotency_key("a")));
    let whole = MappingOptions { dst: "product:{item:}".into(), features: Vec::new(), ..basket.clone() };
    let ids = read(&whole, r#"{"basket":{"items":[4,"x"]},"user":1,"at":9}"#).unwrap();
    assert_eq!(ids[0].event, Event::Edge(edge("user:1", "product:4", 9)));

    let bad = read(&basket, r#"{"basket":{"items":[{"sku":"a","price":1},{"price":1}]},"user":1,"at":9}"#);
    assert_eq!(
        bad.unwrap_err().to_string(),
        "missing_field: element 1 of /basket/items: dst (item:/sku) is missing: the element has no sku"
    );
    let none = read(&basket, r#"{"basket":{"items":{}},"user":1,"at":9}"#).unwrap_err();
    assert_eq!(
        none.to_string(),
        "wrong_type: each (/basket/items) is missing: it is an object; send an array"
    );
    let many = format!(r#"{{"basket":{{"items":[{}1]}}}}"#, "1,".repeat(10_000));
    assert_eq!(read(&whole, &many).unwrap_err().reason, Reason::TooLarge);
}

fn debezium(deletes: Deletes) -> MappingOptions {
    MappingOptions {
        envelope: Envelope::Debezium,
        src: "user:{/after/user_id}".into(),
        dst: "product:{/after/product_id}".into(),
        ts: "/source/ts_ms".into(),
        deletes,
        ..MappingOptions::default()
    }
}

#[test]
fn changes_of_debezium_are_events_with_and_without_their_schema() {
    let row = r#"{"id":1,"user_id":7,"product_id":"p"}"#;
    let change = |op: &str, before: &str, after: &str| {
        format!(
            r#"{{"before":{before},"after":{after},"source":{{"ts_ms":40,"table":"orders"}},"op":"{op}","ts_ms":50}}"#
        )
    };
    let expected = Event::Edge(edge("user:7", "product:p", 40));
    for op in ["c", "r", "u"] {
        let plain = change(op, "null", row);
        let wrapped =
            format!(r#"{{"schema":{{"type":"struct","fields":[{{"field":"after"}}]}},"payload":{plain}}}"#);
        assert_eq!(event(&debezium(Deletes::DeadLetter), &plain), expected);
        assert_eq!(event(&debezium(Deletes::DeadLetter), &wrapped), expected);
    }
    let deletion = change("d", row, "null");
    assert_eq!(read(&debezium(Deletes::Ignore), &deletion).unwrap(), []);
    let (src, dst, until) = ("user:7".into(), "product:p".into(), Some(EventTime(40)));
    assert_eq!(event(&debezium(Deletes::DeleteEdges), &deletion), Event::DeleteEdge { src, dst, until });
    assert_eq!(event(&debezium(Deletes::DeleteNode), &deletion), Event::DeleteNode { key: "user:7".into() });
    assert_eq!(read(&debezium(Deletes::DeadLetter), &deletion).unwrap_err().reason, Reason::Deletion);

    let refused = |value: &str| read(&debezium(Deletes::DeleteEdges), value).unwrap_err().to_string();
    assert_eq!(
        refused(&change("d", "null", "null")),
        "missing_field: src (user:{/after/user_id}) is missing: /before is null"
    );
    assert!(refused(&change("t", "null", "null")).contains("unknown_op: op is \"t\""));
    assert!(refused(r#"{"src":1}"#).contains("op is missing: the value is no change of Debezium"));
    assert!(refused("[]").contains("op is missing"));
    assert!(
        refused(&change("c", "null", r#"{"user_id":1.5,"product_id":1}"#))
            .contains("/after/user_id is the number 1.5")
    );
}

#[test]
fn the_key_of_a_message_is_read_whole_or_in_parts() {
    let read = |src: &str, envelope, key: Option<&[u8]>| {
        let options =
            MappingOptions { src: src.into(), dst: "/d".into(), ts: "/t".into(), envelope, ..options() };
        let value = br#"{"d":2,"t":3,"op":"c"}"#;
        let message = Message { key, ..Message::of_value(value) };
        let mut events = reader(&options).read(&message).map(Decoded::into_events)?;
        Ok::<_, Rejection>(events.next().unwrap().event)
    };
    let expected = |src: &str| Ok(Event::Edge(edge(src, "2", 3)));
    for (source, key, src) in [
        ("key:", &b"alice"[..], "alice"),
        ("key:", b"\"alice\"", "alice"),
        ("key:", b"42", "42"),
        ("key:/id", br#"{"id":7}"#, "7"),
        ("u:{key:}", b"x", "u:x"),
    ] {
        assert_eq!(read(source, Envelope::None, Some(key)), expected(src), "{source}");
    }
    let wrapped = br#"{"schema":{},"payload":{"id":7}}"#;
    assert_eq!(read("key:/id", Envelope::Debezium, Some(wrapped)), expected("7"));
    let refused = |key: Option<&[u8]>| read("key:/id", Envelope::None, key).unwrap_err().to_string();
    assert!(refused(None).contains("src (key:/id) is missing: the key is null"), "{}", refused(None));
    assert!(refused(Some(b"alice")).contains("the key of the message: expected value"));
    assert!(read("key:", Envelope::None, Some(b"\xff")).is_err());
}

#[test]
fn a_cloud_event_is_read_in_binary_and_in_structured_mode() {
    let options = MappingOptions {
        envelope: Envelope::CloudEvents,
        src: "/user".into(),
        dst: "/page".into(),
        ts: "attribute:time".into(),
        ts_format: TimeFormat::Rfc3339,
        stream_unit: Some(TimeUnit::Milliseconds),
        edge_type: "attribute:type".into(),
        idempotency_key: "{attribute:source} {attribute:id}".into(),
        ..MappingOptions::default()
    };
    let expected = EdgeEvent { edge_type: Some("click".into()), ..edge("7", "/home", 1_500) };
    let structured = r#"{"specversion":"1.0","id":"1","source":"/web","type":"click","time":"1970-01-01T00:00:01.5Z",
        "data":{"user":7,"page":"/home"}}"#;
    let key = Some(hash_idempotency_key("/web 1"));
    let events = read(&options, structured).unwrap();
    assert_eq!((&events[0].event, events[0].idempotency), (&Event::Edge(expected.clone()), key));

    fn header(name: &str) -> Option<&'static [u8]> {
        Some(match name {
            "ce_specversion" => b"1.0",
            "ce_id" => b"1",
            "ce_source" => b"/web",
            "ce_type" => b"click",
            "ce_time" => b"1970-01-01T00:00:01.500Z",
            "content-type" => b"application/json",
            _ => return None,
        })
    }
    let message = Message { header: &header, ..Message::of_value(br#"{"user":7,"page":"/home"}"#) };
    let events: Vec<_> = reader(&options).read(&message).unwrap().into_events().collect();
    assert_eq!((&events[0].event, events[0].idempotency), (&Event::Edge(expected), key));

    let refused = |value: &str| read(&options, value).unwrap_err().to_string();
    assert!(refused(r#"{"user":7}"#).contains("specversion is missing"));
    let encoded = r#"{"specversion":"1.0","data_base64":"e30="}"#;
    assert!(refused(encoded).contains("src (/user) is missing"), "{}", refused(encoded));
}

#[test]
fn headers_and_constants_are_texts() {
    let options = MappingOptions {
        src: "header:User".into(),
        dst: "const:front page".into(),
        ts: "header:at".into(),
        ..MappingOptions::default()
    };
    fn header(name: &str) -> Option<&'static [u8]> {
        Some(match name {
            "User" => b"7",
            "at" => b"99",
            _ => return None,
        })
    }
    let message = Message { header: &header, ..Message::of_value(b"{}") };
    let mut events = reader(&options).read(&message).unwrap().into_events();
    assert_eq!(events.next().unwrap().event, Event::Edge(edge("7", "front page", 99)));
    let bare = reader(&options).read(&Message::of_value(b"{}")).unwrap_err();
    assert_eq!(bare.to_string(), "missing_field: src (header:User) is missing");
}

#[test]
fn hostile_and_mistaken_messages_are_named() {
    let long = "x".repeat(1025);
    let deep = format!(r#"{{"user":{}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let with = |part: &str| format!(r#"{{"user":{{"id":1}},"shop":[{{"id":2}}],"at":3,{part}}}"#);
    let table: &[(String, Reason, &str)] = &[
        (String::new(), Reason::MalformedJson, "EOF"),
        ("null".into(), Reason::MissingField, "src (user:{/user/id}) is missing: the value is null"),
        ("[1]".into(), Reason::MissingField, "the value is an array"),
        ("{}".into(), Reason::MissingField, "the value has no user"),
        (r#"{"user":{}}"#.into(), Reason::MissingField, "/user has no id"),
        (r#"{"user":{"id":null}}"#.into(), Reason::MissingField, "/user/id is null"),
        (r#"{"user":"x"}"#.into(), Reason::MissingField, "/user is the text \"x\""),
        (r#"{"user":{"id":[]}}"#.into(), Reason::WrongType, "/user/id is an array"),
        (r#"{"user":{"id":1e3}}"#.into(), Reason::WrongType, "/user/id is the number 1000.0"),
        (r#"{"user":{"id":99999999999999999999}}"#.into(), Reason::WrongType, "/user/id is the number 1e20"),
        (r#"{"user":{"id":NaN}}"#.into(), Reason::MalformedJson, "line 1"),
        (r#"{"user":{"id":"\ud800"}}"#.into(), Reason::MalformedJson, "hex escape"),
        (r#"{"user":{"id":1},"user":{"id":2}}"#.into(), Reason::MalformedJson, "duplicate field /user"),
        (r#"{"user":{"id":1,"id":1}}"#.into(), Reason::MalformedJson, "duplicate field /user/id"),
        (format!(r#"{{"user":{{"id":"{long}"}},"shop":[{{"id":2}}],"at":3}}"#), Reason::BadId, "1030 bytes"),
        (deep, Reason::MissingField, "/user is an array"),
        (with(r#""price":1"#), Reason::BadFeatures, "features (/vector) is missing"),
        (
            with(r#""vector":[1,"2"],"price":1"#),
            Reason::BadFeatures,
            "features (/vector): element 1 is the text",
        ),
        (with(r#""price":"cheap""#), Reason::BadFeatures, "features (/price) is the text \"cheap\""),
        (with(r#""price":"1e999""#), Reason::BadFeatures, "features (/price)"),
        (with(r#""kind":{}"#), Reason::WrongType, "type (/kind) is an object"),
        (with(r#""fraud":"no""#), Reason::BadLabel, "label (/fraud)"),
        (with(r#""id":""#.to_owned().as_str()), Reason::MalformedJson, "line 1"),
        (with(r#""id":1.5"#), Reason::WrongType, "idempotency_key (/id)"),
        (
            r#"{"user":{"id":1},"shop":[{"id":2}],"at":"soon"}"#.into(),
            Reason::BadTime,
            "ts (/at) is the text \"soon\"",
        ),
        (r#"{"user":{"id":1},"shop":[{"id":2}],"at":9223372036854775807}"#.into(), Reason::BadTime, "2^62"),
        (
            r#"{"user":{"id":1},"shop":[{"id":2}]}"#.into(),
            Reason::MissingField,
            "ts (/at) is missing: the value has no at",
        ),
        (
            r#"{"user":{"id":1},"shop":[]}"#.into(),
            Reason::MissingField,
            "dst (shop:{/shop/0/id}) is missing: /shop is an array",
        ),
    ];
    for (value, reason, part) in table {
        let shown: String = value.chars().take(80).collect();
        let rejection = read(&nested(), value).unwrap_err();
        assert_eq!(rejection.reason, *reason, "{shown}: {rejection}");
        assert!(rejection.detail.contains(part), "{shown}: {rejection}");
        assert!(rejection.detail.len() < 300, "{shown}: a detail does not repeat the input");
    }
    let ignored = format!(
        r#"{{"user":{{"id":1,"x":{}1{}}},"shop":[{{"id":2}}],"at":3}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert!(read(&nested(), &ignored).is_ok(), "what is ignored may be deep");
}

#[test]
fn settings_that_cannot_be_used_are_named_with_their_key() {
    let key = |options: MappingOptions| Mapping::compile(&options).unwrap_err().key;
    assert_eq!(key(MappingOptions { src: String::new(), ..options() }), "src");
    assert_eq!(key(MappingOptions { dst: String::new(), ..options() }), "dst");
    assert_eq!(key(MappingOptions { ts: "ts".into(), ..options() }), "ts");
    assert_eq!(key(MappingOptions { each: "items".into(), ..options() }), "each");
    assert_eq!(key(MappingOptions { each: "/a".into(), src: "/a/0".into(), ..options() }), "each");
    assert_eq!(key(MappingOptions { features: vec!["/a".into(), "/a/0".into()], ..options() }), "features");
    assert_eq!(key(MappingOptions { features: vec![String::new()], ..options() }), "features");
    assert_eq!(key(MappingOptions { ts_format: TimeFormat::Rfc3339, ..options() }), "ts_format");
    assert_eq!(key(MappingOptions { ts_unit: Some(TimeUnit::Seconds), ..options() }), "ts_unit");
    let nodes = MappingOptions { op: "const:node".into(), dst: String::new(), ..options() };
    assert!(Mapping::compile(&nodes).is_ok(), "nodes have no destination");
}

/// JSON values of any kind, with names that a mapping reads among others.
fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "[a-z0-9.:-]{0,8}".prop_map(Into::into),
        Just("c".into()),
        Just("d".into()),
        Just("1970-01-01T00:00:01.5Z".into()),
    ];
    let name = prop::sample::select(vec![
        "user",
        "id",
        "shop",
        "at",
        "price",
        "vector",
        "payload",
        "after",
        "before",
        "op",
        "source",
        "ts_ms",
        "data",
        "specversion",
        "time",
        "items",
        "sku",
        "x",
    ]);
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((name.clone(), inner), 0..6).prop_map(|fields| {
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }),
        ]
    })
}

fn mappings() -> Vec<MappingOptions> {
    let cloud = MappingOptions {
        envelope: Envelope::CloudEvents,
        ts: "attribute:time".into(),
        ts_format: TimeFormat::Rfc3339,
        stream_unit: Some(TimeUnit::Nanoseconds),
        src: "/user/id".into(),
        ..nested()
    };
    let basket =
        MappingOptions { each: "/items".into(), dst: "{item:/sku}".into(), ts: "/at".into(), ..options() };
    vec![nested(), debezium(Deletes::DeleteEdges), cloud, MappingOptions { src: "/user/id".into(), ..basket }]
}

/// A schema of Avro for just this value, and the value as it is written by that schema. Its records are numbered.
fn as_avro(value: &serde_json::Value, records: &mut usize) -> (serde_json::Value, Vec<u8>) {
    use serde_json::{Value, json};
    let number = |number: i64| {
        let (mut rest, mut bytes) = (((number << 1) ^ (number >> 63)) as u64, Vec::new());
        while rest > 127 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
        bytes
    };
    match value {
        Value::Null => (json!("null"), Vec::new()),
        Value::Bool(is) => (json!("boolean"), vec![u8::from(*is)]),
        Value::Number(of) => match of.as_i64() {
            Some(of) => (json!("long"), number(of)),
            None => (json!("double"), of.as_f64().unwrap().to_le_bytes().to_vec()),
        },
        Value::String(text) => (json!("string"), [number(text.len() as i64), text.clone().into()].concat()),
        Value::Array(items) => {
            let parts: Vec<_> = items.iter().map(|item| as_avro(item, records)).collect();
            let mut bytes = if parts.is_empty() { Vec::new() } else { number(parts.len() as i64) };
            for (branch, (_, item)) in parts.iter().enumerate() {
                bytes.extend([number(branch as i64), item.clone()].concat());
            }
            bytes.push(0);
            let branches: Vec<_> = parts.into_iter().map(|(schema, _)| schema).collect();
            (json!({"type": "array", "items": branches}), bytes)
        }
        Value::Object(fields) => {
            *records += 1;
            let name = format!("R{records}");
            let (mut list, mut bytes) = (Vec::new(), Vec::new());
            for (name, field) in fields {
                let (schema, field) = as_avro(field, records);
                list.push(json!({"name": name, "type": schema}));
                bytes.extend(field);
            }
            (json!({"type": "record", "name": name, "fields": list}), bytes)
        }
    }
}

/// Reads a value as Avro, by a schema of its own.
fn read_avro(
    options: Option<&MappingOptions>,
    value: &serde_json::Value,
) -> Result<Vec<Incoming>, Rejection> {
    let (schema, bytes) = as_avro(value, &mut 0);
    let schema = AvroSchema::parse(&schema.to_string(), &[]).unwrap();
    let wire = Wire::BySchema(Arc::new(Registry::of_schemas([(1, Known::Avro(schema))])));
    let message = [&[0, 0, 0, 0, 1][..], &bytes].concat();
    let reader = options.map_or_else(MessageReader::default, reader).with_wire(Some(wire));
    reader.read(&Message::of_value(&message)).map(|decoded| decoded.into_events().collect())
}

#[test]
fn plain_events_may_be_written_as_avro() {
    let event =
        serde_json::json!({"src": "a", "dst": 7, "ts": 5, "features": [0.5, 2], "type": "pays", "more": {}});
    let plain = MessageReader::default().read(&Message::of_value(event.to_string().as_bytes())).unwrap();
    assert_eq!(read_avro(None, &event).unwrap(), plain.into_events().collect::<Vec<_>>());
    let list = serde_json::json!(["a", 7, null, 5]);
    let refused = read_avro(None, &list).unwrap_err();
    assert_eq!(refused.reason, Reason::WrongType);
    assert!(
        refused.detail.contains("written by schema 1") && refused.detail.contains("a record"),
        "{refused}"
    );
}

proptest! {
    #[test]
    fn a_value_is_the_same_events_as_json_and_as_avro(value in any_json()) {
        for options in mappings() {
            match (read(&options, &value.to_string()), read_avro(Some(&options), &value)) {
                (Ok(json), Ok(avro)) => prop_assert_eq!(json, avro),
                // Texts of floats may differ in their last digit.
                (Err(json), Err(avro)) => {
                    // A text with a field twice is malformed; of Avro a mapping does not take it.
                    let of_seed = json.reason == Reason::MalformedJson && avro.reason == Reason::WrongType;
                    prop_assert!(json.reason == avro.reason || of_seed, "{json}, {avro}");
                }
                (json, avro) => prop_assert!(false, "{json:?} as JSON, {avro:?} as Avro"),
            }
        }
    }

    #[test]
    fn any_message_is_events_within_the_bounds_or_named(value in any_json()) {
        for options in mappings() {
            match read(&options, &value.to_string()) {
                Ok(events) => for incoming in events {
                    if let Event::Edge(edge) = incoming.event {
                        prop_assert!(edge.features.iter().all(|feature| feature.is_finite()));
                        prop_assert!((-(1 << 62)..=1 << 62).contains(&edge.time.0));
                    }
                },
                Err(rejection) => prop_assert!(!rejection.detail.is_empty()),
            }
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for options in mappings() {
            let message = Message { key: Some(&bytes), ..Message::of_value(&bytes) };
            let _ = reader(&options).read(&message);
        }
    }

    #[test]
    fn what_is_found_is_what_a_pointer_of_serde_json_finds(value in any_json()) {
        let (src, dst, ts) = ("/user/id".into(), "const:x".into(), "const:0".into());
        let options = MappingOptions { src, dst, ts, ..options() };
        let found = value.pointer("/user/id");
        match read(&options, &value.to_string()) {
            Ok(events) => {
                let Event::Edge(edge) = &events[0].event else { panic!("{events:?}") };
                let found = found.unwrap();
                let text = found.as_str().map_or_else(|| found.to_string(), str::to_owned);
                prop_assert_eq!(&edge.src, &crate::event::NodeKey::from_text(&text));
            }
            Err(rejection) => match found {
                None | Some(serde_json::Value::Null) => prop_assert_eq!(rejection.reason, Reason::MissingField),
                Some(_) => prop_assert_eq!(rejection.reason, Reason::BadId),
            },
        }
    }
}

#[test]
fn a_deletion_of_edges_has_a_time() {
    let deleting = MappingOptions { op: "/op".into(), deletes: Deletes::DeleteEdges, ..options() };
    for text in [r#"{"op":"d","src":1,"dst":2}"#, r#"{"op":"d","src":1,"dst":2,"ts":null}"#] {
        let refused = read(&deleting, text).unwrap_err();
        assert_eq!(refused.reason, Reason::MissingField, "{text}: {refused}");
        assert!(refused.detail.contains("ts (/ts) is missing"), "{text}: {refused}");
    }
}

#[test]
fn an_empty_text_in_a_template_is_no_name_of_a_node() {
    let refused = |value: &str| read(&nested(), value).unwrap_err().to_string();
    assert_eq!(
        refused(r#"{"user":{"id":""},"shop":[{"id":"a"}],"at":5}"#),
        "missing_field: src (user:{/user/id}) is missing: /user/id is empty"
    );
    assert_eq!(
        refused(r#"{"user":{"id":7},"shop":[{"id":""}],"at":5}"#),
        "missing_field: dst (shop:{/shop/0/id}) is missing: /shop/0/id is empty"
    );
    let keyed = MappingOptions { src: "{header:a}:{/src}".into(), ..options() };
    let header = |_: &str| Some(&b""[..]);
    let message = Message { key: None, value: br#"{"src":1,"dst":2,"ts":0}"#, header: &header };
    let refused = reader(&keyed).read(&message).unwrap_err();
    assert!(refused.detail.ends_with("header:a is empty"), "{refused}");
}

#[test]
fn a_row_of_the_message_is_checked_before_each_element_has_a_copy() {
    let each = MappingOptions {
        each: "/items".into(),
        dst: "item:".into(),
        features: vec!["/row".into()],
        ..options()
    };
    let message = |elements: usize, numbers: usize| {
        let (items, row) = (vec![1; elements], vec![0; numbers]);
        format!("{{\"src\":1,\"ts\":0,\"items\":{items:?},\"row\":{row:?}}}")
    };
    let with = |edge_features, text: &str| {
        let bounds = DecodeOptions { edge_features, ..DecodeOptions::default() };
        let reader = MessageReader::new(bounds, Some(Mapping::compile(&each).unwrap().into()));
        reader
            .read(&Message::of_value(text.as_bytes()))
            .map(|decoded| decoded.into_events().count())
            .map_err(|refused| refused.reason)
    };
    assert_eq!(with(Some(3), &message(4, 3)), Ok(4));
    assert_eq!(with(Some(3), &message(4, 0)), Ok(4), "a row may be missing");
    assert_eq!(with(Some(3), &message(4, 4)), Err(Reason::FeatureDimension));
    assert_eq!(with(Some(0), &message(4, 1)), Err(Reason::FeatureDimension));
    assert_eq!(with(Some(4096), &message(256, 4096)), Ok(256));
    assert_eq!(with(Some(4096), &message(257, 4096)), Err(Reason::TooLarge));
}
