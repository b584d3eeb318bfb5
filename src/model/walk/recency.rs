//! [`Recency`]: when nodes and pairs were last seen, and how often nodes were.

use hashbrown::{HashMap, HashSet};

use crate::event::{EventTime, NodeId};

/// A time that never was.
const NEVER: EventTime = EventTime::MIN;

#[derive(Clone, Copy, Debug)]
struct Node {
    last: EventTime,
    events: u32,
}

/// When a pair was last seen, from the smaller node id to the larger and back.
#[derive(Clone, Copy, Debug)]
struct Pair {
    forth: EventTime,
    back: EventTime,
}

/// What was last seen of a pair `(u, v)` and its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Time since the last event of `u`, of `v`, from `u` to `v`, from `v` to `u`; `None` if there was none.
    /// Not below 0.
    pub ages: [Option<f32>; 4],
    /// Events of `u` and of `v`; a loop counts twice.
    pub events: [f32; 2],
}

/// Times and counts by node and by pair.
#[derive(Clone, Debug, Default)]
pub(super) struct Recency {
    nodes: Vec<Node>,
    /// By the two ids, the smaller one first: one look-up tells both directions.
    pairs: HashMap<u64, Pair>,
}

impl Recency {
    /// What stands at `time`.
    pub fn of(&self, u: NodeId, v: NodeId, time: EventTime) -> Seen {
        let node =
            |node: NodeId| self.nodes.get(node.index()).copied().unwrap_or(Node { last: NEVER, events: 0 });
        let (a, b) = (node(u), node(v));
        let mut ages = [a.last, b.last, NEVER, NEVER].map(|last| age(last, time));
        if a.events > 0
            && b.events > 0
            && let Some(pair) = self.pairs.get(&unordered(u, v))
        {
            let [there, here] = if u <= v { [pair.forth, pair.back] } else { [pair.back, pair.forth] };
            (ages[2], ages[3]) = (age(there, time), age(here, time));
        }
        Seen { ages, events: [a.events as f32, b.events as f32] }
    }

    /// Takes in one event; a late one turns no time back.
    pub fn observe(&mut self, u: NodeId, v: NodeId, time: EventTime) {
        let len = u.index().max(v.index()) + 1;
        if len > self.nodes.len() {
            self.nodes.resize(len, Node { last: NEVER, events: 0 });
        }
        for node in [u, v] {
            let node = &mut self.nodes[node.index()];
            node.last = node.last.max(time);
            node.events = node.events.saturating_add(1);
        }
        let pair = self.pairs.entry(unordered(u, v)).or_insert(Pair { forth: NEVER, back: NEVER });
        if u <= v {
            pair.forth = pair.forth.max(time);
        }
        if v <= u {
            pair.back = pair.back.max(time);
        }
    }

    /// Forgets nodes and their pairs.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        let gone: HashSet<u32> = nodes.iter().map(|node| node.0).collect();
        for node in nodes {
            if let Some(node) = self.nodes.get_mut(node.index()) {
                *node = Node { last: NEVER, events: 0 };
            }
        }
        if !gone.is_empty() {
            #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
            self.pairs
                .retain(|&pair, _| !gone.contains(&((pair >> 32) as u32)) && !gone.contains(&(pair as u32)));
        }
    }

    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.pairs.allocation_size()
    }
}

/// Time since `last`, 0 if that is later than `time`.
#[allow(clippy::cast_precision_loss)]
fn age(last: EventTime, time: EventTime) -> Option<f32> {
    (last != NEVER).then(|| time.0.saturating_sub(last.0).max(0) as f32)
}

fn unordered(u: NodeId, v: NodeId) -> u64 {
    u64::from(u.0.min(v.0)) << 32 | u64::from(u.0.max(v.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_have_a_direction_and_late_events_turn_no_time_back() {
        let mut recency = Recency::default();
        let at = |recency: &Recency, u, v| recency.of(NodeId(u), NodeId(v), EventTime(100));
        recency.observe(NodeId(7), NodeId(2), EventTime(90));
        recency.observe(NodeId(7), NodeId(2), EventTime(40));
        recency.observe(NodeId(2), NodeId(7), EventTime(60));
        recency.observe(NodeId(3), NodeId(3), EventTime(95));
        assert_eq!(at(&recency, 7, 2).ages, [Some(10.0), Some(10.0), Some(10.0), Some(40.0)]);
        assert_eq!(at(&recency, 2, 7).ages, [Some(10.0), Some(10.0), Some(40.0), Some(10.0)]);
        assert_eq!(at(&recency, 3, 3), Seen { ages: [Some(5.0); 4], events: [2.0, 2.0] });
        assert_eq!(at(&recency, 2, 3).ages, [Some(10.0), Some(5.0), None, None]);
        assert_eq!(at(&recency, 1, 900), Seen::default());
        assert_eq!(recency.of(NodeId(3), NodeId(3), EventTime(1)).ages, [Some(0.0); 4]);
        recency.forget(&[NodeId(2), NodeId(444)]);
        assert_eq!(at(&recency, 7, 2), Seen { ages: [Some(10.0), None, None, None], events: [3.0, 0.0] });
        assert_eq!(at(&recency, 3, 3).ages, [Some(5.0); 4]);
    }
}
