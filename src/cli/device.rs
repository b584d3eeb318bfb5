//! The device that a command computes on: the CPU, or a GPU, which is opened; the error names what is missing.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;

use super::output;
use crate::device::cuda::{BusBytes, Cuda, CudaOptions, CudaWork, EnergyMeter};
use crate::device::{Device, DeviceSpec, probe};
use crate::sampler::{DeviceSampler, DeviceSamplerOptions};
use crate::train::Trainer;

/// Parses `--device`: the values of `device.use` except `auto`, and `cuda` for the first GPU.
fn parse_device(text: &str) -> Result<DeviceSpec, String> {
    match text {
        "cuda" => Ok(DeviceSpec::Cuda(0)),
        text => text
            .parse()
            .ok()
            .filter(|spec| *spec != DeviceSpec::Auto)
            .ok_or_else(|| format!("{text:?} is no device: write cpu or cuda:N, for example cuda:0")),
    }
}

/// The device of a command, and what opening a GPU needs.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Device to compute on: cpu, or the NVIDIA GPU of this number; a GPU runs the models tgn, tgat and graphmixer
    #[arg(long, value_name = "cpu|cuda:N", default_value_t = DeviceSpec::Cpu, value_parser = parse_device)]
    pub device: DeviceSpec,
    /// Folder that keeps compiled kernels, so that only the first command with this GPU compiles them; kernels are not
    /// kept if not given
    #[arg(long, value_name = "DIR", env = "EVERGRAPH_KERNEL_DIR")]
    pub kernel_dir: Option<PathBuf>,
    /// Bytes of GPU memory for a copy of the graph, from which the GPU samples batches; 0: the CPU samples them
    #[arg(long, value_name = "BYTES", default_value_t = GPU_GRAPH_BYTES)]
    pub gpu_graph_bytes: u64,
    /// Bytes of main memory for the older part of that copy, which the GPU reads in place
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub gpu_graph_host_bytes: u64,
    /// Bytes of main memory for edge rows that the GPU reads in place; 0: the CPU gathers and copies them
    #[arg(long, value_name = "BYTES", default_value_t = GPU_ROW_HOST_BYTES)]
    pub gpu_row_host_bytes: u64,
    /// Folder whose .cu and .cuh files take the place of those compiled in
    #[arg(long, value_name = "DIR", env = "EVERGRAPH_KERNEL_SOURCES", hide = true)]
    pub kernel_sources: Option<PathBuf>,
}

/// Facts about a GPU, beside the measurements.
#[derive(Debug, Serialize)]
pub struct GpuFacts {
    name: String,
    architecture: String,
    multiprocessors: u32,
}

/// Bytes of GPU memory in which a command keeps edge rows, the daemon's default.
const GPU_ROW_BYTES: u64 = 1 << 30;
/// Bytes of main memory for edge rows, and of GPU memory for a copy of the graph, likewise.
const GPU_ROW_HOST_BYTES: u64 = 1 << 30;
const GPU_GRAPH_BYTES: u64 = 4 << 30;

/// How training used a GPU.
#[derive(Debug, Serialize)]
pub struct GpuUse {
    /// Steps that were launched as a graph; of those, how often the graph of the step before was updated, and how often
    /// one was built.
    graph_steps: u64,
    graphs_updated: u64,
    graphs_built: u64,
    /// Steps among them that were recorded while the step before was computed.
    steps_ahead: u64,
    /// Steps launched kernel by kernel, and steps that failed during capture.
    direct_steps: u64,
    failed_steps: u64,
    /// Pooled memory between two steps.
    kept_bytes: usize,
    /// Edge rows that were there, that were copied there, and of these those that were not cached.
    edge_rows_hit: u64,
    edge_rows_missed: u64,
    edge_rows_bypassed: u64,
    /// Edge rows that were brought to the GPU before their batch, which then found them.
    edge_rows_restored: u64,
    /// Edge rows of batches that the GPU had or read in place, and that the host gathered.
    edge_rows_on_gpu: u64,
    edge_rows_on_cpu: u64,
    /// Samples that were drawn on the GPU, and on the CPU.
    samples_on_gpu: u64,
    samples_on_cpu: u64,
    /// Bytes over the bus for each event: copied to the GPU, copied to the host, and read in the host's memory, uploads
    /// to the graph and rows of edges.
    bus_bytes_to_gpu_per_event: f64,
    bus_bytes_to_host_per_event: f64,
    bus_bytes_read_in_place_per_event: f64,
}

