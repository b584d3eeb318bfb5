//! Messages of other shapes, read by a mapping: the examples of the page, bodies and files through a daemon, and the
//! changes of a table through a real broker, with kills between them.

use std::path::Path;
use std::time::Duration;

use evergraph::config::Config;
use evergraph::daemon::source_options::decode_options;
use evergraph::event::Incoming;
use evergraph::ingest::decode::Decoder;
use evergraph::ingest::mapping::{Message, MessageReader};
use rdkafka::ClientConfig;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::kafka_daemon::{daemon, kafka};
use crate::process::{Start, evergraph, log_of};

/// The fenced blocks of one language below the headings of a page.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Every event of a document in our own shape.
fn plain_events(text: &str) -> Vec<Incoming> {
    let document: Value = serde_json::from_str(text).unwrap();
    let events = document.as_array().cloned().unwrap_or_else(|| vec![document]);
    events.iter().map(|event| Decoder::default().event(event.to_string().as_bytes()).unwrap()).collect()
}

#[test]
fn the_examples_of_the_page_are_read_as_it_says() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/mapping.md")).unwrap();
    let (settings, documents) = (blocks(&page, "toml"), blocks(&page, "json"));
    assert_eq!((settings.len(), documents.len()), (3, 6));
    for (toml, pair) in settings.iter().zip(documents.chunks(2)) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("evergraph.toml");
        std::fs::write(&file, toml).unwrap();
        let (faults, warnings) = Config::examine(Some(&file), &[]);
        assert_eq!((faults, warnings), (vec![], vec![]), "{toml}");
        let config = Config::load(Some(&file), &[]).unwrap();
        let ingest = &config.ingest;
        let names = [&ingest.kafka.mapping, &ingest.http.mapping];
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap();
        let reader = MessageReader::new(decode_options(&config), config.mapping(name));
        let read: Vec<_> =
            reader.read(&Message::of_value(pair[0].as_bytes())).unwrap().into_events().collect();
        assert_eq!(read, plain_events(pair[1]), "{toml}");
        for event in &read {
            if let evergraph::event::Event::Edge(edge) = &event.event {
                assert_eq!(edge.features.len(), config.stream.edge_feature_dimension, "{toml}");
            }
        }
    }
}

fn orders(start: Start) -> Start {
    let settings = [
        "stream.time_unit=milliseconds",
        "ingest.mappings.orders.envelope=debezium",
        "ingest.mappings.orders.src=user:{/after/user_id}",
        "ingest.mappings.orders.dst=product:{/after/product_id}",
        "ingest.mappings.orders.ts=/source/ts_ms",
        "ingest.mappings.orders.ts_unit=milliseconds",
        "ingest.mappings.orders.deletes=delete_edges",
    ];
    settings.into_iter().fold(start, Start::set)
}

fn row(user: u32, product: u32) -> Value {
    json!({ "id": user * 1000 + product, "user_id": user, "product_id": product })
}

fn change(op: &str, before: &Value, after: &Value, time: u32) -> Value {
    json!({ "before": before, "after": after, "source": { "ts_ms": time, "table": "orders" }, "op": op, "ts_ms": time })
}

