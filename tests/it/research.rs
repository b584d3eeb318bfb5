//! `evergraph-research`: what it writes for other samplers matches its documentation, our results are right by a
//! plain search of all events, and caches are compared on the same rows.

use std::path::Path;
use std::process::{Command, Output};

const EVENTS: usize = 3_000;
const SEEDS: usize = 1_800;
const FANOUT: usize = 10;
const NO_EDGE: i64 = -1;

/// Columns of one folder, as integers.
struct Written {
    src: Vec<i64>,
    dst: Vec<i64>,
    time: Vec<i64>,
    first: Vec<i64>,
    begin: Vec<i64>,
    node: Vec<i64>,
    at: Vec<i64>,
    result: Vec<i64>,
}

fn column(folder: &Path, name: &str) -> Vec<i64> {
    let bytes = std::fs::read(folder.join(name)).unwrap();
    if name.ends_with("u32") {
        bytes.chunks(4).map(|value| i64::from(u32::from_le_bytes(value.try_into().unwrap()))).collect()
    } else {
        bytes.chunks(8).map(|value| i64::from_le_bytes(value.try_into().unwrap())).collect()
    }
}

impl Written {
    fn read(folder: &Path, layer: u32) -> Self {
        Self {
            src: column(folder, "src.u32"),
            dst: column(folder, "dst.u32"),
            time: column(folder, "time.i64"),
            first: column(folder, "first.i64"),
            begin: column(folder, &format!("seeds.{layer}.i64")),
            node: column(folder, &format!("node.{layer}.u32")),
            at: column(folder, &format!("at.{layer}.i64")),
            result: column(folder, &format!("response.{layer}.i64")),
        }
    }

    /// Calls `check` with each seed's past edges, newest first, and its filled slots. `arrived` returns how many
    /// events there are when a batch with this first event is sampled.
    fn each(&self, arrived: impl Fn(i64) -> i64, mut check: impl FnMut(&[i64], &[i64])) {
        assert_eq!(self.begin.len(), self.first.len() + 1);
        assert_eq!(self.result.len(), self.node.len() * FANOUT);
        for (batch, &first) in self.first.iter().enumerate() {
            for seed in self.begin[batch] as usize..self.begin[batch + 1] as usize {
                let (node, at) = (self.node[seed], self.at[seed]);
                let edges = (0..arrived(first)).rev().filter(|&edge| {
                    let row = edge as usize;
                    (self.src[row] == node || self.dst[row] == node) && self.time[row] < at
                });
                let slots = &self.result[seed * FANOUT..(seed + 1) * FANOUT];
                let filled = slots.iter().position(|&edge| edge == NO_EDGE).unwrap_or(FANOUT);
                assert!(slots[filled..].iter().all(|&edge| edge == NO_EDGE));
                check(&edges.collect::<Vec<_>>(), &slots[..filled]);
            }
        }
    }
}

fn research(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergraph-research"));
    command.args(args).current_dir(folder).output().unwrap()
}

