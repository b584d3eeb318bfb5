//! The daemon as its users meet it: write, read what was written, stop, go on, run out of disk.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{Process, Start, log_of};

fn push(process: &Process, events: &[Value]) -> (u16, Value) {
    process.post("/v1/events", "application/json", &Value::from(events.to_vec()).to_string()).unwrap()
}

fn visits(from: u64, count: u64) -> Vec<Value> {
    (from..from + count)
        .map(|i| json!({"src": format!("u{}", i % 17), "dst": format!("i{}", i * i % 29), "ts": 1_700_000_000 + i}))
        .collect()
}

#[test]
fn a_client_reads_its_own_write() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).ready();
    let (status, receipt) = push(&process, &visits(0, 300));
    assert_eq!((status, &receipt["accepted"]), (200, &json!(300)), "{receipt}");

    let ask = json!({"nodes": ["u1", "nobody"], "after": receipt["end_position"], "wait_ms": 5000});
    let (status, answer) = process.post("/v1/embeddings", "application/json", &ask.to_string()).unwrap();
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["freshness"]["applied_position"], 300);
    let known = &answer["embeddings"][0];
    assert_eq!(known["embedding"].as_array().unwrap().len(), 100);
    assert!(known["embedding"].as_array().unwrap().iter().any(|x| x.as_f64() != Some(0.0)), "{known}");
    assert_eq!(answer["embeddings"][1]["error"], "unknown_node");

    // One more event of the node changes its embedding.
    let (_, receipt) = push(&process, &[json!({"src": "u1", "dst": "new item", "ts": 1_700_000_500})]);
    let ask = json!({"nodes": ["u1"], "after": receipt["end_position"], "wait_ms": 5000});
    let (_, later) = process.post("/v1/embeddings", "application/json", &ask.to_string()).unwrap();
    assert_ne!(later["embeddings"][0]["embedding"], known["embedding"]);

    let ask = json!({"pairs": [{"src": "u1", "dst": "i0"}, {"src": "u1", "dst": "nobody"}]});
    let (_, scores) = process.post("/v1/links/score", "application/json", &ask.to_string()).unwrap();
    let score = scores["scores"][0]["score"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&score));
    let (_, node) = process.get("/v1/nodes/u1?neighbors=3").unwrap();
    assert_eq!(node["neighbors"].as_array().unwrap().len(), 3, "{node}");
    assert_eq!(node["neighbors"][0]["node"], "new item");
}

#[test]
fn it_goes_on_where_it_stopped() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path());
    let process = start.ready();
    push(&process, &visits(0, 1000));
    let before = process.wait_until("learned", |status| status["learner"]["applied_position"] == 1000);
    let ask = json!({"nodes": ["u3", "i4"]}).to_string();
    let (_, first) = process.post("/v1/embeddings", "application/json", &ask).unwrap();
    assert!(process.terminate().success());

    let process = start.ready();
    let after = process.status();
    assert_eq!(after["learner"]["applied_position"], 1000);
    assert_eq!(after["learner"]["model_version"], before["learner"]["model_version"]);
    let (_, again) = process.post("/v1/embeddings", "application/json", &ask).unwrap();
    assert_eq!(
        first["embeddings"], again["embeddings"],
        "the same weights, states and graph answer the same"
    );
    push(&process, &visits(1000, 1000));
    process.wait_until("learned on", |status| status["learner"]["applied_position"] == 2000);
}

#[test]
fn a_second_daemon_on_the_same_data_and_changed_dimensions_are_refused_with_words() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).ready();
    let said = Start::in_dir(data.path()).fails();
    assert!(said.contains("another process") || said.contains("lock"), "{said}");
    assert!(said.contains(data.path().to_str().unwrap()), "{said}");
    assert!(process.terminate().success());
    let said = Start::in_dir(data.path()).set("stream.edge_feature_dimension=3").fails();
    assert!(said.contains("stream.edge_feature_dimension = 3") && said.contains("made with 0"), "{said}");
    let said = Start::in_dir(data.path()).set("learner.bach_events=3").fails();
    assert!(said.contains("batch_events"), "{said}");
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_the_log_teaches_again() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path());
    let process = start.ready();
    push(&process, &visits(0, 500));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 500);
    assert!(process.terminate().success());
    for entry in std::fs::read_dir(data.path().join("checkpoints")).unwrap() {
        let path = entry.unwrap().path();
        let mut content = std::fs::read(&path).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        std::fs::write(&path, content).unwrap();
    }
    let mut process = start.spawn();
    let said = process.wait_for_line("is damaged").expect("the damage is said");
    assert!(said.contains("checksum"), "{said}");
    process.wait_for_line("\"ready\"").unwrap();
    process.kill();
    let process = start.ready();
    process.wait_until("learned again", |status| status["learner"]["applied_position"] == 500);
}

/// A small file system that is full when its size is reached; needs root.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // Lazily, because the daemon of a failed test may still hold it.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_stops_ingest_with_words_and_loses_nothing() {
    let data = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(data.path(), "4m") else {
        crate::skip::skipped("a full disk cannot be made here: mounting a tmpfs needs root");
        return;
    };
    let start = Start::in_dir(data.path()).set("learner.train=false").set("checkpoint.interval_seconds=3600");
    let process = start.ready();
    let mut written = 0;
    let refusal = loop {
        let (status, answer) = push(&process, &visits(written, 2000));
        if status != 200 {
            break (status, answer);
        }
        written += 2000;
        assert!(written < 1_000_000, "the disk did not fill up");
    };
    assert_eq!(refusal.0, 503, "{}", refusal.1);
    assert!(refusal.1["error"].as_str().unwrap().contains("disk is full"), "{}", refusal.1);
    assert!(process.status()["log"]["state"].as_str().unwrap().contains("disk is full"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while process.get("/readyz").unwrap().0 != 503 {
        assert!(Instant::now() < deadline, "not ready is not said");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(process.get("/livez").unwrap().0, 200);
    assert_eq!(process.get("/v1/nodes/u1").unwrap().0, 200, "reading goes on");

    disk.resize("64m");
    let deadline = Instant::now() + Duration::from_secs(30);
    while push(&process, &visits(written, 2000)).0 != 200 {
        assert!(Instant::now() < deadline, "ingest did not go on after space was freed");
        std::thread::sleep(Duration::from_millis(100));
    }
    written += 2000;
    process.kill();
    let log = log_of(data.path());
    assert_eq!(log["records"], written);
    assert_eq!(log["edges"], written);
    start.ready();
}
