//! `evergraph eval`: measures a model on an event file under a named protocol.
//!
//! Progress, notes and a summary go to standard error; the figures are one JSON object. Wires the file
//! readers to `train::evaluate` and measures nothing itself.

mod given;
mod measure;
pub mod plot;
mod progress;
mod report;
mod values;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use super::device::DeviceArgs;
use super::events::read_stream;
use super::output;
use crate::config::{AggregatorKind, MatmulPrecision, StreamTimeUnit};
use crate::device::DeviceSpec;
use crate::model::walk::{Decay, WalkOptions};
use crate::model::{EdgeTypes, ModelOptions};
use crate::train::{GRADIENT_DELAY_BATCHES, met_share};
use progress::ProgressBars;
use report::Report;
pub use values::{BankName, ModelName, NegativesFlag, ProtocolName, SightName, name_of};

/// Measure a model on an event file
#[derive(Args, Clone, Debug)]
pub struct EvalArgs {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts and optionally label, type, f0, f1, …
    #[arg(long, value_name = "FILE")]
    pub events: PathBuf,
    /// What to measure
    #[arg(long, value_enum)]
    pub model: ModelName,
    /// Which pairs EdgeBank holds; also the baseline beside a model under the prequential protocol
    #[arg(long, value_enum, default_value_t = BankName::Unlimited)]
    pub edgebank: BankName,
    /// How to measure: dyglib is the published split at the 0.70 and 0.85 time quantiles with masked
    /// nodes; mrr ranks each event among many candidates on the same split without masked nodes; topk ranks each test
    /// event among all destinations that the stream had before its batch, with the baselines beside;
    /// node-label trains on links and then reads the labels of events' sources out of the model;
    /// prequential tests and then trains on every batch once
    #[arg(long, value_enum, default_value_t = ProtocolName::Dyglib)]
    pub protocol: ProtocolName,
    /// Passes over the training part (all but prequential)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub epochs: u32,
    /// Seed of everything random: weights, dropout, negatives, masked nodes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Events per batch
    #[arg(long, alias = "batch-size", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub batch_events: u32,
    /// Negatives of the test part. Drawn: random destinations; historical pairs, from before the batch;
    /// inductive ones, of these new in the test part (dyglib); under mrr historical is half of them
    /// destinations that the source met in training. Or a file with columns neg_src, neg_dst: one row per
    /// test event (dyglib), or the rows of one event after another (mrr), equally many for each, or any number with a
    /// column event, which numbers the events of the part from 1
    #[arg(long, value_name = "random|historical|inductive|FILE", default_value = "random")]
    pub negatives: NegativesFlag,
    /// Negatives of the validation part, in the same form
    #[arg(long, value_name = "random|historical|inductive|FILE", default_value = "random")]
    pub val_negatives: NegativesFlag,
    /// Nodes whose training edges are left out: column node (dyglib)
    #[arg(long, value_name = "FILE")]
    pub masked: Option<PathBuf>,
    /// Drawn candidates per event (mrr, and topk in validation: 100 if not given); under dyglib each test event is
    /// ranked among this many random destinations as well
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub candidates: Option<u32>,
    /// Step size of Adam
    #[arg(long, default_value_t = 1e-3)]
    pub learning_rate: f64,
    /// Batches over which gradients of the memory of neighbors and negatives are added up before they reach the memory
    /// updater; 0: none (models with messages, on the CPU)
    #[arg(long, value_name = "N", default_value_t = GRADIENT_DELAY_BATCHES)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=50))]
    pub gradient_delay_batches: u64,
    /// In which numbers the CPU multiplies matrices to train; auto is bf16 on Intel's
    /// CPUs with AMX and AMD's with AVX512-BF16, f32 on others
    #[arg(long, value_enum, default_value_t = MatmulPrecision::Auto)]
    pub matmul_precision: MatmulPrecision,
    /// Share of activations dropped while training; 0.4 for graphmixer and 0.1 for others if not given
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Width of the embeddings; 64 for graphmixer and 100 for others if not given; of memory rows too for jodie
    /// (models that learn on batches of samples)
    #[arg(long, alias = "embedding-dim", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub embedding_dimension: Option<u32>,
    /// Types of edges that have a learned row of their own, in order of first appearance; 0: types are ignored (models
    /// that use neighbors, and jodie)
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16))]
    pub edge_types: u16,
    /// Width of such a row
    #[arg(long, alias = "edge-type-dim", value_name = "N", default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub edge_type_dimension: u16,
    /// How a batch's messages for one node are combined; last if not given (tgn, jodie)
    #[arg(long, value_enum)]
    pub aggregator: Option<AggregatorKind>,
    /// Number of time windows; 4 if not given (dysat)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub snapshots: Option<u32>,
    /// Length of each, in the unit of the events' times; a week by --time-unit if not given (dysat)
    #[arg(long, value_name = "TIME", value_parser = clap::value_parser!(u64).range(1..))]
    pub snapshot_width: Option<u64>,
    /// Score pairs by walks too, as walk does, beside the embeddings of their ends (models with embeddings, on the CPU)
    #[arg(long)]
    pub walks: bool,
    /// Share of the negatives of training, and under prequential of all, that are destinations which the source met
    /// before; 0.25 with --walks, 0.1 of walk and otherwise 0 if not given
    #[arg(long, value_name = "SHARE")]
    pub met_negatives: Option<f64>,
    /// Share of the events that are learned from, where all are tested and remembered: what a daemon does that cannot
    /// train on all (models that learn, prequential)
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub train_share: f64,
    /// Edges of the longest walk counted from either node, 1 to 4 (walk, --walks)
    #[arg(long, default_value_t = 3)]
    pub walk_steps: usize,
    /// Length of a projected vector, a multiple of 16 (walk, --walks)
    #[arg(long, default_value_t = 128)]
    pub walk_dimension: usize,
    /// How an edge's weight decays: a rate per unit of time, such as 1e-6, or span:POWER, by that power of the time
    /// since the first event, which needs no unit (walk, --walks)
    #[arg(long, value_name = "RATE|span:POWER", default_value = "span:10")]
    pub walk_decay: Decay,
    /// Events over which a destination's popularity halves (poptrack, topk)
    #[arg(long, value_name = "EVENTS", default_value_t = 1000.0)]
    pub half_life: f64,
    /// Unit of the events' times: models that encode time see seconds
    #[arg(long, value_name = "UNIT", value_enum, default_value_t = StreamTimeUnit::Unspecified)]
    pub time_unit: StreamTimeUnit,
    /// Which edges an event may have as neighbors (models that use neighbors, prequential)
    #[arg(long, value_enum, default_value_t = SightName::WithinBatch)]
    pub sight: SightName,
    /// The device that the model computes on
    #[command(flatten)]
    pub compute: DeviceArgs,
    /// Threads to compute with; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    pub json: Option<PathBuf>,
    /// Write the learning curve as an SVG image to this file: the validation figure of each epoch, or under prequential
    /// the average precision of each tenth of the stream
    #[arg(long, value_name = "OUT.svg", value_parser = output::writable())]
    pub plot: Option<PathBuf>,
}

