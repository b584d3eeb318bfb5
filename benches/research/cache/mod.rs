//! `evergraph-research cache`: how many copies of rows a cache on the device saves under each policy, and what the
//! decisions cost.
//!
//! The rows that training reads are listed first: batches of 600 events in their order, for some epochs, with neighbors
//! sampled as `bench sample` does. Each policy then sees the same rounds, at several sizes. A policy is credited with
//! the rows of a round that it found in the cache, each once, less those that it had copied there before they were
//! needed: what was restored, or what a static cache is filled with. So the figure is the share of copies that were
//! avoided.

pub mod access;
mod page;
mod race;
mod rivals;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use self::access::Access;
pub use self::access::Sampling;
use evergraph::cli::bench::{BATCH_EVENTS, FANOUT, Spread, deliver, seconds};
use evergraph::cli::events::read_first;
use evergraph::cli::output;
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::sampler::SamplingPolicy;
use evergraph::train::stream::Stream;

/// Sizes of the cache as shares of all rows.
const SHARES: [f64; 6] = [0.001, 0.005, 0.01, 0.03, 0.1, 0.2];
/// Epochs that are sampled for the static cache.
const SAMPLED_BEFORE: u64 = 2;
/// What a batch is sampled with.
pub const SAMPLINGS: [Sampling; 2] = [
    Sampling { policy: SamplingPolicy::Recent, layers: 1 },
    Sampling { policy: SamplingPolicy::Uniform, layers: 2 },
];

/// What to replay.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// Event file: CSV or CSV.gz with columns src, dst, ts; may be given again
    #[arg(long, value_name = "FILE", required = true)]
    events: Vec<PathBuf>,
    /// Take this many events of each file, the earliest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    events_max: Option<u32>,
    /// Epochs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    epochs: u32,
    /// Rounds that are known beyond the current one
    #[arg(long, value_name = "ROUNDS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=4096))]
    look_ahead: u32,
    /// Policy to measure; may be given again; all if not given
    #[arg(long, value_enum, value_name = "NAME")]
    policy: Vec<Policy>,
    /// Values per row whose copy is timed
    #[arg(long, value_name = "N", default_value_t = 172, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    row_dimension: u32,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Write a page about them to this file
    #[arg(long, value_name = "OUT.md")]
    page: Option<PathBuf>,
}

/// The policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    /// The row cache: next use among the known rounds, recency beyond
    Ours,
    /// Evicts the row that was used longest ago
    Lru,
    /// Evicts the row that was used least often
    Lfu,
    /// Evicts the row that came first
    Fifo,
    /// Keeps what two earlier epochs sampled most often
    Static,
    /// Knows every round: the ceiling
    Optimum,
}

const POLICIES: [Policy; 6] =
    [Policy::Ours, Policy::Lru, Policy::Lfu, Policy::Fifo, Policy::Static, Policy::Optimum];

#[derive(Serialize)]
struct Figures {
    batch_events: usize,
    fanout: usize,
    epochs: u32,
    look_ahead_rounds: u32,
    row_dimension: u32,
    streams: Vec<StreamFigures>,
}

#[derive(Serialize)]
struct StreamFigures {
    stream: String,
    events: usize,
    nodes: usize,
    accesses: Vec<AccessFigures>,
}

/// Rows of one kind, read by one kind of sampling.
#[derive(Serialize)]
struct AccessFigures {
    sampling: String,
    rows: &'static str,
    rows_count: usize,
    rounds: usize,
    rows_per_round: f64,
    /// Copying one row from memory to memory on this machine.
    copy_row_seconds: f64,
    sizes: Vec<SizeFigures>,
}

#[derive(Serialize)]
struct SizeFigures {
    share_of_rows: f64,
    slots: u32,
    /// Copies avoided over rows read.
    hit_ratio: BTreeMap<Policy, f64>,
    hit_ratio_by_epoch: BTreeMap<Policy, Vec<f64>>,
    ours: Option<OursFigures>,
}

