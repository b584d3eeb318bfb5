//! The daemon with the model of walks: it learns, answers, forgets, and goes on after a stop and after a kill.

use serde_json::{Value, json};

use crate::process::{Process, Start};

/// `(k + 1) d` of the settings below.
const DIMENSION: usize = 3 * 32;

fn start(data: &std::path::Path) -> Start {
    Start::in_dir(data)
        .set("model.kind=walk")
        .set("model.walk_steps=2")
        .set("model.walk_dimension=32")
        .set("learner.batch_events=50")
}

/// Everybody meets two of thirty items, in turn.
fn visits(from: u64, count: u64) -> Vec<Value> {
    let item = |i: u64| (i % 19 * 7 + i / 19 % 2) % 30;
    let visit = |i: u64| {
        let (src, dst) = (format!("u{}", i % 19), format!("i{}", item(i)));
        json!({"src": src, "dst": dst, "ts": 1_700_000_000 + 60 * i})
    };
    (from..from + count).map(visit).collect()
}

fn push(process: &Process, events: Vec<Value>) -> u64 {
    let (status, receipt) =
        process.post("/v1/events", "application/json", &Value::from(events).to_string()).unwrap();
    assert_eq!(status, 200, "{receipt}");
    receipt["end_position"].as_u64().unwrap()
}

fn ask(process: &Process, path: &str, question: &Value) -> Value {
    let (status, answer) = process.post(path, "application/json", &question.to_string()).unwrap();
    assert_eq!(status, 200, "{answer}");
    answer
}

fn embeddings(process: &Process, after: u64) -> Value {
    let nodes = ["u3", "i4", "u18", "nobody"];
    let question = json!({"nodes": nodes, "unknown": "prior", "min_position": after, "wait_ms": 9000});
    ask(process, "/v1/embeddings", &question)["embeddings"].clone()
}

fn scores(process: &Process, after: u64) -> Vec<f64> {
    // u3 meets i21 and i22, and never met i9; nobody knows nobody.
    let pairs = [("u3", "i21"), ("u3", "i22"), ("u3", "i9"), ("u3", "nobody"), ("nobody", "no one")];
    let pairs: Vec<Value> = pairs.iter().map(|(src, dst)| json!({"src": src, "dst": dst})).collect();
    let question = json!({"pairs": pairs, "unknown": "prior", "min_position": after, "wait_ms": 9000});
    let answer = ask(process, "/v1/links/score", &question);
    answer["scores"].as_array().unwrap().iter().map(|score| score["score"].as_f64().unwrap()).collect()
}

fn learned(process: &Process, position: u64) -> Value {
    process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() == Some(position))
}

#[test]
fn it_learns_answers_and_goes_on_where_it_stopped() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let end = push(&process, visits(0, 4_000));
    let status = learned(&process, end);
    let learner = &status["learner"];
    assert_eq!((&learner["model"], &learner["trained_events"]), (&json!("walk"), &json!(4_000)));
    let (ap, bank) = (&learner["average_precision"], &learner["edgebank_average_precision"]);
    assert!(ap.as_f64() > Some(0.9) && bank.as_f64() > Some(0.5), "{learner}");
    assert!(
        learner["gate"]["promoted"].as_u64() > Some(0) && learner["mrr"].as_f64() > Some(0.3),
        "{learner}"
    );
    assert!(learner["node_state_bytes"].as_u64() > Some(49 * DIMENSION as u64 * 4), "{learner}");

    let (before, likely) = (embeddings(&process, end), scores(&process, end));
    for (node, known) in before.as_array().unwrap().iter().zip([true, true, true, false]) {
        let vector = node["embedding"].as_array().unwrap();
        assert_eq!((vector.len(), &node["cold"]), (DIMENSION, &json!(!known)), "{node}");
        assert_eq!(vector.iter().any(|value| value.as_f64() != Some(0.0)), known, "{node}");
    }
    assert!(likely[0].min(likely[1]) > likely[2] + 0.2, "{likely:?}");
    assert!(process.terminate().success());

    let process = start(data.path()).ready();
    assert_eq!(process.status()["learner"]["model_version"], learner["model_version"]);
    assert_eq!((embeddings(&process, end), scores(&process, end)), (before.clone(), likely));
    let later = push(&process, visits(4_000, 500));
    learned(&process, later);
    assert_ne!(embeddings(&process, later), before);
    assert!(process.terminate().success());

    for (setting, told) in
        [("model.walk_steps=3", "walk_steps = 2"), ("model.kind=tgn", "the saved model is walk")]
    {
        let said = start(data.path()).set(setting).fails();
        assert!(said.contains(told) && said.contains("set [model] and [stream] back"), "{said}");
    }
}

