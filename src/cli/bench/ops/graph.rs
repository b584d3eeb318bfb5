//! Operations on nodes and edges before any number is computed: the most recent neighbors, and numbering distinct
//! nodes.

use std::time::Instant;

use super::super::request;
use super::indices::draw;
use super::inputs::{Inputs, SEED};
use super::points::Point;
use super::work::{About, Before, Cost, Output, Work};
use crate::device::rng;
use crate::event::{EdgeBatch, EventTime, NodeId};
use crate::graph::{GraphOptions, GraphStore};
use crate::model::DistinctNodes;
use crate::sampler::{MessageFlowGraph, SampleRequest, SamplingPolicy, Seeds, sample};

/// The `fanout` most recent edges of seeds in a generated graph.
struct SampleRecent {
    about: About,
    graph: GraphStore,
    seeds: Vec<NodeId>,
    times: Vec<EventTime>,
    request: SampleRequest,
    found: MessageFlowGraph,
}

/// Recent sampling: both ends of an edge and the seeds are drawn as `indices` names, with seeds at any time.
#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
pub fn sample_recent(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (seeds, nodes, edges) = (point.number("rows")?, point.number("nodes")?, point.number("edges")?);
    let (fanout, how) = (point.number("fanout")?, point.text("indices")?);
    let graph = GraphStore::new(GraphOptions::default());
    let mut batch = EdgeBatch::default();
    let ends = draw(how, edges, nodes, 1)?.into_iter().zip(draw(how, edges, nodes, 2)?);
    for (time, (src, dst)) in (0..).zip(ends) {
        batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
    }
    graph.apply(&batch)?;
    let time = |i: u64| EventTime(i64::from(rng::below([SEED, 6, i, 0], edges as u32 + 1)));
    // A seed reads node and time; a slot is read and written: neighbor, edge, time; its difference is written.
    let cost = Cost::moving(seeds * 4 + seeds * fanout * (2 * 5 + 1), 0);
    let about = About { inputs: Inputs::default(), shape: vec![seeds, fanout], costs: (cost, None) };
    Ok(Box::new(SampleRecent {
        about,
        graph,
        seeds: draw(how, seeds, nodes, 3)?.into_iter().map(NodeId).collect(),
        times: (0..seeds as u64).map(time).collect(),
        request: SampleRequest { fanout, ..request(SamplingPolicy::Recent, 0) },
        found: MessageFlowGraph::new(),
    }))
}

impl Work for SampleRecent {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        let seeds = Seeds { nodes: &self.seeds, times: &self.times };
        before();
        let started = Instant::now();
        sample(self.graph.view(), seeds, &self.request, &mut self.found)?;
        Ok(started.elapsed().as_secs_f64())
    }

    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        Ok(Vec::new())
    }

    fn about(&self) -> &About {
        &self.about
    }
}

/// Numbers the distinct nodes of a batch in order of first appearance.
struct Unique {
    about: About,
    ids: Vec<NodeId>,
    nodes: DistinctNodes,
    inverse: Vec<u32>,
}

/// Distinct ids and the place of each among them.
pub fn unique(point: &Point) -> anyhow::Result<Box<dyn Work>> {
    let (e, rows) = (point.number("e")?, point.number("rows")?);
    let ids = draw(point.text("indices")?, e, rows, 0)?;
    let nodes = ids.iter().copied().map(NodeId).collect();
    let inputs = Inputs::default().numbers("ids", ids);
    let about = About { inputs, shape: vec![e], costs: (Cost::moving(2 * e, 0), None) };
    Ok(Box::new(Unique { about, ids: nodes, nodes: DistinctNodes::default(), inverse: Vec::new() }))
}

impl Work for Unique {
    fn forward(&mut self, before: Before<'_>) -> anyhow::Result<f64> {
        before();
        let started = Instant::now();
        self.nodes.clear();
        self.inverse.clear();
        self.nodes.insert_all(&self.ids, &mut self.inverse);
        Ok(started.elapsed().as_secs_f64())
    }

    #[allow(clippy::cast_precision_loss)] // ids of a benchmark are below 2^24
    fn outputs(&mut self) -> anyhow::Result<Vec<Output>> {
        self.forward(&mut || {})?;
        let mut sorted: Vec<NodeId> = self.nodes.nodes().to_vec();
        sorted.sort_unstable();
        let place = |id: &NodeId| sorted.partition_point(|other| other < id) as f32;
        let inverse: Vec<f32> = self.ids.iter().map(place).collect();
        let values: Vec<f32> = sorted.iter().map(|id| id.0 as f32).collect();
        let output = |name: &str, values: Vec<f32>| Output {
            name: name.to_owned(),
            shape: vec![values.len()],
            values,
        };
        Ok(vec![output("out", values), output("inverse", inverse)])
    }

    fn about(&self) -> &About {
        &self.about
    }
}
