//! The change feed: each node that changed is due once, what a real topic has is what `/v1/embeddings` returns, and no
//! last state of a node is missing after kills of the daemon and of the broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evergraph::event::{EdgeId, EventTime, NodeId};
use evergraph::serving::{ChangeFeed, ChangedRows, FeedOptions, NodeEmbedding, QueryEngine, UnknownKeys};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::console::cpu_seconds;
use crate::live::{engine_without_model, small_engine};
use crate::process::{Moments, Process, Start, evergraph};

const OPTIONS: FeedOptions = FeedOptions { slice_rows: 512, queue_bytes_max: 0 };

fn publish(engine: &QueryEngine, key: &str, value: f32) -> NodeId {
    let node = engine.stores.keys.lookup(&key.into()).unwrap();
    engine.states.publish(node, &[value, -value, 0.5, 1.0], EventTime(30));
    node
}

fn names(rows: &ChangedRows) -> Vec<String> {
    rows.rows.iter().map(|row| row.node.to_string()).collect()
}

#[test]
fn what_changed_is_due_once_until_it_is_delivered() {
    let engine = Arc::new(small_engine());
    publish(&engine, "alice", 0.1);
    let mut feed = ChangeFeed::new(engine.clone(), OPTIONS);
    feed.take();
    assert_eq!(
        (feed.next_rows().unwrap(), feed.delivered()),
        (vec![], Some(EdgeId(3))),
        "what was there is not due"
    );
    for value in [0.2, 0.3] {
        publish(&engine, "bob", value);
        publish(&engine, "7", value);
    }
    assert_eq!(feed.pending(), 2);
    feed.take();
    let moments = feed.next_rows().unwrap();
    let [rows] = moments.as_slice() else { panic!("{moments:?}") };
    assert_eq!(names(rows), ["bob", "7"]);
    let response = engine.embeddings(&["bob".into()], Some(rows.at), UnknownKeys::Error).unwrap();
    let NodeEmbedding::Found { vector, .. } = &response.embeddings[0] else { panic!("{response:?}") };
    assert_eq!(rows.rows[0].vector, *vector);
    // Given back, it is owed, and so is what has changed meanwhile; of a node that went nothing is left.
    feed.give_back(moments);
    publish(&engine, "alice", 0.4);
    let bob = engine.stores.keys.lookup(&"bob".into()).unwrap();
    engine.stores.keys.forget(bob);
    engine.states.forget(bob);
    engine.progress.set_learned(EdgeId(3));
    assert_eq!(feed.delivered(), None);
    feed.take();
    assert_eq!(names(&feed.next_rows().unwrap()[0]), ["7"]);
    assert!(feed.next_rows().unwrap().is_empty() && feed.delivered().is_some());
    feed.take();
    assert_eq!(names(&feed.next_rows().unwrap()[0]), ["alice"]);
}

#[test]
fn a_pass_goes_through_all_nodes_behind_what_has_changed() {
    let engine = Arc::new(small_engine());
    for key in ["alice", "bob", "7"] {
        publish(&engine, key, 0.1);
    }
    let mut feed = ChangeFeed::new(engine.clone(), OPTIONS);
    assert!(feed.begin_pass() && feed.has_other_weights());
    publish(&engine, "7", 0.2);
    feed.take();
    assert_eq!(names(&feed.next_rows().unwrap()[0]), ["7"]);
    assert_eq!(feed.delivered(), None, "the pass is under way");
    assert_eq!(names(&feed.next_rows().unwrap()[0]), ["alice", "bob", "7"]);
    assert!(feed.next_rows().unwrap().is_empty());
    assert_eq!((feed.delivered(), feed.passed()), (Some(EdgeId(3)), Some(1)));
    assert!(!feed.has_other_weights());

    let without = Arc::new(engine_without_model());
    let mut feed = ChangeFeed::new(without.clone(), OPTIONS);
    publish(&without, "bob", 0.1);
    feed.take();
    assert!(!feed.begin_pass() && feed.next_rows().is_err() && feed.pending() == 1, "it stays due");
}

