//! A deleted node is forgotten end to end: names, edges, rows and later checkpoints. Only the log, which is what
//! happened, still has it.

use std::path::Path;

use serde_json::Value;

use crate::process::{Process, Start, log_of};

const KEY: &str = "somebody-to-forget";
const NUMBER: i64 = 0x7A6B_5C4D_3E2F;
const VALUE: f32 = 1.234_567_9;
const EVENTS: u64 = 400;

fn push(process: &Process, lines: &[String]) {
    let (status, answer) = process.post("/v1/events", "application/x-ndjson", &lines.join("\n")).unwrap();
    assert_eq!((status, answer["accepted"].as_u64()), (200, Some(lines.len() as u64)), "{answer}");
}

fn edge(src: &Value, dst: &Value, ts: u64, value: f32) -> String {
    format!("{{\"src\":{src},\"dst\":{dst},\"ts\":{ts},\"features\":[{value},0.5]}}")
}

fn learned(process: &Process, position: u64) {
    process.wait_until("learned", |status| status["learner"]["applied_position"].as_u64() == Some(position));
}

/// Whether any file below `folder` holds `bytes`.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return holds(&path, bytes);
        }
        // A file may go while it is looked for: checkpoints replace each other.
        std::fs::read(&path).is_ok_and(|content| content.windows(bytes.len()).any(|window| window == bytes))
    })
}

/// The position of the newest checkpoint.
fn checkpoint_at(data: &Path) -> u64 {
    let names = std::fs::read_dir(data.join("checkpoints")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".checkpoint")?.parse().ok()).max().unwrap_or(0)
}

fn status_of(process: &Process, key: &str) -> (u16, Value) {
    process.get(&format!("/v1/nodes/{key}")).unwrap()
}

#[test]
fn a_deleted_node_is_nowhere_but_in_the_log() {
    let data = tempfile::tempdir().unwrap();
    let start = Start::in_dir(data.path())
        .set("checkpoint.interval_seconds=1")
        .set("checkpoint.keep=1")
        .set("stream.edge_feature_dimension=2");
    let mut process = start.ready();
    let (text, number) = (Value::from(KEY), Value::from(NUMBER));
    let lines: Vec<String> = (0..EVENTS)
        .map(|i| {
            let (other, partner) = (Value::from(i % 20), Value::from(format!("item{}", i % 7)));
            match i % 4 {
                0 => edge(&text, &partner, i, VALUE),
                1 => edge(&other, &number, i, VALUE),
                _ => edge(&other, &partner, i, 0.25),
            }
        })
        .collect();
    push(&process, &lines);
    learned(&process, EVENTS);
    assert_eq!(status_of(&process, KEY).1["degree"], 100);
    let partner = |process: &Process| status_of(process, "item0?neighbors=1000").1;
    assert!(partner(&process).to_string().contains(KEY));

    let deletions = [&text, &number].map(|key| format!("{{\"op\":\"delete\",\"node\":{key}}}"));
    push(&process, &deletions);
    assert_eq!(status_of(&process, KEY).0, 404);
    assert_eq!(status_of(&process, &NUMBER.to_string()).0, 404);
    assert!(!partner(&process).to_string().contains(KEY), "{}", partner(&process));
    assert!(process.wait_for_line("deleted edges were overwritten").is_some());
    learned(&process, EVENTS + 2);
    process.wait_until("a later checkpoint", |_| checkpoint_at(data.path()) == EVENTS + 2);
    let traces = |folder: &str| {
        let number = NUMBER.to_le_bytes();
        let traces: [&[u8]; 3] = [KEY.as_bytes(), &number, &VALUE.to_le_bytes()];
        traces.map(|trace| holds(&data.path().join(folder), trace))
    };
    assert_eq!(traces("checkpoints"), [false; 3]);
    assert_eq!(traces("log"), [true; 3], "the search finds what is there");

    // The same name later is somebody else, also after a replay.
    push(&process, &[edge(&text, &Value::from("item0"), 1_000, 0.25)]);
    let met = status_of(&process, KEY).1;
    assert_eq!((&met["degree"], &met["last_event"]), (&Value::from(1), &Value::from(1_000)), "{met}");
    learned(&process, EVENTS + 3);
    assert!(process.terminate().success());
    let process = start.ready();
    assert_eq!(status_of(&process, KEY).1["degree"], 1);
    assert_eq!(status_of(&process, &NUMBER.to_string()).0, 404);
    learned(&process, EVENTS + 3);
    assert!(process.terminate().success());
    assert_eq!(traces("checkpoints"), [false; 3]);
    assert_eq!(log_of(data.path())["edges"], EVENTS / 2 + 1);
}