/// More about our cache.
#[derive(Serialize)]
struct OursFigures {
    /// Rows found when needed, including restored ones, over rows read.
    found_ratio: f64,
    restored_ratio: f64,
    evicted: u64,
    bypassed: u64,
    host_bytes: usize,
    /// Time of a decision: median, least and most.
    round_seconds: Spread,
    /// The time that the avoided copies would have taken on this machine.
    avoided_copy_seconds_per_round: f64,
    /// Below this bandwidth of the link the cache pays off.
    break_even_bytes_per_second: f64,
}

/// Measures, and writes the outputs.
pub fn run(args: &CacheArgs) -> anyhow::Result<()> {
    let mut streams = Vec::new();
    for path in &args.events {
        streams.push(measure(args, path)?);
    }
    let figures = Figures {
        batch_events: BATCH_EVENTS,
        fanout: FANOUT,
        epochs: args.epochs,
        look_ahead_rounds: args.look_ahead,
        row_dimension: args.row_dimension,
        streams,
    };
    if let Some(path) = &args.page {
        std::fs::write(path, page::page(&figures)).with_context(|| format!("--page {}", path.display()))?;
    }
    deliver(args.json.as_deref(), "cache", rayon::current_num_threads(), figures)
}

fn measure(args: &CacheArgs, path: &Path) -> anyhow::Result<StreamFigures> {
    let most = args.events_max.map_or(u32::MAX - 1, |most| most.min(u32::MAX - 1));
    let stream = read_first(path, most as usize, &mut |note| output::print_status(note))?;
    let graph = GraphStore::new(GraphOptions::default());
    graph.apply(&stream.edge_batch(0..stream.len(), |_| true))?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    output::print_status(&format!("{name}: {} events, {} nodes", stream.len(), stream.nodes()));
    let mut accesses = Vec::new();
    for sampling in SAMPLINGS {
        let epochs = u64::from(args.epochs);
        let now = sample(&stream, &graph, sampling, 0..epochs)?;
        let frequencies = if args.includes(Policy::Static) {
            sample(&stream, &graph, sampling, epochs..epochs + SAMPLED_BEFORE)?
                .map(|before| before.frequencies())
        } else {
            Default::default()
        };
        for ((access, rows), frequencies) in now.iter().zip(["edges", "nodes"]).zip(&frequencies) {
            accesses.push(compare(args, access, (sampling.name(), rows), frequencies)?);
        }
    }
    Ok(StreamFigures { stream: name, events: stream.len(), nodes: stream.nodes(), accesses })
}

impl CacheArgs {
    fn includes(&self, policy: Policy) -> bool {
        self.policy.is_empty() || self.policy.contains(&policy)
    }
}

impl Sampling {
    /// Its policy, layers and neighbors.
    pub fn name(self) -> String {
        let policy = match self.policy {
            SamplingPolicy::Recent => "recent",
            SamplingPolicy::Uniform => "uniform",
        };
        format!("{policy}_{}x{FANOUT}", self.layers)
    }
}

/// Lists what epochs read, with a progress bar on a terminal.
pub fn sample(
    stream: &Stream,
    graph: &GraphStore,
    sampling: Sampling,
    epochs: std::ops::Range<u64>,
) -> anyhow::Result<[Access; 2]> {
    let rounds = stream.len().div_ceil(BATCH_EVENTS) as u64 * (epochs.end - epochs.start);
    let bar = ProgressBar::with_draw_target(Some(rounds), ProgressDrawTarget::stderr_with_hz(8));
    if let Ok(style) = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} batches, {eta} left") {
        bar.set_style(style);
    }
    bar.set_prefix(format!("sampling {}", sampling.name()));
    let (took, access) = seconds(|| access::sample(stream, graph, sampling, epochs, &bar));
    bar.finish_and_clear();
    output::print_status(&format!("sampled {rounds} batches {} in {took:.1} s", sampling.name()));
    Ok(access?)
}

