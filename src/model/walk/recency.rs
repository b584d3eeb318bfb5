//! [`Recency`]: when nodes and pairs were last seen, and how often nodes were.

use std::io::{Read, Result, Write};

use hashbrown::{HashMap, HashSet};

use crate::event::{EventTime, NodeId, NodeTable};
use crate::model::pair_budget::evict_oldest;
use crate::model::tables;

/// A time that never was.
const NEVER: EventTime = EventTime::MIN;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    last: EventTime,
    events: u32,
}

impl Node {
    const UNSEEN: Self = Self { last: NEVER, events: 0 };
}

/// When a pair was last seen, from the smaller node id to the larger and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairTimes {
    forth: EventTime,
    back: EventTime,
}

impl PairTimes {
    const NEVER: Self = Self { forth: NEVER, back: NEVER };

    /// When it was last seen in either direction.
    #[must_use]
    pub fn latest(self) -> EventTime {
        self.forth.max(self.back)
    }

    /// Names the pair of two nodes, whichever comes first.
    #[must_use]
    pub fn key(u: NodeId, v: NodeId) -> u64 {
        u64::from(u.0.min(v.0)) << 32 | u64::from(u.0.max(v.0))
    }

    /// Whether a key names a pair with a node that `gone` knows.
    #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
    pub fn is_of(key: u64, gone: impl Fn(NodeId) -> bool) -> bool {
        gone(NodeId((key >> 32) as u32)) || gone(NodeId(key as u32))
    }

    /// From the smaller node id to the larger, and back.
    #[must_use]
    pub fn both(self) -> [EventTime; 2] {
        [self.forth, self.back]
    }

    /// Times as [`both`](Self::both) has them.
    #[must_use]
    pub fn of([forth, back]: [EventTime; 2]) -> Self {
        Self { forth, back }
    }

    /// From `u` to `v`, and back.
    fn seen_from(self, u: NodeId, v: NodeId) -> [EventTime; 2] {
        if u <= v { [self.forth, self.back] } else { [self.back, self.forth] }
    }
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

impl Seen {
    /// What stands at `time` of two nodes with so many events, each with the time of its last one, and of their pair,
    /// which counts as never seen where one of them does.
    pub fn at(
        time: EventTime,
        [u, v]: [NodeId; 2],
        last: [Option<EventTime>; 2],
        events: [f32; 2],
        pair: Option<PairTimes>,
    ) -> Self {
        let pair = pair.filter(|_| events.iter().all(|&count| count > 0.0));
        let [there, here] = pair.unwrap_or(PairTimes::NEVER).seen_from(u, v);
        let [a, b] = last.map(|last| last.unwrap_or(NEVER));
        Self { ages: [a, b, there, here].map(|last| age(last, time)), events }
    }
}

/// Times and counts by node and by pair.
#[derive(Clone, Debug)]
pub(super) struct Recency {
    nodes: NodeTable<Node>,
    /// By the two ids, the smaller one first: one lookup covers both directions.
    pairs: HashMap<u64, PairTimes>,
    /// Pairs that were last seen before this count as never seen; [`NEVER`]: none do.
    since: EventTime,
    /// Most pairs; 0: any number.
    pairs_max: usize,
    /// Pairs at which those before `since` are dropped.
    prune_at: usize,
    evicted: u64,
}

/// Fewer pairs are not worth looking through.
const PRUNE_MIN: usize = 1_024;

/// Equal in what was seen.
impl PartialEq for Recency {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes && self.pairs == other.pairs
    }
}

impl Recency {
    /// Has seen nothing.
    pub fn new() -> Self {
        let (nodes, pairs) = (NodeTable::new(Node::UNSEEN), HashMap::new());
        Self { nodes, pairs, since: NEVER, pairs_max: 0, prune_at: PRUNE_MIN, evicted: 0 }
    }

    /// What stands at `time`.
    pub fn of(&self, u: NodeId, v: NodeId, time: EventTime) -> Seen {
        let nodes = [u, v].map(|node| self.nodes.get(node));
        // Saves a lookup for nodes that are new.
        let pair = if nodes.iter().all(|node| node.events > 0) { self.pair(u, v) } else { None };
        let (last, events) = (nodes.map(|node| Some(node.last)), nodes.map(|node| node.events as f32));
        Seen::at(time, [u, v], last, events, pair)
    }

    /// When a pair was last seen, if it ever was.
    pub fn pair(&self, u: NodeId, v: NodeId) -> Option<PairTimes> {
        self.pairs.get(&PairTimes::key(u, v)).copied().filter(|times| times.latest() >= self.since)
    }

