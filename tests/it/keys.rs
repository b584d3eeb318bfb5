//! Who may ask for what: keys with roles, at the interface and with a daemon whose keys are changed while it runs.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use evergraph::api::Keys;
use serde_json::{Value, json};

use crate::live::Live;
use crate::process::{Process, Start, evergraph};

const READER: &str = "reader-0123456789abcdef";
const WRITER: &str = "writer-0123456789abcdef";
const ADMIN: &str = "admin-00123456789abcdef";

fn write_keys(path: &Path, lines: &[(&str, &str, &str)]) {
    let lines: Vec<String> = lines.iter().map(|(role, name, key)| format!("{role} {name} {key}\n")).collect();
    std::fs::write(path, lines.concat()).unwrap();
}

#[test]
fn every_route_asks_for_its_role() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    write_keys(&path, &[("read", "r", READER), ("write", "w", WRITER), ("admin", "a", ADMIN)]);
    let live = Live::with(|state| state.keys = Some(Arc::new(Keys::open(&path).unwrap())));
    let nodes = json!({ "nodes": ["alice"] }).to_string();
    let pairs = json!({ "pairs": [{ "src": "alice", "dst": 7 }] }).to_string();
    let top = json!({ "src": ["alice"], "candidates": { "keys": [7] } }).to_string();
    let similar = json!({ "nodes": ["alice"], "candidates": { "keys": [7] } }).to_string();
    let routes = [
        ("POST", "/v1/embeddings", nodes.as_str(), "read"),
        ("POST", "/v1/links/top", top.as_str(), "read"),
        ("POST", "/v1/nodes/similar", similar.as_str(), "read"),
        ("POST", "/v1/links/score", pairs.as_str(), "read"),
        ("GET", "/v1/nodes/alice", "", "read"),
        ("GET", "/v1/nodes/alice/neighbors", "", "read"),
        ("GET", "/v1/map", "", "read"),
        ("GET", "/v1/anomalies", "", "read"),
        ("GET", "/v1/export/embeddings", "", "read"),
        ("GET", "/v1/export/edges", "", "read"),
        ("GET", "/v1/status", "", "read"),
        ("GET", "/v1/info", "", "read"),
        ("POST", "/v1/events", "", "write"),
        ("POST", "/v1/admin/checkpoints", "", "admin"),
        ("PUT", "/v1/admin/sources/http", r#"{"paused": true}"#, "admin"),
        ("PUT", "/v1/admin/log-level", r#"{"level": "info"}"#, "admin"),
        ("GET", "/v1/admin/log-level", "", "admin"),
        ("POST", "/v1/admin/model/promote", "{}", "admin"),
        ("PUT", "/v1/admin/training", r#"{"paused": true}"#, "admin"),
        ("POST", "/v1/admin/snapshots", "", "admin"),
        ("POST", "/v1/admin/log/cut", "", "admin"),
    ];
    for (method, route, body, needed) in routes {
        let ask = |key: Option<&str>| {
            let bearer = key.map(|key| format!("Bearer {key}"));
            let mut headers = vec![("content-type", "application/json")];
            headers.extend(bearer.as_deref().map(|bearer| ("authorization", bearer)));
            live.request(method, route, &headers, body.as_bytes())
        };
        let nobody = ask(None);
        assert_eq!((nobody.status, nobody.error_type().as_str()), (401, "unauthenticated"), "{route}");
        assert_eq!(nobody.headers["www-authenticate"], "Bearer");
        assert_eq!(ask(Some("guessed-0123456789abcdef")).status, 401, "{route}");
        for (role, key) in [("read", READER), ("write", WRITER), ("admin", ADMIN)] {
            let response = ask(Some(key));
            let expected = if role == needed || role == "admin" { 200 } else { 403 };
            assert_eq!(response.status, expected, "{route} as {role}: {}", response.text());
            if expected == 403 {
                assert_eq!(response.json()["details"], json!({ "role": role, "needed": needed }));
            }
            assert!(!response.text().contains(key), "a response repeats a key");
        }
    }
    for open in ["/livez", "/readyz", "/healthz", "/metrics", "/openapi.json"] {
        assert_eq!(live.get(open).status, 200, "{open}");
    }
    for (odd, expected) in [("Basic abc", 401), ("Bearer", 401), ("bearer  reader-0123456789abcdef ", 200)] {
        let headers = [("authorization", odd)];
        assert_eq!(live.request("GET", "/v1/status", &headers, b"").status, expected, "{odd:?}");
    }
}

#[test]
fn a_rate_limited_key_gets_retry_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, format!("read slow {READER} 2/s\nread other {ADMIN}\n")).unwrap();
    let live = Live::with(|state| state.keys = Some(Arc::new(Keys::open(&path).unwrap())));
    let ask = |key: &str| {
        let bearer = format!("Bearer {key}");
        live.request("GET", "/v1/status", &[("authorization", &bearer)], b"")
    };
    let responses: Vec<_> = (0..30).map(|_| ask(READER)).collect();
    let refused: Vec<_> = responses.iter().filter(|response| response.status != 200).collect();
    assert!(refused.len() < 30, "none was let in");
    let [first, ..] = refused[..] else { panic!("all were let in") };
    assert_eq!((first.status, first.error_type().as_str()), (429, "rate_limited"));
    assert_eq!(first.headers["retry-after"], "1");
    assert_eq!(first.json()["details"], json!({ "limit_per_second": 2 }));
    assert!(!first.text().contains(READER) && first.text().contains("slow"), "{}", first.text());
    let counted = format!("evergraph_http_rejected_total{{reason=\"rate_limited\"}} {}", refused.len());
    assert!(live.get("/metrics").text().contains(&counted), "{counted}");
    assert_eq!(ask(ADMIN).status, 200, "another key has its own pace, or none");
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(ask(READER).status, 200);
}

