//! `evergraph bench sample`: batches per second of temporal sampling over a whole stream in its order.
//!
//! A batch is 600 events; its seeds are their sources, their destinations and one random destination each,
//! at the events' times: 1,800 seeds. A layer's seeds are the distinct (neighbor, time) pairs that the layer
//! before it found.
//!
//! Each call samples one batch, as for a consumer that needs each before it can request the next. The headline figures
//! are those of the most threads.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;

use super::sample_gpu;
use super::{BATCH_EVENTS, Common, FANOUT, Spread, batch_nodes, deliver, rates, request, seconds};
use crate::cli::device::DeviceArgs;
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::device::DeviceSpec;
use crate::event::{EdgeBatch, EventTime, NodeId};
use crate::graph::{GraphOptions, GraphStore};
use crate::sampler::{Layers, SamplingPolicy, Seeds};
use crate::train::stream::Stream;

/// Samples of a hub per measurement.
const HUB_SAMPLES: usize = 10_000;

/// What to sample.
#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    #[command(flatten)]
    common: Common,
    /// Most threads to measure with; 1, 2, 4, … up to this
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    #[command(flatten)]
    compute: DeviceArgs,
}

#[derive(Serialize)]
struct Figures {
    events: usize,
    nodes: usize,
    batch_events: usize,
    seeds_per_batch: usize,
    /// At the most threads.
    recent_1x10_batches_per_second: Option<f64>,
    uniform_2x10_batches_per_second: Option<f64>,
    /// By figure, then by threads.
    by_threads: BTreeMap<String, BTreeMap<usize, f64>>,
    far_past_ratio: f64,
    measurements: Vec<Measurement>,
    hub: Hub,
}

#[derive(Serialize)]
struct Measurement {
    policy: &'static str,
    layers: usize,
    fanout: usize,
    threads: usize,
    batches_per_second: Spread,
    sampled_edges: u64,
}

impl Measurement {
    /// The key of the figure.
    fn key(&self) -> String {
        format!("{}_{}x{}_batches_per_second", self.policy, self.layers, self.fanout)
    }
}

/// Samples of the node with the most edges.
#[derive(Serialize)]
struct Hub {
    degree: u64,
    newest_nanoseconds: Spread,
    far_past_nanoseconds: Spread,
    ratio: f64,
}

/// Runs the benchmark.
pub(super) fn run(args: &SampleArgs) -> anyhow::Result<()> {
    let gpu = (args.compute.device != DeviceSpec::Cpu).then(|| args.compute.open()).transpose()?;
    let stream = read_stream(&args.common.events, &mut |note| output::print_status(note))?;
    let graph = GraphStore::new(GraphOptions::default());
    let mut batch = EdgeBatch::default();
    for row in 0..stream.len() {
        batch.push_edge(stream.src()[row], stream.dst()[row], stream.times()[row]);
    }
    graph.apply(&batch)?;
    drop(batch);
    if let Some(gpu) = gpu {
        return sample_gpu::run(&args.common, gpu, &stream, &graph);
    }
    let batches = seeds(&stream);
    let mut measurements = Vec::new();
    for (policy, layers) in [
        (SamplingPolicy::Recent, 1),
        (SamplingPolicy::Uniform, 1),
        (SamplingPolicy::Recent, 2),
        (SamplingPolicy::Uniform, 2),
    ] {
        let mut threads = 1;
        while threads <= args.threads as usize {
            let measured = measure(&graph, &batches, (policy, layers, threads), args.common.runs)?;
            output::print_status(&format!(
                "{} {layers}x{FANOUT}, {threads} threads: {:.0} batches/s",
                measured.policy, measured.batches_per_second.median
            ));
            measurements.push(measured);
            threads *= 2;
        }
    }
    let hub = hub(&graph, &stream, args.common.runs);
    output::print_status(&format!(
        "a hub of {} edges: newest {:.0} ns, far past {:.0} ns, ratio {:.2}",
        hub.degree, hub.newest_nanoseconds.median, hub.far_past_nanoseconds.median, hub.ratio
    ));
    let by_threads = medians(&measurements);
    let last = |key| by_threads.get(key).and_then(|by| by.values().next_back()).copied();
    let figures = Figures {
        events: stream.len(),
        nodes: stream.nodes(),
        batch_events: BATCH_EVENTS,
        seeds_per_batch: 3 * BATCH_EVENTS,
        recent_1x10_batches_per_second: last("recent_1x10_batches_per_second"),
        uniform_2x10_batches_per_second: last("uniform_2x10_batches_per_second"),
        far_past_ratio: hub.ratio,
        by_threads,
        measurements,
        hub,
    };
    deliver(args.common.json.as_deref(), "sample", args.threads as usize, figures)
}

