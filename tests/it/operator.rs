//! What operators do to a running daemon by the command line: checkpoints, pauses, how much the log says, and what is
//! written down about it.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use evergraph::learner::checkpoint::{self, CheckpointHead};
use serde_json::{Value, json};

use crate::process::{PATIENCE, Process, Start, evergraph};

fn push(process: &Process, from: u64, count: u64) -> (u16, Value) {
    let event = |i: u64| json!({"src": format!("u{}", i % 7), "dst": format!("i{}", i % 5), "ts": 1_000 + i});
    let events: Value = (from..from + count).map(event).collect();
    process.post("/v1/events", "application/json", &events.to_string()).unwrap()
}

fn learned(process: &Process, position: u64) {
    process.wait_until("learned", |status| status["learner"]["applied_position"] == position);
}

/// The next line that the log has about what operators do.
fn audited(process: &mut Process) -> Value {
    let line = process.wait_for_line("evergraph::audit").expect("an audit line");
    serde_json::from_str(&line).unwrap()
}

#[test]
fn a_checkpoint_is_written_when_it_is_asked_for_and_can_be_gone_back_to() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let start =
        Start::in_dir(folder.path()).set("checkpoint.interval_seconds=3600").set("learner.batch_events=20");
    let process = start.ready();
    let url = process.url("");
    let (done, _, stderr) = evergraph(&["checkpoint", "create", "--url", &url]);
    assert!(!done && stderr.contains("nothing was learned yet"), "{stderr}");
    assert_eq!(push(&process, 0, 400).0, 200);
    learned(&process, 400);
    let (done, name, stderr) = evergraph(&["checkpoint", "create", "--url", &url]);
    let (first, second) = ("00000000000000000400.checkpoint", "00000000000000000800.checkpoint");
    assert!(done && stderr.contains("position 400"), "{stderr}");
    assert_eq!(name.trim(), first);
    let dir = folder.path().join("checkpoints");
    assert!(dir.join(first).exists(), "durable before it is named");
    assert_eq!(
        evergraph(&["checkpoint", "create", "--url", &url]).1.trim(),
        first,
        "nothing was learned since"
    );
    assert_eq!(push(&process, 400, 400).0, 200);
    learned(&process, 800);
    let (_, made, _) = evergraph(&["checkpoint", "create", "--json", "--url", &url]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["name"], &made["position"]), (&json!(second), &json!(800)));

    let restore = |name: &str| evergraph(&["checkpoint", "restore", name, "--data", data]);
    let (done, _, stderr) = restore(first);
    assert!(!done && stderr.contains("in use by another process"), "{stderr}");
    assert!(process.terminate().success());
    let (done, _, stderr) = restore("7.checkpoint");
    assert!(!done && stderr.contains(first) && stderr.contains(second), "{stderr}");
    assert!(!restore("../log").0);
    let (done, _, stderr) =
        evergraph(&["checkpoint", "restore", first, "--data", data, "--set", "model.embedding_dimension=64"]);
    assert!(!done && stderr.contains("cannot be used"), "{stderr}");
    let (done, stdout, stderr) = restore(first);
    assert!(done && stdout.contains("400 records") && stderr.contains(second), "{stdout}{stderr}");
    let list = |data: &str| -> Value {
        serde_json::from_str(&evergraph(&["checkpoint", "list", "--data", data]).1).unwrap()
    };
    assert_eq!(list(data).as_array().unwrap().len(), 1);

    // Back to where it was, unless that is damaged.
    let superseded = dir.join("00000000000000000800.superseded");
    let (whole, before) = (std::fs::read(&superseded).unwrap(), content(&superseded));
    std::fs::write(&superseded, &whole[..whole.len() - 1]).unwrap();
    let (done, _, stderr) = restore(second);
    assert!(!done && stderr.contains("damaged"), "{stderr}");
    std::fs::write(&superseded, &whole).unwrap();
    let (done, stdout, _) = restore(second);
    assert!(done && stdout.contains("0 records"), "{stdout}");
    assert_eq!(list(data)[0]["file"], second);
    assert!(restore(first).0);

    let mut process = start.spawn();
    let restored = process.wait_for_line("restored the learned state").unwrap();
    assert!(restored.contains("\"position\":400"), "{restored}");
    process.wait_until_ready();
    learned(&process, 800);
    assert!(process.terminate().success());
    assert_eq!(list(data)[0]["position"], 800, "learned again");

    // What was learned first and what was learned again have one position, and neither is lost.
    assert!(restore(first).0 && restore("00000000000000000800.superseded").0);
    let (mut head, back) = content(&dir.join(second));
    assert_ne!(head.began_unix_ms, before.0.began_unix_ms, "what follows is history");
    head.began_unix_ms = before.0.began_unix_ms;
    assert!((head, back) == before, "that of before, by its name");
    assert!(dir.join("00000000000000000800.superseded.2").exists(), "and the other one beside it");
}