/// How often a node stands beside each other one, by names.
fn neighbors(process: &crate::process::Process, node: &str) -> Vec<String> {
    let (_, found) = process.get(&format!("/v1/nodes/{node}")).unwrap();
    let listed = found["neighbors"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = listed.iter().map(|n| n["node"].as_str().unwrap_or("").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_pushed_message_of_another_shape_is_stored_or_refused_with_its_index() {
    let data = tempfile::tempdir().unwrap();
    let process = orders(Start::in_dir(data.path())).set("ingest.http.mapping=orders").ready();
    let good = change("c", &Value::Null, &row(1, 2), 5);
    let wrapped =
        json!({ "schema": { "type": "struct" }, "payload": change("r", &Value::Null, &row(1, 3), 6) });
    let bad = change("c", &Value::Null, &Value::Null, 7);
    let body = json!([good, bad, wrapped]).to_string();
    let (status, said) = process.post("/v1/events", "application/json", &body).unwrap();
    assert_eq!((status, &said["accepted"]), (200, &json!(2)), "{said:#}");
    let rejected = said["rejected"].as_array().unwrap();
    assert_eq!(rejected.len(), 1, "{said:#}");
    assert_eq!((&rejected[0]["index"], &rejected[0]["reason"]), (&json!(1), &json!("missing_field")));
    assert_eq!(
        rejected[0]["detail"], "src (user:{/after/user_id}) is missing: /after is null",
        "the field, the pointer and what was found"
    );
    assert_eq!(neighbors(&process, "user:1"), ["product:2", "product:3"]);
    let plain = r#"{"src":1,"dst":2,"ts":3}"#;
    let (status, said) = process.post("/v1/events", "application/json", plain).unwrap();
    assert_eq!(status, 422, "{said:#}");
    let (status, said) = process.post("/v1/events", "application/json", "{\"op\":").unwrap();
    assert_eq!(status, 400, "{said:#}");
    assert!(process.terminate().success());
}

#[test]
fn cloud_events_are_pushed_with_their_own_content_types() {
    let data = tempfile::tempdir().unwrap();
    let settings = [
        "stream.time_unit=seconds",
        "ingest.http.mapping=clicks",
        "ingest.mappings.clicks.envelope=cloudevents",
        "ingest.mappings.clicks.src=/user",
        "ingest.mappings.clicks.dst=attribute:subject",
        "ingest.mappings.clicks.ts=attribute:time",
        "ingest.mappings.clicks.ts_format=rfc3339",
        "ingest.mappings.clicks.idempotency_key={attribute:source} {attribute:id}",
    ];
    let process = settings.into_iter().fold(Start::in_dir(data.path()), Start::set).ready();
    let event = |id: u32| {
        json!({ "specversion": "1.0", "id": id.to_string(), "source": "/web", "type": "click", "subject": "home",
            "time": "2026-01-31T12:00:00Z", "data": { "user": "mia" } })
    };
    let push = |kind: &str, body: &Value| process.post("/v1/events", kind, &body.to_string()).unwrap();
    let (status, said) = push("application/cloudevents+json", &event(1));
    assert_eq!((status, &said["accepted"]), (200, &json!(1)), "{said:#}");
    let (status, said) = push("application/cloudevents-batch+json", &json!([event(1), event(2)]));
    assert_eq!((status, &said["accepted"], &said["duplicates"]), (200, &json!(1), &json!(1)), "{said:#}");
    assert!(process.terminate().success());
}

#[test]
fn files_of_other_shapes_are_read_and_each_refused_row_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, lines) = (folder.path().join("clicks.csv"), folder.path().join("baskets.jsonl"));
    std::fs::write(
        &csv,
        "when,who,what,more\n2026-01-31T12:00:00Z,mia,7,x\nsoon,mia,8,x\n2026-01-31T12:00:01Z,leo,7,\n",
    )
    .unwrap();
    std::fs::write(
        &lines,
        "{\"who\":1,\"at\":5,\"items\":[{\"sku\":\"a\"},{\"sku\":\"b\"}]}\n\n{\"who\":1,\"at\":6,\"items\":[{}]}\n",
    )
    .unwrap();
    let of_csv = [
        "stream.time_unit=seconds",
        "ingest.mappings.m.src=/who",
        "ingest.mappings.m.dst=page:{/what}",
        "ingest.mappings.m.ts=/when",
        "ingest.mappings.m.ts_format=rfc3339",
    ];
    let of_lines = [
        "ingest.mappings.m.each=/items",
        "ingest.mappings.m.src=who:{/who}",
        "ingest.mappings.m.dst=item:/sku",
        "ingest.mappings.m.ts=/at",
    ];
    for (file, settings, letter) in [
        (&csv, &of_csv[..], "clicks.csv line 3: ts (/when) is the text \\\"soon\\\""),
        (&lines, &of_lines[..], "baskets.jsonl line 3: element 0 of /items: dst (item:/sku) is missing"),
    ] {
        let data = tempfile::tempdir().unwrap();
        let start = settings.iter().fold(Start::in_dir(data.path()), |start, set| start.set(set));
        let start = start.set("ingest.file.mapping=m").set(&format!("ingest.file.path={}", file.display()));
        let process = start.ready();
        let status = process.wait_until("the file", |status| {
            status["log"]["durable_position"] == 2 && status["ingest"]["sources"][1]["state"] == "ended"
        });
        assert_eq!(status["ingest"]["sources"][1]["dead_letters"], 1, "{status:#}");
        assert!(process.terminate().success());
        let letters = std::fs::read_to_string(data.path().join("dead-letters/dead-letters.jsonl")).unwrap();
        assert!(letters.contains(letter), "{letters}");
        // A restart goes on behind the last row.
        let process = start.ready();
        process.wait_until("the end", |status| status["ingest"]["sources"][1]["state"] == "ended");
        assert!(process.terminate().success());
        assert_eq!(log_of(data.path())["records"], 2);
    }
}

#[test]
fn changes_of_a_table_are_read_through_kafka_each_once_across_kills() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "shop.public.orders";
    broker.create_topic(topic, 1);
    let send = |messages: &[(u32, Option<Value>)]| {
        let bytes: Vec<(Vec<u8>, Option<Vec<u8>>)> = messages
            .iter()
            .map(|(id, value)| {
                let key = json!({ "schema": {}, "payload": { "id": id } }).to_string().into_bytes();
                (key, value.as_ref().map(|value| value.to_string().into_bytes()))
            })
            .collect();
        broker.produce(topic, bytes.iter().map(|(key, value)| (0, Some(key.as_slice()), value.as_deref())));
    };
    let data = tempfile::tempdir().unwrap();
    let start = orders(daemon(broker, topic, data.path()))
        .set("ingest.kafka.mapping=orders")
        .set("ingest.kafka.tombstones=ignore");
    let read = |process: &crate::process::Process, offset: u32| {
        process.wait_until("all of it", |status| status["ingest"]["positions"][0]["next_offset"] == offset)
    };

    // A snapshot, insertions, an update.
    let inserted = |user: u32, product: u32, op: &str| {
        let change = change(op, &Value::Null, &row(user, product), user * 10 + product);
        (user * 1000 + product, Some(json!({ "schema": { "type": "struct" }, "payload": change })))
    };
    send(&[inserted(1, 1, "r"), inserted(1, 2, "c"), inserted(2, 1, "c"), inserted(1, 2, "u")]);
    let process = start.ready();
    read(&process, 4);
    process.kill();

    // A deletion and its tombstone, a change that is none, a row without its user.
    let deletion = change("d", &row(1, 2), &Value::Null, 1_000);
    let (torn, lost) = (json!({ "before": 1 }), change("c", &Value::Null, &json!({ "product_id": 9 }), 50));
    send(&[(1002, Some(deletion)), (1002, None), (7, Some(torn)), (8, Some(lost)), inserted(2, 2, "c")]);
    let process = start.ready();
    let status = read(&process, 9);
    assert_eq!(neighbors(&process, "user:1"), ["product:1"], "the edges of the deleted row are gone");
    assert_eq!(neighbors(&process, "user:2"), ["product:1", "product:2"]);
    let source = kafka(&status);
    assert_eq!((&source["dead_letters"], &source["ignored_events"]), (&json!(2), &json!(1)), "{source:#}");
    assert_eq!(status["ingest"]["rejected_events"]["missing_field"], 2, "{status:#}");
    process.kill();

    let process = start.ready();
    read(&process, 9);
    assert!(process.terminate().success());
    // Five edges and a deletion, however often the daemon was killed.
    assert_eq!(log_of(data.path())["records"], 6);
    let letters = std::fs::read_to_string(data.path().join("dead-letters/dead-letters.jsonl")).unwrap();
    assert!(letters.contains("op is missing: the value is no change of Debezium"), "{letters}");
    assert!(letters.contains("src (user:{/after/user_id}) is missing: /after has no user_id"), "{letters}");
    assert!(letters.contains("\"offset\":7"), "the letter has the message's place: {letters}");
}

