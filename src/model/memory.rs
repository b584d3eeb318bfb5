//! Node memory of a TGN: one row per node and the time it was last updated.
//!
//! Rows live in one growing table indexed by [`NodeId`]; a node beyond its end has the zero row and was
//! never updated, so new nodes need no registration. Knows nothing of messages or weights.

use std::io::{Read, Result, Write};

use super::rows::NodeRows;
use super::tables;
use crate::event::{EventTime, NodeId, NodeTable};

/// Memory rows s_i and their last update times tau_i.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeMemory {
    rows: NodeRows,
    updated: NodeTable<EventTime>,
}

impl NodeMemory {
    /// Last update time of a node that was never updated.
    pub const NEVER: EventTime = EventTime::MIN;

    /// Empty memory with rows of `dimension` values.
    #[must_use]
    pub fn new(dimension: usize) -> Self {
        Self { rows: NodeRows::new(dimension), updated: NodeTable::new(Self::NEVER) }
    }

    /// Values per row.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.rows.dimension()
    }

    /// Number of nodes that have room in the table; every node beyond has the zero row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.updated.len()
    }

    /// Whether no node was ever updated.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.updated.is_empty()
    }

    /// The row of `node`, `dimension` values; `None` means zeros, because it was never written.
    #[must_use]
    pub fn row(&self, node: NodeId) -> Option<&[f32]> {
        if self.dimension() == 0 { Some(&[]) } else { self.rows.get(node) }
    }

    /// Copies the row of `node` into `out`, which has `dimension` values.
    pub fn row_into(&self, node: NodeId, out: &mut [f32]) {
        match self.row(node) {
            Some(row) => out.copy_from_slice(row),
            None => out.fill(0.0),
        }
    }

    /// When `node` was last updated; [`Self::NEVER`] if it never was.
    #[must_use]
    pub fn updated(&self, node: NodeId) -> EventTime {
        self.updated.get(node)
    }

    /// Replaces the row of `node` and moves its update time forward to `time` (a late event does not
    /// move it back).
    pub fn write(&mut self, node: NodeId, row: &[f32], time: EventTime) {
        if self.dimension() > 0 {
            self.rows.get_mut(node).copy_from_slice(row);
        }
        self.updated.set(node, time.max(self.updated.get(node)));
    }

    /// Forgets the row of one node, as if it had never been updated.
    pub fn forget(&mut self, node: NodeId) {
        self.updated.set(node, Self::NEVER);
        self.rows.clear(node);
    }

    /// Forgets every row.
    pub fn reset(&mut self) {
        self.rows.reset();
        self.updated = NodeTable::new(Self::NEVER);
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.bytes() + self.updated.bytes()
    }

    /// The nodes that were updated, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.updated.iter().map(|(node, _)| node)
    }

    pub(super) fn save(&self, out: &mut impl Write) -> Result<()> {
        self.rows.write(out)?;
        tables::write_nodes(out, &self.updated, |time| time)
    }

    pub(super) fn load(dimension: usize, input: &mut impl Read) -> Result<Self> {
        let (rows, updated) = (NodeRows::read(dimension, input)?, tables::read_nodes(input, Self::NEVER)?);
        Ok(Self { rows, updated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_nodes_are_zero_and_late_updates_do_not_turn_time_back() {
        let mut memory = NodeMemory::new(2);
        let mut row = [9.0; 2];
        memory.row_into(NodeId(7), &mut row);
        assert_eq!((row, memory.updated(NodeId(7))), ([0.0; 2], NodeMemory::NEVER));
        memory.write(NodeId(3), &[1.0, 2.0], EventTime(10));
        memory.write(NodeId(3), &[3.0, 4.0], EventTime(5));
        assert_eq!(memory.row(NodeId(3)), Some(&[3.0, 4.0][..]));
        assert_eq!(memory.updated(NodeId(3)), EventTime(10));
        assert_eq!(memory.row(NodeId(1)), None);
        assert_eq!(memory.row(NodeId::NONE), None);
    }
}
