//! `evergraph bench serve`: requests to a daemon that ingests and learns at the same time.
//!
//! The daemon is the one that `serve` runs, in this process, with default settings and a data folder of its own; the
//! requests come over HTTP, from connections in this process too, so the figures include the clients' cost. There are
//! three parts in sequence:
//!
//! ```text
//! single      one node per request, each connection as fast as responses come       -> requests per second
//! batched     many nodes per request, likewise                                      -> embeddings per second
//! scheduled   one node per request, at a fixed rate                                 -> latencies
//! ```
//! Latencies of the last part count from when a request was due, so that a slow response also counts for the requests
//! that it delayed.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::json;

use super::{DaemonArgs, deliver, percentile};
use crate::cli::events::edges;
use crate::cli::output;
use crate::daemon::{Daemon, GeneratedOptions, StatusDocument, log_level};
use crate::device::{rng, wake_promptly};
use crate::ingest::generated::{FEATURE_DIMENSION, GeneratedWorld};
use crate::ingest::produce::{
    HttpTarget, ProduceError, ProduceOptions, ProduceReport, ProduceTarget, produce,
};

/// Requests name nodes of the events that were ingested before the first request, of this many at most.
const EVENTS_NAMED: u64 = 20_000;

/// A response that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Event file that is pushed over HTTP meanwhile, with columns src, dst, ts; the stream of `demo` if
    /// not given
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Events per second that are ingested and learned from meanwhile
    #[arg(long, value_name = "RATE", default_value_t = 5000.0, value_parser = rate)]
    events_per_second: f64,
    /// Seconds of events before the first request
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    warm_up: u64,
    /// Seconds of each part
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Concurrent connections
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    connections: u32,
    /// Nodes of a batched request
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    batch: u32,
    /// Requests per second of the scheduled part
    #[arg(long, value_name = "RATE", default_value_t = 2000.0, value_parser = rate)]
    requests_per_second: f64,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    single_per_second: f64,
    single_p99_seconds: f64,
    batched_embeddings_per_second: f64,
    batched_p99_seconds: f64,
    batch: u32,
    /// Of the scheduled part.
    target_requests_per_second: f64,
    requests_per_second: f64,
    p50_seconds: f64,
    p99_seconds: f64,
    p999_seconds: f64,
    failed_requests: u64,
    connections: u32,
    target_events_per_second: f64,
    applied_events_per_second: f64,
    trained_events_per_second: f64,
    skipped_events: u64,
    learner_lag_events: u64,
    freshness_p50_seconds: Option<f64>,
    freshness_p99_seconds: Option<f64>,
}

/// Runs the benchmark.
pub(super) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let folder = args.daemon.folder()?;
    let daemon = start(args, folder.path())?;
    let pushing = args.events.as_ref().map(|events| push(events, args.events_per_second, &url(&daemon)));
    output::print_status(&format!("{} s of events before the first request …", args.warm_up));
    std::thread::sleep(Duration::from_secs(args.warm_up));
    let begun = (Instant::now(), daemon.status());
    ensure!(
        begun.1.learner.applied_position > 0,
        "no event was learned from within --warm-up {}",
        args.warm_up
    );

    let keys = names(args.events.as_deref(), begun.1.learner.applied_position.min(EVENTS_NAMED))?;
    let clients = Clients { url: url(&daemon), keys, connections: args.connections, seconds: args.seconds };
    let single = clients.part("single", 1, None)?;
    let batched = clients.part("batched", args.batch as usize, None)?;
    let scheduled = clients.part("scheduled", 1, Some(args.requests_per_second))?;
    if let Some(pushing) = pushing {
        ensure_pushing(pushing)?;
    }
    let figures =
        figures(args, [&single, &batched, &scheduled], (begun.0.elapsed(), &begun.1), &daemon.status());
    daemon.stop()?;
    output::print_status(&format!(
        "at {:.0} events/s applied and {:.0} trained: freshness p50 {}, p99 {}",
        figures.applied_events_per_second,
        figures.trained_events_per_second,
        milliseconds(figures.freshness_p50_seconds),
        milliseconds(figures.freshness_p99_seconds),
    ));
    deliver(args.json.as_deref(), "serve", rayon::current_num_threads(), &figures)?;
    let failed = figures.failed_requests;
    ensure!(failed == 0, "{failed} requests did not return 200; the daemon's log has the reason");
    Ok(())
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if f64::is_finite(rate) && rate > 0.0 => Ok(rate),
        _ => Err("must be a positive number".to_owned()),
    }
}

