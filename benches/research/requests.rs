//! `evergraph-research requests`: sampling requests that other temporal samplers can run too, our results and times.
//! `benches/peers` runs the same requests on them.
//!
//! A batch is 600 events in the order of the stream. Its seeds are their sources, their destinations and one random
//! destination each. [`Ask`] lists the kinds of requests and the edges that each may return.
//!
//! `--write DIR` writes columns without headers, little-endian; the extension is the type:
//!
//! | file | one value per | |
//! |---|---|---|
//! | `src.u32 dst.u32 time.i64` | event | node ids are dense, the row is the edge's id, times ascend |
//! | `first.i64` | batch | its first event; in stream order that is how many have arrived |
//! | `seeds.L.i64` | batch and one more | where its seeds begin in the next two; L is the layer, from 1 |
//! | `node.L.u32 at.L.i64` | seed | the node, and the time before which edges count |
//! | `response.L.i64` | seed and slot | the edges found, newest first, then -1 |

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::Serialize;

use evergraph::cli::bench::{
    BATCH_EVENTS, Common, FANOUT, Spread, batch_nodes, deliver, per_second, request, seconds,
};
use evergraph::cli::events::read_stream;
use evergraph::cli::output;
use evergraph::event::{EdgeBatch, EventTime, NodeId};
use evergraph::graph::{GraphOptions, GraphStore};
use evergraph::sampler::{Layers, SamplingPolicy, Seeds};
use evergraph::train::stream::Stream;

/// What to request.
#[derive(Debug, Args)]
pub struct RequestsArgs {
    #[command(flatten)]
    common: Common,
    /// The kind of request
    #[arg(long, value_enum)]
    ask: Ask,
    /// Layers of neighbors
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    layers: u32,
    /// Batches to request: in stream order the first ones, else evenly over the stream; all if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batches: Option<u32>,
    /// Threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Folder for the events, the requests and the results
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Ask {
    /// In stream order, then the batch is applied: the newest edges that have arrived, of the batch's distinct nodes
    Newest,
    /// In stream order, then the batch is applied: the newest edges that have arrived and are before the seed's time
    Recent,
    /// Of the whole stream: any edges before the seed's time
    Uniform,
    /// Of the whole stream: any edges before the time of the batch's first event
    UniformBatch,
}

impl Ask {
    /// Whether events are applied between requests, and both are timed.
    fn in_stream_order(self) -> bool {
        matches!(self, Self::Newest | Self::Recent)
    }

    fn policy(self) -> SamplingPolicy {
        match self {
            Self::Newest | Self::Recent => SamplingPolicy::Recent,
            Self::Uniform | Self::UniformBatch => SamplingPolicy::Uniform,
        }
    }
}

#[derive(Serialize)]
struct Figures {
    ask: Ask,
    in_stream_order: bool,
    layers: u32,
    fanout: usize,
    events: usize,
    nodes: usize,
    batch_events: usize,
    batches: usize,
    seeds: usize,
    sampled_edges: u64,
    pass_seconds: Spread,
    batches_per_second: Spread,
}

/// Receives the result of a batch.
type Sink<'a> = &'a mut (dyn FnMut(&Layers) -> anyhow::Result<()> + Send);

/// Events to apply, and the seeds to sample before that.
struct Batch {
    events: EdgeBatch,
    nodes: Vec<NodeId>,
    at: Vec<EventTime>,
}

/// Runs the benchmark.
pub fn run(args: &RequestsArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::print_status(note))?;
    let chosen = choose(args, stream.len() / BATCH_EVENTS);
    let batches: Vec<Batch> = chosen.iter().map(|&number| batch(&stream, args.ask, number)).collect();
    let whole = GraphStore::new(GraphOptions::default());
    if !args.ask.in_stream_order() {
        whole.apply(&stream.edge_batch(0..stream.len(), |_| true))?;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads as usize).build()?;
    let mut out = Layers::new();
    let mut pass = |sink: Sink<'_>| pool.install(|| sample_all(&whole, &batches, args, &mut out, sink));
    // The first pass warms up caches and buffers, and its results are written.
    let mut sampled = 0;
    let mut results =
        args.write.as_deref().map(|folder| ResultFiles::create(folder, args.layers)).transpose()?;
    pass(&mut |found| {
        sampled += found.edges();
        results.as_mut().map_or(Ok(()), |results| results.add(found))
    })?;
    if let (Some(folder), Some(results)) = (&args.write, results) {
        results.finish()?;
        write_stream(folder, &stream, &chosen)?;
    }
    let passes: Vec<f64> =
        (0..args.common.runs).map(|_| pass(&mut |_| Ok(()))).collect::<anyhow::Result<_>>()?;
    let figures = Figures {
        ask: args.ask,
        in_stream_order: args.ask.in_stream_order(),
        layers: args.layers,
        fanout: FANOUT,
        events: stream.len(),
        nodes: stream.nodes(),
        batch_events: BATCH_EVENTS,
        batches: batches.len(),
        seeds: batches.iter().map(|batch| batch.nodes.len()).sum(),
        sampled_edges: sampled,
        batches_per_second: Spread::of(passes.iter().map(|&spent| per_second(batches.len(), spent))),
        pass_seconds: Spread::of(passes),
    };
    output::print_status(&format!(
        "{} batches of {} seeds: {:.0} batches/s",
        figures.batches,
        figures.seeds / figures.batches.max(1),
        figures.batches_per_second.median
    ));
    deliver(args.common.json.as_deref(), "requests", args.threads as usize, figures)
}

