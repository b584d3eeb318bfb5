//! The daemon as its users meet it: write, read what was written, stop, go on, run out of disk.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evergraph::event::{EdgeBatch, EventTime, NodeId, NodeKey};
use evergraph::log::{Frame, Log, LogOptions};
use serde_json::{Value, json};

use crate::process::{Process, Start, evergraph, log_of};

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

    let ask = json!({"nodes": ["u1", "nobody"], "min_position": receipt["end_position"], "wait_ms": 5000});
    let (status, response) = process.post("/v1/embeddings", "application/json", &ask.to_string()).unwrap();
    assert_eq!(status, 200, "{response}");
    assert_eq!(response["freshness"]["applied_position"], 300);
    let known = &response["embeddings"][0];
    assert_eq!(known["embedding"].as_array().unwrap().len(), 100);
    assert!(known["embedding"].as_array().unwrap().iter().any(|x| x.as_f64() != Some(0.0)), "{known}");
    assert_eq!(response["embeddings"][1]["error"], "unknown_node");

    // One more event of the node changes its embedding.
    let (_, receipt) = push(&process, &[json!({"src": "u1", "dst": "new item", "ts": 1_700_000_500})]);
    let ask = json!({"nodes": ["u1"], "min_position": receipt["end_position"], "wait_ms": 5000});
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
fn times_in_another_unit_than_the_models_are_warned_of_and_a_trained_model_keeps_its_unit() {
    let data = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(data.path()).ready();
    assert_eq!(push(&process, &[json!({"src": "a", "dst": "b", "ts": 1_700_000_000_000_i64})]).0, 200);
    let warning = process.wait_for_line("event times look like milliseconds").expect("it warns");
    assert!(warning.contains("stream.time_unit = \\\"milliseconds\\\""), "{warning}");
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 1);
    assert!(process.terminate().success());
    let named = Start::in_dir(data.path()).set("stream.time_unit=milliseconds");
    let refused = named.fails();
    assert!(refused.contains("set model.time_unit"), "{refused}");
    assert!(refused.contains("1 units of event time to a second, this one has 1000"), "{refused}");
    let known = named.set("model.time_unit=seconds").ready();
    assert_eq!(known.get("/v1/info").unwrap().1["time_unit"], "milliseconds");
    assert!(known.terminate().success());
}

#[test]
fn what_cannot_be_done_is_refused_in_words() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).ready();
    let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let packed = agent.post(process.url("/v1/events")).header("content-type", "application/json");
    let mut packed = packed.header("content-encoding", "gzip").send(&[0x1f_u8, 0x8b, 8][..]).unwrap();
    let said = packed.body_mut().read_to_string().unwrap();
    assert_eq!(packed.status(), 415, "{said}");
    assert!(said.contains("send it uncompressed"), "{said}");
    for path in ["/v1/map?limit=5001", "/v1/anomalies?limit=9000000"] {
        let (status, said) = process.get(path).unwrap();
        assert_eq!(status, 413, "{path}: {said}");
        assert!(said["error"].as_str().unwrap().starts_with("limit is "), "{path}: {said}");
    }
    let (done, _, said) = evergraph(&["status", "--url", "127.0.0.1:8080"]);
    assert!(!done && said.contains("with http:// or https://"), "{said}");
    assert!(process.terminate().success());

    let nowhere = data.path().join("nowhere");
    let (done, _, said) = evergraph(&["dead-letters", "list", "--data", nowhere.to_str().unwrap()]);
    assert!(!done && said.contains("is not a data directory"), "{said}");
    let pipe = data.path().join("pipe.csv");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let piped = Start::in_dir(data.path()).set(&format!("ingest.file.path={}", pipe.display()));
    assert!(piped.fails().contains("it is no regular file"));
    let (done, listed, _) = piped.said_by(&["check", "--listen", "127.0.0.1:0"]);
    assert!(!done && listed.contains("it is no regular file"), "{listed}");
}