#[test]
fn baskets_through_kafka_keep_their_events_together_across_kills() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "baskets";
    broker.create_topic(topic, 2);
    let baskets: Vec<Vec<u8>> = (0..400)
        .map(|i| {
            let items: Vec<Value> = (0..i % 7).map(|n| json!({ "sku": n })).collect();
            json!({ "user": i, "at": i, "items": items }).to_string().into_bytes()
        })
        .collect();
    let events: u64 = (0..400).map(|i| i % 7).sum();
    let messages =
        baskets.iter().enumerate().map(|(i, value)| ((i % 2) as i32, None, Some(value.as_slice())));
    broker.produce(topic, messages);
    let data = tempfile::tempdir().unwrap();
    let settings = [
        "ingest.kafka.mapping=baskets",
        "ingest.mappings.baskets.each=/items",
        "ingest.mappings.baskets.src=user:{/user}",
        "ingest.mappings.baskets.dst=article:{item:/sku}",
        "ingest.mappings.baskets.ts=/at",
        "ingest.kafka.batch_messages_max=10",
    ];
    let start = settings.into_iter().fold(daemon(broker, topic, data.path()), Start::set);
    for _ in 0..3 {
        let process = start.ready();
        std::thread::sleep(std::time::Duration::from_millis(30));
        process.kill();
    }
    let process = start.ready();
    process.wait_until("all", |status| status["log"]["durable_position"] == events);
    let source = kafka(&process.status());
    assert_eq!(source["dead_letters"], 0, "{source:#}");
    assert!(process.terminate().success());
    assert_eq!(log_of(data.path())["records"], events);
}

