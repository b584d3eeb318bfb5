//! A daemon whose steps several processes of Open MPI compute: it learns what it learns alone, bit for bit, whoever is
//! killed in between, and says what is wrong where they cannot train together.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::{PATIENCE, Process, Start};
use crate::ranks::mpiexec;
use crate::snapshots::{assert_same, learned};

/// Events of a push, and of a batch: four parts.
const BATCH: u64 = 400;

/// A daemon whose batches are its pushes.
fn start(data: &Path) -> Start {
    let small = ["memory", "time", "embedding"];
    let start =
        small.iter().fold(Start::in_dir(data), |start, of| start.set(&format!("model.{of}_dimension=8")));
    start
        .set("stream.edge_feature_dimension=3")
        .set("model.dropout=0.1")
        .set(&format!("learner.batch_events={BATCH}"))
        .set("learner.batch_wait_ms=60000")
        .set("learner.replay.ratio=0.5")
        .set("learner.gate.every_batches=1")
        .set("learner.threads=1")
        .set("learner.ranks_deadline_seconds=20")
}

/// The same, whose steps so many processes compute.
fn shared(data: &Path, ranks: usize) -> Option<Start> {
    Some(started(start(data).set(&format!("learner.ranks={ranks}")), &mpiexec()?, ranks))
}

/// So many processes.
fn started(start: Start, mpiexec: &Path, processes: usize) -> Start {
    let library = mpiexec.parent().unwrap().parent().unwrap().join("lib");
    let mpiexec = mpiexec.to_str().unwrap();
    let words = [mpiexec, "-n", &processes.to_string(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"];
    start
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("LD_LIBRARY_PATH", library.to_str().unwrap())
        .behind(&words.map(str::to_owned))
}

/// The processes of a daemon with this directory, by their numbers.
fn processes(data: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut found: Vec<(String, i32)> = Vec::new();
    for pid in entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
        let read = |what: &str| {
            String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default())
                .into_owned()
        };
        let environment = read("environ");
        let rank =
            environment.split('\0').find_map(|variable| variable.strip_prefix("OMPI_COMM_WORLD_RANK="));
        let words = read("cmdline");
        if let Some(rank) = rank.filter(|_| words.split('\0').any(|word| Path::new(word) == data)) {
            found.push((rank.to_owned(), pid));
        }
    }
    found.sort();
    found.into_iter().map(|(_, pid)| pid).collect()
}

/// Whether a process listens to SIGTERM by now. Before that the signal ends it at once.
fn listens(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
    u64::from_str_radix(caught, 16).unwrap() >> (rustix::process::Signal::TERM.as_raw() - 1) & 1 == 1
}

fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn ask(process: &Process, path: &str, body: &Value) -> Value {
    let (status, response) = process.post(path, "application/json", &body.to_string()).unwrap();
    assert_eq!(status, 200, "{path}: {response}");
    response
}

/// Push number `i`, when all before it is learned, and what operators do then. Returns the position reached.
fn turn(process: &Process, i: u64, from: u64) -> u64 {
    let line = |event: u64| {
        let (src, dst) = (event * event % 829, event * 7 % 411);
        let features = [event % 7, event % 11, event % 3];
        json!({ "src": format!("u{src}"), "dst": format!("i{dst}"), "ts": event, "features": features })
    };
    let begin = i * BATCH;
    let mut lines: Vec<Value> = (begin..begin + BATCH).map(line).collect();
    if i == 5 {
        // The end of a batch: those of the next ones begin behind it.
        lines = vec![json!({ "op": "delete", "node": "u25" })];
    }
    let end = from + lines.len() as u64;
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert!(process.push_or_dies(&text, lines.len() as u64));
    learned(process, end);
    match i {
        7 | 9 => drop(ask(process, "/v1/admin/model/promote", &json!({}))),
        11 => drop(ask(process, "/v1/admin/model/rollback", &json!({}))),
        _ => {}
    }
    end
}

/// What requests are responded with that depends on all that was learned.
fn responses(process: &Process, at: u64) -> Vec<Value> {
    let nodes: Vec<String> = (0..829)
        .step_by(9)
        .map(|i| format!("u{i}"))
        .chain((0..411).step_by(9).map(|i| format!("i{i}")))
        .collect();
    let pairs: Vec<Value> =
        (0..60).map(|i| json!({ "src": format!("u{}", i * 9), "dst": format!("i{}", i * 3) })).collect();
    let mut embeddings =
        ask(process, "/v1/embeddings", &json!({ "nodes": nodes, "at": at, "unknown": "prior" }));
    let mut scores =
        ask(process, "/v1/links/score", &json!({ "pairs": pairs, "at": at, "unknown": "prior" }));
    // Percentiles are among the events since the start.
    for score in scores["scores"].as_array_mut().unwrap() {
        score.as_object_mut().unwrap().remove("percentile");
    }
    let status = process.status();
    let trained = json!([status["learner"]["model_version"], status["learner"]["applied_position"]]);
    vec![embeddings["embeddings"].take(), scores["scores"].take(), trained]
}

