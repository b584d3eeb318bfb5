//! `evergraph bench sample`: batches per second of temporal sampling over a whole stream in its order.
//!
//! A batch is 600 events; its seeds are their sources, their destinations and one random destination each,
//! at the events' times: 1,800 seeds. A layer's seeds are the distinct (neighbor, time) pairs that the layer
//! before it found.

use clap::Args;
use serde::Serialize;

use super::{Common, Spread, deliver, per_second, seconds};
use crate::cli::events::read_stream;
use crate::cli::output;
use crate::device::rng;
use crate::event::{EdgeBatch, EventTime, NodeId};
use crate::graph::{GraphOptions, GraphStore};
use crate::sampler::{Layers, SampleRequest, SamplingPolicy, Seeds};
use crate::train::stream::Stream;

const BATCH_EVENTS: usize = 600;
const FANOUT: usize = 10;
/// Questions of one measurement about a hub.
const HUB_QUESTIONS: usize = 10_000;

/// What to sample.
#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    #[command(flatten)]
    common: Common,
    /// Most threads to measure with; 1, 2, 4, … up to this
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
}

#[derive(Serialize)]
struct Figures {
    events: usize,
    nodes: usize,
    batch_events: usize,
    seeds_per_batch: usize,
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

/// Questions about the node with the most edges.
#[derive(Serialize)]
struct Hub {
    degree: u64,
    newest_nanoseconds: Spread,
    far_past_nanoseconds: Spread,
    ratio: f64,
}

/// Runs the benchmark.
pub(super) fn run(args: &SampleArgs) -> anyhow::Result<()> {
    let stream = read_stream(&args.common.events, &mut |note| output::tell(note))?;
    let graph = GraphStore::new(GraphOptions::default());
    let mut batch = EdgeBatch::default();
    for row in 0..stream.len() {
        batch.push_edge(stream.src()[row], stream.dst()[row], stream.times()[row]);
    }
    graph.apply(&batch);
    drop(batch);
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
            let measured = measure(&graph, &batches, policy, layers, threads, args.common.runs)?;
            output::tell(&format!(
                "{} {layers}x{FANOUT}, {threads} threads: {:.0} batches/s",
                measured.policy, measured.batches_per_second.median
            ));
            measurements.push(measured);
            threads *= 2;
        }
    }
    let hub = hub(&graph, &stream, args.common.runs);
    output::tell(&format!(
        "a hub of {} edges: newest {:.0} ns, far past {:.0} ns, ratio {:.2}",
        hub.degree, hub.newest_nanoseconds.median, hub.far_past_nanoseconds.median, hub.ratio
    ));
    let figures = Figures {
        events: stream.len(),
        nodes: stream.nodes(),
        batch_events: BATCH_EVENTS,
        seeds_per_batch: 3 * BATCH_EVENTS,
        measurements,
        hub,
    };
    deliver(args.common.json.as_deref(), "sample", args.threads as usize, figures)
}

/// The seeds of every whole batch.
fn seeds(stream: &Stream) -> Vec<(Vec<NodeId>, Vec<EventTime>)> {
    let mut batches = Vec::new();
    for first in (0..stream.len() / BATCH_EVENTS * BATCH_EVENTS).step_by(BATCH_EVENTS) {
        let rows = first..first + BATCH_EVENTS;
        let (src, dst, times) =
            (&stream.src()[rows.clone()], &stream.dst()[rows.clone()], &stream.times()[rows.clone()]);
        let mut nodes = [src, dst].concat();
        let length = u32::try_from(stream.len()).unwrap_or(u32::MAX);
        nodes.extend(rows.map(|row| stream.dst()[rng::below([0, row as u64, 0, 0], length) as usize]));
        batches.push((nodes, times.repeat(3)));
    }
    batches
}

fn measure(
    graph: &GraphStore,
    batches: &[(Vec<NodeId>, Vec<EventTime>)],
    policy: SamplingPolicy,
    layers: usize,
    threads: usize,
    runs: u32,
) -> anyhow::Result<Measurement> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    let mut out = Layers::new();
    let mut sampled = 0;
    let mut rates = Vec::new();
    pool.install(|| {
        // The first round warms caches and buffers.
        for round in 0..=runs {
            sampled = 0;
            let (spent, ()) = seconds(|| {
                for (number, (nodes, times)) in batches.iter().enumerate() {
                    let request = SampleRequest {
                        policy,
                        fanout: FANOUT,
                        window: None,
                        seed: 0,
                        batch: number as u64,
                        layer: 0,
                    };
                    out.sample(graph.view(), Seeds { nodes, times }, &request, layers);
                    sampled += out.edges();
                }
            });
            if round > 0 {
                rates.push(per_second(batches.len(), spent));
            }
        }
    });
    let policy = match policy {
        SamplingPolicy::Recent => "recent",
        SamplingPolicy::Uniform => "uniform",
    };
    let batches_per_second = Spread::of(rates);
    Ok(Measurement { policy, layers, fanout: FANOUT, threads, batches_per_second, sampled_edges: sampled })
}

/// Time of one question about the node with the most edges, at the end of its history and near its begin.
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
    let ask = |time: EventTime| {
        let nodes = vec![hub; HUB_QUESTIONS];
        let at = vec![time; HUB_QUESTIONS];
        let request = SampleRequest {
            policy: SamplingPolicy::Recent,
            fanout: FANOUT,
            window: None,
            seed: 0,
            batch: 0,
            layer: 0,
        };
        let mut out = Layers::new();
        Spread::of((0..=runs).map(|_| {
            let (spent, ()) =
                seconds(|| out.sample(graph.view(), Seeds { nodes: &nodes, times: &at }, &request, 1));
            spent * 1e9 / HUB_QUESTIONS as f64
        }))
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let both = || (ask(EventTime::MAX), ask(far));
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
