//! The memory updater: what a node's memory row is once its pending message is applied.
//!
//! `S*` is computed on the tape, so that the loss of the batch that *reads* it trains the cell: the raw
//! message itself is a constant, stored one batch earlier. Only nodes with a pending message go through
//! the cell; the others keep their row. Writing `S*` back is the state's business, not done here.
//!
//! The features of a message's edge are not in the message: the caller provides them. A mean of messages holds them
//! (see `aggregator`).

use super::{Aggregator, Cell, Tgn};
use crate::event::NodeId;
use crate::model::{MessageRows, ModelState};
use crate::nn::{Tape, Var};

impl Tgn {
    /// Memory rows `[nodes, memory_dim]` of distinct `nodes` after each one's pending message, whose edge features are
    /// in `messages`.
    pub(crate) fn fresh_memory(
        &self,
        tape: &mut Tape<'_>,
        state: &ModelState,
        nodes: &[NodeId],
        messages: MessageRows<'_>,
    ) -> Var {
        let rows = state.mirror.memory(tape.device(), nodes.iter().copied()).unwrap_or_else(|| {
            let mut rows = tape.take(nodes.len(), self.options.memory_dim);
            for (i, &node) in nodes.iter().enumerate() {
                state.memory.row_into(node, rows.row_mut(i));
            }
            rows
        });
        let is_pending = |slot: &u32| state.mailbox.is_pending(nodes[*slot as usize]);
        // Slots fit 32 bits: the nodes are distinct.
        let pending: Vec<u32> = (0..nodes.len() as u32).filter(is_pending).collect();
        let rows = tape.constant(rows);
        if pending.is_empty() {
            return rows;
        }
        let own = tape.gather(rows, pending.clone());
        let message = self.messages(tape, own, state, (nodes, messages), &pending);
        let updated = match &self.updater {
            Cell::Gru(weights) => tape.gru_cell(message, own, weights),
            Cell::Rnn(weights) => tape.rnn_cell(message, own, weights),
        };
        tape.overlay_rows(rows, pending, updated)
    }

    /// Raw messages `[pending, message_dim]`: `[s_u ; s_v ; e ; phi(t - tau_u)]`, with the row of its type before what
    /// else is known of the edge.
    fn messages(
        &self,
        tape: &mut Tape<'_>,
        own: Var,
        state: &ModelState,
        (nodes, messages): (&[NodeId], MessageRows<'_>),
        pending: &[u32],
    ) -> Var {
        if self.options.aggregator == Aggregator::Mean {
            return self.mean_messages(tape, own, state, nodes, pending);
        }
        let waiting = pending.iter().map(|&slot| nodes[slot as usize]);
        let mirrored = state.mirror.messages(tape.device(), waiting);
        let host_rows = if mirrored.is_none() { pending.len() } else { 0 };
        let (mut others, mut deltas) = (tape.take(host_rows, self.options.memory_dim), Vec::new());
        let on_gpu = messages.on_gpu(tape, pending);
        let copied = if on_gpu.is_some() { 0 } else { self.options.edge_feature_dim };
        let (mut features, mut kinds) = (tape.take(pending.len(), copied), Vec::new());
        for (i, slot) in pending.iter().enumerate() {
            let node = nodes[*slot as usize];
            let Some(message) = state.mailbox.pending(node) else { continue };
            let Some((kind, values)) = messages.of(*slot as usize) else {
                panic!("the feature rows lack the pending message of node {}", node.0)
            };
            if mirrored.is_none() {
                others.row_mut(i).copy_from_slice(message.values);
            }
            if on_gpu.is_none() {
                features.row_mut(i).copy_from_slice(values);
            }
            kinds.push(kind);
            deltas.push(state.since_update(node, message.time));
        }
        let others = tape.constant(mirrored.unwrap_or(others));
        let features = on_gpu.unwrap_or_else(|| tape.constant(features));
        let since = tape.time_encoding(&deltas, &self.time);
        let Some(types) = self.types else { return tape.concat(&[own, others, features, since]) };
        let types = tape.param(types);
        let kinds = tape.gather(types, kinds);
        tape.concat(&[own, others, kinds, features, since])
    }

    /// The same where means of messages wait: all but s_u and the rows of types is in the mailbox.
    fn mean_messages(
        &self,
        tape: &mut Tape<'_>,
        own: Var,
        state: &ModelState,
        nodes: &[NodeId],
        pending: &[u32],
    ) -> Var {
        let (memory_dim, width) = (self.options.memory_dim, state.mailbox.dimension());
        let (mut others, mut rest) =
            (tape.take(pending.len(), memory_dim), tape.take(pending.len(), width - memory_dim));
        let waiting = || pending.iter().map(|&slot| nodes[slot as usize]);
        for (i, message) in waiting().filter_map(|node| state.mailbox.pending(node)).enumerate() {
            let (other, edge_and_time) = message.values.split_at(memory_dim);
            others.row_mut(i).copy_from_slice(other);
            rest.row_mut(i).copy_from_slice(edge_and_time);
        }
        let (others, rest) = (tape.constant(others), tape.constant(rest));
        let Some(types) = self.types else { return tape.concat(&[own, others, rest]) };
        let kinds = self.mean_types(tape, types, state, waiting());
        tape.concat(&[own, others, kinds, rest])
    }
}