/// Header and payload of a checkpoint.
fn content(path: &Path) -> (CheckpointHead, Vec<u8>) {
    let (mut found, mut bytes) = (checkpoint::open(path).unwrap(), Vec::new());
    found.payload.read_to_end(&mut bytes).unwrap();
    (found.file.head, bytes)
}

fn held(process: &Process, source: &str) -> Value {
    let status = process.status();
    let mut sources = status["ingest"]["sources"].as_array().unwrap().iter();
    sources.find(|report| report["name"].as_str().unwrap().starts_with(source)).unwrap().clone()
}

#[test]
fn a_source_is_held_until_it_is_let_go_on_also_through_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().join("events.csv");
    let rows: String = (0..100_000).map(|i| format!("{},{},{i}\n", i % 50, 100 + i % 30)).collect();
    std::fs::write(&events, format!("src,dst,ts\n{rows}")).unwrap();
    let start = Start::in_dir(&folder.path().join("data"))
        .set(&format!("ingest.file.path={}", events.display()))
        .set("ingest.file.events_per_second=200")
        .set("learner.train=false");
    let mut process = start.ready();
    let url = process.url("");
    let file = held(&process, "file:")["name"].as_str().unwrap().to_owned();
    let order = |verb: &str, source: &str, url: &str| evergraph(&["source", verb, source, "--url", url]);
    for source in ["http", &file] {
        let (done, stdout, stderr) = order("pause", source, &url);
        assert!(done && stdout.contains("paused by local"), "{stdout}{stderr}");
        let line = audited(&mut process);
        assert_eq!(
            (&line["who"], &line["action"], &line["outcome"]),
            (&json!("local"), &json!("source"), &json!("done"))
        );
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
        assert_eq!(line["detail"], format!("{source} is paused"));
    }
    let (done, _, stderr) = order("pause", "kafka:x", &url);
    assert!(!done && stderr.contains("no source has the name kafka:x; there are http, file:"), "{stderr}");

    let rejected = push(&process, 0, 1);
    assert_eq!((rejected.0, &rejected.1["error_type"]), (503, &json!("source_paused")));
    let scrape = process.metrics();
    assert!(
        scrape.contains("evergraph_ingest_source_state{source=\"http\",state=\"paused\"} 1\n"),
        "{scrape}"
    );
    assert!(scrape.contains("evergraph_ingest_paused 0\n"), "nothing holds up all sources");
    let deadline = Instant::now() + PATIENCE;
    while process.get("/readyz").unwrap().1["checks"]["sources"]["state"] != "degraded" {
        assert!(Instant::now() < deadline, "health does not report that sources are paused");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Once what was read is stored nothing more comes, however long it takes to look, to stop and to start: a source
    // that goes on has another event in 5 ms.
    let read = || held(&process, "file:")["received_events"].as_u64();
    let status =
        process.wait_until("all of it is stored", |s| s["log"]["durable_position"].as_u64() == read());
    let stands = status["log"]["durable_position"].as_u64().unwrap();
    assert!(process.terminate().success());

    let mut process = start.ready();
    let url = process.url("");
    for source in ["http", "file:"] {
        let report = held(&process, source);
        assert_eq!((&report["state"], &report["paused_by"]), (&json!("paused"), &json!("local")), "{report}");
    }
    let (_, described, _) = evergraph(&["source", "describe", &file, "--url", &url]);
    assert_eq!(process.status()["log"]["durable_position"], stands);
    assert_eq!(held(&process, "file:")["received_events"], 0);
    assert!(
        described.contains(": paused, paused by local for ")
            && described.contains(&format!("at offset {stands}"))
    );
    for source in ["http", &file] {
        let (done, stdout, stderr) = order("resume", source, &url);
        assert!(done && stdout.contains("is resumed"), "{stdout}{stderr}");
        assert_eq!(audited(&mut process)["detail"], format!("{source} is resumed"));
    }
    process.wait_until("it goes on", |status| status["log"]["durable_position"].as_u64() > Some(stands));
    assert_eq!(push(&process, 0, 1).0, 200);
    assert_eq!(held(&process, "http")["state"], "running");
    let (_, json, _) = evergraph(&["source", "describe", "--json", "--url", &url]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2, "{json}");
}