/// A daemon with small rows that takes events over HTTP and delivers to `topic`.
fn daemon(broker: &Broker, topic: &str, data: &std::path::Path) -> Start {
    ["memory", "time", "embedding"]
        .iter()
        .fold(Start::in_dir(data), |start, of| start.set(&format!("model.{of}_dimension=8")))
        .set("learner.gate.enabled=false")
        .set("checkpoint.interval_seconds=1")
        .set(&format!("feed.brokers={}", broker.bootstrap()))
        .set(&format!("feed.topic={topic}"))
        .set("feed.create_partitions=2")
        .set("feed.coalesce_ms=50")
}

/// The latest message of each key, `None` for one without a value, and how many there were.
struct Topic {
    latest: BTreeMap<String, Option<Vec<u8>>>,
    headers: BTreeMap<String, BTreeMap<String, String>>,
    messages: usize,
}

fn read(broker: &Broker, topic: &str) -> Topic {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "reader")
        .set("enable.partition.eof", "true");
    let consumer: BaseConsumer = config.create().unwrap();
    let mut all = TopicPartitionList::new();
    (0..2).for_each(|partition| all.add_partition_offset(topic, partition, Offset::Beginning).unwrap());
    consumer.assign(&all).unwrap();
    let mut found = Topic { latest: BTreeMap::new(), headers: BTreeMap::new(), messages: 0 };
    let (mut ends, deadline) = (0, Instant::now() + Duration::from_secs(60));
    while ends < 2 {
        assert!(Instant::now() < deadline, "the topic is not read to its ends");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => {
                let key = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
                let text = |value: Option<&[u8]>| String::from_utf8(value.unwrap().to_vec()).unwrap();
                let headers = message.headers().into_iter().flat_map(Headers::iter);
                let headers = headers.map(|header| (header.key.to_owned(), text(header.value))).collect();
                found.headers.insert(key.clone(), headers);
                found.latest.insert(key, message.payload().map(<[u8]>::to_vec));
                found.messages += 1;
            }
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => ends += 1,
            Some(Err(error)) => eprintln!("{error}"),
            None => {}
        }
    }
    found
}

fn push(process: &Process, lines: &[Value]) {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines).unwrap();
    assert_eq!(status, 200, "{response}");
}

fn edge(src: &str, dst: &str, ts: u64) -> Value {
    json!({ "src": src, "dst": dst, "ts": ts })
}

fn delivered(process: &Process, position: u64) -> Value {
    process.wait_until("all changes are delivered", |status| {
        status["feed"]["delivered_position"] == position && status["feed"]["pending_nodes"] == 0
    })
}

fn vector(values: &Value) -> Vec<f32> {
    serde_json::from_value(values.clone()).unwrap_or_else(|error| panic!("{values}: {error}"))
}

/// Products of batches of other sizes are added in another order.
fn assert_same(found: &[f32], expected: &[f32]) {
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert_eq!(found.len(), expected.len());
    assert!(!found.iter().zip(expected).any(differs), "{found:?} {expected:?}");
}

