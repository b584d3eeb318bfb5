//! From the producer's words to a log frame: names become dense ids, what was seen before is left out.
//!
//! A group of submissions is encoded before any of it is durable, so what the group has seen
//! ([`Group`]) is kept apart from what the log has seen ([`Index`]). If the write fails, the group is
//! dropped and the index has learned nothing but a few node names, which the next frame defines.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::index::Index;
use crate::event::{
    EdgeBatch, EdgeEvent, EdgeId, Event, EventBatch, EventTime, Incoming, NodeId, Op, PositionLookup, Receipt,
};
use crate::log::Frame;

/// What the frames of a group have in common until they are durable.
pub(super) struct Group {
    next: EdgeId,
    keys: usize,
    types: usize,
    idempotency: HashSet<u128>,
    positions: HashMap<(Arc<str>, i32), i64>,
}

impl Group {
    pub(super) fn new(index: &Index, next: EdgeId) -> Self {
        Self {
            next,
            keys: index.logged_keys,
            types: index.logged_types,
            idempotency: HashSet::new(),
            positions: HashMap::new(),
        }
    }

    /// The frame of one submission, or `None` if nothing of it is new, and the receipt it will get.
    pub(super) fn encode(&mut self, index: &mut Index, submitted: &EventBatch) -> (Option<Frame>, Receipt) {
        let mut batch = EdgeBatch { first: self.next, ..EdgeBatch::default() };
        let mut duplicates = 0;
        let known_offset = self.known_offset(index, submitted);
        for (i, incoming) in submitted.events.iter().enumerate() {
            let read_before = submitted.offsets.get(i).is_some_and(|&offset| offset < known_offset);
            if read_before || self.delivered_before(index, incoming.idempotency) {
                duplicates += 1;
                continue;
            }
            push(index, &mut batch, incoming);
        }
        let sources: Vec<_> =
            submitted.ranges.iter().filter(|range| range.to > known_offset).cloned().collect();
        for range in &sources {
            self.positions.insert((range.source.clone(), range.partition), range.to);
        }
        let accepted = submitted.events.len() as u64 - duplicates;
        let receipt = Receipt { first: batch.first, end: batch.end(), accepted, duplicates };
        if batch.is_empty() && sources.is_empty() {
            return (None, receipt);
        }
        self.next = batch.end();
        let new_keys = index.unlogged_keys(self.keys);
        let new_types = index.types.since(self.types).to_vec();
        self.keys += new_keys.len();
        self.types += new_types.len();
        let origin_unix_ms = submitted.origin_unix_ms;
        (Some(Frame { batch, new_keys, new_types, sources, origin_unix_ms }), receipt)
    }

    /// The next offset expected of the batch's partition; events before it are duplicates.
    fn known_offset(&self, index: &Index, submitted: &EventBatch) -> i64 {
        let Some(range) = submitted.ranges.first() else { return i64::MIN };
        let in_group = self.positions.get(&(range.source.clone(), range.partition)).copied();
        let known = in_group.or_else(|| index.positions.position(&range.source, range.partition));
        if let Some(known) = known
            && range.from > known
        {
            tracing::warn!(
                source = %range.source, partition = range.partition, expected = known, found = range.from,
                "offsets are missing between the log and the source"
            );
        }
        known.unwrap_or(i64::MIN)
    }

    fn delivered_before(&mut self, index: &Index, key: Option<u128>) -> bool {
        key.is_some_and(|key| index.seen.contains(key) || !self.idempotency.insert(key))
    }
}

/// Adds one event to the batch. A deletion of nodes that never were is no record.
fn push(index: &mut Index, batch: &mut EdgeBatch, incoming: &Incoming) {
    let i = batch.len();
    match &incoming.event {
        Event::Edge(edge) => push_edge(index, batch, edge),
        Event::Node { key, time, features } => {
            let node = index.intern(key);
            push_plain(batch, Op::Node, node, node, *time);
            batch.features.push(i, features);
        }
        Event::DeleteEdge { src, dst, until } => {
            let (Some(src), Some(dst)) = (index.keys.lookup(src), index.keys.lookup(dst)) else { return };
            push_plain(batch, Op::DeleteEdge, src, dst, until.unwrap_or(EventTime::MAX));
        }
        Event::DeleteNode { key } => {
            let Some(node) = index.keys.lookup(key) else { return };
            push_plain(batch, Op::DeleteNode, node, node, EventTime::MAX);
        }
    }
    if let Some(key) = incoming.idempotency {
        batch.idempotency.resize(i, 0);
        batch.idempotency.push(key);
    } else if !batch.idempotency.is_empty() {
        batch.idempotency.push(0);
    }
}

fn push_edge(index: &mut Index, batch: &mut EdgeBatch, edge: &EdgeEvent) {
    let i = batch.len();
    let (src, dst) = (index.intern(&edge.src), index.intern(&edge.dst));
    push_plain(batch, Op::Edge, src, dst, edge.time);
    if let Some(name) = &edge.edge_type {
        batch.edge_type[i] = index.types.number(name);
    }
    if let Some(label) = edge.label {
        batch.label[i] = label;
    }
    batch.features.push(i, &edge.features);
}

fn push_plain(batch: &mut EdgeBatch, op: Op, src: NodeId, dst: NodeId, time: EventTime) {
    batch.push_edge(src, dst, time);
    if let Some(last) = batch.op.last_mut() {
        *last = op;
    }
}
