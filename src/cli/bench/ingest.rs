//! `evergraph bench ingest`: edges per second into the graph, into the durable log and the graph, the time
//! that a small durable batch takes, and bytes per directed edge.
//!
//! The file is repeated in time: copy c is shifted by c spans of the file, so that every node's list goes
//! on growing in order, as a stream's does. Node ids are the same in every copy.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::{Common, Spread, deliver, per_second, percentile, seconds};
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::config::Config;
use crate::daemon::resident_bytes;
use crate::event::{EdgeBatch, EdgeId, EventTime};
use crate::graph::{GraphOptions, GraphStats, GraphStore};
use crate::log::{Frame, Log, LogOptions};
use crate::train::stream::Stream;

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
    /// Events of a batch
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    batch_size: u32,
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
    memory_events_per_second: Spread,
    durable_events_per_second: Spread,
    small_batch_events: usize,
    small_batch_p50_seconds: f64,
    small_batch_p99_seconds: f64,
    bytes_per_directed_edge: f64,
    graph_bytes: u64,
    resident_growth_bytes: u64,
    parts: Parts,
}

#[derive(Serialize)]
struct Parts {
    entries: u64,
    slack: u64,
    headers: u64,
    directories: u64,
    locks: u64,
    plan: u64,
}

/// Runs the benchmark.
pub(super) fn run(args: &IngestArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::tell(note))?;
    let source = Source::new(&stream, args.repeat, args.batch_size as usize)?;
    // The first store is measured for memory: later ones reuse what the allocator kept.
    let before = resident_bytes();
    let (first_rate, stats) = into_memory(&source);
    let growth = resident_bytes().saturating_sub(before);
    let runs = args.common.runs as usize;
    let memory: Vec<f64> =
        std::iter::once(first_rate).chain((1..runs).map(|_| into_memory(&source).0)).collect();
    let folder = LogFolder::new(args.data.as_deref())?;
    let durable: Vec<f64> =
        (0..runs).map(|_| durably(&source, folder.path())).collect::<anyhow::Result<_>>()?;
    let mut small = small_batches(&source, folder.path())?;
    small.sort_by(f64::total_cmp);

    let figures = figures(args, &source, &stats, growth, &memory, &durable, &small);
    output::tell(&format!(
        "{} events in {} copies: {:.2} M events/s into memory, {:.2} M events/s durably; {SMALL_EVENTS} durable \
         events in {:.2} ms (p99 {:.2} ms); {:.2} bytes per directed edge",
        figures.events,
        args.repeat,
        figures.memory_events_per_second.median / 1e6,
        figures.durable_events_per_second.median / 1e6,
        figures.small_batch_p50_seconds * 1e3,
        figures.small_batch_p99_seconds * 1e3,
        figures.bytes_per_directed_edge,
    ));
    deliver(args.common.json.as_deref(), "ingest", rayon::current_num_threads(), figures)
}

#[allow(clippy::cast_precision_loss)]
fn figures(
    args: &IngestArgs,
    source: &Source<'_>,
    stats: &GraphStats,
    growth: u64,
    memory: &[f64],
    durable: &[f64],
    small: &[f64],
) -> Figures {
    let bytes = stats.bytes;
    Figures {
        events: source.events(),
        directed_edges: stats.directed_entries,
        repeat: args.repeat,
        batch_events: source.batch_events,
        memory_events_per_second: Spread::of(memory.iter().copied()),
        durable_events_per_second: Spread::of(durable.iter().copied()),
        small_batch_events: SMALL_EVENTS,
        small_batch_p50_seconds: percentile(small, 50),
        small_batch_p99_seconds: percentile(small, 99),
        bytes_per_directed_edge: bytes.total() as f64 / stats.directed_entries.max(1) as f64,
        graph_bytes: bytes.total(),
        resident_growth_bytes: growth,
        parts: Parts {
            entries: bytes.entries,
            slack: bytes.slack,
            headers: bytes.headers,
            directories: bytes.directories,
            locks: bytes.locks,
            plan: bytes.plan,
        },
    }
}

