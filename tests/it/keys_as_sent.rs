//! Node keys in responses: as the request wrote them, and where the daemon names a node, as a number only if every
//! client reads that number exactly.

use serde_json::{Value, json};

use crate::live::{Live, add_edge};

/// The first integer that a double does not hold.
const LARGE: i64 = 9_007_199_254_740_993;

#[test]
fn a_key_comes_back_as_it_was_sent() {
    let live = Live::start();
    add_edge(&live.state.engine, &LARGE.to_string(), "alice", 40);
    let sent = json!(["7", 7, LARGE.to_string(), LARGE, "07", "nobody", -5, "-5", "9223372036854775808"]);
    let response = live.post("/v1/embeddings", &json!({ "nodes": sent })).json();
    let nodes: Vec<Value> =
        response["embeddings"].as_array().unwrap().iter().map(|entry| entry["node"].clone()).collect();
    assert_eq!(json!(nodes), sent);

    let [first, second] = [0, 1].map(|i| &response["embeddings"][i]["embedding"]);
    assert!(first.is_array() && first == second, "7 and \"7\" are one node");
    let [text, number] = [2, 3].map(|i| &response["embeddings"][i]["embedding"]);
    assert!(text.is_array() && text == number, "the same beyond the integers of a double");

    let pairs = json!([{ "src": "7", "dst": LARGE.to_string() }, { "src": LARGE, "dst": 7 }, { "src": "5", "dst": 5 }]);
    let response = live.post("/v1/links/score", &json!({ "pairs": pairs })).json();
    for (scored, sent) in response["scores"].as_array().unwrap().iter().zip(pairs.as_array().unwrap()) {
        assert_eq!((&scored["src"], &scored["dst"]), (&sent["src"], &sent["dst"]), "{scored}");
    }
    assert_eq!(response["scores"][2]["unknown"], json!(["5", 5]), "each as it was sent");
}

#[test]
fn a_key_that_the_daemon_names_is_exact_in_every_client() {
    let live = Live::start();
    let keys = [
        (9_007_199_254_740_991, json!(9_007_199_254_740_991_i64)),
        (9_007_199_254_740_992, json!("9007199254740992")),
        (-9_007_199_254_740_991, json!(-9_007_199_254_740_991_i64)),
        (i64::MIN, json!("-9223372036854775808")),
        (i64::MAX, json!("9223372036854775807")),
    ];
    for (key, written) in keys {
        add_edge(&live.state.engine, "alice", &key.to_string(), 40);
        let neighbors = live.get("/v1/nodes/alice?neighbors=1").json()["neighbors"].clone();
        assert_eq!(neighbors[0]["node"], written);
        assert_eq!(live.get(&format!("/v1/nodes/{key}")).json()["node"], written, "a path has no types");
        let again = live.post("/v1/embeddings", &json!({ "nodes": [written] })).json();
        assert!(again["embeddings"][0]["embedding"].is_array(), "what was returned can be sent: {again}");
    }
    let unknown = live.get("/v1/nodes/9007199254740999").json();
    assert_eq!(unknown["details"]["node"], "9007199254740999");
}
