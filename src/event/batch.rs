//! Many records with dense ids, column by column.

use super::{EdgeId, EventTime, NodeId};

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Adds an edge `src -> dst` at `time`.
    Edge = 0,
    /// Forgets edges `src -> dst` with time at most `time`. Between [`NodeId::NONE`] and itself it forgets nothing, and
    /// is there for its idempotency key.
    DeleteEdge = 1,
    /// Registers node `src` or replaces its features; `dst` equals `src`.
    Node = 2,
    /// Forgets every edge of node `src`; `dst` equals `src`.
    DeleteNode = 3,
}

impl Op {
    /// The operation with this code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Edge),
            1 => Some(Self::DeleteEdge),
            2 => Some(Self::Node),
            3 => Some(Self::DeleteNode),
            _ => None,
        }
    }

    /// Whether it forgets edges.
    #[must_use]
    pub fn is_deletion(self) -> bool {
        matches!(self, Self::DeleteEdge | Self::DeleteNode)
    }
}

/// Feature rows of a batch, of any length each; most records of most streams have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeatureColumn {
    /// `ends[i]` is where the row of record `i` ends in `values`; empty if no record has a row.
    pub ends: Vec<u32>,
    /// The rows, one after another.
    pub values: Vec<f32>,
}

impl FeatureColumn {
    /// The row of record `i`; empty if it has none.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        let Some(&end) = self.ends.get(i) else { return &[] };
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.values[start as usize..end as usize]
    }

    /// Adds the row of record `i`, which is the next one. Rows that are all empty cost nothing.
    pub fn push(&mut self, i: usize, row: &[f32]) {
        if row.is_empty() && self.ends.is_empty() {
            return;
        }
        self.ends.resize(i, self.ends.last().copied().unwrap_or(0));
        self.values.extend_from_slice(row);
        self.ends.push(u32::try_from(self.values.len()).unwrap_or(u32::MAX));
    }
}

/// Many records with dense ids: a struct of equally long columns. Record `i` stands at position
/// `first + i` of the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeBatch {
    /// Position of record 0.
    pub first: EdgeId,
    /// What each record does.
    pub op: Vec<Op>,
    /// Source nodes.
    pub src: Vec<NodeId>,
    /// Destination nodes.
    pub dst: Vec<NodeId>,
    /// Event times; `EventTime::MAX` on a deletion without a bound.
    pub time: Vec<EventTime>,
    /// Edge types by number in order of first appearance; 0 is "none".
    pub edge_type: Vec<u16>,
    /// Labels; NaN is "none".
    pub label: Vec<f32>,
    /// Feature rows.
    pub features: FeatureColumn,
    /// Hashes of idempotency keys; 0 is "none". Empty if no record has one.
    pub idempotency: Vec<u128>,
}

impl EdgeBatch {
    /// Number of records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.op.len()
    }

    /// Whether there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.op.is_empty()
    }

    /// Whether a record deletes something: one of [`NodeId::NONE`] only keeps its key.
    #[must_use]
    pub fn has_deletions(&self) -> bool {
        self.op.iter().zip(&self.src).any(|(op, src)| op.is_deletion() && *src != NodeId::NONE)
    }

    /// One past the position of the last record.
    #[must_use]
    pub fn end(&self) -> EdgeId {
        EdgeId(self.first.0 + self.len() as u64)
    }

    /// Position of record `i`.
    #[must_use]
    pub fn id(&self, i: usize) -> EdgeId {
        EdgeId(self.first.0 + i as u64)
    }

    /// Removes all records, to begin at `first` anew; room is kept.
    pub fn restart(&mut self, first: EdgeId) {
        let Self { first: old, op, src, dst, time, edge_type, label, features, idempotency } = self;
        *old = first;
        op.clear();
        src.clear();
        dst.clear();
        time.clear();
        edge_type.clear();
        label.clear();
        features.ends.clear();
        features.values.clear();
        idempotency.clear();
    }

    /// Adds a plain edge: no type, label, features or idempotency key.
    pub fn push_edge(&mut self, src: NodeId, dst: NodeId, time: EventTime) {
        self.op.push(Op::Edge);
        self.src.push(src);
        self.dst.push(dst);
        self.time.push(time);
        self.edge_type.push(0);
        self.label.push(f32::NAN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_rows_come_back_as_pushed() {
        let mut column = FeatureColumn::default();
        column.push(0, &[]);
        column.push(1, &[]);
        assert!(column.ends.is_empty(), "rows without values cost nothing");
        column.push(2, &[1.0, 2.0]);
        column.push(3, &[]);
        column.push(4, &[3.0]);
        let rows: Vec<&[f32]> = (0..6).map(|i| column.row(i)).collect();
        assert_eq!(rows, [&[][..], &[], &[1.0, 2.0], &[], &[3.0], &[]]);
    }
}
