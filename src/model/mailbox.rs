//! Raw messages that wait to be applied: at most one per node, because of several messages for one
//! node only the last by (event time, edge id) is ever used.
//!
//! A raw message for u of event (u, v, t, e) is `[s_u ; s_v ; e ; phi(t - tau_u)]`. Of that the mailbox
//! keeps s_v, t and the edge's id. The rest is not lost: u's memory row and update time change only when its
//! pending message is applied, so until then they still are the s_u and tau_u of the moment the message
//! was stored. The edge's features e are never changed once they are there (they are zeros if the edge was deleted
//! meanwhile), so they are read from where they are kept when the message is applied: copies of them would be the
//! largest table of a model, and the one table of rows that no budget could move to disk.
//!
//! Beside each message stands the other end, v: when v is to be forgotten, the messages that hold its row go too. They
//! are found from v through [`Senders`], or where messages are averaged among the means that wait.
//!
//! Where messages are averaged, what waits is wider than s_v (see `tgn::aggregator`), and beside it stand its
//! [`Part`]s: whom each of the messages was from, and the type of its edge.

use std::io::{Read, Result, Write};

use hashbrown::HashMap;

use super::rows::NodeRows;
use super::senders::Senders;
use super::tables;
use crate::event::{EdgeId, EventTime, NodeId, NodeTable};

/// The raw message that waits for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PendingMessage<'a> {
    /// The other end's memory row.
    pub values: &'a [f32],
    /// The edge that sent it.
    pub edge: EdgeId,
    /// Its event time t.
    pub time: EventTime,
}

/// One of the messages in a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The other end of its event.
    pub other: NodeId,
    /// The number of its edge's type, as the model knows it.
    pub kind: u32,
}

/// At most one pending raw message per node.
#[derive(Clone, Debug)]
pub struct Mailbox {
    messages: NodeRows,
    edges: NodeTable<EdgeId>,
    times: NodeTable<EventTime>,
    /// The message of a node whose other end had no memory, as it may come from a file.
    zeros: Box<[f32]>,
    /// Whose memory row the message holds; `NodeId::NONE` where that is not known or nothing waits.
    others: NodeTable<NodeId>,
    /// The reverse of `others`.
    senders: Senders,
    /// What the mean that waits for a node was made of; nothing where messages are not averaged.
    parts: HashMap<NodeId, Vec<Part>>,
}

impl Mailbox {
    /// Stands in for the edge of a node without a pending message.
    const EMPTY: EdgeId = EdgeId(u64::MAX);

