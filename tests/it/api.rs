//! The HTTP interface against a live server: every route, every class of error, every limit.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evergraph::api::{self, Health, State, StatusDocument};
use evergraph::event::{EdgeId, IntakeError, IntakeResponse, Receipt, RejectedEvent, SubmitError};
use evergraph::feature::FeatureStore;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::live::{BLOCKING_THREADS, LATEST, Live, engine_without_model, refused};

fn assert_fresh(response: &Value) {
    let freshness = &response["freshness"];
    for field in ["model_version", "applied_position", "indexed_position", "durable_position"] {
        assert!(freshness[field].is_u64(), "{field} in {response}");
    }
    assert_eq!(freshness["watermark"], json!(LATEST.0), "{response}");
}

#[test]
fn embeddings_are_returned_per_node() {
    let live = Live::start();
    let response = live.post("/v1/embeddings", &json!({ "nodes": ["alice", "7", 7, "nobody"] }));
    assert_eq!(response.status, 200, "{}", response.text());
    let body = response.json();
    assert_fresh(&body);
    let entries = body["embeddings"].as_array().unwrap();
    let nodes: Vec<&Value> = entries.iter().map(|entry| &entry["node"]).collect();
    assert_eq!(nodes, [&json!("alice"), &json!("7"), &json!(7), &json!("nobody")]);
    assert_eq!(entries[0]["last_event"], 20);
    assert_eq!(entries[1]["last_event"], 30);
    assert_eq!(entries[1]["embedding"], entries[2]["embedding"], "7 and \"7\" are one node");
    for entry in &entries[..3] {
        assert_eq!(entry["embedding"].as_array().map(Vec::len), Some(live.state.info.embedding_dimension));
        assert!(entry["cold"].is_boolean(), "{entry}");
    }
    assert_eq!(entries[3], json!({ "node": "nobody", "error": "unknown_node" }));
    let prior =
        live.post("/v1/embeddings", &json!({ "nodes": ["nobody", "else"], "unknown": "prior" })).json();
    let [nobody, other] = [0, 1].map(|i| &prior["embeddings"][i]);
    assert_eq!((&nobody["cold"], &nobody["last_event"]), (&json!(true), &json!(null)), "{prior}");
    assert_eq!(nobody["embedding"], other["embedding"], "all that is unknown is alike");
    let odd = live.post("/v1/embeddings", &json!({ "nodes": ["nobody"], "unknown": "guess" }));
    assert_eq!(odd.status, 422, "{}", odd.text());
    let past = live.post("/v1/embeddings", &json!({ "nodes": ["alice"], "at": 15 }));
    assert_eq!((past.status, &past.json()["at"]), (200, &json!(15)), "{}", past.text());
    assert_ne!(past.json()["embeddings"], json!([entries[0]]), "other neighbors, another embedding");
}

#[test]
fn numbers_that_are_not_finite_are_named_and_never_null() {
    let live = Live::start();
    let alice = live.state.engine.stores.keys.lookup(&"alice".into()).unwrap();
    live.state.engine.states.publish(alice, &[f32::NAN; 4], LATEST);
    let response = live.post("/v1/embeddings", &json!({ "nodes": ["alice"] })).json();
    assert_eq!(response["embeddings"], json!([{ "node": "alice", "error": "not_finite" }]));
    let response = live.post("/v1/links/score", &json!({ "pairs": [{ "src": "alice", "dst": 7 }] })).json();
    assert_eq!(
        response["scores"],
        json!([{ "src": "alice", "dst": 7, "error": "not_finite", "unknown": [] }])
    );
}

#[test]
fn links_are_scored_pair_by_pair() {
    let live = Live::start();
    let pairs = json!({ "pairs": [{ "src": "alice", "dst": 7 }, { "src": "x", "dst": "7" }, { "src": 1, "dst": 2 }] });
    let response = live.post("/v1/links/score", &pairs);
    assert_eq!(response.status, 200, "{}", response.text());
    let body = response.json();
    assert_fresh(&body);
    let score = body["scores"][0]["score"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&score), "{body}");
    let missing = json!({ "src": "x", "dst": "7", "error": "unknown_node", "unknown": ["x"] });
    assert_eq!(body["scores"][1], missing);
    let mut requested = pairs.clone();
    requested["unknown"] = json!("prior");
    let prior = live.post("/v1/links/score", &requested).json();
    assert!(prior["scores"][1]["score"].is_f64(), "{prior}");
    assert_eq!(prior["scores"][1]["cold"], json!(true));
    assert_eq!(body["scores"][2]["unknown"], json!([1, 2]));
}

