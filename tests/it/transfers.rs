//! Slow and large transfers: who sends or reads slowly, or much, keeps nobody else out and holds nothing for long.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evergraph::event::{EdgeId, IntakeResponse, Receipt, RejectedEvent};
use serde_json::{Value, json};

use crate::live::Live;
use crate::process::{Process, Start};

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until something is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends one request on a connection of its own and returns the response, or nothing if it takes longer than `limit`.
fn ask(address: SocketAddr, request: &str, limit: Duration) -> Option<String> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(limit)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).ok()?;
    Some(String::from_utf8_lossy(&response).into_owned())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

fn post(path: &str, kind: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// Connections on which a request has begun whose body does not come.
fn begun(address: SocketAddr, count: usize, request: &str) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.write_all(b"{").unwrap();
        stream
    };
    (0..count).map(begin).collect()
}

#[test]
fn slow_bodies_keep_nobody_out() {
    // No share of one client protects the others here.
    let live = Live::with(|state| {
        state.limits.late_bodies = 1000;
        state.limits.body_grace = Duration::from_secs(60);
        state.limits.bytes_per_second_min = 1;
        state.limits.request_timeout = Duration::from_secs(60);
    });
    let done = AtomicBool::new(false);
    let embeddings = post("/v1/embeddings", "application/json", 10_000);
    let events = post("/v1/events", "application/x-ndjson", 10_000);
    let mut slow = begun(live.address, 200, &embeddings);
    slow.extend(begun(live.address, 100, &events));
    std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                // One that was refused is closed.
                slow.iter_mut().for_each(|stream| drop(stream.write_all(b" ")));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        let mut outcomes = Vec::new();
        for _ in 0..10 {
            let began = Instant::now();
            let read = live.get("/v1/nodes/alice").status;
            let body = live.post("/v1/embeddings", &json!({ "nodes": ["alice"] })).status;
            let pushed = live.send_lines("/v1/events", "[\"alice\",\"bob\",30]").status;
            outcomes.push((read, body, pushed, began.elapsed() < PATIENCE));
        }
        drop(end);
        assert!(outcomes.iter().all(|outcome| *outcome == (200, 200, 200, true)), "{outcomes:?}");
    });
}

/// A request whose response is as long as the request: nodes that nobody knows are named in it.
fn echo(bytes: usize) -> String {
    let names: Vec<Value> = (0..bytes / 1000).map(|i| json!(format!("{i:0>990}"))).collect();
    let body = json!({ "nodes": names }).to_string();
    format!("{}{body}", post("/v1/embeddings", "application/json", body.len()))
}

/// Reads `bytes` at a time, with a pause after each, until the test is over or the connection is.
fn sip(stream: &mut TcpStream, bytes: usize, pause: Duration, done: &AtomicBool) {
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut part = vec![0; bytes];
    while !done.load(Ordering::Acquire) {
        if stream.read(&mut part).is_ok_and(|read| read == 0) {
            return;
        }
        std::thread::sleep(pause);
    }
}

#[test]
fn who_reads_too_slowly_is_disconnected() {
    let live = Live::with(|state| {
        state.limits.connections = 1;
        state.limits.stall = Duration::from_secs(2);
        state.limits.bytes_per_second_min = 4 << 20;
        state.limits.body_bytes = 64 << 20;
        state.limits.batch_items = 100_000;
    });
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        scope.spawn(|| {
            let mut stream = TcpStream::connect(live.address).unwrap();
            stream.write_all(echo(30 << 20).as_bytes()).unwrap();
            // Enough that the system sees a client that reads, and far less than it should.
            sip(&mut stream, 256 << 10, Duration::from_millis(250), &done);
        });
        std::thread::sleep(Duration::from_secs(1));
        let next = ask(live.address, &get("/livez"), PATIENCE);
        drop(end);
        assert!(next.is_some_and(|next| next.starts_with("HTTP/1.1 200")), "the place was never free again");
    });
    let counted = live.metric("evergraph_http_refused_connections_total{reason=\"response_timeout\"}");
    assert_eq!(counted, Some(1.0));
}