#[test]
fn a_producer_is_told_which_rows_were_bad() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(&data.path().join("data")).set("stream.future_limit=100").ready();
    let file = data.path().join("events.csv");
    std::fs::write(&file, "src,dst,ts\na,b,1\na,c,2\na,b,x\na,b,90000\n").unwrap();
    let (done, _, said) =
        evergraph(&["ingest", "--events", file.to_str().unwrap(), "--to", "http", "--url", &process.url("")]);
    assert!(done, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let of = |text: &str| lines.iter().find(|line| line.contains(text)).is_some();
    assert!(of("line 4") && of("row 3, counted from 0, was rejected (too_far_ahead)"), "{said}");
    assert!(said.contains("1 rejected, 1 rows skipped"), "{said}");
}

#[test]
fn what_a_restart_left_behind_is_live_and_the_past_of_a_new_beginning_is_not() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path())
        .set("learner.lag_events_max=1000")
        .set("checkpoint.interval_seconds=3600")
        .set("learner.batch_events=100");
    let process = start.ready();
    assert_eq!(push(&process, &visits(0, 500)).0, 200);
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 500);
    let (code, made) = process.post("/v1/admin/checkpoints", "application/json", "").unwrap();
    assert_eq!((code, &made["position"]), (200, &json!(500)), "{made}");
    for part in 0..6 {
        assert_eq!(push(&process, &visits(500 + part * 1_000, 1_000)).0, 200);
    }
    process.kill();

    let learned = |status: &Value| status["learner"]["applied_position"] == 6_500;
    let process = start.ready();
    let status = process.wait_until("learned again", learned);
    let learner = &status["learner"];
    assert!(learner["skipped_events"].as_u64() >= Some(4_000), "{learner}");
    assert_eq!(learner["training_on_history"], false);
    assert_eq!(learner["end_to_end_freshness_p50_seconds"], Value::Null, "it was visible before");
    process.kill();

    std::fs::remove_dir_all(data.path().join("checkpoints")).unwrap();
    let process = start.ready();
    let status = process.wait_until("learned from the beginning", learned);
    let learner = &status["learner"];
    assert_eq!((&learner["trained_events"], &learner["skipped_events"]), (&json!(6_500), &json!(0)));
    assert_eq!(learner["training_on_history"], true);
    assert!(process.terminate().success());
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
        "the same weights, states and graph give the same responses"
    );
    push(&process, &visits(1000, 1000));
    process.wait_until("learned on", |status| status["learner"]["applied_position"] == 2000);
}

#[test]
fn known_edge_types_are_distinguished_and_others_are_counted() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path()).set("model.edge_types=2").set("model.edge_type_dimension=3");
    let process = start.ready();
    let typed = |from: u64, count| {
        let mut events = visits(from, count);
        for (i, event) in events.iter_mut().enumerate().filter(|(i, _)| i % 4 > 0) {
            event["type"] = json!(["view", "buy", "return"][i % 4 - 1]);
        }
        events
    };
    push(&process, &typed(0, 400));
    let learned = |status: &Value| status["learner"]["applied_position"] == 400;
    let before = process.wait_until("learned", learned);
    assert_eq!(before["graph"]["unknown_type_edges"], 100, "{before}");
    let ask = json!({"nodes": ["u3", "i4"]}).to_string();
    let (_, first) = process.post("/v1/embeddings", "application/json", &ask).unwrap();
    // A type that is not known is no type; one that is makes another event of it.
    let changed = |kind: &str| {
        let event = json!({"src": "u3", "dst": "i4", "ts": 1_700_001_000, "type": kind});
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path();
        std::process::Command::new("cp").arg("-a").arg(data.path().join(".")).arg(copy).status().unwrap();
        let process = Start::in_dir(copy)
            .set("model.edge_types=2")
            .set("model.edge_type_dimension=3")
            .set("learner.train=false")
            .ready();
        let (_, receipt) = push(&process, &[event]);
        let ask =
            json!({"nodes": ["u3"], "min_position": receipt["end_position"], "wait_ms": 5000}).to_string();
        process.post("/v1/embeddings", "application/json", &ask).unwrap().1["embeddings"].clone()
    };
    assert!(process.terminate().success());
    assert_ne!(changed("view"), changed("buy"));
    assert_eq!(changed("return"), changed("unheard of"));

    let process = start.ready();
    let after = process.status();
    assert_eq!(after["learner"]["model_version"], before["learner"]["model_version"]);
    assert_eq!(after["graph"]["unknown_type_edges"], 100, "they are counted again from the log");
    let (_, again) = process.post("/v1/embeddings", "application/json", &ask).unwrap();
    assert_eq!(first["embeddings"], again["embeddings"]);
    assert!(process.terminate().success());
    let message = Start::in_dir(data.path()).fails();
    assert!(message.contains("edge_types = 2"), "{message}");
}

