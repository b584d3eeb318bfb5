//! Candidates of a type: the nodes that have received an event of it, through restarts, kills and deletions.

use super::*;

type ByType = HashMap<&'static str, BTreeSet<i64>>;

/// Users 0 to 9 and items 100 to 139: user `u` meets eight items from `100 + 4 u` on. A third of the items is viewed, a
/// third viewed and bought, and the rest has events of no type until time 150, when it is bought.
fn typed(from: i64, count: i64) -> Vec<Value> {
    let event = |t: i64| {
        let item = (t % 10 * 4 + t / 10 % 8) % 40;
        let kind = match (item % 3, t) {
            (0, _) | (1, ..80) => Some("view"),
            (1, _) | (_, 150..) => Some("buy"),
            _ => None,
        };
        let mut event = json!({ "src": t % 10, "dst": 100 + item, "ts": t });
        kind.into_iter().for_each(|kind| event["type"] = json!(kind));
        event
    };
    (from..from + count).map(event).collect()
}

/// The destinations of each type.
fn received(events: &[Value]) -> ByType {
    let mut received = ByType::new();
    for event in events {
        if let Some(kind) = ["view", "buy"].into_iter().find(|kind| event["type"] == *kind) {
            received.entry(kind).or_default().insert(event["dst"].as_i64().unwrap());
        }
    }
    received
}

fn keys(found: &[(i64, f64)]) -> BTreeSet<i64> {
    found.iter().map(|(key, _)| *key).collect()
}

/// What a settled daemon finds of each type is the best of all that have received it, scored one by one.
fn finds(process: &Process, events: &[Value], received: &ByType) {
    let src = 2;
    let of_src = events.iter().filter(|event| event["src"] == src);
    let met: HashSet<i64> = of_src.map(|event| event["dst"].as_i64().unwrap()).collect();
    for (kind, nodes) in received {
        let best = by_scores(process, src, nodes);
        let body = |candidates: Value, more: Value| {
            let mut body = json!({ "src": [src], "limit": 5, "candidates": candidates });
            more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
            body
        };
        let top = |body: &Value| {
            named(&settled_as_served(process, "/v1/links/top", body)["results"][0]["top"], "dst")
        };
        let candidates = json!({ "type": kind });
        for more in [json!({}), json!({ "exact": true }), json!({ "limit": 50 })] {
            let found = top(&body(candidates.clone(), more.clone()));
            assert_eq!(bits(&found), bits(&best[..found.len()]), "{kind} {more}");
            assert!(found.len() == 5 || keys(&found) == *nodes, "{kind} {more}: {found:?}");
            assert!(keys(&found).is_subset(nodes), "{kind} {more}: {found:?}");
        }
        let any = top(&body(json!({ "type": kind, "role": "any" }), json!({})));
        assert_eq!(bits(&any), bits(&best[..5]), "a user has received nothing");
        let mut left = best;
        left.retain(|(node, _)| node.to_string().starts_with("11") && !met.contains(node));
        assert!(left.len() > 1 && left.len() < 10, "{left:?}");
        for exact in [false, true] {
            let more = json!({ "exclude_met": true, "limit": 20, "exact": exact });
            let found = top(&body(json!({ "type": kind, "key_prefix": "11" }), more));
            assert_eq!(keys(&found), keys(&left), "{kind}: exact {exact}");
            // Where there are two, products are summed in another order.
            let scores: HashMap<i64, f64> = left.iter().copied().collect();
            assert!(found.iter().all(|(node, score)| (score - scores[node]).abs() < 1e-5), "{found:?}");
        }
        let like = json!({ "nodes": [103, src], "limit": 50, "candidates": candidates });
        let found = settled(process, "/v1/nodes/similar", &like);
        for (node, found) in [103, src].iter().zip(found["results"].as_array().unwrap()) {
            let expected = nodes.iter().copied().filter(|other| other != node).collect();
            assert_eq!(keys(&named(&found["similar"], "node")), expected, "{kind} like {node}");
        }
    }
    let none = json!({ "src": [src], "candidates": { "type": "return" } });
    for exact in [false, true] {
        let found = ask(process, "/v1/links/top", &with(&none, "exact", json!(exact)));
        assert_eq!(found["results"][0]["top"], json!([]), "no event has had the type");
    }
    let none = json!({ "nodes": [src], "candidates": { "type": "return" } });
    assert_eq!(ask(process, "/v1/nodes/similar", &none)["results"][0]["similar"], json!([]));
}

