//! `evergraph bench index`: the live index alone, over a generated graph and random node states.
//!
//! ```text
//! fill      every row is computed, on one thread            -> rows per second
//! single    one source per query, one query at a time       -> latencies
//! batched   several sources per query, a query per thread   -> sources per second
//! recall    what is found of the best of all nodes          -> share
//! beside    one query at a time while nodes change          -> latencies
//! ```
//! A query is what a request does without HTTP: the source is embedded, all rows are scanned, and what was found is
//! embedded and scored anew. Bytes scanned per second stand beside what the same number of threads reads of plain
//! memory in the same run.

mod memory;
mod recall;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Serialize;

use self::memory::read_rate;
use self::recall::{Recall, recall};
use super::{deliver, per_second, percentile, seconds};
use crate::cli::output;
use crate::config::{Config, RowPrecision};
use crate::device::{Device, rng};
use crate::event::{EdgeBatch, EdgeId, EventTime, NodeId, NodeKey};
use crate::feature::FeatureStore;
use crate::graph::{GraphOptions, GraphStore};
use crate::model::{Model, Weights};
use crate::serving::{
    Candidates, IndexLoop, IndexOptions, IndexPrecision, NodeEmbedding, NodeStates, Progress, QueryEngine,
    SimilarItem, SimilarRequest, SimilarResult, SimilarTo, Stores, TopRequest, TopSource, UnknownKeys,
};

/// Events of a node, on average, as a source and as a destination.
const EVENTS_PER_NODE: u32 = 4;
/// Events that the graph takes at a time.
const BATCH_EVENTS: u32 = 100_000;
/// How often nodes change, and how often the index takes what has changed.
const CHANGES: Duration = Duration::from_millis(10);
const COALESCE: Duration = Duration::from_millis(100);
/// Embeddings that are computed at a time to be written or compared.
const SLICE_ROWS: usize = 10_000;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct IndexArgs {
    /// Nodes
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    rows: u32,
    /// Values of an embedding
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=4096))]
    dimension: u32,
    /// In which numbers rows are kept
    #[arg(long, value_enum, default_value = "f32")]
    precision: RowPrecision,
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
    /// Nodes that change per second in the last part
    #[arg(long, value_name = "N", default_value_t = 5000)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    updates: u32,
    /// Write the embeddings of all nodes to this file, 32-bit floats in little-endian order, to measure others by
    #[arg(long, value_name = "FILE")]
    vectors: Option<PathBuf>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Figures {
    rows: u32,
    dimension: u32,
    precision: RowPrecision,
    limit: u32,
    batch: u32,
    index_bytes: u64,
    fill_rows_per_second: f64,
    read_one_thread_bytes_per_second: f64,
    read_bytes_per_second: f64,
    top_links: Part,
    similar_nodes: Part,
    beside_updates: Beside,
}

/// Queries while nodes change.
#[derive(Serialize)]
struct Beside {
    updated_rows_per_second: f64,
    /// Rows that were not computed anew when the queries ended.
    pending_rows: usize,
    top_links_p50_seconds: f64,
    top_links_p99_seconds: f64,
    similar_nodes_p50_seconds: f64,
    similar_nodes_p99_seconds: f64,
    /// Share of the most similar of all nodes that are found when the changes have ended.
    recall_after: f64,
}

