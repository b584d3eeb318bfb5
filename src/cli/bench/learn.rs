//! `evergraph bench learn`: how fast a daemon learns a stream, and how soon it has learned what has just arrived.
//!
//! The daemon is the one that `serve` runs, in this process, with a data folder of its own and default settings, but
//! for those by which every event gets a gradient step whatever the lag. What is timed is everything between a
//! producer's file and a response: decoding, the log and its syncs, the graph, the scores of every batch, its step, the
//! gate, publishing. There are two parts in sequence:
//!
//! ```text
//! history   all but the last events of the file, which the daemon replays     -> events per second
//! rounds    the rest, so many events at a time, each pushed over HTTP as soon
//!           as the one before is learned                                      -> seconds until it is learned
//! ```
//! A round is learned when a request that asks for its last position gets its response: that is computed from memory
//! which has every event of the round, and weights had a gradient step for each. (Which weights are served is the
//! gate's decision.) The rate leaves out the first tenth of history, in which buffers grow and a GPU loads its kernels.
//! The lag shows what bounds it: where the learner waits for events, few are behind it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::costs::Costs;
use super::source::Source;
use super::train::world::generate;
use super::{DaemonArgs, Spread, deliver, deliver_so_far, per_second};
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::cli::scrape::values;
use crate::daemon::{Daemon, StatusDocument, log_level};
use crate::event::EdgeBatch;
use crate::ingest::produce::{HttpTarget, ProduceOptions, ProduceTarget, produce};
use crate::learner::step_thread_count;

/// How often it is looked how far the learner is.
const LOOK: Duration = Duration::from_millis(20);
/// Without any progress for so long, the run is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the status may lag behind responses.
const SETTLING: Duration = Duration::from_secs(5);
/// The longest that a request waits for a round by default settings; then it is sent again.
const WAIT_MS: u64 = 10_000;
/// One event in so many, the first ones, is left out of the rate.
const WARM_UP: usize = 10;

/// What to learn.
#[derive(Debug, Args)]
pub(super) struct LearnArgs {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts
    #[arg(long, value_name = "FILE")]
    events: PathBuf,
    /// Copies of the file, one after another in time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Values per generated edge row; 0 is none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    row_dimension: u32,
    /// Rounds of new events after history
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Events of a round
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    round_events: u32,
    #[command(flatten)]
    daemon: DaemonArgs,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    model: &'static str,
    device: String,
    batch_events: usize,
    row_dimension: u32,
    /// Of history.
    events: usize,
    /// Of history but for its first tenth.
    events_per_second: f64,
    /// Of all threads, likewise.
    cpu_seconds_per_million_events: Option<f64>,
    /// What the learner's steps took, in all of history, with what is beside them.
    phase_seconds: Map<String, Value>,
    /// Events that got no gradient step: none.
    skipped_events: u64,
    /// The median of how many events were indexed and not yet learned, in the timed part of history.
    lag_events_median: u64,
    /// Over the last batches.
    average_precision: Option<f64>,
    round_events: u32,
    /// From the begin of a push until a response reflects all of it.
    learned_seconds: Spread,
    /// From the begin of a push until all of it is acknowledged.
    acknowledged_seconds: Spread,
    each_round: Vec<Round>,
}

impl Figures {
    fn print(&self) {
        output::print_status(&format!(
            "{:.0} events/s; {} new events learned after {:.3} s ({:.3} to {:.3})",
            self.events_per_second,
            self.round_events,
            self.learned_seconds.median,
            self.learned_seconds.min,
            self.learned_seconds.max,
        ));
    }
}

#[derive(Clone, Copy, Serialize)]
struct Round {
    acknowledged_seconds: f64,
    learned_seconds: f64,
}

/// The rate of history, and what computing it took.
struct Rate {
    events_per_second: f64,
    cpu_seconds_per_million_events: Option<f64>,
    lag_events_median: u64,
}

