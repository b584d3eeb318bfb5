//! Pushes that a leader acknowledges when they are in Kafka: none of them is lost with its disk.

use crate::broker::Broker;
use crate::cluster::{daemon, events, push, reflects};
use crate::process::Process;

fn try_push(process: &Process, from: u64, to: u64) -> (u16, serde_json::Value) {
    let mut lines = events(from, to);
    lines.iter_mut().for_each(|event| event["idempotency_key"] = format!("e{}", event["ts"]).into());
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    process.post("/v1/events", "application/x-ndjson", &lines).unwrap()
}

#[test]
fn what_a_leader_acknowledges_in_kafka_is_not_lost_with_its_disk() {
    let Some(broker) = Broker::own().filter(Broker::is_kafka) else { return };
    let [data, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let leads = daemon(&broker, "acknowledged", "leader", data.path()).set("cluster.ack=kafka");
    let leader = leads.set("api.request_timeout_ms=4000").ready();
    push(&leader, &events(0, 50));
    reflects(&leader, 50);
    broker.stop();
    let (status, response) = try_push(&leader, 50, 60);
    assert_eq!((status, &response["error_type"]), (504, &"outcome_unknown".into()), "{response}");
    assert!(response.to_string().contains("did not reach Kafka"), "{response}");
    // They are durable here, and not written twice.
    broker.start();
    let begun = std::time::Instant::now();
    let response = loop {
        let (status, response) = try_push(&leader, 50, 60);
        if status == 200 {
            break response;
        }
        assert!(status == 504 && begun.elapsed() < crate::process::PATIENCE, "{response}");
    };
    assert_eq!((&response["accepted"], &response["duplicates"]), (&0.into(), &10.into()));
    for from in (60..120).step_by(10) {
        push(&leader, &events(from, from + 10));
    }
    leader.kill();
    drop(data);
    let replica = daemon(&broker, "acknowledged", "replica", other.path()).ready();
    replica.wait_until("all that was acknowledged", |status| status["freshness"]["indexed_position"] == 120);
    // Who ships nothing has nothing to wait for.
    let said = daemon(&broker, "acknowledged", "single", other.path()).set("cluster.ack=kafka").fails();
    assert!(said.contains("cluster.ack") && said.contains("single"), "{said}");
}
