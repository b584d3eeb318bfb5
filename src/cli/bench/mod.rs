//! `evergraph bench`: times the parts on an event file, and single operations on generated numbers. Every figure is the
//! median of several runs, with their spread beside it, and the same JSON object contains the machine's facts.
//!
//! Measures what the daemon runs, through the same calls; the time of work that only the benchmark does (reading files,
//! making batches) is not included.

mod cluster;
mod costs;
mod decode;
mod folder;
mod index;
mod ingest;
mod learn;
pub mod ops;
mod sample;
mod sample_gpu;
mod serve;
mod source;
mod start;
mod timed;
mod train;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::Value;

use self::folder::Folder;
use super::{ConfigArgs, machine, output};
use crate::config::Config;
use crate::device::rng;
use crate::event::NodeId;
use crate::sampler::{SampleRequest, SamplingPolicy};
use crate::train::stream::Stream;

/// What to time.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Edges into the graph, with and without the durable log, and what they cost in memory
    Ingest(ingest::IngestArgs),
    /// Messages to events: plain ones, and other shapes through a mapping
    Decode(decode::DecodeArgs),
    /// Temporal sampling: recent and uniform, one and two layers, one and more threads
    Sample(sample::SampleArgs),
    /// Training epochs, by phase, and what they cost in memory
    Train(train::TrainArgs),
    /// A daemon that learns a stream: events per second, and how soon new events are learned
    Learn(learn::LearnArgs),
    /// Requests to a daemon that ingests and learns at the same time: throughput, latency and freshness
    Serve(serve::ServeArgs),
    /// The live index: rows computed, the best of all rows found, one question at a time and in batches
    Index(index::IndexArgs),
    /// A start of the daemon on a long log: the time until it is ready, in total and by part
    Start(start::StartArgs),
    /// One epoch of training by several ranks: equal bits, what each computes and exchanges, and the speed that follows
    Cluster(cluster::ClusterArgs),
    /// Every operation of a temporal graph network, forward and backward, as a share of the machine's peak
    Ops(ops::OpsArgs),
}

/// Arguments of every part.
#[derive(Debug, Args)]
pub struct Common {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts
    #[arg(long, value_name = "FILE")]
    pub events: PathBuf,
    /// Number of runs; the median counts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    pub json: Option<PathBuf>,
}

/// Runs the benchmark that the arguments name.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    match &args.part {
        Part::Ingest(args) => ingest::run(args),
        Part::Decode(args) => decode::run(args),
        Part::Sample(args) => sample::run(args),
        Part::Train(args) => train::run(args),
        Part::Learn(args) => learn::run(args),
        Part::Serve(args) => serve::run(args),
        Part::Index(args) => index::run(args),
        Part::Start(args) => start::run(args),
        Part::Cluster(args) => cluster::run(args),
        Part::Ops(args) => ops::run(args),
    }
}

/// Events of a batch whose neighbors are sampled.
pub const BATCH_EVENTS: usize = 600;
/// Edges per seed.
pub const FANOUT: usize = 10;

/// The request for every seed of batch number `batch`.
#[must_use]
pub fn request(policy: SamplingPolicy, batch: u64) -> SampleRequest {
    SampleRequest { policy, fanout: FANOUT, window: None, seed: 0, batch, layer: 0 }
}

/// The nodes of a batch's seeds: the sources of its events, their destinations, and for each event the destination of a
/// random one, which is another in every epoch.
#[must_use]
pub fn batch_nodes(stream: &Stream, rows: Range<usize>, epoch: u64) -> Vec<NodeId> {
    let mut nodes = [&stream.src()[rows.clone()], &stream.dst()[rows.clone()]].concat();
    let length = u32::try_from(stream.len()).unwrap_or(u32::MAX);
    nodes.extend(rows.map(|row| stream.dst()[rng::below([epoch, row as u64, 0, 0], length) as usize]));
    nodes
}

/// Arguments of the parts that run a daemon.
#[derive(Debug, Args)]
struct DaemonArgs {
    /// Folder for the daemon's data; the system's folder for temporary files if not given
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Any setting of the daemon, for example --set model.kind=graphmixer
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

impl DaemonArgs {
    /// A folder of this run alone.
    fn folder(&self) -> anyhow::Result<Folder> {
        Folder::new(self.data.as_deref())
    }

    /// The settings of a daemon in `data` that reads from no other source, with `more` before those of the command
    /// line.
    fn config(&self, data: &Path, more: &[String]) -> anyhow::Result<Config> {
        let fixed = ["ingest.kafka.brokers=", "ingest.file.path=", "output.level=warn"];
        ConfigArgs {
            listen: Some("127.0.0.1:0".to_owned()),
            data: Some(data.display().to_string()),
            set: fixed.iter().map(|pair| (*pair).to_owned()).chain([more, &self.set].concat()).collect(),
            ..ConfigArgs::default()
        }
        .load()
    }
}

/// The median of several measurements and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of measurements, at least one.
    #[must_use]
    pub fn of(measured: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = measured.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        let median = f64::midpoint(at(last / 2), at(sorted.len() / 2));
        Self { median, min: at(0), max: at(last) }
    }
}

/// The smallest measurement that at least `percent` of all do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).clamp(1, sorted.len().max(1));
    sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
}

/// Seconds that `work` takes, and its result.
pub fn seconds<R>(work: impl FnOnce() -> R) -> (f64, R) {
    let started = Instant::now();
    let result = work();
    (started.elapsed().as_secs_f64(), result)
}

/// `count` things per second.
#[must_use]
#[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
pub fn per_second(count: usize, seconds: f64) -> f64 {
    count as f64 / seconds.max(1e-9)
}

/// Things per second of `runs` rounds with `count` each, after one that warms up caches and buffers.
///
/// # Errors
/// That of a round.
pub fn rates(
    runs: u32,
    count: usize,
    mut round: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Spread> {
    round()?;
    let timed = |_| {
        let (spent, done) = seconds(&mut round);
        done.map(|()| per_second(count, spent))
    };
    Ok(Spread::of((0..runs).map(timed).collect::<anyhow::Result<Vec<f64>>>()?))
}

/// Writes the figures to the `--json` target, with the machine's facts.
///
/// # Errors
/// They cannot be written there.
pub fn deliver(
    json: Option<&Path>,
    part: &str,
    threads: usize,
    figures: impl Serialize,
) -> anyhow::Result<()> {
    let mut document = serde_json::json!({ "bench": part, "machine": machine::facts(threads) });
    if let (Value::Object(document), Value::Object(figures)) = (&mut document, serde_json::to_value(figures)?)
    {
        document.extend(figures);
    }
    match json {
        None => Ok(()),
        Some(path) if path.as_os_str() == "-" => output::print(&serde_json::to_string(&document)?),
        Some(path) => std::fs::write(path, serde_json::to_string_pretty(&document)?)
            .with_context(|| format!("--json {}", path.display())),
    }
}

/// The same with what is measured by now, in case that the rest fails. Standard output gets the whole only.
pub fn deliver_so_far(
    json: Option<&Path>,
    part: &str,
    threads: usize,
    figures: impl Serialize,
) -> anyhow::Result<()> {
    deliver(json.filter(|path| path.as_os_str() != "-"), part, threads, figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_percentiles_are_measured_values() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(
            (percentile(&sorted, 50), percentile(&sorted, 99), percentile(&sorted, 100)),
            (100.0, 198.0, 200.0)
        );
        assert_eq!(percentile(&[7.0], 99), 7.0);
    }
}
