//! Exports of all embeddings and edges: of one position whatever happens meanwhile, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::{FileReader, StreamReader};
use evergraph::event::{EdgeBatch, EdgeId, EventTime, NodeId, NodeKey, Op};
use evergraph::feature::FeatureStore;
use evergraph::serving::{EmbeddingSlice, NodeEmbedding, QueryEngine, UnknownKeys};
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::arrow::{ARROW, documented};
use crate::live::{Live, add_edge, engine_on_disk, small_engine};
use crate::process::{Process, Start, evergraph};

/// An engine with 700 nodes `u…` beside those of the small one, all of which are learned.
fn many() -> Arc<QueryEngine> {
    let engine = small_engine();
    for i in 0..700 {
        add_edge(&engine, &format!("u{i}"), &format!("i{}", i % 7), 40 + i);
    }
    for node in 0..engine.stores.keys.len() as u32 {
        publish(&engine, NodeId(node), node as f32 * 0.01);
    }
    engine.progress.set_learned(engine.stores.graph.applied());
    Arc::new(engine)
}

fn publish(engine: &QueryEngine, node: NodeId, value: f32) {
    engine.states.publish(node, &[value, -value, 0.5, 1.0], EventTime(i64::from(node.0)));
}

fn id(engine: &QueryEngine, key: &str) -> NodeId {
    engine.stores.keys.lookup(&key.into()).unwrap()
}

fn delete(engine: &QueryEngine, op: Op, src: NodeId, dst: NodeId) {
    let mut batch = EdgeBatch { first: engine.stores.graph.applied(), ..EdgeBatch::default() };
    batch.push_edge(src, dst, EventTime::MAX);
    batch.op.fill(op);
    engine.stores.graph.apply(&batch).unwrap();
    if op == Op::DeleteNode {
        engine.stores.keys.forget(src);
    }
}

