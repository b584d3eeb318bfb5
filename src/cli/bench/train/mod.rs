//! `evergraph bench train`: epochs of training a model over a whole stream, as `eval` trains: batches in order of time,
//! one random destination per positive, neighbors strictly earlier, prepared ahead. Around the steps the gate scores
//! and changes are published, as in a daemon ([`served`]), unless `--alone` is given.
//!
//! Every epoch starts from an empty state and continues with the weights; each is one measurement. Nothing is held that
//! training does not need, so the peak of resident memory is the cost of training.

mod budget;
mod figures;
pub mod order;
mod served;
pub mod world;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use xxhash_rust::xxh3::Xxh3;

use self::budget::Budget;
use self::figures::{Epoch, Figures, Parts, Verified, print_summary};
use self::order::Order;
use self::served::Served;
use self::world::{Columns, Limits, build, is_generated};
use super::costs::Costs;
use super::{Spread, deliver, per_second};
use crate::cli::device::{DeviceArgs, GpuFacts, GpuUse};
use crate::cli::eval::{ModelName, name_of};
use crate::cli::{machine, output};
use crate::config::{MatmulPrecision, SpillEngine};
use crate::daemon::TierStatus;
use crate::device::cuda::{BusBytes, Launching};
use crate::device::matmul::Precision;
use crate::device::{Device, keep_pages_small};
use crate::feature::FeatureStore;
use crate::graph::GraphStore;
use crate::model::ModelOptions;
use crate::model::walk::WalkOptions;
use crate::sampler::DeviceSampler;
use crate::train::lookahead::{Helper, Lookahead};
use crate::train::{
    DestinationPool, GRADIENT_DELAY_BATCHES, PreparedBatch, TrainError, Trainer, TrainerOptions, World,
};

/// What to train.
#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts
    #[arg(long, value_name = "FILE")]
    events: PathBuf,
    /// What to train: any but the baselines
    #[arg(long, value_enum, default_value_t = ModelName::Tgn)]
    model: ModelName,
    /// Width of the embeddings; 64 for graphmixer and 100 for others if not given
    #[arg(long, alias = "embedding-dim", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    embedding_dimension: Option<u32>,
    /// Score pairs by walks too, beside the embeddings of their ends
    #[arg(long)]
    walks: bool,
    /// Epochs, each of which is one measurement
    #[arg(long, alias = "runs", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: u32,
    /// Events per batch
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch_events: u32,
    /// Train on this many events, the earliest of the file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    events_max: Option<u32>,
    /// Values per generated edge row; 0 is none
    #[arg(long, value_name = "N", default_value_t = 172, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    row_dimension: u32,
    /// Memory for edge rows, such as 64MiB or 25%; all of them if not given
    #[arg(long, alias = "rows-budget", value_name = "BYTES|SHARE")]
    rows_bytes_max: Option<Budget>,
    /// Memory for adjacency, such as 64MiB or 25%; all of it if not given
    #[arg(long, alias = "topology-budget", value_name = "BYTES|SHARE")]
    graph_bytes_max: Option<Budget>,
    /// Folder for what exceeds these limits; the system's folder for temporary files if not given
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// How spilled data is read: the fastest way that works, or plain reads
    #[arg(long, value_enum, default_value_t = SpillEngine::Auto)]
    engine: SpillEngine,
    /// Whether the next batches are prepared beside a step, on a thread of their own, or before it
    #[arg(long, value_enum, default_value_t = Prepare::Beside)]
    prepare: Prepare,
    /// Train alone, without the gate and without publishing
    #[arg(long)]
    alone: bool,
    /// Check every row that is read, and print digests of all samples and rows, in order
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    compute: DeviceArgs,
    /// How a step is launched on a GPU: as one graph, in its turn or recorded ahead, or kernel by kernel
    #[arg(long, value_enum, default_value_t = Launch::Auto)]
    launch: Launch,
    /// Batches over which gradients of the memory of neighbors and negatives are added up before they reach the memory
    /// updater; 0: none (models with messages, on the CPU)
    #[arg(long, value_name = "N", default_value_t = GRADIENT_DELAY_BATCHES)]
    #[arg(value_parser = clap::value_parser!(u64).range(..=50))]
    gradient_delay_batches: u64,
    /// In which numbers the CPU multiplies matrices to train; auto is bf16 on Intel's
    /// CPUs with AMX and AMD's with AVX512-BF16, f32 on others
    #[arg(long, value_enum, default_value_t = MatmulPrecision::Auto)]
    matmul_precision: MatmulPrecision,
    /// Seed of weights, dropout and negatives
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads to compute with; all cores if not given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
}

