//! `evergraph bench ops`: every operation of a temporal graph network, forward and backward, through the code that
//! training runs, as a share of the machine's peak.
//!
//! Results of other implementations can be compared: `--cases` writes the same inputs and samples of our results as
//! files.

mod cases;
mod ceiling;
mod dense;
mod gpu;
pub mod gpu_layers;
mod graph;
mod groups;
mod indices;
mod inputs;
mod points;
mod rows;
mod step;
mod timing;
mod work;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::{Value, json};

use self::ceiling::Ceilings;
use self::points::{Cache, Point};
use self::timing::{Between, Timed};
use self::work::{Bound, Cost, Work};
use super::deliver;
use crate::cli::device::DeviceArgs;
use crate::cli::{WrongArgument, output};
use crate::config::MatmulPrecision;
use crate::device::DeviceSpec;
use crate::device::matmul::in_precision;
use crate::nn::Reduce;

/// How an operation is made with its inputs.
type Build = fn(&Point) -> anyhow::Result<Box<dyn Work>>;

/// Names, meanings, and how they are made.
const OPERATIONS: &[(&str, &str, Build)] = &[
    ("gather_rows", "rows of a table by index; backward adds them up by index", rows::gather_rows),
    (
        "gather_concat_time",
        "node row, edge row and encoded time difference side by side, in one pass",
        rows::gather_concat_time,
    ),
    ("slot_sum", "sum over the occupied ones of K slots", |point| groups::slot_reduce(point, Reduce::Sum)),
    ("slot_mean", "mean over the occupied ones of K slots", |point| groups::slot_reduce(point, Reduce::Mean)),
    ("segment_sum", "sum over segments of rows given by offsets", |point| {
        groups::segment_reduce(point, Reduce::Sum)
    }),
    ("segment_mean", "mean over segments of rows given by offsets", |point| {
        groups::segment_reduce(point, Reduce::Mean)
    }),
    (
        "slot_attention",
        "attention over the occupied ones of K slots with keys and values",
        groups::slot_attention,
    ),
    ("gru_cell", "one step of a GRU", dense::gru_cell),
    ("time_encoding", "cosine of a learned linear function of time differences", dense::time_encoding),
    ("layer_norm", "normalisation of rows", dense::layer_norm),
    ("linear", "matrix product with a bias", dense::linear),
    ("sample_recent", "the K most recent edges of each seed", graph::sample_recent),
    ("unique", "distinct ids and the place of each among them", graph::unique),
    ("scatter_last", "the last row for each index, as node memory is written", rows::scatter_last),
    ("adam", "one step of the optimizer", dense::adam),
    ("reference_step", "a whole training step: forward, backward, optimizer", step::reference_step),
];

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct OpsArgs {
    /// Only this operation; may be given several times
    #[arg(long = "op", value_name = "NAME")]
    ops: Vec<String>,
    /// Print the names of the operations and exit
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    compute: DeviceArgs,
    /// Threads to compute with; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Only a dozen points, in less than a minute
    #[arg(long)]
    quick: bool,
    /// In which numbers the CPU multiplies matrices, for the peak as well
    #[arg(long, value_enum, default_value_t = MatmulPrecision::F32)]
    matmul_precision: MatmulPrecision,
    /// Runs of each point at least, of which the median counts; fewer where one takes over 100 ms
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Instead of measuring, write to this folder what another implementation needs to compute the same
    #[arg(long, value_name = "DIR")]
    cases: Option<PathBuf>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

/// Runs the benchmark.
pub(super) fn run(args: &OpsArgs) -> anyhow::Result<()> {
    if args.list {
        let lines = OPERATIONS.iter().map(|(name, meaning, _)| format!("{name:<20} {meaning}"));
        return output::print(&lines.collect::<Vec<_>>().join("\n"));
    }
    if args.compute.device != DeviceSpec::Cpu {
        if let Some(op) = args.ops.iter().find(|op| *op != "gather_rows") {
            let why = format!("--op {op}: on a GPU gather_rows is measured, and nothing else");
            return Err(WrongArgument(why).into());
        }
        return gpu::run(args);
    }
    let points = select(args)?;
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(all, |threads| threads as usize);
    match &args.cases {
        Some(folder) => write_cases(folder, &points, threads),
        None => measure(args, &points, threads),
    }
}

/// The points that the arguments name.
fn select(args: &OpsArgs) -> anyhow::Result<Vec<Point>> {
    for op in &args.ops {
        if !OPERATIONS.iter().any(|(name, ..)| name == op) {
            let known: Vec<&str> = OPERATIONS.iter().map(|(name, ..)| *name).collect();
            let why = format!("--op {op}: no such operation; there are {}", known.join(", "));
            return Err(WrongArgument(why).into());
        }
    }
    let wanted = |point: &Point| args.ops.is_empty() || args.ops.iter().any(|op| op == point.op);
    let points: Vec<Point> = points::all()?.into_iter().filter(wanted).collect();
    if !args.quick {
        return Ok(points);
    }
    // An operation without a quick point is measured at its first one, if it is named by `--op`.
    let stands_in = |at: usize| {
        let mut same = points.iter().enumerate().filter(|(_, point)| point.op == points[at].op);
        !args.ops.is_empty() && same.all(|(other, point)| other >= at && !point.quick)
    };
    let chosen = (0..points.len()).filter(|&at| points[at].quick || stands_in(at));
    Ok(chosen.map(|at| points[at].clone()).collect())
}

fn build(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let found = OPERATIONS.iter().find(|(name, ..)| *name == point.op);
    let Some((.., build)) = found else { anyhow::bail!("{}: no such operation", point.op) };
    build(point)
}

fn bar(points: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(points as u64), ProgressDrawTarget::stderr_with_hz(4));
    let template = "{bar:24} {pos}/{len}  {elapsed} elapsed, {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Threads of a point, and the pool with that many.
struct Pools {
    threads: usize,
    all: ThreadPool,
    one: ThreadPool,
}

impl Pools {
    fn new(threads: usize) -> anyhow::Result<Self> {
        let pool = |threads| ThreadPoolBuilder::new().num_threads(threads).build();
        Ok(Self { threads, all: pool(threads)?, one: pool(1)? })
    }

    fn of(&self, point: &Point) -> (usize, &ThreadPool) {
        if point.text("threads").is_ok() { (1, &self.one) } else { (self.threads, &self.all) }
    }
}

fn write_cases(folder: &Path, points: &[Point], threads: usize) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("--cases {}", folder.display()))?;
    let (bar, pools) = (bar(points.len()), Pools::new(threads)?);
    let mut entries = Vec::new();
    for (number, point) in points.iter().enumerate() {
        bar.set_message(point.id());
        let entry = pools.all.install(|| {
            let mut work = build(point)?;
            anyhow::Ok(cases::write(folder, number, point, work.as_mut())?)
        });
        entries.push(entry.with_context(|| point.id())?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    cases::finish(folder, &entries)?;
    output::print_status(&format!("{} points in {}", points.len(), folder.display()));
    Ok(())
}

fn measure(args: &OpsArgs, points: &[Point], threads: usize) -> anyhow::Result<()> {
    let (bar, pools) = (bar(points.len()), Pools::new(threads)?);
    let precision = args.matmul_precision.checked()?;
    let report = |what: &str| bar.set_message(what.to_owned());
    let ceilings = Ceilings::measure((threads, precision), args.quick, report)?;
    let (mut between, mut rows) = (Between::new(), Vec::new());
    for point in points {
        bar.set_message(point.id());
        let (threads, pool) = pools.of(point);
        let mut run = || {
            let mut work = build(point)?;
            between.set(point.cache);
            let timed = timing::time(work.as_mut(), &mut between, args.runs as usize)?;
            anyhow::Ok((timed, work.about().costs, work.about().shape.clone()))
        };
        let measured = pool.install(|| in_precision(precision, &mut run));
        let ((forward, backward), costs, shape) = measured.with_context(|| point.id())?;
        let both = [("forward", Some(forward), Some(costs.0)), ("backward", backward, costs.1)];
        for (direction, timed, cost) in both {
            if let (Some(timed), Some(cost)) = (timed, cost) {
                let row = row(point, direction, &shape, threads, timed, cost, &ceilings);
                bar.suspend(|| output::print_status(&line(&row)));
                rows.push(row);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let precision = precision.name();
    let figures = json!({
        "threads": threads, "device": "cpu", "matmul_precision": precision, "ceilings": ceilings, "rows": rows,
    });
    deliver(args.json.as_deref(), "ops", threads, figures)
}

/// The figures of one direction of one point.
fn row(
    point: &Point,
    direction: &str,
    shape: &[usize],
    threads: usize,
    timed: Timed,
    cost: Cost,
    ceilings: &Ceilings,
) -> Value {
    let (ceiling, height) = ceilings.of(cost.bound, cost.bytes, point.cache == Cache::Cold, threads);
    let (key, amount) = match cost.bound {
        Bound::Copy => ("useful_bytes_per_second", cost.bytes),
        Bound::Matmul => ("useful_flops_per_second", cost.flops),
    };
    let rate = amount / timed.median;
    json!({
        "id": point.id(),
        "op": point.op,
        "shape": shape,
        "params": point.params_json(),
        "device": "cpu",
        "direction": direction,
        "threads": threads,
        "cache": point.cache.name(),
        "seconds": timed.median,
        "p95_seconds": timed.p95,
        "min_seconds": timed.min,
        "runs": timed.runs,
        "bytes_moved": cost.bytes,
        "flops": cost.flops,
        key: rate,
        "ceiling": ceiling,
        "ratio_to_ceiling": rate / height,
    })
}

/// The same for people.
fn line(row: &Value) -> String {
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
    let rate = match row.get("useful_flops_per_second") {
        Some(_) => format!("{:8.1} Gflop/s", number("useful_flops_per_second") / 1e9),
        None => format!("{:8.1} GB/s   ", number("useful_bytes_per_second") / 1e9),
    };
    format!(
        "{:<8} {:>10.1} us  p95 {:>10.1}  {rate} {:>4.0} % of {:<13} {}",
        text("direction"),
        number("seconds") * 1e6,
        number("p95_seconds") * 1e6,
        100.0 * number("ratio_to_ceiling"),
        text("ceiling"),
        text("id"),
    )
}
