//! The live index of a real daemon: what it finds is what scoring every candidate finds, it follows the stream, forgets
//! what was deleted, and says how far it is.

mod types;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evergraph::cli::events::read_stream;
use evergraph::event::EventTime;
use evergraph::model::Weights;
use evergraph::serving::{IndexLoop, IndexOptions, IndexPrecision};
use serde_json::{Value, json};

use crate::live::{add_edge, small_engine};
use crate::process::{PATIENCE, Process, Start};
use crate::protocol_edgebank::data_folder;

/// A daemon that serves what it trains, with a live index.
fn start(data: &std::path::Path) -> Start {
    Start::in_dir(data)
        .set("index.bytes_max=1073741824")
        .set("index.cpu_share=1")
        .set("index.coalesce_ms=50")
        .set("learner.gate.enabled=false")
}

fn ask(process: &Process, path: &str, body: &Value) -> Value {
    let (status, response) = process.post(path, "application/json", &body.to_string()).unwrap();
    assert_eq!(status, 200, "{path} {body}: {response}");
    response
}

fn push(process: &Process, events: &[Value]) -> u64 {
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    let (status, response) = process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
    assert_eq!(status, 200, "{response}");
    response["end_position"].as_u64().unwrap()
}

/// Asks until the index misses nothing.
fn settled(process: &Process, path: &str, body: &Value) -> Value {
    settled_where(process, path, body, |_| true)
}

/// The same until the index and the scores are of one version.
fn settled_as_served(process: &Process, path: &str, body: &Value) -> Value {
    let is_served =
        |response: &Value| response["index"]["model_version"] == response["freshness"]["model_version"];
    settled_where(process, path, body, is_served)
}