#[test]
fn a_node_lists_its_newest_neighbors() {
    let live = Live::start();
    let body = live.get("/v1/nodes/alice?neighbors=1").json();
    assert_fresh(&body);
    assert_eq!((&body["degree"], &body["last_event"]), (&json!(2), &json!(20)));
    assert_eq!(body["learned_event"], json!(null));
    assert_eq!(body["neighbors"], json!([{ "node": 7, "time": 20, "position": 1 }]));
    let all = live.get("/v1/nodes/alice").json();
    assert_eq!(all["neighbors"].as_array().map(Vec::len), Some(2));
    assert_eq!(live.get("/v1/nodes/7?neighbors=0").json()["neighbors"], json!([]));

    let missing = live.get("/v1/nodes/a%2Fb%20c");
    assert_eq!((missing.status, missing.error_type().as_str()), (404, "unknown_node"));
    let details = &missing.json()["details"];
    assert_eq!(details["node"], "a/b c");
    assert_fresh(details);
}

fn edge(node: Value, direction: &str, time: i64, position: u64) -> Value {
    json!({ "node": node, "direction": direction, "time": time, "position": position })
}

#[test]
fn a_node_lists_its_edges_page_by_page() {
    let live = Live::start();
    let page = live.get("/v1/nodes/alice/neighbors?limit=1").json();
    assert_fresh(&page);
    assert_eq!(page["neighbors"], json!([edge(json!(7), "out", 20, 1)]));
    let cursor = page["next"].as_str().unwrap();
    let last = live.get(&format!("/v1/nodes/alice/neighbors?limit=1&cursor={cursor}")).json();
    assert_eq!(last["neighbors"], json!([edge(json!("bob"), "out", 10, 0)]));
    assert_eq!((&last["next"], &last["node"]), (&json!(null), &json!("alice")));

    let listed =
        |query: &str| live.get(&format!("/v1/nodes/bob/neighbors?{query}")).json()["neighbors"].take();
    let (to_7, from_alice) = (edge(json!(7), "out", 30, 2), edge(json!("alice"), "in", 10, 0));
    assert_eq!(listed(""), json!([to_7, from_alice]));
    assert_eq!((listed("direction=out"), listed("direction=in")), (json!([to_7]), json!([from_alice])));
    assert_eq!((listed("from=11"), listed("before=30")), (json!([to_7]), json!([from_alice])));
    assert_eq!(listed("from=11&before=30"), json!([]));

    let missing = live.get("/v1/nodes/nobody/neighbors");
    assert_eq!((missing.status, missing.error_type().as_str()), (404, "unknown_node"));
    let late = live.get("/v1/nodes/bob/neighbors?min_position=9&wait_ms=1");
    assert_eq!((late.status, late.error_type().as_str()), (412, "not_yet_visible"));
}

#[test]
fn a_listed_edge_has_its_features_until_they_are_released() {
    let mut engine = engine_without_model();
    let rows = FeatureStore::new(2);
    rows.set(1, &[0.5, -2.0]).unwrap();
    rows.release_below(1);
    engine.stores.edge_features = Arc::new(rows);
    let live = Live::with(|state| state.engine = Arc::new(engine));
    let page = live.get("/v1/nodes/alice/neighbors?features=true").json();
    assert_eq!(page["neighbors"][0]["features"], json!([0.5, -2.0]), "{page}");
    assert_eq!(page["neighbors"][1]["features"], json!(null), "{page}");
}

#[test]
fn pushed_events_are_stored_and_reported() {
    let live = Live::start();
    let lines = "[\"new\",\"bob\",30]\n[\"new\",\"7\",30]\nnonsense\n";
    let response = live.send_lines("/v1/events", lines);
    assert_eq!(response.status, 200, "{}", response.text());
    let body = response.json();
    assert_fresh(&body);
    assert_eq!((&body["first_position"], &body["end_position"]), (&json!(3), &json!(5)));
    assert_eq!((&body["accepted"], &body["duplicates"]), (&json!(2), &json!(0)));
    assert_eq!(body["rejected"][0]["index"], 2);
    assert_eq!(body["rejected"][0]["reason"], "malformed_json");
    assert_eq!(live.get("/v1/nodes/new").json()["degree"], 2, "an acknowledged push is in the graph");

    let empty = live.send_lines("/v1/events", "");
    assert_eq!((empty.status, &empty.json()["accepted"]), (200, &json!(0)), "nothing to do is no error");
    let typed = [("content-type", "Application/JSON; charset=utf-8")];
    assert_eq!(live.request("POST", "/v1/events", &typed, b"").status, 200);
    let formats: Vec<String> =
        live.intake.formats.lock().iter().map(|format| format!("{format:?}")).collect();
    assert_eq!(formats, ["JsonLines", "JsonLines", "Json"]);
}

