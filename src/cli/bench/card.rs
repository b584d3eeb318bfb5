//! The card that a benchmark measures on: opened, or an error that says what is missing.

use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::Spread;
use crate::cli::output;
use crate::device::cuda::{Cuda, CudaError, CudaOptions};

/// A device to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// The processor
    Cpu,
    /// The first NVIDIA card
    Cuda,
}

/// What is told of a card beside what was measured on it.
#[derive(Debug, Serialize)]
pub struct CardFacts {
    name: String,
    architecture: String,
    multiprocessors: u32,
}

/// The first card, and facts about it.
///
/// # Errors
/// What is missing: a driver, a card, a library.
pub fn open() -> anyhow::Result<(Arc<Cuda>, CardFacts)> {
    let cuda = Cuda::open(0, &CudaOptions::default()).context("--device cuda")?;
    output::tell(&format!("{}, {}", cuda.describe(), cuda.details()));
    let card = cuda.card();
    let facts = CardFacts {
        name: card.name.clone(),
        architecture: card.architecture.clone(),
        multiprocessors: card.multiprocessors,
    };
    Ok((cuda, facts))
}

/// Seconds of one call on a stream, as the card's clock has it: `calls` in a row, `runs` times. Some go before,
/// untimed.
///
/// # Errors
/// What the call says, or the card's.
pub fn timed(
    cuda: &Cuda,
    (runs, calls): (u32, u32),
    mut call: impl FnMut() -> Result<(), CudaError>,
) -> Result<Spread, CudaError> {
    (0..calls.min(3)).try_for_each(|_| call())?;
    let stream = cuda.compute();
    let mut seconds = Vec::new();
    for _ in 0..runs {
        let begin = stream.record_timed()?;
        (0..calls).try_for_each(|_| call())?;
        let end = stream.record_timed()?;
        seconds.push(end.seconds_since(&begin)? / f64::from(calls));
    }
    Ok(Spread::of(seconds))
}
