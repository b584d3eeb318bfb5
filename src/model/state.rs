//! Everything a model knows about a stream besides its weights: memory, pending messages, and the time
//! the stream began. A model without memory has rows without values, which hold the time of each node's last event, and
//! no messages. A model of walks has those as well ([`WalkState`]).
//!
//! All of it belongs together: memory without the pending messages forgets the last event of every node, so they are
//! reset, copied and stored as one.
//!
//! A node that was never updated counts as updated when the stream began (the paper's tau = 0 for data
//! whose first event has time 0), so nothing depends on where a stream's clock has its zero.

use std::io::{Read, Write};

use thiserror::Error;

use super::deferred::Deferred;
use super::mirror::NodeMirror;
use super::walk::WalkState;
use super::{Mailbox, Needs, NodeMemory, tables};
use crate::event::{EventTime, NodeId, StreamClock};

/// First bytes of a stored state.
const MAGIC: u64 = u64::from_le_bytes(*b"EVGTGNS7");

/// Memory and pending messages.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelState {
    /// Memory rows and update times.
    pub memory: NodeMemory,
    /// Messages that wait to be applied.
    pub mailbox: Mailbox,
    /// Rows of memory whose message was applied already, while a trainer defers their gradients.
    pub deferred: Deferred,
    /// When the stream began; `None` before the first event. A time far from those of the first events is not taken
    /// for its begin.
    pub origin: Option<EventTime>,
    /// The first events.
    pub(super) began: StreamClock,
    /// Walks, in a model that scores pairs by them.
    pub walks: Option<WalkState>,
    /// Rows of memory and messages on the GPU that trains, if one does.
    pub(crate) mirror: NodeMirror,
}

/// A stored state that cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// The bytes end early or cannot be read.
    #[error("the stored state cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// The bytes are something else.
    #[error("these bytes are no stored state (they begin with {found:#018x}, expected {expected:#018x})")]
    Magic {
        /// The first eight bytes.
        found: u64,
        /// What they should be.
        expected: u64,
    },
    /// The state belongs to a model of another shape.
    #[error("the stored state has {table} rows of {found} values, this model has {expected}")]
    Shape {
        /// Which table.
        table: &'static str,
        /// Width found.
        found: u64,
        /// Width this model has.
        expected: u64,
    },
    /// Parallel tables have different lengths.
    #[error("the stored state's {table} tables have different lengths; the bytes are damaged")]
    Lengths {
        /// Which tables.
        table: &'static str,
    },
}

impl ModelState {
    /// The empty state of a model with these needs.
    #[must_use]
    pub fn new(needs: &Needs) -> Self {
        Self {
            memory: NodeMemory::new(needs.memory_dim),
            mailbox: Mailbox::new(needs.mailbox_dim),
            deferred: Deferred::new(needs.memory_dim),
            origin: None,
            began: StreamClock::default(),
            walks: needs.walks.as_ref().map(WalkState::new),
            mirror: NodeMirror::default(),
        }
    }

    /// Forgets everything, as before the first event.
    pub fn reset(&mut self) {
        self.memory.reset();
        self.mailbox.reset();
        self.deferred.clear();
        self.mirror.clear();
        self.origin = None;
        self.began = StreamClock::default();
        if let Some(walks) = &mut self.walks {
            walks.reset();
        }
    }

    /// Forgets nodes, as if no event had named them, and the messages that wait for others and hold their rows.
    /// Returns who lost a message. What went into another node's memory before stays there.
    pub fn forget(&mut self, nodes: &[NodeId]) -> Vec<NodeId> {
        for &node in nodes {
            self.memory.forget(node);
            self.mailbox.forget(node);
        }
        if let Some(walks) = &mut self.walks {
            walks.forget(nodes);
        }
        let mut gone = nodes.to_vec();
        gone.sort_unstable();
        let lost = self.mailbox.forget_from(&gone);
        gone.iter().chain(&lost).for_each(|&node| self.deferred.forget(node));
        self.mirror.is_stale(gone.into_iter().chain(lost.iter().copied()));
        lost
    }

