//! Clients that go away in the middle, and ten thousand that stay.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{holds_exactly, must_push, push};
use crate::process::{PATIENCE, Process, Start};

/// Connections that the test asks for.
const CONNECTIONS: u64 = 10_000;
/// Files that the test process has open beside them: other tests run in it.
const FILES_FOR_OTHERS: u64 = 2_000;

fn connect(process: &Process) -> TcpStream {
    let stream = TcpStream::connect(process.url("").trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn inflight(process: &Process) -> f64 {
    let (_, text) = process.get("/metrics").unwrap();
    let text = text.as_str().unwrap().to_owned();
    let value = text.lines().find_map(|line| line.strip_prefix("evergraph_http_inflight_requests "));
    value.unwrap().parse().unwrap()
}

#[test]
fn clients_that_go_away_leave_nothing_behind() {
    let data = tempfile::tempdir().unwrap();
    let start =
        Start::in_dir(data.path()).set("api.concurrent_requests_max=8").set("api.request_timeout_ms=5000");
    let process = start.ready();
    must_push(&process, 0..100);
    let whole = "{\"src\":\"gone\",\"dst\":1,\"ts\":1}\n";
    let question = r#"{"nodes":["u1"],"min_position":1000000,"wait_ms":5000}"#;
    for round in 0..50 {
        // A push of which half comes, one of which the answer is not taken, and a question that waits.
        let head = |path: &str, length: usize| {
            let media = if path == "/v1/events" { "application/x-ndjson" } else { "application/json" };
            format!(
                "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: {media}\r\ncontent-length: {length}\r\n\r\n"
            )
        };
        let mut half = connect(&process);
        half.write_all(format!("{}{whole}", head("/v1/events", whole.len() * 2)).as_bytes()).unwrap();
        let mut deaf = connect(&process);
        let own = super::lines(100 + round..101 + round);
        deaf.write_all(format!("{}{own}", head("/v1/events", own.len())).as_bytes()).unwrap();
        let mut waiting = connect(&process);
        waiting
            .write_all(format!("{}{question}", head("/v1/embeddings", question.len())).as_bytes())
            .unwrap();
    }
    let deadline = Instant::now() + PATIENCE;
    // The scrape itself is one.
    while inflight(&process) > 1.0 {
        assert!(Instant::now() < deadline, "{} requests of clients that are gone", inflight(&process));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(process.get("/v1/nodes/gone").unwrap().0, 404, "half a body is nothing");
    let (status, said) = push(&process, 100..150).unwrap();
    assert_eq!(status, 200, "{said}");
    holds_exactly(process, data.path(), 150);
}

/// Raises how many files this process may have open, and says how many connections that leaves.
fn connections() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Where the right is missing the limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    CONNECTIONS.min(files.saturating_sub(FILES_FOR_OTHERS))
}

fn resident_bytes(process: &Process) -> u64 {
    let told =
        std::fs::read_to_string(Path::new("/proc").join(process.pid().to_string()).join("status")).unwrap();
    let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn ten_thousand_connections_are_kept_and_each_is_answered() {
    let count = connections();
    if count < 1_000 {
        return crate::skip::skipped(&format!(
            "{count} connections are all that the limit of open files allows"
        ));
    }
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path()).set("api.connections_max=10000").set("learner.train=false");
    let process = start.ready();
    must_push(&process, 0..100);
    let before = resident_bytes(&process);
    let started = Instant::now();
    // A few places stay for the questions that this test asks beside them.
    let mut open: Vec<TcpStream> = (0..count.min(CONNECTIONS - 20)).map(|_| connect(&process)).collect();
    let connected = started.elapsed();
    for stream in &mut open {
        stream.write_all(b"GET /v1/nodes/u1?neighbors=1 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }
    for stream in &mut open {
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert!(matches!(&status, b"HTTP/1.1 200" | b"HTTP/1.1 503"), "{}", String::from_utf8_lossy(&status));
    }
    let grown = resident_bytes(&process).saturating_sub(before) / open.len() as u64;
    eprintln!("{} connections in {connected:?}, {grown} bytes of memory each", open.len());
    assert!(grown < 64 << 10, "{grown} bytes for each connection");
    assert_eq!(process.get("/readyz").unwrap().0, 200);
    let (status, said) = push(&process, 100..200).unwrap();
    assert_eq!(status, 200, "{said}");
    drop(open);
    holds_exactly(process, data.path(), 200);
}