#[test]
fn a_second_daemon_on_the_same_data_and_changed_dimensions_are_refused_with_words() {
    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).ready();
    let message = Start::in_dir(data.path()).fails();
    assert!(message.contains("another process") || message.contains("lock"), "{message}");
    assert!(message.contains(data.path().to_str().unwrap()), "{message}");
    assert!(process.terminate().success());
    let message = Start::in_dir(data.path()).set("stream.edge_feature_dimension=3").fails();
    assert!(
        message.contains("stream.edge_feature_dimension = 3") && message.contains("made with 0"),
        "{message}"
    );
    let message = Start::in_dir(data.path()).set("learner.bach_events=3").fails();
    assert!(message.contains("batch_events"), "{message}");
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
    let message = process.wait_for_line("is damaged").expect("the damage is logged");
    assert!(message.contains("checksum"), "{message}");
    process.wait_for_line("\"ready\"").unwrap();
    process.kill();
    let process = start.ready();
    process.wait_until("learned again", |status| status["learner"]["applied_position"] == 500);
}

#[test]
fn a_stop_ends_in_time_under_constant_push_and_loses_nothing_acknowledged() {
    let data = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(data.path()).set("checkpoint.interval_seconds=3600").ready();
    let (done, acknowledged) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = process.url("");
    std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| done.store(true, Ordering::Release));
        for pusher in 0..4 {
            let (done, acknowledged, process) = (&done, &acknowledged, &process);
            scope.spawn(move || {
                for i in (0..).take_while(|_| !done.load(Ordering::Acquire)) {
                    let event = json!({"src": format!("p{pusher}"), "dst": i, "ts": i});
                    match process.post("/v1/events", "application/json", &event.to_string()) {
                        Ok((200, _)) => drop(acknowledged.fetch_add(1, Ordering::AcqRel)),
                        Ok((status, response)) => assert_eq!(status, 503, "{response}"),
                        // The interface is gone; trying again keeps the pressure up.
                        Err(_) => std::thread::sleep(Duration::from_millis(2)),
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        process.signal("-TERM");
        let requested = Instant::now();
        while crate::process::client().get(format!("{address}/livez")).call().is_ok() {
            assert!(requested.elapsed() < Duration::from_secs(20), "it goes on after SIGTERM");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(process.ended().success());
    let acknowledged = acknowledged.into_inner();
    let log = log_of(data.path());
    assert!(acknowledged > 100, "{acknowledged}");
    assert_eq!(log["records"], acknowledged, "what got 503 is not there");
    let checkpoints = std::fs::read_dir(data.path().join("checkpoints")).unwrap();
    assert!(checkpoints.count() >= 1, "what was learned is kept");
}

#[test]
fn a_learner_that_dies_is_reported_and_ends_the_daemon_in_order() {
    let data = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(data.path()).set("learner.lag_events_max=1000000").ready();
    for part in 0..60 {
        assert_eq!(push(&process, &visits(part * 1_000, 1_000)).0, 200);
    }
    // The learner is behind; what it will read some thousand events from now is damaged. It has read up to 256 KiB
    // ahead, some 22,000 events.
    let segment = data.path().join("log/00000000000000000000.log");
    let mut content = std::fs::read(&segment).unwrap();
    let learned = process.status()["learner"]["applied_position"].as_u64().unwrap() as usize;
    assert!(learned < 20_000, "the learner was too fast for this test: {learned}");
    let at = content.len() * (learned + 32_000) / 60_000;
    content[at] ^= 1;
    std::fs::write(&segment, content).unwrap();
    process.wait_for_line("the learner has ended").expect("it is logged");
    let status = process.ended();
    assert_eq!(status.code(), Some(1), "{status}");
    let message = process.wait_for_line("payload checksum").expect("the reason is the last word");
    assert!(message.contains("the learner has ended"), "{message}");
}

#[test]
fn the_service_manager_gets_readiness_watchdog_and_stop() {
    let data = tempfile::tempdir().unwrap();
    let socket = data.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let receive = || {
        let mut bytes = [0; 200];
        let length = listener.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    };
    let start = Start::in_dir(&data.path().join("data"))
        .env("NOTIFY_SOCKET", socket.to_str().unwrap())
        .env("WATCHDOG_USEC", "1000000");
    let mut process = start.ready();
    let received: Vec<String> = std::iter::repeat_with(receive).take(10).collect();
    assert!(received.iter().any(|message| message == "READY=1"), "{received:?}");
    assert!(received.iter().filter(|message| *message == "WATCHDOG=1").count() >= 4, "{received:?}");
    process.signal("-TERM");
    while receive() != "STOPPING=1" {}
    assert!(process.ended().success());
}

/// Makes a log whose replay takes a while.
fn long_log(data: &Path) {
    let options = LogOptions { dir: data.join("log"), segment_bytes: 1 << 30 };
    let (mut log, _) = Log::open(options).unwrap();
    for frame in 0..60_u32 {
        let mut batch = EdgeBatch { first: log.end(), ..EdgeBatch::default() };
        for i in 0..50_000_u32 {
            let src = NodeId(i.wrapping_mul(2_654_435_769) % 100_000);
            batch.push_edge(src, NodeId(i % 77), EventTime(i64::from(frame) * 50_000 + i64::from(i)));
        }
        let new_keys = if frame == 0 { (0..100_000).map(NodeKey::Int).collect() } else { Vec::new() };
        log.append(&Frame { batch, new_keys, ..Frame::default() }).unwrap();
    }
    log.commit().unwrap();
}

#[test]
fn a_signal_ends_a_start_that_is_still_reading_the_log() {
    let data = tempfile::tempdir().unwrap();
    long_log(data.path());
    let socket = data.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let start = Start::in_dir(data.path()).env("NOTIFY_SOCKET", socket.to_str().unwrap());
    let mut process = start.spawn();
    // The first message asks for more time; it is sent before the log is read.
    let mut bytes = [0; 200];
    let length = listener.recv(&mut bytes).unwrap();
    assert!(bytes[..length].starts_with(b"EXTEND_TIMEOUT_USEC="));
    process.signal("-TERM");
    let message = process.wait_for_line("stopped before it was ready");
    assert!(message.is_some(), "the start went on");
    let status = process.ended();
    assert!(status.success(), "{status}");
}

/// A small file system that is full when its size is reached; needs root.
pub struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    pub fn mount(at: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn resize(&self, size: &str) {
        self.remount(&format!("size={size}"));
    }

    pub fn remount(&self, how: &str) {
        let options = format!("remount,{how}");
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
        let (status, response) = push(&process, &visits(written, 2000));
        if status != 200 {
            break (status, response);
        }
        written += 2000;
        assert!(written < 1_000_000, "the disk did not fill up");
    };
    assert_eq!(refusal.0, 503, "{}", refusal.1);
    assert!(refusal.1["error"].as_str().unwrap().contains("disk is full"), "{}", refusal.1);
    assert!(process.status()["log"]["state"].as_str().unwrap().contains("disk is full"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while process.get("/readyz").unwrap().1["checks"]["log"]["state"] != "degraded" {
        assert!(Instant::now() < deadline, "the full disk is not reported");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(process.get("/readyz").unwrap().0, 200, "a full log disk takes no reads away");
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

#[test]
fn a_request_that_never_ends_does_not_hold_the_stop() {
    use std::io::Write;

    let data = tempfile::tempdir().unwrap();
    let process = Start::in_dir(data.path()).ready();
    let address = process.url("").replace("http://", "");
    let mut half = std::net::TcpStream::connect(address).unwrap();
    half.write_all(b"POST /v1/events HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\n{").unwrap();
    let status = process.status();
    assert_eq!(status["log"]["durable_position"], 0);
    let requested = Instant::now();
    assert!(process.terminate().success());
    assert!(requested.elapsed() < Duration::from_secs(20), "it took {:?}", requested.elapsed());
}
