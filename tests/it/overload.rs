//! `make overload`: whole streams through Kafka at 20,000 events a second, beside 200 requests a second. Which share of
//! the events gets a gradient step, how fresh responses are, and what the steps that are left out cost in precision: each
//! stream comes once so, and once with a step for every event, however long that takes. What was measured becomes
//! `docs/benchmarks/overload.json` and its page.
//!
//! `OVERLOAD_DATA` is the folder of the streams; without it nothing runs. `OVERLOAD_RATE` is another number of events a
//! second, `OVERLOAD_OUT` another folder for the results.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evergraph::cli::machine;
use evergraph::ingest::produce::produce;
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::kafka_daemon::{csv, daemon, to_topic};
use crate::process::Process;

const STREAMS: [&str; 2] = ["wikipedia", "oss-commits"];
const MODELS: [&str; 2] = ["tgn", "walk"];
/// Requests per second of each client thread, of which there are as many.
const REQUESTS: [f64; 2] = [100.0, 100.0];
/// More than any stream has batches: quality is averaged over all of it.
const WHOLE_STREAM: &str = "learner.quality_window_batches=1000000";
const CATCH_UP: Duration = Duration::from_secs(1_800);

/// Source, destination and time of each event, as lines; edges only.
fn edges_of(file: &Path) -> Vec<String> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap()).read_to_string(&mut text).unwrap();
    let edge = |line: &str| line.splitn(4, ',').take(3).collect::<Vec<_>>().join(",");
    text.lines().skip(1).map(edge).collect()
}

/// Reads single nodes at a fixed rate until `over`; returns the seconds that each took, from when it was due. One that was
/// refused took for ever.
fn read_nodes(process: &Process, keys: &[String], rate: f64, over: &AtomicBool) -> Vec<f64> {
    let (begun, mut taken) = (Instant::now(), Vec::new());
    for number in 0_usize.. {
        let due = Duration::from_secs_f64(number as f64 / rate);
        if over.load(Relaxed) {
            break;
        }
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let body = json!({"nodes": [keys[number * 7_919 % keys.len()]]}).to_string();
        let (status, response) = process.post("/v1/embeddings", "application/json", &body).unwrap();
        assert!(status == 200 || status == 503, "{response}");
        taken.push(if status == 200 { (begun.elapsed() - due).as_secs_f64() } else { f64::INFINITY });
    }
    taken
}

/// Shares of the events that responses reflected within these seconds.
fn fresh_within(process: &Process, bounds: [&str; 2]) -> [f64; 2] {
    let text = process.metrics();
    let value = |series: &str| -> f64 {
        let line =
            text.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("no {series}"));
        line.trim().parse().unwrap()
    };
    let name = "evergraph_end_to_end_freshness_seconds";
    bounds.map(|bound| value(&format!("{name}_bucket{{le=\"{bound}\"}}")) / value(&format!("{name}_count")))
}

/// What a run showed.
struct Shown {
    /// The status at the end.
    status: Value,
    /// Shares of the events that responses reflected within 0.1 s and 0.25 s.
    fresh: [f64; 2],
    /// Latencies of reads.
    reads: Vec<f64>,
}

