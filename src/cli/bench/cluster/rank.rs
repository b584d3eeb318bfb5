//! One rank: builds the world that all have, joins the others, and takes the steps of an epoch with them.

use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::figures::{Link, RankReport};
use super::{ClusterArgs, checkpoint};
use crate::cli::bench::train::order::Order;
use crate::cli::bench::train::world::{Columns, Limits, build};
use crate::cli::machine;
use crate::device::Device;
use crate::device::disk::EngineChoice;
use crate::device::exchange::mpi::Mpi;
use crate::device::exchange::{Exchange, ExchangeError, exchange_alike};
use crate::feature::FeatureStore;
use crate::train::lookahead::{Helper, Lookahead};
use crate::train::{DestinationPool, PreparedBatch, Trainer, TrainerOptions, World};

/// Rounds that measure the exchange.
const PROBES: usize = 50;

/// Bytes of a message of those that measure its bandwidth.
const PROBE_BYTES: usize = 1 << 20;

/// Trains with the others, and writes what was measured to `folder`. A rank that fails ends without parting from the
/// others, which `mpiexec` ends then.
pub fn run(args: &ClusterArgs, folder: &Path) -> Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads as usize).build()?;
    pool.install(|| {
        let exchange = Mpi::join(Duration::from_secs(args.deadline_seconds))?;
        let rank = exchange.rank();
        train(args, exchange)?.write(folder, rank)
    })
}

fn train(args: &ClusterArgs, mut exchange: Mpi) -> Result<RankReport> {
    if args.lead && !args.alone && exchange.rank() > 0 {
        return follow(args, exchange);
    }
    let columns = Columns::read(&args.events, args.events_max.map_or(usize::MAX, |most| most as usize))?;
    let dimension = args.row_dimension as usize;
    let folder = std::env::temp_dir();
    let limits = Limits { rows: None, topology: None, folder: &folder, engine: EngineChoice::Auto };
    let (graph, rows) = build(&columns, dimension, limits)?;
    let (options, seed) = (options(args)?, args.seed);
    let link = probe(&mut exchange)?;
    let (rank, ranks) = (exchange.rank(), if args.alone { 1 } else { exchange.ranks() });
    let place = checkpoint::Place { events: columns.len(), batch_events: args.batch_events, seed };
    let mut trainer = match &args.checkpoint {
        Some(path) => checkpoint::restored(path, (&place, options), &mut exchange)?,
        None => Trainer::new(options, &Device::Cpu)?,
    };
    let mut others = None;
    match args.alone {
        true => others = Some(exchange),
        false if args.lead => trainer.lead(Box::new(exchange), &|| ())?,
        false => trainer.join(Box::new(exchange))?,
    }
    let no_rows = FeatureStore::new(0);
    let world = World { view: graph.view(), edge_features: &rows, node_features: &no_rows, sampler: None };
    let mut destinations = DestinationPool::new();
    destinations.extend(&columns.dst);
    let batch_events = args.batch_events as usize;
    let first = columns.len().min(usize::try_from(trainer.steps())?.saturating_mul(batch_events));
    let order = Order { columns: &columns, destinations: &destinations, seed, batch_events, first };
    // In turn: a rank has as many threads as it was given.
    let mut lookahead = Lookahead::new(Helper::in_turn());
    let mut report = RankReport { link, ..RankReport::default() };
    let (cpu, traffic, begun) = (machine::cpu_seconds(), trainer.traffic(), Instant::now());
    let kept = RefCell::new(Ok(()));
    let step = |trainer: &mut Trainer, batch: &PreparedBatch, _: Option<&PreparedBatch>| {
        let done = trainer.step_prepared(batch)?;
        if let Some(path) = &args.checkpoint
            && trainer.steps().is_multiple_of(args.checkpoint_batches)
        {
            // What all go on from is what all have learned.
            trainer.compare_ranks()?;
            if rank == 0 {
                *kept.borrow_mut() = checkpoint::keep(path, &place, trainer);
            }
        }
        Ok(done)
    };
    order.run((&mut trainer, &mut lookahead), &world, step, |turn| {
        let read = turn.batch.rows_read(ranks);
        report.batches += 1;
        report.events += turn.batch.positives().src.len() as u64;
        report.rows_read += read.by_ranks as u64;
        report.rows_distinct += read.distinct as u64;
        kept.replace(Ok(()))
    })?;
    report.seconds = begun.elapsed().as_secs_f64();
    report.cpu_seconds = machine::cpu_seconds().zip(cpu).map_or(0.0, |(end, begin)| end - begin);
    report.exchanged(trainer.traffic(), traffic);
    report.digest = digest(&trainer)?;
    conclude(args, rank, &place, &mut trainer)?;
    trainer.leave()?;
    if let Some(mut others) = others {
        others.leave();
    }
    Ok(report)
}

