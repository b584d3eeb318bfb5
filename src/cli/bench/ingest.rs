//! `evergraph bench ingest`: edges per second into the graph, into the durable log and the graph, the latency of a
//! small durable batch, bytes per directed edge as the store counts them, and the growth of the process.

mod dictionary;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::folder::Folder;
use super::source::Source;
use super::{Common, Spread, deliver, per_second, percentile, seconds};
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::daemon::resident_bytes;
use crate::event::EdgeBatch;
use crate::graph::{GraphBytes, GraphStats, GraphStore};
use crate::log::{Frame, Log, LogOptions};

/// Durable batches of the latency measurement, and the events of each.
const SMALL_BATCHES: usize = 500;
const SMALL_EVENTS: usize = 1_000;

/// How to ingest.
#[derive(Debug, Args)]
pub(super) struct IngestArgs {
    #[command(flatten)]
    common: Common,
    /// Copies of the file, one after another in time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    repeat: u32,
    /// Events per batch
    #[arg(long, alias = "batch-size", default_value_t = 1_000_000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    batch_events: u32,
    /// Folder for the log that is written; a temporary folder if not given. It must be on a real disk for the
    /// durable figures to mean anything
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    events: usize,
    directed_edges: u64,
    repeat: u32,
    batch_events: usize,
    memory_events_per_second: f64,
    memory_events_per_second_spread: Spread,
    durable_events_per_second: f64,
    durable_events_per_second_spread: Spread,
    durable_batch_events: usize,
    durable_batch_p50_seconds: f64,
    durable_batch_p99_seconds: f64,
    bytes_per_directed_edge: f64,
    graph_bytes: u64,
    resident_growth_bytes: u64,
    resident_growth_ratio: f64,
    parts: Parts,
    dictionary: Vec<dictionary::Measured>,
}

/// The graph's bytes by purpose.
#[derive(Serialize)]
struct Parts {
    entries: u64,
    slack: u64,
    headers: u64,
    directories: u64,
    locks: u64,
    plan: u64,
}

impl From<GraphBytes> for Parts {
    fn from(bytes: GraphBytes) -> Self {
        let GraphBytes { entries, slack, headers, directories, locks, plan, .. } = bytes;
        Self { entries, slack, headers, directories, locks, plan }
    }
}

/// Runs the benchmark.
pub(super) fn run(args: &IngestArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::print_status(note))?;
    let source = Source::new(&stream, args.repeat, args.batch_events as usize)?;
    let mut batch = source.buffer();
    // The first store is measured for memory: later ones reuse what the allocator kept.
    let filled: Vec<Filled> =
        (0..args.common.runs).map(|_| into_memory(&source, &mut batch)).collect::<anyhow::Result<_>>()?;
    let folder = Folder::new(args.data.as_deref())?;
    let durable: Vec<f64> = (0..args.common.runs)
        .map(|_| durably(&source, &mut batch, folder.path()))
        .collect::<anyhow::Result<_>>()?;
    let mut small = small_batches(&source, folder.path())?;
    small.sort_by(f64::total_cmp);

    let figures = figures(args, &source, &filled, &durable, &small);
    output::print_status(&format!(
        "{} events in {} copies: {:.2} M events/s into memory, {:.2} M events/s durably; {SMALL_EVENTS} durable \
         events in {:.2} ms (p99 {:.2} ms); {:.2} bytes per directed edge, the process grew by {:.2} times that",
        figures.events,
        args.repeat,
        figures.memory_events_per_second / 1e6,
        figures.durable_events_per_second / 1e6,
        figures.durable_batch_p50_seconds * 1e3,
        figures.durable_batch_p99_seconds * 1e3,
        figures.bytes_per_directed_edge,
        figures.resident_growth_ratio,
    ));
    deliver(args.common.json.as_deref(), "ingest", rayon::current_num_threads(), figures)
}