/// A stream through a topic of its own into a new daemon.
fn run(broker: &Broker, (stream, model): (&str, &str), file: &Path, rate: Option<f64>) -> Shown {
    let topic = format!("overload-{stream}-{model}-{}", if rate.is_some() { "paced" } else { "whole" });
    broker.create_topic(&topic, 1);
    let data = tempfile::tempdir().unwrap();
    let mut start = daemon(broker, &topic, data.path()).set(&format!("model.kind={model}")).set(WHOLE_STREAM);
    start = match rate {
        // As delivered: other tests have every event trained on.
        Some(_) => start.set("learner.lag_target_ms=50").set("learner.batch_wait_ms=50"),
        None => start.set("learner.lag_events_max=1000000000"),
    };
    let process = start.ready();
    let mut options = to_topic(broker, &topic, 1, file);
    options.events_per_second = rate;
    let text = std::fs::read_to_string(file).unwrap();
    let keys: Vec<String> =
        text.lines().skip(1).map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect();
    let over = AtomicBool::new(false);
    let (sent, reads) = std::thread::scope(|scope| {
        let end = scopeguard::guard((), |()| over.store(true, Relaxed));
        let clients = REQUESTS.map(|requests| {
            let (process, keys, over) = (&process, &keys, &over);
            scope.spawn(move || match rate {
                Some(_) => read_nodes(process, keys, requests, over),
                None => Vec::new(),
            })
        });
        let sent = produce(&options, &mut |_| {}).unwrap().sent;
        drop(end);
        (sent, clients.map(|client| client.join().unwrap()).concat())
    });
    let learned = |status: &Value| status["learner"]["applied_position"] == sent;
    let status = process.wait_until_within(CATCH_UP, "all learned", learned);
    let fresh = fresh_within(&process, ["0.1", "0.25"]);
    assert!(process.terminate().success());
    Shown { status, fresh, reads }
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}

fn measured(broker: &Broker, stream: &str, model: &str, file: &Path, rate: f64) -> Value {
    let Shown { status: paced, fresh, mut reads } = run(broker, (stream, model), file, Some(rate));
    let Shown { status: whole, .. } = run(broker, (stream, model), file, None);
    reads.sort_unstable_by(f64::total_cmp);
    let number = |status: &Value, key: &str| status["learner"][key].as_f64().unwrap();
    let (events, trained) = (number(&paced, "applied_position"), number(&paced, "trained_events"));
    assert_eq!(number(&whole, "trained_events"), events, "every event has a step in the second run");
    let figures = json!({
        "stream": stream,
        "model": model,
        "events_count": events,
        "trained_events_ratio": trained / events,
        "fresh_within_100ms_ratio": fresh[0],
        "fresh_within_250ms_ratio": fresh[1],
        "reads_count": reads.len(),
        "reads_refused": reads.iter().filter(|taken| taken.is_infinite()).count(),
        "reads_p50_seconds": percentile(&reads, 0.5),
        "reads_p99_seconds": percentile(&reads, 0.99),
        "average_precision": number(&paced, "average_precision"),
        "average_precision_of_all_trained": number(&whole, "average_precision"),
        "edgebank_average_precision": number(&paced, "edgebank_average_precision"),
    });
    eprintln!("{figures:#}");
    figures
}

#[test]
#[ignore = "takes minutes and the machine to itself; `make overload` runs it"]
fn streams_at_twenty_thousand_events_a_second_are_learned_and_served() {
    let Some(data) = std::env::var_os("OVERLOAD_DATA").map(PathBuf::from) else {
        return eprintln!("OVERLOAD_DATA is not set; `make overload DATA=FOLDER` sets it");
    };
    let rate = std::env::var("OVERLOAD_RATE").map_or(20_000.0, |rate| rate.parse().unwrap());
    let Some(broker) = Broker::own() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut runs: Vec<Value> = Vec::new();
    for stream in STREAMS {
        let edges = edges_of(&data.join(format!("{stream}.csv.gz")));
        let file = csv(folder.path().join(format!("{stream}.csv")), edges);
        if runs.is_empty() {
            // The JVM of a new broker still compiles hot code, on the same cores.
            run(&broker, ("first", "walk"), &file, Some(rate));
        }
        runs.extend(MODELS.map(|model| measured(&broker, stream, model, &file, rate)));
    }
    report(&json!({
        "events_per_second": rate,
        "requests_per_second": REQUESTS.iter().sum::<f64>(),
        "runs": runs,
        "machine": machine::facts(0),
    }));
}