impl TrainArgs {
    /// The shape of the model, except for the features of the events.
    fn model(&self) -> anyhow::Result<ModelOptions> {
        let name = name_of(self.model);
        let wrong = || format!("--model {name} is a baseline and not trained; `evergraph eval` times it");
        let walk = self.model == ModelName::Walk && self.embedding_dimension.is_some();
        ensure!(
            !walk,
            "--embedding-dimension is for models whose embeddings can have any width; leave it out for walk"
        );
        ensure!(
            !self.walks || self.model != ModelName::Walk,
            "walk scores pairs by walks alone; leave out --walks"
        );
        let walks = WalkOptions { seed: self.seed, ..WalkOptions::default() };
        Ok(self
            .model
            .shaped(self.embedding_dimension)
            .with_context(wrong)?
            .with_walks(self.walks.then_some(walks)))
    }
}

/// Where the next batches are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Prepare {
    /// On a thread beside the step
    Beside,
    /// On the step's thread, before it
    InTurn,
}

/// How a step is launched on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Launch {
    /// The way that took the least time in trials of some steps
    Auto,
    /// As a graph that is recorded while the step before is computed
    Ahead,
    /// Recorded as a graph, with one launch
    Graph,
    /// With a launch for each kernel
    Direct,
}

impl From<Launch> for Launching {
    fn from(launch: Launch) -> Self {
        match launch {
            Launch::Auto => Self::Auto,
            Launch::Ahead => Self::Ahead,
            Launch::Graph => Self::Graph,
            Launch::Direct => Self::Direct,
        }
    }
}

/// Digests of what was read, in the order of the steps.
#[derive(Default)]
struct Digests {
    samples: Xxh3,
    rows: Xxh3,
    wrong: u64,
}

impl Digests {
    fn take(&mut self, batch: &PreparedBatch) {
        let (neighborhood, gathered) = batch.sample_and_rows();
        for graph in neighborhood.graphs() {
            self.samples.update(bytemuck::cast_slice(&graph.edges));
        }
        let Some(width) = gathered.edge_rows().map(|rows| rows.cols()) else { return };
        let mut row = vec![0.0; width];
        for (number, &edge) in gathered.edges().iter().enumerate() {
            gathered.read_edge_row(number, &mut row);
            self.rows.update(bytemuck::cast_slice(&row));
            self.wrong += u64::from(!is_generated(edge, &row));
        }
    }

    fn verified(&self) -> Verified {
        Verified {
            samples_digest: format!("{:016x}", self.samples.digest()),
            rows_digest: format!("{:016x}", self.rows.digest()),
            rows_wrong: self.wrong,
        }
    }
}

/// Runs the benchmark.
pub(super) fn run(args: &TrainArgs) -> anyhow::Result<()> {
    let threads = args.threads.map_or(0, |threads| threads as usize);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let device = args.compute.select()?;
    let figures = pool.install(|| measure(args, device))?;
    print_summary(&figures);
    let wrong = figures.verified.as_ref().map_or(0, |verified| verified.rows_wrong);
    deliver(args.json.as_deref(), "train", pool.current_num_threads(), figures)?;
    ensure!(wrong == 0, "{wrong} of the rows read differ from those stored");
    Ok(())
}

