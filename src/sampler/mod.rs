//! Floor 3: who are my neighbors. For each of the [`Seeds`], a (node, time) pair, [`sample`] finds up to
//! `fanout` edges of the node that happened strictly before the time, and lays them out as one
//! [`MessageFlowGraph`]: dense slots, newest first, padded.
//!
//! A sample is a pure function of (view, seeds, request): threads, earlier calls and later events do not affect it.
//! Uniform sampling draws without replacement by Floyd's algorithm: of n edges counted from the oldest, step s of K
//! takes a random number t in `0..=n-K+s`, or `n-K+s` itself if t was taken before. The random number's key is (seed,
//! batch, seed index, layer in the upper and s in the lower 32 bits).
//!
//! Knows nothing of features, memories and models.

mod columns;
mod device;
mod draw;
mod gpu;
mod layers;
mod part;

pub use columns::{GpuColumns, HostColumns, HostEdges};
pub use device::{DeviceSampler, DeviceSamplerOptions, SampleCounts};
pub use gpu::{CudaLayer, CudaLayers};
pub use layers::{Layer, Layers};
use part::Part;
use rayon::prelude::*;

use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::GraphView;
/// Why there is no sample: edges are on disk and cannot be read.
pub use crate::graph::SpillError as SampleError;

/// Seeds that one thread takes at a time.
const PART_SEEDS: usize = 256;

/// The (node, time) pairs to sample for; both columns are equally long.
#[derive(Clone, Copy, Debug)]
pub struct Seeds<'a> {
    /// Nodes. [`NodeId::NONE`] and unknown nodes have no neighbors.
    pub nodes: &'a [NodeId],
    /// The time of each seed; only earlier edges count.
    pub times: &'a [EventTime],
}

/// Which of a seed's past edges are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingPolicy {
    /// The newest; of equal times, the latest arrivals.
    Recent,
    /// Any, all equally likely, none twice.
    Uniform,
}

/// What to sample for every seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRequest {
    /// Which edges are taken.
    pub policy: SamplingPolicy,
    /// Edges per seed at most, K.
    pub fanout: usize,
    /// If given, only edges with time at least `seed time - window` count; in the stream's unit, not
    /// negative.
    pub window: Option<i64>,
    /// First word of the random numbers' key; with the next two it must differ wherever samples are to be
    /// independent. Not used by `Recent`.
    pub seed: u64,
    /// Number of the batch.
    pub batch: u64,
    /// Number of the layer.
    pub layer: u32,
}

/// One layer of sampled edges. Slot `k` of seed `s` is element `s * fanout + k`; the first `counts[s]`
/// slots of a seed are filled, newest first, the others hold [`NodeId::NONE`], [`Self::NO_EDGE`], time 0 and
/// delta 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageFlowGraph {
    /// Slots per seed, K.
    pub fanout: usize,
    /// Filled slots, `[seeds]`.
    pub counts: Vec<u32>,
    /// The other end point of each edge, `[seeds * K]`.
    pub neighbors: Vec<NodeId>,
    /// The edges, `[seeds * K]`.
    pub edges: Vec<EdgeId>,
    /// When they happened, `[seeds * K]`.
    pub times: Vec<EventTime>,
    /// Seed time minus edge time, positive in filled slots, `[seeds * K]`.
    pub deltas: Vec<f32>,
}

impl MessageFlowGraph {
    /// Marks the empty slots of `edges`; never the id of an edge.
    pub const NO_EDGE: EdgeId = EdgeId(u64::MAX);

    /// A graph without seeds, to sample into.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The filled slots of seed `s` as a range of elements.
    #[must_use]
    pub fn filled(&self, s: usize) -> std::ops::Range<usize> {
        s * self.fanout..s * self.fanout + self.counts[s] as usize
    }

    /// Makes it that of `seeds` seeds without neighbors.
    fn clear(&mut self, seeds: usize, fanout: usize) {
        self.resize(0, fanout);
        self.resize(seeds, fanout);
    }

    /// Makes room for `seeds` seeds; memory is kept, and so is what the slots held.
    fn resize(&mut self, seeds: usize, fanout: usize) {
        let slots = seeds * fanout;
        self.fanout = fanout;
        self.counts.resize(seeds, 0);
        self.neighbors.resize(slots, NodeId::NONE);
        self.edges.resize(slots, Self::NO_EDGE);
        self.times.resize(slots, EventTime(0));
        self.deltas.resize(slots, 0.0);
    }

    /// All slots, in parts of [`PART_SEEDS`] seeds. There is a slot per seed at least.
    fn parts(&mut self) -> impl IndexedParallelIterator<Item = Part<'_>> {
        let slots = PART_SEEDS * self.fanout;
        let columns = (
            self.counts.par_chunks_mut(PART_SEEDS),
            self.neighbors.par_chunks_mut(slots),
            self.edges.par_chunks_mut(slots),
            self.times.par_chunks_mut(slots),
            self.deltas.par_chunks_mut(slots),
        );
        columns.into_par_iter().map(|(counts, neighbors, edges, times, deltas)| Part {
            counts,
            neighbors,
            edges,
            times,
            deltas,
        })
    }
}