/// Compares what the ranks have learned, and keeps it if that is asked for.
fn conclude(args: &ClusterArgs, rank: usize, place: &checkpoint::Place, trainer: &mut Trainer) -> Result<()> {
    // Those that follow have no order to compare by.
    if !args.lead {
        trainer.compare_ranks()?;
    }
    match (rank, &args.checkpoint) {
        (0, Some(path)) => checkpoint::keep(path, place, trainer),
        _ => Ok(()),
    }
}

/// Takes the steps of the first rank, which has the stream.
fn follow(args: &ClusterArgs, mut exchange: Mpi) -> Result<RankReport> {
    let link = probe(&mut exchange)?;
    let trainer = Trainer::follow(options(args)?, Box::new(exchange))?;
    let mut trainer = trainer.context("rank 0 has ended")?;
    let (mut batch, mut parcel) = (PreparedBatch::default(), Vec::new());
    let mut report = RankReport { link, ..RankReport::default() };
    let (cpu, mut traffic, begun) = (machine::cpu_seconds(), trainer.traffic(), Instant::now());
    let begin = traffic;
    while trainer.take_order(&mut batch, &mut parcel)? {
        // Without the wait for an order that is none.
        (traffic, report.seconds) = (trainer.traffic(), begun.elapsed().as_secs_f64());
    }
    report.cpu_seconds = machine::cpu_seconds().zip(cpu).map_or(0.0, |(end, begin)| end - begin);
    report.exchanged(traffic, begin);
    report.digest = digest(&trainer)?;
    trainer.leave()?;
    Ok(report)
}

fn options(args: &ClusterArgs) -> Result<TrainerOptions> {
    let model = args.model.shaped(None).context("--model takes no baseline")?;
    let model = model.with_features(args.row_dimension as usize, 0);
    let (precision, seed) = (args.matmul_precision.checked()?, args.seed);
    Ok(TrainerOptions { model, precision, seed, ..TrainerOptions::default() })
}

fn digest(trainer: &Trainer) -> Result<String> {
    let mut learned = Vec::new();
    trainer.save(&mut learned)?;
    Ok(format!("{:016x}", xxh3_64(&learned)))
}

/// Latency and bandwidth of rounds in which every rank sends every other one as much.
fn probe(exchange: &mut Mpi) -> Result<Link> {
    let mut median = |bytes: usize| {
        let sent = vec![0_u8; bytes];
        let mut room = sent.repeat(exchange.ranks());
        let mut seconds = Vec::with_capacity(PROBES);
        for _ in 0..PROBES {
            let begun = Instant::now();
            exchange_alike(exchange, &sent, &mut room)?;
            seconds.push(begun.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        Ok::<_, ExchangeError>(seconds[PROBES / 2])
    };
    let (latency, long) = (median(8)?, median(PROBE_BYTES)?);
    #[allow(clippy::cast_precision_loss)] // a few mebibytes
    let sent = (PROBE_BYTES * (exchange.ranks() - 1)) as f64;
    Ok(Link { latency_seconds: latency, bytes_per_second: sent / (long - latency).max(1e-9) })
}
