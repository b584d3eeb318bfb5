//! Snapshots of a running daemon: a start loads the newest that is intact and reads the log behind it, and nobody can
//! tell that from a start that reads all of the log.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Moments, Process, Start};

const EVENTS: u64 = 6_000;

/// Event `i` as a line: some delete.
fn line(i: u64) -> String {
    let (src, dst) = (i * i % 83, i * 7 % 41);
    match i % 500 {
        499 => format!("{{\"op\":\"delete\",\"node\":\"u{src}\"}}"),
        498 => format!("{{\"op\":\"node\",\"node\":\"u{src}\",\"ts\":{i},\"features\":[0.5]}}"),
        _ => format!("{{\"src\":\"u{src}\",\"dst\":{dst},\"ts\":{i},\"features\":[{}.25,1.0]}}", i % 9),
    }
}

pub fn push(process: &Process, range: std::ops::Range<u64>) {
    let lines: Vec<String> = range.map(line).collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
    assert_eq!((status, response["accepted"].as_u64()), (200, Some(lines.len() as u64)), "{response}");
}

pub fn learned(process: &Process, position: u64) {
    process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() == Some(position));
}

/// The snapshots that are whole, the oldest first.
fn snapshots(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data.join("snapshots")).unwrap();
    let mut whole: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    whole.retain(|path| path.extension().is_some_and(|ending| ending == "snapshot"));
    whole.sort();
    whole
}

/// The position in the name of a snapshot.
fn position(snapshot: &Path) -> u64 {
    snapshot.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}

/// The keys of all nodes.
fn nodes() -> Vec<Value> {
    (0..83).map(|i| Value::from(format!("u{i}"))).chain((0..41).map(Value::from)).collect()
}

/// A response without how fresh it is, which differs from one moment to the next, and without the id of a request that
/// was refused.
fn lasting(mut response: Value) -> Value {
    for field in ["freshness", "request_id", "details"] {
        response.as_object_mut().unwrap().remove(field);
    }
    response
}

/// What requests show of these nodes and of the graph as a whole.
fn shown(process: &Process, nodes: &[Value]) -> Vec<Value> {
    let of = |node: &Value| {
        let key = node.as_str().map_or_else(|| node.to_string(), str::to_owned);
        lasting(process.get(&format!("/v1/nodes/{key}?neighbors=1000")).unwrap().1)
    };
    let mut found: Vec<Value> = nodes.iter().map(of).collect();
    let graph = &process.status()["graph"];
    found.push(serde_json::json!(
        ["nodes", "edges", "late_edges", "latest_event_time"].map(|field| &graph[field])
    ));
    found
}

/// What requests show of the graph and of what was learned.
pub fn responses(process: &Process) -> Vec<Value> {
    let nodes = nodes();
    let mut found = shown(process, &nodes);
    let body = serde_json::json!({ "nodes": nodes, "at": EVENTS }).to_string();
    found.push(lasting(process.post("/v1/embeddings", "application/json", &body).unwrap().1));
    found
}

pub fn start(data: &Path) -> Start {
    Start::in_dir(data)
        .set("stream.edge_feature_dimension=2")
        .set("stream.node_feature_dimension=1")
        .set("checkpoint.interval_seconds=1")
        .set("snapshot.log_bytes=30000")
        .set("output.level=info")
}

/// Starts again after a kill, and returns the position from which the log was read.
fn again(process: Process, start: &Start) -> (Process, u64) {
    process.kill();
    let mut process = start.spawn();
    let line = process.wait_for_line("the graph is complete").unwrap();
    let number = |name: &str| -> u64 {
        let rest = line.split_once(&format!("{name}=")).or_else(|| line.split_once(&format!("\"{name}\":")));
        let digits: String = rest.unwrap().1.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    };
    let from = number("records") - number("read");
    process.wait_until_ready();
    (process, from)
}

