//! `evergraph bench cluster`: one epoch of training by one, two, four or eight ranks, which `mpiexec` of Open MPI
//! starts on this machine: whether all learn the same bits, what each computes and exchanges, and what that makes of
//! the speed on machines of their own ([`figures`]). [`rank`] is what one rank does.
//!
//! More ranks than cores take turns. What a rank computes is therefore counted in its CPU time, and speed by the clock
//! says something only as long as each rank has a core.

mod checkpoint;
mod figures;
mod rank;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::Args;

use self::figures::{Figures, Network, RankReport, Run, print_summary};
use super::deliver;
use crate::cli::eval::{ModelName, name_of};
use crate::cli::output;
use crate::config::MatmulPrecision;
use crate::device::exchange::mpi::LOST;
use crate::train::RANKS_MAX;

/// What to train, and by how many.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Event file: CSV, CSV.gz, JSON lines or Parquet with columns src, dst, ts
    #[arg(long, value_name = "FILE")]
    events: PathBuf,
    /// Numbers of ranks to measure, one after another: powers of two, 8 at most
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4")]
    ranks: Vec<u32>,
    /// What to train: a model with embeddings, whose samples have one layer
    #[arg(long, value_enum, default_value_t = ModelName::Tgn)]
    model: ModelName,
    /// Events per batch
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch_events: u32,
    /// Train on this many events, the earliest of the file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    events_max: Option<u32>,
    /// Values per generated edge row; 0 is none
    #[arg(long, value_name = "N", default_value_t = 172, value_parser = clap::value_parser!(u32).range(0..=65_536))]
    row_dimension: u32,
    /// In which numbers the CPU multiplies matrices; auto is bf16 on Intel's
    /// CPUs with AMX and AMD's with AVX512-BF16, f32 on others
    #[arg(long, value_enum, default_value_t = MatmulPrecision::Auto)]
    matmul_precision: MatmulPrecision,
    /// Seed of weights, dropout and negatives
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads of each rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Have the first rank prepare every batch and pass each other one its share, as a daemon does (learner.ranks); the
    /// others read no events
    #[arg(long, conflicts_with = "checkpoint")]
    lead: bool,
    /// Exchange over the loopback, as machines do over their network, and not through shared memory
    #[arg(long)]
    loopback: bool,
    /// Bandwidth of the network that speed is derived for, in Gb/s and in each direction
    #[arg(long, value_name = "GBPS", default_value_t = 10.0)]
    network_gbps: f64,
    /// Latency of that network, in microseconds
    #[arg(long, value_name = "US", default_value_t = 30.0)]
    network_latency_us: f64,
    /// Keep what was learned in this file, and go on from it; a run whose rank is lost is started again from there
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// Batches between two checkpoints
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_batches: u64,
    /// With --checkpoint: how often a run whose rank is lost is started again
    #[arg(long, value_name = "N", default_value_t = 3, requires = "checkpoint")]
    restarts: u32,
    /// Seconds after which a rank that waits for another one ends the run
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    deadline_seconds: u64,
    /// The program that starts ranks
    #[arg(long, value_name = "PROGRAM", default_value = "mpiexec", env = "EVERGRAPH_MPIEXEC")]
    mpiexec: PathBuf,
    /// Write the figures as one JSON object to this file; `-` is standard output
    #[arg(long, value_name = "OUT", value_parser = output::writable())]
    json: Option<PathBuf>,
    /// Be one of the ranks, and write what it measured to this folder
    #[arg(long, value_name = "DIR", hide = true)]
    rank_of: Option<PathBuf>,
    /// As a rank, train the whole of every batch, without the others
    #[arg(long, hide = true)]
    alone: bool,
}

