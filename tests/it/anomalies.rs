//! How unusual events are: planted ones stand out of a regular stream, requests and a real topic have the same figures,
//! and a learner that is behind scores all where it is asked to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::process::{Process, Start};

/// Users that each have two items of their own, and now and then one who takes another's.
fn stream(events: u64) -> (String, Vec<u64>) {
    let (mut lines, mut planted) = (String::new(), Vec::new());
    for i in 0..events {
        let user = i * 7 % 40;
        let item = if i > 2_000 && i % 97 == 0 {
            planted.push(i);
            format!("item{}", (user + 3 + i / 97 * 5) % 40 * 2)
        } else {
            format!("item{}", user * 2 + i % 2)
        };
        lines += &format!("{}\n", json!({ "src": format!("user{user}"), "dst": item, "ts": i }));
    }
    (lines, planted)
}

fn learned(process: &Process, events: u64) -> Value {
    process.wait_until("learned", |status| status["learner"]["applied_position"] == events)
}

fn push(process: &Process, lines: &str) {
    let (status, response) = process.post("/v1/events", "application/x-ndjson", lines).unwrap();
    assert_eq!(status, 200, "{response}");
}

fn start(data: &std::path::Path) -> Start {
    Start::in_dir(data)
        .set("learner.gate.enabled=false")
        .set("model.kind=walk")
        .set("learner.met_negatives=0")
}

#[test]
fn planted_events_stand_out_and_a_score_tells_how_unusual_its_event_would_be() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).set("anomalies.percentile_min=0.9").ready();
    let (lines, planted) = stream(8_000);
    let none = process.get("/v1/anomalies").unwrap().1;
    assert_eq!(none["anomalies"], json!([]));
    push(&process, &lines);
    learned(&process, 8_000);
    let (_, response) = process.get("/v1/anomalies?limit=1000&percentile=0.97").unwrap();
    let positions = response["anomalies"].as_array().unwrap().iter();
    let positions = positions.map(|event| event["position"].as_u64().unwrap());
    // Once the model knows the stream.
    let found: Vec<u64> = positions.filter(|position| *position >= 4_000).collect();
    let planted: Vec<u64> = planted.into_iter().filter(|position| *position >= 4_000).collect();
    let hit = planted.iter().filter(|position| found.contains(position)).count();
    assert!(hit * 10 >= planted.len() * 9, "{hit} of {} planted events are found", planted.len());
    assert!(hit * 2 >= found.len(), "{hit} of {} events that are found were planted", found.len());
    assert!(found.windows(2).all(|pair| pair[0] > pair[1]), "the newest comes first");
    let event = &response["anomalies"][0];
    assert!(
        event["percentile"].as_f64().unwrap() >= 0.97 && event["score"].as_f64().unwrap() < 0.5,
        "{event}"
    );

    let ask = |src: &str, dst: &str| {
        let pairs = json!({ "pairs": [{ "src": src, "dst": dst }] }).to_string();
        process.post("/v1/links/score", "application/json", &pairs).unwrap().1["scores"][0].clone()
    };
    let (usual, unusual) = (ask("user3", "item7"), ask("user3", "item51"));
    let percentile = |score: &Value| score["percentile"].as_f64().unwrap();
    assert!(percentile(&usual) < 0.9 && percentile(&unusual) > 0.95, "{usual} {unusual}");

    // A deleted node is in no response.
    let src = event["src"].clone();
    push(&process, &format!("{}\n", json!({ "op": "delete", "node": src })));
    learned(&process, 8_001);
    let (_, response) = process.get("/v1/anomalies?limit=1000").unwrap();
    assert!(response["anomalies"].as_array().unwrap().iter().all(|event| event["src"] != src));
    for (query, status) in
        [("limit=0", 422), ("percentile=2", 422), ("percentile=x", 422), ("limit=99999999", 413)]
    {
        assert_eq!(process.get(&format!("/v1/anomalies?{query}")).unwrap().0, status, "{query}");
    }
    let metrics = process.get("/metrics").unwrap().1.as_str().unwrap().to_owned();
    let judged = metrics.lines().find_map(|line| line.strip_prefix("evergraph_anomaly_judged_events_total "));
    assert!(judged.unwrap().parse::<u64>().unwrap() >= 5_000, "{judged:?}");
}

#[test]
fn a_topic_has_every_event_that_was_scored_with_the_percentile_that_requests_return() {
    let Some(broker) = Broker::shared() else { return };
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path())
        .set(&format!("anomalies.brokers={}", broker.bootstrap()))
        .set("anomalies.topic=judged")
        .set("anomalies.create_partitions=1")
        .set("anomalies.percentile_min=0")
        .set("anomalies.kept_max=10000")
        .ready();
    push(&process, &stream(1_000).0);
    learned(&process, 1_000);
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", broker.bootstrap())
        .set("group.id", "judged")
        .set("auto.offset.reset", "earliest");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&["judged"]).unwrap();
    let (mut found, deadline) = (BTreeMap::new(), Instant::now() + Duration::from_secs(60));
    while found.len() < 1_000 {
        assert!(Instant::now() < deadline, "{} of 1000 events came", found.len());
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
            let event: Value = serde_json::from_slice(message.payload().unwrap()).unwrap();
            assert_eq!(message.key().unwrap(), event["src"].as_str().unwrap().as_bytes());
            found.insert(event["position"].as_u64().unwrap(), event);
        }
    }
    assert!(found[&0]["percentile"].is_null() && found[&999]["percentile"].is_number());
    let (_, response) = process.get("/v1/anomalies?limit=1000").unwrap();
    let listed = response["anomalies"].as_array().unwrap();
    assert!(listed.len() >= 600, "{}", listed.len());
    for event in listed {
        assert_eq!(found[&event["position"].as_u64().unwrap()], *event);
    }
    assert_eq!(process.get("/readyz").unwrap().1["checks"]["anomalies"]["state"], "ok");
}

#[test]
fn a_learner_that_is_behind_scores_all_events_where_it_is_asked_to() {
    let counts = |score_all: bool| {
        let data = tempfile::tempdir().unwrap();
        let process = start(data.path())
            .set(&format!("anomalies.score_all={score_all}"))
            .set("learner.lag_events_max=1")
            .set("learner.share_min=0.02")
            .ready();
        push(&process, &stream(4_000).0);
        let status = learned(&process, 4_000);
        let metrics = process.get("/metrics").unwrap().1.as_str().unwrap().to_owned();
        let unscored =
            metrics.lines().find_map(|line| line.strip_prefix("evergraph_anomaly_unscored_events_total "));
        (unscored.unwrap().parse::<u64>().unwrap(), status["learner"]["skipped_events"].as_u64().unwrap())
    };
    let (unscored, skipped) = counts(false);
    assert!(skipped > 1_000 && unscored > 1_000, "{skipped} {unscored}");
    let (unscored, skipped) = counts(true);
    assert!(skipped > 1_000 && unscored == 0, "{skipped} {unscored}");
}
