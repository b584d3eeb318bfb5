//! What operators do to the learner and the log of a running daemon by the command line: promote and roll back, pause
//! training, write snapshots, cut the log; and what of a deleted node is left afterwards.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Process, Start, evergraph};

/// Pushes events `range`; the node `name` takes part in each tenth.
fn push(process: &Process, range: std::ops::Range<u64>, name: &str) {
    let line = |i: u64| {
        let src = if i.is_multiple_of(10) { name.to_owned() } else { format!("u{}", i * i % 83) };
        json!({"src": src, "dst": i * 7 % 41, "ts": i, "features": [0.5]}).to_string()
    };
    let end = range.end;
    let lines: Vec<String> = range.map(line).collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
    assert_eq!(status, 200, "{response}");
    learned(process, end);
}

/// Pushes as many events that take more than a segment of the log.
fn push_much(process: &Process, from: u64, name: &str) {
    for from in (from..from + MUCH).step_by(3_000) {
        let line = |i: u64| {
            let features: Vec<f64> = (0..WIDE as u64).map(|j| (i * 31 + j * 7) as f64 * 0.37).collect();
            let src = if i.is_multiple_of(10) { name.to_owned() } else { format!("u{}", i % 83) };
            json!({"src": src, "dst": i * 7 % 41, "ts": i, "features": features}).to_string()
        };
        let lines: Vec<String> = (from..from + 3_000).map(line).collect();
        let (status, response) =
            process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
        assert_eq!(status, 200, "{response}");
    }
    learned(process, from + MUCH);
}

fn learned(process: &Process, position: u64) {
    process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() >= Some(position));
}

const MUCH: u64 = 9_000;
/// Values of a row in it.
const WIDE: usize = 32;

fn start(data: &Path) -> Start {
    Start::in_dir(data).set("stream.edge_feature_dimension=1").set("checkpoint.interval_seconds=3600")
}

#[test]
fn versions_are_promoted_and_rolled_back_while_the_daemon_runs_and_survive_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path());
    let mut process = start.ready();
    let run = |verb: &[&str], process: &Process| {
        let url = process.url("");
        evergraph(&[&["model"][..], verb, &["--live", "--url", &url]].concat())
    };
    let served = |process: &Process| process.status()["learner"]["model_version"].as_u64().unwrap();
    let (done, _, stderr) = run(&["promote"], &process);
    assert!(!done && stderr.contains("nothing was learned yet"), "{stderr}");
    push(&process, 0..400, "a");
    let (done, stdout, stderr) = run(&["promote"], &process);
    assert!(done && stdout.contains("the first to be promoted"), "{stdout}{stderr}");
    let first = served(&process);
    let (done, _, stderr) = run(&["promote", &first.to_string()], &process);
    assert!(!done && stderr.contains("is served already"), "{stderr}");
    let (done, _, stderr) = run(&["rollback"], &process);
    assert!(!done && stderr.contains("no previous version"), "{stderr}");
    push(&process, 400..800, "a");
    assert_eq!(served(&process), first, "what is trained is a candidate");
    let (done, _, stderr) = run(&["promote", "999999"], &process);
    assert!(!done && stderr.contains("is not at hand") && stderr.contains("--live"), "{stderr}");
    assert!(run(&["promote"], &process).0);
    let second = served(&process);
    assert!(second > first, "{second} after {first}");

    // What was responded to is in a checkpoint.
    process.kill();
    process = start.ready();
    assert_eq!(served(&process), second);
    let (done, stdout, stderr) = run(&["rollback"], &process);
    assert!(
        done && stdout.contains(&format!("version {first} is served, in place of version {second}")),
        "{stdout}{stderr}"
    );
    assert!(stderr.contains("node memory was not restored"), "{stderr}");
    process.kill();
    process = start.ready();
    assert_eq!(served(&process), first);
    assert!(process.terminate().success());
    let (_, list, _) = evergraph(&["model", "list", "--json", "--data", data.path().to_str().unwrap()]);
    let list: Value = serde_json::from_str(&list).unwrap();
    let decisions: Vec<(&str, u64, bool)> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let text = row["verdict"].as_str().unwrap();
            (text, row["served_version"].as_u64().unwrap(), row["by_hand"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(
        decisions,
        [("rolled_back", first, true), ("promoted", second, true), ("promoted", first, true)]
    );
}

#[test]
fn training_is_paused_until_it_is_resumed_also_through_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path());
    let mut process = start.ready();
    let hold = |verb: &str, process: &Process| evergraph(&["model", verb, "--url", &process.url("")]);
    let learner = |process: &Process| process.status()["learner"].clone();
    push(&process, 0..200, "a");
    assert_eq!(learner(&process)["training"], true);
    let (done, stdout, stderr) = hold("pause", &process);
    assert!(done && stdout.contains("paused by local"), "{stdout}{stderr}");
    let trained = learner(&process)["trained_events"].clone();
    push(&process, 200..400, "a");
    let paused = learner(&process);
    assert_eq!((&paused["training"], &paused["trained_events"]), (&json!(false), &trained));
    assert!(paused["average_precision"].is_f64(), "what comes is scored and remembered");
    process.kill();
    let mut restarted = start.spawn();
    assert!(restarted.wait_for_line("training stays paused").is_some());
    restarted.wait_until_ready();
    push(&restarted, 400..600, "a");
    assert_eq!(learner(&restarted)["trained_events"], 0);
    let (done, stdout, _) = hold("resume", &restarted);
    assert!(done && stdout.contains("resumed"), "{stdout}");
    push(&restarted, 600..800, "a");
    assert!(learner(&restarted)["trained_events"].as_u64() > Some(0));
    restarted.kill();

    process = start.set("learner.train=false").ready();
    let (done, _, stderr) = hold("resume", &process);
    assert!(!done && stderr.contains("learner.train is false"), "{stderr}");
}