/// Runs the benchmark.
pub(super) fn run(args: &LearnArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.events, &mut |note| output::print_status(note))?;
    let folder = args.daemon.folder()?;
    let history = folder.path().join("history.csv");
    let fixed = [
        format!("stream.edge_feature_dimension={}", args.row_dimension),
        format!("ingest.file.path={}", history.display()),
        "learner.lag_target_ms=0".to_owned(),
        format!("learner.lag_events_max={}", u64::from(args.round_events).max(20_000)),
    ];
    let config = args.daemon.config(&folder.path().join("data"), &fixed)?;
    log_level::start(&config.output)?;
    let events =
        Events { source: Source::new(&stream, args.repeat, 1)?, row_dimension: args.row_dimension as usize };
    let new = args.rounds as usize * args.round_events as usize;
    let (batch, threads) = (config.learner.batch_events, step_thread_count(config.learner.threads));
    // In whole batches, of which the last does not wait for more events.
    let count = events.source.events().saturating_sub(new) / batch * batch;
    ensure!(
        count >= WARM_UP * batch,
        "{} events are too few for {} rounds of {} behind {WARM_UP} batches of {batch}; set fewer --rounds or \
         --round-events, or repeat the file with --repeat",
        events.source.events(),
        args.rounds,
        args.round_events,
    );
    events.write(&history, 0..count)?;

    output::print_status(&format!("the daemon learns {count} events of history …"));
    let daemon = Daemon::start(&config, None, &AtomicBool::new(false))?;
    let url = format!("http://{}", daemon.address());
    still_on_device(&daemon, &url)?;
    let rate = replayed(&daemon, count)?;
    let metrics = scrape(&url)?;
    output::print_status(&format!("history: {:.0} events/s", rate.events_per_second));
    let figures = |rounds: Vec<Round>, status: StatusDocument| Figures {
        model: status.learner.model,
        device: status.device,
        batch_events: batch,
        row_dimension: args.row_dimension,
        events: count,
        events_per_second: rate.events_per_second,
        cpu_seconds_per_million_events: rate.cpu_seconds_per_million_events,
        phase_seconds: phases(&metrics),
        skipped_events: status.learner.skipped_events,
        lag_events_median: rate.lag_events_median,
        average_precision: status.learner.average_precision,
        round_events: args.round_events,
        learned_seconds: Spread::of(rounds.iter().map(|round| round.learned_seconds)),
        acknowledged_seconds: Spread::of(rounds.iter().map(|round| round.acknowledged_seconds)),
        each_round: rounds,
    };
    let status = settled(&daemon, count);
    still_on_device(&daemon, &url)?;
    check(&status, count)?;
    deliver_so_far(args.json.as_deref(), "learn", threads, figures(Vec::new(), status))?;
    let rounds = events.rounds(args, (&url, folder.path()), count)?;
    let status = settled(&daemon, count + new);
    still_on_device(&daemon, &url)?;
    daemon.stop()?;
    check(&status, count + new)?;
    let figures = figures(rounds, status);
    figures.print();
    deliver(args.json.as_deref(), "learn", threads, &figures)
}

/// Fails if the daemon could not use the GPU that it was to, or lost it.
fn still_on_device(daemon: &Daemon, url: &str) -> anyhow::Result<()> {
    let metrics = scrape(url)?;
    let is_whole =
        values(&metrics).any(|found| found.name == "evergraph_device_degraded" && found.value == 0.0);
    ensure!(is_whole, "the daemon computes on the CPU; its log has the reason: {}", daemon.status().device);
    Ok(())
}

/// The status once it counts as many events, which it does a moment after responses reflect them.
fn settled(daemon: &Daemon, events: usize) -> StatusDocument {
    let begun = Instant::now();
    loop {
        let status = daemon.status();
        if status.learner.applied_position >= events as u64 || begun.elapsed() > SETTLING {
            return status;
        }
        std::thread::sleep(LOOK);
    }
}

/// Fails if any event was lost on the way, or learned twice.
fn check(status: &StatusDocument, events: usize) -> anyhow::Result<()> {
    let learner = &status.learner;
    let (applied, taken) = (learner.applied_position, learner.trained_events + learner.skipped_events);
    let as_they_are = "leave learner.train and learner.lag_* as they are";
    ensure!(learner.training, "weights are not trained; {as_they_are}");
    ensure!(
        applied == events as u64 && taken == applied,
        "of {events} events {applied} were applied, {} trained on and {} skipped",
        learner.trained_events,
        learner.skipped_events
    );
    ensure!(
        learner.skipped_events == 0,
        "{} events got no gradient step; {as_they_are}",
        learner.skipped_events
    );
    Ok(())
}

/// Waits until `count` events of history are learned.
fn replayed(daemon: &Daemon, count: usize) -> anyhow::Result<Rate> {
    let (mut begun, mut progress, mut lags) = (None, (Instant::now(), 0), Vec::new());
    loop {
        let learner = daemon.status().learner;
        let (applied, now) = (learner.applied_position, Instant::now());
        if applied > progress.1 {
            progress = (now, applied);
        }
        if begun.is_none() && applied >= (count / WARM_UP) as u64 {
            begun = Some((now, applied, Costs::begin(None)));
        }
        if let (true, Some((since, from, costs))) = (applied >= count as u64, &begun) {
            let events = (applied - from) as usize;
            ensure!(
                events > 0,
                "history was learned at once; set --repeat, so that there is time to measure"
            );
            lags.sort_unstable();
            let [cpu_seconds_per_million_events, _] = costs.per_million(events);
            return Ok(Rate {
                events_per_second: per_second(events, (now - *since).as_secs_f64()),
                cpu_seconds_per_million_events,
                lag_events_median: lags.get(lags.len() / 2).copied().unwrap_or(0),
            });
        }
        if begun.is_some() {
            lags.push(learner.lag_events);
        }
        if let Some(fault) = daemon.fault() {
            anyhow::bail!("the daemon failed: {fault}");
        }
        ensure!(
            progress.0.elapsed() < PATIENCE,
            "nothing was learned for {} s after {} of {count} events; the daemon's log has the reason",
            PATIENCE.as_secs(),
            progress.1
        );
        std::thread::sleep(LOOK);
    }
}