/// Routes that anybody may ask, whatever keys there are.
const OPEN: [&str; 4] = ["/livez", "/readyz", "/healthz", "/metrics"];

#[test]
fn the_document_says_of_every_route_whether_it_asks_for_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    write_keys(&path, &[("read", "r", READER)]);
    let live = Live::with(|state| state.keys = Some(Arc::new(Keys::open(&path).unwrap())));
    let document = live.get("/openapi.json").json();
    for (route, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let guarded = operation["security"].is_array();
            assert_eq!(guarded, !OPEN.contains(&route.as_str()), "{route}");
            for method in [method.to_uppercase().as_str(), "HEAD"] {
                let requested = route.replace("{key}", "alice").replace("{source}", "http");
                let status = raw_status(&live, method, &requested);
                // A route without GET has no HEAD either.
                assert!(
                    if guarded { [401, 405].contains(&status) } else { status == 200 },
                    "{method} {route}"
                );
                assert!(!guarded || method == "HEAD" || status == 401, "{method} {route}: {status}");
            }
        }
    }
}

/// The status of a request that is not held against the document.
fn raw_status(live: &Live, method: &str, path: &str) -> u16 {
    let agent = crate::process::agent();
    let request = ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", live.address));
    let request = request.header("content-type", "application/json");
    let response = match method {
        "POST" => agent.run(request.body("{}").unwrap()),
        _ => agent.run(request.body(()).unwrap()),
    };
    response.unwrap().status().as_u16()
}

#[test]
fn who_has_no_key_takes_nobodys_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    write_keys(&path, &[("read", "r", READER)]);
    let live = Live::with(|state| {
        state.keys = Some(Arc::new(Keys::open(&path).unwrap()));
        state.limits.concurrent_queries = 0;
    });
    assert_eq!(live.get("/v1/nodes/alice").status, 401, "not 503");
    let bearer = format!("Bearer {READER}");
    assert_eq!(live.request("GET", "/v1/nodes/alice", &[("authorization", &bearer)], b"").status, 503);
    assert_eq!(live.request("POST", "/v1/events", &[("authorization", &bearer)], b"").status, 403);
    assert_eq!(live.request("GET", "/v1/info", &[("authorization", "Bearer nobody's")], b"").status, 401);
    for reason in ["missing", "unknown", "role"] {
        let series = format!("evergraph_http_authentication_failures_total{{reason=\"{reason}\"}}");
        assert_eq!(live.metric(&series), Some(1.0), "{reason}");
    }
}

fn status_of(process: &Process, key: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    let output =
        command.args(["status", "--url", &process.url("")]).arg("--key-file").arg(key).output().unwrap();
    let message = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&message).into_owned())
}

/// The operations address of a daemon, which its log names.
fn operations(process: &mut Process) -> String {
    let line = process.wait_for_line("separate address").unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    line["address"].as_str().unwrap().to_owned()
}

#[test]
fn keys_change_while_the_daemon_runs_and_health_has_its_own_address() {
    let folder = tempfile::tempdir().unwrap();
    let (keys, key) = (folder.path().join("keys"), folder.path().join("key"));
    write_keys(&keys, &[("read", "old", READER)]);
    std::fs::write(&key, format!("{READER}\n")).unwrap();
    let start = Start::in_dir(&folder.path().join("data"))
        .set(&format!("api.keys_file={}", keys.display()))
        .set("api.operations_listen=127.0.0.1:0");
    let mut process = start.spawn();
    let apart = format!("http://{}", operations(&mut process));
    process.wait_until_ready();

    let (done, message) = status_of(&process, &key);
    assert!(done, "{message}");
    let (there, url) = (process.url(""), ["status", "--ready", "--url"]);
    let (done, _, said) = evergraph(&[&url[..], &[&there]].concat());
    assert!(!done && said.contains("--operations-url"), "{said}");
    let (done, said, _) = evergraph(&[&url[..], &[&there, "--operations-url", &apart]].concat());
    assert!(done && said.contains("\"learner\""), "{said}");
    assert_eq!(process.get("/v1/status").unwrap().0, 401);
    assert_eq!(process.get("/metrics").unwrap().0, 404, "metrics are on the other address");
    let (_, document) = process.get("/openapi.json").unwrap();
    let paths: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
    assert!(paths.contains(&&"/v1/status".to_owned()), "{paths:?}");
    for path in paths {
        let response = process.get(&path.replace("{key}", "7")).unwrap();
        assert_ne!(response.0, 404, "{path} stands in the document of this address");
    }
    for path in ["/metrics", "/readyz", "/livez", "/healthz"] {
        assert_eq!(
            crate::process::client().get(format!("{apart}{path}")).call().unwrap().status(),
            200,
            "{path}"
        );
    }

    write_keys(&keys, &[("read", "new", ADMIN)]);
    process.wait_for_line("was reloaded").unwrap();
    let (done, message) = status_of(&process, &key);
    assert!(!done && message.contains("--key-file"), "{message}");
    std::fs::write(&keys, "nonsense\n").unwrap();
    process.wait_for_line("stays in use").unwrap();
    std::fs::write(&key, ADMIN).unwrap();
    let (done, message) = status_of(&process, &key);
    assert!(done, "{message}");
    let health = crate::process::client()
        .get(format!("{apart}/healthz"))
        .call()
        .unwrap()
        .body_mut()
        .read_to_string()
        .unwrap();
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!(health["checks"]["keys"]["state"], "degraded", "{health}");
    assert!(health["checks"]["keys"]["detail"].as_str().unwrap().contains("line 1"), "{health}");

    drop(process);
    let message = start.fails();
    assert!(message.contains("line 1"), "a daemon does not start with keys that cannot be used: {message}");
}