fn with(body: &Value, name: &str, value: Value) -> Value {
    let mut body = body.clone();
    body[name] = value;
    body
}

fn learned(process: &Process, end: u64) {
    process.wait_until("learned", |status| status["learner"]["applied_position"] == end);
}

/// The model need not know types, or may know fewer than there are.
fn candidates_of_a_type_are_those_that_received_it(edge_types: u32) {
    let data = tempfile::tempdir().unwrap();
    let start = start(data.path()).set("learner.replay.ratio=0");
    let start = start.set(&format!("model.edge_types={edge_types}"));
    let process = start.ready();
    let mut events = typed(0, 150);
    learned(&process, push(&process, &events));
    finds(&process, &events, &received(&events));
    assert!(process.terminate().success());
    // From a checkpoint; then from that and the log behind it.
    let process = start.ready();
    finds(&process, &events, &received(&events));
    let more = typed(150, 50);
    events.extend(more.iter().cloned());
    learned(&process, push(&process, &more));
    process.kill();
    let process = start.ready();
    learned(&process, 200);
    finds(&process, &events, &received(&events));
}

#[test]
fn candidates_of_a_type_are_those_that_received_it_where_the_model_knows_no_types() {
    candidates_of_a_type_are_those_that_received_it(0);
}

#[test]
fn candidates_of_a_type_are_those_that_received_it_where_the_model_knows_fewer_types() {
    candidates_of_a_type_are_those_that_received_it(1);
}

#[test]
fn a_new_type_is_visible_to_who_waits_for_it_and_a_stream_without_types_says_so() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let end = push(&process, &events(0, 100));
    learned(&process, end);
    let top = json!({ "src": ["user-1"], "candidates": { "type": "likes" } });
    for (path, body) in [
        ("/v1/links/top", top.clone()),
        ("/v1/nodes/similar", json!({ "nodes": ["user-1"], "candidates": { "type": "likes" } })),
    ] {
        let (status, error) = process.post(path, "application/json", &body.to_string()).unwrap();
        assert_eq!((status, &error["error_type"]), (422, &json!("invalid")), "{error}");
        assert!(
            error["error"].as_str().unwrap().contains("no event of this stream has had a type"),
            "{error}"
        );
    }
    for (item, kind) in [("item-2", "likes"), ("item-7", "likes"), ("item-7", "hates")] {
        let event = json!({ "src": "user-1", "dst": item, "ts": 200, "type": kind });
        let end = push(&process, &[event]);
        let body = json!({ "src": ["user-1"], "candidates": { "type": kind }, "limit": 30 });
        let body = with(&with(&body, "min_position", json!(end)), "wait_ms", json!(10_000));
        let found = settled(&process, "/v1/links/top", &body);
        assert!(names(&found["results"][0]["top"], "dst").contains(&item.to_owned()), "{found}");
    }
    assert_eq!(
        [of_type(&process, "likes"), of_type(&process, "hates")],
        [vec!["item-2", "item-7"], vec!["item-7"]]
    );
    push(&process, &[json!({ "op": "delete", "node": "item-7" })]);
    // From the acknowledgment on, and while the learner and the rows come to the deletion, and after.
    let until = Instant::now() + Duration::from_secs(1);
    while Instant::now() < until {
        assert_eq!([of_type(&process, "likes"), of_type(&process, "hates")], [vec!["item-2"], vec![]]);
        std::thread::sleep(Duration::from_millis(10));
    }
    // A node of that name that comes later is another one, and has received what came later only.
    let end = push(&process, &[json!({ "src": "user-1", "dst": "item-7", "ts": 300, "type": "hates" })]);
    let waits = json!({ "src": ["user-1"], "min_position": end, "wait_ms": 10_000 });
    settled(&process, "/v1/links/top", &waits);
    let again = [vec!["item-2"], vec!["item-7"]];
    assert_eq!([of_type(&process, "likes"), of_type(&process, "hates")], again);
    assert!(process.terminate().success());
    let process = start(data.path()).ready();
    settled(&process, "/v1/links/top", &waits);
    assert_eq!([of_type(&process, "likes"), of_type(&process, "hates")], again);
}

fn of_type(process: &Process, kind: &str) -> Vec<String> {
    let body = json!({ "src": ["user-1"], "candidates": { "type": kind }, "limit": 30 });
    let mut names = names(&ask(process, "/v1/links/top", &body)["results"][0]["top"], "dst");
    names.sort();
    names
}
