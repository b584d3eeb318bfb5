//! From the producer's words to a log frame: names become dense ids, what was seen before is left out.
//!
//! A group of submissions is encoded before any of it is durable, so what the group adds ([`Group`]) is kept
//! apart from what the log has ([`Index`]): names, types, source positions, idempotency keys. If the group
//! is not written it is dropped and has left nothing; if it is, the index takes in its frames and so gives
//! the same ids.
//!
//! The name of a deleted node is unknown from the deletion on. If it comes again it is the name of a new node, and is
//! written into the log anew.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::index::Index;
use crate::event::{
    EdgeBatch, EdgeEvent, EdgeId, Event, EventBatch, EventTime, Incoming, NodeId, NodeKey, NodeNames, Op,
    PositionLookup, Receipt, SubmitError, UnstorableEvent,
};
use crate::graph::NODES_MAX;
use crate::log::{Frame, LogError};

const GRAPH_FULL: &str = "a shard of the graph is full: it holds 2^32 entries at most; set graph.shards to more and \
                          start again, or set graph.retention";

/// Why a submission is not stored, now or ever.
#[derive(Debug)]
pub(super) enum Unfit {
    /// It does not follow on what the log has of its source.
    Gap(String),
    /// The graph has no room for its edges; its source waits.
    Full,
    /// The log can never take these events.
    Events(Vec<UnstorableEvent>),
}

impl From<Unfit> for SubmitError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Gap(detail) => Self::Failed { detail },
            Unfit::Full => Self::Failed { detail: GRAPH_FULL.into() },
            Unfit::Events(events) => {
                let detail = events.first().map(|event| event.detail.clone()).unwrap_or_default();
                Self::Unstorable { events, detail }
            }
        }
    }
}

/// Why a submission alone is refused for this error of the log, if it is not the log's.
pub(super) fn refused_alone(error: &LogError) -> Option<SubmitError> {
    let detail = error.to_string();
    match error {
        LogError::TooLarge { .. } => Some(SubmitError::Unstorable { events: Vec::new(), detail }),
        LogError::Shape { .. } => Some(SubmitError::Failed { detail }),
        _ => None,
    }
}

/// What the frames of a group have in common until they are durable.
pub(super) struct Group<'a> {
    index: &'a Index,
    next: EdgeId,
    /// Names that the log does not have, and the ids that they will have there.
    keys: HashMap<&'a NodeKey, NodeId>,
    /// Names that the log has, of nodes that the group deletes.
    deleted: HashSet<&'a NodeKey>,
    /// How many nodes of the log have a name.
    named: usize,
    /// How many may have one; 0 for no limit.
    nodes_max: usize,
    /// How many ids the group has given.
    new_ids: usize,
    types: HashMap<&'a str, u16>,
    /// The first type for which there was no number left.
    pub untyped: Option<&'a str>,
    idempotency: HashSet<u128>,
    positions: HashMap<(Arc<str>, i32), i64>,
    /// The frame that is being made.
    frame: Frame,
}

impl<'a> Group<'a> {
    pub(super) fn new(index: &'a Index, next: EdgeId, nodes_max: usize) -> Self {
        Self {
            index,
            next,
            keys: HashMap::new(),
            deleted: HashSet::new(),
            named: index.stores.keys.count(),
            nodes_max,
            new_ids: 0,
            types: HashMap::new(),
            untyped: None,
            idempotency: HashSet::new(),
            positions: HashMap::new(),
            frame: Frame::default(),
        }
    }

