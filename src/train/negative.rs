//! Where random negatives of the published protocols come from: a pool of destinations, each equally likely.
//!
//! A draw is a function of (seed, batch, place in the batch) and of the pool, never of what was drawn
//! before, so a restored or replayed run draws the same negatives. A drawn pair may happen to be a true
//! edge; that is the custom of the field and is left as it is. Historical and inductive negatives are in
//! [`historical`](super::historical), those of a model that follows a stream in
//! [`stream_negatives`](super::stream_negatives).

use crate::device::rng;
use crate::event::NodeId;

/// Keeps negatives apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x6e65_6761_7469_7665;

/// The distinct destinations seen so far, in order of first appearance.
#[derive(Clone, Debug, Default)]
pub struct DestinationPool {
    nodes: Vec<NodeId>,
    member: Vec<u64>,
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
            let (word, bit) = (node.index() / 64, 1 << (node.index() % 64));
            if word >= self.member.len() {
                self.member.resize(word + 1, 0);
            }
            if self.member[word] & bit == 0 {
                self.member[word] |= bit;
                self.nodes.push(node);
            }
        }
    }

    /// Drops nodes from the pool; the others keep their order. One that comes again is added at the end.
    pub fn remove(&mut self, nodes: &[NodeId]) {
        let mut known = 0;
        for &node in nodes {
            let (word, bit) = (node.index() / 64, 1 << (node.index() % 64));
            if let Some(word) = self.member.get_mut(word) {
                known |= *word & bit;
                *word &= !bit;
            }
        }
        if known != 0 {
            self.nodes.retain(|node| self.member[node.index() / 64] & (1 << (node.index() % 64)) != 0);
        }
    }

    /// Whether `node` is in the pool.
    #[must_use]
    pub fn contains(&self, node: NodeId) -> bool {
        self.member.get(node.index() / 64).is_some_and(|word| word & (1 << (node.index() % 64)) != 0)
    }

    /// Number of distinct destinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<NodeId>() + self.member.capacity() * size_of::<u64>()
    }

    /// Whether no destination was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The destinations in order of first appearance.
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
        assert_eq!(pool.nodes(), [NodeId(3), NodeId(0)]);
        pool.extend(&[0, 64].map(NodeId));
        assert_eq!(pool.nodes(), [3, 0, 64].map(NodeId));
    }
}