#[test]
fn a_push_that_is_not_stored_says_why() {
    let live = Live::start();
    let receipt = |duplicates| Receipt { first: EdgeId(3), end: EdgeId(3), accepted: 0, duplicates };
    let rejected =
        vec![RejectedEvent { index: 0, reason: "bad_features", detail: "feature 2 is NaN".into() }];
    let full = SubmitError::DiskFull { detail: "no space left".into() };
    let failed = SubmitError::Failed { detail: "input/output error".into() };
    let too_large = SubmitError::Unstorable { events: Vec::new(), detail: "too large".into() };
    let cases = [
        (Ok(IntakeResponse { receipt: receipt(0), rejected: rejected.clone() }), 422, "all_rejected", None),
        (Err(IntakeError::Malformed("line 1".into())), 400, "malformed", None),
        (Err(IntakeError::TooMany { found_at_least: 3, limit: 2 }), 413, "batch_too_large", None),
        (Err(IntakeError::Overloaded), 429, "queue_full", Some("1")),
        (refused(full), 503, "disk_full", Some("30")),
        (refused(SubmitError::Restoring), 503, "restoring", Some("5")),
        (refused(SubmitError::ShuttingDown), 503, "shutting_down", Some("5")),
        (refused(failed), 503, "log_failed", Some("5")),
        (refused(SubmitError::OutcomeUnknown), 504, "outcome_unknown", None),
        (refused(too_large), 422, "unstorable", None),
    ];
    for (outcome, status, error_type, retry_after) in cases {
        *live.intake.next.lock() = Some(outcome);
        let response = live.send_lines("/v1/events", "[]");
        assert_eq!((response.status, response.error_type().as_str()), (status, error_type));
        assert_eq!(response.header("retry-after"), retry_after, "{error_type}");
        if error_type == "all_rejected" {
            assert_eq!(response.json()["details"]["rejected"][0]["detail"], "feature 2 is NaN");
        }
    }
    *live.intake.next.lock() = Some(Ok(IntakeResponse { receipt: receipt(1), rejected }));
    assert_eq!(live.send_lines("/v1/events", "[]").status, 200, "a duplicate is a success");
    assert_eq!(live.metric("evergraph_http_rejected_total{reason=\"queue_full\"}"), Some(1.0));

    let closed = Live::with(|state| state.intake = None);
    let response = closed.send_lines("/v1/events", "[]");
    assert_eq!((response.status, response.error_type().as_str()), (404, "push_disabled"));
}

#[test]
fn operations_routes_respond() {
    let live = Live::start();
    let status = live.get("/v1/status").json();
    assert_fresh(&status);
    assert_eq!(status["log"]["bytes"], 1);
    assert_eq!(live.get("/v1/info").json()["model"], "tgn");
    for path in ["/livez", "/readyz", "/healthz"] {
        let response = live.get(path);
        assert_eq!((response.status, &response.json()["status"]), (200, &json!("ok")), "{path}");
    }
    live.state.health.set("kafka", State::Degraded, "no broker responds");
    let degraded = live.get("/readyz");
    assert_eq!((degraded.status, &degraded.json()["status"]), (200, &json!("degraded")));
    live.state.health.set(Health::DAEMON, State::Failed, "draining");
    let draining = live.get("/readyz");
    assert_eq!((draining.status, &draining.json()["checks"]["daemon"]["detail"]), (503, &json!("draining")));
    assert_eq!(live.get("/livez").status, 200, "a daemon that drains is alive");
    assert_eq!(live.get("/healthz").status, 503);
    let _stuck = live.state.health.heartbeat("learner", Duration::ZERO);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(live.get("/livez").json()["checks"]["learner"]["state"], "failed");
}

