//! `graph.node_retention`: nodes that have had no edge for long are deleted, and come back as new ones.

use std::path::Path;

use serde_json::Value;

use crate::process::{Process, Start, log_of};
use crate::snapshots::assert_same;

fn start(data: &Path) -> Start {
    Start::in_dir(data)
        .set("graph.retention=1000")
        .set("graph.node_retention=500")
        .set("stream.future_limit=1000")
        .set("graph.shards=4")
        .set("stream.node_feature_dimension=1")
        .set("learner.train=false")
        .set("learner.batch_events=100")
        .set("snapshot.log_bytes=20000")
        .set("checkpoint.interval_seconds=1")
}

/// Edges at these times between ten nodes that stay, in batches.
fn go_on(process: &Process, times: std::ops::Range<u64>) {
    let line = |time: u64| format!("{{\"src\":\"s{}\",\"dst\":\"t{}\",\"ts\":{time}}}", time % 5, time % 3);
    for from in times.clone().step_by(100) {
        push(process, (from..(from + 100).min(times.end)).map(line));
        let end = process.status()["log"]["durable_position"].as_u64().unwrap();
        process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() >= Some(end));
    }
}

fn push(process: &Process, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
    assert_eq!((status, response["accepted"].as_u64()), (200, Some(lines.len() as u64)), "{response}");
}

fn removed(process: &Process) -> u64 {
    let metrics = process.get("/metrics").unwrap().1;
    let line = metrics.as_str().unwrap().lines();
    let line = line.filter_map(|line| line.strip_prefix("evergraph_graph_idle_nodes_removed_total ")).next();
    line.unwrap().parse().unwrap()
}

fn known(process: &Process, node: &str) -> bool {
    process.get(&format!("/v1/nodes/{node}")).unwrap().0 == 200
}

/// What responses show of all nodes.
fn shown(process: &Process) -> Vec<Value> {
    let names =
        (0..200).map(|i| format!("u{i}")).chain((0..5).flat_map(|i| [format!("s{i}"), format!("t{i}")]));
    let node = |name: String| {
        let mut response = process.get(&format!("/v1/nodes/{name}?neighbors=2000")).unwrap();
        // What differs from one moment to the next; the degree counts edges that are too old until their page goes.
        for field in ["freshness", "request_id", "learned_event", "details", "degree"] {
            response.1.as_object_mut().unwrap().remove(field);
        }
        serde_json::json!([response.0, response.1])
    };
    names.map(node).collect()
}

#[test]
fn nodes_without_edges_leave_and_come_back_as_new_ones() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    // A hundred pairs of nodes that meet once, one with a row later, and one that has only a row.
    push(&process, (0..100).map(|i| format!("{{\"src\":\"u{i}\",\"dst\":\"u{}\",\"ts\":{i}}}", i + 100)));
    push(
        &process,
        std::iter::once("{\"op\":\"node\",\"node\":\"row\",\"ts\":5,\"features\":[1.0]}".to_owned()),
    );
    go_on(&process, 100..1_400);
    assert_eq!(
        (removed(&process), known(&process, "row")),
        (1, false),
        "the others had edges until about 1100"
    );
    assert!(known(&process, "u7"));

    // A restart keeps since when they are idle, or where no snapshot has it, finds it anew.
    process.kill();
    let process = start(data.path()).ready();
    go_on(&process, 1_400..2_000);
    push(
        &process,
        std::iter::once("{\"op\":\"node\",\"node\":\"u7\",\"ts\":0,\"features\":[2.0]}".to_owned()),
    );
    go_on(&process, 2_000..2_400);
    process.wait_until("they went", |_| removed(&process) >= 199);
    assert_eq!(["u0", "u107", "u199"].map(|node| known(&process, node)), [false; 3]);
    assert!(known(&process, "u7") && known(&process, "s1"), "one got a row lately, the other has edges");
    let missing = process.post("/v1/embeddings", "application/json", "{\"nodes\":[\"u0\"]}").unwrap().1;
    assert_eq!(missing["embeddings"][0]["error"], "unknown_node", "{missing}");

    // The name comes again, of a new node.
    push(&process, std::iter::once("{\"src\":\"u0\",\"dst\":\"s1\",\"ts\":2400}".to_owned()));
    let node = process.get("/v1/nodes/u0?neighbors=10").unwrap().1;
    assert_eq!(node["neighbors"].as_array().unwrap().len(), 1, "{node}");

    // A start sees the same, from a snapshot and from all of the log.
    let end = process.status()["log"]["durable_position"].as_u64().unwrap();
    let before = shown(&process);
    process.kill();
    let process = start(data.path()).ready();
    assert_same(&shown(&process), &before);
    process.kill();
    std::fs::remove_dir_all(data.path().join("snapshots")).unwrap();
    let process = start(data.path()).ready();
    assert_same(&shown(&process), &before);
    assert_eq!(process.status()["log"]["durable_position"].as_u64(), Some(end));
    assert!(process.terminate().success());
    assert!(log_of(data.path())["records"].as_u64() >= Some(end), "{}", log_of(data.path()));
}
