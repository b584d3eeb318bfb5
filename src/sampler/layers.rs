//! Samples of several layers: neighbors, and their neighbors at the time of the edge. The seeds of a layer are the
//! distinct (neighbor, time of the edge) pairs that the layer before it found, in order of first appearance, so each
//! pair is sampled once.

use std::hash::{BuildHasher, RandomState};

use super::{GpuColumns, MessageFlowGraph, SampleRequest, Seeds, sample};
use crate::device::{prefetch, rng};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::{GraphView, SpillError};

/// Slots whose places in the hash table are prefetched before the first of them is read.
const CHUNK_SLOTS: usize = 64;

/// Samples of one or more layers; buffers are kept from call to call.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    layers: Vec<Layer>,
    count: usize,
    /// What the GPU that drew them has in place of columns of theirs.
    on_gpu: Option<GpuColumns>,
    /// Such columns of layers that are over: memory for the next.
    spare: Option<GpuColumns>,
    /// The edges of all slots, if the GPU listed them; one may come twice.
    pub(super) listed: Vec<EdgeId>,
    distinct: DistinctPairs,
}

/// One layer. Columns that the GPU which drew it kept are empty here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layer {
    /// Nodes of the seeds.
    pub nodes: Vec<NodeId>,
    /// Times of the seeds.
    pub times: Vec<EventTime>,
    /// Their sample.
    pub graph: MessageFlowGraph,
    /// For each slot of `graph`, which seed of the next layer it is; [`Layers::NO_SEED`] in empty slots. Empty
    /// in the last layer.
    pub next: Vec<u32>,
}

impl Layers {
    /// Means "no seed" in [`Layer::next`].
    pub const NO_SEED: u32 = u32::MAX;

    /// No layers, to sample into.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Samples `count` layers from `seeds` on. `request.layer` is the number of the first; the others count
    /// up from it.
    ///
    /// # Errors
    /// Edges are on disk and cannot be read; the layers are void.
    ///
    /// # Panics
    /// When the columns of `seeds` differ in length.
    pub fn sample(
        &mut self,
        view: GraphView<'_>,
        seeds: Seeds<'_>,
        request: &SampleRequest,
        count: usize,
    ) -> Result<(), SpillError> {
        self.room(count);
        let mut request = *request;
        for l in 0..count {
            let (done, rest) = self.layers.split_at_mut(l);
            let layer = &mut rest[0];
            match done.last_mut() {
                None => {
                    layer.nodes.clear();
                    layer.nodes.extend_from_slice(seeds.nodes);
                    layer.times.clear();
                    layer.times.extend_from_slice(seeds.times);
                }
                Some(before) => self.distinct.collect(before, &mut layer.nodes, &mut layer.times),
            }
            layer.next.clear();
            sample(view, Seeds { nodes: &layer.nodes, times: &layer.times }, &request, &mut layer.graph)?;
            request.layer += 1;
        }
        Ok(())
    }

    /// One layer with these seeds and room for their sample, which is empty.
    pub fn one(&mut self, seeds: Seeds<'_>, fanout: usize) -> &mut MessageFlowGraph {
        let layer = &mut self.room(1)[0];
        layer.nodes.clear();
        layer.nodes.extend_from_slice(seeds.nodes);
        layer.times.clear();
        layer.times.extend_from_slice(seeds.times);
        layer.next.clear();
        layer.graph.clear(seeds.nodes.len(), fanout);
        &mut layer.graph
    }

    /// The layers, outward from the seeds.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers[..self.count]
    }

    /// The columns that are on a GPU, if that kept some.
    #[must_use]
    pub fn on_gpu(&self) -> Option<&GpuColumns> {
        self.on_gpu.as_ref()
    }

    /// The columns that are on a GPU are of no use any more; their memory serves the next ones. What was asked of them
    /// has to be over: the host has waited for it.
    pub fn retire(&mut self) {
        self.spare = self.on_gpu.take().or(self.spare.take());
        self.listed.clear();
    }

    /// Room for `count` layers that a GPU draws, and columns whose memory may serve for those that it keeps.
    pub(super) fn room_beside(&mut self, count: usize) -> (&mut [Layer], Option<GpuColumns>) {
        self.room(count);
        (&mut self.layers[..count], self.spare.take())
    }

    /// These columns stay on the GPU.
    pub(super) fn keep(&mut self, columns: Option<GpuColumns>) {
        self.on_gpu = columns;
    }

    /// The edges whose places among these the GPU kept, if it did.
    #[must_use]
    pub fn listed_edges(&self) -> Option<&[EdgeId]> {
        self.on_gpu.as_ref()?.edges.as_ref().map(|_| self.listed.as_slice())
    }

    /// Room for `count` layers, which hold anything until they are filled.
    pub(super) fn room(&mut self, count: usize) -> &mut [Layer] {
        self.retire();
        self.layers.resize_with(self.layers.len().max(count), Layer::default);
        self.count = count;
        &mut self.layers[..count]
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |layer: &Layer| {
            let Layer { nodes, times, graph, next } = layer;
            let words = nodes.capacity() + next.capacity() + graph.counts.capacity();
            let slots = graph.neighbors.capacity() + graph.deltas.capacity();
            let longs = times.capacity() + graph.edges.capacity() + graph.times.capacity();
            (words + slots) * 4 + longs * 8
        };
        self.layers.iter().map(of).sum::<usize>()
            + (self.distinct.places.capacity() + self.listed.capacity()) * 8
    }

    /// Number of edges found in all layers.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.layers().iter().flat_map(|layer| &layer.graph.counts).map(|&count| u64::from(count)).sum()
    }
}

