//! The promotion gate of a daemon: a candidate that is spoilt by its settings is not served, and the catalog tells.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::process::{Process, Start};

/// Everybody meets two of many items, which is soon learned.
fn push(process: &Process, from: u64, count: u64) {
    let item = |i: u64| if i < 40 { i } else { i % 2 };
    let event =
        |i: u64| json!({"src": format!("u{}", i % 7), "dst": format!("i{}", item(i)), "ts": 1_000 + i});
    let events: Vec<Value> = (from..from + count).map(event).collect();
    let answer = process.post("/v1/events", "application/json", &Value::from(events).to_string()).unwrap();
    assert_eq!(answer.0, 200, "{}", answer.1);
}

fn list(data: &Path, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    let output = command.args(["model", "list", "--data-dir"]).arg(data).args(more).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_candidate_that_is_spoilt_is_held_back_and_the_catalog_tells() {
    let data = tempfile::tempdir().unwrap();
    let start = || {
        Start::in_dir(data.path())
            .set("learner.batch_events=20")
            .set("learner.gate.every_batches=1")
            .set("learner.gate.window_batches=4")
            .set("learner.gate.edgebank_tolerance=1")
    };
    let process = start().ready();
    push(&process, 0, 1_600);
    let learned = process.wait_until("learned", |status| status["learner"]["applied_position"] == 1_600);
    assert!(learned["learner"]["gate"]["promoted"].as_u64() > Some(1), "{learned}");
    assert!(learned["learner"]["average_precision"].as_f64() > Some(0.8), "{learned}");
    assert!(process.terminate().success());

    let process = start().set("learner.learning_rate=1000").ready();
    let served = process.status()["learner"]["model_version"].clone();
    assert_eq!(served, learned["learner"]["model_version"], "after a restart too");
    push(&process, 1_600, 400);
    let held = process.wait_until("held back", |status| status["learner"]["gate"]["held"].as_u64() > Some(1));
    assert_eq!(held["learner"]["model_version"], served);
    let last = &held["learner"]["gate"]["last"];
    assert_eq!((&last["verdict"], &last["published_version"]), (&json!("held"), &served));
    assert!(
        last["published_average_precision"].as_f64().unwrap()
            > last["candidate_average_precision"].as_f64().unwrap() + 0.01,
        "{last}"
    );

    let rows: Value = serde_json::from_str(&list(data.path(), &["--json"])).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!((&rows[0]["verdict"], &rows[0]["served_version"]), (&json!("held"), &served));
    assert!(rows.iter().any(|row| row["verdict"] == "promoted" && row["served_version"] == served));
    let positions: Vec<u64> = rows.iter().map(|row| row["position"].as_u64().unwrap()).collect();
    assert!(positions.windows(2).all(|pair| pair[0] > pair[1]), "the latest first: {positions:?}");
    let table = list(data.path(), &["--last", "1"]);
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("held")), "{table}");
}