/// Writes figures and page.
fn report(figures: &Value) {
    let folder = std::env::var_os("OVERLOAD_OUT").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks"));
    let text = serde_json::to_string_pretty(figures).unwrap() + "\n";
    std::fs::write(folder.join("overload.json"), text).unwrap();
    std::fs::write(folder.join("overload.md"), page(figures)).unwrap();
}

fn page(figures: &Value) -> String {
    let (machine, whole) = (&figures["machine"], |key: &str| figures[key].as_f64().unwrap_or(f64::NAN));
    let rate = whole("events_per_second");
    let row = |run: &Value| {
        let number = |key: &str| run[key].as_f64().unwrap_or(f64::NAN);
        let ms = |key: &str| format!("{:.0} ms", number(key) * 1e3);
        format!(
            "| {} | {} | {} | {:.0} s | {:.1} % | {:.2} % | {:.2} % | {} | {:.4} | {:.4} | {:.4} |\n",
            run["stream"].as_str().unwrap_or_default(),
            run["model"].as_str().unwrap_or_default(),
            number("events_count"),
            number("events_count") / rate,
            100.0 * number("trained_events_ratio"),
            100.0 * number("fresh_within_100ms_ratio"),
            100.0 * number("fresh_within_250ms_ratio"),
            ms("reads_p99_seconds"),
            number("average_precision"),
            number("edgebank_average_precision"),
            number("average_precision_of_all_trained"),
        )
    };
    let rows: String = figures["runs"].as_array().into_iter().flatten().map(row).collect();
    format!(
        "# Learning and serving at {rate:.0} events a second\n\n\
         <!-- Made by `make overload`: change tests/it/overload.rs, not this. -->\n\n\
         Whole streams, edges only, through Apache Kafka at {rate:.0} events a second, beside {:.0} requests a second for\n\
         single embeddings. Every event reaches graph and memory; as many get a gradient step as keep the learner near\n\
         `learner.lag_target_ms`. The last column is the same stream with a step for every event, however long that takes.\n\
         Average precision is the mean over all batches that were scored, each before it was learned; a model begins\n\
         untrained, and a stream lasts only as long as its column says. {}, {} cores, {:.1} GiB of memory; broker,\n\
         producer and clients ran on the same machine.\n\n\
         | stream | model | events | lasts | trained on | reflected within 0.1 s | 0.25 s | reads p99 | AP | EdgeBank | AP, all trained on |\n\
         |---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n{rows}\n\
         An event is reflected when responses are computed with it, counted from when it was sent; events that are learned\n\
         together count by the oldest one of their log frame. The broker has served the first stream once before, and the\n\
         pace begins once the topic has acknowledged a first event. All figures are in [overload.json](overload.json).\n",
        whole("requests_per_second"),
        machine["cpu"].as_str().unwrap_or("an unknown CPU"),
        machine["cores"],
        machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30),
    )
}

#[test]
fn the_page_has_a_row_for_each_run() {
    let run = json!({"stream": "s", "model": "walk", "events_count": 1000, "trained_events_ratio": 0.25,
        "fresh_within_100ms_ratio": 0.95, "fresh_within_250ms_ratio": 0.995, "reads_p99_seconds": 0.003,
        "average_precision": 0.9, "average_precision_of_all_trained": 0.91, "edgebank_average_precision": 0.8});
    let page = page(&json!({"events_per_second": 20_000, "requests_per_second": 200, "runs": [run],
        "machine": {"cpu": "one", "cores": 2, "memory_bytes": 1_u64 << 30}}));
    let row = "| s | walk | 1000 | 0 s | 25.0 % | 95.00 % | 99.50 % | 3 ms | 0.9000 | 0.8000 | 0.9100 |";
    assert!(page.contains(row) && page.contains("one, 2 cores, 1.0 GiB"), "{page}");
}

#[test]
fn the_page_is_made_of_its_figures() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/benchmarks");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let made = page(&serde_json::from_str(&read("overload.json")).unwrap());
    assert_eq!(made, read("overload.md"), "make overload writes both");
}
