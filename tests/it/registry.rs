//! Messages in the wire format of a schema registry: what the serializers of confluent-kafka wrote
//! (`tests/golden/make_avro.py`), read alone and through a real broker, with a registry on loopback that comes and goes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evergraph::event::{Event, EventTime, TimeUnit};
use evergraph::ingest::decode::DecodeOptions;
use evergraph::ingest::mapping::{Envelope, Mapping, MappingOptions, Message, MessageReader, TimeFormat};
use evergraph::ingest::registry::{Registry, RegistryOptions, Wire};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::process::{Process, Start, evergraph, log_of};

const USER: &str = "reader";
const PASSWORD: &str = "not to be shown";

/// A message as a serializer wrote it.
struct Written {
    topic: String,
    key: Option<Vec<u8>>,
    value: Vec<u8>,
    holds: Value,
}

fn golden() -> Value {
    golden_of("avro")
}

fn golden_of(kind: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{kind}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn written() -> Vec<Written> {
    let bytes = |text: &Value| text.as_str().map(|text| BASE64_STANDARD.decode(text).unwrap());
    let message = |message: &Value| Written {
        topic: message["topic"].as_str().unwrap().to_owned(),
        key: bytes(&message["key"]),
        value: bytes(&message["value"]).unwrap(),
        holds: message["holds"].clone(),
    };
    golden()["messages"].as_array().unwrap().iter().map(message).collect()
}

/// A registry on loopback with the schemas of the golden file, as its REST interface serves them.
struct Stub {
    port: u16,
    documents: Arc<Mutex<BTreeMap<String, Value>>>,
    asked: Arc<Mutex<Vec<String>>>,
    serving: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Stub {
    fn start() -> Self {
        Self::of(&golden())
    }

    fn of(golden: &Value) -> Self {
        let mut documents = BTreeMap::new();
        for (id, schema) in golden["schemas"].as_object().unwrap() {
            documents.insert(format!("/schemas/ids/{id}"), schema.clone());
        }
        for (path, schema) in golden["subjects"].as_object().unwrap() {
            documents.insert(format!("/subjects/{path}"), schema.clone());
        }
        let documents = Arc::new(Mutex::new(documents));
        let mut stub = Self { port: 0, documents, asked: Arc::default(), serving: None };
        stub.resume();
        stub
    }

    fn resume(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        self.port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let (stop, documents, asked) =
            (Arc::new(AtomicBool::new(false)), Arc::clone(&self.documents), Arc::clone(&self.asked));
        let flag = Arc::clone(&stop);
        let serving = std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((connection, _)) => respond(connection, &documents, &asked),
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        self.serving = Some((stop, serving));
    }

    /// From now on connections are refused.
    fn outage(&mut self) {
        if let Some((stop, serving)) = self.serving.take() {
            stop.store(true, Ordering::Relaxed);
            serving.join().unwrap();
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    fn client(&self) -> Arc<Registry> {
        let (username, password) = (USER.to_owned(), PASSWORD.to_owned());
        let options = RegistryOptions { url: self.url(), username, password, ..RegistryOptions::default() };
        Arc::new(Registry::open(&options).unwrap())
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.outage();
    }
}

fn respond(
    mut connection: TcpStream,
    documents: &Mutex<BTreeMap<String, Value>>,
    asked: &Mutex<Vec<String>>,
) {
    connection.set_nonblocking(false).unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if connection.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap();
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let credentials = BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}"));
    let is_trusted =
        request.lines().any(|line| line.eq_ignore_ascii_case(&format!("authorization: Basic {credentials}")));
    let found = documents.lock().unwrap().get(&path).cloned();
    let (status, body) = match found {
        _ if !is_trusted => (401, json!({ "error_code": 401, "message": "Unauthorized" })),
        Some(document) => (200, document),
        None => (404, json!({ "error_code": 40403, "message": "Schema not found" })),
    };
    asked.lock().unwrap().push(path);
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    let _ = connection.write_all((head + &body).as_bytes());
}

#[test]
fn what_the_official_serializers_wrote_is_the_values_they_were_given() {
    let stub = Stub::start();
    let reader = MessageReader::default().with_wire(Some(Wire::BySchema(stub.client())));
    let plain = MessageReader::default().with_wire(Some(Wire::JsonSchema));
    let messages = written();
    assert_eq!(messages.len(), 72);
    for (place, Written { topic, value, holds, .. }) in messages.iter().enumerate() {
        let text = if topic == "likes" { plain.text(value) } else { reader.text(value) };
        let text = text.unwrap_or_else(|rejection| panic!("{topic} {place}: {rejection}"));
        let read: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read, *holds, "{topic} {place}");
    }
    let mut asked = stub.asked();
    let count = asked.len();
    asked.sort();
    asked.dedup();
    assert_eq!(asked.len(), count, "each is asked for once: {asked:?}");

    let options = MappingOptions {
        envelope: Envelope::Debezium,
        src: "user:{/after/user_id}".into(),
        dst: "product:{/after/product_id}".into(),
        ts: "/source/ts_ms".into(),
        edge_type: "order {key:/id}".into(),
        features: vec!["/after/price".into()],
        ..MappingOptions::default()
    };
    let mapping = Some(Arc::new(Mapping::compile(&options).unwrap()));
    let decode = DecodeOptions { edge_features: Some(1), ..DecodeOptions::default() };
    let reader = MessageReader::new(decode, mapping).with_wire(Some(Wire::BySchema(stub.client())));
    for (id, Written { key, value, .. }) in
        messages.iter().filter(|message| message.topic == "orders").enumerate()
    {
        let message = Message { key: key.as_deref(), ..Message::of_value(value) };
        let events: Vec<_> = reader.read(&message).unwrap().into_events().collect();
        let [evergraph::event::Incoming { event: Event::Edge(edge), .. }] = &events[..] else {
            panic!("{events:?}")
        };
        let names =
            [edge.src.to_string(), edge.dst.to_string(), edge.edge_type.as_deref().unwrap().to_owned()];
        assert_eq!(names, [format!("user:{}", id % 4), format!("product:{}", id % 5), format!("order {id}")]);
        assert_eq!(edge.time, EventTime(1000 + id as i64));
        assert!((edge.features[0] - id as f32 * 9.95).abs() < 1e-4, "{:?}", edge.features);
    }
}

/// Protobuf's JSON writes 64-bit integers as texts, and here they are numbers.
fn with_numbers(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let number = |(name, inner): (&String, &Value)| {
                let is_wide = ["who", "at", "id", "device"].contains(&name.as_str());
                let number = inner.as_str().filter(|_| is_wide).and_then(|text| text.parse::<u64>().ok());
                (name.clone(), number.map_or_else(|| with_numbers(inner), Value::from))
            };
            fields.iter().map(number).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn what_the_official_serializer_of_protobuf_wrote_is_the_values_it_was_given() {
    let golden = golden_of("protobuf");
    let stub = Stub::of(&golden);
    let messages: Vec<(Vec<u8>, Value)> = golden["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let bytes = BASE64_STANDARD.decode(message["value"].as_str().unwrap()).unwrap();
            (bytes, with_numbers(&message["holds"]))
        })
        .collect();
    assert_eq!(messages.len(), 30);
    let reader = MessageReader::default().with_wire(Some(Wire::BySchema(stub.client())));
    for (bytes, holds) in &messages {
        let text = reader.text(bytes).unwrap_or_else(|rejection| panic!("{holds}: {rejection}"));
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), *holds);
    }
    let asked = stub.asked();
    assert_eq!(asked.len(), 4, "three schemas and one that is imported: {asked:?}");

    // Fields by their names, whose meaning a later schema changes.
    let options = MappingOptions {
        src: "who:{/who}".into(),
        dst: "page:{/page}".into(),
        ts: "/when".into(),
        ts_format: TimeFormat::Rfc3339,
        stream_unit: Some(TimeUnit::Seconds),
        ..MappingOptions::default()
    };
    let mapping = Some(Arc::new(Mapping::compile(&options).unwrap()));
    let reader =
        MessageReader::new(DecodeOptions::default(), mapping).with_wire(Some(Wire::BySchema(stub.client())));
    let read = |place: usize| reader.read(&Message::of_value(&messages[place].0));
    let events: Vec<_> = read(15).unwrap().into_events().collect();
    let [evergraph::event::Incoming { event: Event::Edge(edge), .. }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!([edge.src.to_string(), edge.dst.to_string()], ["who:15", "page:/p0"]);
    assert_eq!(edge.time, EventTime(1_769_860_815));
    let refused = read(3).unwrap_err().to_string();
    assert!(refused.contains("/when"), "a message of the first schema has no such field: {refused}");
}

const MAPPINGS: &str = r#"
[ingest.kafka.topics.orders]
topic = "registry.orders"
format = "avro"
mapping = "orders"
[ingest.kafka.topics.baskets]
topic = "registry.baskets"
format = "avro"
mapping = "baskets"
[ingest.kafka.topics.likes]
topic = "registry.likes"
format = "json-schema"
[ingest.mappings.visits]
src = "who:{/who}"
dst = "page:{/page}"
ts = "/at"
[ingest.mappings.orders]
envelope = "debezium"
src = "user:{/after/user_id}"
dst = "product:{/after/product_id}"
ts = "/source/ts_ms"
idempotency_key = "order {key:/id}"
[ingest.mappings.baskets]
each = "/items"
src = "basket:{/id}"
dst = "item:/sku"
ts = "/at"
"#;

/// A daemon that reads `topics` behind this registry; `visits` is the first one.
fn settings(broker: &Broker, stub: &Stub, folder: &Path, visits: &str, more: &str) -> Start {
    let group = folder.file_name().unwrap().to_string_lossy().into_owned();
    let text = format!(
        "[learner]\ntrain = false\n[ingest.kafka]\nbrokers = \"{}\"\ngroup = \"{group}\"\ntopic = \"{visits}\"\n\
         format = \"avro\"\nmapping = \"visits\"\n[ingest.kafka.registry]\nurl = \"{}\"\nusername = \"{USER}\"\n{more}",
        broker.bootstrap(),
        stub.url(),
    );
    let file = folder.join("evergraph.toml");
    std::fs::write(&file, text).unwrap();
    let password = ("EVERGRAPH__INGEST__KAFKA__REGISTRY__PASSWORD", PASSWORD);
    Start::in_dir(&folder.join("data")).config(&file).env(password.0, password.1)
}

fn send<'m>(broker: &Broker, topic: &str, messages: impl IntoIterator<Item = &'m Written>) {
    let messages = messages.into_iter();
    broker.produce(topic, messages.map(|m| (0, m.key.as_deref(), Some(m.value.as_slice()))));
}

