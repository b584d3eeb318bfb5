//! Nodes spread over all ids: a part that looks like the whole.

use super::QueryEngine;
use crate::event::{NodeId, NodeKey};

/// Ids that are looked at for each node that is wanted: names that are gone leave gaps.
const TRIES: usize = 16;

/// A node that stands for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpreadNode {
    /// Its key.
    pub key: NodeKey,
    /// Its edges in the graph.
    pub degree: u64,
    /// Whether an event has it as its destination.
    pub is_destination: bool,
}

impl QueryEngine {
    /// At most `most` nodes with a name, spread evenly over all ids, and how many ids there are. The same graph gives
    /// the same nodes.
    ///
    /// Ids are in the order in which nodes came, and that order has patterns, such as a source and its destination in
    /// turn. So steps through the ids are near the golden ratio of all, which no pattern follows.
    #[must_use]
    pub fn spread_nodes(&self, most: usize) -> (Vec<SpreadNode>, usize) {
        let keys = &self.stores.keys;
        let ids = keys.len();
        let mut found = Vec::with_capacity(most.min(ids));
        for place in Spread::over(ids).take(most.saturating_mul(TRIES)) {
            if found.len() == most {
                break;
            }
            let Ok(id) = u32::try_from(place).map(NodeId) else { break };
            if let Some(key) = keys.key(id) {
                let (degree, is_destination) =
                    (self.stores.graph.degree(id), self.states.touched.is_destination(id));
                found.push(SpreadNode { key, degree, is_destination });
            }
        }
        (found, ids)
    }
}

/// Every number below `count` once, each far from those just before it.
struct Spread {
    count: usize,
    step: usize,
    next: usize,
    left: usize,
}

impl Spread {
    fn over(count: usize) -> Self {
        // 0.618 of all, and without a common divisor, so that no number comes twice.
        let near = (count / 1000 * 618 + count % 1000 * 618 / 1000).max(1);
        let step = (near..=near + count).find(|step| divisor(*step, count) == 1).unwrap_or(1);
        Self { count, step, next: 0, left: count }
    }
}

impl Iterator for Spread {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let place = self.next;
        self.next = (place + self.step) % self.count;
        Some(place)
    }
}

fn divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_comes_once_and_a_part_is_spread_over_all() {
        for count in [0, 1, 2, 3, 4, 10, 618, 1000, 1001, 4096, 9973] {
            let all: BTreeSet<usize> = Spread::over(count).collect();
            assert_eq!((all.len(), all.last().copied()), (count, count.checked_sub(1)), "{count}");
        }
        let part: Vec<usize> = Spread::over(100_000).take(1_000).collect();
        for tenth in 0..10 {
            let inside = part.iter().filter(|place| **place / 10_000 == tenth).count();
            assert!((80..=120).contains(&inside), "{inside} of 1000 in tenth {tenth}");
        }
        let even = part.iter().filter(|place| **place % 2 == 0).count();
        assert!((400..=600).contains(&even), "{even} of 1000 are even");
    }
}