/// The figures of one kind of query.
#[derive(Serialize)]
struct Part {
    single_p50_seconds: f64,
    single_p99_seconds: f64,
    /// Share of the best of all nodes that are found.
    recall: f64,
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
    if let Some(path) = &args.vectors {
        write_vectors(&engine, args, path).with_context(|| path.display().to_string())?;
    }
    let read = [1, threads].map(read_rate);
    let Recall { top_links: recall_of_top, similar_nodes: recall_of_similar } = recall(&engine, args)?;
    let figures = Figures {
        rows: args.rows,
        dimension: args.dimension,
        precision: args.precision,
        limit: args.limit,
        batch: args.batch,
        index_bytes: held.bytes,
        fill_rows_per_second: per_second(held.rows, filling),
        read_one_thread_bytes_per_second: read[0],
        read_bytes_per_second: read[1],
        top_links: part(args, threads, (read, recall_of_top), &|from, count| {
            Ok(likeliest(&engine, args, from, count)?.len())
        })?,
        similar_nodes: part(args, threads, (read, recall_of_similar), &|from, count| {
            Ok(like(&engine, args, from, count)?.len())
        })?,
        beside_updates: beside_updates(&engine, index, args)?,
    };
    output::print_status(&format!("fill: {:.0} rows/s", figures.fill_rows_per_second));
    for (name, part) in [("top links", &figures.top_links), ("similar nodes", &figures.similar_nodes)] {
        output::print_status(&format!(
            "{name}: recall {:.3}; single p50 {:.1} ms, p99 {:.1} ms ({:.0} % of what one thread reads); {:.0}/s in \
             batches of {}",
            part.recall,
            part.single_p50_seconds * 1e3,
            part.single_p99_seconds * 1e3,
            part.single_ratio_to_read * 100.0,
            part.batched_per_second,
            args.batch
        ));
    }
    let beside = &figures.beside_updates;
    output::print_status(&format!(
        "beside {:.0} changes/s: top links p50 {:.1} ms, p99 {:.1} ms; similar nodes p50 {:.1} ms, p99 {:.1} ms",
        beside.updated_rows_per_second,
        beside.top_links_p50_seconds * 1e3,
        beside.top_links_p99_seconds * 1e3,
        beside.similar_nodes_p50_seconds * 1e3,
        beside.similar_nodes_p99_seconds * 1e3,
    ));
    deliver(args.json.as_deref(), "index", threads, &figures)
}

/// Writes the embedding of every node, by its number.
fn write_vectors(engine: &QueryEngine, args: &IndexArgs, path: &Path) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for_each_slice(engine, args, |_, vectors| {
        Ok(vectors.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))?)
    })?;
    Ok(out.flush()?)
}