impl EvalArgs {
    /// The shape of the model, except for the features of the events; `None` for baselines.
    #[allow(clippy::cast_possible_truncation)]
    fn model_options(&self) -> Option<ModelOptions> {
        let types = EdgeTypes::new(self.edge_types.into(), self.edge_type_dimension.into());
        let Self { walk_steps: steps, walk_dimension: dimension, walk_decay: decay, seed, .. } = *self;
        let walks = WalkOptions { steps, dimension, decay, seed, ..WalkOptions::default() };
        let mut options = self.model.shaped(self.embedding_dimension)?.with_edge_types(types);
        options = options.with_walks(self.walks.then_some(walks));
        match &mut options {
            ModelOptions::Dysat(dysat) => {
                dysat.snapshots = self.snapshots.map_or(dysat.snapshots, |count| count as usize);
                let week = dysat.snapshot_width * self.time_unit.ticks_per_second() as usize;
                dysat.snapshot_width = self.snapshot_width.map_or(week, |width| width as usize);
            }
            ModelOptions::Tgn(tgn) => tgn.aggregator = self.aggregator.map_or(tgn.aggregator, Into::into),
            ModelOptions::Walk(walk) => *walk = walks,
            _ => {}
        }
        options = options.with_ticks_per_second(self.time_unit.ticks_per_second());
        Some(self.dropout.map_or(options, |dropout| options.with_dropout(dropout as f32)))
    }

    /// Share of negatives that the source met before.
    fn met_share(&self) -> f64 {
        let of_model = || self.model_options().map_or(0.0, |options| met_share(&options.needs()));
        self.met_negatives.unwrap_or_else(of_model)
    }
}

