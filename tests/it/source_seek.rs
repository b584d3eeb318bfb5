//! A Kafka source is held while the daemon runs, and taken to other positions while that runs and while it is stopped.

use std::path::Path;

use serde_json::{Value, json};

use crate::broker::Broker;
use crate::process::{Process, Start, evergraph, log_of};

const TOPIC: &str = "sought";

fn produce(broker: &Broker, from: u32, count: u32) {
    let event = |i: u32| format!("{{\"src\":\"a{i}\",\"dst\":\"b\",\"ts\":{i}}}").into_bytes();
    let values: Vec<Vec<u8>> = (from..from + count).map(event).collect();
    broker.produce(TOPIC, values.iter().map(|value| (0, None, Some(value.as_slice()))));
}

fn settings(broker: &Broker) -> [String; 2] {
    let brokers = format!("ingest.kafka.brokers={}", broker.bootstrap());
    [brokers, format!("ingest.kafka.topic={TOPIC}")]
}

fn start(broker: &Broker, data: &Path) -> Start {
    let group = data.file_name().unwrap().to_string_lossy().into_owned();
    let start = settings(broker).iter().fold(Start::in_dir(data), |start, setting| start.set(setting));
    start.set(&format!("ingest.kafka.group={group}")).set("learner.train=false")
}

fn stored(process: &Process, count: u64) {
    process.wait_until("stored", |status| status["log"]["durable_position"] == count);
}

#[test]
fn a_source_is_held_skips_and_reads_again() {
    let Some(broker) = Broker::shared() else { return };
    broker.create_topic(TOPIC, 1);
    let folder = tempfile::tempdir().unwrap();
    let source = format!("kafka:{TOPIC}");
    produce(broker, 0, 10);
    let process = start(broker, folder.path()).ready();
    stored(&process, 10);
    let url = process.url("");
    assert!(evergraph(&["source", "pause", &source, "--url", &url]).0);
    process.wait_until("held", |status| status["ingest"]["sources"][1]["state"] == "paused");
    produce(broker, 10, 5);
    let lag = |status: &Value| status["ingest"]["sources"][1]["lag_records"]["0"] == 5;
    process.wait_until("what waits is seen", lag);
    let (_, described, _) = evergraph(&["source", "describe", &source, "--url", &url]);
    assert!(described.contains("partition  0 at offset 10, lag 5"), "{described}");
    let [brokers, topic] = settings(broker);
    let seek = |to: &str, more: &[&str]| {
        let data = folder.path().to_str().unwrap();
        let args = ["source", "seek", "--to", to, "--data", data, "--set", &brokers, "--set", &topic];
        evergraph(&[&args, more].concat())
    };
    let (done, _, told) = seek("latest", &[]);
    assert!(!done && told.contains("in use by another process"), "{told}");
    assert_eq!(process.status()["log"]["durable_position"], 10, "a source that is held reads nothing");
    assert!(process.terminate().success());

    let (done, said, told) = seek("latest", &[]);
    assert!(!done && told.contains("--yes"), "{told}");
    assert!(said.starts_with("would be: ") && said.contains("5 offsets are skipped"), "{said}");
    assert!(seek("earliest", &[]).1.contains("10 offsets are read again"));
    let (done, _, told) = seek("offset:16", &["--yes"]);
    assert!(!done && told.contains("has the offsets 0 to 15"), "{told}");
    let (done, _, told) = seek("offset:3", &["--yes", "--partition", "7"]);
    assert!(!done && told.contains("no partition 7"), "{told}");
    let position = || log_of(folder.path())["positions"][0]["next_offset"].clone();
    assert_eq!(position(), 10, "nothing was changed");
    let (done, said, told) = seek("offset:12", &["--yes"]);
    assert!(done && said.contains("from 10 to 12; 2 offsets are skipped"), "{said}{told}");
    assert_eq!(position(), 12);
    let (done, said, _) = seek("offset:12", &["--yes"]);
    assert!(done && said.contains("is there already"), "{said}");

    let process = start(broker, folder.path()).ready();
    assert!(evergraph(&["source", "resume", &source, "--url", &process.url("")]).0);
    stored(&process, 13);
    let known = |node: &str| process.get(&format!("/v1/nodes/{node}")).unwrap().0;
    assert_eq!(["a9", "a10", "a11", "a12"].map(known), [200, 404, 404, 200], "two were skipped");
    assert!(process.terminate().success());

    let (done, said, told) = seek("offset:8", &["--yes", "--json"]);
    assert!(done, "{told}");
    let said: Value = serde_json::from_str(&said).unwrap();
    let step = json!({ "partition": 0, "from": 15, "to": 8, "skipped": 0, "read_again": 7, "broker_earliest": 0,
        "broker_latest": 15 });
    assert_eq!((&said["done"], &said["partitions"][0]), (&json!(true), &step));
    let mut process = start(broker, folder.path()).ready();
    stored(&process, 13 + 7);
    // A crash right after it does not read them once more.
    process.signal("-KILL");
    process.ended();
    let process = start(broker, folder.path()).ready();
    produce(broker, 15, 1);
    stored(&process, 13 + 7 + 1);
    assert!(process.terminate().success());
    assert_eq!(position(), 16);
    let (done, _, told) = seek("time:0", &["--yes"]);
    assert!(done, "{told}");
    assert_eq!(position(), 0);
    assert!(seek("time:99999999999999", &["--yes"]).0);
    assert_eq!(position(), 16, "nothing is younger");
}

