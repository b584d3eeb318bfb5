//! Scores of pairs, for every route that returns some: by the baseline, or by the model, which reads the embeddings of
//! both ends, their walks, or both.

use super::engine::{CHUNK_ROWS, distinct, embedding_of};
use super::{Moment, QueryEngine, Source};
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::model::{DistinctNodes, GatherError, Model, Weights, probability};
use crate::nn::{Mode, Tape, Var};

impl QueryEngine {
    /// Scores of `pairs` at a moment. Every node is embedded once, however many pairs name it.
    pub(super) fn pair_scores(
        &self,
        pairs: &[(NodeId, NodeId)],
        moment: &Moment,
    ) -> Result<Vec<f32>, GatherError> {
        let Moment { weights, scores, at, .. } = moment;
        if *scores == Source::Baseline {
            return self.score_baseline(pairs, *at);
        }
        let unique = distinct(pairs.iter().flat_map(|&(src, dst)| [src, dst]));
        let vectors = match weights.model().needs().embeds() {
            true => self.embed(weights, unique.nodes(), *at)?,
            false => Vec::new(),
        };
        Ok(self.score(weights, (&unique, &vectors), pairs, *at))
    }

    /// Probabilities of `pairs` of requested nodes at `at`, given the nodes' embeddings, if the model scores by these.
    pub(super) fn score(
        &self,
        weights: &Weights,
        embedded: (&DistinctNodes, &[f32]),
        pairs: &[(NodeId, NodeId)],
        at: EventTime,
    ) -> Vec<f32> {
        let model = weights.model();
        let mut probabilities = Vec::with_capacity(pairs.len());
        let mut scratch = self.take_scratch();
        for pairs in pairs.chunks(CHUNK_ROWS) {
            let mut tape =
                Tape::pooled(&Device::Cpu, weights.parameters(), Mode::Inference, &mut scratch.pool);
            let by_embeddings =
                model.needs().embeds().then(|| link_logits(&mut tape, model, embedded, pairs));
            let by_walks = self.walk_logits(&mut tape, weights, pairs, at);
            let logits = match (by_embeddings, by_walks) {
                (Some(logits), Some(by_walks)) => Some(tape.add(logits, by_walks)),
                (one, other) => one.or(other),
            };
            let Some(logits) = logits else { continue };
            probabilities.extend(tape.value(logits).data().iter().copied().map(probability));
        }
        self.put_back(scratch);
        probabilities
    }
}

/// Logits `[pairs, 1]` by the embeddings of the ends.
fn link_logits(
    tape: &mut Tape<'_>,
    model: &Model,
    (unique, vectors): (&DistinctNodes, &[f32]),
    pairs: &[(NodeId, NodeId)],
) -> Var {
    let dimension = model.needs().embedding_dim;
    let mut ends = tape.take(2 * pairs.len(), dimension);
    let nodes = pairs.iter().flat_map(|&(src, dst)| [src, dst]);
    for (node, row) in nodes.zip(ends.data_mut().chunks_exact_mut(dimension)) {
        row.copy_from_slice(embedding_of(node, unique, vectors, dimension));
    }
    let ends = tape.constant(ends);
    let count = 2 * pairs.len() as u32;
    let (src, dst) = ((0..count).step_by(2).collect(), (1..count).step_by(2).collect());
    model.logits(tape, ends, src, dst)
}
