//! `evergraph bench decode`: events per second out of messages, on one thread: plain events, the same through a
//! mapping, as Avro and Protobuf, and shapes that topics have already.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::ensure;
use clap::Args;
use serde::Serialize;

use super::{Spread, deliver, rates};
use crate::cli::output;
use crate::event::TimeUnit;
use crate::ingest::decode::DecodeOptions;
use crate::ingest::mapping::{
    Decoded, Envelope, Mapping, MappingOptions, Message, MessageReader, TimeFormat,
};
use crate::ingest::registry::{AvroSchema, Known, ProtobufSchema, Registry, Wire};

/// How to decode.
#[derive(Debug, Args)]
pub(super) struct DecodeArgs {
    /// Messages of each shape
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    messages: u32,
    /// Number of runs; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

/// Messages of one shape, and the mapping that reads them.
struct Shape {
    name: &'static str,
    mapping: Option<MappingOptions>,
    wire: Option<Wire>,
    messages: Vec<Vec<u8>>,
    events: usize,
}

#[derive(Serialize)]
struct Figures {
    messages: usize,
    shapes: Vec<Measured>,
}

#[derive(Serialize)]
struct Measured {
    shape: &'static str,
    bytes_per_message: usize,
    events_per_second: f64,
    events_per_second_spread: Spread,
    /// The rate over that of plain events.
    ratio: f64,
}

/// Runs the benchmark.
pub(super) fn run(args: &DecodeArgs) -> anyhow::Result<()> {
    let count = args.messages as usize;
    let mut shapes = Vec::new();
    for shape in shapes_of(count)? {
        let spread = measure(&shape, args.runs)?;
        let plain = shapes.first().map_or(spread.median, |first: &Measured| first.events_per_second);
        let bytes: usize = shape.messages.iter().map(Vec::len).sum();
        let measured = Measured {
            shape: shape.name,
            bytes_per_message: bytes / count,
            events_per_second: spread.median,
            events_per_second_spread: spread,
            ratio: spread.median / plain,
        };
        output::print_status(&format!(
            "{:<28} {:>5} bytes  {:>6.3} M events/s  {:.2} of plain",
            measured.shape,
            measured.bytes_per_message,
            measured.events_per_second / 1e6,
            measured.ratio,
        ));
        shapes.push(measured);
    }
    deliver(args.json.as_deref(), "decode", 1, Figures { messages: count, shapes })
}

fn measure(shape: &Shape, runs: u32) -> anyhow::Result<Spread> {
    let mapping = shape.mapping.as_ref().map(Mapping::compile).transpose()?;
    let reader = MessageReader::new(DecodeOptions::default(), mapping.map(Into::into));
    let reader = reader.with_wire(shape.wire.clone());
    rates(runs, shape.events, || {
        let mut events = 0;
        for message in &shape.messages {
            events += match reader.read(&Message::of_value(message))? {
                Decoded::One(_) => 1,
                Decoded::Many(events) => events.len(),
                Decoded::Ignored => 0,
            };
        }
        ensure!(events == shape.events, "{}: {events} events, not {}", shape.name, shape.events);
        Ok(())
    })
}

fn shapes_of(count: usize) -> anyhow::Result<Vec<Shape>> {
    let shape = |name, mapping, message: fn(usize) -> String, events: usize| Shape {
        name,
        mapping,
        wire: None,
        messages: (0..count).map(|i| message(i).into_bytes()).collect(),
        events: events * count,
    };
    let by_schema = |name, schema: Result<Known, String>, message: fn(usize) -> Vec<u8>| {
        let schema = schema.map_err(anyhow::Error::msg)?;
        let wire = Some(Wire::BySchema(Arc::new(Registry::of_schemas([(SCHEMA_ID, schema)]))));
        let messages =
            (0..count).map(|i| [&[0, 0, 0, 0, SCHEMA_ID as u8][..], &message(i)].concat()).collect();
        Ok::<_, anyhow::Error>(Shape { name, mapping: None, wire, messages, events: count })
    };
    let own = MappingOptions {
        src: "/src".into(),
        dst: "/dst".into(),
        ts: "/ts".into(),
        edge_type: "/type".into(),
        features: vec!["/features".into()],
        stream_unit: Some(TimeUnit::Milliseconds),
        ..MappingOptions::default()
    };
    let table = MappingOptions {
        envelope: Envelope::Debezium,
        src: "user:{/after/user_id}".into(),
        dst: "product:{/after/product_id}".into(),
        ts: "/source/ts_ms".into(),
        edge_type: "/source/table".into(),
        features: vec!["/after/price".into(), "/after/count".into()],
        ..own.clone()
    };
    let cloud = MappingOptions {
        envelope: Envelope::CloudEvents,
        src: "/user".into(),
        dst: "/page".into(),
        ts: "attribute:time".into(),
        ts_format: TimeFormat::Rfc3339,
        edge_type: "attribute:type".into(),
        idempotency_key: "{attribute:source} {attribute:id}".into(),
        features: Vec::new(),
        ..own.clone()
    };
    let basket = MappingOptions {
        each: "/basket/items".into(),
        src: "user:{/user/id}".into(),
        dst: "item:/sku".into(),
        ts: "/at".into(),
        edge_type: String::new(),
        features: vec!["item:/price".into()],
        ..own.clone()
    };
    Ok(vec![
        shape("plain", None, plain, 1),
        shape("plain, mapped", Some(own), plain, 1),
        by_schema("plain as Avro", AvroSchema::parse(AVRO, &[]).map(Known::Avro), avro)?,
        by_schema("plain as Protobuf", ProtobufSchema::parse(PROTOBUF, &[]).map(Known::Protobuf), protobuf)?,
        shape("Debezium", Some(table.clone()), change, 1),
        shape("Debezium with its schema", Some(table), |i| with_schema(&change(i)), 1),
        shape("CloudEvents, structured", Some(cloud), cloud_event, 1),
        shape("nested, ten events each", Some(basket), basket_of_ten, 10),
    ])
}

/// The id under which the messages name their schema.
const SCHEMA_ID: u32 = 1;

const AVRO: &str = r#"{"type":"record","name":"Event","fields":[{"name":"src","type":"string"},
    {"name":"dst","type":"string"},{"name":"ts","type":"long"},{"name":"type","type":"string"},
    {"name":"features","type":{"type":"array","items":"float"}}]}"#;