    /// An empty mailbox for messages of `dimension` values.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        Self {
            messages: NodeRows::new(dimension),
            edges: NodeTable::new(Self::EMPTY),
            times: NodeTable::new(EventTime(0)),
            zeros: vec![0.0; dimension].into(),
            others: NodeTable::new(NodeId::NONE),
            senders: Senders::default(),
            parts: HashMap::new(),
        }
    }

    /// Values kept per message.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.messages.dimension()
    }

    /// Number of nodes that have room in the table; for every node beyond, nothing waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.edges.len()
    }

    /// Whether no message was ever left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// The message that waits for `node`, if any.
    #[must_use]
    pub fn pending(&self, node: NodeId) -> Option<PendingMessage<'_>> {
        let (edge, time) = self.pending_event(node)?;
        Some(PendingMessage { values: self.messages.get(node).unwrap_or(&self.zeros), edge, time })
    }

    /// The event whose message waits for `node`, if any: its edge and its time.
    #[must_use]
    pub fn pending_event(&self, node: NodeId) -> Option<(EdgeId, EventTime)> {
        let edge = Some(self.edges.get(node)).filter(|edge| *edge != Self::EMPTY)?;
        Some((edge, self.times.get(node)))
    }

    /// Whether a message waits for `node`.
    #[must_use]
    pub fn is_pending(&self, node: NodeId) -> bool {
        self.pending_event(node).is_some()
    }

    /// Makes a message of `edge` with `other` at `time` wait for `node` in place of any other, and returns the
    /// room for its s_v.
    pub fn post(&mut self, node: NodeId, other: NodeId, edge: EdgeId, time: EventTime) -> &mut [f32] {
        self.others.set(node, other);
        self.senders.set(node, other);
        self.edges.set(node, edge);
        self.times.set(node, time);
        // Without means there are no parts to search for.
        if !self.parts.is_empty() {
            self.parts.remove(&node);
        }
        self.messages.get_mut(node)
    }

    /// The values of the message that waits for `node`.
    pub fn values_mut(&mut self, node: NodeId) -> &mut [f32] {
        self.messages.get_mut(node)
    }

    /// Notes that `part` goes into the message that waits for `node`, and returns its values.
    pub fn join(&mut self, node: NodeId, part: Part) -> &mut [f32] {
        self.parts.entry(node).or_default().push(part);
        self.messages.get_mut(node)
    }

    /// What the mean that waits for `node` was made of.
    #[must_use]
    pub fn parts(&self, node: NodeId) -> &[Part] {
        self.parts.get(&node).map_or(&[], Vec::as_slice)
    }

    /// Forgets the message that waits for one node.
    pub fn forget(&mut self, node: NodeId) {
        self.edges.set(node, Self::EMPTY);
        self.times.set(node, EventTime(0));
        self.others.set(node, NodeId::NONE);
        self.senders.set(node, NodeId::NONE);
        self.parts.remove(&node);
        self.messages.clear(node);
    }

    /// Forgets every message that holds the memory row of one of `gone`, ascending, and returns the nodes for which
    /// they waited.
    pub fn forget_from(&mut self, gone: &[NodeId]) -> Vec<NodeId> {
        let mut affected: Vec<NodeId> = gone.iter().flat_map(|&node| self.senders.nodes_of(node)).collect();
        let is_gone = |part: &Part| gone.binary_search(&part.other).is_ok();
        let means = self.parts.iter().filter(|(_, parts)| parts.iter().any(is_gone));
        affected.extend(means.map(|(&node, _)| node));
        affected.sort_unstable();
        affected.dedup();
        affected.iter().for_each(|&node| self.forget(node));
        affected
    }

    /// Forgets every message.
    pub fn reset(&mut self) {
        *self = Self::new(self.dimension());
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.messages.bytes()
            + self.edges.bytes()
            + self.times.bytes()
            + self.others.bytes()
            + self.senders.bytes()
            + self.parts.allocation_size()
            + self.parts.values().map(|parts| parts.capacity() * size_of::<Part>()).sum::<usize>()
    }

    /// The nodes for which a message waits, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.edges.iter().map(|(node, _)| node)
    }

    pub(super) fn save(&self, out: &mut impl Write) -> Result<()> {
        self.messages.write(out)?;
        tables::write_nodes(out, &self.edges, |edge| edge)?;
        tables::write_nodes(out, &self.times, |time| time)?;
        tables::write_nodes(out, &self.others, |other| other)?;
        self.part_tables().iter().try_for_each(|table| tables::write_table(out, table))
    }

    /// Reads messages of `dimension` values; `None` if the tables of parts do not match.
    pub(super) fn load(dimension: usize, input: &mut impl Read) -> Result<Option<Self>> {
        let mut mailbox = Self { messages: NodeRows::read(dimension, input)?, ..Self::new(dimension) };
        mailbox.edges = tables::read_nodes(input, Self::EMPTY)?;
        mailbox.times = tables::read_nodes(input, EventTime(0))?;
        mailbox.others = tables::read_nodes(input, NodeId::NONE)?;
        mailbox.others.iter().for_each(|(node, other)| mailbox.senders.set(node, other));
        let mut parts = <[Vec<u32>; 4]>::default();
        for table in &mut parts {
            *table = tables::read_table(input)?;
        }
        Ok(mailbox.with_parts(parts))
    }

    /// The parts of all means: nodes ascending, how many parts each has, and of one after another the other end and the
    /// type.
    fn part_tables(&self) -> [Vec<u32>; 4] {
        let mut nodes: Vec<_> = self.parts.iter().collect();
        nodes.sort_unstable_by_key(|(node, _)| **node);
        let parts = || nodes.iter().flat_map(|(_, parts)| parts.iter());
        [
            nodes.iter().map(|(node, _)| node.0).collect(),
            // A batch's messages are counted in 32 bits.
            nodes.iter().map(|(_, parts)| parts.len() as u32).collect(),
            parts().map(|part| part.other.0).collect(),
            parts().map(|part| part.kind).collect(),
        ]
    }

    /// The same mailbox with these parts; `None` if the tables do not match.
    fn with_parts(mut self, [nodes, counts, others, kinds]: [Vec<u32>; 4]) -> Option<Self> {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        if counts.len() != nodes.len() || others.len() != kinds.len() || total != others.len() as u64 {
            return None;
        }
        let part = |(other, kind)| Part { other: NodeId(other), kind };
        let mut parts = others.into_iter().zip(kinds).map(part);
        for (node, count) in nodes.into_iter().zip(counts) {
            self.parts.insert(NodeId(node), parts.by_ref().take(count as usize).collect());
        }
        Some(self)
    }
}