#[test]
fn a_sample_shows_messages_as_events_and_proposes_a_mapping_where_they_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let orders = change("c", &Value::Null, &row(1, 2), 5).to_string();
    std::fs::write(path("orders.jsonl"), format!("{orders}\n")).unwrap();
    std::fs::write(path("plain.csv"), "src,dst,ts\na,b,1\n").unwrap();
    let (content, shown, _) = evergraph(&["ingest", "--events", &path("plain.csv"), "--dry-run"]);
    assert!(content && shown.contains("row 0: a -> b at 1"), "{shown}");

    let begin = "[stream]\ntime_unit = \"milliseconds\"\n[ingest.mappings.bad]\n";
    std::fs::write(path("bad.toml"), begin).unwrap();
    let dry = |settings: &str, mapping: &str| {
        let (events, settings) = (path("orders.jsonl"), path(settings));
        evergraph(&[
            "ingest",
            "--events",
            &events,
            "--dry-run",
            "5",
            "--config",
            &settings,
            "--mapping",
            mapping,
        ])
    };
    let (content, shown, _) = dry("bad.toml", "bad");
    assert!(!content && shown.contains("src (/src) is missing: the value has no src"), "{shown}");
    let (_, proposed) =
        shown.split_once("check each line:\n").unwrap_or_else(|| panic!("nothing proposed: {shown}"));
    std::fs::write(path("proposed.toml"), proposed).unwrap();
    let (content, shown, said) = dry("proposed.toml", "proposed");
    assert!(content && shown.contains("row 0: user:1 -> product:2 at 5"), "{shown} {said}");
    let (content, _, said) = dry("proposed.toml", "other");
    assert!(!content && said.contains("no [ingest.mappings.other]"), "{said}");
}

