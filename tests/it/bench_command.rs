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
    let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number"));
    for key in ["memory_events_per_second", "durable_events_per_second"] {
        let spread = &figures[format!("{key}_spread")];
        let [min, median, max] = ["min", "median", "max"].map(|part| spread[part].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{figures}");
        assert_eq!(number(key), median);
    }
    assert!(number("durable_batch_p99_seconds") >= number("durable_batch_p50_seconds"));
    // Numbers lose their last bit on the way through text.
    let ratio = |key: &str, of: f64, by: f64| assert!((number(key) * by - of).abs() <= of * 1e-12, "{key}");
    ratio("bytes_per_directed_edge", number("graph_bytes"), 24_000.0);
    ratio("resident_growth_ratio", number("resident_growth_bytes"), number("graph_bytes"));
    assert_eq!(figures["dictionary"].as_array().unwrap().len(), 3);
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
    for same in measurements.chunks(2) {
        assert_eq!(
            [&same[0]["threads"], &same[1]["threads"]],
            [&serde_json::json!(1), &serde_json::json!(2)]
        );
        assert!(same[0]["sampled_edges"].as_u64().unwrap() > 10_000, "{}", same[0]);
        assert!(same.iter().all(|one| one["sampled_edges"] == same[0]["sampled_edges"]), "{same:?}");
    }
    for (key, last) in [("recent_1x10_batches_per_second", 1), ("uniform_2x10_batches_per_second", 7)] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{figures}");
        assert_eq!(figures[key], figures["by_threads"][key]["2"]);
        assert_eq!(figures[key], measurements[last]["batches_per_second"]["median"]);
        let one = &measurements[last - 1]["batches_per_second"]["median"];
        assert_eq!(&figures["by_threads"][key]["1"], one);
    }
    assert_eq!(figures["far_past_ratio"], figures["hub"]["ratio"]);
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
    assert_eq!((&beside["device"], beside.get("gpu")), (&"cpu".into(), None), "by default");
    let precision = if evergraph::device::matmul::has_bf16() { "bf16" } else { "f32" };
    assert_eq!(beside["matmul_precision"], precision, "by default");
    let spread = &beside["events_per_second_spread"];
    assert!(
        spread["min"].as_f64() <= beside["events_per_second"].as_f64() && spread["min"].as_f64() > Some(0.0)
    );
    let phases = beside["phase_seconds"].as_object().unwrap();
    let worked: f64 =
        ["forward", "backward", "optimizer", "memory"].map(|p| phases[p].as_f64().unwrap()).iter().sum();
    let around = ["gate", "publish"].map(|p| phases[p].as_f64().unwrap());
    let seconds = beside["epoch_seconds"].as_f64().unwrap();
    assert!(worked > 0.0 && worked + around.iter().sum::<f64>() <= seconds, "{beside}");
    assert!(around.iter().all(|seconds| *seconds > 0.0), "judged and published: {beside}");
    let share = beside["gate_ratio"].as_f64().unwrap();
    assert!((share - around[0] / seconds).abs() < 1e-9, "{beside}");
    assert!(beside["parts_bytes"]["published"].as_u64() > Some(0), "{beside}");
    assert!(beside["peak_resident_bytes"].as_u64() > beside["parts_bytes"]["node_memory"].as_u64());
    for other in [run("in-turn", "2"), run("beside", "1")] {
        assert_eq!((&other["verified"], &other["loss"]), (&beside["verified"], &beside["loss"]));
    }
    let common = ["train", "--events", "events.csv", "--events-max", "1000", "--row-dimension", "5"];
    let alone = figures(folder.path(), &[&common[..], &["--epochs", "2", "--alone", "--json", "-"]].concat());
    assert_eq!(alone["loss"], beside["loss"], "who judges and reads changes nothing of what is learned");
    assert_eq!(alone["phase_seconds"]["gate"], 0.0);
    assert!(alone.get("gate_ratio").is_none() && alone["parts_bytes"]["published"] == 0, "{alone}");
}