fn settled_where(process: &Process, path: &str, body: &Value, is_wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + 3 * PATIENCE;
    loop {
        let (status, response) = process.post(path, "application/json", &body.to_string()).unwrap();
        if status == 200 && response["index"]["exact"] == true && is_wanted(&response) {
            return response;
        }
        assert!(status == 200 || response["error_type"] == "index_not_ready", "{response}");
        assert!(Instant::now() < end, "the index does not settle: {}", response["index"]);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn named(found: &Value, name: &str) -> Vec<(i64, f64)> {
    let one = |found: &Value| (found[name].as_i64().unwrap(), found["score"].as_f64().unwrap());
    found.as_array().unwrap().iter().map(one).collect()
}

fn bits(found: &[(i64, f64)]) -> Vec<u32> {
    found.iter().map(|(_, score)| (*score as f32).to_bits()).collect()
}

/// The best of `destinations` for `src`, by scoring each of them.
fn by_scores(process: &Process, src: i64, destinations: &BTreeSet<i64>) -> Vec<(i64, f64)> {
    let pairs: Vec<Value> = destinations.iter().map(|dst| json!({ "src": src, "dst": dst })).collect();
    let scores = ask(process, "/v1/links/score", &json!({ "pairs": pairs }));
    let mut scored = named(&scores["scores"], "dst");
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    scored
}

/// The top of a settled index equals, bit for bit, the best of all destinations scored one by one.
fn top_equals_scoring_all((kind, walks): (&str, bool), events: usize) {
    let Some(folder) = data_folder() else { return };
    let stream = read_stream(&folder.join("uci.csv.gz"), &mut |_| ()).unwrap();
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path()).set(&format!("model.kind={kind}")).set(&format!("model.walks={walks}"));
    let process = start.set("learner.replay.ratio=0").ready();
    let key = |node: evergraph::event::NodeId| i64::from(node.0);
    let (mut destinations, mut met) = (BTreeSet::new(), HashMap::<i64, HashSet<i64>>::new());
    let mut lines = Vec::new();
    for i in 0..events {
        let (src, dst) = (key(stream.src()[i]), key(stream.dst()[i]));
        destinations.insert(dst);
        met.entry(src).or_default().insert(dst);
        lines.push(json!({ "src": src, "dst": dst, "ts": stream.times()[i].0 }));
    }
    for lines in lines.chunks(2_000) {
        push(&process, lines);
    }
    process.wait_until("learned", |status| status["learner"]["applied_position"] == events);
    let mut sources: Vec<i64> = met.keys().copied().collect();
    sources.sort_unstable();
    let sources: Vec<i64> = sources.iter().copied().step_by(sources.len() / 25).collect();
    let all = settled_as_served(&process, "/v1/links/top", &json!({ "src": sources, "limit": 10 }));
    assert_eq!(all["index"]["pending_nodes"], 0, "{}", all["index"]);
    for (src, found) in sources.iter().zip(all["results"].as_array().unwrap()) {
        let mut expected = by_scores(&process, *src, &destinations);
        expected.retain(|(dst, _)| dst != src);
        let top = named(&found["top"], "dst");
        assert_eq!((found["ranked_by"].as_str(), top.len()), (Some("model"), 10), "{found}");
        assert_eq!(bits(&top), bits(&expected[..10]), "{kind}: {src} by the index and by scoring all");
        let scored: HashMap<i64, f64> = expected.iter().copied().collect();
        assert!(top.iter().all(|(dst, score)| scored[dst] == *score), "{kind}: {src}: {top:?}");
    }
    let src = sources[7];
    let mut unseen = by_scores(&process, src, &destinations);
    unseen.retain(|(dst, _)| *dst != src && !met[&src].contains(dst));
    let body = json!({ "src": [src], "limit": 10, "exclude_met": true });
    let found = ask(&process, "/v1/links/top", &body);
    assert_eq!(bits(&named(&found["results"][0]["top"], "dst")), bits(&unseen[..10]), "exclude_met");
    let mut prefixed = by_scores(&process, src, &destinations);
    prefixed.retain(|(dst, _)| *dst != src && dst.to_string().starts_with("12"));
    let body = json!({ "src": [src], "limit": 5, "candidates": { "key_prefix": "12" } });
    let found = ask(&process, "/v1/links/top", &body);
    assert_eq!(bits(&named(&found["results"][0]["top"], "dst")), bits(&prefixed[..5]), "key_prefix");
    let body = json!({ "src": [src], "limit": 10, "exact": true });
    let slow = ask(&process, "/v1/links/top", &body);
    let mut expected = by_scores(&process, src, &destinations);
    expected.retain(|(dst, _)| *dst != src);
    assert_eq!(bits(&named(&slow["results"][0]["top"], "dst")), bits(&expected[..10]), "exact");
    assert_eq!(
        (&slow["index"]["exact"], slow["index"]["scanned"].as_u64()),
        (&json!(true), Some(expected.len() as u64))
    );
}

#[test]
fn the_top_equals_scoring_every_destination_where_the_head_splits() {
    top_equals_scoring_all(("tgn", false), 20_000);
}

#[test]
fn the_top_equals_scoring_every_destination_where_walks_have_a_say() {
    top_equals_scoring_all(("tgn", true), 10_000);
}

#[test]
fn the_top_equals_scoring_every_destination_with_a_head_of_products() {
    top_equals_scoring_all(("graphsage", false), 10_000);
}

#[test]
fn the_top_equals_scoring_every_destination_by_walks() {
    top_equals_scoring_all(("walk", false), 10_000);
}

#[test]
fn rows_of_eight_bits_find_the_top_in_less_memory_and_do_not_call_it_exact() {
    let Some(folder) = data_folder() else { return };
    let stream = read_stream(&folder.join("uci.csv.gz"), &mut |_| ()).unwrap();
    let event =
        |i: usize| json!({ "src": stream.src()[i].0, "dst": stream.dst()[i].0, "ts": stream.times()[i].0 });
    let events: Vec<Value> = (0..10_000).map(event).collect();
    let sources: Vec<u32> = (0..1_000).step_by(40).map(|i| stream.src()[i].0).collect();
    let mut bytes = Vec::new();
    for precision in ["f32", "int8"] {
        let data = tempfile::tempdir().unwrap();
        let start = start(data.path()).set(&format!("index.precision={precision}"));
        let process = start.set("learner.replay.ratio=0").ready();
        events.chunks(2_000).for_each(|events| _ = push(&process, events));
        let top =
            |body: &Value| process.post("/v1/links/top", "application/json", &body.to_string()).unwrap().1;
        process.wait_until("the index has settled", |status| {
            let found = top(&json!({ "src": sources, "limit": 10 }));
            let index = &found["index"];
            status["learner"]["applied_position"] == 10_000
                && index["model_version"] == found["freshness"]["model_version"]
                && (&index["pending_nodes"], &index["oldest_row_seconds"]) == (&json!(0), &json!(0.0))
        });
        let metrics = process.metrics();
        let held = metrics.lines().find_map(|line| line.strip_prefix("evergraph_index_bytes "));
        bytes.push(held.unwrap().parse::<u64>().unwrap());
        if precision == "f32" {
            continue;
        }
        let found = top(&json!({ "src": sources, "limit": 10 }));
        assert_eq!(found["index"]["exact"], false, "{}", found["index"]);
        let mut same = 0;
        for (src, found) in sources.iter().zip(found["results"].as_array().unwrap()) {
            let exact = top(&json!({ "src": [src], "limit": 10, "exact": true }));
            let exact: HashMap<i64, f64> = named(&exact["results"][0]["top"], "dst").into_iter().collect();
            for (dst, score) in named(&found["top"], "dst") {
                if let Some(expected) = exact.get(&dst) {
                    same += 1;
                    assert!(
                        (expected - score).abs() < 1e-5,
                        "a score is not one of a row: {score} {expected}"
                    );
                }
            }
        }
        let recall = f64::from(same) / (10 * sources.len()) as f64;
        println!("recall of rows of eight bits: {recall:.3}");
        assert!(recall >= 0.98, "{recall}");
        let like = |limit: u32| {
            let body = json!({ "nodes": [sources[0]], "limit": limit });
            ask(&process, "/v1/nodes/similar", &body)["index"]["exact"].clone()
        };
        assert_eq!(
            [like(10), like(2_000)],
            [json!(false), json!(true)],
            "all of two thousand are computed anew"
        );
    }
    assert!(3 * bytes[1] < bytes[0], "{bytes:?}");
}

/// Users 0 to 9 and items a, b, …: user `u` met items `u` to `u + 3`, several times.
fn events(from: i64, count: i64) -> Vec<Value> {
    let item = |t: i64| (t % 10 + t / 10 % 4) % 10;
    let event =
        |t: i64| json!({ "src": format!("user-{}", t % 10), "dst": format!("item-{}", item(t)), "ts": t });
    (from..from + count).map(event).collect()
}

fn names(found: &Value, name: &str) -> Vec<String> {
    found.as_array().unwrap().iter().map(|found| found[name].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_deleted_node_is_found_no_more_and_never_comes_back() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let end = push(&process, &events(0, 400));
    let top = json!({ "src": ["user-1"], "limit": 20, "min_position": end, "wait_ms": 10_000 });
    let found = settled(&process, "/v1/links/top", &top);
    let before = names(&found["results"][0]["top"], "dst");
    assert!(before.len() == 10 && before.contains(&"item-3".to_owned()), "{before:?}");
    push(&process, &[json!({ "op": "delete", "node": "item-3" })]);
    // From the acknowledgment on, and while the learner and the rows come to the deletion, and after.
    let top = json!({ "src": ["user-1", "nobody"], "limit": 20, "candidates": { "role": "any" } });
    let similar = json!({ "nodes": ["item-4"], "limit": 20 });
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let found = ask(&process, "/v1/links/top", &top);
        for result in found["results"].as_array().unwrap() {
            let names = names(&result["top"], "dst");
            assert!(!names.contains(&"item-3".to_owned()) && names.len() >= 18, "{names:?}");
        }
        let found = ask(&process, "/v1/nodes/similar", &similar);
        let names = names(&found["results"][0]["similar"], "node");
        assert!(!names.contains(&"item-3".to_owned()) && names.len() == 18, "{names:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    // A later event brings a new node of that name, which nothing is known about.
    let end = push(&process, &[json!({ "src": "user-5", "dst": "item-3", "ts": 1_000 })]);
    let top = json!({ "src": ["user-1"], "limit": 20, "min_position": end, "wait_ms": 10_000 });
    let again = ask(&process, "/v1/links/top", &top);
    assert!(names(&again["results"][0]["top"], "dst").contains(&"item-3".to_owned()), "{again}");
    assert_eq!(process.get("/v1/nodes/item-3").unwrap().1["degree"], 1);
}

#[test]
fn a_pushed_event_is_visible_to_who_waits_for_it() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let end = push(&process, &events(0, 400));
    settled(&process, "/v1/links/top", &json!({ "src": ["user-1"], "min_position": end, "wait_ms": 10_000 }));
    let mut waited = Vec::new();
    for round in 0..20 {
        let new = format!("new-{round}");
        let end = push(&process, &[json!({ "src": "user-1", "dst": new, "ts": 500 + round })]);
        let begun = Instant::now();
        let only = json!({ "key_prefix": new });
        let body = json!({ "src": ["user-1"], "candidates": only, "min_position": end, "wait_ms": 10_000 });
        let found = ask(&process, "/v1/links/top", &body);
        assert!(names(&found["results"][0]["top"], "dst").contains(&new), "{found}");
        assert!(found["index"]["complete_to_position"].as_u64().unwrap() >= end, "{found}");
        let body = json!({ "nodes": ["user-1"], "candidates": only, "min_position": end, "wait_ms": 10_000 });
        let found = ask(&process, "/v1/nodes/similar", &body);
        assert!(names(&found["results"][0]["similar"], "node").contains(&new), "{found}");
        waited.push(begun.elapsed());
    }
    waited.sort_unstable();
    eprintln!("visible after {:?} at the median, {:?} at most", waited[10], waited[19]);
    let far = json!({ "src": ["user-1"], "min_position": 1_000_000, "wait_ms": 50 });
    let (status, late) = process.post("/v1/links/top", "application/json", &far.to_string()).unwrap();
    assert_eq!((status, &late["error_type"]), (412, &json!("not_yet_visible")), "{late}");
}

#[test]
fn an_unknown_source_gets_what_is_popular_marked_cold_and_scored_by_the_prior() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let mut all = events(0, 400);
    all.extend((0..100).map(|t| json!({ "src": format!("user-{}", t % 10), "dst": "hit", "ts": 400 + t })));
    push(&process, &all);
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 500);
    let body = json!({ "src": ["nobody", "user-1"], "limit": 3 });
    let found = settled(&process, "/v1/links/top", &body);
    let [stranger, known] = [&found["results"][0], &found["results"][1]];
    assert_eq!((&stranger["ranked_by"], &stranger["cold"]), (&json!("popularity"), &json!(true)), "{found}");
    assert_eq!((&known["ranked_by"], &known["cold"]), (&json!("model"), &json!(false)), "{found}");
    let names = names(&stranger["top"], "dst");
    assert!(names.len() == 3 && names[0] == "hit", "{names:?}");
    let pairs: Vec<Value> = names.iter().map(|dst| json!({ "src": "nobody", "dst": dst })).collect();
    let prior = ask(&process, "/v1/links/score", &json!({ "pairs": pairs, "unknown": "prior" }));
    for (top, score) in stranger["top"].as_array().unwrap().iter().zip(prior["scores"].as_array().unwrap()) {
        assert_eq!((&top["score"], &top["cold"]), (&score["score"], &json!(true)), "{prior}");
    }
    let body = json!({ "nodes": ["nobody", "user-1"] });
    let found = ask(&process, "/v1/nodes/similar", &body);
    assert_eq!(found["results"][0], json!({ "node": "nobody", "error": "unknown_node" }));
}