#[allow(clippy::cast_precision_loss)]
fn figures(
    args: &IngestArgs,
    source: &Source<'_>,
    filled: &[Filled],
    durable: &[f64],
    small: &[f64],
) -> Figures {
    let (stats, growth) =
        filled.first().map(|first| (first.stats, first.resident_growth)).unwrap_or_default();
    let graph_bytes = stats.bytes.total();
    let memory = Spread::of(filled.iter().map(|run| run.rate));
    let durable = Spread::of(durable.iter().copied());
    Figures {
        events: source.events(),
        directed_edges: stats.directed_entries,
        repeat: args.repeat,
        batch_events: source.batch_events,
        memory_events_per_second: memory.median,
        memory_events_per_second_spread: memory,
        durable_events_per_second: durable.median,
        durable_events_per_second_spread: durable,
        durable_batch_events: SMALL_EVENTS,
        durable_batch_p50_seconds: percentile(small, 50),
        durable_batch_p99_seconds: percentile(small, 99),
        bytes_per_directed_edge: graph_bytes as f64 / stats.directed_entries.max(1) as f64,
        graph_bytes,
        resident_growth_bytes: growth,
        resident_growth_ratio: growth as f64 / graph_bytes.max(1) as f64,
        parts: stats.bytes.into(),
        dictionary: dictionary::measure(args.common.runs),
    }
}

/// One filled store.
struct Filled {
    /// Events per second.
    rate: f64,
    stats: GraphStats,
    /// Growth of the process's resident bytes while the store exists.
    resident_growth: u64,
}

/// Fills a new store.
fn into_memory(source: &Source<'_>, batch: &mut EdgeBatch) -> anyhow::Result<Filled> {
    // Threads allocate stacks and heaps of their own, so they are started before.
    rayon::broadcast(|_| ());
    let before = resident_bytes();
    let graph = GraphStore::new(source.options);
    let spent = source.timed(batch, |batch| {
        graph.apply(batch)?;
        Ok(())
    })?;
    let resident_growth = resident_bytes().saturating_sub(before);
    Ok(Filled { rate: per_second(source.events(), spent), stats: graph.stats(), resident_growth })
}

/// Events per second into a new log, made durable batch by batch, and a new store.
fn durably(source: &Source<'_>, batch: &mut EdgeBatch, folder: &Path) -> anyhow::Result<f64> {
    let mut log = fresh_log(folder)?;
    let graph = GraphStore::new(source.options);
    let spent = source.timed(batch, |batch| write(&mut log, &graph, batch))?;
    Ok(per_second(source.events(), spent))
}

/// Seconds of each of many small batches into a log and a store, one after another.
fn small_batches(source: &Source<'_>, folder: &Path) -> anyhow::Result<Vec<f64>> {
    let mut log = fresh_log(folder)?;
    let graph = GraphStore::new(source.options);
    let small = source.in_batches_of(SMALL_EVENTS);
    let (mut batch, mut took) = (EdgeBatch::default(), Vec::new());
    for first in (0..small.events()).step_by(SMALL_EVENTS).take(SMALL_BATCHES) {
        small.fill(&mut batch, first, SMALL_EVENTS);
        let (spent, done) = seconds(|| write(&mut log, &graph, &mut batch));
        done?;
        took.push(spent);
    }
    Ok(took)
}

/// Makes `batch` durable, then applies it.
fn write(log: &mut Log, graph: &GraphStore, batch: &mut EdgeBatch) -> anyhow::Result<()> {
    let frame = Frame { batch: std::mem::take(batch), ..Frame::default() };
    log.append(&frame)?;
    log.commit()?;
    graph.apply(&frame.batch)?;
    *batch = frame.batch;
    Ok(())
}

fn fresh_log(folder: &Path) -> anyhow::Result<Log> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(Log::open(LogOptions { dir: folder.to_path_buf(), segment_bytes: 256 << 20 })?.0)
}
