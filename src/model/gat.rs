//! GAT: a node is what it is and whom it met last, weighed by attention. It has neither time nor memory.
//!
//! The model is that of Velickovic et al., "Graph Attention Networks" (2018), of layers as `graph_attention` has them:
//!
//! ```text
//! h0_i  = [x_i ; r_i]                             features, where nodes have any, and signature (see `signature`)
//! hl_i  = mask(layer_l(h(l-1)_i ; h(l-1)_j, e_ij))       over the K most recent neighbors; relu between levels
//! z_i   = hL_i
//! ```
//! One level is the default, and pairs are scored with the products of their rows, for the reasons that GraphSAGE has.

use std::ops::Range;

use super::EmbeddingInput;
use super::builder::{Builder, ModelError};
use super::graph_attention::GraphAttention;
use super::link::LinkPredictor;
use super::needs::check_heads;
use super::options::options;
use super::signature::SIGNATURE_DIM;
use crate::nn::{ParamId, Tape, Var};

options! {
    /// Shape of a GAT. The defaults have 49,601 parameters.
    GatOptions {
        /// Width d of a node's row at every level; at least 1.
        embedding_dim: 100,
        /// Width d_r of a signature; at least 1.
        signature_dim: SIGNATURE_DIM,
        /// Attention heads; divides `embedding_dim`.
        heads: 2,
        /// Most recent neighbors K sampled in each layer; at least 1.
        fanout: 10,
        /// Layers L of neighbors; at least 1. A seed stands for up to K^L edges.
        layers: 1,
    }
    /// Share of values dropped while training, behind each layer.
    dropout: 0.1,
    widths |options| check_heads(options.heads, &[(options.embedding_dim, "embedding_dim")]),
    // Neighbors in all layers.
    needs |options| options.recent(options.fanout, options.layers)
}

/// The parameters of a GAT.
#[derive(Clone, Debug)]
pub(super) struct Gat {
    options: GatOptions,
    types: Option<ParamId>,
    levels: Vec<GraphAttention>,
    pub link: LinkPredictor,
}

impl Gat {
    pub fn build(options: GatOptions, b: &mut Builder<'_>) -> Result<Self, ModelError> {
        let GatOptions { embedding_dim, signature_dim, node_feature_dim, edge_feature_dim, .. } = options;
        let level = |level| {
            let below = if level == 1 { node_feature_dim + signature_dim } else { embedding_dim };
            let widths = [below, options.edge_types.width + edge_feature_dim, embedding_dim];
            GraphAttention::build(b, &format!("level{level}"), widths, options.heads)
        };
        let levels = (1..=options.layers).map(level).collect::<Result<_, _>>()?;
        let link = b.product_link(embedding_dim)?;
        Ok(Self { options, types: options.edge_types.build(b)?, levels, link })
    }

    /// The rows h0 of these distinct nodes; there is no memory to read.
    pub fn table(
        &self,
        tape: &mut Tape<'_>,
        _memory: Var,
        input: &EmbeddingInput<'_>,
        nodes: Range<usize>,
    ) -> Var {
        input.signed_rows(tape, nodes, self.options.node_feature_dim, self.options.signature_dim)
    }

    /// Embeddings `[seeds, embedding_dim]`, given the rows h0 of the distinct nodes.
    pub fn embed(&self, tape: &mut Tape<'_>, mut rows: Var, input: &EmbeddingInput<'_>) -> Var {
        let GatOptions { dropout, layers, .. } = self.options;
        let [seed, step] = input.dropout;
        for (level, layer) in (1..).zip(&self.levels) {
            rows = layer.apply(tape, rows, self.types, input.hop(level));
            if level < layers {
                rows = tape.relu(rows);
            }
            rows = tape.dropout(rows, dropout, [seed, step, level as u64]);
        }
        rows
    }
}
