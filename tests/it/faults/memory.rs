//! Memory that runs out: a bound of the settings that is reached, and the system giving no more.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use super::{holds_exactly, push};
use crate::process::Start;

/// Events pushed at once.
const PUSH: usize = 2_000;

#[test]
fn a_bound_of_memory_that_is_reached_is_kept_or_named_and_loses_nothing() {
    const EVENTS: usize = 120_000;
    let data = tempfile::tempdir().unwrap();
    let start = || {
        Start::in_dir(data.path())
            .set("memory.graph_bytes_max=1048576")
            .set("learner.train=false")
            .set("graph.shards=4")
    };
    let process = start().ready();
    for first in (0..EVENTS).step_by(PUSH) {
        super::must_push(&process, first..first + PUSH);
    }
    let status = process.wait_until("all learned", |status| status["learner"]["applied_position"] == EVENTS);
    let tier = &status["memory"];
    let (_, health) = process.get("/healthz").unwrap();
    let check = &health["checks"]["memory"];
    eprintln!("{tier} {check}");
    let kept = check["state"] == "ok";
    let named =
        check["state"] == "degraded" && check["detail"].as_str().unwrap().contains("memory.graph_bytes_max");
    assert!(kept || named, "{check}");
    assert_eq!(process.get("/readyz").unwrap().0, 200, "a bound keeps no reader out");
    assert_eq!(process.get("/v1/nodes/u1?neighbors=5").unwrap().0, 200);
    drop(process);
    holds_exactly(start().ready(), data.path(), EVENTS);
}

#[test]
fn a_process_that_gets_no_more_memory_ends_and_loses_nothing_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path()).set("learner.train=false").set("checkpoint.interval_seconds=3600");
    // In kibibytes: the allocator would else begin with a gibibyte of addresses, which takes long to fill.
    let start = start.env("MIMALLOC_ARENA_RESERVE", "16384");
    let mut process = start.ready();
    let line = |i: usize| format!("{{\"src\":\"node {i:0>200}\",\"dst\":{i},\"ts\":{i}}}\n");
    let send = |from: usize| {
        let body: String = (from..from + PUSH).map(line).collect();
        process.post("/v1/events", "application/x-ndjson", &body)
    };
    // The first starts threads, each with addresses of its own.
    assert_eq!(send(0).unwrap().0, 200);
    let told = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let kilobytes = |key: &str| -> u64 {
        let line = told.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let limit = (kilobytes("VmSize:") << 10) + (128 << 20);
    let limited = Command::new("prlimit")
        .args(["--pid", &process.pid().to_string(), &format!("--as={limit}")])
        .status();
    if !limited.is_ok_and(|status| status.success()) {
        return crate::skip::skipped("memory cannot be bounded here: prlimit is missing or may not");
    }
    let mut acknowledged = PUSH;
    // Every event brings a node of its own with a long name, so that memory is taken without end.
    while acknowledged < 4_000_000 {
        match send(acknowledged) {
            Ok((200, _)) => acknowledged += PUSH,
            Ok((status, said)) => panic!("{status}: {said}"),
            Err(_) => break,
        }
    }
    let status = process.ended();
    assert!(status.signal().is_some() || !status.success(), "it ends as one that failed: {status}");
    eprintln!("ended with {status} after {acknowledged} events");
    assert!(acknowledged > PUSH);
    let process = start.ready();
    let stands_at = process.status()["log"]["durable_position"].as_u64().unwrap() as usize;
    assert!(
        (acknowledged..=acknowledged + PUSH).contains(&stands_at),
        "{acknowledged} acknowledged, {stands_at} there"
    );
    assert_eq!(push(&process, 0..10).unwrap().0, 200, "it takes events again");
}
