//! Kafka around a daemon: away for long, its topic made anew, another cluster in its place, another daemon that reads the
//! same, partitions that are added.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rdkafka::admin::{AdminOptions, NewPartitions};
use serde_json::Value;

use crate::broker::Broker;
use crate::kafka_daemon::{daemon, kafka};
use crate::process::{Process, evergraph, log_of};

/// Seconds without a broker: enough for every timeout of the source. `make soak` has longer ones.
const OUTAGE: Duration = Duration::from_secs(20);

fn produce(broker: &Broker, topic: &str, partitions: i32, events: std::ops::Range<u64>) {
    let values: Vec<(i32, String)> = events
        .map(|i| {
            (i as i32 % partitions, format!("{{\"src\":\"u{}\",\"dst\":\"event {i}\",\"ts\":{i}}}", i % 97))
        })
        .collect();
    broker.produce(topic, values.iter().map(|(partition, value)| (*partition, None, Some(value.as_bytes()))));
}

fn stored(process: &Process, events: u64) {
    process.wait_until("all stored", |status| status["log"]["indexed_position"] == events);
}

/// Waits until the source is in trouble and says so with this word.
fn named(process: &Process, word: &str) -> Value {
    process.wait_until(word, |status| kafka(status)["detail"].as_str().unwrap().contains(word))
}

fn ends_with(process: Process, data: &Path, records: u64) {
    assert!(process.terminate().success());
    let log = log_of(data);
    assert_eq!((&log["records"], &log["edges"]), (&records.into(), &records.into()), "{log}");
}

#[test]
fn a_broker_that_is_away_for_long_is_named_and_costs_nothing_not_even_over_a_restart() {
    let Some(broker) = Broker::own() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, data) = ("away", tempfile::tempdir().unwrap());
    broker.create_topic(topic, 2);
    produce(&broker, topic, 2, 0..1_000);
    let start = daemon(&broker, topic, data.path()).set("learner.train=false");
    let process = start.ready();
    stored(&process, 1_000);
    broker.kill();
    named(&process, "refuses connections");
    std::thread::sleep(OUTAGE / 2);
    assert_eq!(process.get("/readyz").unwrap().0, 200, "what is known is answered");
    assert_eq!(process.get("/v1/nodes/u1").unwrap().0, 200);
    process.kill();
    // It starts without a broker, too, and waits for it.
    let process = start.ready();
    named(&process, "refuses connections");
    std::thread::sleep(OUTAGE / 2);
    broker.start();
    produce(&broker, topic, 2, 1_000..2_000);
    stored(&process, 2_000);
    process.wait_until("it runs again", |status| kafka(status)["state"] == "running");
    ends_with(process, data.path(), 2_000);
}

fn make_anew(broker: &Broker, topic: &str, partitions: i32) {
    broker.delete_topic(topic);
    broker.create_topic(topic, partitions);
}

/// A topic of 500 events was stored, and one of as many is in its place when the daemon starts again.
fn made_anew_while_stopped(topic: &str, events: u64, word: &str) {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let data = tempfile::tempdir().unwrap();
    broker.create_topic(topic, 1);
    produce(broker, topic, 1, 0..500);
    let start = daemon(broker, topic, data.path()).set("learner.train=false");
    let process = start.ready();
    stored(&process, 500);
    assert!(process.terminate().success());
    make_anew(broker, topic, 1);
    produce(broker, topic, 1, 1_000..1_000 + events);
    let process = start.ready();
    let status = named(&process, word);
    let detail = kafka(&status)["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains(topic) && detail.contains("partition 0"), "{detail}");
    assert!(detail.contains("evergraph source seek"), "{detail}");
    assert_eq!(kafka(&status)["state"], "failed", "{status}");
    assert_eq!(status["log"]["durable_position"], 500, "nothing of the new topic is taken for the old one");
    assert_eq!(process.get("/v1/nodes/u1").unwrap().0, 200, "what is known is answered");
    assert!(process.terminate().success());
    assert_eq!(log_of(data.path())["records"], 500);

    // The command that the message names goes on with the new topic.
    let data_path = data.path().to_str().unwrap();
    let (brokers, topic) =
        (format!("ingest.kafka.brokers={}", broker.bootstrap()), format!("ingest.kafka.topic={topic}"));
    let seek =
        ["source", "seek", "--to", "earliest", "--data", data_path, "--set", &brokers, "--set", &topic];
    let (done, said, told) = evergraph(&[&seek[..], &["--yes"]].concat());
    assert!(done, "{said}{told}");
    let process = start.ready();
    stored(&process, 500 + events);
    ends_with(process, data.path(), 500 + events);
}

#[test]
fn a_topic_that_was_made_anew_is_named_and_not_read() {
    made_anew_while_stopped("made-anew", 20, "created again");
}

#[test]
fn a_topic_that_was_made_anew_and_is_longer_is_named_and_not_read() {
    made_anew_while_stopped("made-anew-longer", 600, "created again");
}

#[test]
fn a_topic_that_is_made_anew_under_a_running_daemon_is_named_and_not_read() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, data) = ("made-anew-meanwhile", tempfile::tempdir().unwrap());
    broker.create_topic(topic, 1);
    produce(broker, topic, 1, 0..500);
    let process = daemon(broker, topic, data.path()).set("learner.train=false").ready();
    stored(&process, 500);
    let source = format!("kafka:{topic}");
    let url = process.url("");
    // Nothing is fetched while the new topic grows beyond the old one, so no offset is ever out of range.
    assert!(evergraph(&["source", "pause", &source, "--url", &url]).0);
    process.wait_until("held", |status| kafka(status)["state"] == "paused");
    std::thread::sleep(Duration::from_secs(1));
    make_anew(broker, topic, 1);
    produce(broker, topic, 1, 1_000..1_600);
    assert!(evergraph(&["source", "resume", &source, "--url", &url]).0);
    let status = named(&process, "created again");
    assert_eq!(status["log"]["durable_position"], 500, "nothing of the new topic is taken for the old one");
    assert!(process.terminate().success());
    assert_eq!(log_of(data.path())["records"], 500);
}

