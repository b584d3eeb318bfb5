//! `evergraph bench sample --device cuda:0`: batches per second of temporal sampling on a GPU, over the same batches as
//! on the CPU.
//!
//! Two figures each: calls one after the other without waiting, as for a step whose next operation is on the GPU as
//! well; and calls that wait, as for one that needs the sample on the host. Seeds are copied to the GPU in both. Before
//! anything is timed, some batches are compared with the CPU's samples.

use std::sync::Arc;

use anyhow::ensure;
use serde::Serialize;

use super::{Common, FANOUT, Spread, deliver, deliver_so_far, request, sample};
use crate::cli::device::GpuFacts;
use crate::cli::output;
use crate::device::cuda::Cuda;
use crate::event::{EventTime, NodeId};
use crate::graph::{CudaGraph, CudaGraphOptions, GraphStore, MirrorOptions};
use crate::sampler::{CudaLayers, Layers, SamplingPolicy, Seeds};
use crate::train::stream::Stream;

/// One in this many batches is compared before it is measured.
const COMPARED: usize = 40;
/// Where the older part of the graph is to stay on the host: one in this many pages is on the GPU.
const PART: usize = 4;

#[derive(Serialize)]
struct Figures {
    device: &'static str,
    gpu: GpuFacts,
    events: usize,
    nodes: usize,
    seeds_per_batch: usize,
    /// With the whole graph in the GPU's memory.
    recent_1x10_batches_per_second: Option<f64>,
    uniform_2x10_batches_per_second: Option<f64>,
    measurements: Vec<Measurement>,
}

#[derive(Serialize)]
struct Measurement {
    policy: &'static str,
    layers: usize,
    fanout: usize,
    /// Pages in the GPU's memory and in the host's.
    pages: (usize, usize),
    batches_per_second: Spread,
    waited_batches_per_second: Spread,
}

type Batches = [(Vec<NodeId>, Vec<EventTime>)];

/// Runs the benchmark on the graph of `stream`.
pub(super) fn run(
    common: &Common,
    (cuda, facts): (Arc<Cuda>, GpuFacts),
    stream: &Stream,
    graph: &GraphStore,
) -> anyhow::Result<()> {
    let batches = sample::seeds(stream);
    let all = CudaGraphOptions {
        form: MirrorOptions::default(),
        gpu_bytes_max: usize::MAX,
        host_bytes_max: usize::MAX,
        table_bytes_max: usize::MAX,
    };
    let whole = CudaGraph::copy(&cuda, graph, all)?;
    let measurements = measure_all(&cuda, (graph, &whole), &batches, common.runs)?;
    let page_bytes = 12 << all.form.page_log2;
    let gpu_bytes_max = whole.tables().pages().0.div_ceil(PART) * page_bytes;
    drop(whole);
    let headline = |policy: &str, layers: usize| {
        let mut found = measurements.iter();
        let found = found.find(|one| one.policy == policy && one.layers == layers);
        found.map(|one| one.batches_per_second.median)
    };
    let mut figures = Figures {
        device: "cuda",
        gpu: facts,
        events: stream.len(),
        nodes: stream.nodes(),
        seeds_per_batch: batches.first().map_or(0, |(nodes, _)| nodes.len()),
        recent_1x10_batches_per_second: headline("recent", 1),
        uniform_2x10_batches_per_second: headline("uniform", 2),
        measurements,
    };
    let json = common.json.as_deref();
    deliver_so_far(json, "sample", 1, &figures)?;
    let parted = CudaGraph::copy(&cuda, graph, CudaGraphOptions { gpu_bytes_max, ..all })?;
    figures.measurements.extend(measure_all(&cuda, (graph, &parted), &batches, common.runs)?);
    deliver(json, "sample", 1, &figures)
}

fn measure_all(
    cuda: &Arc<Cuda>,
    graphs: (&GraphStore, &CudaGraph),
    batches: &Batches,
    runs: u32,
) -> anyhow::Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (policy, name) in [(SamplingPolicy::Recent, "recent"), (SamplingPolicy::Uniform, "uniform")] {
        for layers in [1, 2] {
            compare(cuda, graphs, batches, (policy, layers))?;
            let rates = |waits| rates(cuda, graphs, batches, (policy, layers), (runs, waits));
            let measured = Measurement {
                policy: name,
                layers,
                fanout: FANOUT,
                pages: graphs.1.tables().pages(),
                batches_per_second: rates(false)?,
                waited_batches_per_second: rates(true)?,
            };
            output::print_status(&format!(
                "{name} {layers}x{FANOUT}, pages on GPU and host {:?}: {:.0} batches/s, {:.0} where each is \
                 waited for",
                measured.pages, measured.batches_per_second.median, measured.waited_batches_per_second.median
            ));
            measurements.push(measured);
        }
    }
    Ok(measurements)
}

/// Whether the GPU's samples equal the CPU's.
fn compare(
    cuda: &Arc<Cuda>,
    (store, graph): (&GraphStore, &CudaGraph),
    batches: &Batches,
    (policy, count): (SamplingPolicy, usize),
) -> anyhow::Result<()> {
    let (mut expected, mut found, mut read) = (Layers::new(), CudaLayers::new(cuda), Layers::new());
    for ((nodes, times), number) in batches.iter().zip(0..).step_by(COMPARED) {
        let (seeds, request) = (Seeds { nodes, times }, request(policy, number));
        expected.sample(store.view(), seeds, &request, count)?;
        found.sample(graph, store.view(), seeds, &request, count)?;
        found.read_into(&mut read)?;
        let same = read.layers() == expected.layers();
        ensure!(same, "batch {number}, {request:?}: the GPU's sample differs from the CPU's");
    }
    Ok(())
}

fn rates(
    cuda: &Arc<Cuda>,
    (store, graph): (&GraphStore, &CudaGraph),
    batches: &Batches,
    (policy, count): (SamplingPolicy, usize),
    (runs, waits): (u32, bool),
) -> anyhow::Result<Spread> {
    let mut out = CudaLayers::new(cuda);
    super::rates(runs, batches.len(), || {
        for ((nodes, times), number) in batches.iter().zip(0..) {
            let seeds = Seeds { nodes, times };
            out.sample(graph, store.view(), seeds, &request(policy, number), count)?;
            if waits {
                cuda.sampling().synchronize()?;
            }
        }
        Ok(cuda.sampling().synchronize()?)
    })
}
