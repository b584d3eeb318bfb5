//! Floor 3: who are my neighbors. For each of the [`Seeds`], a (node, time) pair, [`sample`] finds up to
//! `fanout` edges of the node that happened strictly before the time, and lays them out as one
//! [`MessageFlowGraph`]: dense slots, newest first, padded.
//!
//! A sample is a pure function of (view, seeds, request): threads, earlier calls and what arrives
//! meanwhile have no part in it. Uniform sampling draws without replacement by Floyd's algorithm: of n
//! edges counted from the oldest, step s of K takes a random number t in `0..=n-K+s`, or `n-K+s` itself if
//! t was taken before. The random number's key is (seed, batch, seed index, layer in the upper and s in the
//! lower 32 bits).
//!
//! Knows nothing of features, memories and models.

use crate::device::rng;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::{GraphView, Neighbor};

/// The (node, time) pairs that are asked about; both columns are equally long.
#[derive(Clone, Copy, Debug)]
pub struct Seeds<'a> {
    /// Nodes. [`NodeId::NONE`] and unknown nodes have no neighbors.
    pub nodes: &'a [NodeId],
    /// The time at which each is asked about; only earlier edges count.
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
    /// Stands in the empty slots of `edges`; never the id of an edge.
    pub const NO_EDGE: EdgeId = EdgeId(u64::MAX);

    /// A graph without seeds, to sample into.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of seeds.
    #[must_use]
    pub fn seeds(&self) -> usize {
        self.counts.len()
    }

    /// The filled slots of seed `s` as a range of elements.
    #[must_use]
    pub fn filled(&self, s: usize) -> std::ops::Range<usize> {
        s * self.fanout..s * self.fanout + self.counts[s] as usize
    }

    /// Makes all slots of `seeds` seeds empty; memory is kept.
    fn reset(&mut self, seeds: usize, fanout: usize) {
        let slots = seeds * fanout;
        self.fanout = fanout;
        self.counts.clear();
        self.neighbors.clear();
        self.neighbors.resize(slots, NodeId::NONE);
        self.edges.clear();
        self.edges.resize(slots, Self::NO_EDGE);
        self.times.clear();
        self.times.resize(slots, EventTime(0));
        self.deltas.clear();
        self.deltas.resize(slots, 0.0);
    }
}

/// Samples past edges of every seed into `out`, whose buffers are reused. Edges count that `view` sees, with
/// time strictly before the seed's time and inside the window. A seed's shard is locked only while that
/// seed is sampled.
///
/// # Panics
/// When the columns of `seeds` differ in length.
pub fn sample(view: GraphView<'_>, seeds: Seeds<'_>, request: &SampleRequest, out: &mut MessageFlowGraph) {
    assert_eq!(seeds.nodes.len(), seeds.times.len(), "nodes and times of the seeds");
    out.reset(seeds.nodes.len(), request.fanout);
    let mut ranks = Vec::new();
    for (index, (&node, &time)) in seeds.nodes.iter().zip(seeds.times).enumerate() {
        let from = match request.window {
            Some(window) => EventTime(time.0.saturating_sub(window)),
            None => EventTime::MIN,
        };
        let first = index * request.fanout;
        let mut slot = first;
        let mut fill = |neighbor: Neighbor| {
            out.neighbors[slot] = neighbor.node;
            out.edges[slot] = neighbor.edge;
            out.times[slot] = neighbor.time;
            out.deltas[slot] = time.since(neighbor.time);
            slot += 1;
        };
        view.past(node, from, time, |past| match request.policy {
            SamplingPolicy::Recent => past.newest(request.fanout, &mut fill),
            SamplingPolicy::Uniform => {
                let candidates = past.candidates();
                draw_ranks(candidates.count(), request, index, &mut ranks);
                candidates.pick(&ranks, &mut fill);
            }
        });
        out.counts.push(u32::try_from(slot - first).unwrap_or(u32::MAX));
    }
}

/// Ranks of the edges that uniform sampling takes of `count`, descending.
fn draw_ranks(count: u32, request: &SampleRequest, index: usize, ranks: &mut Vec<u32>) {
    ranks.clear();
    let wanted = u32::try_from(request.fanout).unwrap_or(u32::MAX);
    if count <= wanted {
        ranks.extend((0..count).rev());
        return;
    }
    let prefix = rng::prefix([request.seed, request.batch, index as u64]);
    for step in 0..wanted {
        let last = count - wanted + step;
        let random = rng::draw(prefix, u64::from(request.layer) << 32 | u64::from(step));
        let drawn = rng::scale(random, last + 1);
        match ranks.binary_search_by(|rank| drawn.cmp(rank)) {
            // `last` is larger than all that could be drawn before.
            Ok(_) => ranks.insert(0, last),
            Err(place) => ranks.insert(place, drawn),
        }
    }
}