/// Runs the benchmark, or one rank of it.
pub(super) fn run(args: &ClusterArgs) -> anyhow::Result<()> {
    if let Some(folder) = &args.rank_of {
        return rank::run(args, folder);
    }
    let mut ranks = args.ranks.clone();
    ranks.sort_unstable();
    ranks.dedup();
    let fits = |ranks: &u32| ranks.is_power_of_two() && *ranks as usize <= RANKS_MAX;
    ensure!(!ranks.is_empty() && ranks.iter().all(fits), "--ranks takes powers of two, {RANKS_MAX} at most");
    ensure!(
        args.checkpoint.is_none() || ranks.len() == 1,
        "--checkpoint goes with one number of ranks: each would go on from the last one's end"
    );
    let network = Network { gbps: args.network_gbps, latency_us: args.network_latency_us };
    let mut reports = Vec::new();
    for &count in &ranks {
        output::print_status(&format!("{count} ranks …"));
        let together = start(args, count, false)?;
        // A core may be half of one, and memory is shared: what one process computes has as many beside it.
        let alone =
            if count == 1 || args.checkpoint.is_some() { Vec::new() } else { start(args, count, true)? };
        reports.push(Run { together, alone });
    }
    let figures = Figures::of(&reports, network)?;
    print_summary(&figures);
    let differ = !figures.bits_equal;
    deliver(args.json.as_deref(), "cluster", args.threads as usize, figures)?;
    ensure!(!differ, "ranks have learned other bits than one process");
    Ok(())
}

/// Starts so many ranks, again if one is lost and there is a checkpoint, and returns what they measured. Alone, each of
/// them trains for itself.
fn start(args: &ClusterArgs, count: u32, alone: bool) -> anyhow::Result<Vec<RankReport>> {
    let mut left = args.checkpoint.as_ref().map_or(0, |_| args.restarts);
    loop {
        let folder = std::env::temp_dir().join(format!("evergraph-ranks-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut command = command(args, count, &folder)?;
        command.args(alone.then_some("--alone"));
        let ended = command.status();
        let reports =
            (0..count).map(|rank| RankReport::read(&folder, rank)).collect::<anyhow::Result<Vec<_>>>();
        // What stays there is small.
        _ = std::fs::remove_dir_all(&folder);
        let ended = ended.with_context(|| {
            let program = args.mpiexec.display();
            format!(
                "{program} does not start; install Open MPI (Debian: openmpi-bin), or name it with --mpiexec"
            )
        })?;
        if ended.success() {
            return reports;
        }
        // Other ends come again.
        let is_lost = ended.code().is_none_or(|code| code > 128 || code == LOST);
        if left == 0 || !is_lost {
            bail!("{count} ranks: {} ended with {ended}; the lines above say why", args.mpiexec.display());
        }
        left -= 1;
        output::print_status(&format!("{count} ranks: ended with {ended}; they go on from the checkpoint"));
    }
}

/// Folders in which libraries are looked for.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// These folders with that of the library which belongs to `mpiexec`, where it is no folder of the system.
fn libraries(mpiexec: &Path) -> Option<OsString> {
    let folder = mpiexec.parent()?.parent()?.join("lib");
    let known = std::env::var_os(LIBRARY_PATH).unwrap_or_default();
    let folders = std::iter::once(folder.clone()).chain(std::env::split_paths(&known));
    folder.join("libmpi.so.40").exists().then(|| std::env::join_paths(folders).ok()).flatten()
}

/// What starts the ranks.
fn command(args: &ClusterArgs, count: u32, folder: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(&args.mpiexec);
    // As root, which containers are, it asks for these two.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", &count.to_string(), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]);
    if let Some(paths) = libraries(&args.mpiexec) {
        command.env(LIBRARY_PATH, paths);
    }
    if args.loopback {
        command.args(["--mca", "btl", "self,tcp", "--mca", "pml", "ob1"]);
    }
    command.arg(std::env::current_exe()?).args(["bench", "cluster"]);
    let mut option = |name: &str, value: &dyn std::fmt::Display| {
        command.arg(format!("--{name}={value}"));
    };
    option("events", &args.events.display());
    option("model", &name_of(args.model));
    option("batch-events", &args.batch_events);
    if let Some(most) = args.events_max {
        option("events-max", &most);
    }
    option("row-dimension", &args.row_dimension);
    option("matmul-precision", &name_of(args.matmul_precision));
    option("seed", &args.seed);
    option("threads", &args.threads);
    if let Some(path) = &args.checkpoint {
        option("checkpoint", &path.display());
    }
    option("checkpoint-batches", &args.checkpoint_batches);
    option("deadline-seconds", &args.deadline_seconds);
    option("rank-of", &folder.display());
    command.args(args.lead.then_some("--lead"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Ok(command)
}
