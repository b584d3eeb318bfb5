//! A batch of seeds and its sample, in terms of distinct nodes.
//!
//! A node appears in a batch many times: as a source, a destination, and a neighbor of both. All of that
//! refers to one row of its memory, so seeds and neighbors become slots of one list of distinct nodes, in
//! order of first appearance, and everything per node (gathering, memory update, feature projection) is
//! done once per distinct node. Those of a sample that is cut stand part by part ([`Readers`]). The lists are kept
//! between batches and grow to what batches need.

mod passed;
mod readers;

use std::sync::Arc;

use hashbrown::HashMap;

pub use self::readers::{PARTS_MAX, Readers};
use super::Needs;
use crate::device::prefetch;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::nn::InverseIndex;
use crate::sampler::{GpuColumns, Layer, Layers, MessageFlowGraph, Seeds};

/// Stands in the empty places of [`Neighborhood::neighbors`].
pub const EMPTY_SLOT: u32 = u32::MAX;

/// Distinct nodes in order of first appearance, or of the parts that compute their rows.
///
/// A list that is used again and again for a good part of all nodes, as a batch's, is found through a table as long as
/// the ids go: the entry of a node is its slot if the node stands there, and anything else if it does not, so the table
/// is never cleared. Ids beyond the table, and all of a list that is short beside them, are found through a hash table.
#[derive(Clone, Debug, Default)]
pub struct DistinctNodes {
    nodes: Vec<NodeId>,
    /// By id: the slot, if `nodes` has the id there.
    direct: Vec<u32>,
    /// Slots of ids beyond `direct`.
    hashed: HashMap<NodeId, u32>,
    /// One past the largest id in `hashed` since it was made that could be in `direct`.
    ids_end: usize,
}

/// Ids from here on are never in a table of all ids, which so takes 16 MiB at most.
const DIRECT_IDS_MAX: usize = 1 << 22;

/// Entries that are prefetched before they are needed.
const AHEAD: usize = 24;

/// A table of all ids is worth its memory for a list with one id in so many.
const DIRECT_SHARE: usize = 32;

impl DistinctNodes {
    /// Forgets all nodes and keeps the room.
    pub fn clear(&mut self) {
        if self.ids_end > self.direct.len() && self.nodes.len() * DIRECT_SHARE >= self.ids_end {
            // With room for nodes to come.
            self.direct.resize((self.ids_end + self.ids_end / 4).min(DIRECT_IDS_MAX), 0);
        }
        self.nodes.clear();
        self.hashed.clear();
    }

    /// The slot of `node`, given now if it has none yet.
    pub fn insert(&mut self, node: NodeId) -> u32 {
        // A batch holds fewer than 2^32 nodes because node ids are 32 bits wide.
        let next = self.nodes.len() as u32;
        if let Some(slot) = self.direct.get_mut(node.index()) {
            if self.nodes.get(*slot as usize) != Some(&node) {
                *slot = next;
                self.nodes.push(node);
            }
            return *slot;
        }
        *self.hashed.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            let end = node.index() + 1;
            self.ids_end = self.ids_end.max(if end <= DIRECT_IDS_MAX { end } else { 0 });
            next
        })
    }

    /// As [`insert`](Self::insert) of each of `ids`; appends their slots.
    pub fn insert_all(&mut self, ids: &[NodeId], slots: &mut Vec<u32>) {
        if ids.iter().map(|id| id.index() + 1).max().is_none_or(|end| end <= self.direct.len()) {
            self.insert_directly(ids, slots);
        } else {
            slots.extend(ids.iter().map(|&id| self.insert(id)));
        }
    }

    /// As [`insert_all`](Self::insert_all), but [`NodeId::NONE`] is no node and gets [`EMPTY_SLOT`].
    pub fn insert_filled(&mut self, ids: &[NodeId], slots: &mut Vec<u32>) {
        let ends = ids.iter().map(|&id| if id == NodeId::NONE { 0 } else { id.index() + 1 });
        if ends.max().is_none_or(|end| end <= self.direct.len()) {
            self.insert_directly(ids, slots);
            return;
        }
        slots.extend(ids.iter().map(|&id| match id {
            NodeId::NONE => EMPTY_SLOT,
            id => self.insert(id),
        }));
    }

    /// Inserts `ids` that all have an entry in the table; others get [`EMPTY_SLOT`]. Whether an id is there already is
    /// as good as random, so nothing branches on it: every id is written behind the others, and stays if it is new.
    fn insert_directly(&mut self, ids: &[NodeId], slots: &mut Vec<u32>) {
        let Self { nodes, direct, .. } = self;
        let mut count = nodes.len();
        nodes.resize(count + ids.len() + 1, NodeId::NONE);
        let last = nodes.len() - 1;
        slots.extend(ids.iter().enumerate().map(|(i, &id)| {
            if let Some(entry) = ids.get(i + AHEAD).and_then(|id| direct.get(id.index())) {
                prefetch(entry);
            }
            let Some(entry) = direct.get_mut(id.index()) else { return EMPTY_SLOT };
            let place = (*entry as usize).min(last);
            let is_new = nodes[place] != id;
            nodes[count] = id;
            let slot = if is_new { count } else { place };
            count += usize::from(is_new);
            *entry = slot as u32;
            slot as u32
        }));
        nodes.truncate(count);
    }

    /// Moves the node at each slot to the slot at its place in `places`, which has every slot once.
    fn move_to(&mut self, places: &[u32]) {
        let mut moved = vec![NodeId::NONE; self.nodes.len()];
        places.iter().zip(&self.nodes).for_each(|(place, node)| moved[*place as usize] = *node);
        for (slot, node) in (0..).zip(&moved) {
            match self.direct.get_mut(node.index()) {
                Some(entry) => *entry = slot,
                None => *self.hashed.entry(*node).or_default() = slot,
            }
        }
        self.nodes = moved;
    }

    /// The slot of `node` if it has one.
    #[must_use]
    pub fn slot(&self, node: NodeId) -> Option<u32> {
        match self.direct.get(node.index()) {
            Some(&slot) => (self.nodes.get(slot as usize) == Some(&node)).then_some(slot),
            None => self.hashed.get(&node).copied(),
        }
    }

    /// The nodes by slot.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Bytes held.
    fn bytes(&self) -> usize {
        (self.nodes.capacity() + self.direct.capacity()) * 4 + self.hashed.allocation_size()
    }
}

