//! A batch of seeds and its sample, told in distinct nodes.
//!
//! A node appears in a batch many times: as a source, a destination, and a neighbor of both. All of that
//! refers to one row of its memory, so seeds and neighbors become slots of one list of distinct nodes, in
//! order of first appearance, and everything per node (gathering, memory update, feature projection) is
//! done once per distinct node. The lists are kept between batches and grow to what batches need.

use hashbrown::HashMap;

use super::Needs;
use crate::event::{EventTime, NodeId};
use crate::sampler::{Layer, Layers, MessageFlowGraph, Seeds};

/// Stands in the empty places of [`Neighborhood::neighbors`].
pub const EMPTY_SLOT: u32 = u32::MAX;

/// Distinct nodes in order of first appearance.
#[derive(Clone, Debug, Default)]
pub struct DistinctNodes {
    nodes: Vec<NodeId>,
    slots: HashMap<NodeId, u32>,
}

impl DistinctNodes {
    /// Forgets all nodes and keeps the room.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.slots.clear();
    }

    /// The slot of `node`, given now if it has none yet.
    pub fn insert(&mut self, node: NodeId) -> u32 {
        *self.slots.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            // A batch holds fewer than 2^32 nodes because node ids are 32 bits wide.
            (self.nodes.len() - 1) as u32
        })
    }

    /// The slot of `node` if it has one.
    #[must_use]
    pub fn slot(&self, node: NodeId) -> Option<u32> {
        self.slots.get(&node).copied()
    }

    /// The nodes by slot.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

/// Seeds, what was sampled for them in one or more layers, and all of it as slots of distinct nodes. The pairs of a
/// layer are the (node, time) pairs that it was asked about: the seeds in the first, and in each further one the
/// distinct neighbors of the layer before, at the times of their edges.
#[derive(Clone, Debug, Default)]
pub struct Neighborhood {
    seed_nodes: Vec<NodeId>,
    seed_times: Vec<EventTime>,
    /// What is asked of the sampler where that is more than the seeds: every seed again for each further snapshot.
    asked: (Vec<NodeId>, Vec<EventTime>),
    layers: Layers,
    nodes: DistinctNodes,
    pairs: Vec<u32>,
    neighbors: Vec<u32>,
}

impl Neighborhood {
    /// Forgets the seeds and keeps the room.
    pub fn clear(&mut self) {
        self.seed_nodes.clear();
        self.seed_times.clear();
    }

    /// Adds seeds: each of `nodes` at the time beside it.
    ///
    /// # Panics
    /// If the columns differ in length.
    pub fn add_seeds(&mut self, nodes: &[NodeId], times: &[EventTime]) {
        assert_eq!(nodes.len(), times.len(), "nodes and times of the seeds");
        self.seed_nodes.extend_from_slice(nodes);
        self.seed_times.extend_from_slice(times);
    }

    /// Lets `draw` sample the seeds into the neighborhood's own buffers, as a model with these needs wants them. Where
    /// it wants snapshots the first layer has all seeds at their times, then all of them a window earlier, and so on.
    ///
    /// # Errors
    /// What `draw` returns; the seeds stay and may be sampled again.
    pub fn sample_with<E>(
        &mut self,
        needs: &Needs,
        draw: impl FnOnce(Seeds<'_>, &mut Layers) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { seed_nodes, seed_times, asked: (nodes, times), layers, .. } = self;
        let (2.., Some(width)) = (needs.snapshots, needs.window) else {
            return draw(Seeds { nodes: seed_nodes, times: seed_times }, layers);
        };
        nodes.clear();
        times.clear();
        for back in (0..).take(needs.snapshots) {
            let before = width.saturating_mul(back);
            nodes.extend_from_slice(seed_nodes);
            times.extend(seed_times.iter().map(|time| EventTime(time.0.saturating_sub(before))));
        }
        draw(Seeds { nodes, times }, layers)
    }

    /// Gives every seed and sampled neighbor its slot.
    pub fn number(&mut self) {
        let Self { layers, nodes, pairs, neighbors, .. } = self;
        nodes.clear();
        pairs.clear();
        neighbors.clear();
        for layer in layers.layers() {
            pairs.extend(layer.nodes.iter().map(|&node| nodes.insert(node)));
            let slot_of = |&node: &NodeId| match node {
                NodeId::NONE => EMPTY_SLOT,
                node => nodes.insert(node),
            };
            neighbors.extend(layer.graph.neighbors.iter().map(slot_of));
        }
    }

    /// Every seed and neighbor once, seeds first.
    #[must_use]
    pub fn nodes(&self) -> &DistinctNodes {
        &self.nodes
    }

    /// The seeds.
    pub fn seeds(&self) -> impl Iterator<Item = (NodeId, EventTime)> {
        self.seed_nodes.iter().copied().zip(self.seed_times.iter().copied())
    }

    /// The sample, layer by layer.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        self.layers.layers()
    }