    /// The frame of one submission, or `None` if nothing of it is new, and the receipt it will get.
    ///
    /// # Errors
    /// When it cannot be stored as it is, with the reason. The group is spoilt then: encode the others anew.
    pub(super) fn encode(&mut self, submitted: &'a EventBatch) -> Result<(Option<Frame>, Receipt), Unfit> {
        self.frame = Frame { origin_unix_ms: submitted.origin_unix_ms, ..Frame::default() };
        self.frame.batch.first = self.next;
        let mut duplicates = 0;
        let has_edges = || submitted.events.iter().any(|incoming| matches!(incoming.event, Event::Edge(_)));
        if self.index.stores.graph.is_full() && has_edges() {
            return Err(Unfit::Full);
        }
        let known_offset = self.known_offset(submitted).map_err(Unfit::Gap)?;
        let mut unstorable = Vec::new();
        for (i, incoming) in submitted.events.iter().enumerate() {
            let read_before = submitted.offsets.get(i).is_some_and(|&offset| offset < known_offset);
            if read_before || self.delivered_before(incoming.idempotency) {
                duplicates += 1;
                continue;
            }
            if let Err(detail) = self.push(incoming) {
                let offset = submitted.offsets.get(i).copied();
                unstorable.push(UnstorableEvent { index: i, offset, detail });
            }
        }
        if !unstorable.is_empty() {
            return Err(Unfit::Events(unstorable));
        }
        let mut frame = std::mem::take(&mut self.frame);
        frame.sources = submitted.ranges.iter().filter(|range| range.to > known_offset).cloned().collect();
        for range in &frame.sources {
            self.positions.insert((range.source.clone(), range.partition), range.to);
        }
        let (first, end) = (frame.batch.first, frame.batch.end());
        let receipt = Receipt { first, end, accepted: frame.batch.len() as u64, duplicates };
        self.next = end;
        let nothing_new = frame.batch.is_empty() && frame.sources.is_empty();
        Ok(((!nothing_new).then_some(frame), receipt))
    }

    /// The next offset expected of the batch's partition; events before it are duplicates. A batch that
    /// begins behind it is refused: were it stored, what is missing would count as stored, too.
    fn known_offset(&self, submitted: &EventBatch) -> Result<i64, String> {
        let Some(range) = submitted.ranges.first() else { return Ok(i64::MIN) };
        let (source, partition, from) = (&range.source, range.partition, range.from);
        let in_group = self.positions.get(&(source.clone(), partition)).copied();
        let known = in_group.or_else(|| self.index.positions.position(source, partition));
        match known {
            None => Ok(i64::MIN),
            Some(known) if from <= known => Ok(known),
            Some(known) if submitted.gap_allowed => {
                tracing::warn!(%source, partition, known, from, "offsets are lost; going on without them");
                Ok(known)
            }
            Some(known) => Err(format!(
                "offsets {known}..{from} of {source}, partition {partition}, are missing between the log and \
                 the batch; the source has to go back to offset {known}"
            )),
        }
    }

    fn delivered_before(&mut self, key: Option<u128>) -> bool {
        key.is_some_and(|key| self.index.seen.contains(key) || !self.idempotency.insert(key))
    }

    /// Adds one event to the frame. A deletion of nodes that have no name is no record, unless it brings an idempotency
    /// key: its record deletes nothing, but a copy that comes once there are such nodes is a duplicate for it.
    fn push(&mut self, incoming: &'a Incoming) -> Result<(), String> {
        let i = self.frame.batch.len();
        let is_keyed = incoming.idempotency.is_some();
        match &incoming.event {
            Event::Edge(edge) => self.push_edge(edge)?,
            Event::Node { key, time, features } => {
                self.check_room(&[key])?;
                let node = self.intern(key)?;
                push_plain(&mut self.frame.batch, Op::Node, node, node, *time);
                self.frame.batch.features.push(i, features);
            }
            Event::DeleteEdge { src, dst, until } => match self.lookup(src).zip(self.lookup(dst)) {
                Some((src, dst)) => {
                    let until = until.unwrap_or(EventTime::MAX);
                    push_plain(&mut self.frame.batch, Op::DeleteEdge, src, dst, until);
                }
                None if is_keyed => push_nothing(&mut self.frame.batch),
                None => return Ok(()),
            },
            Event::DeleteNode { key } => match self.lookup(key) {
                Some(node) => {
                    push_plain(&mut self.frame.batch, Op::DeleteNode, node, node, EventTime::MAX);
                    if self.keys.remove(key).is_none() {
                        self.deleted.insert(key);
                    }
                }
                None if is_keyed => push_nothing(&mut self.frame.batch),
                None => return Ok(()),
            },
        }
        let idempotency = &mut self.frame.batch.idempotency;
        if let Some(key) = incoming.idempotency {
            idempotency.resize(i, 0);
            idempotency.push(key);
        } else if !idempotency.is_empty() {
            idempotency.push(0);
        }
        Ok(())
    }