fn start(args: &ServeArgs, data: &Path) -> anyhow::Result<Daemon> {
    let dimension = if args.events.is_none() { FEATURE_DIMENSION } else { 0 };
    let dimension = format!("stream.edge_feature_dimension={dimension}");
    let config = args.daemon.config(data, &[dimension])?;
    log_level::start(&config.output)?;
    let generated = GeneratedOptions { seed: 0, events_per_second: args.events_per_second };
    let generated = args.events.is_none().then_some(generated);
    Daemon::start(&config, generated, &AtomicBool::new(false))
}

fn url(daemon: &Daemon) -> String {
    format!("http://{}", daemon.address())
}

/// Names of the nodes of the first `count` events as JSON, with duplicates.
fn names(events: Option<&Path>, count: u64) -> anyhow::Result<Vec<String>> {
    let mut keys = Vec::new();
    match events {
        None => {
            let world = GeneratedWorld { seed: 0, era_events: 0 };
            for event in (0..count).map(|i| world.event(i)) {
                keys.extend([event.src, event.dst].map(|key| json!(key.to_string()).to_string()));
            }
        }
        Some(path) => {
            for event in edges(path, &mut output::print_status)?.take(count as usize) {
                let event = event.with_context(|| path.display().to_string())?;
                keys.extend([event.src, event.dst].map(|key| json!(key.to_string()).to_string()));
            }
        }
    }
    ensure!(!keys.is_empty(), "no events whose nodes could be requested");
    Ok(keys)
}

type Pushing = JoinHandle<Result<ProduceReport, ProduceError>>;

/// Pushes the file at this rate, on a thread that ends with the file or some seconds after the daemon.
fn push(events: &Path, events_per_second: f64, url: &str) -> Pushing {
    let target = HttpTarget { give_up_after: PATIENCE, ..HttpTarget::new(url) };
    let mut options = ProduceOptions::new(events, ProduceTarget::Http(target));
    options.events_per_second = Some(events_per_second);
    options.batch_events = ((events_per_second / 100.0) as usize).clamp(1, 1000);
    std::thread::spawn(move || produce(&options, &mut |_| {}))
}

/// Fails if the events ended before the requests.
fn ensure_pushing(pushing: Pushing) -> anyhow::Result<()> {
    if !pushing.is_finished() {
        return Ok(());
    }
    match pushing.join() {
        Ok(Err(error)) => Err(error).context("the push of --events ended before the requests"),
        _ => anyhow::bail!(
            "--events ended before the requests; set fewer --seconds or --events-per-second, or give a longer file"
        ),
    }
}

/// Target and duration of the requests.
struct Clients {
    url: String,
    keys: Vec<String>,
    connections: u32,
    seconds: u64,
}

/// The result of one part.
struct Part {
    /// Ascending.
    seconds: Vec<f64>,
    failed: u64,
    took: f64,
}