fn bits(embedding: &NodeEmbedding) -> Vec<u32> {
    let NodeEmbedding::Found { vector, .. } = embedding else { panic!("{embedding:?}") };
    vector.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn an_export_of_embeddings_is_of_one_position_whatever_is_learned_meanwhile() {
    let engine = many();
    let position = engine.stores.graph.applied().0;
    let mut export = engine.export_embeddings().unwrap();
    assert_eq!((export.freshness().applied_position, export.len()), (position, 710));
    let keys: Vec<NodeKey> = (0..710).map(|node| engine.stores.keys.key(NodeId(node)).unwrap()).collect();
    let expected = engine.embeddings(&keys, Some(export.at()), UnknownKeys::Error).unwrap().embeddings;

    let first = export.next_slice().unwrap().unwrap();
    for i in (0..700).rev() {
        publish(&engine, id(&engine, &format!("u{i}")), 7.0);
    }
    for i in 0..700 {
        add_edge(&engine, &format!("u{i}"), "i3", 100 + i);
    }
    add_edge(&engine, "late", "u699", 200);
    publish(&engine, id(&engine, "late"), 1.0);
    engine.progress.set_learned(engine.stores.graph.applied());
    engine.stores.keys.forget(id(&engine, "u698"));
    let after = engine.embeddings(&keys, Some(export.at()), UnknownKeys::Error).unwrap().embeddings;
    assert_ne!(bits(&after[709]), bits(&expected[709]), "what is learned meanwhile changes embeddings");

    let mut slices = vec![first];
    while let Some(slice) = export.next_slice().unwrap() {
        slices.push(slice);
    }
    assert!(slices.len() > 1);
    let mut found = BTreeMap::new();
    for EmbeddingSlice { nodes, embeddings, learned_events } in slices {
        for ((node, embedding), time) in nodes.into_iter().zip(embeddings).zip(learned_events) {
            assert!(found.insert(node, (bits(&embedding), time)).is_none(), "each node comes once");
        }
    }
    for (node, (key, expected)) in keys.iter().zip(&expected).enumerate() {
        if *key == NodeKey::from("u698") {
            assert!(!found.contains_key(key), "a node that was deleted meanwhile");
            continue;
        }
        assert_eq!(found.remove(key), Some((bits(expected), EventTime(node as i64))), "{key}");
    }
    assert!(found.is_empty(), "nothing else: {found:?}");
}

#[test]
fn an_export_of_embeddings_begins_between_two_batches_of_the_learner() {
    let engine = many();
    let publication = engine.states.publication();
    std::thread::scope(|scope| {
        let export = scope.spawn(|| engine.export_embeddings().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(100));
        // Half of a batch.
        publish(&engine, NodeId(0), 3.0);
        assert!(!export.is_finished(), "half of a batch is published");
        publish(&engine, NodeId(1), 3.0);
        engine.progress.set_learned(EdgeId(1000));
        drop(publication);
        let mut export = export.join().unwrap();
        assert_eq!(export.freshness().applied_position, 1000);
        let slice = export.next_slice().unwrap().unwrap();
        let now = engine.embeddings(&slice.nodes, Some(export.at()), UnknownKeys::Error).unwrap();
        assert_eq!(bits(&slice.embeddings[0]), bits(&now.embeddings[0]));
    });
}

#[test]
fn an_export_of_edges_has_each_edge_below_its_position_once_and_none_that_was_deleted() {
    let engine = Arc::new(small_engine());
    let mut batch = EdgeBatch { first: EdgeId(3), ..EdgeBatch::default() };
    let nodes: Vec<NodeId> =
        (0..50).map(|i| engine.stores.keys.intern(&NodeKey::from(format!("n{i}").as_str()))).collect();
    // A hub of more edges than a slice, many at one time, in both directions, with loops.
    for i in 0..30_000_usize {
        let (hub, other, time) = (nodes[0], nodes[i % 50], EventTime(i as i64 / 100));
        if i % 3 == 0 { batch.push_edge(other, hub, time) } else { batch.push_edge(hub, other, time) }
    }
    engine.stores.graph.apply(&batch).unwrap();
    delete(&engine, Op::DeleteEdge, nodes[0], nodes[7]);
    delete(&engine, Op::DeleteNode, nodes[9], nodes[9]);
    let end = engine.stores.graph.applied();
    let mut export = engine.export_edges();
    assert_eq!(export.position(), end);
    add_edge(&engine, "n3", "n4", 10_000);
    add_edge(&engine, "newcomer", "n4", 5);
    let mut found = BTreeMap::new();
    let mut slices = 0;
    while let Some(slice) = export.next_slice().unwrap() {
        slices += 1;
        for (src, dst, edge) in slice.edges {
            let is_new = found.insert(edge.edge.0, (src, dst, edge.time.0)).is_none();
            assert!(is_new, "{edge:?} comes once");
        }
    }
    assert!(slices > 3, "{slices}");
    let key = |node| engine.stores.keys.key(node);
    let mut expected = BTreeMap::new();
    for (position, (src, dst, time)) in
        [("alice", "bob", 10), ("alice", "7", 20), ("bob", "7", 30)].into_iter().enumerate()
    {
        expected.insert(position as u64, (NodeKey::from(src), NodeKey::from(dst), time));
    }
    for i in 0..batch.len() {
        let (src, dst) = (batch.src[i], batch.dst[i]);
        let is_deleted = (src, dst) == (nodes[0], nodes[7]) || [src, dst].contains(&nodes[9]);
        if let (false, Some(src), Some(dst)) = (is_deleted, key(src), key(dst)) {
            expected.insert(batch.id(i).0, (src, dst, batch.time[i].0));
        }
    }
    assert!(expected.len() > 28_000);
    assert_eq!(found, expected);
}

/// The batches of a response, and what its metadata says.
fn batches_of(bytes: &[u8]) -> (Vec<RecordBatch>, Value) {
    let reader = StreamReader::try_new(bytes, None).unwrap();
    let about = serde_json::from_str(&reader.schema().metadata()["evergraph"]).unwrap();
    (reader.map(Result::unwrap).collect(), about)
}

#[test]
fn both_exports_are_streams_with_the_documented_columns() {
    let engine = many();
    let served = engine.clone();
    let live = Live::with(move |state| state.engine = served);
    let response = live.get("/v1/export/embeddings");
    assert_eq!((response.status, response.header("content-type")), (200, Some(ARROW)), "{}", response.text());
    let (batches, about) = batches_of(&response.body);
    documented("export_embeddings", &batches[0]);
    assert_eq!((&about["position"], &about["rows_expected"]), (&json!(703), &json!(710)), "{about}");
    assert_eq!((&about["source"], &about["freshness"]["model_version"]), (&json!("model"), &json!(1)));
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 710);
    let body = json!({ "nodes": ["u5"], "at": about["at"] });
    let expected = live.post("/v1/embeddings", &body).json();
    let row = (0..512).find(|row| batches[0]["node"].as_string::<i32>().value(*row) == "u5").unwrap();
    let vector = batches[0]["embedding"].as_fixed_size_list().value(row);
    let numbers = expected["embeddings"][0]["embedding"].as_array().unwrap();
    for (found, expected) in vector.as_primitive::<Float32Type>().values().iter().zip(numbers) {
        // Products of matrices of other heights round in another way.
        assert!((f64::from(*found) - expected.as_f64().unwrap()).abs() < 1e-5, "{found} {expected}");
    }

    let response = live.get("/v1/export/edges");
    let (batches, about) = batches_of(&response.body);
    assert_eq!(about, json!({ "position": 703, "rows_expected": 703 }));
    assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 703);
    assert!(batches[0].column_by_name("features").is_none(), "no edge has features");
    let with_features = Live::with(|state| state.engine = Arc::new(engine_on_disk(Arc::default())));
    let (batches, _) = batches_of(&with_features.get("/v1/export/edges").body);
    let features = batches[0]["features"].as_fixed_size_list();
    assert_eq!((features.value_length(), features.null_count()), (2, 0));
    assert!(batches[0].column_by_name("type").is_none(), "no types are kept");
    let mut typed = small_engine();
    typed.stores.edge_features = Arc::new(FeatureStore::new(3));
    typed.stores.edge_features.set(1, &[1.0, 0.5, -2.0]).unwrap();
    typed.stores.types.define("buy");
    typed.stores.rows_have_types = true;
    let typed = Live::with(|state| state.engine = Arc::new(typed));
    let (batches, _) = batches_of(&typed.get("/v1/export/edges").body);
    documented("export_edges", &batches[0]);
    let position = batches[0]["position"].as_primitive::<UInt64Type>().values();
    let row = position.iter().position(|position| *position == 1).unwrap();
    let (types, features) =
        (batches[0]["type"].as_string::<i32>(), batches[0]["features"].as_fixed_size_list());
    assert_eq!((types.value(row), types.null_count(), features.value_length()), ("buy", 2, 2));
    assert_eq!(features.value(row).as_primitive::<Float32Type>().values().to_vec(), [0.5, -2.0]);

    let without = Live::with(|state| state.engine = Arc::new(crate::live::engine_without_model()));
    let refused = without.get("/v1/export/embeddings");
    assert_eq!((refused.status, refused.error_type().as_str()), (503, "no_model"));
}

