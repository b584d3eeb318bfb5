//! `evergraph bench` as a user runs it: figures that add up, and words where it cannot run.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn bench(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph"));
    command.arg("bench").args(args).current_dir(folder).output().unwrap()
}

fn figures(folder: &Path, args: &[&str]) -> Value {
    let output = bench(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// 3,000 edges between 50 and 30 nodes, in order of time.
fn events(folder: &Path) {
    let rows: String = (0..3_000).map(|i| format!("u{},i{},{i}\n", i % 50, i * i % 30)).collect();
    std::fs::write(folder.join("events.csv"), format!("src,dst,ts\n{rows}")).unwrap();
}

#[test]
fn ingest_counts_every_edge_twice_and_every_byte_once() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let args =
        ["ingest", "--events", "events.csv", "--repeat", "4", "--runs", "2", "--data", ".", "--json", "-"];
    let figures = figures(folder.path(), &args);
    assert_eq!((&figures["bench"], &figures["events"]), (&"ingest".into(), &12_000.into()));
    assert_eq!(figures["directed_edges"], 24_000);
    let parts = figures["parts"].as_object().unwrap();
    assert_eq!(parts.values().map(|bytes| bytes.as_u64().unwrap()).sum::<u64>(), figures["graph_bytes"]);
    for key in ["memory_events_per_second", "durable_events_per_second"] {
        let [min, median, max] = ["min", "median", "max"].map(|part| figures[key][part].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{figures}");
    }
    assert!(figures["small_batch_p99_seconds"].as_f64() >= figures["small_batch_p50_seconds"].as_f64());
    assert!(figures["machine"]["cores"].as_u64().unwrap() >= 1);
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["events.csv"], "the log is removed");
}

#[test]
fn sample_finds_the_same_edges_with_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let figures = figures(folder.path(), &["sample", "--events", "events.csv", "--runs", "1", "--json", "-"]);
    assert_eq!(figures["seeds_per_batch"], 1_800);
    let measurements = figures["measurements"].as_array().unwrap();
    assert_eq!(measurements.len(), 8, "two policies, one and two layers, one and two threads");
    for pair in measurements.chunks(2) {
        assert_eq!((&pair[0]["threads"], &pair[1]["threads"]), (&1.into(), &2.into()));
        assert!(pair[0]["sampled_edges"].as_u64().unwrap() > 10_000, "{}", pair[0]);
        assert_eq!(pair[0]["sampled_edges"], pair[1]["sampled_edges"]);
    }
}

#[test]
fn train_reads_the_same_however_it_is_prepared_and_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let run = |prepare: &str, threads: &str| {
        let common = ["train", "--events", "events.csv", "--events-max", "1000", "--row-dimension", "5"];
        let more = ["--epochs", "2", "--verify", "--prepare", prepare, "--threads", threads, "--json", "-"];
        figures(folder.path(), &[&common[..], &more].concat())
    };
    let beside = run("beside", "2");
    assert_eq!(
        (&beside["events"], &beside["nodes"], &beside["epochs"]),
        (&1_000.into(), &62.into(), &2.into())
    );
    assert_eq!(beside["verified"]["rows_wrong"], 0);
    let spread = &beside["events_per_second_spread"];
    assert!(
        spread["min"].as_f64() <= beside["events_per_second"].as_f64() && spread["min"].as_f64() > Some(0.0)
    );
    let phases = beside["phase_seconds"].as_object().unwrap();
    let worked: f64 =
        ["forward", "backward", "optimizer", "memory"].map(|p| phases[p].as_f64().unwrap()).iter().sum();
    assert!(worked > 0.0 && worked <= beside["epoch_seconds"].as_f64().unwrap(), "{beside}");
    assert!(beside["peak_resident_bytes"].as_u64() > beside["parts_bytes"]["node_memory"].as_u64());
    for other in [run("in-turn", "2"), run("beside", "1")] {
        assert_eq!((&other["verified"], &other["loss"]), (&beside["verified"], &beside["loss"]));
    }
}

#[test]
fn what_cannot_be_measured_is_told() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    for (args, words) in [
        (vec!["ingest", "--events", "nowhere.csv"], "nowhere.csv"),
        (vec!["ingest", "--events", "events.csv", "--runs", "0"], "--runs"),
        (vec!["sample"], "--events"),
        (vec!["train", "--events", "events.csv", "--rows-budget", "25%"], "--rows-budget: budgets are not"),
        (vec!["train", "--events", "events.csv", "--topology-budget", "lots"], "`lots` is no budget"),
        (vec!["sample", "--events", "events.csv", "--json", "no/such/folder"], "--json no/such/folder"),
    ] {
        let output = bench(folder.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
    }
}
