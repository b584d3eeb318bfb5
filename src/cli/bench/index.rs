//! `evergraph bench index`: the live index alone, over a generated graph and random node states.
//!
//! ```text
//! fill      every row is computed, on one thread            -> rows per second
//! single    one source per query, one query at a time       -> latencies
//! batched   several sources per query, a query per thread   -> sources per second
//! ```
//! A query is what a request does without HTTP: the source is embedded, all rows are scanned, and what was found is
//! embedded and scored anew. Bytes scanned per second stand beside what the same number of threads reads of plain
//! memory in the same run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;

use super::{deliver, per_second, percentile, seconds};
use crate::cli::output;
use crate::config::Config;
use crate::device::{Device, DeviceBuffer, rng};
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, NodeKey};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};
use crate::model::{Model, Weights};
use crate::serving::{
    Candidates, IndexLoop, IndexOptions, NodeStates, Progress, QueryEngine, SimilarItem, SimilarRequest,
    SimilarTo, Stores, TopRequest, TopSource,
};

/// Events of a node, on average, as a source and as a destination.
const EVENTS_PER_NODE: u32 = 4;
/// Events that the graph takes at a time.
const BATCH_EVENTS: u32 = 100_000;
/// Values that are read to measure memory.
const READ_VALUES: usize = 64 << 20;
const READ_RUNS: usize = 5;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct IndexArgs {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Values of an embedding
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4096))]
    dimension: u32,
    /// Results for each source
    #[arg(long, value_name = "K", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Queries of each part
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    queries: u32,
    /// Sources of a batched query
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    batch: u32,
    /// Threads of the batched part; all cores if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    rows: u32,
    dimension: u32,
    limit: u32,
    batch: u32,
    index_bytes: u64,
    fill_rows_per_second: f64,
    read_one_thread_bytes_per_second: f64,
    read_bytes_per_second: f64,
    top_links: Part,
    similar_nodes: Part,
}

/// The figures of one kind of query.
#[derive(Serialize)]
struct Part {
    single_p50_seconds: f64,
    single_p99_seconds: f64,
    /// Bytes of the rows over the median, as a share of what one thread reads.
    single_ratio_to_read: f64,
    batched_per_second: f64,
    /// Bytes of the rows for each query of a batch, as a share of what all threads read: a batch reads rows once for
    /// all its sources, so it is bound by arithmetic.
    batched_ratio_to_read: f64,
}

/// Runs the benchmark.
pub(super) fn run(args: &IndexArgs) -> anyhow::Result<()> {
    let threads = args.threads.map_or_else(rayon::current_num_threads, |threads| threads as usize);
    output::print_status(&format!("{} nodes, {} events each …", args.rows, EVENTS_PER_NODE));
    let engine = Arc::new(engine(args)?);
    let mut index = IndexLoop::new(engine.clone()).context("the engine has an index")?;
    let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let far = Instant::now() + Duration::from_secs(86_400);
    let (filling, filled) = seconds(|| alone.install(|| index.turn(far, &|| true)));
    filled?;
    let held = engine.index.as_ref().map(|index| index.report(&engine.progress, &engine.states.touched));
    let held = held.context("the engine has an index")?;
    ensure!(held.rows == args.rows as usize, "{} of {} nodes have rows", held.rows, args.rows);
    let read = [1, threads].map(read_rate);
    let figures = Figures {
        rows: args.rows,
        dimension: args.dimension,
        limit: args.limit,
        batch: args.batch,
        index_bytes: held.bytes,
        fill_rows_per_second: per_second(held.rows, filling),
        read_one_thread_bytes_per_second: read[0],
        read_bytes_per_second: read[1],
        top_links: part(args, threads, read, &|from, count| top_links(&engine, args, from, count))?,
        similar_nodes: part(args, threads, read, &|from, count| similar(&engine, args, from, count))?,
    };
    output::print_status(&format!("fill: {:.0} rows/s", figures.fill_rows_per_second));
    for (name, part) in [("top links", &figures.top_links), ("similar nodes", &figures.similar_nodes)] {
        output::print_status(&format!(
            "{name}: single p50 {:.1} ms, p99 {:.1} ms ({:.0} % of what one thread reads); {:.0}/s in batches of {}",
            part.single_p50_seconds * 1e3,
            part.single_p99_seconds * 1e3,
            part.single_ratio_to_read * 100.0,
            part.batched_per_second,
            args.batch
        ));
    }
    deliver(args.json.as_deref(), "index", threads, &figures)
}