/// Numbers of the whole batches to request, of `count`.
fn choose(args: &RequestsArgs, count: usize) -> Vec<usize> {
    let wanted = args.batches.map_or(count, |batches| (batches as usize).min(count));
    let evenly = |i: usize| (2 * i + 1) * count / (2 * wanted);
    (0..wanted).map(|i| if args.ask.in_stream_order() { i } else { evenly(i) }).collect()
}

fn rows(number: usize) -> Range<usize> {
    number * BATCH_EVENTS..(number + 1) * BATCH_EVENTS
}

fn batch(stream: &Stream, ask: Ask, number: usize) -> Batch {
    let rows = rows(number);
    let times = &stream.times()[rows.clone()];
    let mut nodes = batch_nodes(stream, rows.clone(), 0);
    if ask == Ask::Newest {
        nodes.sort_unstable();
        nodes.dedup();
    }
    let at = match ask {
        Ask::Newest => vec![EventTime::MAX; nodes.len()],
        Ask::Recent | Ask::Uniform => times.repeat(3),
        Ask::UniformBatch => vec![times[0]; nodes.len()],
    };
    Batch { events: stream.edge_batch(rows, |_| true), nodes, at }
}

/// Samples every batch and returns the seconds that this took, including applying events. What `sink` does
/// with a result is not timed.
fn sample_all(
    whole: &GraphStore,
    batches: &[Batch],
    args: &RequestsArgs,
    out: &mut Layers,
    sink: Sink<'_>,
) -> anyhow::Result<f64> {
    let fresh = GraphStore::new(GraphOptions::default());
    let graph = if args.ask.in_stream_order() { &fresh } else { whole };
    let mut request = request(args.ask.policy(), 0);
    let mut spent = 0.0;
    for (number, batch) in batches.iter().enumerate() {
        request.batch = number as u64;
        let seeds = Seeds { nodes: &batch.nodes, times: &batch.at };
        let (sampling, sampled) = seconds(|| out.sample(graph.view(), seeds, &request, args.layers as usize));
        sampled?;
        sink(out)?;
        spent += sampling;
        if args.ask.in_stream_order() {
            let (applying, applied) = seconds(|| graph.apply(&batch.events));
            applied?;
            spent += applying;
        }
    }
    Ok(spent)
}

/// The files of requests and results of each layer.
struct ResultFiles(Vec<LayerFiles>);

struct LayerFiles {
    begin: i64,
    seeds: BufWriter<File>,
    node: BufWriter<File>,
    at: BufWriter<File>,
    result: BufWriter<File>,
}

impl ResultFiles {
    fn create(folder: &Path, layers: u32) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("--write {}", folder.display()))?;
        let layer = |layer: u32| -> anyhow::Result<LayerFiles> {
            Ok(LayerFiles {
                begin: 0,
                seeds: column(folder, &format!("seeds.{layer}.i64"))?,
                node: column(folder, &format!("node.{layer}.u32"))?,
                at: column(folder, &format!("at.{layer}.i64"))?,
                result: column(folder, &format!("response.{layer}.i64"))?,
            })
        };
        Ok(Self((1..=layers).map(layer).collect::<Result<_, _>>()?))
    }

    /// Adds what was found for one batch.
    fn add(&mut self, found: &Layers) -> anyhow::Result<()> {
        for (files, layer) in self.0.iter_mut().zip(found.layers()) {
            files.seeds.write_all(&files.begin.to_le_bytes())?;
            files.begin += i64::try_from(layer.nodes.len())?;
            put(&mut files.node, layer.nodes.iter().map(|node| node.0.to_le_bytes()))?;
            put(&mut files.at, layer.times.iter().map(|time| time.0.to_le_bytes()))?;
            // No edge is the largest id, which reads as -1.
            put(&mut files.result, layer.graph.edges.iter().map(|edge| edge.0.to_le_bytes()))?;
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<()> {
        for mut files in self.0 {
            files.seeds.write_all(&files.begin.to_le_bytes())?;
            for mut file in [files.seeds, files.node, files.at, files.result] {
                file.flush()?;
            }
        }
        Ok(())
    }
}

fn write_stream(folder: &Path, stream: &Stream, chosen: &[usize]) -> anyhow::Result<()> {
    let firsts = chosen.iter().map(|&number| (rows(number).start as u64).to_le_bytes());
    let node = |node: &NodeId| node.0.to_le_bytes();
    write_column(folder, "src.u32", stream.src().iter().map(node))?;
    write_column(folder, "dst.u32", stream.dst().iter().map(node))?;
    write_column(folder, "time.i64", stream.times().iter().map(|time| time.0.to_le_bytes()))?;
    write_column(folder, "first.i64", firsts)
}

fn write_column<const N: usize>(
    folder: &Path,
    name: &str,
    values: impl Iterator<Item = [u8; N]>,
) -> anyhow::Result<()> {
    let mut file = column(folder, name)?;
    put(&mut file, values)?;
    Ok(file.flush()?)
}

fn column(folder: &Path, name: &str) -> anyhow::Result<BufWriter<File>> {
    let path = folder.join(name);
    Ok(BufWriter::new(File::create(&path).with_context(|| format!("--write {}", path.display()))?))
}

fn put<const N: usize>(
    file: &mut BufWriter<File>,
    values: impl Iterator<Item = [u8; N]>,
) -> std::io::Result<()> {
    values.into_iter().try_for_each(|value| file.write_all(&value))
}