    /// The sample: time differences and edge ids of the slots, layer by layer.
    pub fn graphs(&self) -> impl Iterator<Item = &MessageFlowGraph> {
        self.layers().iter().map(|layer| &layer.graph)
    }

    /// Slot of the node of each pair, layer by layer, the seeds first.
    #[must_use]
    pub fn pairs(&self) -> &[u32] {
        &self.pairs
    }

    /// Number of pairs in the first `layers` layers.
    #[must_use]
    pub fn pairs_in(&self, layers: usize) -> usize {
        self.layers().iter().take(layers).map(|layer| layer.nodes.len()).sum()
    }

    /// Slot of each neighbor, `[pairs * fanout]`; [`EMPTY_SLOT`] where there is none.
    #[must_use]
    pub fn neighbors(&self) -> &[u32] {
        &self.neighbors
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = self.seed_nodes.capacity() + self.pairs.capacity() + self.neighbors.capacity();
        let words = words + self.nodes.nodes.capacity();
        let slots = self.nodes.slots.allocation_size();
        let words = words + self.asked.0.capacity();
        let times = self.seed_times.capacity() + self.asked.1.capacity();
        words * 4 + times * 8 + self.layers.bytes() + slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeBatch;
    use crate::graph::{GraphOptions, GraphStore};
    use crate::model::{DysatOptions, TgnOptions};

    #[test]
    fn slots_follow_first_appearance() {
        let mut batch = EdgeBatch::default();
        for (src, dst, time) in [(5, 8, 1), (9, 5, 2), (5, 7, 3)] {
            batch.push_edge(NodeId(src), NodeId(dst), EventTime(time));
        }
        let graph = GraphStore::new(GraphOptions::default());
        graph.apply(&batch).unwrap();
        let mut neighborhood = Neighborhood::default();
        for _ in 0..2 {
            neighborhood.clear();
            neighborhood.add_seeds(&[5, 1, 5].map(NodeId), &[9, 9, 2].map(EventTime));
            let needs = TgnOptions { fanout: 2, ..TgnOptions::default() }.needs();
            let request = needs.sample_request();
            neighborhood
                .sample_with(&needs, |seeds, out| out.sample(graph.view(), seeds, &request, 1))
                .unwrap();
            neighborhood.number();
            assert_eq!(neighborhood.nodes().nodes(), [5, 1, 7, 9, 8].map(NodeId));
            assert_eq!(neighborhood.pairs(), [0, 1, 0]);
            let none = EMPTY_SLOT;
            assert_eq!(neighborhood.neighbors(), [2, 3, none, none, 4, none]);
        }
        assert_eq!(neighborhood.nodes().slot(NodeId(9)), Some(3));
        assert_eq!(neighborhood.nodes().slot(NodeId(3)), None);
    }

    #[test]
    fn snapshots_are_windows_one_behind_the_other() {
        let mut batch = EdgeBatch::default();
        for time in [0, 10, 11, 19, 20, 29, 30, 35] {
            batch.push_edge(NodeId(1), NodeId(time), EventTime(i64::from(time)));
        }
        let graph = GraphStore::new(GraphOptions::default());
        graph.apply(&batch).unwrap();
        let shape = DysatOptions { snapshots: 3, snapshot_width: 10, fanout: 2, ..DysatOptions::default() };
        let (needs, mut neighborhood) = (shape.needs(), Neighborhood::default());
        let request = needs.sample_request();
        for _ in 0..2 {
            neighborhood.clear();
            neighborhood.add_seeds(&[1, 35].map(NodeId), &[30, 36].map(EventTime));
            let draw = |seeds: Seeds<'_>, out: &mut Layers| out.sample(graph.view(), seeds, &request, 1);
            neighborhood.sample_with(&needs, draw).unwrap();
            neighborhood.number();
        }
        let layer = &neighborhood.layers()[0];
        assert_eq!(layer.times, [30, 36, 20, 26, 10, 16].map(EventTime));
        assert_eq!(layer.graph.counts, [2, 1, 2, 0, 1, 0]);
        let none = NodeId::NONE;
        let found = [[NodeId(29), NodeId(20)], [NodeId(1), none], [NodeId(19), NodeId(11)]].concat();
        assert_eq!(layer.graph.neighbors[..6], found);
        assert_eq!((neighborhood.pairs(), neighborhood.seeds().count()), (&[0, 1, 0, 1, 0, 1][..], 2));
    }
}
