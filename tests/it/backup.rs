//! Backups of a running daemon, into a folder and into a server that speaks S3: what is restored is what was there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evergraph::learner::checkpoint;
use serde_json::Value;

use crate::process::{Process, evergraph, log_of};
use crate::snapshots::{assert_same, learned, push, responses, segments, start};

/// `evergraph` with these arguments; it succeeds, and what it printed is JSON.
fn json_of(args: &[&str]) -> Value {
    let (succeeded, out, error) = evergraph(args);
    assert!(succeeded, "{args:?}: {error}");
    serde_json::from_str(&out).unwrap()
}

/// `evergraph` with these arguments; it fails, and says why.
fn refused(args: &[&str]) -> String {
    let (succeeded, out, error) = evergraph(args);
    assert!(!succeeded, "{args:?}: {out}");
    error
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn back_up(data: &Path, to: &Path) -> Value {
    json_of(&["backup", "--data", text(data), "--to", text(to), "--json"])
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn a_restored_daemon_responds_as_the_one_that_was_backed_up_and_goes_on() {
    let (data, to, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let process = prepared(data.path());
    process.post("/v1/events", "application/x-ndjson", "{\"src\":").unwrap();
    assert_eq!(backup_age(&process), None);
    let expected = responses(&process);

    let made = back_up(data.path(), to.path());
    assert_eq!(
        (made["log_end_position"].as_u64(), made["checkpoint_position"].as_u64()),
        (Some(3_000), Some(3_000))
    );
    assert!(made["snapshot_position"].as_u64() > Some(0), "{made}");
    assert_eq!(made["sent_bytes"], made["bytes"], "{made}");
    assert!(backup_age(&process).is_some_and(|seconds| seconds.abs() < 60.0));
    // Nothing but the catalog, which is copied anew, and what follows from its content.
    let again = back_up(data.path(), to.path());
    assert_eq!(again["sent_bytes"], 0, "{again}");
    push(&process, 3_000..3_100);
    learned(&process, 3_100);
    let third = back_up(data.path(), to.path());
    assert_eq!(third["log_end_position"], 3_100);
    let from = text(to.path());
    let listed = json_of(&["backup", "list", "--from", from]);
    let ids: Vec<&Value> = listed.as_array().unwrap().iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [&third["id"], &again["id"], &made["id"]]);
    process.kill();

    let restored = other.path().join("data");
    let id = made["id"].as_str().unwrap();
    json_of(&["backup", "restore", "--from", from, "--backup", id, "--data", text(&restored), "--json"]);
    let mut process = start(&restored).spawn();
    let line = process.wait_for_line("the snapshot is loaded").unwrap();
    assert!(line.contains(&made["snapshot_position"].to_string()), "{line}");
    process.wait_until_ready();
    learned(&process, 3_000);
    assert_same(&responses(&process), &expected);
    push(&process, 3_000..3_100);
    learned(&process, 3_100);
    let (whole, _, error) = evergraph(&["checkpoint", "verify", "--data", text(&restored)]);
    assert!(whole && error.is_empty(), "{error}");

    // All backups are whole, and old ones go with what only they had.
    let (whole, out, _) = evergraph(&["backup", "verify", "--from", from, "--all"]);
    assert!(whole && out.matches(": whole").count() == 3, "{out}");
    let before: usize = files(to.path()).len();
    let pruned = json_of(&["backup", "prune", "--from", from, "--keep", "1", "--json"]);
    assert_eq!((&pruned["kept"], pruned["removed"].as_array().unwrap().len()), (&Value::from(1), 2));
    assert!(files(to.path()).len() < before - 2, "chunks went, too: {pruned}");
    let (whole, out, _) = evergraph(&["backup", "verify", "--from", from]);
    assert!(whole && out.contains(third["id"].as_str().unwrap()), "{out}");
}

#[test]
fn what_is_damaged_or_does_not_fit_is_named_and_no_daemon_starts_on_half_a_restore() {
    let (data, to, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, restored) = (text(to.path()), other.path().join("data"));
    assert!(refused(&["backup", "list", "--from", "/nowhere/at/all"]).contains("no such folder"));
    assert!(refused(&["backup", "--data", text(data.path()), "--to", from]).contains("not a data directory"));
    assert!(refused(&["backup", "verify", "--from", "gs://bucket"]).contains("not supported"));
    assert!(refused(&["backup", "verify", "--from", from]).contains("there is no backup"));
    let process = start(data.path()).ready();
    (0..2_000).step_by(100).for_each(|at| push(&process, at..at + 100));
    learned(&process, 2_000);
    back_up(data.path(), to.path());
    process.kill();
    let restore = ["backup", "restore", "--from", from, "--data", text(&restored), "--json"];
    assert!(refused(&[&restore[..], &["--backup", "x"]].concat()).contains("no backup x"));
    assert!(refused(&["backup", "restore", "--from", from, "--data", from]).contains("empty folder"));
    assert!(refused(&["backup", "prune", "--from", from, "--keep", "0"]).contains("--keep 0"));

    // Each chunk, changed or gone: verification finds it, and a restore leaves nothing that a daemon starts on.
    for chunk in files(&to.path().join("chunks")).iter().step_by(3) {
        let whole = std::fs::read(chunk).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        std::fs::write(chunk, changed).unwrap();
        let name = chunk.file_name().unwrap().to_str().unwrap();
        let error = refused(&["backup", "verify", "--from", from]);
        assert!(error.contains(name) && error.contains("SHA-256"), "{error}");
        assert!(refused(&restore).contains(name));
        assert!(start(&restored).fails().contains("not finished"));
        std::fs::remove_file(chunk).unwrap();
        assert!(refused(&["backup", "verify", "--from", from]).contains(name));
        std::fs::write(chunk, whole).unwrap();
    }
    // A restore that was not finished is made again in the same place.
    json_of(&restore);
    assert_eq!(log_of(&restored)["graph_digest"], log_of(data.path())["graph_digest"]);
    drop(start(&restored).ready());

    // A damaged snapshot is left out, and the backup says what it has.
    let snapshots = files(&data.path().join("snapshots"));
    snapshots
        .iter()
        .filter(|path| path.ends_with("names"))
        .for_each(|path| std::fs::write(path, "x").unwrap());
    let made = back_up(data.path(), to.path());
    assert_eq!((&made["snapshot_position"], &made["log_first_position"]), (&Value::Null, &Value::from(0)));
}

#[test]
fn backups_beside_20000_events_a_second_restore_to_the_same_graph() {
    const RATE: u64 = 20_000;
    const BATCH: u64 = 500;
    let (data, to, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let quick = |data: &Path| start(data).set("learner.train=false").set("learner.lag_events_max=1");
    let cutting = quick(data.path())
        .set("snapshot.log_bytes=1000000")
        .set("log.segment_bytes=1048576")
        .set("log.retention_bytes=2097152");
    let process = cutting.ready();
    let (pushed, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let made: Vec<Value> = std::thread::scope(|scope| {
        let _end = scopeguard::guard((), |()| stop.store(true, Ordering::Release));
        scope.spawn(|| {
            let begun = Instant::now();
            while !stop.load(Ordering::Acquire) {
                let from = pushed.load(Ordering::Acquire);
                push(&process, from..from + BATCH);
                pushed.store(from + BATCH, Ordering::Release);
                let due = Duration::from_millis((from + BATCH) * 1_000 / RATE);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        });
        let (mut made, mut left) = (Vec::new(), 3);
        while left > 0 && made.len() < 60 {
            std::thread::sleep(Duration::from_secs(1));
            let before = pushed.load(Ordering::Acquire);
            let backup = back_up(data.path(), to.path());
            assert!(
                backup["log_end_position"].as_u64().unwrap() >= before,
                "{before} were acknowledged: {backup}"
            );
            made.push(backup);
            left -= u32::from(segments(data.path()).2 > 0);
        }
        made
    });
    let pushed = pushed.load(Ordering::Acquire);
    println!("{pushed} events during {} backups; the log begins at {}", made.len(), segments(data.path()).2);
    assert!(segments(data.path()).2 > 0, "the log was cut meanwhile");
    process.kill();

    // The same events in a log that was never cut.
    let whole = tempfile::tempdir().unwrap();
    let process = quick(whole.path()).ready();
    let mut at = 0;
    for (number, backup) in made.iter().enumerate().rev().take(4).rev() {
        let end = backup["log_end_position"].as_u64().unwrap();
        while at < end {
            push(&process, at..end.min(at + BATCH));
            at = end.min(at + BATCH);
        }
        let id = backup["id"].as_str().unwrap();
        let restored = other.path().join(number.to_string());
        json_of(&[
            "backup",
            "restore",
            "--from",
            text(to.path()),
            "--backup",
            id,
            "--data",
            text(&restored),
            "--json",
        ]);
        let (restored, expected) = (log_of(&restored), log_of(whole.path()));
        for field in ["end_position", "nodes", "edges", "graph_digest"] {
            assert_eq!(restored[field], expected[field], "{field}: {backup}");
        }
    }
    let last = made.last().unwrap();
    assert!(last["log_first_position"].as_u64() > Some(0), "{last}");
    assert!(last["sent_bytes"].as_u64() < last["bytes"].as_u64(), "{last}");
}

/// A server that speaks S3, with one bucket, in a folder.
fn s3_server(folder: &Path, key: (&str, &str)) -> SocketAddr {
    std::fs::create_dir(folder.join("backups")).unwrap();
    let mut service = s3s::service::S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
    service.set_auth(s3s::auth::SimpleAuth::from_single(key.0, key.1));
    let service = service.build();
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (io, service) = (hyper_util::rt::TokioIo::new(socket), service.clone());
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(io, service));
            }
        });
    });
    address.recv().unwrap()
}