#[test]
fn a_topic_has_the_embedding_of_every_node_as_the_daemon_returns_it_and_null_for_deleted_ones() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let process = daemon(broker, "embeddings", data.path()).ready();
    let events: Vec<Value> =
        (0..300).map(|i| edge(&format!("user{}", i % 40), &(i % 9).to_string(), i)).collect();
    push(&process, &events);
    let status = delivered(&process, 300);
    assert_eq!(
        (&status["feed"]["state"], &status["feed"]["topic"]),
        (&"running".into(), &"embeddings".into())
    );
    // All of what follows is one batch, so its rows are of one moment.
    push(
        &process,
        &(0..49).map(|i| edge(&format!("user{}", i % 40), &(i % 9).to_string(), 1_000)).collect::<Vec<_>>(),
    );
    delivered(&process, 349);
    let topic = read(broker, "embeddings");
    assert_eq!(topic.latest.len(), 49);
    let (mut compared, nodes) = (0, topic.latest.keys().collect::<Vec<_>>());
    for node in nodes {
        let row: Value = serde_json::from_slice(topic.latest[node].as_ref().unwrap()).unwrap();
        assert_eq!(row["node"], node.parse::<u64>().map_or_else(|_| json!(node), |number| json!(number)));
        assert_eq!(
            (&row["source"], &row["cold"], &row["last_event"]),
            (&"model".into(), &false.into(), &1_000.into())
        );
        let request = json!({ "nodes": [row["node"]], "at": row["at"] }).to_string();
        let (_, response) = process.post("/v1/embeddings", "application/json", &request).unwrap();
        if row["applied_position"] == 349 && row["model_version"] == response["freshness"]["model_version"] {
            compared += 1;
            assert_same(&vector(&row["embedding"]), &vector(&response["embeddings"][0]["embedding"]));
        }
    }
    assert!(compared >= 40, "{compared} rows are as of now");

    push(&process, &[json!({ "op": "delete", "node": "user3" }), json!({ "op": "delete", "node": 4 })]);
    push(&process, &[edge("user3", "5", 2_000)]);
    delivered(&process, 352);
    let topic = read(broker, "embeddings");
    assert_eq!(topic.latest["4"], None);
    let again: Value = serde_json::from_slice(topic.latest["user3"].as_ref().unwrap()).unwrap();
    assert_eq!(again["last_event"], 2_000, "the later node of the name comes last");
    let metrics = process.get("/metrics").unwrap().1.as_str().unwrap().to_owned();
    // Where the name has a node again by then, its row takes the place of the deletion.
    let of = |count| metrics.contains(&format!("\nevergraph_feed_deletions_total {count}\n"));
    assert!(of(1) || of(2), "{metrics}");
    assert_eq!(process.get("/readyz").unwrap().1["checks"]["feed"]["state"], "ok");
    assert!(process.terminate().success());

    // What was delivered is not delivered again at every start.
    let process = daemon(broker, "embeddings", data.path()).ready();
    let status = delivered(&process, 352);
    assert!(status["feed"]["delivered_rows"].as_u64().unwrap() < 49, "{status:#}");
    let brokers = format!("feed.brokers={}", broker.bootstrap());
    let resend = |topic: &str| {
        let topic = format!("feed.topic={topic}");
        let settings = ["--set", &topic, "--set", &brokers, "--data", data.path().to_str().unwrap()];
        evergraph(&[&["feed", "resend"][..], &settings].concat())
    };
    assert!(!resend("embeddings").0, "a running daemon goes on from what it has delivered");
    assert!(process.terminate().success());
    assert!(resend("").2.contains("there is no change feed"));
    assert!(resend("embeddings").0);
    let process = daemon(broker, "embeddings", data.path()).ready();
    let status = delivered(&process, 352);
    assert!(status["feed"]["delivered_rows"].as_u64().unwrap() >= 48, "all but the deleted one: {status:#}");
}

#[test]
fn a_node_whose_features_change_is_delivered_and_a_feed_to_elsewhere_begins_anew() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let start = |topic| daemon(broker, topic, data.path()).set("stream.node_feature_dimension=2");
    let process = start("features").ready();
    push(&process, &[edge("a", "b", 1), edge("c", "d", 2)]);
    delivered(&process, 2);
    push(&process, &[json!({ "op": "node", "node": "c", "ts": 3, "features": [0.5, -3.0] })]);
    delivered(&process, 3);
    let topic = read(broker, "features");
    let row = |node: &str| -> Value { serde_json::from_slice(topic.latest[node].as_ref().unwrap()).unwrap() };
    assert_eq!(row("c")["applied_position"], 3);
    assert!(row("a")["applied_position"].as_u64().unwrap() < 3, "{}", row("a"));
    assert!(process.terminate().success());

    // All of it goes to another topic, and to the first again after that.
    let process = start("features-2").ready();
    delivered(&process, 3);
    assert_eq!(read(broker, "features-2").latest.len(), 4);
    assert!(process.terminate().success());
    let before = read(broker, "features").messages;
    let process = start("features").ready();
    delivered(&process, 3);
    assert!(read(broker, "features").messages >= before + 4);

    // One that is gone and is made again gets all, too.
    broker.delete_topic("features");
    push(&process, &[edge("e", "a", 5)]);
    delivered(&process, 4);
    assert_eq!(read(broker, "features").latest.len(), 5);
}