#[test]
fn operators_do_things_from_this_machine_where_there_are_no_keys() {
    let live = Live::start();
    let made = live.post("/v1/admin/checkpoints", &json!({}));
    assert_eq!(made.json(), json!({ "name": "3.checkpoint", "position": 3, "model_version": 1 }));
    let put = |path: &str, body: &Value, more: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], more].concat();
        live.request("PUT", path, &headers, body.to_string().as_bytes())
    };
    let held = put("/v1/admin/sources/http", &json!({ "paused": true }), &[]);
    assert_eq!(held.json(), json!({ "source": "http", "paused": true, "by": "local", "since_unix_ms": 1 }));
    let gone = put("/v1/admin/sources/kafka%3At", &json!({ "paused": false }), &[]);
    assert_eq!((gone.status, gone.error_type().as_str()), (404, "unknown_source"));
    assert_eq!(gone.json()["details"], json!({ "known": ["http"] }));
    assert!(gone.json()["error"].as_str().unwrap().contains("kafka:t"));
    assert_eq!(live.get("/v1/admin/log-level").json()["configured"], "info");
    for (level, status, kind) in [("loud", 422, "invalid"), ("full", 503, "not_done")] {
        let refused = put("/v1/admin/log-level", &json!({ "level": level }), &[]);
        assert_eq!((refused.status, refused.error_type().as_str()), (status, kind));
    }
    let promoted = live.post("/v1/admin/model/promote", &json!({ "version": 7 }));
    assert_eq!((promoted.status, &promoted.json()["replaced_version"]), (200, &json!(5)));
    let absent = live.post("/v1/admin/model/promote", &json!({ "version": 6 }));
    assert_eq!((absent.status, absent.error_type().as_str()), (422, "invalid"));
    let unsettled = live.post("/v1/admin/model/promote", &json!({ "version": 13 }));
    assert_eq!((unsettled.status, unsettled.error_type().as_str()), (504, "outcome_unknown"));
    assert_eq!(unsettled.header("retry-after"), None, "it may have had its effect");
    assert_eq!(live.post("/v1/admin/model/rollback", &json!({})).status, 422);
    let training = put("/v1/admin/training", &json!({ "paused": false }), &[]);
    assert_eq!(training.json(), json!({ "paused": false, "by": null, "since_unix_ms": null }));
    assert_eq!(live.post("/v1/admin/snapshots", &json!({})).json()["name"], "3.snapshot");
    assert_eq!(live.post("/v1/admin/log/cut", &json!({})).json()["first_position"], 2);
    let sought = live.post("/v1/admin/sources/kafka:t/seek", &json!({ "to": "latest" }));
    assert_eq!(sought.json(), json!({ "source": "kafka:t", "done": true, "partitions": [] }));
    assert_eq!(live.post("/v1/admin/sources/http/seek", &json!({ "to": "latest" })).status, 422);
    assert_eq!(live.post("/v1/admin/sources/kafka:t/seek", &json!({})).status, 422);
    assert_eq!(live.post("/v1/admin/reload", &json!({})).json(), json!({ "applied": [], "waiting": [] }));
    let odd = put("/v1/admin/sources/http", &json!({ "paused": true, "until": 5 }), &[]);
    assert_eq!((odd.status, odd.error_type().as_str()), (422, "invalid"));
    let page = put("/v1/admin/log-level", &json!({ "level": "info" }), &[("origin", "http://elsewhere")]);
    assert_eq!((page.status, page.error_type().as_str()), (403, "local_only"), "a page of a browser");
    let scrape = live.get("/metrics").text();
    for (action, outcome, count) in [
        ("checkpoint", "done", 1),
        ("source", "done", 1),
        ("source", "failed", 2),
        ("log_level", "failed", 2),
        ("log_level", "refused", 1),
        ("log_level", "done", 0),
        ("promote", "done", 1),
        ("promote", "failed", 2),
        ("rollback", "failed", 1),
        ("training", "done", 1),
        ("snapshot", "done", 1),
        ("cut_log", "done", 1),
        ("seek", "done", 1),
        ("seek", "failed", 2),
        ("reload", "done", 1),
    ] {
        let line =
            format!("evergraph_admin_actions_total{{action=\"{action}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(scrape.contains(&line), "{line} not in {scrape}");
    }
}

#[test]
fn every_error_has_its_status_and_one_shape() {
    let live = Live::with(|state| state.limits.batch_items = 3);
    let embed = "/v1/embeddings";
    let cases: &[(&str, &str, &str, u16, &str)] = &[
        ("POST", embed, "{\"nodes\": [", 400, "malformed"),
        ("POST", embed, "", 400, "malformed"),
        ("POST", embed, "{\"nodes\": [1], \"at\": 1e999}", 400, "malformed"),
        ("POST", embed, "[]", 422, "invalid"),
        ("POST", embed, "{\"nodes\": []}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1.5]}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [null]}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1], \"at\": \"now\"}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1], \"att\": 1}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1], \"min_position\": -1}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1], \"min_position\": 1, \"wait_ms\": 3600000}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1], \"wait_ms\": 1}", 422, "invalid"),
        ("POST", embed, "{\"nodes\": [1, 2, 3, 4]}", 413, "batch_too_large"),
        ("POST", "/v1/links/score", "{\"pairs\": []}", 422, "invalid"),
        ("POST", "/v1/links/score", "{\"pairs\": [{\"src\": 1}]}", 422, "invalid"),
        ("GET", "/v1/nodes/7?neighbors=4", "", 413, "batch_too_large"),
        ("GET", "/v1/nodes/7?neighbors=-1", "", 422, "invalid"),
        ("GET", "/v1/nodes/7?neighbor=1", "", 422, "invalid"),
        ("GET", "/v1/nodes/%FF", "", 422, "invalid"),
        ("GET", "/v1/nodes/7/neighbors?limit=4", "", 413, "batch_too_large"),
        ("GET", "/v1/nodes/7/neighbors?limit=0", "", 422, "invalid"),
        ("GET", "/v1/nodes/7/neighbors?cursor=20", "", 422, "invalid"),
        ("GET", "/v1/nodes/7/neighbors?cursor=20:-1", "", 422, "invalid"),
        ("GET", "/v1/nodes/7/neighbors?direction=up", "", 422, "invalid"),
        ("POST", "/v1/nodes/7/neighbors", "", 405, "method_not_allowed"),
        ("GET", "/v1/nodes/", "", 404, "unknown_route"),
        ("GET", "/v2/embeddings", "", 404, "unknown_route"),
        ("GET", embed, "", 405, "method_not_allowed"),
        ("DELETE", "/v1/nodes/7", "", 405, "method_not_allowed"),
        ("POST", "/metrics", "{}", 405, "method_not_allowed"),
    ];
    for &(method, path, body, status, error_type) in cases {
        let response = live.request(method, path, &[("content-type", "application/json")], body.as_bytes());
        assert_eq!(
            (response.status, response.error_type().as_str()),
            (status, error_type),
            "{method} {path} {body}"
        );
        assert_eq!(response.header("allow").is_some(), status == 405, "{method} {path}");
    }
    let message = live.send_json(embed, b"{\"nodes\": [1, true]}").json()["error"].clone();
    assert!(message.as_str().unwrap().contains("a node key"), "the error names what was expected: {message}");
    for (path, headers) in [(embed, &[][..]), (embed, &[("content-type", "text/csv")]), ("/v1/events", &[])] {
        let response = live.request("POST", path, headers, b"{\"nodes\": [7]}");
        assert_eq!(
            (response.status, response.error_type().as_str()),
            (415, "unsupported_media_type"),
            "{path}"
        );
    }
}