#[test]
fn what_the_log_has_beyond_the_checkpoint_is_counted_again_after_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let often = || start(data.path()).set("checkpoint.interval_seconds=1");
    let process = often().ready();
    let early = push(&process, visits(0, 1_000));
    learned(&process, early);
    let written = || std::fs::read_dir(data.path().join("checkpoints")).unwrap().count() > 0;
    process.wait_until("a checkpoint", |_| written());
    let end = push(&process, visits(1_000, 777));
    learned(&process, end);
    // Walks do not depend on where batches end, which a second run decides anew.
    let before = embeddings(&process, end);
    process.kill();
    let process = often().ready();
    assert_eq!(embeddings(&process, end), before);
    assert!(process.terminate().success());
}

#[test]
fn a_deleted_node_is_one_that_it_never_saw() {
    let data = tempfile::tempdir().unwrap();
    let process = start(data.path()).ready();
    let end = push(&process, visits(0, 1_000));
    let known = |process: &Process, after| {
        let question = json!({"nodes": ["u3"], "unknown": "prior", "min_position": after, "wait_ms": 9000});
        ask(process, "/v1/embeddings", &question)["embeddings"][0].clone()
    };
    assert_eq!(known(&process, end)["cold"], false);
    let end = push(&process, vec![json!({"op": "delete", "node": "u3"})]);
    learned(&process, end);
    let (gone, nobody) = (known(&process, end), embeddings(&process, end)[3].clone());
    assert_eq!((&gone["cold"], &gone["embedding"]), (&json!(true), &nobody["embedding"]));
    let likely = scores(&process, end);
    let question = json!({"pairs": [{"src": "nobody", "dst": "i21"}], "unknown": "prior"});
    let stranger = ask(&process, "/v1/links/score", &question)["scores"][0]["score"].as_f64().unwrap();
    assert!((likely[0] - stranger).abs() < 1e-9, "{likely:?}, {stranger}");
    // The name that comes again is a new node.
    let end = push(&process, vec![json!({"src": "u3", "dst": "i21", "ts": 1_800_000_000})]);
    learned(&process, end);
    assert_eq!(known(&process, end)["cold"], false);
    assert!(process.terminate().success());
}

#[test]
fn a_file_is_learned_and_old_events_are_not_replayed() {
    let data = tempfile::tempdir().unwrap();
    let rows: String = (0..900).map(|i| format!("{},{},{i}\n", i % 19, 100 + i % 7)).collect();
    let file = data.path().join("events.csv");
    std::fs::write(&file, format!("src,dst,ts\n{rows}")).unwrap();
    let process = start(data.path()).set(&format!("ingest.file.path={}", file.display())).ready();
    let status = learned(&process, 900);
    assert_eq!(
        (&status["learner"]["trained_events"], &status["learner"]["skipped_events"]),
        (&json!(900), &json!(0))
    );
    assert!(process.terminate().success());
    let said = start(data.path()).set("learner.replay.ratio=0.5").fails();
    assert!(said.contains("learner.replay.ratio = 0.5: must be 0 with walks"), "{said}");
}