    fn push_edge(&mut self, edge: &'a EdgeEvent) -> Result<(), String> {
        self.check_room(&[&edge.src, &edge.dst])?;
        let (src, dst) = (self.intern(&edge.src)?, self.intern(&edge.dst)?);
        let edge_type = edge.edge_type.as_deref().map_or(0, |name| self.type_number(name));
        let batch = &mut self.frame.batch;
        let i = batch.len();
        push_plain(batch, Op::Edge, src, dst, edge.time);
        batch.edge_type[i] = edge_type;
        if let Some(label) = edge.label {
            batch.label[i] = label;
        }
        batch.features.push(i, &edge.features);
        Ok(())
    }

    fn lookup(&self, key: &NodeKey) -> Option<NodeId> {
        let known = self.index.stores.keys.lookup(key);
        let known = known.filter(|_| self.deleted.is_empty() || !self.deleted.contains(key));
        known.or_else(|| self.keys.get(key).copied())
    }

    /// Whether those of these names that are new may be given ids. Admission refuses most new names once the nodes are
    /// as many as they may be; here the limit is exact, also for what was on its way by then.
    fn check_room(&self, keys: &[&NodeKey]) -> Result<(), String> {
        let named = self.named + self.keys.len() - self.deleted.len();
        if self.nodes_max == 0 || named + keys.len() <= self.nodes_max {
            return Ok(());
        }
        let mut new: Vec<&NodeKey> = keys.iter().copied().filter(|key| self.lookup(key).is_none()).collect();
        new.dedup();
        match new.first() {
            Some(key) if named + new.len() > self.nodes_max => Err(format!(
                "node {key} is new, and there are {named} nodes of at most {} (stream.nodes_max); delete nodes, or \
                 raise it and restart",
                self.nodes_max
            )),
            _ => Ok(()),
        }
    }

    /// The id of a node, the next one on first sight.
    fn intern(&mut self, key: &'a NodeKey) -> Result<NodeId, String> {
        if let Some(id) = self.lookup(key) {
            return Ok(id);
        }
        let next = self.index.stores.keys.len() + self.new_ids;
        let id = u32::try_from(next).ok().filter(|_| next < NODES_MAX);
        let id = NodeId(id.ok_or_else(|| format!("the graph holds {NODES_MAX} nodes already, its maximum"))?);
        self.keys.insert(key, id);
        self.new_ids += 1;
        self.frame.new_keys.push(key.clone());
        Ok(id)
    }

    /// The number of a type, the next one on first sight; "none" when there is none left.
    fn type_number(&mut self, name: &'a str) -> u16 {
        if let Some(number) = self.index.stores.types.lookup(name).or_else(|| self.types.get(name).copied()) {
            return number;
        }
        let Ok(number) = u16::try_from(self.index.stores.types.len() + self.types.len() + 1) else {
            self.untyped.get_or_insert(name);
            return 0;
        };
        self.types.insert(name, number);
        self.frame.new_types.push(name.into());
        number
    }
}

fn push_plain(batch: &mut EdgeBatch, op: Op, src: NodeId, dst: NodeId, time: EventTime) {
    batch.push_edge(src, dst, time);
    if let Some(last) = batch.op.last_mut() {
        *last = op;
    }
}

/// Adds a deletion that finds no edge.
fn push_nothing(batch: &mut EdgeBatch) {
    push_plain(batch, Op::DeleteEdge, NodeId::NONE, NodeId::NONE, EventTime::MIN);
}