#[test]
fn train_tells_which_model_it_trained_and_how_each_epoch_went() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let run = |model: &str| {
        let common = ["train", "--events", "events.csv", "--events-max", "600", "--row-dimension", "0"];
        let more = ["--model", model, "--embedding-dimension", "20", "--epochs", "2", "--json", "-"];
        figures(folder.path(), &[&common[..], &more].concat())
    };
    let walk = ["train", "--events", "events.csv", "--events-max", "600", "--model", "walk", "--json", "-"];
    let walk = figures(folder.path(), &walk);
    assert!((&walk["model"], &walk["rows_gathered"]) == (&"walk".into(), &0.into()), "{walk}");
    assert!(["backward", "gate", "publish"].iter().all(|&p| walk["phase_seconds"][p].as_f64() > Some(0.0)));
    let (mixer, tgat) = (run("graphmixer"), run("tgat"));
    for (figures, model) in [(&mixer, "graphmixer"), (&tgat, "tgat")] {
        assert_eq!((&figures["model"], &figures["embedding_dimension"]), (&model.into(), &20.into()));
        let epochs = figures["each_epoch"].as_array().unwrap();
        assert_eq!((epochs.len(), &epochs[1]["loss"]), (2, &figures["loss"]));
        assert!(epochs.iter().all(|epoch| epoch["phase_seconds"]["backward"].as_f64() > Some(0.0)));
        let seconds = [0, 1].map(|number: usize| epochs[number]["seconds"].as_f64());
        assert!(seconds.contains(&figures["epoch_seconds"].as_f64()), "{figures}");
    }
    assert_ne!(mixer["loss"], tgat["loss"]);
    let weights = |figures: &Value| figures["parts_bytes"]["weights_and_optimizer"].as_u64();
    assert!(weights(&mixer) < weights(&tgat), "a mixer of this width has fewer");
}

#[test]
fn train_reads_the_same_from_disk_as_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let line = |i: u64| format!("{},{},{}\n", i * i % 400, 400 + i * 7 % (i % 900 + 1), i / 2);
    let text: String = (0..6_000).map(line).collect();
    std::fs::write(folder.path().join("events.csv"), format!("src,dst,ts\n{text}")).unwrap();
    let run = |budgets: &[&str]| {
        let common = ["train", "--events", "events.csv", "--row-dimension", "700", "--verify", "--data", "."];
        figures(folder.path(), &[&common[..], budgets, &["--json", "-"]].concat())
    };
    let resident = run(&[]);
    assert_eq!(resident["verified"]["rows_wrong"], 0);
    for engine in ["auto", "pread"] {
        let spilled = run(&["--rows-bytes-max", "20%", "--graph-bytes-max", "40%", "--engine", engine]);
        assert_eq!((&spilled["verified"], &spilled["loss"]), (&resident["verified"], &resident["loss"]));
        let (rows, topology) = (&spilled["rows_spill"], &spilled["topology_spill"]);
        // The graph is so small that most of it is what each shard is being filled with.
        assert!(topology["disk_bytes"].as_u64() > Some(0), "{topology}");
        assert!(rows["reads"].as_u64() > Some(100) && rows["disk_bytes"].as_u64() > Some(1 << 20), "{rows}");
        assert!(rows["memory_bytes"].as_u64() <= rows["budget_bytes"].as_u64(), "{rows}");
    }
}

#[test]
fn serving_is_timed_beside_events_of_the_demo_and_of_a_file() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let short = ["serve", "--events-per-second", "300", "--warm-up", "3", "--seconds", "1", "--data", "."];
    for more in [&[][..], &["--events", "events.csv"]] {
        let args =
            [&short[..], more, &["--requests-per-second", "100", "--batch", "7", "--json", "-"]].concat();
        let figures = figures(folder.path(), &args);
        let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{key} in {figures}"));
        assert!(
            number("p50_seconds") <= number("p99_seconds") && number("p99_seconds") <= number("p999_seconds")
        );
        assert!(number("single_per_second") > 0.0 && number("batched_embeddings_per_second") > 7.0);
        assert!(number("applied_events_per_second") > 60.0, "{figures}");
        assert_eq!(number("failed_requests"), 0.0);
        assert!(number("freshness_p99_seconds") > 0.0);
    }
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["events.csv"], "the daemon's data is gone");
    let fast = [
        "serve",
        "--events-per-second",
        "3000",
        "--warm-up",
        "3",
        "--seconds",
        "1",
        "--events",
        "events.csv",
    ];
    let output = bench(folder.path(), &fast);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--events ended before the requests"), "{text}");
}