/// A hash table of (node, time) pairs that is emptied by counting up.
#[derive(Clone, Debug)]
struct DistinctPairs {
    /// Per place: the round that wrote it, and which pair.
    places: Vec<(u32, u32)>,
    round: u32,
    /// Random, so that a stream cannot choose nodes that collide.
    key: u64,
}

impl Default for DistinctPairs {
    fn default() -> Self {
        Self { places: Vec::new(), round: 0, key: RandomState::new().hash_one(0_u64) }
    }
}

impl DistinctPairs {
    /// Lists the distinct filled slots of `layer` in `nodes` and `times`, and sets in `layer.next` where each slot's
    /// pair is.
    fn collect(&mut self, layer: &mut Layer, nodes: &mut Vec<NodeId>, times: &mut Vec<EventTime>) {
        let Layer { graph, next, .. } = layer;
        nodes.clear();
        times.clear();
        next.clear();
        next.reserve(graph.neighbors.len());
        let room = (2 * graph.neighbors.len()).next_power_of_two().max(64);
        self.round = self.round.wrapping_add(1);
        if self.places.len() < room || self.round == 0 {
            self.places.clear();
            self.places.resize(room, (0, 0));
            self.round = 1;
        }
        let mask = self.places.len() - 1;
        let mut hashes = [0; CHUNK_SLOTS];
        for (neighbors, found) in graph.neighbors.chunks(CHUNK_SLOTS).zip(graph.times.chunks(CHUNK_SLOTS)) {
            for ((hash, &node), &time) in hashes.iter_mut().zip(neighbors).zip(found) {
                #[allow(clippy::cast_possible_truncation)] // any bits do
                let wide = rng::draw(self.key ^ u64::from(node.0), time.0.cast_unsigned()) as usize;
                *hash = wide & mask;
                prefetch(&self.places[*hash]);
            }
            for ((&hash, &node), &time) in hashes.iter().zip(neighbors).zip(found) {
                next.push(match node {
                    NodeId::NONE => Layers::NO_SEED,
                    _ => self.number(hash, (node, time), nodes, times),
                });
            }
        }
    }