/// Says nonsense to the daemon, which is worth a line of the level debug.
fn break_off(process: &Process) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(process.url("").trim_start_matches("http://")).unwrap();
    stream.write_all(b"\0\0nonsense\r\n\r\n").unwrap();
    let _ = stream.read(&mut [0; 64]);
}

#[test]
fn the_log_says_more_or_less_while_the_daemon_runs_and_always_what_operators_do() {
    let folder = tempfile::tempdir().unwrap();
    let start = Start::in_dir(folder.path());
    let mut process = start.ready();
    let url = process.url("");
    let level = |args: &[&str]| evergraph(&[&["log-level", "--url", &url], args].concat());
    assert_eq!(level(&[]).1, "info\n");
    let (done, stdout, stderr) = level(&["debug"]);
    assert!(done && stdout == "debug\n" && stderr.contains("until the next start"), "{stdout}{stderr}");
    let line = audited(&mut process);
    assert_eq!((&line["action"], &line["detail"]), (&json!("log_level"), &json!("debug")));
    break_off(&process);
    assert!(process.wait_for_line("a connection broke off").is_some());
    let (done, _, stderr) = level(&["inof"]);
    assert!(!done && stderr.contains("422") && stderr.contains("must be error, warn"), "{stderr}");
    let line = audited(&mut process);
    assert_eq!((&line["outcome"], &line["level"]), (&json!("failed"), &json!("WARN")));

    assert!(level(&["off"]).0);
    assert_eq!(audited(&mut process)["detail"], "off", "an audit is not silenced");
    break_off(&process);
    assert!(level(&["info"]).0);
    let next: Value = serde_json::from_str(&process.wait_for_line("").unwrap()).unwrap();
    assert_eq!((&next["target"], &next["detail"]), (&json!("evergraph::audit"), &json!("info")), "{next}");
    let (_, json, _) = level(&["--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json, json!({ "level": "info", "configured": "info" }));
}

fn key_file(folder: &Path, name: &str, key: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, key).unwrap();
    path.display().to_string()
}

#[test]
fn with_keys_only_an_admin_does_and_every_try_has_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    let (reader, admin) = ("reader-0123456789abcdef", "admin-00123456789abcdef");
    std::fs::write(&keys, format!("read dashboard {reader}\nadmin on-call {admin}\n")).unwrap();
    let mut process =
        Start::in_dir(&folder.path().join("data")).set(&format!("api.keys_file={}", keys.display())).ready();
    let url = process.url("");
    let level = |key: Option<&str>| {
        let mut args = vec!["log-level", "warn", "--url", &url];
        args.extend(key.iter().flat_map(|key| ["--key-file", *key]));
        evergraph(&args)
    };
    let [reader, admin, guessed] = [("r", reader), ("a", admin), ("g", "guessed-123456789abcdef")]
        .map(|(name, key)| key_file(folder.path(), name, key));
    for (key, expected, caller) in [
        (None, "see --key-file", "unknown"),
        (Some(guessed.as_str()), "unknown to this daemon", "unknown"),
        (Some(reader.as_str()), "has the role read; use one whose role is admin", "dashboard"),
    ] {
        let (done, _, stderr) = level(key);
        assert!(!done && stderr.contains(expected), "{stderr}");
        let line = audited(&mut process);
        assert_eq!((&line["who"], &line["outcome"]), (&json!(caller), &json!("refused")), "{line}");
    }
    let (done, _, stderr) = level(Some(&admin));
    assert!(done, "{stderr}");
    let line = audited(&mut process);
    assert_eq!(
        (&line["who"], &line["outcome"], &line["detail"]),
        (&json!("on-call"), &json!("done"), &json!("warn"))
    );
    assert!(!line.to_string().contains("00123456789abcdef"), "no key is written down");
    let scrape = process.metrics();
    assert!(scrape.contains("evergraph_admin_actions_total{action=\"log_level\",outcome=\"refused\"} 3\n"));
}