#[test]
fn bytes_and_points_carry_the_same_embeddings() {
    let Some(broker) = Broker::shared() else { return };
    let start = |format: &str, data: &std::path::Path| {
        daemon(broker, &format!("as-{format}"), data)
            .set(&format!("feed.format={format}"))
            .set("feed.collection=nodes")
            .ready()
    };
    for format in ["binary", "qdrant"] {
        let data = tempfile::tempdir().unwrap();
        let process = start(format, data.path());
        push(&process, &[edge("ann", "7", 1), edge("ann", "8", 2)]);
        delivered(&process, 2);
        let topic = read(broker, &format!("as-{format}"));
        let value = topic.latest["7"].as_ref().unwrap();
        let (at, floats): (i64, Vec<f32>) = if format == "binary" {
            let floats = value.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            (topic.headers["7"]["evergraph.at"].parse().unwrap(), floats.collect())
        } else {
            let point: Value = serde_json::from_slice(value).unwrap();
            assert_eq!((&point["collection_name"], &point["id"]), (&"nodes".into(), &7.into()));
            (point["payload"]["at"].as_i64().unwrap(), vector(&point["vector"]))
        };
        let request = json!({ "nodes": [7], "at": at }).to_string();
        let (_, response) = process.post("/v1/embeddings", "application/json", &request).unwrap();
        assert_same(&floats, &vector(&response["embeddings"][0]["embedding"]));
    }
}

#[test]
fn no_last_state_is_lost_by_kills_of_the_daemon_and_of_the_broker() {
    let Some(broker) = Broker::own() else { return };
    if !broker.is_kafka() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    let start = daemon(&broker, "killed", data.path()).set("snapshot.keep=2");
    let (mut moments, mut position) = (Moments::from_environment(), 0);
    // The position behind the last record of each node; `None` once it is deleted.
    let mut last: BTreeMap<String, Option<u64>> = BTreeMap::new();
    for round in 0..8_u64 {
        let process = start.ready();
        let mut lines = Vec::new();
        for i in 0..60 {
            let [src, dst] = [format!("u{}", (round * 13 + i) % 90), format!("i{}", i % 11)];
            lines.push(edge(&src, &dst, round * 100 + i));
            position += 1;
            last.extend([src, dst].map(|node| (node, Some(position))));
        }
        let gone = format!("u{}", round * 7);
        if last.get(&gone).is_some_and(Option::is_some) {
            lines.push(json!({ "op": "delete", "node": gone }));
            position += 1;
            last.insert(gone, None);
        }
        push(&process, &lines);
        match round {
            2 => broker.kill(),
            // With the broker away, a snapshot forgets names whose deletion nobody was told.
            3 => {
                process.wait_until("learned", |status| status["learner"]["applied_position"] == position);
                let made = process.post("/v1/admin/snapshots", "application/json", "{}").unwrap();
                assert_eq!(made.0, 200, "{made:?}");
                process.wait_until("failing", |status| status["feed"]["state"] == "failing");
            }
            4 => broker.start(),
            6 => {
                broker.stop();
                broker.start();
            }
            _ => {}
        }
        std::thread::sleep(moments.below(Duration::from_millis(400)));
        process.kill();
    }
    let process = start.ready();
    delivered(&process, position);
    let topic = read(&broker, "killed");
    for (node, last) in &last {
        match (last, topic.latest.get(node).unwrap_or_else(|| panic!("{node} is not there"))) {
            (None, None) => {}
            (Some(last), Some(value)) => {
                let row: Value = serde_json::from_slice(value).unwrap();
                let reflects = row["applied_position"].as_u64().unwrap();
                assert!(reflects >= *last, "{node} is as of {reflects}, its last record is before {last}");
            }
            (last, found) => {
                panic!("{node}: its last record is before {last:?}, and the topic has {found:?}")
            }
        }
    }
    assert_eq!(topic.latest.keys().collect::<Vec<_>>(), last.keys().collect::<Vec<_>>());
    eprintln!("{} messages for {} nodes", topic.messages, last.len());
}

