//! [`WalkNetwork`]: from the row of a pair to its logit, and what else readers make of published rows.
//!
//! ```text
//! x [n, features] -> relu(x W1ᵀ + b1) -> relu(. W2ᵀ + b2) -> . W3ᵀ + b3 [n, 1]
//! ```

use super::features::count;
use super::published::{PublishedEnd, Reader};
use super::{PairTimes, WalkOptions};
use crate::event::EventTime;
use crate::model::EmbeddingInput;
use crate::model::builder::{Builder, ModelError};
use crate::nn::{ParamId, Tape, Var};

/// The network's parameters.
#[derive(Clone, Debug)]
pub struct WalkNetwork {
    options: WalkOptions,
    layers: [[ParamId; 2]; 3],
}

impl WalkNetwork {
    pub(in crate::model) fn build(
        options: WalkOptions,
        builder: &mut Builder<'_>,
    ) -> Result<Self, ModelError> {
        let [first, second] = options.hidden;
        let layers = [
            builder.linear("hidden1", first, count(options.steps))?,
            builder.linear("hidden2", second, first)?,
            builder.linear("logit", 1, second)?,
        ];
        Ok(Self { options, layers })
    }

    /// Numbers per pair.
    #[must_use]
    pub fn feature_count(&self) -> usize {
        count(self.options.steps)
    }

    /// Logits `[n, 1]` of the pairs whose rows are `features`.
    pub fn logits(&self, tape: &mut Tape<'_>, features: Var) -> Var {
        let [first, second, [weight, bias]] = self.layers;
        let mut x = features;
        for [weight, bias] in [first, second] {
            x = tape.linear(x, weight, Some(bias));
            x = tape.relu(x);
        }
        tape.linear(x, weight, Some(bias))
    }

    /// Embeddings `[seeds, embedding_dim]`: the vectors of each seed as they count at its time, given the published
    /// rows of the distinct nodes.
    pub(in crate::model) fn embed(&self, tape: &mut Tape<'_>, rows: Var, input: &EmbeddingInput<'_>) -> Var {
        let (neighborhood, width) = (input.neighborhood, self.options.needs().embedding_dim);
        let mut out = tape.take_zeroed(neighborhood.seeds().count(), width);
        let (rows, reader) = (tape.value(rows), Reader::new(&self.options, input.origin));
        for ((node, time), out) in neighborhood.seeds().zip(out.data_mut().chunks_exact_mut(width)) {
            if let Some(slot) = neighborhood.nodes().slot(node) {
                reader.embed(rows.row(slot as usize), time, out);
            }
        }
        tape.constant(out)
    }

    /// Writes the row of [`feature_count`](Self::feature_count) numbers of a pair as readers know it, at `time`, in a
    /// stream whose first event was at `origin`.
    pub fn write_features(
        &self,
        origin: Option<EventTime>,
        ends: [PublishedEnd<'_>; 2],
        pair: Option<PairTimes>,
        time: EventTime,
        out: &mut [f32],
    ) {
        Reader::new(&self.options, origin).features(ends, pair, time, out);
    }
}
