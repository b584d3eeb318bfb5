//! How a [`Model`] scores pairs: by the embeddings of both ends, by their walks, or by both.
//!
//! ```text
//! logit(u, v) = link(z_u, z_v)                   of a model that embeds
//!             + walks(x_uv)                      with `walks` beside; of `walk`, this alone
//! ```
//! The two see different things. Embeddings are of one node each: what it did, with whom, what features that had. The
//! features of a pair count walks between its ends and tell when it was last seen, which no two embeddings do. As the
//! sum is one of logits, both networks learn from one loss, each what the other leaves unexplained.

use super::ModelState;
use super::choice::{Model, Network};
use super::link::SplitLink;
use super::walk::WalkNetwork;
use crate::event::{EventTime, NodeId};
use crate::nn::{Tape, Var};

impl Model {
    /// Logits `[pairs, 1]` of an event between each two of the pairs `(src[i], dst[i])`, each a row of `embeddings`, by
    /// these alone.
    ///
    /// # Panics
    /// If the model scores pairs by their walks alone.
    pub fn logits(&self, tape: &mut Tape<'_>, embeddings: Var, src: Vec<u32>, dst: Vec<u32>) -> Var {
        let Some(link) = self.network.link() else {
            panic!("embeddings do not score pairs of {}", self.options().name())
        };
        link.logits(tape, embeddings, src, dst)
    }

    /// The link predictor as sums over the two ends of a pair, in a model on the CPU whose predictor splits.
    #[must_use]
    pub fn split_link(&self) -> Option<SplitLink> {
        self.network.link()?.split(&self.parameters)
    }

    /// What scores pairs by their walks, alone or beside embeddings, in a model that does.
    #[must_use]
    pub fn walks(&self) -> Option<&WalkNetwork> {
        match &self.network {
            Network::Walk(network) => Some(network),
            _ => self.beside.as_ref(),
        }
    }

    /// Whether pairs are scored by both embeddings and walks.
    #[must_use]
    pub fn has_walks_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// Logits `[pairs, 1]` of an event from each of `src` to the one of `dst` beside it at its time, by the walks in
    /// `state`, added to `logits` if there are any; `logits` of a model without walks. The columns are equally long.
    ///
    /// # Panics
    /// If there are neither.
    pub fn with_walk_logits(
        &self,
        tape: &mut Tape<'_>,
        state: &ModelState,
        logits: Option<Var>,
        (src, dst, times): (&[NodeId], &[NodeId], &[EventTime]),
    ) -> Var {
        let network = self.walks().zip(state.walks.as_ref());
        let by_walks = network.map(|(network, walks)| {
            let mut features = tape.take(src.len(), network.feature_count());
            walks.features(src, dst, times, features.data_mut());
            let features = tape.constant(features);
            network.logits(tape, features)
        });
        match (logits, by_walks) {
            (Some(logits), Some(by_walks)) => tape.add(logits, by_walks),
            (Some(logits), None) | (None, Some(logits)) => logits,
            (None, None) => panic!("{} scores pairs by embeddings", self.options().name()),
        }
    }
}