#[test]
fn bodies_are_bounded_in_bytes_and_time() {
    let live = Live::with(|state| {
        state.limits.body_bytes = 1000;
        state.limits.request_timeout = Duration::from_secs(1);
    });
    let long = json!({ "nodes": ["x".repeat(2000)] });
    for path in ["/v1/embeddings", "/v1/events"] {
        let response = live.post(path, &long);
        assert_eq!((response.status, response.error_type().as_str()), (413, "body_too_large"), "{path}");
        assert_eq!(response.json()["details"]["limit_bytes"], 1000);
    }
    let head =
        "POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n";
    let chunk = format!("{:x}\r\n{}\r\n", 2000, "x".repeat(2000));
    let chunked = raw(&live, &format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"));
    assert!(chunked.starts_with("HTTP/1.1 413"), "without a content length: {chunked}");
    let slow = raw(&live, &format!("{head}content-length: 100\r\n\r\nten bytes."));
    assert!(slow.starts_with("HTTP/1.1 408") && slow.contains("\"body_timeout\""), "{slow}");
    assert_eq!(live.metric("evergraph_http_rejected_total{reason=\"body_too_large\"}"), Some(3.0));
    assert_eq!(live.metric("evergraph_http_rejected_total{reason=\"body_timeout\"}"), Some(1.0));
}

#[test]
fn a_client_that_sends_far_too_much_still_gets_its_response() {
    let live = Live::with(|state| state.limits.body_bytes = 1000);
    // Much more than the buffers of a connection hold, on a connection that stays open, and on one that does not.
    let long = json!({ "nodes": ["x".repeat(20 << 20)] });
    for connection in ["keep-alive", "close"] {
        for path in ["/v1/embeddings", "/v1/events", "/v1/nothing"] {
            let headers = [("content-type", "application/json"), ("connection", connection)];
            let response = live.request("POST", path, &headers, long.to_string().as_bytes());
            let expected = if path.ends_with("nothing") { 404 } else { 413 };
            assert_eq!(response.status, expected, "{path}, {connection}");
        }
    }
}

#[test]
fn work_that_hangs_times_out_and_keeps_its_permit() {
    let live = Live::with(|state| {
        state.limits.request_timeout = Duration::from_millis(50);
        state.limits.concurrent_pushes = 1;
    });
    let hang = live.intake.hang.lock();
    let response = live.send_lines("/v1/events", "[\"a\",\"b\",30]");
    assert_eq!((response.status, response.error_type().as_str()), (504, "outcome_unknown"));
    assert_eq!(response.header("retry-after"), None, "who sends it again may store it twice");
    let second = live.send_lines("/v1/events", "[\"a\",\"b\",30]");
    assert_eq!(second.error_type(), "overloaded", "work that nobody waits for is still counted");
    drop(hang);
    while live.send_lines("/v1/events", "").status != 200 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends bytes and reads until the server closes.
fn raw(live: &Live, request: &str) -> String {
    let mut stream = TcpStream::connect(live.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
fn a_reader_waits_for_its_own_write() {
    let live = Live::start();
    let end = live.send_lines("/v1/events", "[\"new\",\"bob\",30]").json()["end_position"].as_u64().unwrap();
    let late = live.get(&format!("/v1/nodes/new?min_position={end}&wait_ms=30"));
    assert_eq!((late.status, late.error_type().as_str()), (412, "not_yet_visible"));
    let details = &late.json()["details"];
    assert_eq!(
        (&details["min_position"], &details["freshness"]["applied_position"]),
        (&json!(end), &json!(3))
    );

    let progress = Arc::clone(&live.state.engine.progress);
    let learner = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        progress.set_learned(EdgeId(end));
    });
    let requested = Instant::now();
    let body = json!({ "nodes": ["new"], "min_position": end, "wait_ms": 10_000 });
    let response = live.post("/v1/embeddings", &body);
    learner.join().unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    assert!(response.json()["freshness"]["applied_position"].as_u64() >= Some(end));
    assert!(requested.elapsed() < Duration::from_secs(5), "woken, not timed out");
}

#[test]
fn too_many_requests_are_refused_at_once_and_pushes_still_enter() {
    let live = Live::with(|state| state.limits.concurrent_queries = 1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| live.get("/v1/nodes/7?min_position=4&wait_ms=10000"));
        while live.metric("evergraph_http_inflight_requests").is_none_or(|inflight| inflight < 2.0) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let refused = live.get("/v1/nodes/7");
        assert_eq!((refused.status, refused.error_type().as_str()), (503, "overloaded"));
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(live.get("/readyz").status, 200, "probes succeed under load");
        let pushed = live.send_lines("/v1/events", "[\"7\",\"8\",30]");
        assert_eq!(pushed.status, 200, "who waits for an event does not keep it out");
        live.state.engine.progress.set_learned(EdgeId(4));
        assert_eq!(waiting.join().unwrap().status, 200);
    });
    assert_eq!(live.get("/v1/nodes/7").status, 200, "the place is free again");
    assert_eq!(live.metric("evergraph_http_rejected_total{reason=\"overloaded\"}"), Some(1.0));
    let refused = "evergraph_http_requests_total{code=\"503\",route=\"/v1/nodes/{key}\"}";
    assert_eq!(live.metric(refused), Some(1.0));
}

