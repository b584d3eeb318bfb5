//! Where a command computes: on the CPU, or on a GPU, which is opened, or an error says what is missing.

use std::sync::Arc;

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::output;
use crate::device::Device;
use crate::device::cuda::{Cuda, CudaOptions, CudaWork};
use crate::train::Trainer;

/// A device to compute on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// The CPU
    #[default]
    Cpu,
    /// The first NVIDIA GPU
    Cuda,
}

/// What is told of a GPU beside what was measured on it.
#[derive(Debug, Serialize)]
pub struct GpuFacts {
    name: String,
    architecture: String,
    multiprocessors: u32,
}

/// Bytes of a GPU in which a command keeps edge rows, as the daemon does as delivered.
pub const GPU_ROW_BYTES: u64 = 1 << 30;

/// How training used a GPU.
#[derive(Debug, Serialize)]
pub struct GpuUse {
    /// Steps that were asked for as a graph; of those, how often the graph of the step before was brought up to date,
    /// and how often one was built.
    graph_steps: u64,
    graphs_updated: u64,
    graphs_built: u64,
    /// Steps asked for kernel by kernel, and steps that failed while they were recorded.
    direct_steps: u64,
    failed_steps: u64,
    /// Memory that waits between two steps.
    kept_bytes: usize,
    /// Edge rows that were there, that were copied there, and of these those that were not kept.
    edge_rows_hit: u64,
    edge_rows_missed: u64,
    edge_rows_bypassed: u64,
}

impl GpuUse {
    /// Of a trainer; none of one on the CPU.
    pub fn of(trainer: &Trainer) -> Option<Self> {
        let Device::Cuda(work) = trainer.device() else { return None };
        let (steps, rows) = (work.recorded(), trainer.cached_rows().unwrap_or_default());
        Some(Self {
            graph_steps: steps.launched,
            graphs_updated: steps.updated,
            graphs_built: steps.built,
            direct_steps: steps.direct,
            failed_steps: steps.failed,
            kept_bytes: work.kept_bytes(),
            edge_rows_hit: rows.hits,
            edge_rows_missed: rows.misses,
            edge_rows_bypassed: rows.bypassed,
        })
    }
}

/// The first GPU, and facts about it.
///
/// # Errors
/// What is missing: a driver, a GPU, a library.
pub fn open() -> anyhow::Result<(Arc<Cuda>, GpuFacts)> {
    let cuda = Cuda::open(0, &CudaOptions::default()).context("--device cuda")?;
    output::tell(&format!("{}, {}", cuda.describe(), cuda.details()));
    let gpu = cuda.gpu();
    let facts = GpuFacts {
        name: gpu.name.clone(),
        architecture: gpu.architecture.clone(),
        multiprocessors: gpu.multiprocessors,
    };
    Ok((cuda, facts))
}

impl Where {
    /// What models compute on, and facts about the GPU, if it is one.
    ///
    /// # Errors
    /// What is missing.
    pub fn device(self) -> anyhow::Result<(Device, Option<GpuFacts>)> {
        match self {
            Self::Cpu => Ok((Device::Cpu, None)),
            Self::Cuda => open().map(|(cuda, facts)| (Device::Cuda(CudaWork::new(cuda)), Some(facts))),
        }
    }
}
