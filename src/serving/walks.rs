//! What walks say of pairs: from the published rows of both ends, and when the pair was last seen.

use super::QueryEngine;
use crate::event::{EventTime, NodeId};
use crate::model::Weights;
use crate::model::walk::PublishedEnd;
use crate::nn::{Tape, Var};

impl QueryEngine {
    /// Logits `[pairs, 1]` of `pairs` at `at` by their walks; `None` of a model without.
    pub(super) fn walk_logits(
        &self,
        tape: &mut Tape<'_>,
        weights: &Weights,
        pairs: &[(NodeId, NodeId)],
        at: EventTime,
    ) -> Option<Var> {
        let (model, needs) = (weights.model(), weights.model().needs());
        let network = model.walks()?;
        let (states, origin) = (&self.states, self.states.origin());
        let nodes: Vec<NodeId> = pairs.iter().flat_map(|&(src, dst)| [src, dst]).collect();
        let last: Vec<_> = nodes.iter().map(|&node| states.updated(node)).collect();
        let columns = needs.memory_dim..needs.row_dim();
        let mut rows = tape.take(nodes.len(), columns.len());
        states.gather(&nodes, columns, rows.data_mut());
        let end = |i: usize| PublishedEnd { node: nodes[i], row: rows.row(i), last: last[i] };
        let mut features = tape.take(pairs.len(), network.feature_count());
        for (i, &(src, dst)) in pairs.iter().enumerate() {
            let (ends, pair) = ([end(2 * i), end(2 * i + 1)], states.pairs.get(src, dst));
            network.write_features(origin, ends, pair, at, features.row_mut(i));
        }
        tape.give(rows);
        let features = tape.constant(features);
        Some(network.logits(tape, features))
    }
}
