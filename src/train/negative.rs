//! Where random negatives of the published protocols come from: a pool of destinations, each equally likely.
//!
//! A draw is a function of (seed, batch, place in the batch) and of the pool, never of what was drawn
//! before, so a restored or replayed run draws the same negatives. A drawn pair may happen to be a true
//! edge; that is the custom of the field and is left as it is. Historical and inductive negatives are in
//! [`historical`](super::historical), those of a model that follows a stream in
//! [`stream_negatives`](super::stream_negatives).

use crate::device::rng;
use crate::event::{NodeId, NodeTable};

/// Keeps negatives apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x6e65_6761_7469_7665;

/// Stands for no place in the pool.
const NOWHERE: u32 = u32::MAX;

/// The distinct destinations seen so far. The order follows from what was added and removed, and from nothing else: one
/// that is removed leaves its place to the last.
#[derive(Clone, Debug)]
pub struct DestinationPool {
    nodes: Vec<NodeId>,
    /// By node, its place among them.
    places: NodeTable<u32>,
}

impl Default for DestinationPool {
    fn default() -> Self {
        Self { nodes: Vec::new(), places: NodeTable::new(NOWHERE) }
    }
}

impl DestinationPool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds destinations; those already in the pool change nothing.
    pub fn extend(&mut self, destinations: &[NodeId]) {
        for &node in destinations {
            if self.places.get(node) == NOWHERE {
                // Fewer than ids, which have 32 bits.
                self.places.set(node, self.nodes.len() as u32);
                self.nodes.push(node);
            }
        }
    }

    /// Drops nodes from the pool. One that comes again is added at the end.
    pub fn remove(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            let place = self.places.get(node);
            if place != NOWHERE {
                self.places.set(node, NOWHERE);
                self.nodes.swap_remove(place as usize);
                if let Some(&moved) = self.nodes.get(place as usize) {
                    self.places.set(moved, place);
                }
            }
        }
    }

    /// Whether `node` is in the pool.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.places.get(node) != NOWHERE
    }

    /// Number of distinct destinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<NodeId>() + self.places.bytes()
    }

    /// Whether no destination was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The destinations, in the pool's order.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// Fills `out` with `count` destinations drawn uniformly, with replacement, for batch number
    /// `batch`. An empty pool leaves `out` empty.
    pub fn draw(&self, seed: u64, batch: u64, count: usize, out: &mut Vec<NodeId>) {
        out.clear();
        let Ok(size) = u32::try_from(self.nodes.len()) else { return };
        if size == 0 {
            return;
        }
        out.extend(
            (0..count as u64).map(|i| self.nodes[rng::below([STREAM, seed, batch, i], size) as usize]),
        );
    }
}

/// Moves `count` of `items`, drawn without replacement, to the front.
pub(super) fn shuffle_front<T>(items: &mut [T], count: usize, key: [u64; 3]) {
    let prefix = rng::prefix(key);
    for i in 0..count.min(items.len()) {
        let rest = u32::try_from(items.len() - i).unwrap_or(u32::MAX);
        items.swap(i, i + rng::scale(rng::draw(prefix, i as u64), rest) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_repeatable_and_cover_the_pool_evenly() {
        let mut pool = DestinationPool::new();
        let mut out = vec![NodeId(1)];
        pool.draw(1, 0, 4, &mut out);
        assert!(out.is_empty());
        pool.extend(&[NodeId(900), NodeId(3), NodeId(900), NodeId(64), NodeId(3), NodeId(0)]);
        assert_eq!(pool.nodes(), [NodeId(900), NodeId(3), NodeId(64), NodeId(0)]);
        pool.draw(1, 7, 8000, &mut out);
        for node in pool.nodes() {
            let share = out.iter().filter(|drawn| *drawn == node).count();
            assert!((1800..2200).contains(&share), "{node:?} drawn {share} times of 8000");
        }
        let mut again = Vec::new();
        pool.draw(1, 7, 8000, &mut again);
        assert_eq!(out, again);
        pool.draw(1, 8, 8000, &mut again);
        assert_ne!(out, again);
    }

    #[test]
    fn a_removed_destination_is_not_drawn_until_it_comes_again() {
        let mut pool = DestinationPool::new();
        pool.extend(&[9, 3, 64, 0].map(NodeId));
        pool.remove(&[64, 1, 7_000, 9].map(NodeId));
        assert_eq!(pool.nodes(), [NodeId(0), NodeId(3)]);
        pool.extend(&[0, 64].map(NodeId));
        assert_eq!(pool.nodes(), [0, 3, 64].map(NodeId));
    }

    #[test]
    fn a_removal_costs_no_more_in_a_large_pool() {
        let mut pool = DestinationPool::new();
        let all: Vec<NodeId> = (0..1_000_000).map(NodeId).collect();
        pool.extend(&all);
        let begun = std::time::Instant::now();
        all.iter().step_by(100).for_each(|&node| pool.remove(&[node]));
        assert!(begun.elapsed().as_secs_f64() < 1.0, "10,000 removals took {:?}", begun.elapsed());
        assert_eq!(pool.len(), 990_000);
        pool.extend(&all);
        assert_eq!(pool.len(), 1_000_000);
    }
}