/// `evergraph backup` with the settings of a server.
fn backup_on(server: SocketAddr, secret: &str, args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.arg("backup").args(args);
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", secret),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &format!("http://{server}")),
        ("AWS_ALLOW_HTTP", "true"),
    ] {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

/// Seconds since the last backup, as a scrape shows it.
fn backup_age(process: &Process) -> Option<f64> {
    let metrics = process.get("/metrics").unwrap().1;
    let lines = metrics.as_str().unwrap().lines();
    let mut found =
        lines.filter_map(|line| line.strip_prefix("evergraph_backup_last_success_timestamp_seconds "));
    let at: f64 = found.next()?.parse().unwrap();
    Some(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64() - at)
}

#[test]
fn a_backup_has_the_pages_that_its_checkpoint_shares_with_earlier_ones() {
    let (data, to, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // Weights that do not change are shared.
    let begin = |data: &Path| start(data).set("learner.train=false");
    let process = begin(data.path()).ready();
    let newest = || {
        let all = files(&data.path().join("checkpoints"));
        let mut all = all.into_iter().filter(|path| path.extension().is_some_and(|end| end == "checkpoint"));
        // One may go while it is looked at.
        all.next_back().and_then(|path| checkpoint::open(&path).ok()).map(|found| found.file)
    };
    let mut pushed = 0;
    let checkpoint = loop {
        push(&process, pushed..pushed + 100);
        pushed += 100;
        learned(&process, pushed);
        let begun = Instant::now();
        let found = loop {
            match newest() {
                Some(found) if found.head.position.0 == pushed => break found,
                _ => assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint at {pushed}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        if found.pages.len() >= 2 {
            break found;
        }
        assert!(pushed < 2_000, "{found:?}");
    };
    let made = back_up(data.path(), to.path());
    assert_eq!(made["checkpoint_position"], pushed);
    let expected = responses(&process);
    process.kill();
    let (from, restored) = (text(to.path()), other.path().join("data"));
    json_of(&["backup", "restore", "--from", from, "--data", text(&restored), "--json"]);
    let mut there: Vec<_> = files(&restored.join("checkpoints"))
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    there.retain(|name| name.ends_with(".pages"));
    assert_eq!(there, checkpoint.pages, "these and no others");
    // Both go on from it, after a kill and after a restore.
    for data in [data.path(), &restored] {
        let mut process = begin(data).spawn();
        let line = process.wait_for_line("restored the learned state").unwrap();
        assert!(line.contains(&format!("\"position\":{pushed}")), "{line}");
        process.wait_until_ready();
        assert_same(&responses(&process), &expected);
    }
}

/// A daemon with events, a snapshot and a checkpoint.
fn prepared(data: &Path) -> Process {
    let process = start(data).ready();
    (0..3_000).step_by(100).for_each(|from| push(&process, from..from + 100));
    learned(&process, 3_000);
    for what in ["snapshots", "checkpoints"] {
        let (status, made) = process.post(&format!("/v1/admin/{what}"), "application/json", "{}").unwrap();
        assert_eq!(status, 200, "{made}");
    }
    process
}

#[test]
fn a_bucket_takes_backups_and_gives_them_back() {
    let (data, bucket, other) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = s3_server(bucket.path(), ("key", "secret"));
    let process = prepared(data.path());
    let place = "s3://backups/of/one";
    let create = ["--data", text(data.path()), "--to", place, "--json"];
    let made = |args: &[&str]| -> Value {
        let (succeeded, out, error) = backup_on(server, "secret", args);
        assert!(succeeded, "{args:?}: {error}");
        serde_json::from_str(&out).unwrap_or(Value::String(out))
    };
    let first = made(&create);
    push(&process, 3_000..3_100);
    learned(&process, 3_100);
    let second = made(&create);
    assert!(second["sent_bytes"].as_u64() < first["sent_bytes"].as_u64(), "{first} {second}");
    let restored = other.path().join("data");
    made(&["verify", "--from", place, "--all"]);
    made(&["restore", "--from", place, "--data", text(&restored), "--json"]);
    let expected = log_of(data.path());
    let found = log_of(&restored);
    assert_eq!(
        (&found["graph_digest"], &found["end_position"]),
        (&expected["graph_digest"], &Value::from(3_100))
    );
    drop(start(&restored).ready());
    let pruned = made(&["prune", "--from", place, "--keep", "1", "--json"]);
    assert_eq!(pruned["removed"], serde_json::json!([first["id"]]), "{pruned}");
    made(&["verify", "--from", place]);
    assert!(
        files(&bucket.path().join("backups")).iter().all(|path| path.to_str().unwrap().contains("/of/one/"))
    );

    let (succeeded, _, error) = backup_on(server, "wrong", &create);
    assert!(!succeeded && error.contains(place), "{error}");
}