#[test]
fn a_feed_that_cannot_be_is_named_before_the_start_and_while_it_runs() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let check = |settings: &[&str]| {
        let mut args = vec!["check", "--data", folder];
        settings.iter().for_each(|setting| args.extend(["--set", setting]));
        evergraph(&args)
    };
    let brokers = format!("feed.brokers={}", broker.bootstrap());
    let (ok, said, _) = check(&[&brokers, "feed.topic=nowhere"]);
    assert!(!ok && said.contains("FAULT feed: topic nowhere does not exist"), "{said}");
    let (_, said, _) = check(&[&brokers, "feed.topic=nowhere", "feed.create_partitions=3"]);
    assert!(said.contains("ok    feed: topic nowhere will be created with 3 partitions"), "{said}");
    let (ok, _, said) = check(&["feed.topic=nowhere"]);
    assert!(!ok && said.contains("feed.topic") && said.contains("needs brokers"), "{said}");
    let (ok, _, said) = check(&[&brokers, "feed.topic=a", "feed.format=qdrant"]);
    assert!(!ok && said.contains("feed.collection"), "{said}");

    let process = daemon(broker, "nowhere", data.path()).set("feed.create_partitions=0").ready();
    push(&process, &[edge("a", "b", 1)]);
    let status = process.wait_until("failing", |status| status["feed"]["state"] == "failing");
    assert!(
        status["feed"]["detail"].as_str().unwrap().contains("topic nowhere does not exist"),
        "{status:#}"
    );
    let ready = process.get("/readyz").unwrap();
    assert_eq!((ready.0, &ready.1["checks"]["feed"]["state"]), (200, &"degraded".into()), "{ready:?}");
    broker.create_topic("nowhere", 2);
    delivered(&process, 1);
    assert_eq!(read(broker, "nowhere").latest.len(), 2);
}

#[test]
fn a_deletion_is_delivered_before_there_are_weights() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let process = daemon(broker, "weightless", data.path())
        .set("learner.gate.enabled=true")
        .set("learner.gate.before_promotion=not_ready")
        .ready();
    push(&process, &[edge("a", "b", 1), edge("c", "b", 2)]);
    push(&process, &[json!({ "op": "delete", "node": "a" })]);
    let sent = |status: &Value| status["feed"]["delivered_deletions"] == 1;
    let status = process.wait_until("the deletion is delivered", sent);
    assert_eq!((&status["feed"]["state"], &status["feed"]["detail"]), (&"running".into(), &"".into()));
    assert_eq!(read(broker, "weightless").latest, BTreeMap::from([("a".to_owned(), None)]));
}

#[test]
fn rows_that_the_live_index_computed_are_delivered_and_counted() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let start = daemon(broker, "indexed", data.path()).set("feed.coalesce_ms=400");
    let process = start.set("index.bytes_max=67108864").ready();
    let counts = |status: &Value| {
        ["delivered_rows", "delivered_index_rows"].map(|name| status["feed"][name].as_u64().unwrap())
    };
    // The index has to have rows of the weights that are served, and to come to a node within a turn of the feed.
    let found = (1..=30).find_map(|round| {
        push(&process, &(0..8).map(|i| edge(&format!("u{i}"), "hub", 100 * round + i)).collect::<Vec<_>>());
        let [rows, indexed] = counts(&delivered(&process, 8 * round));
        (indexed > 0).then_some((rows, indexed))
    });
    let (rows, indexed) = found.expect("no row of the index was delivered in 30 rounds");
    assert!(indexed <= rows, "{indexed} of {rows}");
    assert_eq!(read(broker, "indexed").latest.len(), 9);
    let metrics = process.metrics();
    let counted = metrics.lines().find_map(|line| line.strip_prefix("evergraph_feed_index_rows_total "));
    assert!(counted.is_some_and(|count| count.parse::<u64>().unwrap() >= indexed), "{counted:?}");
}

/// Events of the file that is read while a feed is measured.
const FEED_EVENTS: u64 = 2_000_000;

