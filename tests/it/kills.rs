//! `kill -9` at random moments of snapshots, cuts, checkpoints and starts: what was acknowledged is there once, and the
//! graph and the learner's position equal those of a run that was never broken. Where nothing is deleted, so does all
//! that was learned: a deletion reaches the graph before the learner does, so what is learned of the events before it
//! depends on how far behind the learner is.

use std::path::Path;
use std::time::{Duration, Instant};

use evergraph::device::rng;
use serde_json::Value;

use crate::process::{Moments, PATIENCE, Process, Start, log_of};
use crate::snapshots::{assert_same, graph, learned, segments};

/// Events of a batch, and of a push.
const BATCH: u64 = 200;
const SEGMENT_BYTES: u64 = 1 << 20;

/// One run: how much of what.
struct Run {
    kills: u64,
    /// Pushes between two kills.
    pushes: u64,
    features: usize,
    /// Whether some events delete a node.
    deletes: bool,
    settings: &'static [&'static str],
}

/// Event `i` as a line.
fn line(i: u64, run: &Run) -> String {
    let (src, dst) = (i * i % 829, i * 7 % 411);
    if run.deletes && i % 1_000 == 999 {
        return format!("{{\"op\":\"delete\",\"node\":\"u{src}\",\"idempotency_key\":\"e{i}\"}}\n");
    }
    let row: Vec<String> = (0..run.features as u64).map(|f| format!("{}.5", (i + f) % 7)).collect();
    let row = row.join(",");
    format!(
        "{{\"src\":\"u{src}\",\"dst\":{dst},\"ts\":{i},\"features\":[{row}],\"idempotency_key\":\"e{i}\"}}\n"
    )
}

/// Pushes a batch; `false` if the daemon died before it acknowledged it.
fn push(process: &Process, from: u64, run: &Run) -> bool {
    let lines: String = (from..from + BATCH).map(|i| line(i, run)).collect();
    process.push_or_dies(&lines, BATCH)
}

/// Has a snapshot and a checkpoint written and the log cut; `false` once the daemon is dead.
fn operate(process: &Process) -> bool {
    ["snapshots", "checkpoints", "log/cut"].iter().all(|what| {
        let response = process.post(&format!("/v1/admin/{what}"), "application/json", "{}");
        assert!(!matches!(response, Ok((400 | 404 | 405, _))), "{what}: {response:?}");
        response.is_ok()
    })
}

fn start(data: &Path, run: &Run) -> Start {
    let start = Start::in_dir(data)
        .set(&format!("stream.edge_feature_dimension={}", run.features))
        .set("learner.train=false")
        // The learner's batches begin at the same positions in every run.
        .set(&format!("learner.batch_events={BATCH}"))
        .set("learner.batch_wait_ms=60000")
        .set("checkpoint.interval_seconds=1");
    run.settings.iter().fold(start, |start, setting| start.set(setting))
}

/// The embeddings of sampled nodes at a time.
fn embeddings(process: &Process, at: u64) -> Vec<Value> {
    let body = serde_json::json!({ "nodes": nodes(), "at": at }).to_string();
    let (status, response) = process.post("/v1/embeddings", "application/json", &body).unwrap();
    assert_eq!(status, 200, "{response}");
    response["embeddings"].as_array().unwrap().clone()
}

/// Every ninth node.
fn nodes() -> Vec<Value> {
    let names = (0..829).step_by(9).map(|i| Value::from(format!("u{i}")));
    names.chain((0..411).step_by(9).map(Value::from)).collect()
}