#[test]
fn an_export_that_breaks_off_leaves_no_file() {
    let fault = Arc::new(AtomicBool::new(false));
    let switch = fault.clone();
    let live = Live::with(|state| {
        let engine = engine_on_disk(switch);
        // The storage fails behind the first slice.
        for i in 0..20_000 {
            add_edge(&engine, "alice", &format!("n{}", i % 100), 100 + i);
        }
        state.engine = Arc::new(engine);
    });
    fault.store(true, Ordering::Release);
    let folder = tempfile::tempdir().unwrap();
    let (to, url) = (folder.path().join("edges.csv"), format!("http://{}", live.address));
    let command = ["export", "edges", "--to", to.to_str().unwrap(), "--url", &url];
    let (is_done, _, said) = evergraph(&command);
    assert!(!is_done && said.contains("broke off"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    fault.store(false, Ordering::Release);
    let (is_done, _, said) = evergraph(&command);
    assert!(is_done && said.contains("20,003 edges as of log position 20003"), "{said}");
}

/// A daemon that has learned some events, one of them with a key that CSV has to quote, and a deletion.
fn learned(data: &std::path::Path) -> Process {
    let process =
        Start::in_dir(data).set("learner.gate.enabled=false").set("stream.edge_feature_dimension=2").ready();
    let mut lines: Vec<Value> = (0..600)
        .map(|t| json!({ "src": format!("user-{}", t % 40), "dst": t % 30, "ts": t, "features": [t, 0.1] }))
        .collect();
    lines.push(json!({ "src": "a \"b\", c", "dst": 5, "ts": 600, "features": [1, 2] }));
    lines.push(json!({ "op": "delete", "node": "user-3" }));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    assert!(process.push_or_dies(&lines.join("\n"), 602));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 602);
    process
}

fn exported(process: &Process, what: &str, to: &std::path::Path, more: &[&str]) -> (bool, String, String) {
    let (url, to) = (process.url(""), to.to_str().unwrap());
    evergraph(&[&["export", what, "--to", to, "--url", &url], more].concat())
}

#[test]
fn the_command_writes_every_form_and_all_hold_the_same() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let process = learned(data.path());
    let to = |name: &str| folder.path().join(name);
    let (is_done, said, told) = exported(&process, "embeddings", &to("e.ndjson"), &["--json"]);
    assert!(is_done, "{told}");
    let summary: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&summary["position"], &summary["rows"]), (&json!(602), &json!(70)), "{summary}");
    assert_eq!(summary["bytes"], std::fs::metadata(to("e.ndjson")).unwrap().len());
    let text = std::fs::read_to_string(to("e.ndjson")).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: BTreeSet<&str> = rows.iter().map(|row| row["node"].as_str().unwrap()).collect();
    assert!(
        rows.len() == 70 && names.len() == 70 && names.contains("a \"b\", c") && !names.contains("user-3")
    );
    let body = json!({ "nodes": rows.iter().map(|row| &row["node"]).collect::<Vec<_>>() }).to_string();
    let (_, served) = process.post("/v1/embeddings", "application/json", &body).unwrap();
    for (row, served) in rows.iter().zip(served["embeddings"].as_array().unwrap()) {
        assert_eq!(row["embedding"], served["embedding"]);
        assert_eq!(row["learned_event"], served["last_event"]);
    }

    for (name, is_packed) in [("e.csv", false), ("e.csv.gz", true)] {
        assert!(exported(&process, "embeddings", &to(name), &[]).0);
        let bytes = std::fs::read(to(name)).unwrap();
        let mut text = String::new();
        match is_packed {
            true => GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap(),
            false => (&bytes[..]).read_to_string(&mut text).unwrap(),
        };
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!((header[0].as_str(), header[1].as_str(), header[100].as_str()), ("node", "e0", "e99"));
        assert_eq!(header[101], "learned_event");
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert_eq!(records.len(), rows.len());
        for (record, row) in records.iter().zip(&rows) {
            assert_eq!(
                (record[0].to_owned(), record[101].to_owned()),
                (row["node"].as_str().unwrap().to_owned(), row["learned_event"].to_string())
            );
            for (i, number) in row["embedding"].as_array().unwrap().iter().enumerate() {
                let found: f32 = record[i + 1].parse().unwrap();
                assert_eq!(found.to_bits(), (number.as_f64().unwrap() as f32).to_bits());
            }
        }
    }

    assert!(exported(&process, "edges", &to("g.arrow"), &[]).0);
    let reader = FileReader::try_new(std::fs::File::open(to("g.arrow")).unwrap(), None).unwrap();
    assert!(reader.schema().metadata()["evergraph"].contains("\"position\":602"));
    let mut positions = BTreeSet::new();
    for batch in reader.map(Result::unwrap) {
        let (time, position) =
            (batch["ts"].as_primitive::<Int64Type>(), batch["position"].as_primitive::<UInt64Type>());
        let features = batch["features"].as_fixed_size_list();
        for row in 0..batch.num_rows() {
            assert!(positions.insert(position.value(row)));
            assert_eq!(time.value(row) as u64, position.value(row));
            let values = features.value(row);
            let values = values.as_primitive::<Float32Type>().values().to_vec();
            let expected =
                if position.value(row) == 600 { [1.0, 2.0] } else { [time.value(row) as f32, 0.1] };
            assert_eq!(values, expected);
        }
    }
    let expected: BTreeSet<u64> = (0..601).filter(|t| *t == 600 || t % 40 != 3).collect();
    assert_eq!(positions, expected);
    assert!(exported(&process, "edges", &to("g.csv"), &[]).0);
    let text = std::fs::read_to_string(to("g.csv")).unwrap();
    assert_eq!(text.lines().next(), Some("src,dst,ts,position,f0,f1"));
    assert!(text.lines().any(|line| line == "\"a \"\"b\"\", c\",5,600,600,1.0,2.0"), "{text}");
}