#[test]
fn similar_nodes_are_those_of_the_closest_vectors_and_candidates_narrow_them() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    push(&process, &events(0, 400));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 400);
    let nodes: Vec<String> = (0..10).flat_map(|i| [format!("user-{i}"), format!("item-{i}")]).collect();
    settled(&process, "/v1/nodes/similar", &json!({ "nodes": ["user-1"] }));
    let embedded = ask(&process, "/v1/embeddings", &json!({ "nodes": nodes }));
    let vectors: HashMap<&str, Vec<f64>> = embedded["embeddings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| {
            let vector = found["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            (found["node"].as_str().unwrap(), vector)
        })
        .collect();
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    type Alike<'a> = &'a dyn Fn(&[f64], &[f64]) -> f64;
    for (metric, alike) in [("cosine", &cosine as Alike<'_>), ("dot", &dot)] {
        let own = &vectors["user-1"];
        let mut expected: Vec<(&str, f64)> = vectors
            .iter()
            .filter(|(node, _)| **node != "user-1")
            .map(|(node, v)| (*node, alike(own, v)))
            .collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        let body = json!({ "nodes": ["user-1"], "limit": 4, "metric": metric });
        let found = ask(&process, "/v1/nodes/similar", &body);
        for (found, (_, score)) in found["results"][0]["similar"].as_array().unwrap().iter().zip(&expected) {
            let wide = 1.0 + score.abs();
            assert!(
                (found["score"].as_f64().unwrap() - score).abs() < 1e-5 * wide,
                "{metric}: {found}, {score}"
            );
        }
        let body = json!({ "vectors": [own], "limit": 1, "metric": metric, "candidates": { "key_prefix": "user-1" } });
        let found = ask(&process, "/v1/nodes/similar", &body);
        assert_eq!(names(&found["results"][0]["similar"], "node"), ["user-1"], "{found}");
        assert!(found["results"][0].get("node").is_none());
    }
    let role = json!({ "nodes": ["user-1"], "limit": 30, "candidates": { "role": "destination" } });
    let found = ask(&process, "/v1/nodes/similar", &role);
    let items = names(&found["results"][0]["similar"], "node");
    assert!(items.len() == 10 && items.iter().all(|name| name.starts_with("item-")), "{items:?}");
    let listed = json!({ "keys": ["item-2", "nobody", "user-1"] });
    let found = ask(&process, "/v1/nodes/similar", &json!({ "nodes": ["user-1"], "candidates": listed }));
    assert_eq!(
        (&found["unknown_candidates"], found["results"][0]["similar"].as_array().unwrap().len()),
        (&json!(["nobody"]), 2)
    );
    let found = ask(&process, "/v1/links/top", &json!({ "src": ["user-1"], "candidates": listed }));
    assert_eq!(found["results"][0]["top"].as_array().unwrap().len(), 2, "{found}");
}