/// Seeds, what was sampled for them in one or more layers, and all of it as slots of distinct nodes. The pairs of a
/// layer are the (node, time) pairs that it was sampled for: the seeds in the first, and in each further one the
/// distinct neighbors of the layer before, at the times of their edges.
#[derive(Clone, Debug, Default)]
pub struct Neighborhood {
    seed_nodes: Vec<NodeId>,
    seed_times: Vec<EventTime>,
    /// Seeds passed to the sampler where those are more: every seed again for each further snapshot.
    sampled_seeds: (Vec<NodeId>, Vec<EventTime>),
    layers: Layers,
    nodes: DistinctNodes,
    pairs: Vec<u32>,
    neighbors: Vec<u32>,
    /// Which of `neighbors` read each distinct node, once they were listed.
    slot_readers: Option<Arc<InverseIndex>>,
    readers: Readers,
}

impl Neighborhood {
    /// Forgets the seeds, and what a GPU kept of their sample, which nothing is asked of any more; keeps the room.
    pub fn clear(&mut self) {
        self.seed_nodes.clear();
        self.seed_times.clear();
        self.slot_readers = None;
        self.layers.retire();
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
        let Self { seed_nodes, seed_times, sampled_seeds: (nodes, times), layers, .. } = self;
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

    /// Gives every seed and sampled neighbor its slot, and `others` behind them. All belong to one part. Neighbors that
    /// a GPU kept have none.
    pub fn number(&mut self, others: &[NodeId]) {
        let Self { layers, nodes, pairs, neighbors, readers, .. } = self;
        nodes.clear();
        pairs.clear();
        neighbors.clear();
        for layer in layers.layers() {
            nodes.insert_all(&layer.nodes, pairs);
            nodes.insert_filled(&layer.graph.neighbors, neighbors);
        }
        for &node in others {
            nodes.insert(node);
        }
        readers.whole(nodes.nodes().len());
        self.slot_readers = None;
    }

    /// Lists the slots that read each distinct node, by which a backward pass that is not cut adds up gradients. Where
    /// batches are prepared beside steps, it takes nothing of a step here. Does nothing if a GPU kept the neighbors.
    pub fn list_slots(&mut self) {
        let is_here = self.on_gpu().is_none_or(|columns| columns.neighbors.is_none());
        let inverse = || InverseIndex::new(&self.neighbors, self.nodes.nodes().len());
        self.slot_readers = is_here.then(inverse).map(Arc::new);
    }

    /// Which of [`neighbors`](Self::neighbors) read each of the distinct nodes, if they were
    /// [listed](Self::list_slots).
    #[must_use]
    pub fn slot_readers(&self) -> Option<&Arc<InverseIndex>> {
        self.slot_readers.as_ref()
    }

    /// Every seed and neighbor once, and the others that were numbered with them.
    #[must_use]
    pub fn nodes(&self) -> &DistinctNodes {
        &self.nodes
    }

    /// The seeds.
    pub fn seeds(&self) -> impl Iterator<Item = (NodeId, EventTime)> {
        self.seed_nodes.iter().copied().zip(self.seed_times.iter().copied())
    }

    /// Seed number `i`.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn seed(&self, i: usize) -> (NodeId, EventTime) {
        (self.seed_nodes[i], self.seed_times[i])
    }