#[test]
fn a_body_that_arrives_too_slowly_is_refused() {
    let live = Live::with(|state| {
        state.limits.body_grace = Duration::from_millis(500);
        state.limits.bytes_per_second_min = 1000;
    });
    let head = post("/v1/embeddings", "application/json", 10_000);
    let begun = Instant::now();
    let silent = ask(live.address, &format!("{head}{{"), PATIENCE).unwrap();
    assert!(silent.starts_with("HTTP/1.1 408") && silent.contains("1000 bytes per second"), "{silent}");
    let mut stream = TcpStream::connect(live.address).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    // A tenth of what it should be.
    let mut sent = 0;
    let slow = loop {
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let mut start = [0; 12];
        match stream.read(&mut start) {
            Ok(_) => break start,
            Err(_) if sent < 2_000 => stream.write_all(b"  ").unwrap(),
            Err(error) => panic!("{sent} bytes were taken: {error}"),
        }
        sent += 2;
    };
    assert_eq!(&slow, b"HTTP/1.1 408");
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(live.metric("evergraph_http_rejected_total{reason=\"body_timeout\"}"), Some(2.0));
    let worked =
        live.metric("evergraph_http_request_duration_seconds_sum{route=\"/v1/embeddings\"}").unwrap();
    assert!(worked < 0.4, "the time in which the client sent nothing is its own: {worked} s");
}

#[test]
fn a_client_has_its_share_of_bodies_and_leaves_the_rest_to_others() {
    let live = Live::with(|state| {
        state.limits.late_bodies = 5;
        state.limits.body_grace = Duration::from_secs(60);
        state.limits.body_bytes = 1 << 20;
        state.limits.bodies_bytes = 2 << 20;
    });
    let head = post("/v1/events", "application/x-ndjson", 900_000);
    let waiting = begun(live.address, 5, &head);
    std::thread::sleep(Duration::from_millis(600));
    let refused = ask(live.address, &format!("{head}["), PATIENCE).unwrap();
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("too_many_transfers"), "{refused}");
    let event = "[\"a\",\"b\",30]";
    let whole = format!("{}{event}", post("/v1/events", "application/x-ndjson", event.len()));
    let taken = ask(live.address, &whole, PATIENCE).unwrap();
    assert!(taken.starts_with("HTTP/1.1 200"), "what arrives at once does not count: {taken}");
    drop(waiting);
    // In bytes: a second large body of the same client has no room beside the first.
    let mut first = TcpStream::connect(live.address).unwrap();
    first.write_all(format!("{head}{event}{}", " ".repeat(800_000)).as_bytes()).unwrap();
    let held = "evergraph_http_held_bytes{direction=\"request\"}";
    until("most of the first body is here", || live.metric(held) >= Some(800_000.0));
    let refused = ask(live.address, &format!("{head}{}", " ".repeat(800_000)), PATIENCE).unwrap();
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    first.write_all(" ".repeat(100_000 - event.len()).as_bytes()).unwrap();
    let mut start = [0; 12];
    first.read_exact(&mut start).unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    until("bodies are dropped", || live.metric(held) == Some(0.0));
}

#[test]
fn responses_count_until_they_are_read() {
    let live = Live::with(|state| {
        state.limits.body_bytes = 64 << 20;
        state.limits.bodies_bytes = 256 << 20;
        state.limits.responses_bytes = 32 << 20;
        state.limits.batch_items = 100_000;
    });
    let request = echo(24 << 20);
    let mut unread = TcpStream::connect(live.address).unwrap();
    unread.write_all(request.as_bytes()).unwrap();
    let held = "evergraph_http_held_bytes{direction=\"response\"}";
    until("the response is made", || live.metric(held) >= Some(f64::from(20 << 20)));
    let refused = ask(live.address, &request, PATIENCE).unwrap();
    let start = refused.get(..600).unwrap_or(&refused);
    assert!(start.starts_with("HTTP/1.1 429") && start.contains("too_many_transfers"), "{start}");
    let small = live.post("/v1/embeddings", &json!({ "nodes": ["alice"] }));
    assert_eq!(small.status, 200, "small ones have room in their connections");
    unread.set_read_timeout(Some(PATIENCE)).unwrap();
    let read = std::io::copy(&mut unread.take(24 << 20), &mut std::io::sink()).unwrap();
    assert_eq!(read, 24 << 20, "the connection ended early");
    until("the response is sent", || live.metric(held) == Some(0.0));
}