#[test]
fn a_topic_of_another_cluster_is_named_and_not_read() {
    let (Some(first), Some(second)) = (Broker::shared(), Broker::own()) else { return };
    if !first.is_kafka() || !second.is_kafka() {
        return;
    }
    let (topic, data) = ("of-two-clusters", tempfile::tempdir().unwrap());
    for (broker, events) in [(first, 300), (&second, 400)] {
        broker.create_topic(topic, 1);
        produce(broker, topic, 1, 0..events);
    }
    let process = daemon(first, topic, data.path()).set("learner.train=false").ready();
    stored(&process, 300);
    assert!(process.terminate().success());
    // The position is one that the other topic has, too.
    let process = daemon(&second, topic, data.path()).set("learner.train=false").ready();
    let status = named(&process, "another cluster");
    assert_eq!(kafka(&status)["state"], "failed", "{status}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(process.status()["log"]["durable_position"], 300);
    assert!(process.terminate().success());
    let process = daemon(first, topic, data.path()).set("learner.train=false").ready();
    produce(first, topic, 1, 300..310);
    stored(&process, 310);
    ends_with(process, data.path(), 310);
}

/// Which events a daemon has stored, and how many records that took.
fn events(data: &Path) -> (BTreeSet<String>, usize) {
    let (mut reader, mut names, mut records) =
        (evergraph::log::read_only(&data.join("log")).unwrap(), BTreeSet::new(), 0);
    while let Some(frame) = reader.next_frame().unwrap() {
        records += frame.batch.len();
        names.extend(frame.new_keys.iter().map(ToString::to_string).filter(|name| name.starts_with("event")));
    }
    (names, records)
}

#[test]
fn two_daemons_of_one_group_store_everything_each_also_of_partitions_that_come_later() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, one, two) = ("of-two-daemons", tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    broker.create_topic(topic, 2);
    let start = |data: &Path| {
        daemon(broker, topic, data)
            .set("ingest.kafka.group=the-same")
            .set("ingest.kafka.properties.topic.metadata.refresh.interval.ms=1000")
            .set("learner.train=false")
    };
    let (first, second) = (start(one.path()).ready(), start(two.path()).ready());
    produce(broker, topic, 2, 0..2_000);
    stored(&first, 2_000);
    stored(&second, 2_000);
    // One is killed; what the other reads does not depend on it.
    second.kill();
    broker.admin(async |client| {
        client.create_partitions([&NewPartitions::new(topic, 4)], &AdminOptions::new()).await.unwrap()
    });
    std::thread::sleep(Duration::from_secs(1));
    produce(broker, topic, 4, 2_000..4_000);
    stored(&first, 4_000);
    let second = start(two.path()).ready();
    stored(&second, 4_000);
    for (process, data) in [(first, &one), (second, &two)] {
        let no_lag = |status: &Value| {
            let lag = kafka(status)["lag_records"].clone();
            lag.as_object().is_some_and(|lag| lag.len() == 4 && lag.values().all(|records| *records == 0))
        };
        process.wait_until("no lag", no_lag);
        assert!(process.terminate().success());
        let (names, records) = events(data.path());
        assert_eq!((names.len(), records), (4_000, 4_000), "each event once");
    }
}
