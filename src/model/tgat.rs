//! TGAT: attention over neighbors and their neighbors, with time as the position. It has no memory.
//!
//! The model is that of Xu et al., "Inductive Representation Learning on Temporal Graphs" (2020), with the attention
//! block of [`super::attention`]:
//!
//! ```text
//! h0_i       = x_i (projected), or nothing where nodes have no features
//! hl_i(t)    = block_l(h(l-1)_i(t) ; h(l-1)_j(t_ij), e_ij, phi(t - t_ij))      over the K neighbors before t
//! z_i(t)     = hL_i(t)
//! ```
//! A neighbor is seen as it was when they met: at the time of the edge. Neighbors are the most recent ones. The time
//! encoding is fixed, for the reason that TGN's is.

use std::ops::Range;

use super::EmbeddingInput;
use super::attention::{AttentionBlock, Output, Projections};
use super::builder::{Builder, ModelError};
use super::link::LinkPredictor;
use super::needs::check_heads;
use super::options::options;
use crate::nn::{ParamId, Tape, TimeEncoder, Var};

options! {
    /// Shape of a TGAT.
    TgatOptions {
        /// Width d of a node's row at every level; at least 1.
        embedding_dim: 100,
        /// Width d_T of the time encoding; at least 1.
        time_dim: 100,
        /// Attention heads; divides `time_dim` and `embedding_dim`.
        heads: 2,
        /// Most recent neighbors K sampled in each layer; at least 1.
        fanout: 20,
        /// Layers L of neighbors; at least 1. A seed stands for up to K^L edges.
        layers: 2,
    }
    /// Share of values dropped while training, on attention weights and on the attention output.
    dropout: 0.1,
    widths |options| {
        let widths = [(options.time_dim, "time_dim"), (options.embedding_dim, "embedding_dim")];
        check_heads(options.heads, &widths)
    },
    // Neighbors in all layers.
    needs |options| options.recent(options.fanout, options.layers)
}

/// The parameters of a TGAT.
#[derive(Clone, Debug)]
pub(super) struct Tgat {
    options: TgatOptions,
    time: TimeEncoder,
    features: Option<ParamId>,
    blocks: Vec<AttentionBlock>,
    pub link: LinkPredictor,
}

impl Tgat {
    pub fn build(options: TgatOptions, b: &mut Builder<'_>) -> Result<Self, ModelError> {
        let TgatOptions { embedding_dim, time_dim, node_feature_dim, heads, dropout, .. } = options;
        let features = match node_feature_dim {
            0 => None,
            width => Some(b.weight("features.w", embedding_dim, width)?),
        };
        let types = options.edge_types.build(b)?;
        let mut blocks = Vec::new();
        for level in 1..=options.layers {
            let below = if level == 1 && features.is_none() { 0 } else { embedding_dim };
            let (width, name) = (below + time_dim, format!("level{level}"));
            let slot = width + options.edge_types.width + options.edge_feature_dim;
            blocks.push(AttentionBlock {
                projections: Projections::build(b, &name, width, slot)?,
                output: Output::build(b, &name, width)?,
                merge: b.merge(&format!("{name}.merge"), width + below, embedding_dim, embedding_dim)?,
                types,
                heads,
                dropout,
            });
        }
        let (time, link) =
            (TimeEncoder::of_ticks(time_dim, options.ticks_per_second), b.link(embedding_dim)?);
        Ok(Self { options, time, features, blocks, link })
    }

    /// The rows h0 of these distinct nodes; `memory` has no columns.
    pub fn table(
        &self,
        tape: &mut Tape<'_>,
        memory: Var,
        input: &EmbeddingInput<'_>,
        nodes: Range<usize>,
    ) -> Var {
        match self.options.node_feature_dim {
            0 => memory,
            width => input.node_features(tape, nodes, width, self.features),
        }
    }

    /// Embeddings `[seeds, embedding_dim]`, given the rows h0 of the distinct nodes.
    pub fn embed(&self, tape: &mut Tape<'_>, mut rows: Var, input: &EmbeddingInput<'_>) -> Var {
        let [seed, step] = input.dropout;
        for (level, block) in (1..).zip(&self.blocks) {
            let hop = input.hop(level);
            rows = block.apply(tape, rows, hop, &self.time, [seed, step, 2 * level as u64]);
        }
        rows
    }
}