#[test]
fn types_of_edges_are_listed_and_exported_and_the_file_is_the_same_stream() {
    let folder = tempfile::tempdir().unwrap();
    let start = |name: &str| {
        let start = Start::in_dir(&folder.path().join(name)).set("learner.train=false");
        start.set("model.edge_types=2").set("stream.edge_feature_dimension=2").ready()
    };
    let process = start("one");
    // The third type is one of which the model has no row; every fourth event has none, every seventh no features.
    let lines = (0..40).map(|t| {
        let mut event = json!({ "src": "u", "dst": t % 5, "ts": t });
        if t % 4 > 0 {
            event["type"] = json!(["view", "buy", "return"][t % 4 - 1]);
        }
        if t % 7 > 0 {
            event["features"] = json!([t, 0.5]);
        }
        event.to_string()
    });
    assert!(process.push_or_dies(&lines.collect::<Vec<_>>().join("\n"), 40));
    let listed = |query: &str| {
        let (status, page) = process.get(&format!("/v1/nodes/u/neighbors?{query}")).unwrap();
        assert_eq!(status, 200, "{page}");
        page
    };
    let page = listed("limit=40&features=true");
    for edge in page["neighbors"].as_array().unwrap() {
        let t = edge["time"].as_u64().unwrap();
        let features = if t % 7 > 0 { json!([t as f32, 0.5]) } else { json!([0.0, 0.0]) };
        let kind = [Value::Null, json!("view"), json!("buy"), json!("return")][t as usize % 4].clone();
        assert_eq!(
            (&edge["features"], edge.get("type").unwrap_or(&Value::Null)),
            (&features, &kind),
            "{edge}"
        );
    }
    let times = |page: &Value| -> Vec<u64> {
        page["neighbors"].as_array().unwrap().iter().map(|edge| edge["time"].as_u64().unwrap()).collect()
    };
    let first = listed("limit=4&type=return");
    assert_eq!((times(&first), &first["neighbors"][0]["features"]), (vec![39, 35, 31, 27], &Value::Null));
    let cursor = first["next"].as_str().unwrap();
    assert_eq!(times(&listed(&format!("limit=9&type=return&cursor={cursor}"))), [23, 19, 15, 11, 7, 3]);
    let none = listed("type=sell");
    assert_eq!((times(&none), &none["next"]), (vec![], &Value::Null));

    let to = folder.path().join("edges.csv");
    assert!(exported(&process, "edges", &to, &[]).0);
    let text = std::fs::read_to_string(&to).unwrap();
    assert_eq!(text.lines().next(), Some("src,dst,ts,position,type,f0,f1"));
    assert!(text.lines().any(|line| line == "u,4,39,39,return,39.0,0.5"), "{text}");
    let other = start("other");
    let (url, from) = (other.url(""), to.to_str().unwrap());
    let (is_done, _, said) = evergraph(&["ingest", "--events", from, "--to", "http", "--url", &url]);
    assert!(is_done, "{said}");
    let again = other.get("/v1/nodes/u/neighbors?limit=40&features=true").unwrap().1;
    assert_eq!((again["neighbors"].as_array().unwrap().len(), times(&again)), (40, times(&page)));
    let typed = |page: &Value| -> Vec<Value> {
        let kept = |edge: &Value| json!([edge["time"], edge["type"], edge["features"]]);
        page["neighbors"].as_array().unwrap().iter().map(kept).collect()
    };
    assert_eq!(typed(&again), typed(&page));

    let plain = Start::in_dir(&folder.path().join("plain")).ready();
    assert!(plain.push_or_dies(&json!({ "src": "u", "dst": 1, "ts": 1, "type": "buy" }).to_string(), 1));
    let (status, refused) = plain.get("/v1/nodes/u/neighbors?type=buy").unwrap();
    assert!(status == 422 && refused["error"].as_str().unwrap().contains("model.edge_types"), "{refused}");
}

