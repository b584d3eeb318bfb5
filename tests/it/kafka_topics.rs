//! Several topics of one daemon: each with its mapping and its policies, read, paused, sought and reported by itself.

use std::path::Path;
use std::time::Duration;

use evergraph::ingest::kafka::{KafkaSourceOptions, SampledMessage, newest, preflight};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::process::{Process, Start, evergraph, log_of};

/// Settings in a file, with the brokers above them.
fn settings(broker: &Broker, folder: &Path, text: &str) -> Start {
    let group = folder.file_name().unwrap().to_string_lossy().into_owned();
    let head = format!("[ingest.kafka]\nbrokers = \"{}\"\ngroup = \"{group}\"\n{text}", broker.bootstrap());
    let file = folder.join("evergraph.toml");
    std::fs::write(&file, format!("[learner]\ntrain = false\n{head}")).unwrap();
    Start::in_dir(&folder.join("data")).config(&file)
}

/// Runs a command with the settings of a folder.
fn command(folder: &Path, args: &[&str]) -> (bool, String, String) {
    let (file, data) = (folder.join("evergraph.toml"), folder.join("data"));
    let own = ["--config", file.to_str().unwrap(), "--data", data.to_str().unwrap()];
    evergraph(&[args, &own].concat())
}

fn send(broker: &Broker, topic: &str, messages: &[Value]) {
    let bytes: Vec<Vec<u8>> = messages.iter().map(|value| value.to_string().into_bytes()).collect();
    broker.produce(topic, bytes.iter().map(|value| (0, None, Some(value.as_slice()))));
}

fn plain(users: std::ops::Range<u32>) -> Vec<Value> {
    users.map(|i| json!({ "src": format!("a{i}"), "dst": "b", "ts": i })).collect()
}

fn visits(users: std::ops::Range<u32>) -> Vec<Value> {
    users.map(|i| json!({ "who": i, "page": "home", "at": i })).collect()
}

const VISITS: &str = "[ingest.mappings.visits]\nsrc = \"who:{/who}\"\ndst = \"page:{/page}\"\nts = \"/at\"\n";

/// How the source of a topic stands.
fn source(status: &Value, topic: &str) -> Value {
    let sources = status["ingest"]["sources"].as_array().unwrap();
    let found = sources.iter().find(|source| source["name"] == format!("kafka:{topic}"));
    found.unwrap_or_else(|| panic!("no {topic}: {status:#}")).clone()
}

/// The next offset of a topic's first partition.
fn next(status: &Value, topic: &str) -> u64 {
    let positions = status["ingest"]["positions"].as_array().unwrap();
    let of = positions.iter().find(|position| position["source"] == format!("kafka:{topic}"));
    of.and_then(|position| position["next_offset"].as_u64()).unwrap_or(0)
}

fn stand_at(process: &Process, expected: &[(&str, u64)]) -> Value {
    process.wait_until("all of it", |status| expected.iter().all(|(topic, at)| next(status, topic) == *at))
}

/// The messages of a topic that nothing reads.
fn messages(broker: &Broker, topic: &str) -> Vec<SampledMessage> {
    let options = KafkaSourceOptions::new(&broker.bootstrap(), topic, "test");
    let ranges = preflight(&options, Duration::from_secs(20)).unwrap().partitions;
    newest(&options, &ranges, 100, Duration::from_secs(20)).unwrap()
}