#[test]
fn rows_of_new_weights_take_the_place_of_the_old_ones() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).set("learner.batch_events=50").ready();
    push(&process, &events(0, 400));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 400);
    let body = json!({ "src": ["user-1"] });
    let first = settled(&process, "/v1/links/top", &body);
    push(&process, &events(400, 400));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 800);
    let second = settled(&process, "/v1/links/top", &body);
    let version = |found: &Value| found["index"]["model_version"].as_u64().unwrap();
    assert!(version(&second) > version(&first), "{} and {}", first["index"], second["index"]);
    assert_eq!(version(&second), second["freshness"]["model_version"].as_u64().unwrap());
}

#[test]
fn the_baseline_ranks_while_no_version_was_promoted() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).set("learner.gate.enabled=true").ready();
    push(&process, &events(0, 400));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 400);
    let found = settled(&process, "/v1/links/top", &json!({ "src": ["user-1"], "limit": 6 }));
    assert_eq!(
        (&found["source"], &found["results"][0]["ranked_by"]),
        (&json!("baseline"), &json!("baseline"))
    );
    let top = &found["results"][0]["top"];
    let met: BTreeSet<String> = (1..5).map(|i| format!("item-{i}")).collect();
    assert_eq!(names(top, "dst")[..4].iter().cloned().collect::<BTreeSet<_>>(), met, "{top}");
    let pairs: Vec<Value> =
        names(top, "dst").iter().map(|dst| json!({ "src": "user-1", "dst": dst })).collect();
    let scores = ask(&process, "/v1/links/score", &json!({ "pairs": pairs }));
    for (top, score) in top.as_array().unwrap().iter().zip(scores["scores"].as_array().unwrap()) {
        assert_eq!(top["score"], score["score"]);
    }
}

