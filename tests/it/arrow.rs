//! Responses as Arrow: the columns hold the bits of the JSON, for clients that ask for them.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use serde_json::{Value, json};

use crate::contract::DOCUMENT;
use crate::live::{LATEST, Live, Response, plain};

pub const ARROW: &str = "application/vnd.apache.arrow.stream";

fn send(live: &Live, path: &str, accept: &str, body: &Value) -> Response {
    let headers = [("content-type", "application/json"), ("accept", accept)];
    live.request("POST", path, &headers, body.to_string().as_bytes())
}

/// The one batch of a stream.
pub fn batch_of(bytes: &[u8]) -> RecordBatch {
    let mut batches = StreamReader::try_new(bytes, None).unwrap();
    let batch = batches.next().unwrap().unwrap();
    assert!(batches.next().is_none(), "one batch");
    batch
}

/// The batch and the JSON of one request. What JSON has besides its rows, which are its member `rows`, is the metadata.
fn both(live: &Live, (operation, path, rows): (&str, &str, &str), body: &Value) -> (RecordBatch, Vec<Value>) {
    let response = send(live, path, ARROW, body);
    assert_eq!((response.status, response.header("content-type")), (200, Some(ARROW)), "{}", response.text());
    let batch = batch_of(&plain(&response.headers, &response.body));
    let mut document = send(live, path, "application/json", body).json();
    let rows = document[rows].take();
    let members = document.as_object_mut().unwrap();
    members.retain(|_, member| !member.is_null());
    let mut about: Value = serde_json::from_str(&batch.schema().metadata()["evergraph"]).unwrap();
    about.as_object_mut().unwrap().retain(|_, member| !member.is_null());
    assert_eq!(about, document);
    documented(operation, &batch);
    (batch, rows.as_array().unwrap().clone())
}

/// The columns are those of the OpenAPI document.
pub fn documented(operation: &str, batch: &RecordBatch) {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let mut methods = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let method = methods.find(|method| method["operationId"] == operation).unwrap();
    let schema = &method["responses"]["200"]["content"][ARROW]["schema"];
    let listed = schema["description"].as_str().unwrap().lines().filter_map(|line| line.strip_prefix("- `"));
    let listed: Vec<(&str, bool)> = listed
        .map(|line| (line.split('`').next().unwrap(), line.split(')').next().unwrap().ends_with(", or null")))
        .collect();
    let schema = batch.schema();
    let found: Vec<(&str, bool)> =
        schema.fields().iter().map(|field| (field.name().as_str(), field.is_nullable())).collect();
    assert_eq!(found, listed, "{operation}");
}

fn text(batch: &RecordBatch, name: &str, row: usize) -> Value {
    let column = batch[name].as_string::<i32>();
    if column.is_null(row) { Value::Null } else { json!(column.value(row)) }
}

fn flag(batch: &RecordBatch, name: &str, row: usize) -> Value {
    let column = batch[name].as_boolean();
    if column.is_null(row) { Value::Null } else { json!(column.value(row)) }
}

/// The bits of a number of the column, and of a number in JSON.
fn bits(batch: &RecordBatch, name: &str, row: usize) -> Option<u32> {
    let column = batch[name].as_primitive::<Float32Type>();
    column.is_valid(row).then(|| column.value(row).to_bits())
}

fn bits_of(number: &Value) -> Option<u32> {
    number.as_f64().map(|number| (number as f32).to_bits())
}

/// A key in JSON as text.
fn key(value: &Value) -> Value {
    value.as_i64().map_or(value.clone(), |number| json!(number.to_string()))
}

#[test]
fn embeddings_in_columns_have_the_bits_of_the_json() {
    let live = Live::start();
    let bob = live.state.engine.stores.keys.lookup(&"bob".into()).unwrap();
    live.state.engine.states.publish(bob, &[f32::NAN; 4], LATEST);
    for body in [
        json!({ "nodes": ["alice", "7", 7, "nobody", "bob"], "at": 25 }),
        json!({ "nodes": ["nobody", "alice"], "unknown": "prior" }),
        json!({ "nodes": ["nobody"] }),
    ] {
        let (batch, rows) = both(&live, ("compute_embeddings", "/v1/embeddings", "embeddings"), &body);
        assert_eq!(batch.num_rows(), rows.len());
        let vectors = batch["embedding"].as_fixed_size_list();
        assert_eq!(vectors.value_length() as usize, live.state.info.embedding_dimension);
        let times = batch["last_event"].as_primitive::<Int64Type>();
        for (row, expected) in rows.iter().enumerate() {
            assert_eq!(text(&batch, "node", row), key(&expected["node"]));
            assert_eq!(text(&batch, "error", row), expected["error"]);
            assert_eq!(flag(&batch, "cold", row), expected["cold"]);
            assert_eq!(times.is_valid(row).then(|| times.value(row)), expected["last_event"].as_i64());
            let numbers = expected["embedding"].as_array();
            assert_eq!(vectors.is_valid(row), numbers.is_some(), "{expected}");
            let Some(numbers) = numbers else { continue };
            let vector = vectors.value(row);
            let found = vector.as_primitive::<Float32Type>().values();
            assert_eq!(found.len(), numbers.len());
            for (found, expected) in found.iter().zip(numbers) {
                assert_eq!(Some(found.to_bits()), bits_of(expected));
            }
        }
    }
}

