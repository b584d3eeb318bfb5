//! Scores of pairs, for every route that returns some: by the baseline, by walks, or by the link head of two
//! embeddings.

use super::engine::{CHUNK_ROWS, Moment, distinct, embedding_of};
use super::{QueryEngine, Source};
use crate::device::Device;
use crate::event::NodeId;
use crate::model::{DistinctNodes, GatherError, Weights, probability};
use crate::nn::{Mode, Tape};

impl QueryEngine {
    /// Scores of `pairs` at a moment. Every node is embedded once, however many pairs name it.
    pub(super) fn pair_scores(
        &self,
        pairs: &[(NodeId, NodeId)],
        moment: &Moment,
    ) -> Result<Vec<f32>, GatherError> {
        let Moment { weights, scores, at, .. } = moment;
        match (scores, weights.model().walk()) {
            (Source::Baseline, _) => self.score_baseline(pairs, *at),
            (_, Some(network)) => Ok(self.score_walks(weights, network, pairs, *at)),
            (_, None) => {
                let unique = distinct(pairs.iter().flat_map(|&(src, dst)| [src, dst]));
                let vectors = self.embed(weights, unique.nodes(), *at)?;
                Ok(self.score(weights, &unique, &vectors, pairs))
            }
        }
    }

    /// Probabilities of `pairs` of requested nodes, given the nodes' embeddings.
    pub(super) fn score(
        &self,
        weights: &Weights,
        unique: &DistinctNodes,
        vectors: &[f32],
        pairs: &[(NodeId, NodeId)],
    ) -> Vec<f32> {
        let dimension = weights.model().needs().embedding_dim;
        let mut probabilities = Vec::with_capacity(pairs.len());
        let mut scratch = self.take_scratch();
        for pairs in pairs.chunks(CHUNK_ROWS) {
            let mut tape =
                Tape::pooled(&Device::Cpu, weights.parameters(), Mode::Inference, &mut scratch.pool);
            let mut ends = tape.take(2 * pairs.len(), dimension);
            let nodes = pairs.iter().flat_map(|&(src, dst)| [src, dst]);
            for (node, row) in nodes.zip(ends.data_mut().chunks_exact_mut(dimension)) {
                row.copy_from_slice(embedding_of(node, unique, vectors, dimension));
            }
            let ends = tape.constant(ends);
            let count = 2 * pairs.len() as u32;
            let (src, dst) = ((0..count).step_by(2).collect(), (1..count).step_by(2).collect());
            let logits = weights.model().logits(&mut tape, ends, src, dst);
            probabilities.extend(tape.value(logits).data().iter().copied().map(probability));
        }
        self.put_back(scratch);
        probabilities
    }
}