fn measure(args: &TrainArgs, (device, gpu): (Device, Option<GpuFacts>)) -> anyhow::Result<Figures> {
    if args.rows_bytes_max.is_some() || args.graph_bytes_max.is_some() {
        // As the daemon does with a memory budget.
        keep_pages_small().context("the kernel still allocates huge pages")?;
    }
    let columns = Columns::read(&args.events, args.events_max.map_or(usize::MAX, |most| most as usize))?;
    let dimension = args.row_dimension as usize;
    let model = args.model()?.with_features(dimension, 0);
    let folder = args.data.clone().unwrap_or_else(std::env::temp_dir);
    let limits = Limits {
        rows: args.rows_bytes_max,
        topology: args.graph_bytes_max,
        folder: &folder,
        engine: args.engine.into(),
    };
    let (graph, rows) = build(&columns, dimension, limits)?;
    let no_rows = FeatureStore::new(0);
    let (mut trainer, sampler) = trainer(args, model, &device, &graph)?;
    let sampler = sampler.as_ref();
    let world = World { view: graph.view(), edge_features: &rows, node_features: &no_rows, sampler };
    let (mut lookahead, mut served) = around(args, &model)?;
    let mut digests = Digests::default();
    let mut destinations = DestinationPool::new();
    destinations.extend(&columns.dst);
    let mut epochs = Vec::new();
    let (costs, bus) = (Costs::begin(args.compute.energy_meter()), bus(&device));
    for number in 0..args.epochs {
        let negatives = (&destinations, args.seed + u64::from(number));
        let digests = args.verify.then_some(&mut digests);
        let learner = (&mut trainer, &mut lookahead, served.as_mut());
        let epoch = train(args, &columns, &world, learner, negatives, digests)?;
        let rate = per_second(columns.len(), epoch.seconds);
        output::print_status(&format!("epoch {}: {rate:.0} events/s, loss {:.4}", number + 1, epoch.loss));
        epochs.push(epoch);
    }
    let trained = columns.len() * epochs.len();
    let [cpu, energy] = costs.per_million(trained);
    let published = served.as_ref().map_or(0, Served::bytes);
    let parts = parts(&columns, &graph, &rows, (&trainer, &lookahead, published));
    let rates = Spread::of(epochs.iter().map(|epoch| per_second(columns.len(), epoch.seconds)));
    let (last, middle) = (epochs.last().copied().unwrap_or_default(), Epoch::middle(&epochs));
    Ok(Figures {
        model: name_of(args.model),
        device: args.compute.device.to_string(),
        gpu,
        matmul_precision: trainer.precision().map(Precision::name),
        gpu_use: GpuUse::of(&trainer, sampler, (bus, trained)),
        cpu_seconds_per_million_events: cpu,
        gpu_joules_per_million_events: energy,
        embedding_dimension: model.needs().embedding_dim,
        events: columns.len(),
        nodes: columns.nodes,
        epochs: args.epochs,
        batch_events: args.batch_events,
        row_dimension: dimension,
        events_per_second: rates.median,
        events_per_second_spread: rates,
        phase_seconds: middle.phases,
        epoch_seconds: middle.seconds,
        gate_ratio: served.map(|_| middle.phases.gate / middle.seconds.max(1e-9)),
        loss: last.loss,
        each_epoch: epochs,
        peak_resident_bytes: machine::peak_resident_bytes().unwrap_or(0),
        parts_bytes: parts,
        rows_gathered: middle.rows,
        topology_spill: graph.spill_stats().map(TierStatus::from),
        rows_spill: rows.tiered_stats().map(TierStatus::from),
        verified: args.verify.then(|| digests.verified()),
    })
}

/// Bytes that went over the bus to and from a GPU.
fn bus(device: &Device) -> BusBytes {
    match device {
        Device::Cpu => BusBytes::default(),
        Device::Cuda(work) => work.cuda().bus(),
    }
}