/// Refuses flags that shape models of another kind than `--model`.
fn refuse_shapes_of_others(args: &EvalArgs) -> anyhow::Result<()> {
    let name = name_of(args.model);
    let learns = args.model != ModelName::Walk && args.model.options().is_some();
    for (flag, given) in [
        ("--embedding-dimension", args.embedding_dimension.is_some()),
        ("--edge-types", args.edge_types > 0),
        ("--walks", args.walks),
    ] {
        ensure!(
            learns || !given,
            "{flag} shapes models that learn on batches of samples, such as tgn; leave it out for --model {name}"
        );
    }
    ensure!(
        learns || args.compute.device == DeviceSpec::Cpu,
        "--device is for models that learn on batches of samples, such as tgn; leave it out for --model {name}"
    );
    for (flag, given) in [
        ("--aggregator", args.aggregator.is_some()),
        ("--gradient-delay-batches", args.gradient_delay_batches > 0),
    ] {
        ensure!(
            matches!(args.model, ModelName::Tgn | ModelName::Jodie) || !given,
            "{flag} is for models with messages, tgn and jodie; leave it out for --model {name}"
        );
    }
    let encodes_time = args.model_options().is_some_and(|model| model.ticks_per_second().is_some());
    ensure!(
        encodes_time || args.model == ModelName::Dysat || args.time_unit == StreamTimeUnit::Unspecified,
        "--time-unit is for models that encode time, such as tgn; leave it out for --model {name}"
    );
    for (flag, given) in
        [("--snapshots", args.snapshots.is_some()), ("--snapshot-width", args.snapshot_width.is_some())]
    {
        ensure!(
            args.model == ModelName::Dysat || !given,
            "{flag} is for dysat; leave it out for --model {name}"
        );
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// When a file cannot be read or does not fit, the stream cannot be split, or the model diverges.
pub fn run(args: &EvalArgs) -> anyhow::Result<()> {
    if let Some(dropout) = args.dropout {
        ensure!((0.0..1.0).contains(&dropout), "--dropout {dropout} is not in 0..1");
    }
    ensure!(
        args.learning_rate > 0.0 && args.learning_rate.is_finite(),
        "--learning-rate {} is not above 0",
        args.learning_rate
    );
    ensure!(
        args.half_life > 0.0 && args.half_life.is_finite(),
        "--half-life {} is not above 0",
        args.half_life
    );
    ensure!((0.0..=1.0).contains(&args.met_share()), "--met-negatives {} is not in 0..=1", args.met_share());
    ensure!((0.0..=1.0).contains(&args.train_share), "--train-share {} is not in 0..=1", args.train_share);
    ensure!(
        args.train_share == 1.0 || args.protocol == ProtocolName::Prequential,
        "--train-share is for --protocol prequential, which trains on every batch once"
    );
    ensure!(
        args.train_share == 1.0 || args.model_options().is_some(),
        "--train-share is for models that learn; leave it out for --model {}",
        name_of(args.model)
    );
    refuse_shapes_of_others(args)?;
    let threads = args.threads.map_or(0, |threads| threads as usize);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .context("cannot start the compute threads")?;
    let report = pool.install(|| measure(args, pool.current_num_threads()))?;
    eprint!("{}", report.summary());
    if let Some(path) = &args.json {
        report.write(path)?;
    }
    if let Some(path) = &args.plot {
        std::fs::write(path, plot::svg(&report.curves(), &[]))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn measure(args: &EvalArgs, threads: usize) -> anyhow::Result<Report> {
    let (device, gpu) = args.compute.select()?;
    let stream = read_stream(&args.events, &mut |note| eprintln!("note: {note}"))?;
    if let Some(unit) = args.model_options().and_then(|model| model.misread_unit(*stream.times().last()?)) {
        let unit = unit.name();
        eprintln!("note: times look like {unit} since 1970; --time-unit {unit} lets the model see seconds");
    }
    let mut report = Report::new(args, &stream, threads);
    report.gpu(gpu.as_ref());
    let mut bars = ProgressBars::new(args.epochs as usize);
    let mut watch = |progress: &_| bars.show(progress);
    let run = measure::Run { args, stream: &stream, device: &device, watch: &mut watch };
    match args.protocol {
        ProtocolName::Dyglib => run.dyglib(&mut report),
        ProtocolName::Mrr => run.mrr(&mut report),
        ProtocolName::Topk => run.topk(&mut report),
        ProtocolName::NodeLabel => run.node_label(&mut report),
        ProtocolName::Prequential => run.prequential(&mut report),
    }?;
    Ok(report)
}
