//! GraphSAGE: a node is what it is and the mean of whom it met last. It has neither time nor memory.
//!
//! The model is that of Hamilton et al., "Inductive Representation Learning on Large Graphs" (2017), with the mean for
//! an aggregator:
//!
//! ```text
//! h0_i  = [x_i ; r_i]                        features, where nodes have any, and signature (see `signature`)
//! hl_i  = mask(W_l [h(l-1)_i ; mean_j [h(l-1)_j ; e_ij]] + b_l)      over the K neighbors; relu between levels
//! z_i   = hL_i
//! ```
//! Neighbors are the most recent ones, where the paper draws any; rows are not normalized. One level is the default,
//! where the paper has two: with nothing but signatures to see, neighbors of neighbors blur more than they add
//! (average precision of two levels against one, 5 epochs: Wikipedia edits 0.961 and 0.964, UCI messages 0.706 and
//! 0.864). Pairs are scored with the products of their rows (see `link`), as who met whom shows in these: with 20
//! neighbors and 128 signs Wikipedia came to 0.912 without them in 4 epochs, and to 0.936 with them in one.

use std::ops::Range;
use std::sync::Arc;

use super::EmbeddingInput;
use super::builder::{Builder, ModelError};
use super::link::LinkPredictor;
use super::options::options;
use super::signature::SIGNATURE_DIM;
use crate::nn::{Groups, ParamId, Reduce, Tape, TimeEncoder, Var};

options! {
    /// Shape of a GraphSAGE. The defaults have 43,101 parameters.
    GraphSageOptions {
        /// Width d of a node's row at every level; at least 1.
        embedding_dim: 100,
        /// Width d_r of a signature; at least 1.
        signature_dim: SIGNATURE_DIM,
        /// Most recent neighbors K sampled in each layer; at least 1.
        fanout: 10,
        /// Layers L of neighbors; at least 1. A seed stands for up to K^L edges.
        layers: 1,
    }
    /// Share of values dropped while training, behind each level.
    dropout: 0.1,
    // Neighbors in all layers.
    needs |options| options.recent(options.fanout, options.layers)
}

/// The parameters of a GraphSAGE.
#[derive(Clone, Debug)]
pub(super) struct GraphSage {
    options: GraphSageOptions,
    no_time: TimeEncoder,
    types: Option<ParamId>,
    levels: Vec<[ParamId; 2]>,
    pub link: LinkPredictor,
}

impl GraphSage {
    pub fn build(options: GraphSageOptions, b: &mut Builder<'_>) -> Result<Self, ModelError> {
        let GraphSageOptions { embedding_dim, signature_dim, node_feature_dim, edge_feature_dim, .. } =
            options;
        let level = |level| {
            let below = if level == 1 { node_feature_dim + signature_dim } else { embedding_dim };
            let edge = options.edge_types.width + edge_feature_dim;
            b.linear(&format!("level{level}"), embedding_dim, 2 * below + edge)
        };
        let levels = (1..=options.layers).map(level).collect::<Result<_, _>>()?;
        let (no_time, link) = (TimeEncoder::fixed(0), b.product_link(embedding_dim)?);
        Ok(Self { options, no_time, types: options.edge_types.build(b)?, levels, link })
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
        let GraphSageOptions { dropout, layers, fanout, .. } = self.options;
        let [seed, step] = input.dropout;
        for (level, &[w, b]) in (1..).zip(&self.levels) {
            let mut hop = input.hop(level);
            let filled = Groups::Slots { slots: fanout, counts: Arc::new(std::mem::take(&mut hop.counts)) };
            let own = tape.gather(rows, std::mem::take(&mut hop.own));
            let theirs = hop.typed(tape, rows, self.types);
            let met = hop.slot_rows(tape, theirs, &self.no_time);
            let met = tape.reduce(met, &filled, Reduce::Mean);
            let both = tape.concat(&[own, met]);
            rows = tape.linear(both, w, Some(b));
            if level < layers {
                rows = tape.relu(rows);
            }
            rows = tape.dropout(rows, dropout, [seed, step, level as u64]);
        }
        rows
    }
}
