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
use crate::model::{MessageRows, ModelState, StateAfter};
use crate::nn::{Tape, Tensor, Var};

/// Memory rows of a pass that defers gradients.
pub(crate) struct DeferredMemory {
    /// `[nodes, memory_dim]`.
    pub rows: Var,
    /// The same without the messages that the pass applied; its gradient is owed to the kept rows.
    pub base: Var,
    /// Slots whose rows were kept.
    pub kept: Vec<u32>,
    /// Slots whose messages were applied.
    pub applied: Vec<u32>,
    /// Their rows; `None` if there are none.
    pub updated: Option<Var>,
}

/// Messages that a pass applies.
struct Pending {
    /// The place of each one's node among those of the pass.
    slots: Vec<u32>,
    /// `t - tau_u`.
    since: Vec<f32>,
}

impl Pending {
    /// Those that wait for some of `nodes`, each of which comes with its place.
    fn of(state: StateAfter<'_>, nodes: impl Iterator<Item = (u32, NodeId)>) -> Self {
        let waiting = nodes.filter_map(|(slot, node)| Some((slot, state.pending_since(node)?)));
        let (slots, since) = waiting.unzip();
        Self { slots, since }
    }
}

impl Tgn {
    /// Memory rows `[nodes, memory_dim]` of distinct `nodes` after each one's pending message, whose edge features are
    /// in `messages`.
    pub(crate) fn fresh_memory(
        &self,
        tape: &mut Tape<'_>,
        state: StateAfter<'_>,
        nodes: &[NodeId],
        messages: MessageRows<'_>,
    ) -> Var {
        let pending = Pending::of(state, (0_u32..).zip(nodes.iter().copied()));
        let rows = self.memory_rows(tape, state.now(), nodes);
        if pending.slots.is_empty() {
            return tape.constant(rows);
        }
        let rows = tape.sent(rows);
        let own = tape.rows_at(&rows, &pending.slots);
        let updated = self.update(tape, own, state.now(), (nodes, messages), &pending);
        tape.overlay_constant(rows, pending.slots, updated)
    }

    /// The same while gradients are deferred: of the nodes with a kept row, only the messages of those are applied that
    /// are due. On the CPU.
    pub(crate) fn deferred_memory(
        &self,
        tape: &mut Tape<'_>,
        state: &ModelState,
        (nodes, messages): (&[NodeId], MessageRows<'_>),
        is_due: impl Fn(NodeId) -> bool,
    ) -> DeferredMemory {
        let mut rows = self.memory_rows(tape, state, nodes);
        let (mut due, mut kept) = (Vec::new(), Vec::new());
        for (slot, &node) in (0_u32..).zip(nodes) {
            match state.deferred.row(node) {
                _ if !state.mailbox.is_pending(node) => {}
                Some(row) if !is_due(node) => {
                    rows.row_mut(slot as usize).copy_from_slice(row);
                    kept.push(slot);
                }
                _ => due.push((slot, node)),
            }
        }
        let due = Pending::of(state.into(), due.into_iter());
        let base = tape.leaf(rows);
        if due.slots.is_empty() {
            return DeferredMemory { rows: base, base, kept, applied: due.slots, updated: None };
        }
        let own = tape.gather_constant(base, &due.slots);
        let updated = self.update(tape, own, state, (nodes, messages), &due);
        let mut owed = tape.take_zeroed(due.slots.len(), self.options.memory_dim);
        for (i, &slot) in due.slots.iter().enumerate() {
            if let Some(gradient) = state.deferred.owed(nodes[slot as usize]) {
                owed.row_mut(i).copy_from_slice(gradient);
            }
        }
        let owing = tape.with_owed_gradient(updated, owed);
        let rows = tape.overlay_rows(base, due.slots.clone(), owing);
        DeferredMemory { rows, base, kept, applied: due.slots, updated: Some(updated) }
    }

    /// Memory rows of `nodes` before their messages.
    fn memory_rows(&self, tape: &mut Tape<'_>, state: &ModelState, nodes: &[NodeId]) -> Tensor {
        state.mirror.memory(tape.device(), nodes.iter().copied()).unwrap_or_else(|| {
            let mut rows = tape.take(nodes.len(), self.options.memory_dim);
            for (i, &node) in nodes.iter().enumerate() {
                state.memory.row_into(node, rows.row_mut(i));
            }
            rows
        })
    }

    /// The rows `own` of the nodes for which messages are `pending`, with these applied. No gradient flows into what
    /// was there before.
    fn update(
        &self,
        tape: &mut Tape<'_>,
        own: Var,
        state: &ModelState,
        nodes: (&[NodeId], MessageRows<'_>),
        pending: &Pending,
    ) -> Var {
        let message = self.messages(tape, own, state, nodes, pending);
        match &self.updater {
            Cell::Gru(weights) => tape.gru_cell_joined(message, own, weights),
            Cell::Rnn(weights) => tape.rnn_cell(message, own, weights),
        }
    }

    /// Raw messages `[pending, message_dim]`: `[s_u ; s_v ; e ; phi(t - tau_u)]`, with the row of its type before what
    /// else is known of the edge.
    fn messages(
        &self,
        tape: &mut Tape<'_>,
        own: Var,
        state: &ModelState,
        (nodes, messages): (&[NodeId], MessageRows<'_>),
        Pending { slots, since }: &Pending,
    ) -> Var {
        if self.options.aggregator == Aggregator::Mean {
            return self.mean_messages(tape, own, state, nodes, slots);
        }
        let waiting = || slots.iter().map(|&slot| nodes[slot as usize]);
        let others = state.mirror.messages(tape.device(), waiting()).unwrap_or_else(|| {
            let mut others = tape.take(slots.len(), self.options.memory_dim);
            for (i, node) in waiting().enumerate() {
                if let Some(message) = state.mailbox.pending(node) {
                    others.row_mut(i).copy_from_slice(message.values);
                }
            }
            others
        });
        let on_gpu = messages.on_gpu(tape, slots);
        let copied = if on_gpu.is_some() { 0 } else { self.options.edge_feature_dim };
        let (mut features, mut kinds) = (tape.take(slots.len(), copied), Vec::new());
        for (i, &slot) in slots.iter().enumerate() {
            let Some((kind, values)) = messages.of(slot as usize) else {
                panic!("the feature rows lack the pending message of node {}", nodes[slot as usize].0)
            };
            if on_gpu.is_none() {
                features.row_mut(i).copy_from_slice(values);
            }
            kinds.push(kind);
        }
        let others = tape.constant(others);
        let features = on_gpu.unwrap_or_else(|| tape.constant(features));
        let since = tape.time_encoding(since, &self.time);
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
