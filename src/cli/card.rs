//! Where a command computes: on the processor, or on a card, which is opened, or an error says what is missing.

use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::output;
use crate::device::Device;
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};

/// A device to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// The processor
    #[default]
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

impl Where {
    /// What models compute on, and facts about the card, if it is one.
    ///
    /// # Errors
    /// What is missing.
    pub fn device(self) -> anyhow::Result<(Device, Option<CardFacts>)> {
        match self {
            Self::Cpu => Ok((Device::Cpu, None)),
            Self::Cuda => open().map(|(cuda, facts)| (Device::Cuda(CudaWork::new(cuda)), Some(facts))),
        }
    }
}