#[test]
fn a_check_shows_the_newest_messages_of_the_topic() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "sampled";
    broker.create_topic(topic, 2);
    let bytes = |user| change("c", &Value::Null, &row(user, 2), user).to_string().into_bytes();
    let messages: Vec<Vec<u8>> = (1..=40).map(bytes).collect();
    broker.produce(topic, messages.iter().map(|value| (0, None, Some(value.as_slice()))));
    let data = tempfile::tempdir().unwrap();
    let check = |more: &[&str]| {
        let (brokers, topic) =
            (format!("ingest.kafka.brokers={}", broker.bootstrap()), format!("ingest.kafka.topic={topic}"));
        let data = data.path().join("data");
        let fixed = ["check", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap(), "--sample", "4"];
        let sets = [brokers.as_str(), topic.as_str()].into_iter().chain(more.iter().copied());
        let sets = sets.flat_map(|set| ["--set", set]);
        evergraph(&fixed.into_iter().chain(sets).collect::<Vec<_>>())
    };
    let (content, shown, said) = check(&[]);
    assert!(content && shown.contains("partition 0 offset 39: unknown_op"), "{shown} {said}");
    assert!(
        shown.contains("envelope = \"debezium\"") && shown.contains("src = \"user:{/after/user_id}\""),
        "{shown}"
    );
    let (content, shown, said) = check(&[
        "ingest.kafka.mapping=m",
        "ingest.mappings.m.envelope=debezium",
        "ingest.mappings.m.src=user:{/after/user_id}",
        "ingest.mappings.m.dst=product:{/after/product_id}",
        "ingest.mappings.m.ts=/source/ts_ms",
    ]);
    assert!(content && shown.contains("partition 0 offset 39: user:40 -> product:2 at 40"), "{shown} {said}");
}

/// What a command printed, as JSON.
fn printed(args: &[&str]) -> (bool, Value, String) {
    let (done, out, error) = evergraph(args);
    (done, serde_json::from_str(&out).unwrap_or(Value::Null), error)
}

#[test]
fn refused_events_are_listed_and_sent_again_after_the_mapping_is_mended() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let bodies = [
        r#"{"who":"a","what":"x","at":1}"#,
        r#"{"who":"b","what":"y","at":"soon"}"#,
        r#"{"src":"c","dst":"x","ts":2}"#,
    ];
    let plain = Start::in_dir(data.path()).ready();
    for body in bodies {
        let (status, said) = plain.post("/v1/events", "application/json", body).unwrap();
        assert_eq!(status, if body.contains("src") { 200 } else { 422 }, "{said:#}");
    }
    assert!(plain.terminate().success());
    let list = |more: &[&str]| {
        let args = [&["dead-letters", "list", "--json", "--data", folder][..], more].concat();
        let (done, found, error) = printed(&args);
        assert!(done, "{error}");
        found["dead_letters"].as_array().unwrap().clone()
    };
    let found = list(&[]);
    assert_eq!((found.len(), &found[0]["payload"]), (2, &json!(bodies[0])));
    assert_eq!((&found[0]["reason"], &found[0]["readable"]), (&json!("missing_field"), &json!(false)));
    assert!(list(&["--reason", "too_late"]).is_empty());

    let mended = [
        "ingest.http.mapping=visits",
        "ingest.mappings.visits.src=/who",
        "ingest.mappings.visits.dst=/what",
        "ingest.mappings.visits.ts=/at",
    ];
    let flags: Vec<&str> = mended.iter().flat_map(|setting| ["--set", setting]).collect();
    let found = list(&flags);
    let readable: Vec<&Value> = found.iter().map(|letter| &letter["readable"]).collect();
    assert_eq!(readable, [true, false]);
    let id = found[0]["id"].as_str().unwrap();
    let (done, text, _) =
        evergraph(&[&["dead-letters", "show", &id[..9], "--data", folder][..], &flags].concat());
    assert!(
        done && text.contains("now       a -> x at 1") && text.contains("refused   missing_field"),
        "{text}"
    );
    let (done, _, error) = evergraph(&["dead-letters", "show", "nothing", "--data", folder]);
    assert!(!done && error.contains("there is no dead letter nothing"), "{error}");

    let process = mended.iter().fold(Start::in_dir(data.path()), |start, setting| start.set(setting)).ready();
    let url = process.url("");
    let replay = |more: &[&str]| {
        let args = ["dead-letters", "replay", "--json", "--data", folder, "--url", &url];
        printed(&[&args[..], &flags, more].concat())
    };
    let (done, plan, error) = replay(&[]);
    assert!(!done && error.contains("--yes sends 1 dead letters again"), "{error}");
    assert_eq!((&plan["would_send"], &plan["by_source"]), (&json!(1), &json!({ "http": 1 })));
    let (done, sent, error) = replay(&["--yes"]);
    assert!(done, "{error}");
    assert_eq!(sent, json!({ "sent": 1, "refused": 0 }));
    assert_eq!(neighbors(&process, "a"), ["x"]);
    let (done, _, error) = replay(&["--yes"]);
    assert!(!done && error.contains("no dead letter"), "what was sent is not sent again: {error}");
    // One that is refused again stays, and is a letter of its own.
    let (done, sent, error) = replay(&["--yes", "--unreadable"]);
    assert!(!done && error.contains("1 dead letters were refused again"), "{error}");
    assert_eq!(sent, json!({ "sent": 0, "refused": 1 }));
    assert_eq!((list(&flags).len(), list(&["--replayed"]).len()), (2, 3));
    let (done, _, error) = replay(&["--yes", "--id", "0000"]);
    assert!(!done && error.contains("--id 0000: there is no such dead letter"), "{error}");
    assert!(process.terminate().success());
}