#[test]
fn the_command_replaces_no_file_unasked_and_says_what_is_wrong() {
    let (data, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let process = learned(data.path());
    let to = |name: &str| folder.path().join(name);
    std::fs::write(to("e.csv"), "mine").unwrap();
    let (is_done, _, said) = exported(&process, "embeddings", &to("e.csv"), &[]);
    assert!(!is_done && said.contains("--force"), "{said}");
    assert_eq!(std::fs::read_to_string(to("e.csv")).unwrap(), "mine");
    let (is_done, _, said) = exported(&process, "embeddings", &to("e.csv"), &["--force"]);
    assert!(is_done && said.contains("70 embeddings as of log position 602"), "{said}");
    assert!(std::fs::read_to_string(to("e.csv")).unwrap().starts_with("node,e0"));
    let (is_done, _, said) = exported(&process, "edges", &to("edges.parquet"), &[]);
    assert!(!is_done && said.contains(".csv.gz or .ndjson"), "{said}");
    let (is_done, _, said) = exported(&process, "edges", folder.path(), &["--force"]);
    assert!(!is_done && said.contains("ends in"), "{said}");
    let (is_done, _, said) = exported(&process, "edges", &to("nowhere/edges.csv"), &[]);
    assert!(!is_done && said.contains("nowhere"), "{said}");
    let url = process.url("");
    assert!(process.terminate().success());
    let gone = to("gone.csv");
    let (is_done, _, said) = evergraph(&["export", "edges", "--to", gone.to_str().unwrap(), "--url", &url]);
    assert!(!is_done && said.contains("no daemon responds"), "{said}");
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["e.csv"]);
}
