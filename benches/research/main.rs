//! `evergraph-research`: benchmarks that weigh one way to do a thing against others, for those who change Evergraph.
//! How fast a machine is, `evergraph bench` says.

mod cache;
mod drift;
mod questions;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The allocator of the daemon, so that what is measured here is measured as it runs there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Weighs one way to do a thing against others.
#[derive(Debug, Parser)]
#[command(name = "evergraph-research", version)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Copies of rows that a cache on the device avoids, beside other ways to choose what it keeps
    Cache(cache::CacheArgs),
    /// Average precision over a stream that drifts: weights frozen after its first part, trained on, and with replay
    Drift(drift::DriftArgs),
    /// What other samplers can be asked too, and our responses, as files
    Questions(questions::QuestionsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().part {
        Part::Cache(args) => cache::run(&args),
        Part::Drift(args) => drift::run(&args),
        Part::Questions(args) => questions::run(&args),
    };
    evergraph::cli::exit_code(outcome)
}
