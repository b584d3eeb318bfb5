//! The edges of messages: of those that wait for the nodes of a pass, and of those that its batch will leave.

use std::ops::Range;

use super::FeatureRows;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::model::{EMPTY_SLOT, MessageRows};
use crate::sampler::MessageFlowGraph;

impl FeatureRows {
    /// Notes the messages that wait for `nodes`; `pending` returns the event that left one.
    pub fn note_messages(
        &mut self,
        nodes: &[NodeId],
        pending: impl Fn(NodeId) -> Option<(EdgeId, EventTime)>,
    ) {
        self.messages.clear();
        self.message_edges.clear();
        self.message_times.clear();
        for &node in nodes {
            let (edge, time) = pending(node).unwrap_or((MessageFlowGraph::NO_EDGE, EventTime::MIN));
            self.message_edges.push(edge);
            self.message_times.push(time);
        }
    }

    /// Numbers the edges of the messages that were noted for those of the nodes that are `read`. Messages of events
    /// before `since` have no features.
    pub fn number_messages(&mut self, read: Range<usize>, since: EventTime) {
        self.messages.clear();
        let (edges, times) =
            (std::mem::take(&mut self.message_edges), std::mem::take(&mut self.message_times));
        for (place, (&edge, &time)) in edges.iter().zip(&times).enumerate() {
            let waits = edge != MessageFlowGraph::NO_EDGE && read.contains(&place);
            let number = if waits { self.index_message((edge, time), since) } else { EMPTY_SLOT };
            self.messages.push(number);
        }
        (self.message_edges, self.message_times) = (edges, times);
    }

    /// Does both.
    pub fn index_messages(
        &mut self,
        (nodes, read): (&[NodeId], Range<usize>),
        since: EventTime,
        pending: impl Fn(NodeId) -> Option<(EdgeId, EventTime)>,
    ) {
        self.note_messages(nodes, pending);
        self.number_messages(read, since);
    }

    /// Numbers the edges of `events`, whose messages (or means of them) the batch will leave for its nodes, so that
    /// their memory can be published after the batch. Messages of events before `since` have no features.
    pub fn index_next_messages(
        &mut self,
        since: EventTime,
        events: impl Iterator<Item = (EdgeId, EventTime)>,
    ) {
        self.next_messages.clear();
        for event in events {
            let number = self.index_message(event, since);
            self.next_messages.push(number);
        }
    }

    /// Whether the messages that were noted for `nodes` are those that wait: `pending` returns the event that left
    /// one.
    #[must_use]
    pub fn has_messages_of(
        &self,
        pending: impl Fn(NodeId) -> Option<(EdgeId, EventTime)>,
        nodes: &[NodeId],
    ) -> bool {
        let waits = |node| pending(node).map_or(MessageFlowGraph::NO_EDGE, |(edge, _)| edge);
        self.message_edges.len() == nodes.len()
            && self.message_edges.iter().zip(nodes).all(|(&edge, &node)| edge == waits(node))
    }

    /// The rows of the pending messages, in the order of the nodes they were numbered for.
    #[must_use]
    pub fn messages(&self) -> MessageRows<'_> {
        MessageRows { rows: self.rows_here(), types: &self.types, numbers: &self.messages, places: None }
    }

    /// The rows of the messages that the batch will leave, in the order they were numbered.
    #[must_use]
    pub fn next_messages(&self) -> MessageRows<'_> {
        let numbers = &self.next_messages;
        MessageRows { rows: self.rows_here(), types: &self.types, numbers, places: None }
    }

    fn index_message(&mut self, (edge, time): (EdgeId, EventTime), since: EventTime) -> u32 {
        self.number(if time < since { MessageFlowGraph::NO_EDGE } else { edge })
    }
}
