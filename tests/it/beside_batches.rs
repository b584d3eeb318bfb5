//! How single reads fare beside clients that keep asking for large batches. Measured in release only.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Process, Start};

const EVENTS: u64 = 40_000;
const NODES: u64 = 5_000;
/// Nodes of a large request.
const BATCH: usize = 5_000;
const CLIENTS: usize = 4;
const MEASURED: Duration = Duration::from_secs(8);
const REQUESTS_PER_SECOND: f64 = 100.0;

fn push(process: &Process) {
    for from in (0..EVENTS).step_by(2_000) {
        let line =
            |i: u64| format!("{{\"src\":\"n{}\",\"dst\":\"n{}\",\"ts\":{i}}}", i % NODES, i * i % NODES);
        let lines: Vec<String> = (from..from + 2_000).map(line).collect();
        let (status, response) =
            process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
        assert_eq!(status, 200, "{response}");
    }
    process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() == Some(EVENTS));
}

/// The 99th percentile of the latencies of single reads at a fixed rate, each counted from when it was due.
fn p99(process: &Process) -> Duration {
    let (begun, mut taken) = (Instant::now(), Vec::new());
    for number in 0_u64.. {
        let due = Duration::from_secs_f64(number as f64 / REQUESTS_PER_SECOND);
        if due > MEASURED {
            break;
        }
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let body = json!({"nodes": [format!("n{}", number * 7 % NODES)]}).to_string();
        let (status, response) = process.post("/v1/embeddings", "application/json", &body).unwrap();
        assert!(status == 200 && response["embeddings"][0]["embedding"].is_array(), "{response}");
        taken.push(begun.elapsed() - due);
    }
    taken.sort_unstable();
    taken[taken.len() * 99 / 100]
}

/// Processes that send the request in `body` again and again, and take what is sent back, compressed. They are as idle as
/// they can be: on this machine they stand for others.
struct Clients(Vec<Child>);

impl Clients {
    fn new(url: &str, body: &Path, counted: &Path) -> Self {
        let data = format!("@{}", body.display());
        let headers = ["-H", "content-type: application/json", "-H", "accept-encoding: gzip"];
        let client = |_| {
            let counted = std::fs::File::options().create(true).append(true).open(counted).unwrap();
            let mut curl = Command::new("curl");
            // One connection: what is behind the # is not sent. A full stop for each response.
            curl.args(["-sSf", "-o", "/dev/null", "-w", "%{stderr}."])
                .args(headers)
                .args(["--data-binary", &data]);
            curl.arg(format!("{url}#[1-1000000]")).stdout(Stdio::null()).stderr(counted).spawn().unwrap()
        };
        Self((0..CLIENTS).map(client).collect())
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.0 {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

#[test]
#[ignore = "measures; `make test` runs it alone"]
fn single_reads_go_on_beside_four_processes_with_large_batches() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).set("api.compress_bytes_min=65536").ready();
    push(&process);
    let nodes: Vec<Value> = (0..BATCH).map(|i| json!(format!("n{i}"))).collect();
    let (body, counted) = (data.path().join("body.json"), data.path().join("counted"));
    std::fs::write(&body, json!({ "nodes": nodes }).to_string()).unwrap();
    p99(&process);
    let alone = p99(&process);
    let clients = Clients::new(&process.url("/v1/embeddings"), &body, &counted);
    std::thread::sleep(Duration::from_secs(1));
    let beside = p99(&process);
    drop(clients);
    let batches = std::fs::read(&counted).unwrap_or_default().len();
    eprintln!(
        "p99 of single reads: alone {alone:?}, beside {CLIENTS} clients {beside:?} and {batches} batches of {BATCH}"
    );
    assert!(batches > 20, "the clients were served, too: {batches}");
    // Twice the latency alone is the goal; docs/limitations.md has what is reached. Other work on the machine counts, too.
    assert!(beside <= (4 * alone).max(Duration::from_millis(20)), "alone {alone:?}, beside {beside:?}");
}