#[test]
fn a_client_that_reads_at_twice_the_least_rate_gets_a_large_response_whole() {
    let live = Live::with(|state| {
        state.limits.stall = Duration::from_secs(1);
        state.limits.bytes_per_second_min = 512 << 10;
        state.limits.body_bytes = 64 << 20;
        state.limits.batch_items = 100_000;
    });
    let mut stream = TcpStream::connect(live.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(echo(14 << 20).as_bytes()).unwrap();
    let (mut read, mut part) = (0, vec![0; 64 << 10]);
    let mut begun = None;
    loop {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(bytes) => read += bytes,
            Err(error) => panic!("cut after {read} bytes: {error}"),
        }
        let due = Duration::from_secs_f64(read as f64 / f64::from(1 << 20));
        let begun = begun.get_or_insert_with(Instant::now);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    assert!(read > 14 << 20, "{read}");
}

#[test]
fn what_was_stored_is_never_refused_and_what_would_be_is_refused_before() {
    let live = Live::with(|state| {
        state.limits.body_bytes = 64 << 20;
        state.limits.bodies_bytes = 256 << 20;
        state.limits.responses_bytes = 1 << 20;
        state.limits.batch_items = 100_000;
    });
    let mut unread = TcpStream::connect(live.address).unwrap();
    unread.write_all(echo(24 << 20).as_bytes()).unwrap();
    let held = "evergraph_http_held_bytes{direction=\"response\"}";
    until("the response is made", || live.metric(held) >= Some(f64::from(10 << 20)));
    let detail = "x".repeat(300);
    let rejected = |index| RejectedEvent { index, reason: "bad_features", detail: detail.clone() };
    let receipt = Receipt { first: EdgeId(3), end: EdgeId(4), accepted: 1, duplicates: 0 };
    let outcome = IntakeResponse { receipt, rejected: (0..1000).map(rejected).collect() };
    *live.intake.next.lock() = Some(Ok(outcome));
    let stored = live.send_lines("/v1/events", "[]");
    assert_eq!((stored.status, stored.json()["rejected"].as_array().map(Vec::len)), (200, Some(1000)));
    let pushes = live.intake.formats.lock().len();
    let refused = live.send_lines("/v1/events", &"0\n".repeat(50_000));
    assert_eq!((refused.status, refused.error_type().as_str()), (429, "too_many_transfers"));
    assert_eq!(live.intake.formats.lock().len(), pushes, "nothing was stored of it");
}

#[test]
fn an_error_about_very_many_events_is_small() {
    let live = Live::start();
    let detail = "ä".repeat(1000);
    let rejected = |index| RejectedEvent { index, reason: "bad_features", detail: detail.clone() };
    let receipt = Receipt { first: EdgeId(3), end: EdgeId(3), accepted: 0, duplicates: 0 };
    *live.intake.next.lock() =
        Some(Ok(IntakeResponse { receipt, rejected: (0..10_000).map(rejected).collect() }));
    let error = live.send_lines("/v1/events", "[]");
    assert_eq!((error.status, error.error_type().as_str()), (422, "all_rejected"));
    assert!(error.body.len() < 64 << 10, "{}", error.body.len());
    let details = &error.json()["details"];
    assert_eq!(
        (details["rejected_count"].as_u64(), details["rejected"][99]["index"].as_u64()),
        (Some(10_000), Some(99))
    );
    assert_eq!(details["rejected"].as_array().map(Vec::len), Some(100));
}

#[test]
fn large_responses_arrive_whole() {
    let live = Live::with(|state| state.limits.batch_items = 100_000);
    let names: Vec<Value> = (0..20_000).map(|i| json!(format!("nobody-{i}"))).collect();
    let response = live.post("/v1/embeddings", &json!({ "nodes": names }));
    assert_eq!(response.status, 200);
    let length: usize = response.header("content-length").unwrap().parse().unwrap();
    assert!(response.body.len() == length && length > 500_000, "{length}");
    assert_eq!(response.json()["embeddings"].as_array().unwrap().len(), 20_000);
}

#[test]
fn a_request_of_very_many_pairs_is_refused_by_their_number() {
    let live = Live::with(|state| state.limits.body_bytes = 64 << 20);
    let pairs =
        format!("{{\"pairs\":[{}{{\"src\":1,\"dst\":2}}]}}", "{\"src\":1,\"dst\":2},".repeat(1_000_000));
    let refused = live.send_json("/v1/links/score", pairs.as_bytes());
    assert_eq!((refused.status, refused.error_type().as_str()), (413, "batch_too_large"));
    assert_eq!(refused.json()["details"]["found"], 1_000_001);
}

#[test]
fn pages_of_other_servers_reach_nothing_while_there_are_no_keys() {
    let live = Live::with(|state| state.allowed_hosts = vec!["graph.example.org".to_owned()]);
    let nodes = json!({ "nodes": ["alice"] }).to_string();
    let send = |method: &str, path: &str, header: (&str, &str), body: &str| {
        let headers = [("content-type", "application/json"), header];
        let response = live.request(method, path, &headers, body.as_bytes());
        (response.status, if response.status == 200 { String::new() } else { response.error_type() })
    };
    for (method, path, body) in [
        ("GET", "/v1/nodes/alice", ""),
        ("GET", "/v1/status", ""),
        ("POST", "/v1/embeddings", nodes.as_str()),
        ("POST", "/v1/events", ""),
    ] {
        let kind = |header| send(method, path, header, body);
        assert_eq!(kind(("host", "evil.example:8080")), (403, "unknown_host".to_owned()), "{path}");
        assert_eq!(kind(("origin", "http://evil.example")), (403, "foreign_page".to_owned()), "{path}");
        assert_eq!(kind(("host", "graph.example.org")).0, 200, "{path}");
        assert_eq!(kind(("host", "localhost:8080")).0, 200, "{path}");
        assert_eq!(
            kind(("origin", &format!("http://{}", live.address))).0,
            200,
            "{path}, from the page /docs"
        );
    }
    let failures = "evergraph_http_authentication_failures_total{reason=\"not_local\"}";
    assert_eq!(live.metric(failures), Some(8.0));
}

#[test]
fn a_request_that_is_sent_twice_under_one_key_is_stored_once() {
    let folder = tempfile::tempdir().unwrap();
    let start = Start::in_dir(folder.path());
    let mut process = start.ready();
    let body =
        json!([{ "src": 1, "dst": 2, "ts": 0 }, { "src": 1, "dst": 2, "ts": 0 }, { "src": 1 }]).to_string();
    let push = |process: &Process, key: &str, body: &str| {
        let url = process.url("/v1/events");
        let request = crate::process::client()
            .post(url)
            .header("content-type", "application/json")
            .header("idempotency-key", key);
        let outcome = request.send(body).unwrap().body_mut().read_to_string().unwrap();
        let outcome: Value = serde_json::from_str(&outcome).unwrap();
        (outcome["accepted"].as_u64().unwrap(), outcome["duplicates"].as_u64().unwrap())
    };
    assert_eq!(push(&process, "a", &body), (2, 0), "equal events of one request are both stored");
    assert_eq!(push(&process, "a", &body), (0, 2));
    assert_eq!(push(&process, "b", &body), (2, 0));
    assert!(process.terminate().success());
    process = start.ready();
    assert_eq!(push(&process, "a", &body), (0, 2), "also after a restart");
    let later = json!([{ "src": 1, "dst": 2, "ts": 0 }, { "src": 3, "dst": 4, "ts": 1 }]).to_string();
    assert_eq!(push(&process, "a", &later), (1, 1), "another event under the same key is not lost");
    assert!(process.terminate().success());
}