#[test]
fn waiting_readers_hold_no_thread() {
    let live = Live::start();
    let readers = 6 * BLOCKING_THREADS;
    std::thread::scope(|scope| {
        let ask = || live.get("/v1/nodes/7?min_position=4&wait_ms=10000");
        let waiting: Vec<_> = (0..readers).map(|_| scope.spawn(ask)).collect();
        // While readers hold all threads, not even the metrics respond.
        let begun = Instant::now();
        #[allow(clippy::cast_precision_loss)]
        let all = (readers + 1) as f64;
        while live.metric("evergraph_http_inflight_requests").is_none_or(|inflight| inflight < all) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let pushed = live.send_lines("/v1/events", "[\"7\",\"8\",30]");
        assert_eq!(pushed.status, 200, "{}", pushed.text());
        assert!(begun.elapsed() < Duration::from_secs(5), "responded after {:?}", begun.elapsed());
        live.state.engine.progress.set_learned(EdgeId(4));
        for reader in waiting {
            assert_eq!(reader.join().unwrap().status, 200);
        }
    });
}

#[test]
fn a_slow_status_or_scrape_times_out() {
    let slow = Duration::from_millis(200);
    let live = Live::with(|state| {
        state.limits.request_timeout = Duration::from_millis(20);
        state.status = Arc::new(move || {
            std::thread::sleep(slow);
            StatusDocument::default()
        });
        state.metrics.on_scrape(Box::new(move |_| std::thread::sleep(slow)));
    });
    for path in ["/v1/status", "/metrics"] {
        let response = live.get(path);
        assert_eq!((response.status, response.error_type().as_str()), (504, "timeout"), "{path}");
        assert_eq!(response.header("retry-after"), None, "{path}");
    }
}

#[test]
fn a_defect_is_a_500_with_its_request_id_and_the_server_goes_on() {
    let live = Live::with(|state| state.status = Arc::new(|| panic!("a defect, on demand")));
    let broken = live.request("GET", "/v1/status", &[("x-request-id", "from-me")], b"");
    assert_eq!((broken.status, broken.error_type().as_str()), (500, "internal"));
    assert_eq!(broken.json()["request_id"], "from-me");
    assert_eq!(live.send_lines("/v1/events", "panic").status, 500);
    assert_eq!(live.get("/v1/nodes/7").status, 200);
}

#[test]
fn every_response_has_a_request_id() {
    let live = Live::start();
    let made = live.get("/livez").header("x-request-id").unwrap().to_owned();
    assert_ne!(made, live.get("/livez").header("x-request-id").unwrap());
    let taken = live.request("GET", "/livez", &[("x-request-id", "abc-1")], b"");
    assert_eq!(taken.header("x-request-id"), Some("abc-1"));
    let long = "x".repeat(200);
    let replaced = live.request("GET", "/livez", &[("x-request-id", &long)], b"");
    assert!(replaced.header("x-request-id").is_some_and(|id| id.len() == made.len()));
}