    /// The sample, layer by layer.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        self.layers.layers()
    }

    /// What the GPU that drew the sample has of it in place of columns of the layers, if it kept some. Then a model can
    /// be computed on that GPU only.
    #[must_use]
    pub fn on_gpu(&self) -> Option<&GpuColumns> {
        self.layers.on_gpu()
    }

    /// The edges of the sample, if the GPU that drew it keeps the place of each slot's among these; one may come twice.
    #[must_use]
    pub fn listed_edges(&self) -> Option<&[EdgeId]> {
        self.layers.listed_edges()
    }

    /// The sample: time differences and edge ids of the slots, layer by layer, as far as a GPU did not keep them.
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

    /// Slot of each neighbor, `[pairs * fanout]`; [`EMPTY_SLOT`] where there is none. Empty if a GPU kept them.
    #[must_use]
    pub fn neighbors(&self) -> &[u32] {
        &self.neighbors
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let words = self.seed_nodes.capacity() + self.pairs.capacity() + self.neighbors.capacity();
        let words = words + self.sampled_seeds.0.capacity();
        let times = self.seed_times.capacity() + self.sampled_seeds.1.capacity();
        let slots = self.slot_readers.as_ref().map_or(0, |inverse| inverse.bytes());
        words * 4 + times * 8 + self.layers.bytes() + self.nodes.bytes() + self.readers.bytes() + slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;
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
            neighborhood.number(&[8, 2].map(NodeId));
            assert_eq!(neighborhood.nodes().nodes(), [5, 1, 7, 9, 8, 2].map(NodeId));
            assert_eq!(neighborhood.pairs(), [0, 1, 0]);
            let none = EMPTY_SLOT;
            assert_eq!(neighborhood.neighbors(), [2, 3, none, none, 4, none]);
            assert!(neighborhood.slot_readers().is_none());
            neighborhood.list_slots();
            let readers = neighborhood.slot_readers().map(|inverse| (inverse.lists(), inverse.place_count()));
            let lists = (&[0, 0, 0, 1, 2, 3, 3][..], vec![0, 1, 4].into());
            assert_eq!(readers, Some((lists, 6)));
            neighborhood.number(&[NodeId(2)]);
            assert!(neighborhood.slot_readers().is_none(), "nodes have other places");
        }
        assert_eq!(neighborhood.nodes().slot(NodeId(9)), Some(3));
        assert_eq!(neighborhood.nodes().slot(NodeId(3)), None);
    }

    #[test]
    fn distinct_nodes_are_found_alike_through_both_tables() {
        let mut nodes = DistinctNodes::default();
        // Short lists, then a long one after which all ids have a place, then ids beyond them.
        for (round, (count, most)) in
            [(3, 50_u32), (2_000, 30_000), (2_000, 30_000), (5, 60_000), (4_000, 60_000)]
                .into_iter()
                .enumerate()
        {
            nodes.clear();
            let mut expected: Vec<NodeId> = Vec::new();
            for i in 0..count {
                let node = match i {
                    1 => NodeId::NONE,
                    2 => NodeId(u32::try_from(DIRECT_IDS_MAX).unwrap() + 7),
                    i => NodeId(rng::below([round as u64, i, 0, 0], most)),
                };
                let place = expected.iter().position(|other| *other == node);
                assert_eq!(nodes.slot(node).map(|slot| slot as usize), place);
                let place = place.unwrap_or_else(|| {
                    expected.push(node);
                    expected.len() - 1
                });
                assert_eq!(nodes.insert(node) as usize, place);
            }
            assert_eq!(nodes.nodes(), expected);
            // All at once, some of them twice, some not there before.
            let mut all: Vec<NodeId> = expected.iter().rev().chain(&expected).copied().collect();
            all.extend((0..100).map(NodeId).chain((0..50).map(NodeId)));
            let (mut one_by_one, mut slots) = (nodes.clone(), vec![7]);
            let expected: Vec<u32> = all.iter().map(|&id| one_by_one.insert(id)).collect();
            nodes.insert_all(&all, &mut slots);
            assert!(slots[0] == 7 && slots[1..] == expected && nodes.nodes() == one_by_one.nodes());
            all.retain(|id| id.index() < 60_000);
            all.insert(3, NodeId::NONE);
            slots.clear();
            nodes.insert_filled(&all, &mut slots);
            assert_eq!(slots.remove(3), EMPTY_SLOT);
            all.remove(3);
            assert!(slots.iter().zip(&all).all(|(&slot, id)| nodes.nodes()[slot as usize] == *id));
        }
        assert!(nodes.direct.len() > 30_000 && nodes.direct.len() < DIRECT_IDS_MAX, "{}", nodes.direct.len());
        assert!(!nodes.hashed.is_empty());
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
            neighborhood.number(&[]);
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