#[test]
fn two_topics_with_mappings_of_their_own_are_read_each_event_once_across_kills() {
    let Some(broker) = Broker::shared() else { return };
    let (first, second, letters) = ("both.plain", "both.visits", "both.letters");
    [first, second, letters].into_iter().for_each(|topic| broker.create_topic(topic, 1));
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "topic = \"{first}\"\n[ingest.kafka.topics.visits]\ntopic = \"{second}\"\nmapping = \"visits\"\n\
         tombstones = \"ignore\"\ndead_letter_topic = \"{letters}\"\n{VISITS}"
    );
    let start = settings(broker, folder.path(), &text);
    send(broker, first, &plain(0..40));
    send(broker, second, &visits(0..30));
    let process = start.ready();
    stand_at(&process, &[(first, 40), (second, 30)]);
    process.kill();

    // What each mapping refuses, and a message without a value, which one topic ignores and the other refuses.
    send(broker, first, &visits(40..41));
    send(broker, second, &plain(40..41));
    [first, second].into_iter().for_each(|topic| broker.produce(topic, [(0, Some(&b"k"[..]), None)]));
    send(broker, first, &plain(41..60));
    send(broker, second, &visits(31..50));
    for _ in 0..2 {
        let process = start.ready();
        std::thread::sleep(Duration::from_millis(40));
        process.kill();
    }
    send(broker, first, &plain(60..61));
    send(broker, second, &visits(50..51));
    let process = start.ready();
    let status = stand_at(&process, &[(first, 62), (second, 52)]);
    assert_eq!(
        (&source(&status, first)["state"], &source(&status, second)["state"]),
        (&json!("running"), &json!("running"))
    );
    // How much waits is known a moment after the partition is read.
    process.wait_until("lags", |status| {
        [first, second].iter().all(|topic| source(status, topic)["lag_records"]["0"] == 0)
    });
    let metrics = process.metrics();
    for topic in [first, second] {
        let lag = format!("evergraph_ingest_lag_records{{partition=\"0\",source=\"kafka:{topic}\"}} ");
        assert!(metrics.contains(&lag), "{lag}");
    }
    assert_eq!(process.get("/v1/nodes/who:50").unwrap().0, 200);
    assert!(process.terminate().success());
    // Offsets that hold no event: a message of the other shape and one without a value in each.
    assert_eq!(log_of(&folder.path().join("data"))["records"], 62 - 2 + 52 - 2);

    let found = messages(broker, letters);
    assert!(!found.is_empty(), "letters of this topic go to its own");
    for letter in &found {
        assert_eq!(letter.header("evergraph.source"), Some(format!("kafka:{second}").as_bytes()));
        assert_eq!(letter.header("evergraph.reason"), Some(&b"missing_field"[..]));
    }
    let (done, listed, error) = command(folder.path(), &["dead-letters", "list", "--json"]);
    assert!(done, "{error}");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let mut reasons: Vec<(&str, &str)> = Vec::new();
    for letter in listed["dead_letters"].as_array().unwrap() {
        assert_eq!(
            (&letter["source"], &letter["readable"]),
            (&json!(format!("kafka:{first}")), &json!(false))
        );
        reasons.push((letter["reason"].as_str().unwrap(), letter["source"].as_str().unwrap()));
    }
    reasons.sort_unstable();
    reasons.dedup();
    assert_eq!(reasons.len(), 2, "the other shape and the tombstone: {listed:#}");
}

#[test]
fn one_topic_is_paused_and_sought_and_the_other_goes_on() {
    let Some(broker) = Broker::shared() else { return };
    let (first, second) = ("alone.a", "alone.b");
    [first, second].into_iter().for_each(|topic| broker.create_topic(topic, 1));
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "[ingest.kafka.topics.a]\ntopic = \"{first}\"\n[ingest.kafka.topics.b]\ntopic = \"{second}\"\n\
         mapping = \"visits\"\n{VISITS}"
    );
    let start = settings(broker, folder.path(), &text);
    send(broker, first, &plain(0..5));
    send(broker, second, &visits(0..5));
    let process = start.ready();
    stand_at(&process, &[(first, 5), (second, 5)]);
    let url = process.url("");
    let name = format!("kafka:{second}");
    assert!(evergraph(&["source", "pause", &name, "--url", &url]).0);
    process.wait_until("held", |status| source(status, second)["state"] == "paused");
    send(broker, second, &visits(5..8));
    send(broker, first, &plain(5..9));
    let status = process.wait_until("the other goes on, and what waits is seen", |status| {
        next(status, first) == 9 && source(status, second)["lag_records"]["0"] == 3
    });
    assert_eq!((next(&status, second), &source(&status, first)["state"]), (5, &json!("running")));

    let seek = |args: &[&str]| evergraph(&[&["source", "seek", "--live", "--url", &url][..], args].concat());
    let (done, _, said) = seek(&["--to", "latest", "--yes"]);
    assert!(!done && said.contains("name one of kafka:alone.a, kafka:alone.b"), "{said}");
    let (done, said, error) = seek(&[&name, "--to", "offset:7", "--yes"]);
    assert!(done && said.contains("from 5 to 7; 2 offsets are skipped"), "{said}{error}");
    let (done, _, said) = seek(&["kafka:alone.a", "--to", "latest", "--yes"]);
    assert!(done || said.contains("pause it first"), "{said}");
    assert!(evergraph(&["source", "resume", &name, "--url", &url]).0);
    stand_at(&process, &[(first, 9), (second, 8)]);
    assert_eq!(process.get("/v1/nodes/who:6").unwrap().0, 404, "it was skipped");
    assert_eq!(process.get("/v1/nodes/who:7").unwrap().0, 200);
    assert!(process.terminate().success());

    let (done, _, said) = command(folder.path(), &["source", "seek", "--to", "earliest"]);
    assert!(!done && said.contains("there are several Kafka sources: name one of"), "{said}");
    let (done, said, error) =
        command(folder.path(), &["source", "seek", "kafka:alone.a", "--to", "offset:3", "--yes"]);
    assert!(done && said.contains("6 offsets are read again"), "{said}{error}");
    let process = start.ready();
    let status = stand_at(&process, &[(first, 9), (second, 8)]);
    assert_eq!(source(&status, second)["received_events"], 0, "the other stays where it was");
    process.wait_until("six are read again", |status| source(status, first)["received_events"] == 6);
    assert!(process.terminate().success());
}