/// An engine over a random graph, with random node states and fresh weights.
fn engine(args: &IndexArgs) -> anyhow::Result<QueryEngine> {
    let dimension = ("model.embedding_dimension".to_owned(), args.dimension.to_string());
    let options = Config::load(None, &[dimension])?.model_options();
    let model = Model::new(options, 0, &Device::Cpu)?;
    let width = model.needs().row_dim();
    let stores =
        Stores::new(GraphStore::new(GraphOptions::default()), FeatureStore::new(0), FeatureStore::new(0));
    for node in 0..args.rows {
        stores.keys.intern(&NodeKey::Int(i64::from(node)));
    }
    let draw = |event: u64, end: u64| NodeId(rng::below([event, end, 0, 1], args.rows));
    let mut first = 0;
    let events = u64::from(args.rows) * u64::from(EVENTS_PER_NODE) / 2;
    while first < events {
        let mut batch = EdgeBatch { first: EdgeId(first), ..EdgeBatch::default() };
        for event in first..events.min(first + u64::from(BATCH_EVENTS)) {
            batch.push_edge(draw(event, 0), draw(event, 1), EventTime(event.cast_signed()));
        }
        first += batch.len() as u64;
        stores.graph.apply(&batch)?;
    }
    let options = IndexOptions { bytes_max: u64::MAX, cpu_share: 1.0, coalesce: Duration::ZERO };
    let engine = QueryEngine::new(stores, Arc::new(NodeStates::new(width)), Arc::new(Progress::new()));
    let engine = engine.with_index(options);
    let mut row = vec![0.0; width];
    for node in 0..args.rows {
        for (j, value) in row.iter_mut().enumerate() {
            *value = 2.0 * rng::unit_f32([u64::from(node), j as u64, 0, 2]) - 1.0;
        }
        engine.states.touched.set_destination(NodeId(node));
        engine.states.publish(NodeId(node), &row, EventTime(0));
    }
    engine.progress.set_indexed(EdgeId(events));
    engine.progress.set_learned(EdgeId(events));
    engine.publish(Weights::of(model, 1))?;
    Ok(engine)
}

/// Asks for the likeliest destinations of `count` sources.
fn top_links(engine: &QueryEngine, args: &IndexArgs, from: u32, count: u32) -> anyhow::Result<usize> {
    let request = Arc::new(TopRequest {
        limit: args.limit as usize,
        candidates: Candidates { destinations: true, ..Candidates::default() },
        sources: count as usize,
        ..TopRequest::default()
    });
    let source = |i: u32| TopSource { key: key(args, from + i), request: request.clone() };
    let sources: Vec<TopSource> = (0..count).map(source).collect();
    let responses = engine.top_links_of(&[&sources], &engine.moment(None)?)?;
    Ok(responses.iter().flat_map(|response| &response.results).map(|result| result.found.len()).sum())
}

/// Asks for what is like `count` nodes.
fn similar(engine: &QueryEngine, args: &IndexArgs, from: u32, count: u32) -> anyhow::Result<usize> {
    let request = Arc::new(SimilarRequest { limit: args.limit as usize, ..SimilarRequest::default() });
    let item = |i: u32| SimilarItem { to: SimilarTo::Node(key(args, from + i)), request: request.clone() };
    let items: Vec<SimilarItem> = (0..count).map(item).collect();
    Ok(engine.similar_of(&[&items], &engine.moment(None)?)?.len())
}

fn key(args: &IndexArgs, i: u32) -> NodeKey {
    NodeKey::Int(i64::from(rng::below([u64::from(i), 3, 0, 3], args.rows)))
}

/// Measures one kind of query, which is asked about nodes from a number on and so many.
fn part(
    args: &IndexArgs,
    threads: usize,
    [read_one, read_all]: [f64; 2],
    ask: &(dyn Fn(u32, u32) -> anyhow::Result<usize> + Sync),
) -> anyhow::Result<Part> {
    let row_bytes = f64::from(args.rows) * f64::from(args.dimension) * 4.0;
    ask(0, 1)?;
    let mut single = Vec::with_capacity(args.queries as usize);
    for query in 0..args.queries {
        let (took, found) = seconds(|| ask(query, 1));
        ensure!(found? > 0, "nothing was found");
        single.push(took);
    }
    single.sort_by(f64::total_cmp);
    let each = args.queries.div_ceil(args.batch * u32::try_from(threads)?).max(1);
    let (took, done) = seconds(|| {
        std::thread::scope(|scope| {
            let turns = |thread: u32| {
                (0..each)
                    .try_for_each(|turn| ask((thread * each + turn) * args.batch, args.batch).map(|_| ()))
            };
            let all: Vec<_> = (0..threads as u32).map(|thread| scope.spawn(move || turns(thread))).collect();
            all.into_iter()
                .try_for_each(|one| one.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
        })
    });
    done?;
    let batched_per_second = per_second((each * args.batch) as usize * threads, took);
    Ok(Part {
        single_p50_seconds: percentile(&single, 50),
        single_p99_seconds: percentile(&single, 99),
        single_ratio_to_read: row_bytes / percentile(&single, 50) / read_one,
        batched_per_second,
        batched_ratio_to_read: row_bytes * batched_per_second / read_all,
    })
}

/// Bytes per second that threads read of memory beyond any cache, each of a part of its own; the best of some runs.
#[allow(clippy::cast_precision_loss)]
fn read_rate(threads: usize) -> f64 {
    let mut values = DeviceBuffer::<f32>::zeros(&Device::Cpu, READ_VALUES);
    values.as_mut_slice().fill(1.0);
    let values = values.as_slice();
    let sum = |part: &[f32]| {
        let mut sums = [0.0_f32; 64];
        for values in part.chunks_exact(64) {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        std::hint::black_box(sums);
    };
    let once = || {
        let (took, ()) = seconds(|| {
            std::thread::scope(|scope| {
                for part in values.chunks(READ_VALUES.div_ceil(threads)) {
                    scope.spawn(move || sum(part));
                }
            });
        });
        size_of_val(values) as f64 / took
    };
    (0..READ_RUNS).map(|_| once()).fold(0.0, f64::max)
}