#[test]
fn what_is_impossible_is_refused_and_says_what_to_do() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).set("api.batch_items_max=100").ready();
    push(&process, &events(0, 100));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 100);
    settled(&process, "/v1/links/top", &json!({ "src": ["user-1"] }));
    let many: Vec<u32> = (0..101).collect();
    let (top, similar) = ("/v1/links/top", "/v1/nodes/similar");
    let long = format!("{{\"vectors\": [[1e39{}]]}}", ", 0".repeat(99));
    let short = format!("{{\"vectors\": [[{}0]]}}", "0, ".repeat(99));
    let cases = [
        (top, json!({ "src": [] }).to_string(), 422, "invalid", "src is empty"),
        (top, json!({ "src": "user-1" }).to_string(), 422, "invalid", "a list"),
        (top, json!({ "src": many }).to_string(), 413, "batch_too_large", "101 src"),
        (top, json!({ "src": [1], "limit": 0 }).to_string(), 422, "invalid", "limit is 0"),
        (top, json!({ "src": [1], "limit": 101 }).to_string(), 413, "batch_too_large", "101 results"),
        (top, json!({ "src": [1, 2], "limit": u64::MAX }).to_string(), 413, "batch_too_large", "results"),
        (top, json!({ "src": [1], "limit": -1 }).to_string(), 422, "invalid", "-1"),
        (
            top,
            json!({ "src": [1], "candidates": { "keys": [] } }).to_string(),
            422,
            "invalid",
            "candidates.keys",
        ),
        (
            top,
            json!({ "src": [1], "candidates": { "keys": many } }).to_string(),
            413,
            "batch_too_large",
            "101",
        ),
        (
            top,
            json!({ "src": [1, 2], "candidates": { "keys": many[..60] } }).to_string(),
            413,
            "batch_too_large",
            "120 pairs",
        ),
        (
            top,
            json!({ "src": [1], "candidates": { "keys": [1], "key_prefix": "a" } }).to_string(),
            422,
            "invalid",
            "one of them",
        ),
        (
            top,
            json!({ "src": [1], "candidates": { "key_prefix": "" } }).to_string(),
            422,
            "invalid",
            "0 bytes",
        ),
        (
            top,
            json!({ "src": [1], "candidates": { "key_prefix": "x".repeat(1025) } }).to_string(),
            422,
            "invalid",
            "1025 bytes",
        ),
        (
            top,
            json!({ "src": [1], "candidates": { "keys": [1], "type": "buys" } }).to_string(),
            422,
            "invalid",
            "keys and type: give one of them",
        ),
        (
            similar,
            json!({ "nodes": [1], "candidates": { "type": "" } }).to_string(),
            422,
            "invalid",
            "type has 0",
        ),
        (top, json!({ "src": [1], "candidates": { "type": 1 } }).to_string(), 422, "invalid", "1"),
        (top, json!({ "src": [1], "candidates": { "role": "king" } }).to_string(), 422, "invalid", "king"),
        (top, json!({ "src": [1], "what": 1 }).to_string(), 422, "invalid", "what"),
        (top, json!({ "src": [1], "wait_ms": 1 }).to_string(), 422, "invalid", "min_position"),
        (similar, json!({}).to_string(), 422, "invalid", "nodes or vectors"),
        (similar, json!({ "nodes": [1], "vectors": [[1]] }).to_string(), 422, "invalid", "nodes or vectors"),
        (similar, json!({ "vectors": [[1.0, 2.0]] }).to_string(), 422, "invalid", "vectors[0] has 2 values"),
        (similar, json!({ "vectors": [many] }).to_string(), 422, "invalid", "101 values"),
        (similar, json!({ "vectors": [vec!["x"; 100]] }).to_string(), 422, "invalid", "x"),
        (similar, long, 422, "invalid", "vectors[0][0] is beyond"),
        (similar, short, 422, "invalid", "no cosine"),
        (similar, "{\"vectors\": [[NaN]]}".to_owned(), 400, "malformed", ""),
        (similar, json!({ "nodes": [1], "metric": "taste" }).to_string(), 422, "invalid", "taste"),
    ];
    for (path, body, status, kind, told) in cases {
        let (found, error) = process.post(path, "application/json", &body).unwrap();
        assert_eq!((found, error["error_type"].as_str()), (status, Some(kind)), "{path} {body}: {error}");
        assert!(error["error"].as_str().unwrap().contains(told), "{path} {body}: {error}");
    }
    // A node may have the name of the route.
    push(&process, &[json!({ "src": "similar", "dst": "item-1", "ts": 500 })]);
    assert_eq!(process.get("/v1/nodes/similar").unwrap().1["degree"], 1);
}

