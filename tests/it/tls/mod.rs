//! A daemon that speaks HTTPS: who reaches it, and what happens when its certificate is renewed or spoiled. The
//! certificates beside this file sign themselves, are for localhost and good from 2020 to 2120, `past` to 2021;
//! `make.sh` makes them anew.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Process, Start};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tls").join(name)
}

/// Puts a certificate and the key of `key` where the daemon reads them.
fn serve(folder: &Path, certificate: &str, key: &str) {
    std::fs::copy(fixture(&format!("{certificate}.crt")), folder.join("crt")).unwrap();
    std::fs::copy(fixture(&format!("{key}.key")), folder.join("key")).unwrap();
}

/// Runs a command against the daemon, believing in `authority`; whether it succeeded and what it said.
fn run(process: &Process, arguments: &[&str], authority: Option<&str>) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.args(arguments).args(["--url", &process.url("").replace("http://", "https://")]);
    if let Some(authority) = authority {
        command.arg("--ca-file").arg(fixture(&format!("{authority}.crt")));
    }
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn start(folder: &Path) -> Start {
    Start::in_dir(&folder.join("data"))
        .set(&format!("api.tls_certificate={}", folder.join("crt").display()))
        .set(&format!("api.tls_key={}", folder.join("key").display()))
        .set("ingest.http.enabled=true")
}

#[test]
fn commands_reach_a_daemon_over_https_and_its_certificate_is_renewed() {
    let folder = tempfile::tempdir().unwrap();
    serve(folder.path(), "one", "one");
    let mut process = start(folder.path()).set("api.operations_listen=127.0.0.1:0").spawn();
    let line = process.wait_for_line("separate address").unwrap();
    let operations: Value = serde_json::from_str(&line).unwrap();
    process.wait_until_ready();

    // Connections that say nothing keep nobody waiting.
    let silent: Vec<_> =
        (0..20).map(|_| TcpStream::connect(process.url("").trim_start_matches("http://")).unwrap()).collect();
    let (done, said) = run(&process, &["status"], Some("one"));
    assert!(done, "{said}");
    drop(silent);
    for (authority, what) in [(None, "nobody vouches for it"), (Some("two"), "another one vouches")] {
        let (done, said) = run(&process, &["status"], authority);
        assert!(!done && said.contains("certificate"), "{what}: {said}");
    }
    assert!(process.get("/v1/status").is_err(), "plain HTTP is not answered");
    let plain = format!("http://{}/readyz", operations["address"].as_str().unwrap());
    assert_eq!(crate::process::client().get(plain).call().unwrap().status(), 200);

    let events = folder.path().join("events.csv");
    std::fs::write(&events, "src,dst,ts\n1,2,10\n2,3,11\n").unwrap();
    let push = ["ingest", "--to", "http", "--events", events.to_str().unwrap(), "--json", "-"];
    let (done, said) = run(&process, &push, Some("one"));
    assert!(done && said.contains("\"sent\":2"), "{said}");
    let asked = Instant::now();
    let (done, said) = run(&process, &push, Some("two"));
    assert!(!done && said.contains("certificate") && said.contains("--ca-file"), "{said}");
    assert!(asked.elapsed() < Duration::from_secs(20), "it is not tried again: {:?}", asked.elapsed());

    serve(folder.path(), "two", "two");
    process.wait_for_line("was reloaded").unwrap();
    // Between the two files there may have been a moment when they did not go together.
    let renewed = (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        run(&process, &["status"], Some("two")).0
    });
    assert!(renewed, "the new certificate is served");
    assert!(!run(&process, &["status"], Some("one")).0);

    serve(folder.path(), "one", "two");
    process.wait_for_line("stays in use").unwrap();
    let (done, said) = run(&process, &["status"], Some("two"));
    assert!(done, "{said}");
}

/// The value of a metric at the address without keys and certificates.
fn metric(operations: &str, series: &str) -> Option<f64> {
    let url = format!("http://{operations}/metrics");
    let text = crate::process::client().get(url).call().unwrap().body_mut().read_to_string().unwrap();
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn a_certificate_that_has_expired_is_named_and_so_is_who_refuses_it() {
    const EXPIRY: &str = "evergraph_http_certificate_expiry_timestamp_seconds";
    let folder = tempfile::tempdir().unwrap();
    serve(folder.path(), "past", "past");
    let mut process = start(folder.path()).set("api.operations_listen=127.0.0.1:0").spawn();
    let line = process.wait_for_line("separate address").unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    let operations = line["address"].as_str().unwrap();
    process.wait_until_ready();
    let health = || {
        let url = format!("http://{operations}/healthz");
        let text = crate::process::client().get(url).call().unwrap().body_mut().read_to_string().unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["checks"]["certificate"].clone()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while health()["state"] != "degraded" {
        assert!(Instant::now() < deadline, "{}", health());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(metric(operations, EXPIRY), Some(1_609_459_200.0), "2021-01-01");
    assert!(health()["detail"].as_str().unwrap().contains("days ago"), "{}", health());
    let (done, said) = run(&process, &["status"], Some("past"));
    assert!(!done && said.contains("certificate"), "{said}");
    let refused = "evergraph_http_refused_connections_total{reason=\"handshake\"}";
    let deadline = Instant::now() + Duration::from_secs(20);
    while metric(operations, refused) < Some(1.0) {
        assert!(Instant::now() < deadline, "who refuses it is counted");
        std::thread::sleep(Duration::from_millis(20));
    }

    serve(folder.path(), "one", "one");
    process.wait_for_line("was reloaded").unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while health()["state"] != "ok" || metric(operations, EXPIRY) != Some(4_733_510_400.0) {
        assert!(Instant::now() < deadline, "{} {:?}", health(), metric(operations, EXPIRY));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_daemon_does_not_start_with_a_certificate_it_cannot_serve() {
    let folder = tempfile::tempdir().unwrap();
    serve(folder.path(), "one", "two");
    let said = start(folder.path()).fails();
    assert!(said.contains("cannot be served with the key"), "{said}");
    std::fs::write(folder.path().join("crt"), "nothing").unwrap();
    let said = start(folder.path()).fails();
    assert!(said.contains("crt cannot be used") && said.contains("api.tls_certificate"), "{said}");
    let said = start(folder.path()).set("api.tls_key=").fails();
    assert!(said.contains("must be set together"), "{said}");
}
