//! Kafka around a daemon: away for long, its topic made anew, another cluster in its place, partitions that move
//! between two daemons.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use serde_json::Value;

use crate::broker::Broker;
use crate::kafka_daemon::{daemon, kafka};
use crate::process::{Process, log_of};

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

fn admin<T>(broker: &Broker, ask: impl AsyncFnOnce(AdminClient<DefaultClientContext>) -> T) -> T {
    let client = ClientConfig::new().set("bootstrap.servers", broker.bootstrap()).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(ask(client))
}

#[test]
fn a_topic_that_was_made_anew_is_named_and_not_read() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, data) = ("made-anew", tempfile::tempdir().unwrap());
    broker.create_topic(topic, 1);
    produce(broker, topic, 1, 0..500);
    let start = daemon(broker, topic, data.path()).set("learner.train=false");
    let process = start.ready();
    stored(&process, 500);
    assert!(process.terminate().success());
    admin(broker, async |client| client.delete_topics(&[topic], &AdminOptions::new()).await.unwrap());
    std::thread::sleep(Duration::from_secs(1));
    broker.create_topic(topic, 1);
    produce(broker, topic, 1, 0..20);
    let process = start.ready();
    let status = named(&process, "created again");
    assert_eq!(status["log"]["durable_position"], 500, "nothing of the new topic is taken for the old one");
    assert_eq!(process.get("/v1/nodes/u1").unwrap().0, 200, "what is known is answered");
    ends_with(process, data.path(), 500);
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
fn partitions_that_move_between_two_daemons_lose_nothing_and_double_nothing_in_either() {
    let Some(broker) = Broker::shared() else { return };
    if !broker.is_kafka() {
        return;
    }
    let (topic, one, two) = ("moving", tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    broker.create_topic(topic, 4);
    let start = |data: &Path, name: &str| {
        daemon(broker, topic, data)
            .set("ingest.kafka.group=moving")
            .set(&format!("ingest.kafka.instance_id={name}"))
            .set("learner.train=false")
            .set("ingest.kafka.properties.session.timeout.ms=6000")
    };
    let owned =
        |process: &Process| kafka(&process.status())["lag_records"].as_object().map_or(0, |lag| lag.len());
    let first = start(one.path(), "one").ready();
    produce(broker, topic, 4, 0..2_000);
    stored(&first, 2_000);
    let second = start(two.path(), "two").ready();
    for part in 1..10 {
        produce(broker, topic, 4, part * 2_000..part * 2_000 + 2_000);
        std::thread::sleep(Duration::from_millis(300));
    }
    second.wait_until("it has partitions", |_| owned(&second) > 0 && owned(&first) + owned(&second) == 4);
    // Killed: its partitions come back when its session has ended, and what it had not stored with them.
    second.kill();
    produce(broker, topic, 4, 20_000..21_000);
    first.wait_until("all partitions again", |_| owned(&first) == 4);
    first.wait_until("no lag", |status| {
        let lag = kafka(status)["lag_records"].clone();
        lag.as_object().is_some_and(|lag| lag.len() == 4 && lag.values().all(|records| *records == 0))
    });
    assert!(first.terminate().success());
    let ((of_one, records_of_one), (of_two, records_of_two)) = (events(one.path()), events(two.path()));
    eprintln!("{} events in one daemon, {} in the other", of_one.len(), of_two.len());
    assert_eq!(
        (of_one.len(), records_of_one),
        (21_000, 21_000),
        "all partitions in the end: all events, once"
    );
    assert_eq!(of_two.len(), records_of_two, "each event once");
    assert!(of_two.is_subset(&of_one) && !of_two.is_empty());
}