#[test]
fn without_room_or_without_an_index_requests_are_refused_unless_they_list_their_candidates() {
    let data = tempfile::tempdir().unwrap();
    let listed = json!({ "src": ["user-1"], "candidates": { "keys": ["item-1", "item-2"] } });
    let top = json!({ "src": ["user-1"] }).to_string();
    let process = start(data.path()).set("index.bytes_max=0").ready();
    push(&process, &events(0, 100));
    process.wait_until("learned", |status| status["learner"]["applied_position"] == 100);
    let (status, error) = process.post("/v1/links/top", "application/json", &top).unwrap();
    assert_eq!((status, &error["error_type"]), (404, &json!("index_disabled")), "{error}");
    assert!(error["error"].as_str().unwrap().contains("index.bytes_max"), "{error}");
    let found = ask(&process, "/v1/links/top", &listed);
    assert_eq!(
        (found["results"][0]["top"].as_array().unwrap().len(), &found["index"]["exact"]),
        (2, &json!(true))
    );
    // All that were a destination, or all nodes, are compared without rows, too.
    for (role, least) in [("destination", 5), ("any", 10)] {
        let exact = json!({ "src": ["user-1"], "limit": 50, "exact": true, "candidates": { "role": role } });
        let found = ask(&process, "/v1/links/top", &exact);
        assert!(found["results"][0]["top"].as_array().unwrap().len() >= least, "{role}: {found}");
    }
    process.terminate();
    let process = start(data.path()).set("index.bytes_max=1000000").ready();
    let end = Instant::now() + PATIENCE;
    loop {
        let (status, error) = process.post("/v1/links/top", "application/json", &top).unwrap();
        assert_eq!((status, &error["error_type"]), (503, &json!("index_not_ready")), "{error}");
        if error["error"].as_str().unwrap().contains("index.bytes_max is 1000000") {
            break;
        }
        assert!(Instant::now() < end, "{error}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let waits = json!({ "src": ["user-1"], "min_position": 100, "wait_ms": 10_000 }).to_string();
    let (status, error) = process.post("/v1/links/top", "application/json", &waits).unwrap();
    assert_eq!((status, &error["error_type"]), (503, &json!("index_not_ready")), "{error}");
    assert_eq!(ask(&process, "/v1/links/top", &listed)["results"][0]["top"].as_array().unwrap().len(), 2);
    process.terminate();
    // A restart fills the index from what was learned before.
    let process = start(data.path()).ready();
    let found = settled(&process, "/v1/links/top", &json!({ "src": ["user-1"], "limit": 20 }));
    assert_eq!(found["results"][0]["top"].as_array().unwrap().len(), 10, "{found}");
}

/// While other weights are filled in, nodes go on changing: many more in each turn than a slice has.
#[test]
fn a_fill_ends_soon_however_many_nodes_change() {
    const NODES: i64 = 6_000;
    const CHANGED: u32 = 2_000;
    let precision = IndexPrecision::F32;
    let options = IndexOptions { bytes_max: 1 << 30, precision, cpu_share: 1.0, coalesce: Duration::ZERO };
    let engine = Arc::new(small_engine().with_index(options));
    (0..NODES)
        .for_each(|i| _ = add_edge(&engine, &format!("n{i}"), &format!("n{}", (i + 1) % NODES), 100 + i));
    let mut index = IndexLoop::new(engine.clone()).unwrap();
    let change = |from: u32| {
        for node in from..from + CHANGED {
            let node = evergraph::event::NodeId(node % NODES as u32);
            engine.states.publish(node, &[0.5, -0.5, 0.1, 1.0], EventTime(30));
        }
    };
    let version = || {
        let index = engine.index.as_ref().unwrap();
        index.report(&engine.progress, &engine.states.touched).state.model_version
    };
    change(0);
    index.turn(Instant::now() + PATIENCE, &|| true).unwrap();
    assert_eq!(version(), 1);
    let weights = engine.model().unwrap();
    engine.publish(Weights::new(*weights.model().options(), weights.parameters(), 2).unwrap()).unwrap();
    let turns = (1..=20).find(|turn| {
        change(turn * CHANGED);
        index.turn(Instant::now(), &|| true).unwrap();
        version() == 2
    });
    // A slice in each turn would take twelve.
    assert!(turns.is_some_and(|turns| turns <= 8), "{turns:?}");
}
