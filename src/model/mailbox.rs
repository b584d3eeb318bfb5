//! Raw messages that wait to be applied: at most one per node, because of several messages for one
//! node only the last by (event time, edge id) is ever used.
//!
//! A raw message for u of event (u, v, t, e) is `[s_u ; s_v ; e ; phi(t - tau_u)]`. Of that the mailbox
//! keeps s_v, t and the edge's id. The rest is not lost: u's memory row and update time change only when its
//! pending message is applied, so until then they still are the s_u and tau_u of the moment the message
//! was stored. The edge's features e are never changed once they are there, so they are read from where they
//! are kept when the message is applied: copies of them would be the largest table of a model, and the one
//! table of rows that no budget could move to disk.

use super::rows::NodeRows;
use crate::event::{EdgeId, EventTime, NodeId};

/// The raw message that waits for a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PendingMessage<'a> {
    /// The other end's memory row.
    pub mail: &'a [f32],
    /// The edge that sent it.
    pub edge: EdgeId,
    /// Its event time t.
    pub time: EventTime,
}

/// At most one pending raw message per node.
#[derive(Clone, Debug, PartialEq)]
pub struct Mailbox {
    mails: NodeRows,
    edges: Vec<EdgeId>,
    times: Vec<EventTime>,
    /// The mail of a node whose other end had no memory, as it may come from a file.
    zeros: Box<[f32]>,
}

impl Mailbox {
    /// Stands in for the edge of a node without a pending message.
    const EMPTY: EdgeId = EdgeId(u64::MAX);

    /// An empty mailbox; `dimension` is the memory width.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        Self::over(NodeRows::new(dimension), Vec::new(), Vec::new())
    }

    fn over(mails: NodeRows, edges: Vec<EdgeId>, times: Vec<EventTime>) -> Self {
        let zeros = vec![0.0; mails.dimension()].into();
        Self { mails, edges, times, zeros }
    }

    /// Values kept per message.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.mails.dimension()
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
        let edge = self.pending_edge(node)?;
        Some(PendingMessage {
            mail: self.mails.get(node).unwrap_or(&self.zeros),
            edge,
            time: self.times[node.index()],
        })
    }

    /// The edge of the message that waits for `node`, if any.
    #[must_use]
    pub fn pending_edge(&self, node: NodeId) -> Option<EdgeId> {
        self.edges.get(node.index()).copied().filter(|edge| *edge != Self::EMPTY)
    }

    /// Whether a message waits for `node`.
    #[must_use]
    pub fn is_pending(&self, node: NodeId) -> bool {
        self.pending_edge(node).is_some()
    }

    /// Makes a message of `edge` at `time` wait for `node` in place of any other, and returns the room
    /// for its s_v.
    pub fn post(&mut self, node: NodeId, edge: EdgeId, time: EventTime) -> &mut [f32] {
        if node.index() >= self.edges.len() {
            self.edges.resize(node.index() + 1, Self::EMPTY);
            self.times.resize(node.index() + 1, EventTime(0));
        }
        self.edges[node.index()] = edge;
        self.times[node.index()] = time;
        self.mails.get_mut(node)
    }

    /// Forgets the message that waits for one node.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(edge) = self.edges.get_mut(node.index()) {
            *edge = Self::EMPTY;
            self.times[node.index()] = EventTime(0);
            self.mails.clear(node);
        }
    }

    /// Forgets every message.
    pub fn reset(&mut self) {
        self.mails.reset();
        self.edges.clear();
        self.times.clear();
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mails.bytes()
            + self.edges.capacity() * size_of::<EdgeId>()
            + self.times.capacity() * size_of::<EventTime>()
    }

    /// The tables as they are: all mails, all edges, all times.
    pub(super) fn tables(&self) -> (&NodeRows, &[EdgeId], &[EventTime]) {
        (&self.mails, &self.edges, &self.times)
    }

    /// A mailbox from tables of matching lengths; `None` if they do not match.
    pub(super) fn from_tables(mails: NodeRows, edges: Vec<EdgeId>, times: Vec<EventTime>) -> Option<Self> {
        let matches = edges.len() == times.len() && mails.len() == edges.len();
        matches.then(|| Self::over(mails, edges, times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_takes_the_place_of_the_old_one() {
        let mut mailbox = Mailbox::new(2);
        assert_eq!(mailbox.pending(NodeId(4)), None);
        mailbox.post(NodeId(4), EdgeId(1), EventTime(10)).copy_from_slice(&[1.0, 2.0]);
        mailbox.post(NodeId(4), EdgeId(2), EventTime(11)).copy_from_slice(&[3.0, 4.0]);
        let expected = PendingMessage { mail: &[3.0, 4.0], edge: EdgeId(2), time: EventTime(11) };
        assert_eq!(mailbox.pending(NodeId(4)), Some(expected));
        assert!(!mailbox.is_pending(NodeId(3)) && mailbox.is_pending(NodeId(4)));
    }
}