/// Runs every policy over all rounds, at every size.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // counts fit
fn compare(
    args: &CacheArgs,
    access: &Access,
    (sampling, rows): (String, &'static str),
    frequencies: &[u32],
) -> anyhow::Result<AccessFigures> {
    let copy_row_seconds = race::copy_seconds(access, args.row_dimension as usize)?;
    let next = access.next_uses();
    let rows_per_round = access.len() as f64 / access.rounds() as f64;
    output::print_status(&format!("{sampling} {rows}: {rows_per_round:.0} of {} rows per round", access.of));
    let mut sizes = Vec::new();
    for share in SHARES {
        let slots = ((access.of as f64 * share) as u32).max(1);
        let mut size = SizeFigures {
            share_of_rows: share,
            slots,
            hit_ratio: BTreeMap::new(),
            hit_ratio_by_epoch: BTreeMap::new(),
            ours: None,
        };
        for policy in POLICIES.into_iter().filter(|&policy| args.includes(policy)) {
            let many = slots as usize;
            let hits = match policy {
                Policy::Ours => {
                    let race = race::ours(access, slots, args.look_ahead);
                    size.ours = Some(more(&race, access, args.row_dimension, copy_row_seconds));
                    race.hits
                }
                Policy::Lru => rivals::lru(access, many),
                Policy::Lfu => rivals::lfu(access, many),
                Policy::Fifo => rivals::fifo(access, many),
                Policy::Static => rivals::fixed(access, many, frequencies),
                Policy::Optimum => rivals::optimum(access, many, &next),
            };
            size.hit_ratio.insert(policy, hits.iter().sum::<u64>() as f64 / access.len().max(1) as f64);
            let epochs = hits.iter().zip(access.len_by_epoch());
            let by_epoch = epochs.map(|(&hits, rows)| hits as f64 / rows.max(1) as f64).collect();
            size.hit_ratio_by_epoch.insert(policy, by_epoch);
        }
        output::print_status(&line(&size));
        sizes.push(size);
    }
    let (rows_count, rounds) = (access.of, access.rounds());
    Ok(AccessFigures { sampling, rows, rows_count, rounds, rows_per_round, copy_row_seconds, sizes })
}

#[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
fn more(race: &race::Race, access: &Access, dimension: u32, copy_row_seconds: f64) -> OursFigures {
    let (counts, rows) = (race.counts, race.counts.rows.max(1) as f64);
    let avoided = counts.copies_avoided() as f64 / access.rounds().max(1) as f64;
    let bytes = avoided * f64::from(dimension) * size_of::<f32>() as f64;
    OursFigures {
        found_ratio: counts.hits as f64 / rows,
        restored_ratio: counts.restored as f64 / rows,
        evicted: counts.evicted,
        bypassed: counts.bypassed,
        host_bytes: race.host_bytes,
        round_seconds: race.round_seconds,
        avoided_copy_seconds_per_round: avoided * copy_row_seconds,
        break_even_bytes_per_second: bytes / race.round_seconds.median.max(1e-9),
    }
}

/// One size, as text.
fn line(size: &SizeFigures) -> String {
    let name = |policy: &Policy| format!("{policy:?}").to_lowercase();
    let ratios =
        size.hit_ratio.iter().map(|(policy, ratio)| format!("{} {:5.2}", name(policy), 100.0 * ratio));
    let mut line =
        format!("  {:>5} %  ", 100.0 * size.share_of_rows) + &ratios.collect::<Vec<_>>().join("  ");
    if let Some(ours) = &size.ours {
        line += &format!(
            "   ours decides in {:.0} µs per round and avoids {:.0} µs of copies",
            1e6 * ours.round_seconds.median,
            1e6 * ours.avoided_copy_seconds_per_round
        );
    }
    line
}