/// A topic of its own, and the daemon's settings for it.
fn start_on(broker: &Broker, topic: &str, data: &Path) -> Start {
    let start = Start::in_dir(data).set(&format!("ingest.kafka.brokers={}", broker.bootstrap()));
    let start = start.set(&format!("ingest.kafka.topic={topic}")).set(&format!("ingest.kafka.group={topic}"));
    start.set("learner.train=false")
}

#[test]
fn a_paused_source_seeks_while_the_daemon_runs_and_a_failed_one_starts_again() {
    let Some(broker) = Broker::shared() else { return };
    let topic = "sought-live";
    broker.create_topic(topic, 2);
    let produce = |from: u32, count: u32| {
        let event = |i: u32| format!("{{\"src\":\"a{i}\",\"dst\":\"b\",\"ts\":{i}}}").into_bytes();
        let values: Vec<Vec<u8>> = (from..from + count).map(event).collect();
        broker.produce(topic, values.iter().map(|value| (0, None, Some(value.as_slice()))));
    };
    let folder = tempfile::tempdir().unwrap();
    let source = format!("kafka:{topic}");
    produce(0, 10);
    let process = start_on(broker, topic, folder.path()).ready();
    stored(&process, 10);
    let url = process.url("");
    let seek = |to: &str, more: &[&str]| {
        evergraph(&[&["source", "seek", "--live", "--url", &url, "--to", to], more].concat())
    };
    let hold = |what: &str| assert!(evergraph(&["source", what, &source, "--url", &url]).0, "{what}");

    let (done, said, told) = seek("offset:4", &["--partition", "0"]);
    assert!(!done && said.contains("would be: ") && said.contains("from 10 to 4; 6 offsets"), "{said}{told}");
    let (done, _, told) = seek("offset:4", &["--yes", "--partition", "0"]);
    assert!(!done && told.contains("is running: pause it first"), "{told}");
    hold("pause");
    for (to, partition, why) in
        [("offset:11", "0", "has the offsets 0 to 10"), ("latest", "7", "no partition 7")]
    {
        let (done, _, told) = seek(to, &["--yes", "--partition", partition]);
        assert!(!done && told.contains(why), "{told}");
    }
    produce(10, 5);
    let (done, said, told) = seek("offset:12", &["--yes", "--partition", "0"]);
    assert!(done && said.contains("from 10 to 12; 2 offsets are skipped"), "{said}{told}");
    let (done, said, told) = seek("offset:12", &["--yes", "--partition", "0"]);
    assert!(done && said.contains("is there already"), "{said}{told}");
    let status = process.status();
    let of_kafka = |status: &Value| status["ingest"]["sources"][1].clone();
    assert_eq!(
        (of_kafka(&status)["state"].as_str(), &status["log"]["durable_position"]),
        (Some("paused"), &json!(10))
    );
    assert_eq!(of_kafka(&status)["accepted_events"], 10, "it counts on");
    hold("resume");
    // A source counts a batch when it takes the outcome up, a moment after the log has it.
    process.wait_until("stored and counted", |status| of_kafka(status)["accepted_events"] == 13);
    assert_eq!(process.status()["log"]["durable_position"], 13);
    let known = |node: &str| process.get(&format!("/v1/nodes/{node}")).unwrap().0;
    assert_eq!(["a9", "a10", "a11", "a12"].map(known), [200, 404, 404, 200], "two were skipped");

    // Backward, while events go on coming; a crash right after it does not read them once more.
    hold("pause");
    let (done, said, told) = seek("offset:8", &["--yes", "--json", "--partition", "0"]);
    assert!(done, "{told}");
    let step = json!({ "partition": 0, "from": 15, "to": 8, "skipped": 0, "read_again": 7, "broker_earliest": 0,
        "broker_latest": 15 });
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["partitions"], json!([step]));
    process.kill();
    let process = start_on(broker, topic, folder.path()).ready();
    let url = process.url("");
    produce(15, 2);
    assert!(evergraph(&["source", "resume", &source, "--url", &url]).0);
    stored(&process, 13 + 7 + 2);

    // The topic is another one: the source ends, and goes on after a seek, without a restart.
    broker.delete_topic(topic);
    broker.create_topic(topic, 2);
    let failed = |status: &Value| of_kafka(status)["state"] == "failed";
    process.wait_until("the source has ended", failed);
    produce(100, 3);
    let args = ["source", "seek", "--live", "--url", &url, "--to", "earliest", "--yes"];
    let (done, said, told) = evergraph(&args);
    assert!(done && said.contains("so the topic was recreated"), "{said}{told}");
    stored(&process, 13 + 7 + 2 + 3);
    assert_eq!(process.get("/v1/nodes/a102").unwrap().0, 200);
    let audit = process.get("/metrics").unwrap().1.as_str().unwrap().to_owned();
    assert!(audit.contains("evergraph_admin_actions_total{action=\"seek\",outcome=\"done\"} 1\n"), "{audit}");
    assert!(process.terminate().success());
}