/// Files under `folder` in which `text` stands.
fn files_with(text: &str, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files_with(text, &entry));
        } else if std::fs::read(&entry)
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
        {
            found.push(entry.display().to_string());
        }
    }
    found
}

#[test]
fn nothing_of_a_deleted_node_is_left_once_snapshots_and_the_cut_have_passed_it() {
    const NAME: &str = "somebody-who-wants-to-be-forgotten";
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path())
        .set(&format!("stream.edge_feature_dimension={WIDE}"))
        .set("learner.train=false")
        .set("log.segment_bytes=1048576")
        .set("checkpoint.keep=1");
    let process = start.ready();
    let (url, dir) = (process.url(""), data.path().to_str().unwrap());
    let erase_status = || -> Value {
        let (done, stdout, stderr) = evergraph(&["log", "erase-status", "--json", "--data", dir]);
        assert!(done, "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    };
    let (done, _, stderr) = evergraph(&["log", "cut", "--url", &url]);
    assert!(!done && stderr.contains("two snapshots"), "{stderr}");
    push_much(&process, 0, NAME);
    let (done, name, stderr) = evergraph(&["snapshot", "create", "--url", &url]);
    assert!(done && name.trim() == "00000000000000009000.snapshot", "{name}{stderr}");
    assert!(evergraph(&["checkpoint", "create", "--url", &url]).0);
    assert!(!files_with(NAME, data.path()).is_empty());

    let body = json!({"op": "delete", "node": NAME}).to_string();
    let (status, deleted) = process.post("/v1/events", "application/json", &body).unwrap();
    assert_eq!(status, 200, "{deleted}");
    let deleted = deleted["end_position"].as_u64().unwrap();
    assert!(erase_status()["complete_below_position"].as_u64() < Some(deleted));
    // Two snapshots and a checkpoint from after the deletion, and whole segments before them.
    for round in 0..3 {
        push_much(&process, deleted + MUCH * round, "somebody-else");
        assert!(evergraph(&["snapshot", "create", "--url", &url]).0);
    }
    assert!(evergraph(&["checkpoint", "create", "--url", &url]).0);
    let (done, stdout, stderr) = evergraph(&["log", "cut", "--url", &url]);
    assert!(done && stdout.contains("the log begins at position"), "{stdout}{stderr}");
    let status = erase_status();
    assert!(status["complete_below_position"].as_u64() >= Some(deleted), "{status}");
    assert_eq!(status["files_to_remove_by_hand"], json!([]));
    let begun = Instant::now();
    while !files_with(NAME, data.path()).is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", files_with(NAME, data.path()));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (done, stdout, stderr) = evergraph(&["snapshot", "verify", "--data", dir]);
    assert!(done && stdout.matches("whole").count() == 2, "{stdout}{stderr}");

    // And a start from there serves what is left.
    process.kill();
    let process = start.ready();
    assert_eq!(process.get(&format!("/v1/nodes/{NAME}")).unwrap().0, 404);
    assert_eq!(process.get("/v1/nodes/somebody-else").unwrap().0, 200);
    let (done, _, stderr) = evergraph(&["log", "cut", "--url", &process.url("")]);
    assert!(done, "the snapshot before the one that was loaded counts, too: {stderr}");
}

#[test]
fn pauses_and_resumes_at_once_leave_the_learner_as_the_catalog_has_it() {
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path());
    let mut process = start.ready();
    push(&process, 0..100, "a");
    let trains = |process: &Process| process.status()["learner"]["training"].clone();
    for _ in 0..2 {
        std::thread::scope(|scope| {
            for paused in [true, false, true, false] {
                let url = process.url("/v1/admin/training");
                scope.spawn(move || {
                    for _ in 0..10 {
                        let body = json!({ "paused": paused }).to_string();
                        let put =
                            crate::process::client().put(&url).header("content-type", "application/json");
                        assert_eq!(put.send(body).unwrap().status(), 200);
                    }
                });
            }
        });
        let before = trains(&process);
        process.kill();
        process = start.ready();
        assert_eq!(trains(&process), before, "a restart has it from the catalog");
    }
}

