//! `evergraph-research`: benchmarks that compare alternatives, for developers of Evergraph. The speed of a machine is
//! measured by `evergraph bench`.

mod bus;
mod cache;
mod drift;
mod requests;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The allocator of the daemon, so that measurements match the daemon.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Compares alternatives.
#[derive(Debug, Parser)]
#[command(name = "evergraph-research", version)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Bytes of edge rows over the bus to a device, by the size of its cache, with reuse, with restore, and with both
    Bus(bus::BusArgs),
    /// Copies of rows that a cache on the device avoids, beside other policies
    Cache(cache::CacheArgs),
    /// Average precision over a stream that drifts: weights frozen after its first part, trained on, and with replay
    Drift(drift::DriftArgs),
    /// Requests that other samplers can run too, and our results, as files
    #[command(alias = "questions")]
    Requests(requests::RequestsArgs),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().part {
        Part::Bus(args) => bus::run(&args),
        Part::Cache(args) => cache::run(&args),
        Part::Drift(args) => drift::run(&args),
        Part::Requests(args) => requests::run(&args),
    };
    evergraph::cli::exit_code(outcome)
}