#[test]
fn one_screen_shows_what_a_daemon_does() {
    let folder = tempfile::tempdir().unwrap();
    let process = Start::in_dir(folder.path()).set("learner.batch_events=20").ready();
    let url = process.url("");
    assert_eq!(push(&process, 0, 400).0, 200);
    learned(&process, 400);
    let pushing = std::thread::scope(|scope| {
        let reader =
            scope.spawn(|| evergraph(&["top", "--once", "--json", "--interval", "1", "--url", &url]));
        let mut from = 400;
        while !reader.is_finished() {
            push(&process, from, 10);
            process.post("/v1/embeddings", "application/json", r#"{"nodes": ["u1"]}"#).unwrap();
            from += 10;
        }
        reader.join().unwrap()
    });
    let (done, stdout, stderr) = pushing;
    assert!(done, "{stderr}");
    let figures: Value = serde_json::from_str(&stdout).unwrap();
    for rate in ["accepted_per_second", "learned_per_second"] {
        assert!(figures[rate].as_f64() > Some(0.0), "{rate}: {figures:#}");
    }
    assert!(figures["requests"]["requests_per_second"].as_f64() > Some(0.0), "{figures:#}");
    assert!(figures["requests"]["latency_p99_seconds"].as_f64() > Some(0.0), "{figures:#}");
    assert_eq!(figures["health"]["status"], "ok");
    assert_eq!(figures["sources"][0]["name"], "http");

    let (done, screen, stderr) = evergraph(&["top", "--once", "--interval", "0.1", "--url", &url]);
    assert!(done, "{stderr}");
    for part in ["  ok\n", "events in", "learned", "AP ", "p99 ", "failed /s", "resident", "\nhttp "] {
        assert!(screen.contains(part), "{part} not in\n{screen}");
    }
    assert!(!screen.contains('\u{1b}'), "nothing for terminals in a pipe");
    let (done, _, stderr) = evergraph(&["top", "--once", "--url", "http://127.0.0.1:1"]);
    assert!(!done && stderr.contains("no daemon responds"), "{stderr}");
    assert!(!evergraph(&["top", "--once", "--interval", "0"]).0);
}

#[test]
fn no_directive_silences_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(folder.path()).ready();
    let url = process.url("/v1/admin/log-level");
    for level in
        ["off", "error,evergraph::audit=off", "info,evergraph::audit[{action}]=off", "off,[{who}]=off"]
    {
        let body = json!({ "level": level }).to_string();
        let put =
            crate::process::client().put(&url).header("content-type", "application/json").send(body).unwrap();
        assert_eq!(put.status(), 200, "{level}");
        let line = audited(&mut process);
        assert_eq!((&line["detail"], &line["outcome"]), (&json!(level), &json!("done")), "{line}");
    }
    assert!(process.terminate().success());
}