const PROTOBUF: &str = r#"syntax = "proto3";
    message Event { string src = 1; string dst = 2; int64 ts = 3; string type = 4; repeated float features = 5; }"#;

/// An integer, seven bits a byte, the least significant first.
fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number > 127 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// The texts and the number of [`plain`].
fn parts(i: usize) -> ([String; 3], usize, [f32; 3]) {
    let texts = [format!("user-{}", i % 997), format!("item-{}", i % 4_999), "buys".to_owned()];
    (texts, 1_700_000_000_000 + i, [(i % 100) as f32 + 0.25, 1.5, 0.125])
}

/// As [`plain`].
fn avro(i: usize) -> Vec<u8> {
    let ([src, dst, kind], ts, features) = parts(i);
    let mut out = Vec::new();
    let text = |text: &str, out: &mut Vec<u8>| {
        varint(2 * text.len(), out);
        out.extend_from_slice(text.as_bytes());
    };
    text(&src, &mut out);
    text(&dst, &mut out);
    varint(2 * ts, &mut out);
    text(&kind, &mut out);
    varint(2 * features.len(), &mut out);
    features.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    out.push(0);
    out
}

/// As [`plain`], of the first message of the schema.
fn protobuf(i: usize) -> Vec<u8> {
    let ([src, dst, kind], ts, features) = parts(i);
    let mut out = vec![0];
    let bytes = |field: u8, bytes: &[u8], out: &mut Vec<u8>| {
        out.push(field << 3 | 2);
        varint(bytes.len(), out);
        out.extend_from_slice(bytes);
    };
    bytes(1, src.as_bytes(), &mut out);
    bytes(2, dst.as_bytes(), &mut out);
    out.push(3 << 3);
    varint(ts, &mut out);
    bytes(4, kind.as_bytes(), &mut out);
    bytes(5, &features.map(f32::to_le_bytes).concat(), &mut out);
    out
}

fn plain(i: usize) -> String {
    format!(
        r#"{{"src":"user-{}","dst":"item-{}","ts":{},"type":"buys","features":[{}.25,1.5,0.125]}}"#,
        i % 997,
        i % 4_999,
        1_700_000_000_000 + i,
        i % 100,
    )
}

fn change(i: usize) -> String {
    format!(
        concat!(
            r#"{{"before":null,"after":{{"id":{},"user_id":{},"product_id":{},"price":{}.25,"count":{},"#,
            r#""note":"by post"}},"source":{{"version":"3.0.0.Final","connector":"postgresql","name":"shop","#,
            r#""ts_ms":{},"snapshot":"false","#,
            r#""db":"shop","sequence":"[\"24023128\",\"24023128\"]","schema":"public","table":"orders","txId":555,"#,
            r#""lsn":24023128,"xmin":null}},"op":"c","ts_ms":{},"transaction":null}}"#,
        ),
        i,
        i % 997,
        i % 4_999,
        i % 100,
        i % 7,
        1_700_000_000_000 + i,
        1_700_000_000_050 + i,
    )
}

/// As the JSON converter of Kafka Connect writes it by default.
fn with_schema(change: &str) -> String {
    let field = |name: &str, of: &str| format!(r#"{{"type":"{of}","optional":false,"field":"{name}"}}"#);
    let row: Vec<String> = ["id", "user_id", "product_id", "price", "count", "note"]
        .iter()
        .map(|name| field(name, "int64"))
        .collect();
    let source: Vec<String> =
        ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "schema", "table"]
            .iter()
            .map(|name| field(name, "string"))
            .collect();
    let structure = |name: &str, fields: &[String]| {
        format!(
            r#"{{"type":"struct","fields":[{}],"optional":true,"name":"shop.{name}","field":"{name}"}}"#,
            fields.join(",")
        )
    };
    let parts = [structure("before", &row), structure("after", &row), structure("source", &source)];
    format!(
        r#"{{"schema":{{"type":"struct","fields":[{}],"name":"shop.Envelope"}},"payload":{change}}}"#,
        parts.join(",")
    )
}

fn cloud_event(i: usize) -> String {
    format!(
        concat!(
            r#"{{"specversion":"1.0","id":"{}","source":"/web","type":"click","#,
            r#""time":"2026-01-31T12:{:02}:{:02}.{:03}Z","datacontenttype":"application/json","#,
            r#""data":{{"user":"user-{}","page":"/page/{}","agent":"a browser"}}}}"#,
        ),
        i,
        i / 60 % 60,
        i % 60,
        i % 1_000,
        i % 997,
        i % 4_999,
    )
}

fn basket_of_ten(i: usize) -> String {
    let items: Vec<String> = (0..10)
        .map(|n| format!(r#"{{"sku":"item-{}","price":{n}.5,"name":"a thing"}}"#, (i + n) % 4_999))
        .collect();
    format!(
        r#"{{"id":{i},"user":{{"id":{},"name":"somebody"}},"at":{},"basket":{{"items":[{}]}}}}"#,
        i % 997,
        1_700_000_000_000 + i,
        items.join(",")
    )
}