impl Clients {
    /// Sends requests from all connections, with `nodes` per request; with a `pace`, so many requests per second in
    /// total.
    fn part(&self, name: &str, nodes: usize, pace: Option<f64>) -> anyhow::Result<Part> {
        let begun = Instant::now();
        let connection = |number: u32| self.connection(begun, number, nodes, pace);
        let (mut seconds, mut failed) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..self.connections).map(|number| scope.spawn(move || connection(number))).collect();
            for one in all {
                let (times, wrong) = one.join().unwrap_or_default();
                seconds.extend(times);
                failed += wrong;
            }
        });
        ensure!(!seconds.is_empty(), "the {name} part: no request succeeded within {} s", self.seconds);
        seconds.sort_by(f64::total_cmp);
        let part = Part { seconds, failed, took: begun.elapsed().as_secs_f64() };
        output::print_status(&format!(
            "{name}: {:.0} requests/s, {:.0} embeddings/s, p50 {}, p99 {}",
            part.per_second(),
            part.per_second() * nodes as f64,
            milliseconds(Some(percentile(&part.seconds, 50))),
            milliseconds(Some(percentile(&part.seconds, 99))),
        ));
        Ok(part)
    }

    /// The latencies of one connection's successful requests in seconds, and the number of failures.
    fn connection(&self, begun: Instant, number: u32, nodes: usize, pace: Option<f64>) -> (Vec<f64>, u64) {
        // A client is on another machine: its waiting for a core here would count as the daemon's latency.
        wake_promptly();
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .into();
        let url = format!("{}/v1/embeddings", self.url);
        let end = begun + Duration::from_secs(self.seconds);
        let (mut seconds, mut failed) = (Vec::new(), 0);
        for turn in 0_u64.. {
            let due = match pace {
                None => Instant::now(),
                Some(pace) => {
                    let place = turn as f64 * f64::from(self.connections) + f64::from(number);
                    begun + Duration::from_secs_f64(place / pace)
                }
            };
            if due >= end {
                break;
            }
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if self.request(&agent, &url, [u64::from(number), turn], nodes) {
                seconds.push(due.elapsed().as_secs_f64());
            } else {
                failed += 1;
            }
        }
        (seconds, failed)
    }

    /// Whether a request for nodes drawn by `key` succeeded.
    fn request(&self, agent: &ureq::Agent, url: &str, key: [u64; 2], nodes: usize) -> bool {
        let draw = |i: u64| rng::below([key[0], key[1], i, 0], self.keys.len() as u32) as usize;
        let names: Vec<&str> = (0..nodes as u64).map(|i| self.keys[draw(i)].as_str()).collect();
        let body = format!("{{\"nodes\":[{}]}}", names.join(","));
        let response = agent.post(url).header("content-type", "application/json").send(body);
        let Ok(mut response) = response else { return false };
        let read = response.body_mut().read_to_string();
        // The entry of a node that failed has an error.
        response.status() == 200 && read.is_ok_and(|text| !text.contains("\"error\""))
    }
}

impl Part {
    fn per_second(&self) -> f64 {
        self.seconds.len() as f64 / self.took
    }
}

fn figures(
    args: &ServeArgs,
    [single, batched, scheduled]: [&Part; 3],
    (took, before): (Duration, &StatusDocument),
    after: &StatusDocument,
) -> Figures {
    let per_second = |then: u64, now: u64| now.saturating_sub(then) as f64 / took.as_secs_f64();
    let (then, now) = (&before.learner, &after.learner);
    // Per mille.
    let rank = (scheduled.seconds.len() * 999).div_ceil(1000).saturating_sub(1);
    Figures {
        single_per_second: single.per_second(),
        single_p99_seconds: percentile(&single.seconds, 99),
        batched_embeddings_per_second: batched.per_second() * f64::from(args.batch),
        batched_p99_seconds: percentile(&batched.seconds, 99),
        batch: args.batch,
        target_requests_per_second: args.requests_per_second,
        requests_per_second: scheduled.per_second(),
        p50_seconds: percentile(&scheduled.seconds, 50),
        p99_seconds: percentile(&scheduled.seconds, 99),
        p999_seconds: scheduled.seconds.get(rank).copied().unwrap_or(f64::NAN),
        failed_requests: [single, batched, scheduled].iter().map(|part| part.failed).sum(),
        connections: args.connections,
        target_events_per_second: args.events_per_second,
        applied_events_per_second: per_second(then.applied_position, now.applied_position),
        trained_events_per_second: per_second(then.trained_events, now.trained_events),
        skipped_events: now.skipped_events.saturating_sub(then.skipped_events),
        learner_lag_events: now.lag_events,
        freshness_p50_seconds: now.end_to_end_freshness_p50_seconds,
        freshness_p99_seconds: now.end_to_end_freshness_p99_seconds,
    }
}

fn milliseconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{:.2} ms", seconds * 1000.0))
}