fn of<'m>(messages: &'m [Written], topic: &str) -> Vec<&'m Written> {
    messages.iter().filter(|message| message.topic == topic).collect()
}

fn next(status: &Value, topic: &str) -> u64 {
    let positions = status["ingest"]["positions"].as_array().unwrap();
    let of = positions.iter().find(|position| position["source"] == format!("kafka:{topic}"));
    of.and_then(|position| position["next_offset"].as_u64()).unwrap_or(0)
}

fn stand_at(process: &Process, expected: &[(&str, u64)]) -> Value {
    process.wait_until("all of it", |status| expected.iter().all(|(topic, at)| next(status, topic) == *at))
}

fn source(status: &Value, topic: &str) -> Value {
    let sources = status["ingest"]["sources"].as_array().unwrap();
    sources.iter().find(|source| source["name"] == format!("kafka:{topic}")).unwrap().clone()
}

#[test]
fn topics_are_read_through_evolution_an_outage_of_the_registry_and_a_kill() {
    let Some(broker) = Broker::shared() else { return };
    let topics = ["registry.visits", "registry.orders", "registry.baskets", "registry.likes"];
    topics.into_iter().for_each(|topic| broker.create_topic(topic, 1));
    let messages = written();
    let [visits, orders, baskets, likes] =
        ["visits", "orders", "baskets", "likes"].map(|topic| of(&messages, topic));
    let mut stub = Stub::start();
    let folder = tempfile::tempdir().unwrap();
    let start = settings(broker, &stub, folder.path(), "registry.visits", MAPPINGS);
    send(broker, "registry.visits", visits[..20].iter().copied());
    send(broker, "registry.orders", orders[..6].iter().copied());
    let process = start.ready();
    stand_at(&process, &[("registry.visits", 20), ("registry.orders", 6)]);

    // Its schema changes while the registry is away: the topic waits, and what names known schemas is read.
    stub.outage();
    send(broker, "registry.visits", visits[20..30].iter().copied());
    send(broker, "registry.orders", orders[6..].iter().copied());
    send(broker, "registry.likes", likes.iter().copied());
    let status = process.wait_until("it waits", |status| {
        let detail = source(status, "registry.visits")["detail"].as_str().unwrap().to_owned();
        detail.contains("waits for a schema")
            && next(status, "registry.orders") == 12
            && next(status, "registry.likes") == 10
    });
    assert_eq!(
        (next(&status, "registry.visits"), &source(&status, "registry.visits")["state"]),
        (20, &json!("degraded"))
    );
    assert!(
        source(&status, "registry.visits")["detail"].as_str().unwrap().contains(&stub.url()),
        "{status:#}"
    );
    assert_eq!(source(&status, "registry.orders")["state"], "running");
    stub.resume();
    let status = stand_at(&process, &[("registry.visits", 30)]);
    assert_eq!(source(&status, "registry.visits")["dead_letters"], 0, "{status:#}");
    process.wait_until("it is well", |status| source(status, "registry.visits")["state"] == "running");

    // A start that knows no schema while the registry is away, killed in the middle.
    stub.outage();
    process.kill();
    send(broker, "registry.visits", visits[30..].iter().copied());
    send(broker, "registry.baskets", baskets.iter().copied());
    let process = start.ready();
    for topic in ["registry.visits", "registry.baskets"] {
        process.wait_until("it waits", |status| source(status, topic)["state"] == "degraded");
    }
    process.kill();
    let process = start.ready();
    process.wait_until("it waits", |status| source(status, "registry.visits")["state"] == "degraded");
    stub.resume();
    let status = stand_at(
        &process,
        &[("registry.visits", 40), ("registry.orders", 12), ("registry.baskets", 10), ("registry.likes", 10)],
    );
    for topic in topics {
        let source = source(&status, topic);
        assert_eq!(
            (&source["dead_letters"], &source["rejected_events"]),
            (&json!(0), &json!(0)),
            "{source:#}"
        );
    }
    assert_eq!(process.get("/v1/nodes/who:39").unwrap().0, 200);
    assert!(process.terminate().success());
    // 13 items are in the baskets.
    assert_eq!(log_of(&folder.path().join("data"))["records"], 40 + 12 + 13 + 10);
}

