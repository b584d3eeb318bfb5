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

use super::builder::{Builder, ModelError};
use super::graph_attention::GraphAttention;
use super::link::LinkPredictor;
use super::needs::{Needs, OptionsError, Shape, check_heads};
use super::signature::SIGNATURE_DIM;
use super::{EdgeTypes, EmbeddingInput};
use crate::nn::{ParamId, Tape, Var};

/// Shape of a GAT. The defaults have 49,601 parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatOptions {
    /// Width d of a node's row at every level; at least 1.
    pub embedding_dim: usize,
    /// Width d_r of a signature; at least 1.
    pub signature_dim: usize,
    /// Attention heads; divides `embedding_dim`.
    pub heads: usize,
    /// Most recent neighbors K sampled in each layer; at least 1.
    pub fanout: usize,
    /// Layers L of neighbors; at least 1. A seed stands for up to K^L edges.
    pub layers: usize,
    /// Width of a node's feature row; 0 means nodes have none.
    pub node_feature_dim: usize,
    /// Width of an edge's feature row; 0 means edges have none.
    pub edge_feature_dim: usize,
    /// Types of edges that are distinguished.
    pub edge_types: EdgeTypes,
    /// Share of values dropped while training, behind each layer.
    pub dropout: f32,
}

impl Default for GatOptions {
    fn default() -> Self {
        Self {
            embedding_dim: 100,
            signature_dim: SIGNATURE_DIM,
            heads: 2,
            fanout: 10,
            layers: 1,
            node_feature_dim: 0,
            edge_feature_dim: 0,
            edge_types: EdgeTypes::default(),
            dropout: 0.1,
        }
    }
}

impl GatOptions {
    /// What the model wants of a batch: neighbors in all layers.
    #[must_use]
    pub fn needs(&self) -> Needs {
        Needs::recent(
            self.fanout,
            self.layers,
            [self.node_feature_dim, self.edge_feature_dim],
            self.edge_types,
            self.embedding_dim,
        )
    }
}

impl Shape for GatOptions {
    fn counts(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("embedding_dim", self.embedding_dim),
            ("signature_dim", self.signature_dim),
            ("heads", self.heads),
            ("fanout", self.fanout),
            ("layers", self.layers),
        ]
    }

    fn check_widths(&self) -> Result<(), OptionsError> {
        check_heads(self.heads, &[(self.embedding_dim, "embedding_dim")])
    }
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

    /// Embeddings `[seeds, embedding_dim]`; there is no memory to read.
    pub fn embed(&self, tape: &mut Tape<'_>, _memory: Var, input: &EmbeddingInput<'_>) -> Var {
        let GatOptions { node_feature_dim, signature_dim, dropout, layers, .. } = self.options;
        let mut rows = input.signed_rows(tape, node_feature_dim, signature_dim);
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
