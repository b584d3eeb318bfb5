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
    assert_eq!(
        measurements.len(),
        12,
        "two policies, one and two layers, one and two threads, two also ahead"
    );
    for same in measurements.chunks(3) {
        let how: Vec<_> = same.iter().map(|one| (&one["threads"], &one["batches_per_call"])).collect();
        assert_eq!(how, [(&1.into(), &1.into()), (&2.into(), &1.into()), (&2.into(), &4.into())]);
        assert!(same[0]["sampled_edges"].as_u64().unwrap() > 10_000, "{}", same[0]);
        assert!(same.iter().all(|one| one["sampled_edges"] == same[0]["sampled_edges"]), "{same:?}");
    }
    for (key, last) in [("recent_1x10_batches_per_second", 2), ("uniform_2x10_batches_per_second", 11)] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{figures}");
        assert_eq!(figures[key], figures["by_threads"][key]["2"]);
        assert_eq!(figures[key], measurements[last]["batches_per_second"]["median"]);
        let (ahead, single) = (&figures["by_threads"][key], &figures["one_batch_per_call_by_threads"][key]);
        assert_eq!(ahead["1"], single["1"]);
        assert_eq!(single["2"], measurements[last - 1]["batches_per_second"]["median"]);
    }
    assert_eq!(figures["far_past_ratio"], figures["hub"]["ratio"]);
}

#[test]
fn what_cannot_be_measured_is_told() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    for (args, words) in [
        (vec!["ingest", "--events", "nowhere.csv"], "nowhere.csv"),
        (vec!["ingest", "--events", "events.csv", "--runs", "0"], "--runs"),
        (vec!["sample"], "--events"),
        (vec!["sample", "--events", "events.csv", "--json", "no/such/folder"], "--json no/such/folder"),
    ] {
        let output = bench(folder.path(), &args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{args:?}: {said}");
    }
}