/// Over `seconds`, while a file is read and one version is served: events a second that are trained on, rows a second
/// that are delivered, the share of those that the live index has computed, and microseconds that the daemon computes
/// for an event that is trained on.
fn rates(start: &Start, seconds: u64) -> [f64; 4] {
    let process = start.ready();
    process.wait_until("training", |status| status["learner"]["trained_events"].as_u64().unwrap() > 5_000);
    let promoted = process.post("/v1/admin/model/promote", "application/json", "{}").unwrap();
    assert_eq!(promoted.0, 200, "{promoted:?}");
    process.wait_until("rows of the version that is served, or no live index", |_| {
        let found = process.post("/v1/links/top", "application/json", r#"{"src": ["u1"]}"#).unwrap().1;
        let version = |of: &str| found[of]["model_version"].as_u64();
        found["error_type"] == "index_disabled"
            || version("index").is_some() && version("index") == version("freshness")
    });
    let sample = || {
        let status = process.status();
        let feed = |name: &str| status["feed"][name].as_f64().unwrap_or_default();
        let trained = status["learner"]["trained_events"].as_f64().unwrap();
        let rows = [feed("delivered_rows"), feed("delivered_index_rows")];
        (Instant::now(), [trained, rows[0], rows[1], cpu_seconds(process.pid())])
    };
    let before = sample();
    std::thread::sleep(Duration::from_secs(seconds));
    let after = sample();
    let took = (after.0 - before.0).as_secs_f64();
    assert!(after.1[0] < 0.99 * FEED_EVENTS as f64, "the file has ended");
    let [trained, rows, indexed, cpu] = std::array::from_fn(|i| after.1[i] - before.1[i]);
    [trained / took, rows / took, indexed / rows.max(1.0), 1e6 * cpu / trained]
}

#[test]
#[ignore = "measures; FEED_SECONDS=20 make feed-bench"]
fn what_a_feed_costs_training() {
    let Some(seconds) = std::env::var("FEED_SECONDS").ok().and_then(|text| text.parse().ok()) else { return };
    let Some(broker) = Broker::shared() else { return };
    let folder = tempfile::tempdir().unwrap();
    let draw = |i: u64, of: u64, below: u64| evergraph::device::rng::draw(of, i) % below;
    let rows = (0..FEED_EVENTS).map(|i| format!("u{},i{},{i}", draw(i, 1, 30_000), draw(i, 2, 3_000)));
    let events = crate::kafka_daemon::csv(folder.path().join("events.csv"), rows);
    // With the default settings there is no live index. One is kept at its default share of a core, with a feed or
    // without.
    let (indexed, binary) = ("index.bytes_max=1073741824", "feed.format=binary");
    let arms: [&[&str]; 4] = [&[], &[binary], &[indexed], &[indexed, binary]];
    let run = |settings: &[&str], topic: Option<String>| {
        let data = tempfile::tempdir().unwrap();
        // The full speed of training: what cannot be trained on waits in the file.
        let start = Start::in_dir(data.path())
            .set(&format!("ingest.file.path={}", events.display()))
            .set("learner.lag_events_max=1000000000")
            // One version is served from its promotion on, as in the minutes between two decisions of the gate.
            .set("learner.gate.every_batches=10000")
            .set("feed.create_partitions=4")
            .set("feed.rows_per_second_max=10000");
        let start = settings.iter().fold(start, |start, setting| start.set(setting));
        let feed = topic.iter().fold(start, |start, topic| {
            start.set(&format!("feed.brokers={}", broker.bootstrap())).set(&format!("feed.topic={topic}"))
        });
        rates(&feed, seconds)
    };
    let mut found = arms.map(|_| [Vec::new(), Vec::new()]);
    // In turns, so that what else the machine does meets all of them.
    for round in 0..3 {
        for (arm, (settings, found)) in arms.iter().zip(&mut found).enumerate() {
            found[0].push(run(settings, None));
            found[1].push(run(settings, Some(format!("cost-{arm}-{round}"))));
            eprintln!(
                "{settings:?}: trained and rows a second, share of the index, microseconds an event: {:.2?}",
                found.each_ref().map(|runs| runs.last())
            );
        }
    }
    let median = |runs: &mut Vec<[f64; 4]>, of: usize| {
        runs.sort_by(|a, b| a[of].total_cmp(&b[of]));
        runs[runs.len() / 2][of]
    };
    for (settings, [without, with]) in arms.iter().zip(&mut found) {
        let (rows, indexed) = (median(with, 1), 100.0 * median(with, 2));
        let (ratio, own) = (median(with, 0) / median(without, 0), median(without, 3) / median(with, 3));
        eprintln!(
            "{settings:?}: with {rows:.0} rows a second, {indexed:.0} % of them of the index, training runs at \
             {ratio:.3} of its speed without a feed, beside the broker; by the daemon's CPU time alone at {own:.3}"
        );
    }
}