#[test]
fn what_no_schema_describes_is_a_dead_letter_and_sent_again_when_there_is_one() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "torn-visits";
    broker.create_topic(topic, 1);
    let messages = written();
    let visit = &of(&messages, "visits")[0].value;
    let mut unknown = visit.clone();
    unknown[4] = 99;
    let torn = &visit[..visit.len() - 1];
    let longer = [visit.as_slice(), b"more"].concat();
    let plain = br#"{"who":1,"page":"a","at":2}"#;
    let sent = [unknown.as_slice(), torn, &longer, plain, visit];
    broker.produce(topic, sent.map(|value| (0, None, Some(value))));
    let stub = Stub::start();
    let folder = tempfile::tempdir().unwrap();
    let mapping = MAPPINGS.split("[ingest.mappings.orders]").next().unwrap();
    let mapping = mapping.split("[ingest.mappings.visits]").nth(1).unwrap();
    let mapping = format!("[ingest.mappings.visits]{mapping}");
    let start = settings(broker, &stub, folder.path(), topic, &mapping);
    let process = start.ready();
    let status = stand_at(&process, &[(topic, 5)]);
    let rejected = &status["ingest"]["rejected_events"];
    assert_eq!(
        (&rejected["unknown_schema"], &rejected["undecodable"]),
        (&json!(1), &json!(3)),
        "{rejected:#}"
    );
    let command = |args: &[&str]| {
        let (file, data) = (folder.path().join("evergraph.toml"), folder.path().join("data"));
        let password = format!("ingest.kafka.registry.password={PASSWORD}");
        let own = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap(), "--set", &password];
        evergraph(&[args, &own].concat())
    };
    let (done, listed, error) = command(&["dead-letters", "list", "--json"]);
    assert!(done, "{error}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let letters = listed["dead_letters"].as_array().unwrap();
    for (letter, expected) in letters.iter().zip([
        "schema 99 of the value: the registry does not know it (Schema not found)",
        "the value is not what schema 1 describes",
        "4 bytes are left behind its end",
        "does not begin with the header of a schema registry",
    ]) {
        assert!(letter["detail"].as_str().unwrap().contains(expected), "{expected}: {letter:#}");
        assert_eq!(letter["readable"], false, "{letter:#}");
    }

    // The schema is registered after all. A start asks for it again.
    let schema = stub.documents.lock().unwrap()["/schemas/ids/1"].clone();
    stub.documents.lock().unwrap().insert("/schemas/ids/99".to_owned(), schema);
    assert!(process.terminate().success());
    let process = start.ready();
    let (done, _, error) = command(&["dead-letters", "replay", "--yes"]);
    assert!(done, "{error}");
    stand_at(&process, &[(topic, 6)]);
    let (done, shown, error) = command(&["check", "--listen", "127.0.0.1:0", "--sample", "1"]);
    assert!(done && shown.contains("partition 0 offset 5: who:0 -> page:/p0 at 100"), "{shown}{error}");
    assert!(shown.contains(&format!("ok    registry: {} responds", stub.url())), "{shown}");
    assert!(process.terminate().success());
    assert_eq!(log_of(&folder.path().join("data"))["records"], 2);

    let (done, settings, error) = command(&["config", "show"]);
    assert!(done && !settings.contains(PASSWORD) && settings.contains("***"), "{settings}{error}");
}