    /// One more than the highest node that is known. A node of the latest batch alone has a message and no
    /// memory yet, so either table may be the longer one.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.memory.len().max(self.mailbox.len())
    }

    /// The nodes that have had an event and were not forgotten since, ascending.
    #[must_use]
    pub fn known(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.memory.nodes().chain(self.mailbox.nodes()).collect();
        // Two ascending runs are merged.
        nodes.sort();
        nodes.dedup();
        nodes
    }

    /// Nodes whose rows the GPU that trains has room for; 0 without one.
    #[must_use]
    pub fn mirrored(&self) -> usize {
        self.mirror.rows()
    }

    /// `time - tau` of `node`: what the time encoding of its raw message sees.
    #[must_use]
    pub fn since_update(&self, node: NodeId, time: EventTime) -> f32 {
        self.since(self.memory.updated(node), time)
    }

    /// The same of a node that was last updated at `updated`.
    pub(super) fn since(&self, updated: EventTime, time: EventTime) -> f32 {
        time.since(if updated == NodeMemory::NEVER { self.origin.unwrap_or(time) } else { updated })
    }

    /// Time of the latest event of `node` that was applied.
    #[must_use]
    pub fn last_event(&self, node: NodeId) -> Option<EventTime> {
        let updated = Some(self.memory.updated(node)).filter(|&time| time != NodeMemory::NEVER);
        self.mailbox.pending(node).map(|message| message.time).max(updated)
    }

    /// What readers get of `node` if no message waits for it: the memory that was written, and behind it the row that
    /// is made of its walks; and when its memory was updated. `None` if that never was.
    #[must_use]
    pub fn written_row(&self, node: NodeId) -> Option<(Vec<f32>, EventTime)> {
        let (memory, updated) = (self.memory.row(node)?, self.memory.updated(node));
        let mut row = memory.to_vec();
        if let Some(walks) = &self.walks {
            row.resize(memory.len() + walks.row_dim(), 0.0);
            walks.write_row(node, &mut row[memory.len()..]);
        }
        (updated != NodeMemory::NEVER).then_some((row, updated))
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes()
            + self.mailbox.bytes()
            + self.deferred.bytes()
            + self.walks.as_ref().map_or(0, WalkState::bytes)
    }

    /// Writes the state; [`Self::read`] restores it bit for bit.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        tables::write_u64(out, MAGIC)?;
        tables::write_u64(out, self.memory.dimension() as u64)?;
        tables::write_u64(out, self.mailbox.dimension() as u64)?;
        tables::write_table(out, self.origin.as_slice())?;
        tables::write_table(out, &self.began.to_numbers())?;
        self.memory.save(out)?;
        self.mailbox.save(out)?;
        self.deferred.write(out)?;
        self.walks.as_ref().map_or(Ok(()), |walks| walks.write(out))
    }

    /// Reads the state of a model with these needs.
    ///
    /// # Errors
    /// The bytes end early, are no state, or belong to a model of another shape.
    pub fn read(input: &mut impl Read, needs: &Needs) -> Result<Self, StateError> {
        let found = tables::read_u64(input)?;
        if found != MAGIC {
            return Err(StateError::Magic { found, expected: MAGIC });
        }
        let width = needs.memory_dim;
        let widths = [("memory", width), ("mailbox", needs.mailbox_dim)];
        for (table, expected) in widths {
            let found = tables::read_u64(input)?;
            if found != expected as u64 {
                return Err(StateError::Shape { table, found, expected: expected as u64 });
            }
        }
        let origin: Vec<EventTime> = tables::read_table(input)?;
        let began = StreamClock::from_numbers(&tables::read_table::<i64>(input)?);
        let began = began.ok_or(StateError::Lengths { table: "clock" })?;
        let memory = NodeMemory::load(width, input)?;
        let mailbox = Mailbox::load(needs.mailbox_dim, input)?;
        let mailbox = mailbox.ok_or(StateError::Lengths { table: "mailbox" })?;
        let deferred = Deferred::read(width, input)?;
        let walks = needs.walks.map(|options| WalkState::read(&options, input)).transpose()?;
        let (origin, mirror) = (origin.first().copied(), NodeMirror::default());
        Ok(Self { memory, mailbox, deferred, origin, began, walks, mirror })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EdgeId;
    use crate::model::{GraphMixerOptions, TgnOptions};

    fn needs() -> Needs {
        TgnOptions { memory_dim: 3, edge_feature_dim: 2, ..TgnOptions::default() }.needs()
    }

    #[test]
    fn a_state_without_memory_keeps_times_alone_and_survives_bytes() {
        let needs = GraphMixerOptions::default().needs();
        let mut state = ModelState::new(&needs);
        for (node, time) in [(2, 120), (700, 130), (2, 110)] {
            state.memory.write(NodeId(node), &[], EventTime(time));
        }
        let mut bytes = Vec::new();
        state.write(&mut bytes).unwrap();
        let again = ModelState::read(&mut &bytes[..], &needs).unwrap();
        assert_eq!(again, state);
        assert_eq!((again.nodes(), again.last_event(NodeId(2))), (701, Some(EventTime(120))));
        assert!(bytes.len() < 701 * 8 + 200, "{}", bytes.len());
        assert_eq!(state.forget(&[NodeId(2)]), []);
        assert_eq!(state.last_event(NodeId(2)), None);
    }

    fn sample_state() -> ModelState {
        let mut state = ModelState::new(&needs());
        state.origin = Some(EventTime(100));
        state.memory.write(NodeId(2), &[1.0, -2.0, 3.5], EventTime(120));
        state.mailbox.post(NodeId(5), NodeId(2), EdgeId(9), EventTime(130)).fill(0.25);
        state
    }

    #[test]
    fn state_survives_bytes_and_damage_is_named() {
        let state = sample_state();
        let mut bytes = Vec::new();
        state.write(&mut bytes).unwrap();
        assert_eq!(ModelState::read(&mut &bytes[..], &needs()).unwrap(), state);
        let other = Needs { memory_dim: 4, ..needs() };
        assert!(matches!(
            ModelState::read(&mut &bytes[..], &other),
            Err(StateError::Shape { table: "memory", found: 3, expected: 4 })
        ));
        let means = Needs { mailbox_dim: 4, ..needs() };
        assert!(matches!(
            ModelState::read(&mut &bytes[..], &means),
            Err(StateError::Shape { table: "mailbox", found: 3, expected: 4 })
        ));
        for end in 0..bytes.len() {
            assert!(ModelState::read(&mut &bytes[..end], &needs()).is_err(), "cut at {end}");
        }
        // The last byte of the magic is the version.
        bytes[7] -= 1;
        assert!(matches!(ModelState::read(&mut &bytes[..], &needs()), Err(StateError::Magic { .. })));
    }

    #[test]
    fn a_forgotten_node_is_as_never_seen() {
        let mut state = sample_state();
        state.memory.write(NodeId(5), &[0.5; 3], EventTime(125));
        assert_eq!(state.last_event(NodeId(5)), Some(EventTime(130)));
        assert_eq!(state.forget(&[NodeId(1000), NodeId(2)]), [NodeId(5)]);
        assert_eq!((state.last_event(NodeId(2)), state.last_event(NodeId(1000))), (None, None));
        assert_eq!(
            state.last_event(NodeId(5)),
            Some(EventTime(125)),
            "its message was of the forgotten node"
        );
        assert!(!state.mailbox.is_pending(NodeId(5)));
        assert_eq!(state.forget(&[NodeId(5)]), []);
        assert_eq!((state.last_event(NodeId(5)), state.memory.updated(NodeId(5))), (None, NodeMemory::NEVER));
        assert_eq!(state.memory.row(NodeId(2)), None);
        assert_eq!(state.since_update(NodeId(2), EventTime(125)), 25.0);
    }

    #[test]
    fn a_node_never_seen_counts_from_the_start_of_the_stream() {
        let mut state = sample_state();
        assert_eq!(state.since_update(NodeId(2), EventTime(125)), 5.0);
        assert_eq!(state.since_update(NodeId(77), EventTime(125)), 25.0);
        state.reset();
        assert_eq!(state, ModelState::new(&needs()));
        assert_eq!(state.since_update(NodeId(77), EventTime(125)), 0.0);
    }
}