/// Samples past edges of every seed into `out`, whose buffers are reused. Edges count that `view` sees, with
/// time strictly before the seed's time and inside the window. Many seeds are shared out among the
/// threads of rayon's current pool; shards stay locked for reading while [`PART_SEEDS`] seeds are sampled.
///
/// # Errors
/// Edges are on disk and cannot be read; what `out` holds is void.
///
/// # Panics
/// When the columns of `seeds` differ in length.
pub fn sample(
    view: GraphView<'_>,
    seeds: Seeds<'_>,
    request: &SampleRequest,
    out: &mut MessageFlowGraph,
) -> Result<(), SampleError> {
    assert_eq!(seeds.nodes.len(), seeds.times.len(), "nodes and times of the seeds");
    out.resize(seeds.nodes.len(), request.fanout);
    if request.fanout == 0 {
        out.counts.fill(0);
        return Ok(());
    }
    let parts = out.parts().enumerate();
    let work = |(number, part): (usize, Part<'_>)| {
        let first = number * PART_SEEDS;
        let rows = first..(first + PART_SEEDS).min(seeds.nodes.len());
        let seeds = Seeds { nodes: &seeds.nodes[rows.clone()], times: &seeds.times[rows] };
        part.sample(view, seeds, first, request)
    };
    parts.try_for_each(work)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeBatch;
    use crate::graph::{GraphOptions, GraphStore};

    /// Node 0 meets node 1 at time 10, node 2 at 20, … node 9 at 90.
    fn store() -> GraphStore {
        let mut batch = EdgeBatch::default();
        for i in 1..10 {
            batch.push_edge(NodeId(0), NodeId(i), EventTime(i64::from(i) * 10));
        }
        let store = GraphStore::new(GraphOptions::default());
        store.apply(&batch).unwrap();
        store
    }

    fn request(policy: SamplingPolicy, window: Option<i64>) -> SampleRequest {
        SampleRequest { policy, fanout: 3, window, seed: 1, batch: 2, layer: 3 }
    }

    #[test]
    fn slots_are_newest_first_and_padded() {
        let store = store();
        let nodes = [NodeId(0), NodeId(0), NodeId(4), NodeId(77), NodeId::NONE];
        let times = [50, 20, 41, 99, 99].map(EventTime);
        let seeds = Seeds { nodes: &nodes, times: &times };
        let mut out = MessageFlowGraph::new();
        // What the buffers held before must not show.
        sample(store.view(), seeds, &request(SamplingPolicy::Uniform, None), &mut out).unwrap();
        sample(store.view(), seeds, &request(SamplingPolicy::Recent, None), &mut out).unwrap();
        const NONE: NodeId = NodeId::NONE;
        assert_eq!(out.counts, [3, 1, 1, 0, 0]);
        assert_eq!(out.neighbors[..9], [4, 3, 2, 1, NONE.0, NONE.0, 0, NONE.0, NONE.0].map(NodeId));
        assert_eq!(out.edges[..6], [3, 2, 1, 0, u64::MAX, u64::MAX].map(EdgeId));
        assert_eq!(out.times[..6], [40, 30, 20, 10, 0, 0].map(EventTime));
        assert_eq!(out.deltas[..6], [10.0, 20.0, 30.0, 10.0, 0.0, 0.0]);
        assert!(out.neighbors[9..].iter().all(|&node| node == NONE));
    }

    #[test]
    fn the_window_includes_its_begin_and_the_seed_time_excludes_itself() {
        let store = store();
        let seeds = Seeds { nodes: &[NodeId(0)], times: &[EventTime(50)] };
        let mut out = MessageFlowGraph::new();
        for policy in [SamplingPolicy::Recent, SamplingPolicy::Uniform] {
            for (window, neighbors) in
                [(20, vec![4, 3]), (19, vec![4]), (0, vec![]), (i64::MAX, vec![4, 3, 2])]
            {
                sample(store.view(), seeds, &request(policy, Some(window)), &mut out).unwrap();
                let found: Vec<u32> = out.neighbors[out.filled(0)].iter().map(|node| node.0).collect();
                if policy == SamplingPolicy::Recent || window < 30 {
                    assert_eq!(found, neighbors, "{policy:?}, window {window}");
                } else {
                    assert_eq!(found.len(), 3);
                }
            }
        }
    }

    #[test]
    fn uniform_draws_are_pinned() {
        // Another implementation of the sampler, on another device, has to draw the same.
        let store = store();
        let seeds = Seeds { nodes: &[NodeId(0); 4], times: &[EventTime(1_000); 4] };
        let mut out = MessageFlowGraph::new();
        sample(store.view(), seeds, &request(SamplingPolicy::Uniform, None), &mut out).unwrap();
        let found: Vec<u32> = out.neighbors.iter().map(|node| node.0).collect();
        assert_eq!(found, [8, 4, 3, 8, 7, 3, 7, 6, 1, 6, 5, 4]);
    }

    #[test]
    fn a_window_keeps_older_edges_on_disk() {
        use crate::device::disk::tests::faulty::{Fault, Faulty};
        let options = GraphOptions { shards: 1, ..GraphOptions::default() };
        let store = GraphStore::with_budget(options, 0, Box::new(Faulty::new(|_| Fault::Works)));
        let mut batch = EdgeBatch::default();
        (0..20_000).for_each(|i| batch.push_edge(NodeId(0), NodeId(1 + i), EventTime(i.into())));
        store.apply(&batch).unwrap();
        let seeds = Seeds { nodes: &[NodeId(0)], times: &[EventTime(19_000)] };
        let mut out = MessageFlowGraph::new();
        let mut loads = |window| {
            let before = store.spill_stats().unwrap().loads;
            let request = SampleRequest { fanout: 10_000, ..request(SamplingPolicy::Recent, window) };
            sample(store.view(), seeds, &request, &mut out).unwrap();
            (out.counts[0], store.spill_stats().unwrap().loads - before)
        };
        let (all, some) = (loads(None), loads(Some(300)));
        assert!(all.0 == 10_000 && all.1 >= 10, "{all:?}");
        assert!(some.0 == 300 && (1..=3).contains(&some.1), "{some:?}");
    }
}