#[test]
fn a_topic_that_is_not_there_is_named_and_stops_only_itself() {
    let Some(broker) = Broker::shared() else { return };
    let (first, missing) = ("there.a", "there.later");
    broker.create_topic(first, 1);
    let folder = tempfile::tempdir().unwrap();
    let text = format!("topic = \"{first}\"\n[ingest.kafka.topics.later]\ntopic = \"{missing}\"\n");
    let start = settings(broker, folder.path(), &text);
    send(broker, first, &plain(0..5));
    let (done, said, _) = command(folder.path(), &["check", "--listen", "127.0.0.1:0"]);
    assert!(!done && said.contains("ok    kafka: topic there.a has 1 partitions"), "{said}");
    assert!(said.contains("FAULT kafka: topic there.later does not exist"), "{said}");
    let process = start.ready();
    let status = process.wait_until("named", |status| {
        next(status, first) == 5 && source(status, missing)["detail"].as_str().unwrap().contains(missing)
    });
    assert_eq!(source(&status, missing)["state"], "degraded", "{status:#}");
    assert_eq!(
        (&source(&status, first)["state"], &source(&status, first)["detail"]),
        (&json!("running"), &json!(""))
    );
    broker.create_topic(missing, 1);
    send(broker, missing, &plain(5..7));
    send(broker, first, &plain(7..8));
    stand_at(&process, &[(first, 6), (missing, 2)]);
    assert!(process.terminate().success());
    assert_eq!(log_of(&folder.path().join("data"))["records"], 8);
}

#[test]
fn letters_of_a_topic_are_sent_back_when_its_mapping_is_mended() {
    let Some(broker) = Broker::shared() else { return };
    let (first, second) = ("mended.a", "mended.b");
    [first, second].into_iter().for_each(|topic| broker.create_topic(topic, 1));
    let folder = tempfile::tempdir().unwrap();
    let topics = |mapping: &str| {
        format!(
            "topic = \"{first}\"\n[ingest.kafka.topics.b]\ntopic = \"{second}\"\nmapping = \"visits\"\n{mapping}"
        )
    };
    let wrong = VISITS.replace("/page", "/place");
    send(broker, first, &visits(0..2));
    send(broker, second, &visits(0..3));
    let process = settings(broker, folder.path(), &topics(&wrong)).ready();
    process.wait_until("all are refused", |status| {
        source(status, first)["dead_letters"] == 2 && source(status, second)["dead_letters"] == 3
    });
    assert!(process.terminate().success());

    let process = settings(broker, folder.path(), &topics(VISITS)).ready();
    let (done, said, _) = command(folder.path(), &["dead-letters", "replay"]);
    assert!(!done && said.contains("kafka:mended.b: 3 dead letters would be sent again"), "{said}");
    assert!(!said.contains("kafka:mended.a"), "plain events are no visits: {said}");
    let (done, _, error) = command(folder.path(), &["dead-letters", "replay", "--yes"]);
    assert!(done, "{error}");
    stand_at(&process, &[(first, 2), (second, 6)]);
    assert!(process.terminate().success());
    let (done, shown, error) = command(folder.path(), &["check", "--listen", "127.0.0.1:0", "--sample", "1"]);
    assert!(
        done && shown.contains("mended.b partition 0 offset 5: who:2 -> page:home at 2"),
        "{shown}{error}"
    );
    assert!(shown.contains("mended.a partition 0 offset 1: missing_field"), "{shown}");
    assert_eq!(log_of(&folder.path().join("data"))["records"], 3);
}

#[test]
fn a_topic_that_is_named_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("evergraph.toml");
    let text = "[ingest.kafka]\nbrokers = \"127.0.0.1:1\"\ntopic = \"a\"\n[ingest.kafka.topics.again]\ntopic = \"a\"\n";
    std::fs::write(&file, text).unwrap();
    let said = Start::in_dir(&folder.path().join("data")).config(&file).fails();
    let expected = "ingest.kafka.topics.again.topic: a is read by [ingest.kafka] already";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn the_settings_of_the_page_are_valid() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/topics.md")).unwrap();
    let blocks: Vec<&str> =
        page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("evergraph.toml");
        std::fs::write(&file, block).unwrap();
        let (faults, warnings) = evergraph::config::Config::examine(Some(&file), &[]);
        assert_eq!((faults, warnings), (vec![], vec![]), "{block}");
    }
}