#[test]
fn a_stream_is_learned_whole_and_rounds_of_new_events_after_they_are_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let run = |rounds: &'static str| {
        let common = ["learn", "--events", "events.csv", "--round-events", "150", "--row-dimension", "3"];
        let more = ["--data", ".", "--set", "learner.batch_events=100", "--json", "-", "--rounds", rounds];
        [&common[..], &more].concat()
    };
    let figures = figures(folder.path(), &run("2"));
    // Whole batches of what two rounds leave.
    assert_eq!((&figures["bench"], &figures["events"]), (&"learn".into(), &2_700.into()));
    assert_eq!((&figures["skipped_events"], &figures["batch_events"]), (&0.into(), &100.into()));
    assert!(figures["lag_events_median"].as_u64() <= Some(2_700), "{figures}");
    assert!(figures["device"].as_str().unwrap().starts_with("cpu"), "{figures}");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("no number in {figures}"));
    assert!(number(&figures["events_per_second"]) > 0.0);
    assert!((0.0..=1.0).contains(&number(&figures["average_precision"])));
    for phase in ["forward", "backward", "rank", "baseline", "gate", "publish"] {
        assert!(number(&figures["phase_seconds"][phase]) > 0.0, "{phase}: {figures}");
    }
    let rounds = figures["each_round"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for round in rounds {
        let [stored, learned] = ["acknowledged_seconds", "learned_seconds"].map(|key| number(&round[key]));
        assert!(0.0 < stored && stored <= learned, "{round}");
        let spread = &figures["learned_seconds"];
        assert!((number(&spread["min"])..=number(&spread["max"])).contains(&learned), "{figures}");
    }
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["events.csv"], "the daemon's data is gone");
    let output = bench(folder.path(), &run("14"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("3000 events are too few for 14 rounds of 150"),
        "{text}"
    );
}

#[test]
fn the_index_gives_every_node_a_row_and_answers_alone_and_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        ["index", "--rows", "3000", "--dimension", "20", "--queries", "20", "--batch", "5", "--json", "-"];
    let figures = figures(folder.path(), &args);
    assert_eq!((&figures["bench"], &figures["rows"]), (&"index".into(), &3_000.into()));
    assert!(figures["index_bytes"].as_u64().unwrap() >= 3_000 * 2 * 20 * 4, "{figures}");
    assert!(figures["fill_rows_per_second"].as_f64().unwrap() > 0.0, "{figures}");
    for part in ["top_links", "similar_nodes"] {
        let number = |key: &str| figures[part][key].as_f64().unwrap_or_else(|| panic!("{key} in {figures}"));
        assert!(
            0.0 < number("single_p50_seconds")
                && number("single_p50_seconds") <= number("single_p99_seconds")
        );
        assert!(number("batched_per_second") > 0.0 && number("single_ratio_to_read") > 0.0, "{figures}");
    }
}

#[test]
fn a_start_is_timed_on_a_log_that_was_learned_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    let args = [
        "start",
        "--events",
        "events.csv",
        "--repeat",
        "3",
        "--runs",
        "2",
        "--cold",
        "--data",
        ".",
        "--json",
        "-",
    ];
    let figures = figures(folder.path(), &args);
    assert_eq!((&figures["bench"], &figures["events"]), (&"start".into(), &9_000.into()));
    for rate in ["sequential_bytes_per_second", "loaded_bytes_per_second"] {
        assert!(figures["disk"][rate].as_f64().is_some_and(|rate| rate > 0.0), "{figures}");
    }
    assert_eq!(figures["nodes"], 62, "squares leave 12 remainders by 30");
    let median = |key: &str| figures[key]["median"].as_f64().unwrap();
    assert!(median("ready_seconds") > 0.0 && median("open_seconds") > 0.0 && median("rebuild_seconds") > 0.0);
    assert!(
        figures["log_bytes"].as_u64().unwrap() > 9_000 && figures["resident_bytes"].as_u64().unwrap() > 0
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "its data is gone");
    let refused =
        bench(folder.path(), &["start", "--events", "events.csv", "--set", "learner.batch_evnts=3"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("batch_events"), "a setting is suggested");
}

#[test]
fn what_cannot_be_measured_is_told() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path());
    for (args, words) in [
        (vec!["ingest", "--events", "nowhere.csv"], "nowhere.csv"),
        (vec!["ingest", "--events", "events.csv", "--runs", "0"], "--runs"),
        (vec!["sample"], "--events"),
        (vec!["serve", "--events-per-second", "0"], "--events-per-second"),
        (vec!["serve", "--set", "graph.retentoin=3"], "retentoin"),
        (vec!["train", "--events", "events.csv", "--graph-bytes-max", "lots"], "`lots` is no memory limit"),
        (
            vec!["train", "--events", "events.csv", "--model", "edgebank"],
            "--model edgebank is a baseline and not trained",
        ),
        (
            vec!["sample", "--events", "events.csv", "--json", "no/such/folder"],
            "this file cannot be written: No such file",
        ),
    ] {
        let output = bench(folder.path(), &args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(words), "{args:?}: {text}");
    }
}
