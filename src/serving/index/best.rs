//! The best of many scores, and which rows may be among them.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::event::NodeId;

/// Keeps the `most` best of the scores that are offered; of equal scores the ones offered first, so that who offers in
/// the order of ids gets the same ones every time.
pub(super) struct Best {
    most: usize,
    found: Vec<(f32, NodeId)>,
    /// Only better scores are taken.
    above: f32,
}

impl Best {
    pub(super) fn new(most: usize) -> Self {
        Self { most, found: Vec::with_capacity(2 * most.min(1 << 16)), above: f32::NEG_INFINITY }
    }

    /// Only scores above this one are worth an offer.
    #[inline]
    pub(super) fn above(&self) -> f32 {
        self.above
    }

    #[inline]
    pub(super) fn offer(&mut self, score: f32, node: NodeId) {
        if score > self.above && self.most > 0 {
            self.found.push((score, node));
            if self.found.len() >= 2 * self.most {
                self.cut();
            }
        }
    }

    /// Drops all but the best.
    fn cut(&mut self) {
        if self.found.len() > self.most {
            self.found.select_nth_unstable_by(self.most - 1, better_first);
            self.found.truncate(self.most);
            self.above = self.found.last().map_or(f32::NEG_INFINITY, |last| last.0);
        }
    }

    /// Takes the best, the best first.
    pub(super) fn take(&mut self) -> Vec<(f32, NodeId)> {
        self.cut();
        self.above = f32::NEG_INFINITY;
        let mut found = std::mem::take(&mut self.found);
        found.sort_unstable_by(better_first);
        found
    }
}

/// The better score first; of equal ones the lower id.
pub(super) fn better_first(a: &(f32, NodeId), b: &(f32, NodeId)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Which rows may be found.
#[derive(Clone, Default)]
pub(super) struct Allowed {
    /// Only destinations.
    pub destinations: bool,
    /// Of these only, a bit for each id; all, if there are none.
    pub among: Option<Arc<Vec<u64>>>,
    /// Not these.
    pub but: HashSet<NodeId>,
}

impl Allowed {
    /// Whether a node may be found as far as that depends on its id.
    #[inline]
    pub(super) fn takes(&self, node: NodeId) -> bool {
        let is_among = |bits: &Arc<Vec<u64>>| {
            bits.get(node.index() / 64).is_some_and(|word| word >> (node.index() % 64) & 1 == 1)
        };
        self.among.as_ref().is_none_or(is_among) && !self.but.contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng::below;

    #[test]
    fn the_best_are_those_of_a_sorted_list_and_ties_go_to_the_lower_id() {
        for (most, count) in [(0, 10), (1, 1), (3, 2), (7, 1000), (100, 1000)] {
            let score = |i: u32| below([5, u64::from(i), 0, 0], 50) as f32;
            let mut best = Best::new(most);
            (0..count).for_each(|i| best.offer(score(i), NodeId(i)));
            let mut all: Vec<_> = (0..count).map(|i| (score(i), NodeId(i))).collect();
            all.sort_by(better_first);
            all.truncate(most);
            assert_eq!(best.take(), all, "{most} of {count}");
        }
    }
}
