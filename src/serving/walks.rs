//! Scores of pairs by their walks: from the published rows of both ends, and when the pair was last seen.

use super::QueryEngine;
use super::engine::CHUNK_ROWS;
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::model::walk::{PublishedEnd, WalkNetwork};
use crate::model::{Weights, probability};
use crate::nn::{Mode, Tape};

impl QueryEngine {
    /// Probabilities of `pairs` at `at`, by the weights of `network`.
    pub(super) fn score_walks(
        &self,
        weights: &Weights,
        network: &WalkNetwork,
        pairs: &[(NodeId, NodeId)],
        at: EventTime,
    ) -> Vec<f32> {
        let (states, origin) = (&self.states, self.states.origin());
        let mut probabilities = Vec::with_capacity(pairs.len());
        let mut scratch = self.take_scratch();
        for pairs in pairs.chunks(CHUNK_ROWS) {
            let mut tape =
                Tape::pooled(&Device::Cpu, weights.parameters(), Mode::Inference, &mut scratch.pool);
            let nodes: Vec<NodeId> = pairs.iter().flat_map(|&(src, dst)| [src, dst]).collect();
            let last: Vec<_> = nodes.iter().map(|&node| states.updated(node)).collect();
            let mut rows = tape.take(nodes.len(), states.dimension());
            states.gather(&nodes, rows.data_mut());
            let end = |i: usize| PublishedEnd { node: nodes[i], row: rows.row(i), last: last[i] };
            let mut features = tape.take(pairs.len(), network.feature_count());
            for (i, &(src, dst)) in pairs.iter().enumerate() {
                let (ends, pair) = ([end(2 * i), end(2 * i + 1)], states.pairs.get(src, dst));
                network.write_features(origin, ends, pair, at, features.row_mut(i));
            }
            tape.give(rows);
            let features = tape.constant(features);
            let logits = network.logits(&mut tape, features);
            probabilities.extend(tape.value(logits).data().iter().copied().map(probability));
        }
        self.put_back(scratch);
        probabilities
    }
}
