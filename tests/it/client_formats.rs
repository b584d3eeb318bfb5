//! What a client may ask for beside the default: vectors as base64, errors as problem details, compressed responses.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::live::{Live, plain};

fn vector(entry: &Value) -> Vec<f32> {
    let bytes = STANDARD.decode(entry["embedding"].as_str().unwrap()).unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

#[test]
fn vectors_come_as_base64_on_request() {
    let live = Live::start();
    let ask = |format: &str| {
        let body = json!({ "nodes": ["alice", 7, "nobody"], "encoding_format": format });
        live.post("/v1/embeddings", &body)
    };
    let (numbers, bytes) = (ask("float").json(), ask("base64").json());
    assert_eq!(
        live.post("/v1/embeddings", &json!({ "nodes": ["alice", 7, "nobody"] })).json(),
        numbers,
        "default"
    );
    for i in [0, 1] {
        let expected: Vec<f32> =
            serde_json::from_value(numbers["embeddings"][i]["embedding"].clone()).unwrap();
        let found = vector(&bytes["embeddings"][i]);
        assert_eq!(found.len(), live.state.info.embedding_dimension);
        assert_eq!(found, expected);
    }
    assert_eq!(bytes["embeddings"][2], json!({ "node": "nobody", "error": "unknown_node" }));
    let odd = ask("hex");
    assert_eq!((odd.status, odd.error_type().as_str()), (422, "invalid"));
    assert!(odd.text().contains("base64"), "{}", odd.text());
}

#[test]
fn errors_are_problem_details_on_request() {
    let live = Live::start();
    let ask = |accept: &str| live.request("GET", "/v1/nodes/nobody", &[("accept", accept)], b"");
    let problem = ask("application/json;q=0.5, application/problem+json");
    assert_eq!(problem.header("content-type"), Some("application/problem+json"));
    let (body, plain) = (problem.json(), ask("application/json"));
    assert_eq!(plain.header("content-type"), Some("application/json"));
    let plain = plain.json();
    assert_eq!(
        (&body["type"], &body["title"], &body["status"]),
        (&json!("about:blank"), &json!("Not Found"), &json!(404))
    );
    assert_eq!((&body["detail"], &body["error_type"]), (&plain["error"], &plain["error_type"]));
    assert_eq!(body["details"], plain["details"]);
    assert_eq!(body["request_id"].as_str(), problem.header("x-request-id"));

    // Errors of the router and of admission have the same shape, and keep their headers.
    for path in ["/v1/nothing", "/v1/nodes/%FF"] {
        let problem = live.request("GET", path, &[("accept", "application/problem+json")], b"");
        assert_eq!(problem.header("content-type"), Some("application/problem+json"), "{path}");
    }
    let busy = Live::with(|state| state.limits.concurrent_queries = 0);
    let refused = busy.request("GET", "/v1/nodes/7", &[("accept", "application/problem+json")], b"");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error_type"], "overloaded");
    assert_eq!(
        live.request("GET", "/v1/nodes/7", &[("accept", "application/problem+json")], b"").status,
        200
    );
}

#[test]
fn large_responses_are_compressed_for_clients_that_accept_it() {
    let live = Live::with(|state| state.limits.compress_bytes_min = 2000);
    let ask = |nodes: usize, accept: &str| {
        let body = json!({ "nodes": vec!["alice"; nodes] }).to_string();
        let headers = [("content-type", "application/json"), ("accept-encoding", accept)];
        live.request("POST", "/v1/embeddings", &headers, body.as_bytes())
    };
    let whole = ask(200, "identity");
    assert_eq!(whole.header("content-encoding"), None);
    let packed = ask(200, "br;q=1, gzip;q=0.5");
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.header("vary").is_some_and(|vary| vary.to_lowercase().contains("accept-encoding")));
    assert!(packed.body.len() < whole.body.len() / 4, "{} of {} bytes", packed.body.len(), whole.body.len());
    let unpacked: Value = serde_json::from_slice(&plain(&packed.headers, &packed.body)).unwrap();
    assert_eq!(unpacked, whole.json());
    assert_eq!(ask(1, "gzip").header("content-encoding"), None, "a small one");
    assert_eq!(ask(200, "gzip;q=0").header("content-encoding"), None);

    let never = Live::with(|state| state.limits.compress_bytes_min = 0);
    let body = json!({ "nodes": vec!["alice"; 200] }).to_string();
    let headers = [("content-type", "application/json"), ("accept-encoding", "gzip")];
    let response = never.request("POST", "/v1/embeddings", &headers, body.as_bytes());
    assert_eq!((response.status, response.header("content-encoding")), (200, None));
}