/// The seeds of every whole batch.
pub(super) fn seeds(stream: &Stream) -> Vec<(Vec<NodeId>, Vec<EventTime>)> {
    let mut batches = Vec::new();
    for first in (0..stream.len() / BATCH_EVENTS * BATCH_EVENTS).step_by(BATCH_EVENTS) {
        let rows = first..first + BATCH_EVENTS;
        let (nodes, times) = (batch_nodes(stream, rows.clone(), 0), &stream.times()[rows]);
        batches.push((nodes, times.repeat(3)));
    }
    batches
}

/// The medians by figure and threads.
fn medians(measurements: &[Measurement]) -> BTreeMap<String, BTreeMap<usize, f64>> {
    let mut medians: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for one in measurements {
        medians.entry(one.key()).or_default().insert(one.threads, one.batches_per_second.median);
    }
    medians
}

fn measure(
    graph: &GraphStore,
    batches: &[(Vec<NodeId>, Vec<EventTime>)],
    (policy, layers, threads): (SamplingPolicy, usize, usize),
    runs: u32,
) -> anyhow::Result<Measurement> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let mut out = Layers::new();
    let mut sampled = 0;
    let round = || {
        sampled = 0;
        for ((nodes, times), number) in batches.iter().zip(0..) {
            out.sample(graph.view(), Seeds { nodes, times }, &request(policy, number), layers)?;
            sampled += out.edges();
        }
        Ok(())
    };
    let batches_per_second = pool.install(|| rates(runs, batches.len(), round))?;
    let policy = match policy {
        SamplingPolicy::Recent => "recent",
        SamplingPolicy::Uniform => "uniform",
    };
    Ok(Measurement { policy, layers, fanout: FANOUT, threads, batches_per_second, sampled_edges: sampled })
}

/// Time of one sample of the node with the most edges, at the end of its history and near its begin.
#[allow(clippy::cast_precision_loss)]
fn hub(graph: &GraphStore, stream: &Stream, runs: u32) -> Hub {
    let nodes = (0..stream.nodes()).zip(0_u32..).map(|(_, id)| NodeId(id));
    let hub = nodes.max_by_key(|&node| graph.degree(node)).unwrap_or(NodeId(0));
    let mut times: Vec<EventTime> = (0..stream.len())
        .filter(|&row| stream.src()[row] == hub || stream.dst()[row] == hub)
        .map(|row| stream.times()[row])
        .collect();
    times.sort_unstable();
    let far = times.get(times.len() / 100).copied().unwrap_or(EventTime(0));
    let sample_at = |time: EventTime| {
        let nodes = vec![hub; HUB_SAMPLES];
        let at = vec![time; HUB_SAMPLES];
        let request = request(SamplingPolicy::Recent, 0);
        let mut out = Layers::new();
        Spread::of((0..=runs).map(|_| {
            let (spent, _) =
                seconds(|| out.sample(graph.view(), Seeds { nodes: &nodes, times: &at }, &request, 1));
            spent * 1e9 / HUB_SAMPLES as f64
        }))
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let both = || (sample_at(EventTime::MAX), sample_at(far));
    let (newest, far_past) = match &pool {
        Ok(pool) => pool.install(both),
        Err(_) => both(),
    };
    Hub {
        degree: graph.degree(hub),
        newest_nanoseconds: newest,
        far_past_nanoseconds: far_past,
        ratio: far_past.median / newest.median,
    }
}