/// Goes through all nodes, [`SLICE_ROWS`] at a time: their keys and embeddings `[nodes, dimension]`.
fn for_each_slice(
    engine: &QueryEngine,
    args: &IndexArgs,
    mut each: impl FnMut(&[NodeKey], &[f32]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let nodes: Vec<NodeKey> = (0..args.rows).map(|node| NodeKey::Int(i64::from(node))).collect();
    nodes.chunks(SLICE_ROWS).try_for_each(|nodes| each(nodes, &embeddings(engine, nodes)?))
}

/// `[nodes, dimension]`.
fn embeddings(engine: &QueryEngine, nodes: &[NodeKey]) -> anyhow::Result<Vec<f32>> {
    let mut out = Vec::new();
    for embedding in engine.embeddings(nodes, None, UnknownKeys::Error)?.embeddings {
        let NodeEmbedding::Found { vector, .. } = embedding else { bail!("a node has no embedding") };
        out.extend(vector);
    }
    Ok(out)
}

/// Asks while nodes get other states, as the learner gives them, and the index follows on a thread of its own.
fn beside_updates(
    engine: &Arc<QueryEngine>,
    mut index: IndexLoop,
    args: &IndexArgs,
) -> anyhow::Result<Beside> {
    let width = engine.model().context("there are weights")?.model().needs().row_dim();
    let (ended, updated) = (AtomicBool::new(false), AtomicU64::new(0));
    let proceed = || !ended.load(Ordering::Acquire);
    let begun = Instant::now();
    let change = || {
        while proceed() {
            let due = (begun.elapsed().as_secs_f64() * f64::from(args.updates)) as u64;
            for number in updated.load(Ordering::Relaxed)..due {
                let node = NodeId(rng::below([number, 4, 0, 4], args.rows));
                engine.states.publish(node, &state(width, number), EventTime(0));
            }
            updated.fetch_max(due, Ordering::Relaxed);
            std::thread::sleep(CHANGES);
        }
    };
    let follow = || {
        while proceed() {
            index.turn(Instant::now() + COALESCE, &proceed)?;
            std::thread::sleep(COALESCE);
        }
        anyhow::Ok(())
    };
    std::thread::scope(|scope| {
        scope.spawn(change);
        let following = scope.spawn(follow);
        let top = singles(args, &|from, count| Ok(likeliest(engine, args, from, count)?.len()));
        let similar = singles(args, &|from, count| Ok(like(engine, args, from, count)?.len()));
        let held = engine.index.as_ref().map(|index| index.report(&engine.progress, &engine.states.touched));
        let (all, took) = (updated.load(Ordering::Relaxed), begun.elapsed().as_secs_f64());
        ended.store(true, Ordering::Release);
        following.join().unwrap_or_else(|_| bail!("the index panicked"))?;
        let (top, similar) = (top?, similar?);
        Ok(Beside {
            updated_rows_per_second: per_second(all as usize, took),
            pending_rows: held.context("the engine has an index")?.state.pending_nodes,
            top_links_p50_seconds: percentile(&top, 50),
            top_links_p99_seconds: percentile(&top, 99),
            similar_nodes_p50_seconds: percentile(&similar, 50),
            similar_nodes_p99_seconds: percentile(&similar, 99),
            recall_after: recall(engine, args)?.similar_nodes,
        })
    })
}

/// The `number`th random state.
fn state(width: usize, number: u64) -> Vec<f32> {
    (0..width).map(|j| 2.0 * rng::unit_f32([number, j as u64, 0, 2]) - 1.0).collect()
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
    let (bytes_max, precision) = (u64::MAX, args.precision.into());
    let options = IndexOptions { bytes_max, precision, cpu_share: 1.0, coalesce: Duration::ZERO };
    let engine = QueryEngine::new(stores, Arc::new(NodeStates::new(width)), Arc::new(Progress::new()));
    let engine = engine.with_index(options);
    for node in 0..args.rows {
        engine.states.touched.set_destination(NodeId(node));
        engine.states.publish(NodeId(node), &state(width, u64::from(node)), EventTime(0));
    }
    engine.progress.set_indexed(EdgeId(events));
    engine.progress.set_learned(EdgeId(events));
    engine.publish(Weights::of(model, 1))?;
    Ok(engine)
}

/// The likeliest destinations of `count` sources, one after the other.
fn likeliest(engine: &QueryEngine, args: &IndexArgs, from: u32, count: u32) -> anyhow::Result<Vec<NodeKey>> {
    let request = Arc::new(TopRequest {
        limit: args.limit as usize,
        candidates: Candidates { destinations: true, ..Candidates::default() },
        sources: count as usize,
        ..TopRequest::default()
    });
    let source = |i: u32| TopSource { key: key(args, from + i), request: request.clone() };
    let sources: Vec<TopSource> = (0..count).map(source).collect();
    let responses = engine.top_links_of(&[&sources], &engine.moment(None)?)?;
    let results = responses.into_iter().flat_map(|response| response.results);
    Ok(results.flat_map(|result| result.found).map(|found| found.key).collect())
}

/// What is like `count` nodes, one after the other.
fn like(engine: &QueryEngine, args: &IndexArgs, from: u32, count: u32) -> anyhow::Result<Vec<NodeKey>> {
    let request = Arc::new(SimilarRequest { limit: args.limit as usize, ..SimilarRequest::default() });
    let item = |i: u32| SimilarItem { to: SimilarTo::Node(key(args, from + i)), request: request.clone() };
    let items: Vec<SimilarItem> = (0..count).map(item).collect();
    let responses = engine.similar_of(&[&items], &engine.moment(None)?)?;
    let found =
        responses.into_iter().flat_map(|response| response.results).filter_map(|result| match result {
            SimilarResult::Found(found) => Some(found),
            SimilarResult::Unknown | SimilarResult::NotFinite => None,
        });
    Ok(found.flatten().map(|found| found.key).collect())
}

fn key(args: &IndexArgs, i: u32) -> NodeKey {
    NodeKey::Int(i64::from(rng::below([u64::from(i), 3, 0, 3], args.rows)))
}

/// The seconds of queries about a node each, one at a time, from short to long.
fn singles(
    args: &IndexArgs,
    ask: &(dyn Fn(u32, u32) -> anyhow::Result<usize> + Sync),
) -> anyhow::Result<Vec<f64>> {
    let mut took = Vec::with_capacity(args.queries as usize);
    for query in 0..args.queries {
        let (seconds, found) = seconds(|| ask(query, 1));
        ensure!(found? > 0, "nothing was found");
        took.push(seconds);
    }
    took.sort_by(f64::total_cmp);
    Ok(took)
}

/// Measures one kind of query, which is asked about nodes from a number on and so many.
fn part(
    args: &IndexArgs,
    threads: usize,
    ([read_one, read_all], recall): ([f64; 2], f64),
    ask: &(dyn Fn(u32, u32) -> anyhow::Result<usize> + Sync),
) -> anyhow::Result<Part> {
    let row_bytes =
        f64::from(args.rows) * IndexPrecision::from(args.precision).bytes_of(args.dimension as usize) as f64;
    ask(0, 1)?;
    let single = singles(args, ask)?;
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
        recall,
        single_ratio_to_read: row_bytes / percentile(&single, 50) / read_one,
        batched_per_second,
        batched_ratio_to_read: row_bytes * batched_per_second / read_all,
    })
}