#[test]
fn open_requests_finish_at_shutdown() {
    let mut live = Live::start();
    let progress = Arc::clone(&live.state.engine.progress);
    let address = live.address;
    let request = "GET /v1/nodes/7?min_position=9&wait_ms=10000 HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut open = TcpStream::connect(address).unwrap();
    open.write_all(request.as_bytes()).unwrap();
    while live.metric("evergraph_http_inflight_requests").is_none_or(|inflight| inflight < 2.0) {
        std::thread::sleep(Duration::from_millis(2));
    }
    live.begin_stop();
    while TcpStream::connect(address).is_ok() {
        std::thread::sleep(Duration::from_millis(2));
    }
    progress.set_learned(EdgeId(9));
    let mut response = String::new();
    open.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");
    live.join();
}

#[test]
fn an_outcome_that_nobody_knows_is_not_to_be_tried_again() {
    let live = Live::start();
    *live.intake.next.lock() = Some(Err(IntakeError::OutcomeUnknown("the log did not respond".to_owned())));
    let unknown = live.send_lines("/v1/events", "x");
    assert_eq!((unknown.status, unknown.error_type().as_str()), (504, "outcome_unknown"));
    assert_eq!(unknown.header("retry-after"), None);
    assert!(unknown.json()["error"].as_str().unwrap().contains("Idempotency-Key"));
}

#[test]
fn the_key_of_a_request_reaches_the_intake() {
    let live = Live::start();
    let push = |keys: &[&str]| {
        let mut headers = vec![("content-type", "application/x-ndjson")];
        headers.extend(keys.iter().map(|key| ("Idempotency-Key", *key)));
        live.request("POST", "/v1/events", &headers, b"[\"a\",\"b\",30]").status
    };
    assert_eq!((push(&[]), push(&["order-1"])), (200, 200));
    assert_eq!((push(&[""]), push(&["a", "b"]), push(&[&"x".repeat(256)])), (422, 422, 422));
    assert_eq!(*live.intake.keys.lock(), [None, Some("order-1".to_owned())]);
}

#[test]
fn without_a_model_queries_say_so() {
    let live = Live::with(|state| state.engine = Arc::new(crate::live::engine_without_model()));
    for (path, body) in [
        ("/v1/embeddings", json!({ "nodes": [7] })),
        ("/v1/links/score", json!({ "pairs": [{ "src": 7, "dst": 7 }] })),
    ] {
        let response = live.post(path, &body);
        assert_eq!((response.status, response.error_type().as_str()), (503, "no_model"), "{path}");
        assert!(response.header("retry-after").is_some());
    }
    assert_eq!(live.get("/v1/nodes/7").status, 200, "the graph is served without a model");
}

#[test]
fn a_disk_that_fails_is_reported_and_counted() {
    let fault = Arc::new(AtomicBool::new(true));
    let live = Live::with(|state| state.engine = Arc::new(crate::live::engine_on_disk(fault.clone())));
    let queries = [
        ("/v1/embeddings", json!({ "nodes": ["alice"] })),
        ("/v1/links/score", json!({ "pairs": [{ "src": "alice", "dst": "bob" }] })),
    ];
    for (path, body) in &queries {
        let response = live.post(path, body);
        assert_eq!((response.status, response.error_type().as_str()), (503, "storage_failed"), "{path}");
        assert!(response.header("retry-after").is_some());
    }
    let failed = |path: &str| live.state.metrics.http.requests.with_label_values(&[path, "503"]).get();
    assert_eq!((failed("/v1/embeddings"), failed("/v1/links/score")), (1, 1));
    fault.store(false, Ordering::Release);
    for (path, body) in &queries {
        assert_eq!(live.post(path, body).status, 200, "{path}");
    }
}

#[test]
fn the_openapi_document_is_the_checked_in_one_and_lists_every_route() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/openapi.json");
    let document = api::openapi_json().unwrap() + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &document).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap();
    assert!(document == checked_in, "the interface changed; if that is meant, run this test with UPDATE=1");

    let live = Live::start();
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(live.get("/openapi.json").json(), document, "served as checked in");
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 27);
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let response = live.request(
                &method.to_uppercase(),
                &path.replace("{key}", "7").replace("{source}", "http"),
                &[],
                b"",
            );
            assert!(![404, 405].contains(&response.status), "{method} {path}: {}", response.text());
        }
    }
}