/// The trainer, as in the daemon on that device, and what samples the graph for it there.
fn trainer(
    args: &TrainArgs,
    model: ModelOptions,
    device: &Device,
    graph: &GraphStore,
) -> anyhow::Result<(Trainer, Option<DeviceSampler>)> {
    let (gradient_delay_batches, seed) = (args.gradient_delay_batches, args.seed);
    let precision = args.matmul_precision.checked()?;
    let options =
        TrainerOptions { model, gradient_delay_batches, precision, seed, ..TrainerOptions::default() };
    let mut trainer = Trainer::new(options, device)?;
    args.compute.prepare(&mut trainer);
    if let Device::Cuda(work) = device {
        work.launch_steps(args.launch.into());
    }
    let sampler = trainer.device_sampler();
    let sampler = if args.verify { sampler.map(DeviceSampler::whole) } else { sampler };
    sampler.iter().for_each(|sampler| sampler.open(graph));
    Ok((trainer, sampler))
}

/// Prepares batches, and the gate and publishing.
fn around(args: &TrainArgs, model: &ModelOptions) -> anyhow::Result<(Lookahead, Option<Served>)> {
    let lookahead = Lookahead::new(match args.prepare {
        Prepare::Beside => Helper::new(),
        Prepare::InTurn => Helper::in_turn(),
    });
    if args.alone {
        return Ok((lookahead, None));
    }
    Ok((lookahead.publishing(), Some(Served::new(&model.needs())?)))
}

/// One epoch from an empty state.
fn train(
    args: &TrainArgs,
    columns: &Columns,
    world: &World<'_>,
    (trainer, lookahead, mut served): (&mut Trainer, &mut Lookahead, Option<&mut Served>),
    (destinations, seed): (&DestinationPool, u64),
    mut digests: Option<&mut Digests>,
) -> Result<Epoch, TrainError> {
    trainer.reset_state();
    let (mut epoch, mut batches) = (Epoch::default(), 0_u32);
    let step = |trainer: &mut Trainer, batch: &PreparedBatch, next: Option<&PreparedBatch>| match &mut served
    {
        Some(served) => served.step(trainer, (batch, next)),
        None => trainer.step_and_begin(batch, next),
    };
    let order = Order { columns, destinations, seed, batch_events: args.batch_events as usize, first: 0 };
    order.run((trainer, lookahead), world, step, |turn| {
        epoch.seconds += turn.seconds;
        epoch.phases.add(&turn.report.phases, turn.waited_seconds);
        epoch.loss += f64::from(turn.report.loss);
        epoch.rows += turn.batch.sample_and_rows().1.edges().len() as u64;
        batches += 1;
        if let Some(digests) = &mut digests {
            digests.take(turn.batch);
        }
        Ok::<_, TrainError>(())
    })?;
    epoch.loss /= f64::from(batches.max(1));
    if let Some(served) = served {
        epoch.phases.gate = std::mem::take(&mut served.gate_seconds);
        epoch.phases.publish = std::mem::take(&mut served.publish_seconds);
    }
    Ok(epoch)
}

fn parts(
    columns: &Columns,
    graph: &GraphStore,
    rows: &FeatureStore,
    (trainer, lookahead, published): (&Trainer, &Lookahead, usize),
) -> Parts {
    let state = trainer.state();
    // Weights, their gradients, and the two averages of the optimizer.
    let weights = 4 * trainer.model().parameters.count() * size_of::<f32>();
    Parts {
        stream_columns: columns.bytes() as u64,
        graph: graph.stats().bytes.total(),
        edge_rows: rows.bytes(),
        node_memory: state.memory.bytes() as u64,
        mailbox: state.mailbox.bytes() as u64,
        published: published as u64,
        weights_and_optimizer: weights as u64,
        tape: trainer.buffer_bytes() as u64,
        prepared_batches: lookahead.bytes() as u64,
    }
}