/// The events that are learned, as files that a producer has.
struct Events<'a> {
    source: Source<'a>,
    row_dimension: usize,
}

impl Events<'_> {
    /// Writes some of the events as a CSV file.
    fn write(&self, path: &Path, rows: Range<usize>) -> anyhow::Result<()> {
        let write = || {
            let mut file = BufWriter::new(File::create(path)?);
            let mut line = "src,dst,ts".to_owned();
            (0..self.row_dimension).try_for_each(|column| write!(line, ",f{column}"))?;
            writeln!(file, "{line}")?;
            let (mut batch, mut row) = (EdgeBatch::default(), vec![0.0; self.row_dimension]);
            for event in rows {
                self.source.fill(&mut batch, event, 1);
                line.clear();
                write!(line, "{},{},{}", batch.src[0].0, batch.dst[0].0, batch.time[0].0)?;
                generate(event as u64, &mut row);
                // As many digits as measured values have.
                row.iter().try_for_each(|value| write!(line, ",{value:.3}"))?;
                writeln!(file, "{line}")?;
            }
            file.flush()?;
            anyhow::Ok(())
        };
        write().with_context(|| path.display().to_string())
    }

    /// Pushes all rounds from event `first` on, each as soon as the one before is learned.
    fn rounds(
        &self,
        args: &LearnArgs,
        (url, folder): (&str, &Path),
        first: usize,
    ) -> anyhow::Result<Vec<Round>> {
        let events = args.round_events as usize;
        let mut rounds = Vec::new();
        for number in 0..args.rounds as usize {
            let (first, file) = (first + number * events, folder.join(format!("round-{number}.csv")));
            self.write(&file, first..first + events)?;
            let round = self.round(&file, url, first)?;
            output::print_status(&format!(
                "round {}: acknowledged after {:.3} s, learned after {:.3} s",
                number + 1,
                round.acknowledged_seconds,
                round.learned_seconds
            ));
            rounds.push(round);
        }
        Ok(rounds)
    }

    /// Pushes the events of a file, which are those from `first` on, and waits until a response reflects them.
    fn round(&self, file: &Path, url: &str, first: usize) -> anyhow::Result<Round> {
        let mut batch = EdgeBatch::default();
        self.source.fill(&mut batch, first, 1);
        let target = HttpTarget { give_up_after: PATIENCE, ..HttpTarget::new(url) };
        let options = ProduceOptions::new(file, ProduceTarget::Http(target));
        let begun = Instant::now();
        let report = produce(&options, &mut |_| {})?;
        let acknowledged_seconds = begun.elapsed().as_secs_f64();
        ensure!(report.rejected + report.duplicates == 0, "the daemon did not take every event: {report:?}");
        let body = json!({
            "nodes": [batch.src[0].0],
            "min_position": first as u64 + report.sent,
            "wait_ms": WAIT_MS,
        })
        .to_string();
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        while begun.elapsed() < PATIENCE {
            let response = agent
                .post(format!("{url}/v1/embeddings"))
                .header("content-type", "application/json")
                .send(&body)?;
            match response.status().as_u16() {
                200 => {
                    let learned_seconds = begun.elapsed().as_secs_f64();
                    return Ok(Round { acknowledged_seconds, learned_seconds });
                }
                // Not yet.
                412 => {}
                status => anyhow::bail!("{url}/v1/embeddings returned {status}"),
            }
        }
        anyhow::bail!(
            "a round was not learned within {} s; the daemon's log has the reason",
            PATIENCE.as_secs()
        )
    }
}

/// What the daemon exports to Prometheus.
fn scrape(url: &str) -> anyhow::Result<String> {
    let mut response = ureq::get(format!("{url}/metrics")).call()?;
    Ok(response.body_mut().read_to_string()?)
}

/// Seconds of the learner's steps by phase.
fn phases(metrics: &str) -> Map<String, Value> {
    let sums = values(metrics).filter(|found| found.name == "evergraph_train_step_duration_seconds_sum");
    sums.filter_map(|sum| Some((sum.label("phase")?.to_owned(), json!(sum.value)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_what_is_exported() {
        let metrics = "evergraph_train_step_duration_seconds_sum{phase=\"gate\"} 0.25\n\
                       evergraph_train_step_duration_seconds_count{phase=\"gate\"} 3\n";
        assert_eq!(Value::Object(phases(metrics)), json!({ "gate": 0.25 }));
    }
}