fn figures(folder: &Path, args: &[&str]) -> serde_json::Value {
    let output = research(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// 3,000 events between 50 and 30 nodes, a new time every `tied` of them.
fn events(folder: &Path, tied: usize) {
    let rows: String = (0..EVENTS).map(|i| format!("u{},i{},{}\n", i % 50, i * i % 30, i / tied)).collect();
    std::fs::write(folder.join("events.csv"), format!("src,dst,ts\n{rows}")).unwrap();
}

/// Runs requests in a folder of its own, on events with equal times.
fn sample(folder: &Path, args: &[&str]) -> serde_json::Value {
    events(folder, 7);
    let common = ["requests", "--events", "events.csv", "--runs", "1", "--write", ".", "--json", "-"];
    figures(folder, &[&common[..], args].concat())
}

#[test]
fn in_stream_order_a_request_sees_what_has_arrived_and_no_more() {
    for (name, distinct) in [("newest", true), ("recent", false)] {
        let folder = tempfile::tempdir().unwrap();
        let figures = sample(folder.path(), &["--ask", name, "--batches", "3"]);
        let written = Written::read(folder.path(), 1);
        assert_eq!((figures["batches"].as_u64(), &written.first[..]), (Some(3), &[0, 600, 1_200][..]));
        assert_eq!(figures["seeds"], written.node.len());
        assert_eq!(written.node.len() < 3 * SEEDS, distinct);
        let mut edges = 0;
        written.each(
            |first| first,
            |past, found| {
                assert_eq!(found, &past[..past.len().min(FANOUT)], "{name}");
                edges += found.len();
            },
        );
        assert!(edges > 0);
        assert_eq!(figures["sampled_edges"], edges);
    }
}

#[test]
fn uniform_results_come_from_the_past_and_hold_no_edge_twice() {
    for (args, layer) in [
        (vec!["--ask", "uniform", "--batches", "2"], 1),
        (vec!["--ask", "uniform", "--batches", "1", "--layers", "2"], 2),
        (vec!["--ask", "uniform-batch", "--batches", "2", "--threads", "2"], 1),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let figures = sample(folder.path(), &args);
        assert!(figures["batches_per_second"]["median"].as_f64().unwrap() > 0.0);
        let written = Written::read(folder.path(), layer);
        written.each(
            |_| EVENTS as i64,
            |past, found| {
                assert_eq!(found.len(), past.len().min(FANOUT), "{args:?}");
                assert!(found.iter().all(|edge| past.contains(edge)), "{args:?}");
                assert!(found.windows(2).all(|pair| pair[0] > pair[1]), "{args:?}");
            },
        );
    }
}

#[test]
fn caches_are_compared_on_the_same_rows_and_none_is_above_the_optimum() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path(), 1);
    let run = |more: &[&str]| {
        let common =
            ["cache", "--events", "events.csv", "--epochs", "2", "--row-dimension", "8", "--json", "-"];
        figures(folder.path(), &[&common[..], more].concat())
    };
    let all = run(&["--page", "cache.md"]);
    let stream = &all["streams"][0];
    assert_eq!((&stream["events"], &stream["nodes"]), (&3_000.into(), &62.into()));
    let accesses = stream["accesses"].as_array().unwrap();
    assert_eq!(accesses.len(), 4, "edges and nodes of two ways to sample");
    for size in accesses.iter().flat_map(|access| access["sizes"].as_array().unwrap()) {
        let ratio = |policy: &str| size["hit_ratio"][policy].as_f64().unwrap();
        for policy in ["lru", "lfu", "fifo", "static", "ours"] {
            assert!((0.0..=ratio("optimum")).contains(&ratio(policy)), "{policy}: {size}");
        }
        assert!(ratio("ours") >= ratio("lru").max(ratio("lfu")).max(ratio("fifo")), "{size}");
        let ours = &size["ours"];
        let avoided = ours["found_ratio"].as_f64().unwrap() - ours["restored_ratio"].as_f64().unwrap();
        assert!(
            (avoided - ratio("ours")).abs() < 1e-9 && ours["round_seconds"]["median"].as_f64() > Some(0.0)
        );
        assert_eq!(size["hit_ratio_by_epoch"]["ours"].as_array().unwrap().len(), 2);
    }
    let page = std::fs::read_to_string(folder.path().join("cache.md")).unwrap();
    assert!(
        page.contains("## events.csv: 3000 events, 62 nodes") && page.matches("\n| ").count() == 4 * 7,
        "{page}"
    );
    let known = run(&["--policy", "ours", "--look-ahead", "10", "--events-max", "1200"]);
    let access = &known["streams"][0]["accesses"][0];
    assert_eq!(access["rounds"], 4);
    assert!(access["sizes"][0]["hit_ratio"].get("lru").is_none(), "what was not requested is not measured");
}

#[test]
fn what_cannot_be_measured_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    events(folder.path(), 1);
    for (args, words) in [
        (vec!["cache"], "--events"),
        (vec!["cache", "--events", "nowhere.csv"], "nowhere.csv"),
        (vec!["cache", "--events", "events.csv", "--policy", "luck"], "--policy"),
    ] {
        let output = research(folder.path(), &args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(words), "{args:?}: {text}");
    }
}