#[test]
fn refused_messages_go_back_to_their_topic_and_partition() {
    let Some(broker) = Broker::shared() else { return };
    let (topic, data) = ("refused-visits", tempfile::tempdir().unwrap());
    broker.create_topic(topic, 2);
    let producer: BaseProducer =
        ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    for (partition, who) in [(0, "a"), (1, "b"), (1, "c")] {
        let body = json!({ "who": who, "what": "x", "at": 5 }).to_string();
        producer.send(BaseRecord::to(topic).partition(partition).key(who).payload(&body)).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
    let process = daemon(broker, topic, data.path()).ready();
    process.wait_until("all are refused", |status| kafka(status)["dead_letters"] == 3);
    assert!(process.terminate().success());
    let settings = [
        format!("ingest.kafka.brokers={}", broker.bootstrap()),
        format!("ingest.kafka.topic={topic}"),
        "ingest.kafka.mapping=visits".to_owned(),
        "ingest.mappings.visits.src=/who".to_owned(),
        "ingest.mappings.visits.dst=/what".to_owned(),
        "ingest.mappings.visits.ts=/at".to_owned(),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let process =
        settings[2..].iter().fold(daemon(broker, topic, data.path()), |start, set| start.set(set)).ready();
    let args = ["dead-letters", "replay", "--yes", "--json", "--data", data.path().to_str().unwrap()];
    let (done, sent, error) = printed(&[&args[..], &flags].concat());
    assert!(done, "{error}");
    assert_eq!(sent, json!({ "sent": 3, "refused": 0 }));
    let status = process.wait_until("all are stored", |status| status["log"]["durable_position"] == 3);
    let mut next: Vec<(u64, u64)> = status["ingest"]["positions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|at| (at["partition"].as_u64().unwrap(), at["next_offset"].as_u64().unwrap()))
        .collect();
    next.sort_unstable();
    assert_eq!(next, [(0, 2), (1, 4)], "each in its own partition");
    assert_eq!(neighbors(&process, "x"), ["a", "b", "c"]);
    assert!(process.terminate().success());
}
