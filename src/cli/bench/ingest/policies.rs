//! The growth policies of the graph side by side: what each costs in memory, and how fast it is filled and sampled.
//!
//! Each round fills a fresh store by every policy in turn, so that all of them see the same machine; a round before
//! the first is not counted, because whoever comes first pays for the memory that the process gets.

use serde::Serialize;

use super::{SMALL_EVENTS, Source};
use crate::cli::bench::{Spread, per_second, request, seconds};
use crate::cli::output;
use crate::event::{EdgeBatch, EventTime, NodeId};
use crate::graph::{GraphOptions, GraphStats, GraphStore, GrowthPolicy};
use crate::sampler::{Layers, SamplingPolicy, Seeds};

/// Seeds of a sampled batch, and batches of one measurement.
const SEEDS: usize = 1_800;
const SAMPLED_BATCHES: usize = 200;

/// One policy in batches of one size.
#[derive(Serialize)]
pub(super) struct Measured {
    policy: &'static str,
    batch_events: usize,
    bytes_per_directed_edge: f64,
    blocks_per_node: f64,
    memory_events_per_second: Spread,
    recent_1x10_batches_per_second: Spread,
}

fn name(policy: GrowthPolicy) -> &'static str {
    match policy {
        GrowthPolicy::Adaptive => "adaptive",
        GrowthPolicy::Naive => "naive",
        GrowthPolicy::Fixed => "fixed",
        GrowthPolicy::LinearAverage => "linear-average",
        GrowthPolicy::DegreeDoubling => "degree-doubling",
        GrowthPolicy::PagedDoubling => "paged-doubling",
    }
}

/// Measures every policy in large batches and in small ones.
pub(super) fn measure(
    source: &Source<'_>,
    batch: &mut EdgeBatch,
    runs: u32,
) -> anyhow::Result<Vec<Measured>> {
    let seeds = seeds(source);
    let mut all = Vec::new();
    for source in [*source, source.in_batches_of(SMALL_EVENTS)] {
        let mut rounds = GrowthPolicy::ALL.map(|_| (Vec::new(), Vec::new(), GraphStats::default()));
        for round in 0..=runs {
            for (policy, measured) in GrowthPolicy::ALL.into_iter().zip(&mut rounds) {
                let (filled, sampled, stats) = fill_and_sample(&source, batch, policy, &seeds)?;
                measured.2 = stats;
                if round > 0 {
                    measured.0.push(filled);
                    measured.1.push(sampled);
                }
            }
        }
        for (policy, (filled, sampled, stats)) in GrowthPolicy::ALL.into_iter().zip(rounds) {
            all.push(figures(policy, source.batch_events, &stats, filled, sampled));
        }
    }
    tell(&all);
    Ok(all)
}

#[allow(clippy::cast_precision_loss)] // counts of a benchmark fit
fn figures(
    policy: GrowthPolicy,
    batch_events: usize,
    stats: &GraphStats,
    filled: Vec<f64>,
    sampled: Vec<f64>,
) -> Measured {
    Measured {
        policy: name(policy),
        batch_events,
        bytes_per_directed_edge: stats.bytes.total() as f64 / stats.directed_entries.max(1) as f64,
        blocks_per_node: stats.blocks as f64 / stats.nodes.max(1) as f64,
        memory_events_per_second: Spread::of(filled),
        recent_1x10_batches_per_second: Spread::of(sampled),
    }
}

fn tell(all: &[Measured]) {
    output::tell(
        "policy            batch events  bytes/edge  blocks/node  M events/s  recent 1x10 batches/s",
    );
    for row in all {
        output::tell(&format!(
            "{:<16} {:>13}  {:>10.2}  {:>11.2}  {:>10.2}  {:>21.0}",
            row.policy,
            row.batch_events,
            row.bytes_per_directed_edge,
            row.blocks_per_node,
            row.memory_events_per_second.median / 1e6,
            row.recent_1x10_batches_per_second.median,
        ));
    }
}

/// Events per second into a fresh store, batches of seeds per second out of it, and its account.
fn fill_and_sample(
    source: &Source<'_>,
    batch: &mut EdgeBatch,
    growth: GrowthPolicy,
    seeds: &[(Vec<NodeId>, Vec<EventTime>)],
) -> anyhow::Result<(f64, f64, GraphStats)> {
    let graph = GraphStore::new(GraphOptions { growth, ..source.options });
    let spent = source.timed(batch, |batch| {
        graph.apply(batch)?;
        Ok(())
    })?;
    let request = request(SamplingPolicy::Recent, 0);
    let mut out = Layers::new();
    let (sampling, sampled) = seconds(|| {
        let mut seeds = seeds.iter();
        seeds.try_for_each(|(nodes, times)| out.sample(graph.view(), Seeds { nodes, times }, &request, 1))
    });
    sampled?;
    Ok((per_second(source.events(), spent), per_second(seeds.len(), sampling), graph.stats()))
}

/// The end points of events from all over the stream, each at its event's time.
fn seeds(source: &Source<'_>) -> Vec<(Vec<NodeId>, Vec<EventTime>)> {
    let (mut batch, events) = (EdgeBatch::default(), SEEDS / 2);
    let step = source.events() / SAMPLED_BATCHES;
    let of = |number: usize| {
        source.fill(&mut batch, number * step, events);
        ([batch.src.as_slice(), &batch.dst].concat(), batch.time.repeat(2))
    };
    (0..SAMPLED_BATCHES).map(of).collect()
}