    /// All pairs by their keys, in no order.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, PairTimes)> {
        self.pairs.iter().map(|(&key, &times)| (key, times))
    }

    /// Events of a node; a loop counts twice.
    pub fn events(&self, node: NodeId) -> u32 {
        self.nodes.get(node).events
    }

    /// Takes in one event; a late one turns no time back.
    pub fn observe(&mut self, u: NodeId, v: NodeId, time: EventTime) {
        for node in [u, v] {
            let Node { last, events } = self.nodes.get(node);
            self.nodes.set(node, Node { last: last.max(time), events: events.saturating_add(1) });
        }
        let pair = self.pairs.entry(PairTimes::key(u, v)).or_insert(PairTimes::NEVER);
        if u <= v {
            pair.forth = pair.forth.max(time);
        }
        if v <= u {
            pair.back = pair.back.max(time);
        }
        self.evicted += evict_oldest(&mut self.pairs, self.pairs_max, |times| times.latest());
    }

    /// Keeps `most` pairs at most from now on, those that were seen last; 0: any number.
    pub fn limit_pairs(&mut self, most: usize) {
        self.pairs_max = most;
        self.evicted += evict_oldest(&mut self.pairs, most, |times| times.latest());
    }

    /// Pairs that were last seen before `since` count as never seen from now on. The time does not go back. Now and
    /// then all pairs are visited: once for each time that their number doubles.
    pub fn keep_since(&mut self, since: EventTime) {
        self.since = self.since.max(since);
        if since == NEVER || self.pairs.len() < self.prune_at.max(PRUNE_MIN) {
            return;
        }
        self.pairs.retain(|_, times| times.latest() >= self.since);
        self.prune_at = 2 * self.pairs.len();
        self.pairs.shrink_to(self.prune_at);
    }

    /// Most pairs; 0: any number.
    pub fn pairs_max(&self) -> usize {
        self.pairs_max
    }

    /// Pairs that went for the limit.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Forgets nodes: their pairs count as never seen.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        nodes.iter().for_each(|&node| self.nodes.set(node, Node::UNSEEN));
    }

    /// Lets the pairs of nodes go. Visits every pair.
    pub fn forget_pairs(&mut self, nodes: &[NodeId]) {
        let gone: HashSet<NodeId> = nodes.iter().copied().collect();
        if !gone.is_empty() {
            self.pairs.retain(|&pair, _| !PairTimes::is_of(pair, |node| gone.contains(&node)));
        }
    }

    /// Writes last times and events by node; keys of pairs, ascending, and the times of each.
    pub fn write(&self, out: &mut impl Write) -> Result<()> {
        tables::write_nodes(out, &self.nodes, |node| node.last)?;
        tables::write_nodes(out, &self.nodes, |node| node.events)?;
        let mut pairs: Vec<(u64, PairTimes)> = self.pairs().collect();
        pairs.sort_unstable_by_key(|&(key, _)| key);
        tables::write_table(out, &pairs.iter().map(|&(key, _)| key).collect::<Vec<u64>>())?;
        tables::write_table(out, &pairs.iter().map(|(_, times)| times.forth).collect::<Vec<EventTime>>())?;
        tables::write_table(out, &pairs.iter().map(|(_, times)| times.back).collect::<Vec<EventTime>>())
    }

    /// Reads what [`write`](Self::write) wrote; `None` where lengths differ.
    pub fn read(input: &mut impl Read) -> Result<Option<Self>> {
        let (last, events) = (tables::read_nodes(input, NEVER)?, tables::read_nodes(input, 0_u32)?);
        let pairs: Vec<u64> = tables::read_table(input)?;
        let (forth, back): (Vec<EventTime>, Vec<EventTime>) =
            (tables::read_table(input)?, tables::read_table(input)?);
        if last.len() != events.len() || pairs.len() != forth.len() || pairs.len() != back.len() {
            return Ok(None);
        }
        let mut recency = Self::new();
        for (node, events) in events.iter() {
            recency.nodes.set(node, Node { last: last.get(node), events });
        }
        recency.nodes.extend_to(events.len());
        let times = forth.into_iter().zip(back).map(|(forth, back)| PairTimes { forth, back });
        recency.pairs = pairs.into_iter().zip(times).collect();
        Ok(Some(recency))
    }

    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.pairs.allocation_size()
    }
}

/// Time since `last`, 0 if that is later than `time`.
#[allow(clippy::cast_precision_loss)]
fn age(last: EventTime, time: EventTime) -> Option<f32> {
    (last != NEVER).then(|| time.0.saturating_sub(last.0).max(0) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_pairs_are_never_seen_whether_they_are_there_or_not_and_the_table_stays_small() {
        let (mut kept, mut all) = (Recency::new(), Recency::new());
        kept.limit_pairs(1_000_000);
        for i in 0..50_000_u32 {
            let (u, v, time) = (NodeId(i % 7), NodeId(10 + i), EventTime(i64::from(i)));
            kept.observe(u, v, time);
            all.observe(u, v, time);
            kept.keep_since(EventTime(i64::from(i) - 3_000));
            assert!(kept.pairs.len() <= 7_000, "{} pairs", kept.pairs.len());
        }
        for i in (0..50_000_u32).step_by(77) {
            let expected = all.pair(NodeId(i % 7), NodeId(10 + i)).filter(|_| i >= 49_999 - 3_000);
            assert_eq!(kept.pair(NodeId(i % 7), NodeId(10 + i)), expected, "pair {i}");
        }
        all.limit_pairs(400);
        assert_eq!((all.pairs.len(), all.evicted()), (300, 49_700));
        all.observe(NodeId(3), NodeId(4), EventTime(0));
        assert!(all.pair(NodeId(3), NodeId(4)).is_some());
    }

    #[test]
    fn pairs_have_a_direction_and_late_events_turn_no_time_back() {
        let mut recency = Recency::new();
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
        for pairs_too in [false, true] {
            recency.forget(&[NodeId(2), NodeId(444)]);
            assert_eq!(recency.pair(NodeId(2), NodeId(7)).is_some(), !pairs_too);
            assert_eq!(at(&recency, 7, 2), Seen { ages: [Some(10.0), None, None, None], events: [3.0, 0.0] });
            recency.forget_pairs(&[NodeId(2), NodeId(444)]);
        }
        assert_eq!(at(&recency, 3, 3).ages, [Some(5.0); 4]);
    }
}
