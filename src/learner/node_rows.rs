//! Feature rows of nodes as of the learner's cursor.
//!
//! The appender sets a node's row when the record is indexed, for requests. What is scored and trained on must not see
//! a row from further on in the log, so the learner has rows of its own and sets them when its cursor passes their
//! records. They take as much memory again as the rows for requests, however far the learner lags.

use hashbrown::HashSet;

use crate::event::{FeatureColumn, NodeId};
use crate::feature::FeatureStore;

/// Records with rows of nodes in a run, at most.
const ROWS_MAX: usize = 1 << 14;

/// Values of the rows in a run; the one that passes it is the last.
const VALUES_MAX: usize = 1 << 22;

/// Rows in the order of their records.
#[derive(Clone, Debug, Default)]
struct Rows {
    nodes: Vec<NodeId>,
    values: FeatureColumn,
}

impl Rows {
    fn push(&mut self, node: NodeId, row: &[f32]) {
        self.values.push(self.nodes.len(), row);
        self.nodes.push(node);
    }

    fn set(&self, store: &FeatureStore) {
        for (i, &node) in self.nodes.iter().enumerate() {
            let row = self.values.row(i);
            // The appender has reported a row that does not fit.
            if row.len() == store.dimension() {
                let _ = store.set(u64::from(node.0), row);
            }
        }
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.values.ends.clear();
        self.values.values.clear();
    }
}

/// The rows that a run of records sets, and which of them its edges may see.
///
/// Its edges see what was set before the first of them. The row of a node that had no record before the run is seen if
/// it was set before the node's own first edge: no edge before that one can have the node as a neighbor. All other rows
/// count from the next run on.
#[derive(Clone, Debug, Default)]
pub struct NodeRows {
    seen: Rows,
    later: Rows,
    /// Nodes before the run have ids below this.
    known: u32,
    /// One past the highest id so far.
    end: u32,
    has_edges: bool,
    /// The other nodes that the run's edges have so far.
    new: HashSet<NodeId>,
}

impl NodeRows {
    /// Begins a run behind one that knew ids up to `known`.
    pub fn begin(&mut self, known: u32) {
        self.seen.clear();
        self.later.clear();
        self.new.clear();
        (self.known, self.end, self.has_edges) = (known, known, false);
    }

    /// Whether the run has as many rows as one may have.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let rows = self.seen.nodes.len() + self.later.nodes.len();
        rows >= ROWS_MAX || self.seen.values.values.len() + self.later.values.values.len() >= VALUES_MAX
    }

    /// One past the highest id of a node so far.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Takes in an edge of the run.
    pub fn edge(&mut self, src: NodeId, dst: NodeId) {
        self.has_edges = true;
        for node in [src, dst] {
            self.meet(node);
            if node.0 >= self.known {
                self.new.insert(node);
            }
        }
    }

    /// Takes in that the run sets the row of `node`; an empty row sets nothing.
    pub fn row(&mut self, node: NodeId, row: &[f32]) {
        self.meet(node);
        if row.is_empty() {
            return;
        }
        let is_seen = if node.0 >= self.known { !self.new.contains(&node) } else { !self.has_edges };
        if is_seen { self.seen.push(node, row) } else { self.later.push(node, row) }
    }

    fn meet(&mut self, node: NodeId) {
        self.end = self.end.max(node.0.saturating_add(1));
    }

    /// The nodes whose rows it sets.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.seen.nodes.iter().chain(&self.later.nodes).copied()
    }

    /// Sets the rows that the run's edges see.
    pub fn set_seen(&self, store: &FeatureStore) {
        self.seen.set(store);
    }

    /// Sets the others, when the run is learned.
    pub fn set_later(&self, store: &FeatureStore) {
        self.later.set(store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_sees_rows_from_before_its_edges_and_those_of_new_nodes_from_before_their_own() {
        let store = FeatureStore::new(1);
        let mut rows = NodeRows::default();
        rows.begin(5);
        rows.row(NodeId(1), &[1.0]);
        rows.edge(NodeId(1), NodeId(6));
        rows.row(NodeId(1), &[2.0]);
        rows.row(NodeId(2), &[3.0]);
        rows.row(NodeId(6), &[4.0]);
        rows.row(NodeId(7), &[5.0]);
        rows.row(NodeId(7), &[6.0]);
        rows.edge(NodeId(7), NodeId(1));
        rows.row(NodeId(7), &[7.0]);
        rows.row(NodeId(8), &[]);
        let all = || {
            let mut out = [0.0; 4];
            store.gather(&[1, 2, 6, 7], &mut out).unwrap();
            out
        };
        rows.set_seen(&store);
        assert_eq!(all(), [1.0, 0.0, 0.0, 6.0]);
        rows.set_later(&store);
        assert_eq!(all(), [2.0, 3.0, 4.0, 7.0]);
        assert_eq!(rows.end(), 9);
        rows.begin(rows.end());
        rows.set_later(&FeatureStore::new(1));
        rows.row(NodeId(7), &[8.0]);
        rows.set_seen(&store);
        assert_eq!(all(), [2.0, 3.0, 4.0, 8.0]);
    }
}