impl GpuUse {
    /// Of a trainer and what sampled for it, over so many events since the bus had moved so many bytes; none of one on
    /// the CPU.
    pub fn of(
        trainer: &Trainer,
        sampler: Option<&DeviceSampler>,
        (before, events): (BusBytes, usize),
    ) -> Option<Self> {
        let Device::Cuda(work) = trainer.device() else { return None };
        let (steps, rows) = (work.recorded(), trainer.cached_rows().unwrap_or_default());
        let (bus, reads) = (work.cuda().bus(), trainer.row_reads().unwrap_or_default());
        let per_event = |end: u64, begin: u64| (end - begin) as f64 / events.max(1) as f64;
        let samples = sampler.map(DeviceSampler::counts).unwrap_or_default();
        Some(Self {
            graph_steps: steps.launched,
            graphs_updated: steps.updated,
            graphs_built: steps.built,
            steps_ahead: steps.ahead,
            direct_steps: steps.direct,
            failed_steps: steps.failed,
            kept_bytes: work.kept_bytes(),
            edge_rows_hit: rows.hits,
            edge_rows_missed: rows.misses,
            edge_rows_bypassed: rows.bypassed,
            edge_rows_restored: rows.restored,
            edge_rows_on_gpu: reads.on_device,
            edge_rows_on_cpu: reads.on_host,
            samples_on_gpu: samples.on_device,
            samples_on_cpu: samples.on_cpu,
            bus_bytes_to_gpu_per_event: per_event(bus.to_gpu, before.to_gpu),
            bus_bytes_to_host_per_event: per_event(bus.to_host, before.to_host),
            bus_bytes_read_in_place_per_event: per_event(bus.read_in_place, before.read_in_place),
        })
    }
}

impl DeviceArgs {
    /// Has `trainer` use GPU memory as it does in the daemon.
    pub fn prepare(&self, trainer: &mut Trainer) {
        trainer.cache_rows(GPU_ROW_BYTES);
        trainer.read_rows_in_place(self.gpu_row_host_bytes);
        let (gpu_bytes_max, host_bytes_max) = (self.gpu_graph_bytes, self.gpu_graph_host_bytes);
        trainer.sample_on_device(DeviceSamplerOptions { gpu_bytes_max, host_bytes_max });
    }

    /// The GPU, and facts about it.
    ///
    /// # Errors
    /// No GPU is selected, or what is missing: a driver, a GPU, a library.
    pub fn open(&self) -> anyhow::Result<(Arc<Cuda>, GpuFacts)> {
        let (kernel_dir, kernel_sources) = (self.kernel_dir.clone(), self.kernel_sources.clone());
        let options = CudaOptions { kernel_dir, kernel_sources, ..CudaOptions::default() };
        let DeviceSpec::Cuda(number) = self.device else { bail!("--device {} is no GPU", self.device) };
        let cuda = Cuda::open(number, &options).with_context(|| format!("--device {}", self.device))?;
        output::print_status(&format!("{}, {}", cuda.describe(), cuda.details()));
        cuda.complaints().iter().for_each(|warning| output::print_status(&format!("warning: {warning}")));
        let gpu = cuda.gpu();
        let facts = GpuFacts {
            name: gpu.name.clone(),
            architecture: gpu.architecture.clone(),
            multiprocessors: gpu.multiprocessors,
        };
        Ok((cuda, facts))
    }

    /// What counts the GPU's energy, if a GPU computes and something does.
    #[must_use]
    pub fn energy_meter(&self) -> Option<EnergyMeter> {
        let DeviceSpec::Cuda(number) = self.device else { return None };
        EnergyMeter::of(&probe().cuda.devices.get(number)?.bus)
    }

    /// The device that models compute on, and facts about the GPU, if it is one.
    ///
    /// # Errors
    /// What is missing.
    pub fn select(&self) -> anyhow::Result<(Device, Option<GpuFacts>)> {
        if self.device == DeviceSpec::Cpu {
            return Ok((Device::Cpu, None));
        }
        self.open().map(|(cuda, facts)| (Device::Cuda(CudaWork::new(cuda)), Some(facts)))
    }
}