#[test]
fn segments_go_some_time_after_their_last_event() {
    let data = tempfile::tempdir().unwrap();
    let start = |seconds: u64| {
        start(data.path())
            .set(&format!("stream.edge_feature_dimension={WIDE}"))
            .set("learner.train=false")
            .set("log.segment_bytes=1048576")
            .set("checkpoint.keep=1")
            .set(&format!("log.retention_seconds={seconds}"))
    };
    let first = || {
        let names =
            std::fs::read_dir(data.path().join("log")).unwrap().map(|entry| entry.unwrap().file_name());
        let firsts = names.filter_map(|name| name.to_str()?.strip_suffix(".log")?.parse::<u64>().ok());
        firsts.min().unwrap()
    };
    let fill = |process: &Process, from: u64| {
        for round in from..from + 3 {
            push_much(process, MUCH * round, "a");
            assert!(evergraph(&["snapshot", "create", "--url", &process.url("")]).0);
        }
        assert!(evergraph(&["checkpoint", "create", "--url", &process.url("")]).0);
    };
    let process = start(3_600).ready();
    fill(&process, 0);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(first(), 0, "nothing is an hour old");
    assert!(process.terminate().success());
    let process = start(1).ready();
    fill(&process, 3);
    let begun = Instant::now();
    while first() < 3 * MUCH {
        assert!(begun.elapsed() < Duration::from_secs(60), "the log begins at {}", first());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(process.terminate().success());
    // What is left is enough for a start.
    assert_eq!(start(1).ready().get("/v1/nodes/a").unwrap().0, 200);
}

/// A data directory with a log that was cut, and no checkpoints.
fn without_checkpoints(start: &Start, data: &Path) {
    let process = start.ready();
    let url = process.url("");
    for round in 0..3 {
        push_much(&process, MUCH * round, "a");
        assert!(evergraph(&["snapshot", "create", "--url", &url]).0);
    }
    assert!(evergraph(&["checkpoint", "create", "--url", &url]).0);
    let (done, stdout, stderr) = evergraph(&["log", "cut", "--url", &url]);
    assert!(done && !stdout.contains("at position 0 "), "{stdout}{stderr}");
    process.kill();
    std::fs::remove_dir_all(data.join("checkpoints")).unwrap();
}

#[test]
fn a_learner_without_checkpoints_begins_late_on_a_log_that_was_cut_unless_retention_forbids_it() {
    for retention in [0, 1_000_000] {
        let data = tempfile::tempdir().unwrap();
        let with = |policy: &str| {
            start(data.path())
                .set(&format!("stream.edge_feature_dimension={WIDE}"))
                .set("learner.train=false")
                .set("log.segment_bytes=1048576")
                .set("checkpoint.keep=1")
                .set(&format!("graph.retention={retention}"))
                .set(&format!("learner.start={policy}"))
        };
        without_checkpoints(&with("resume"), data.path());
        let refused = with("resume").fails();
        assert!(refused.contains("no checkpoint can be used"), "{refused}");
        assert_eq!(refused.contains("learner.start = \"latest\""), retention == 0, "{refused}");
        if retention > 0 {
            let refused = with("latest").fails();
            assert!(refused.contains("with graph.retention"), "{refused}");
            continue;
        }
        let process = with("latest").ready();
        push_much(&process, 3 * MUCH, "b");
        assert_eq!(process.get("/v1/nodes/b").unwrap().0, 200);
    }
}

#[test]
fn what_no_checkpoint_holds_is_learned_again_or_remembered_or_left_out() {
    let data = tempfile::tempdir().unwrap();
    let start = |policy: &str| start(data.path()).set(&format!("learner.start={policy}"));
    let process = start("resume").ready();
    let begin = 2_000;
    push(&process, 0..begin, "a");
    process.kill();
    let policies = [("resume", begin, 0), ("remember", 0, 0), ("latest", 0, 0)];
    // Each pushes one event more.
    for (end, (policy, trained, skipped)) in (begin..).zip(policies) {
        std::fs::remove_dir_all(data.path().join("checkpoints")).unwrap();
        let mut process = start(policy).spawn();
        let line = process.wait_for_line("no checkpoint can be used").unwrap();
        assert!(line.contains(policy) && line.contains(&end.to_string()), "{line}");
        process.wait_until_ready();
        learned(&process, end);
        let status = process.wait_until("caught up", |status| status["learner"]["catch_up"].is_null());
        let counts = |status: &Value| {
            ["trained_events", "skipped_events"].map(|name| status["learner"][name].as_u64().unwrap())
        };
        assert_eq!(counts(&status), [trained, skipped], "{policy}");
        // What comes now is trained on in any case.
        push(&process, end..end + 1, "a");
        assert_eq!(counts(&process.status()), [trained + 1, skipped], "{policy}");
        process.kill();
    }
}