#[test]
fn a_start_from_a_snapshot_is_a_start_from_the_log() {
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path());
    let process = start.ready();
    for count in [1, 2] {
        let end = EVENTS / 2 * count;
        (end - EVENTS / 2..end).step_by(100).for_each(|from| push(&process, from..from + 100));
        learned(&process, end);
        let begun = Instant::now();
        while snapshots(data.path()).last().is_none_or(|last| position(last) <= end - EVENTS / 2) {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no snapshot of the last {} events",
                EVENTS / 2
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    // One that a checkpoint stands behind.
    std::thread::sleep(Duration::from_millis(1_500));
    let before = responses(&process);

    let newest = |data: &Path| position(snapshots(data).last().unwrap());
    let (process, from) = again(process, &start);
    assert!(from > 0 && from <= newest(data.path()), "read from {from}");
    assert_same(&responses(&process), &before);

    // A damaged one is skipped, and the one before is used.
    let all = snapshots(data.path());
    let names = all.last().unwrap().join("names");
    let mut bytes = std::fs::read(&names).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&names, bytes).unwrap();
    let (process, from) = again(process, &start);
    assert_eq!(from, position(&all[all.len() - 2]));
    assert_same(&responses(&process), &before);

    // Without any, the log is read from its beginning.
    process.kill();
    std::fs::remove_dir_all(data.path().join("snapshots")).unwrap();
    let process = start.ready();
    assert_same(&responses(&process), &before);
    push(&process, EVENTS..EVENTS + 100);
    learned(&process, EVENTS + 100);
}

/// What requests show of the graph: of each node its degree and its newest neighbors. What a node's memory has taken in
/// depends on where batches of the learner ended.
pub fn graph(process: &Process, nodes: &[Value]) -> Vec<Value> {
    let mut found = shown(process, nodes);
    for fields in found.iter_mut().filter_map(Value::as_object_mut) {
        fields.remove("learned_event");
    }
    found
}

/// Names the first that differs: all of them are long.
pub fn assert_same(found: &[Value], expected: &[Value]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let (long, short) = (found.to_string(), expected.to_string());
        let at = long.bytes().zip(short.bytes()).position(|(one, other)| one != other).unwrap_or(0);
        let part = |text: &str| text[at.saturating_sub(200)..text.len().min(at + 200)].to_owned();
        assert!(found == expected, "{:.100}: …{}… but expected …{}…", long, part(&long), part(&short));
    }
}

/// The segments of the log: their number, their bytes, and the first position.
pub fn segments(data: &Path) -> (usize, u64, u64) {
    let entries = std::fs::read_dir(data.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|ending| ending == "log")).collect();
    segments.sort();
    let bytes = segments.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    (segments.len(), bytes, position(&segments[0]))
}

#[test]
fn a_log_is_cut_behind_snapshots_and_kills_at_any_moment_lose_nothing() {
    const MANY: u64 = 200_000;
    const KEPT: u64 = 2 << 20;
    let (data, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let quick = |data: &Path| start(data).set("learner.train=false").set("learner.lag_events_max=1");
    let cutting = quick(data.path())
        .set("snapshot.log_bytes=300000")
        .set("log.segment_bytes=1048576")
        .set(&format!("log.retention_bytes={KEPT}"));
    let (mut process, uncut) = (cutting.ready(), quick(whole.path()).ready());
    let mut moments = Moments::from_environment();
    let mut next_kill = 20_000;
    for from in (0..MANY).step_by(2_000) {
        push(&uncut, from..from + 2_000);
        push(&process, from..from + 2_000);
        if from >= next_kill {
            // At any moment: of a snapshot, of a cut, of a checkpoint.
            std::thread::sleep(moments.below(Duration::from_millis(300)));
            process.kill();
            process = cutting.ready();
            next_kill = from + 20_000;
        }
    }
    // After a start the log is cut once there is another snapshot, which takes more events.
    let (begun, mut end) = (Instant::now(), MANY);
    while segments(data.path()).1 > KEPT + 2 * (1 << 20) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", segments(data.path()));
        [&uncut, &process].into_iter().for_each(|process| push(process, end..end + 200));
        end += 200;
        std::thread::sleep(Duration::from_millis(50));
    }
    learned(&process, end);
    learned(&uncut, end);
    let expected = graph(&uncut, &nodes());
    assert_same(&graph(&process, &nodes()), &expected);
    let (process, from) = again(process, &cutting);
    let (_, _, first) = segments(data.path());
    assert!(first > 0 && from >= first, "the log begins at {first}, read from {from}");
    assert_same(&graph(&process, &nodes()), &expected);
    process.kill();

    // Without its snapshots, a log that was cut is of no use, and the daemon says so.
    std::fs::remove_dir_all(data.path().join("snapshots")).unwrap();
    let words = cutting.fails();
    assert!(words.contains("no snapshot can be used") && words.contains(&first.to_string()), "{words}");
}