/// Kills a daemon again and again and compares it with one that is not killed; returns how many events there are.
fn kills_lose_nothing(run: &Run) -> u64 {
    let (broken, whole) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let cutting = start(broken.path(), run)
        .set("snapshot.log_bytes=200000")
        .set(&format!("log.segment_bytes={SEGMENT_BYTES}"))
        .set(&format!("log.retention_bytes={SEGMENT_BYTES}"));
    let unbroken = start(whole.path(), run).ready();
    let (mut moments, mut next, mut while_starting) = (Moments::from_environment(), 0, 0);
    for kill in 0..run.kills {
        let mut process = cutting.spawn();
        if rng::unit_f32([kill, 0, 0, 0]) < 0.3 {
            std::thread::sleep(moments.below(Duration::from_millis(300)));
            process.kill();
            while_starting += 1;
            continue;
        }
        process.wait_until_ready();
        let stands_at = process.status()["log"]["durable_position"].as_u64().unwrap();
        assert!(stands_at >= next, "kill {kill}: {next} acknowledged, {stands_at} in the log");
        let begun = next;
        std::thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                let mut from = begun;
                while from < begun + run.pushes * BATCH && push(&process, from, run) {
                    from += BATCH;
                }
                from
            });
            scope.spawn(|| while operate(&process) {});
            std::thread::sleep(moments.below(Duration::from_millis(1_500)));
            process.signal("-KILL");
            next = pusher.join().unwrap();
        });
        process.kill();
    }
    assert!(while_starting > 0, "none was killed while it started");
    let process = cutting.ready();
    // The last batch before a kill may be in the log without having been acknowledged: here it is a duplicate.
    let mut end = next + BATCH;
    assert!(push(&process, next, run));
    // However little was acknowledged between kills, there is something to cut.
    while matches!(segments(broken.path()), (..3, _, 0)) {
        assert!(push(&process, end, run));
        end += BATCH;
    }
    (0..end).step_by(BATCH as usize).for_each(|from| assert!(push(&unbroken, from, run)));
    for process in [&process, &unbroken] {
        let position = process.status()["log"]["durable_position"].as_u64();
        assert_eq!(position, Some(end), "every event once");
        learned(process, end);
    }
    let first = || segments(broken.path()).2;
    let (before, begun) = (first(), Instant::now());
    while first() == 0 {
        assert!(begun.elapsed() < PATIENCE && operate(&process), "the log is not cut");
    }
    eprintln!("{} kills, {while_starting} of them while starting; log from {before}", run.kills);
    assert_same(&graph(&process, &nodes()), &graph(&unbroken, &nodes()));
    if !run.deletes {
        assert_same(&embeddings(&process, end), &embeddings(&unbroken, end));
    }
    assert!(process.terminate().success() && unbroken.terminate().success());
    let (broken, whole) = (log_of(broken.path()), log_of(whole.path()));
    assert_eq!(broken["edges"], whole["edges"]);
    assert_eq!(broken["graph_digest"], whole["graph_digest"]);
    end
}

/// How often to kill: `KILLS` of the environment, or a few times.
fn kills() -> u64 {
    std::env::var("KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(8)
}

#[test]
fn kills_while_snapshots_cuts_checkpoints_and_starts_go_on_lose_nothing() {
    // Also few kills leave a log that is long enough to be cut.
    let pushes = 200 / kills().clamp(1, 20);
    kills_lose_nothing(&Run { kills: kills(), pushes, features: 32, deletes: true, settings: &[] });
}

#[test]
fn kills_lose_nothing_with_wide_rows_and_small_budgets() {
    let settings = &["memory.rows_bytes_max=4000000", "memory.graph_bytes_max=1048576", "graph.shards=16"];
    // With 200 kills the bounds are about a tenth of the graph, and less of the rows.
    let run = Run { kills: kills(), pushes: 5 + kills() / 20, features: 172, deletes: false, settings };
    let end = kills_lose_nothing(&run) as f64;
    let (rows, graph) = (4_000_000.0 / (end * 172.0 * 4.0), f64::from(1 << 20) / (end * 2.0 * 12.0));
    eprintln!(
        "{end} events; bounds of {:.1} % of rows and {:.1} % of the graph",
        100.0 * rows,
        100.0 * graph
    );
}