#[test]
fn scores_in_columns_have_the_bits_of_the_json() {
    let live = Live::start();
    let pairs = [("alice", json!(7)), ("x", json!("7")), ("alice", json!("bob")), ("x", json!("y"))];
    let pairs: Vec<Value> = pairs.iter().map(|(src, dst)| json!({ "src": src, "dst": dst })).collect();
    let route = ("score_links", "/v1/links/score", "scores");
    let (batch, rows) = both(&live, route, &json!({ "pairs": pairs }));
    assert_eq!(batch.num_rows(), rows.len());
    for (row, expected) in rows.iter().enumerate() {
        assert_eq!(
            [text(&batch, "src", row), text(&batch, "dst", row)],
            [key(&expected["src"]), key(&expected["dst"])]
        );
        assert_eq!(bits(&batch, "score", row), bits_of(&expected["score"]));
        assert_eq!(
            [flag(&batch, "cold", row), text(&batch, "error", row)],
            [expected["cold"].clone(), expected["error"].clone()]
        );
        let unknown = expected["unknown"].as_array().cloned().unwrap_or_default();
        for end in ["src", "dst"] {
            assert_eq!(flag(&batch, &format!("{end}_unknown"), row), json!(unknown.contains(&expected[end])));
        }
    }
    assert_eq!(flag(&batch, "dst_unknown", 3), json!(true));
}

#[test]
fn what_the_index_finds_has_the_bits_of_the_json_in_columns() {
    let live = Live::start();
    let candidates = json!({ "keys": ["bob", 7, "nobody"] });
    let body = json!({ "src": ["alice", "stranger", "bob"], "candidates": candidates });
    let (batch, results) = both(&live, ("find_top_links", "/v1/links/top", "results"), &body);
    let mut row = 0;
    for (item, result) in results.iter().enumerate() {
        for link in result["top"].as_array().unwrap() {
            assert_eq!(batch["item"].as_primitive::<UInt32Type>().value(row) as usize, item);
            assert_eq!(
                [text(&batch, "src", row), text(&batch, "dst", row), text(&batch, "ranked_by", row)],
                [key(&result["src"]), key(&link["dst"]), result["ranked_by"].clone()]
            );
            assert_eq!(bits(&batch, "score", row), bits_of(&link["score"]));
            assert_eq!(
                [flag(&batch, "cold", row), flag(&batch, "src_cold", row)],
                [link["cold"].clone(), result["cold"].clone()]
            );
            row += 1;
        }
    }
    assert!(row == batch.num_rows() && row > 4, "{row}");

    let vector = vec![0.5; live.state.info.embedding_dimension];
    let by_node = json!({ "nodes": ["alice", "stranger"], "candidates": candidates });
    let by_vector = json!({ "vectors": [vector], "candidates": candidates, "metric": "dot" });
    for body in [by_node, by_vector] {
        let route = ("find_similar_nodes", "/v1/nodes/similar", "results");
        let (batch, results) = both(&live, route, &body);
        let mut row = 0;
        for (item, result) in results.iter().enumerate() {
            let failed = vec![json!({})];
            for one in result["similar"].as_array().unwrap_or(&failed) {
                assert_eq!(batch["item"].as_primitive::<UInt32Type>().value(row) as usize, item);
                assert_eq!(
                    [text(&batch, "node", row), text(&batch, "similar", row), text(&batch, "error", row)],
                    [key(&result["node"]), key(&one["node"]), result["error"].clone()]
                );
                assert_eq!(bits(&batch, "score", row), bits_of(&one["score"]));
                assert_eq!(flag(&batch, "cold", row), one["cold"]);
                row += 1;
            }
        }
        assert!(row == batch.num_rows() && row > 1, "{row}");
    }
}

#[test]
fn errors_and_all_other_clients_get_json() {
    let live = Live::start();
    let body = json!({ "nodes": ["alice"] });
    for accept in ["*/*", "text/csv", "application/vnd.apache.arrow.file", "application/json"] {
        let response = send(&live, "/v1/embeddings", accept, &body);
        assert_eq!(response.header("content-type"), Some("application/json"), "{accept}");
        assert_eq!(response.json()["embeddings"][0]["node"], "alice");
    }
    let empty = send(&live, "/v1/embeddings", ARROW, &json!({ "nodes": [] }));
    assert_eq!((empty.status, empty.header("content-type")), (422, Some("application/json")));
    assert_eq!(empty.error_type(), "invalid");
    let node = live.request("GET", "/v1/nodes/alice", &[("accept", ARROW)], b"");
    assert_eq!((node.status, node.header("content-type")), (200, Some("application/json")));
}

#[test]
fn large_responses_in_columns_are_compressed_and_shorter_than_json() {
    let live = Live::with(|state| state.limits.compress_bytes_min = 1_000);
    let body = json!({ "nodes": vec!["alice"; 9_000] }).to_string();
    let ask = |accept: &str, encoding: &str| {
        let headers =
            [("content-type", "application/json"), ("accept", accept), ("accept-encoding", encoding)];
        live.request("POST", "/v1/embeddings", &headers, body.as_bytes())
    };
    let (columns, json) = (ask(ARROW, "identity"), ask("application/json", "identity"));
    assert!(columns.body.len() * 2 < json.body.len(), "{} and {}", columns.body.len(), json.body.len());
    assert_eq!(batch_of(&columns.body).num_rows(), 9_000);
    let packed = ask(ARROW, "gzip");
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() * 4 < columns.body.len());
    assert_eq!(plain(&packed.headers, &packed.body), columns.body);
}