#[test]
fn processes_that_train_together_learn_what_a_daemon_learns_alone() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [alone, together] = folders.each_ref().map(|folder| folder.path().canonicalize().unwrap());
    let Some(shared) = shared(&together, 2) else { return };
    let (single, mut process) = (start(&alone).ready(), shared.ready());
    let mut position = 0;
    for i in 0..16 {
        if i == 13 {
            // All of it is in a checkpoint; who is killed ends the others, and they begin again.
            ask(&process, "/v1/admin/checkpoints", &json!({}));
            let others = processes(&together);
            assert_eq!(others.len(), 2, "{others:?}");
            signal(others[1], rustix::process::Signal::KILL);
            assert!(!process.ended().success());
            let begun = Instant::now();
            while !processes(&together).is_empty() {
                assert!(begun.elapsed() < PATIENCE, "a process is left");
                std::thread::sleep(Duration::from_millis(20));
            }
            process = shared.ready();
        }
        let end = turn(&single, i, position);
        assert_eq!(turn(&process, i, position), end);
        position = end;
    }
    let at = 16 * BATCH;
    assert_same(&responses(&process, at), &responses(&single, at));
    let metrics = process.metrics();
    assert!(metrics.contains("evergraph_train_ranks 2"), "{metrics}");
    assert!(!metrics.contains("evergraph_train_exchanged_bytes_total 0\n"));
    assert!(metrics.contains("evergraph_train_step_duration_seconds_count{phase=\"exchange\"}"));
    // The first process is the daemon: it writes its last checkpoint, and all end, however often they are asked to.
    for pid in processes(&together).into_iter().rev().cycle().take(4) {
        signal(pid, rustix::process::Signal::TERM);
    }
    assert!(process.ended().success());
    let kept = std::fs::read_dir(together.join("checkpoints")).unwrap();
    let kept = kept.filter_map(|entry| entry.unwrap().path().file_stem()?.to_str()?.parse::<u64>().ok());
    assert_eq!(kept.max(), Some(position));
    assert!(single.terminate().success());
}

#[test]
fn a_start_that_is_interrupted_ends_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().canonicalize().unwrap();
    let Some(shared) = shared(&data, 2) else { return };
    let (mut process, begun) = (shared.spawn(), Instant::now());
    let started = loop {
        let started = processes(&data);
        if started.len() == 2 && started.iter().all(|pid| listens(*pid)) {
            break started;
        }
        assert!(begun.elapsed() < PATIENCE, "no processes listen to signals: {}", process.last_lines());
        std::thread::sleep(Duration::from_millis(10));
    };
    // Each gets two, as from a service manager and from `mpiexec`, before they have met.
    for pid in started.into_iter().cycle().take(4) {
        signal(pid, rustix::process::Signal::TERM);
    }
    assert!(process.ended().success());
}

#[test]
fn processes_that_cannot_train_together_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().canonicalize().unwrap();
    let said = start(&data).set("learner.ranks=3").fails();
    assert!(said.contains("learner.ranks") && said.contains("1, 2, 4 or 8"), "{said}");
    for setting in ["model.kind=walk", "model.kind=tgat", "learner.gradient_delay_batches=3"] {
        let start = start(&data).set("learner.ranks=2").set(setting).set("learner.replay.ratio=0");
        let said = start.fails();
        assert!(said.contains("learner.ranks") && said.contains("graphmixer"), "{said}");
    }
    let said = start(&data).set("learner.ranks=8").fails();
    assert!(said.contains("learner.batch_events / 100"), "{said}");
    let Some(mpiexec) = mpiexec() else { return };
    let said = started(start(&data), &mpiexec, 2).fails();
    assert!(said.contains("set learner.ranks=2"), "{said}");
    let said = started(start(&data).set("learner.ranks=4"), &mpiexec, 2).fails();
    assert!(said.contains("mpiexec -n 4"), "{said}");
    let said = started(start(&data).set("learner.ranks=4"), &mpiexec, 1).fails();
    assert!(said.contains("mpiexec -n 4"), "{said}");
    let library = mpiexec.parent().unwrap().parent().unwrap().join("lib");
    let library = library.to_str().unwrap();
    let said = start(&data).set("learner.ranks=2").env("LD_LIBRARY_PATH", library).fails();
    assert!(said.contains("mpiexec -n 2"), "{said}");
}