#[test]
fn the_docs_page_needs_no_internet() {
    let live = Live::start();
    assert_eq!(live.get("/docs").header("location"), Some("/docs/"));
    let page = live.get("/docs/");
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self';"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("x-frame-options"), Some("DENY"));
    let html = page.text();
    let assets: Vec<&str> = html.split(['"', '\'']).filter(|text| text.starts_with("./")).collect();
    assert!(assets.len() >= 4, "{html}");
    for asset in assets {
        let response = live.get(&format!("/docs/{}", asset.trim_start_matches("./")));
        assert!(response.status == 200 && !response.body.is_empty(), "{asset}");
    }
    assert!(!html.contains("http://") && !html.contains("https://"), "{html}");
    let initializer = live.get("/docs/swagger-initializer.js").text();
    assert!(initializer.contains("/openapi.json") && initializer.contains("\"none\""), "{initializer}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a client posts: a documented response, never a bug, and errors of one shape.
    #[test]
    fn no_body_makes_a_500(
        route in prop::sample::select(vec!["/v1/embeddings", "/v1/links/score", "/v1/events"]),
        body in prop::collection::vec(any::<u8>(), 0..60),
        template in prop::sample::select(vec!["{\"nodes\":[7]}", "{\"pairs\":[{\"src\":1,\"dst\":2}]}", ""]),
        cut in 0_usize..30,
    ) {
        let mut sent: Vec<u8> = template.bytes().take(cut).collect();
        sent.extend(&body);
        let response = FUZZED.send_json(route, &sent);
        prop_assert!(response.status < 500, "{}", response.text());
        if response.status >= 400 {
            response.error_type();
        }
    }

    /// Whatever a client asks in a path and a query.
    #[test]
    fn no_path_and_no_query_makes_a_500(
        key in prop::collection::vec(in_a_path(), 1..12),
        query in prop::collection::vec((parameter(), prop::collection::vec(in_a_path(), 0..22)), 0..4),
        known in any::<bool>(),
    ) {
        let key = if known { "7".to_owned() } else { key.concat() };
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={}", value.concat())).collect();
        let response = FUZZED.get(&format!("/v1/nodes/{key}?{}", query.join("&")));
        prop_assert!(response.status < 500, "{}", response.text());
        prop_assert_ne!(response.status, 405, "the node route is asked");
        if response.status >= 400 {
            response.error_type();
        }
    }
}

/// A server that waits for nobody.
static FUZZED: std::sync::LazyLock<Live> =
    std::sync::LazyLock::new(|| Live::with(|state| state.limits.wait = Duration::from_millis(2)));

/// A piece of a path or of a query: digits mostly, signs with a meaning, any byte in its coded form.
fn in_a_path() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[0-9]",
        2 => prop::sample::select(vec!["-", "+", ".", "~", ",", ";", ":", "@", "!", "*", "(", "e", "_"])
            .prop_map(str::to_owned),
        2 => any::<u8>().prop_map(|byte| format!("%{byte:02X}")),
    ]
}

fn parameter() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["neighbors", "min_position", "wait_ms", "at", "", "neighbors%00"])
}

#[test]
fn who_dribbles_a_head_is_cut_off_and_makes_room() {
    let live = Live::with(|state| {
        state.limits.connections = 8;
        state.limits.head = Duration::from_millis(300);
    });
    let started = Instant::now();
    let mut slow: Vec<TcpStream> = (0..30).map(|_| TcpStream::connect(live.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /livez HTTP/1.1\r\nx-slow: ").unwrap();
    }
    // Four times the places there are: the request comes after three rounds of closing at the latest.
    assert_eq!(live.get("/livez").status, 200);
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut rest = Vec::new();
        // Closed by the other side, orderly or not.
        let _ = stream.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    assert_eq!(live.get("/livez").status, 200);
    let counted = live.metric("evergraph_http_refused_connections_total{reason=\"header_timeout\"}");
    assert!(counted >= Some(8.0), "who was cut off is counted: {counted:?}");
}

#[test]
fn connections_beyond_their_number_wait_for_one_that_ends() {
    let live = Live::with(|state| state.limits.connections = 2);
    let mut silent =
        vec![TcpStream::connect(live.address).unwrap(), TcpStream::connect(live.address).unwrap()];
    std::thread::sleep(Duration::from_millis(200));
    let mut third = TcpStream::connect(live.address).unwrap();
    third.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut response = [0; 12];
    assert!(third.read_exact(&mut response).is_err(), "there is no place for it");
    silent.pop();
    third.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    third.read_exact(&mut response).unwrap();
    assert_eq!(&response, b"HTTP/1.1 200");
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    let live = Live::with(|state| {
        state.limits.connections = 2;
        state.limits.stall = Duration::from_millis(500);
    });
    let deaf: Vec<TcpStream> = (0..2)
        .map(|_| {
            let mut stream = TcpStream::connect(live.address).unwrap();
            stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
            // Until neither side's buffers hold more.
            while stream.write_all(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n").is_ok() {}
            stream
        })
        .collect();
    let started = Instant::now();
    assert_eq!(live.get("/livez").status, 200);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    drop(deaf);
}