#[test]
fn refused_requests_do_not_flood_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(folder.path()).ready();
    let url = process.url(&format!("/v1/admin/sources/{}", "x".repeat(50_000)));
    let agent = crate::process::agent();
    let begun = Instant::now();
    for _ in 0..200 {
        let put =
            agent.put(&url).header("origin", "http://elsewhere").header("content-type", "application/json");
        assert_eq!(put.send("{\"paused\":true}").unwrap().status(), 403);
    }
    // The log's last line of the flood is followed by this one.
    let level = process.url("/v1/admin/log-level");
    agent.put(&level).header("content-type", "application/json").send("{\"level\":\"warn\"}").unwrap();
    let mut refused = Vec::new();
    loop {
        let line = process.wait_for_line("evergraph::audit").expect("an audit line");
        let fields: Value = serde_json::from_str(&line).unwrap();
        if fields["outcome"] == "done" {
            break;
        }
        refused.push(line);
    }
    let most = 20 + 10 * begun.elapsed().as_secs();
    assert!((1..=most).contains(&(refused.len() as u64)), "{} lines, at most {most}", refused.len());
    assert!(
        refused.iter().all(|line| line.len() < 2_000),
        "a line has {:?} bytes",
        refused.iter().map(String::len).max()
    );
    assert!(process.terminate().success());
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[test]
fn each_request_is_in_the_access_log_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Start::in_dir(folder.path()).set("output.access_log=true").ready();
    let traced = format!("00-{TRACE}-b7ad6b7169203331-01");
    let response =
        crate::process::client().get(process.url("/v1/status")).header("traceparent", traced).call().unwrap();
    let id = response.headers()["x-request-id"].to_str().unwrap().to_owned();
    let line = process.wait_for_line("evergraph::access").unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let expected = json!({
        "method": "GET", "path": "/v1/status", "route": "/v1/status", "status": 200, "key": "", "request_id": id,
        "trace_id": TRACE
    });
    assert!(expected.as_object().unwrap().iter().all(|(name, value)| line[name] == *value), "{line}");
    assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    assert!(
        line["duration_ms"].as_f64() > Some(0.0) && line["response_bytes"].as_u64() > Some(100),
        "{line}"
    );
    assert!(process.terminate().success());
}

#[test]
fn failed_authentication_is_logged_with_the_address() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "write shop writer-0123456789abcdef\n").unwrap();
    let mut process =
        Start::in_dir(&folder.path().join("data")).set(&format!("api.keys_file={}", keys.display())).ready();
    let agent = crate::process::agent();
    let traced = format!("00-{TRACE}-b7ad6b7169203331-01");
    for (key, status, reason, name) in [
        (None, 401, "missing", ""),
        (Some("guessed-0123456789abcdef"), 401, "unknown", ""),
        (Some("writer-0123456789abcdef"), 403, "role", "shop"),
    ] {
        let mut request = agent.get(process.url("/v1/nodes/a")).header("traceparent", &traced);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        assert_eq!(request.call().unwrap().status(), status);
        let line = process.wait_for_line("authentication failed").unwrap();
        assert!(key.is_none_or(|key| !line.contains(key)), "{line}");
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&line["reason"], &line["key"], &line["trace_id"]),
            (&json!(reason), &json!(name), &json!(TRACE))
        );
        assert!(line["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{line}");
    }
    assert!(process.terminate().success());
}

#[test]
fn health_checks_have_threads_of_their_own_at_their_own_address() {
    let folder = tempfile::tempdir().unwrap();
    let process = Start::in_dir(folder.path()).set("api.operations_listen=127.0.0.1:0").ready();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", process.pid())).unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let names: Vec<_> = names.map(|name| name.trim().to_owned()).collect();
    let count = |wanted: &str| names.iter().filter(|name| *name == wanted).count();
    let cores = std::thread::available_parallelism().unwrap().get();
    assert!(count("operations") >= 1 && count("http") >= cores.max(2), "{names:?}");
    assert!(process.terminate().success());
}
