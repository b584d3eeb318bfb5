//! `kill -9`, through HTTP: what was acknowledged is there, nothing is there twice or deleted by a copy, and the graph
//! equals that of a run that was never broken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::{Moments, Process, Start, log_of};

const EVENTS: usize = 12_000;
const PUSH: usize = 40;
const KILLS: usize = 20;

/// Event number `i` as a line of JSON. Times tie and go back now and then; there are hubs and self loops.
fn line(i: usize) -> String {
    let (src, dst) = (i * 7 % 97, if i.is_multiple_of(50) { i * 7 % 97 } else { 100 + i * 13 % 61 });
    let ts = i / 3 - if i.is_multiple_of(11) { (i / 3).min(20) } else { 0 };
    format!("{{\"src\":\"u{src}\",\"dst\":{dst},\"ts\":{ts},\"idempotency_key\":\"e{i}\"}}\n")
}

/// Pushes lines `from..` in order until the daemon dies; returns the first one that was not acknowledged.
fn push_until_it_dies(process: &Process, mut from: usize, dead: &AtomicBool) -> usize {
    while from < EVENTS && !dead.load(Ordering::Acquire) {
        let to = (from + PUSH).min(EVENTS);
        let body: String = (from..to).map(line).collect();
        if !process.push_or_dies(&body, (to - from) as u64) {
            break;
        }
        from = to;
    }
    from
}

#[test]
fn twenty_kills_through_http_lose_nothing_and_double_nothing() {
    let broken = tempfile::tempdir().unwrap();
    let start = Start::in_dir(broken.path()).set("checkpoint.interval_seconds=1");
    let (mut acknowledged, mut moments) = (0, Moments::from_environment());
    for kill in 0..KILLS {
        let process = start.ready();
        let stands_at = process.status()["log"]["durable_position"].as_u64().unwrap() as usize;
        assert!(
            stands_at >= acknowledged,
            "kill {kill}: {acknowledged} acknowledged, {stands_at} in the log"
        );
        let (wait, dead) = (moments.below(Duration::from_millis(250)), AtomicBool::new(false));
        eprintln!("kill {kill} after {wait:?} at {acknowledged} of {EVENTS}");
        // The last rounds may run out of events; then they kill the learner at work.
        let share = EVENTS * (kill + 1) / (KILLS + 1);
        acknowledged = std::thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                if acknowledged < share {
                    push_until_it_dies(&process, acknowledged, &dead)
                } else {
                    acknowledged
                }
            });
            let deadline = Instant::now() + wait;
            while Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            process.signal("-KILL");
            dead.store(true, Ordering::Release);
            pusher.join().unwrap()
        });
        process.kill();
    }
    let process = start.ready();
    push_until_it_dies(&process, acknowledged, &AtomicBool::new(false));
    process.wait_until("everything learned", |status| {
        status["learner"]["applied_position"].as_u64() == Some(EVENTS as u64)
    });
    assert!(process.terminate().success());

    let whole = tempfile::tempdir().unwrap();
    let process = Start::in_dir(whole.path()).set("learner.train=false").ready();
    push_until_it_dies(&process, 0, &AtomicBool::new(false));
    assert!(process.terminate().success());

    let (broken, whole) = (log_of(broken.path()), log_of(whole.path()));
    assert_eq!(broken["records"], EVENTS);
    assert_eq!(broken["edges"], whole["edges"]);
    assert_eq!(broken["graph_digest"], whole["graph_digest"]);
}

#[test]
fn a_deletion_that_found_nothing_deletes_nothing_when_it_comes_again_after_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path()).set("learner.train=false");
    let deletions = concat!(
        "{\"op\":\"delete\",\"node\":\"late\",\"idempotency_key\":\"d1\"}\n",
        "{\"op\":\"delete\",\"src\":\"late\",\"dst\":7,\"idempotency_key\":\"d2\"}\n",
    );
    let pushed = |process: &Process, lines: &str| {
        let (status, response) = process.post("/v1/events", "application/x-ndjson", lines).unwrap();
        assert_eq!(status, 200, "{response}");
        ["accepted", "duplicates"].map(|count| response[count].as_u64().unwrap())
    };
    let process = start.ready();
    assert_eq!(pushed(&process, deletions), [2, 0]);
    assert_eq!(pushed(&process, "{\"op\":\"delete\",\"node\":\"late\"}\n"), [0, 0], "it brings no key");
    assert_eq!(pushed(&process, "{\"src\":\"late\",\"dst\":7,\"ts\":1}\n"), [1, 0]);
    let again = |process: &Process| {
        assert_eq!(pushed(process, deletions), [0, 2]);
        let ingest = &process.status()["ingest"];
        let counts = ["accepted_events", "duplicate_events"].map(|count| ingest[count].as_u64().unwrap());
        assert_eq!(counts, [0, 2], "{ingest}");
        assert_eq!(process.get("/v1/nodes/late").unwrap().1["degree"], 1);
    };
    process.kill();
    let process = start.ready();
    again(&process);
    assert_eq!(process.post("/v1/admin/snapshots", "application/json", "").unwrap().0, 200);
    process.kill();
    let process = start.ready();
    again(&process);
    assert!(process.terminate().success());
    assert_eq!(log_of(data.path())["records"], 3);
}