/// Equal messages are equal, in whatever order the indexes about them were built.
impl PartialEq for Mailbox {
    fn eq(&self, other: &Self) -> bool {
        self.messages == other.messages
            && self.edges == other.edges
            && self.times.has_values_of(&other.times)
            && self.others.has_values_of(&other.others)
            && self.parts == other.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_takes_the_place_of_the_old_one() {
        let mut mailbox = Mailbox::new(2);
        assert_eq!(mailbox.pending(NodeId(4)), None);
        mailbox.post(NodeId(4), NodeId(3), EdgeId(1), EventTime(10)).copy_from_slice(&[1.0, 2.0]);
        mailbox.post(NodeId(4), NodeId(3), EdgeId(2), EventTime(11)).copy_from_slice(&[3.0, 4.0]);
        let expected = PendingMessage { values: &[3.0, 4.0], edge: EdgeId(2), time: EventTime(11) };
        assert_eq!(mailbox.pending(NodeId(4)), Some(expected));
        assert!(!mailbox.is_pending(NodeId(3)) && mailbox.is_pending(NodeId(4)));
    }

    #[test]
    fn what_a_forgotten_node_sent_is_forgotten_with_it() {
        let mut mailbox = Mailbox::new(1);
        for (node, other) in [(1, 7), (2, 8), (7, 1), (3, 9), (5, 7)] {
            mailbox.post(NodeId(node), NodeId(other), EdgeId(0), EventTime(10)).fill(1.0);
        }
        assert_eq!(mailbox.forget_from(&[]), []);
        assert_eq!(mailbox.forget_from(&[NodeId(7), NodeId(9)]), [1, 3, 5].map(NodeId));
        let pending: Vec<u32> = (0..9).filter(|&node| mailbox.is_pending(NodeId(node))).collect();
        assert_eq!(pending, [2, 7]);
        let values: f32 = (0..8).filter_map(|node| mailbox.messages.get(NodeId(node))).flatten().sum();
        assert_eq!(values, 2.0, "their rows are gone");
        assert_eq!(mailbox.forget_from(&[NodeId(7), NodeId(9)]), []);
    }

    #[test]
    fn forgetting_a_node_costs_no_more_among_many() {
        let mut mailbox = Mailbox::new(1);
        for node in (0..1_000_000).rev() {
            mailbox.post(NodeId(node), NodeId(node ^ 1), EdgeId(0), EventTime(10));
        }
        let begun = std::time::Instant::now();
        for node in (0..1_000_000).step_by(100).map(NodeId) {
            mailbox.forget(node);
            assert_eq!(mailbox.forget_from(&[node]), [NodeId(node.0 ^ 1)]);
        }
        assert!(begun.elapsed().as_secs_f64() < 1.0, "10,000 took {:?}", begun.elapsed());
    }
}