    /// The place of `pair`, whose search begins at `place`, in `nodes` and `times`; it is added if it is not there yet.
    #[inline]
    fn number(
        &mut self,
        mut place: usize,
        pair: (NodeId, EventTime),
        nodes: &mut Vec<NodeId>,
        times: &mut Vec<EventTime>,
    ) -> u32 {
        let mask = self.places.len() - 1;
        loop {
            let (round, seed) = self.places[place];
            if round != self.round {
                #[allow(clippy::cast_possible_truncation)] // slots are fewer than nodes can be
                let seed = nodes.len() as u32;
                self.places[place] = (self.round, seed);
                nodes.push(pair.0);
                times.push(pair.1);
                return seed;
            }
            if (nodes[seed as usize], times[seed as usize]) == pair {
                return seed;
            }
            place = (place + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EdgeBatch, EdgeId};
    use crate::graph::{GraphOptions, GraphStore};
    use crate::sampler::SamplingPolicy;

    #[test]
    fn the_second_layer_asks_about_each_neighbor_once_at_the_time_of_the_edge() {
        let store = GraphStore::new(GraphOptions::default());
        let mut batch = EdgeBatch::default();
        for i in 0..2_000_u32 {
            batch.push_edge(NodeId(i % 13), NodeId(20 + i * i % 7), EventTime(i64::from(i / 2)));
        }
        store.apply(&batch).unwrap();
        let nodes: Vec<NodeId> = (0..40).map(NodeId).collect();
        let times: Vec<EventTime> = (0..40).map(|i| EventTime(900 + i)).collect();
        let request = SampleRequest {
            policy: SamplingPolicy::Uniform,
            fanout: 5,
            window: None,
            seed: 1,
            batch: 2,
            layer: 0,
        };
        let mut layers = Layers::new();
        // The second call must not see what the first left behind.
        for view in [store.view_at(EdgeId(700)), store.view()] {
            layers.sample(view, Seeds { nodes: &nodes, times: &times }, &request, 3).unwrap();
            assert_eq!(layers.layers().len(), 3);
            let mut edges = 0;
            for pair in layers.layers().windows(2) {
                let (near, far) = (&pair[0], &pair[1]);
                let mut seen = std::collections::HashSet::new();
                assert!(far.nodes.iter().zip(&far.times).all(|pair| seen.insert(pair)), "a duplicate pair");
                assert_eq!(near.next.len(), near.graph.neighbors.len());
                for (slot, &seed) in near.next.iter().enumerate() {
                    if near.graph.neighbors[slot] == NodeId::NONE {
                        assert_eq!(seed, Layers::NO_SEED);
                    } else {
                        assert_eq!(far.nodes[seed as usize], near.graph.neighbors[slot]);
                        assert_eq!(far.times[seed as usize], near.graph.times[slot]);
                    }
                }
                let mut alone = MessageFlowGraph::new();
                let layer = layers.layers().iter().position(|layer| layer == far).unwrap() as u32;
                let request = SampleRequest { layer, ..request };
                sample(view, Seeds { nodes: &far.nodes, times: &far.times }, &request, &mut alone).unwrap();
                assert_eq!(alone, far.graph);
                edges += near.graph.counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            }
            let last = layers.layers()[2].graph.counts.iter().map(|&count| u64::from(count)).sum::<u64>();
            assert_eq!(layers.edges(), edges + last);
            assert!(layers.layers()[2].next.is_empty());
        }
    }

    #[test]
    fn threads_and_groups_change_nothing() {
        let store = GraphStore::new(GraphOptions { page_entries_max: 32, ..GraphOptions::default() });
        let mut batch = EdgeBatch::default();
        for i in 0..6_000_u32 {
            // A hub, nodes of a few blocks, nodes with fewer edges than slots; some events are late.
            let time = i64::from(i / 3) - if i % 50 == 0 { 400 } else { 0 };
            batch.push_edge(NodeId(i % 3 * (i % 90)), NodeId(100 + i * i % 211), EventTime(time));
        }
        store.apply(&batch).unwrap();
        let nodes: Vec<NodeId> = (0..3_000).map(|i| NodeId(i * 7 % 311)).collect();
        let times: Vec<EventTime> = (0..3_000).map(|i| EventTime(i * 13 % 2_100)).collect();
        let seeds = |batch: usize| {
            let rows = batch * 500..batch * 500 + 700;
            Seeds { nodes: &nodes[rows.clone()], times: &times[rows] }
        };
        for (policy, fanout, count) in [
            (SamplingPolicy::Recent, 10, 3),
            (SamplingPolicy::Uniform, 10, 3),
            (SamplingPolicy::Uniform, 40, 2),
        ] {
            for (window, view) in [(None, store.view()), (Some(300), store.view_at(EdgeId(4_000)))] {
                let request = SampleRequest { policy, fanout, window, seed: 5, batch: 0, layer: 0 };
                let batches: Vec<_> =
                    (0..5).map(|batch| (seeds(batch as usize), SampleRequest { batch, ..request })).collect();
                let sampled = |threads| -> Vec<Layers> {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let sample = |(seeds, request): &(Seeds<'_>, SampleRequest)| {
                        let mut out = Layers::new();
                        out.sample(view, *seeds, request, count).unwrap();
                        out
                    };
                    pool.install(|| batches.iter().map(sample).collect())
                };
                let (one, three) = (sampled(1), sampled(3));
                for (((seeds, request), one), three) in batches.iter().zip(&one).zip(&three) {
                    assert_eq!(one.layers(), three.layers());
                    let mut alone = Layers::new();
                    alone.sample(view, *seeds, request, count).unwrap();
                    assert_eq!(alone.layers(), one.layers());
                    // A seed's place in its group has no part in the sample.
                    let first = &one.layers()[0];
                    let (nodes, times) = (&seeds.nodes[..45], &seeds.times[..45]);
                    let mut few = MessageFlowGraph::new();
                    sample(view, Seeds { nodes, times }, request, &mut few).unwrap();
                    assert_eq!(few.edges, first.graph.edges[..45 * fanout]);
                }
            }
        }
    }
}