/// The file, repeated, as decoded batches.
struct Source<'a> {
    stream: &'a Stream,
    repeat: usize,
    batch_events: usize,
    /// As the daemon sets them.
    options: GraphOptions,
    /// Time between the first event of one copy and that of the next.
    span: i64,
}

impl<'a> Source<'a> {
    fn new(stream: &'a Stream, repeat: u32, batch_events: usize) -> anyhow::Result<Self> {
        let graph = Config::default_settings()?.graph;
        let options = GraphOptions { shards: graph.shards, page_entries_max: graph.page_entries_max };
        let times = stream.times();
        let span = match (times.first(), times.last()) {
            (Some(first), Some(last)) => last.0.saturating_sub(first.0).saturating_add(1),
            _ => 1,
        };
        Ok(Self { stream, repeat: repeat as usize, batch_events, options, span })
    }

    fn events(&self) -> usize {
        self.stream.len() * self.repeat
    }

    /// Fills `batch` with the events from `first` on, `most` at most.
    #[allow(clippy::cast_possible_wrap)] // copies are few
    fn fill(&self, batch: &mut EdgeBatch, first: usize, most: usize) {
        batch.first = EdgeId(first as u64);
        batch.op.clear();
        batch.src.clear();
        batch.dst.clear();
        batch.time.clear();
        batch.edge_type.clear();
        batch.label.clear();
        let (src, dst, times) = (self.stream.src(), self.stream.dst(), self.stream.times());
        for i in first..self.events().min(first + most) {
            let (copy, row) = (i / self.stream.len(), i % self.stream.len());
            let time = times[row].0.saturating_add(self.span.saturating_mul(copy as i64));
            batch.push_edge(src[row], dst[row], EventTime(time));
        }
    }

    /// Calls `work` with every batch and returns the seconds that `work` took in all.
    fn timed(&self, mut work: impl FnMut(&mut EdgeBatch) -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let (mut batch, mut spent) = (EdgeBatch::default(), 0.0);
        for first in (0..self.events()).step_by(self.batch_events) {
            self.fill(&mut batch, first, self.batch_events);
            let (took, done) = seconds(|| work(&mut batch));
            done?;
            spent += took;
        }
        Ok(spent)
    }
}

/// Events per second into a fresh store, and the store's account.
fn into_memory(source: &Source<'_>) -> (f64, GraphStats) {
    let graph = GraphStore::new(source.options);
    let spent = source.timed(|batch| {
        graph.apply(batch);
        Ok(())
    });
    (per_second(source.events(), spent.unwrap_or(f64::NAN)), graph.stats())
}

/// Events per second into a fresh log, made durable batch by batch, and a fresh store.
fn durably(source: &Source<'_>, folder: &Path) -> anyhow::Result<f64> {
    let mut log = fresh_log(folder)?;
    let graph = GraphStore::new(source.options);
    let spent = source.timed(|batch| write(&mut log, &graph, batch))?;
    Ok(per_second(source.events(), spent))
}

/// Seconds of each of many small batches into a log and a store, one after another.
fn small_batches(source: &Source<'_>, folder: &Path) -> anyhow::Result<Vec<f64>> {
    let mut log = fresh_log(folder)?;
    let graph = GraphStore::new(source.options);
    let small = Source { batch_events: SMALL_EVENTS, ..*source };
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
    graph.apply(&frame.batch);
    *batch = frame.batch;
    Ok(())
}

fn fresh_log(folder: &Path) -> anyhow::Result<Log> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    Ok(Log::open(LogOptions { dir: folder.to_path_buf(), segment_bytes: 256 << 20 })?.0)
}

/// A folder of this run alone, removed at its end.
struct LogFolder(PathBuf);

impl LogFolder {
    fn new(parent: Option<&Path>) -> anyhow::Result<Self> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let folder = parent.join(format!("evergraph-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| format!("--data {}", parent.display()))?;
        Ok(Self(folder))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        // What cannot be removed is in the way of nothing.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
