//! GraphMixer: what a node did last, read by an MLP-Mixer. It has neither attention nor memory.
//!
//! The model is that of Cong et al., "Do We Really Need Complicated Model Architectures For Temporal Networks?"
//! (2023):
//!
//! ```text
//! X_ik    = W_t [e_ij ; phi(t - t_ij)] + b_t        a token for each of the K most recent edges, newest first;
//!                                                   W_t of zeros where there is none
//! twice     X <- X + mask(W_b mask(gelu(W_a norm(X) + b_a)) + b_b)         along the tokens, hidden K / 2
//!           X <- X + mask(W_d mask(gelu(W_c norm(X) + b_c)) + b_d)         along the channels, hidden 4 d
//! n_i     = x_i + mean_j x_j                         where nodes have features, over the same edges
//! z_i     = W_o [mean_k X_ik ; n_i] + b_o
//! ```
//! The time encoding phi is fixed, as the paper has it; its frequencies end at 1e-9 by the second, as in DyGLib, and
//! the paper's for 100 values at 1e-9.9. The paper's node encoder has a window of its own, of the last thousands of
//! edges; ours reads the edges that were sampled anyway.

use std::ops::Range;
use std::sync::Arc;

use super::attention::LAYER_NORM_EPSILON;
use super::builder::{Builder, ModelError};
use super::link::LinkPredictor;
use super::options::options;
use super::{EMPTY_SLOT, EmbeddingInput, Hop, Needs};
use crate::nn::{Groups, ParamId, Reduce, SlotMixing, Tape, TimeEncoder, Var};

/// Values between the two layers along the channels, per channel.
const CHANNEL_EXPANSION: usize = 4;

options! {
    /// Shape of a GraphMixer. The defaults have 85,533 parameters.
    GraphMixerOptions {
        /// Channels d of a token, and width of an embedding; at least 1.
        embedding_dim: 64,
        /// Width d_T of the time encoding; at least 1.
        time_dim: 100,
        /// Most recent edges K sampled per seed; at least 2.
        fanout: 20,
        /// Mixer blocks; at least 1.
        blocks: 2,
    }
    /// Share of values dropped while training, behind each layer of a block.
    dropout: 0.4,
    // The most recent edges of each seed. Small parts repeat no work, since nothing is computed per node; of 13 to 100
    // events those of 25 were fastest.
    needs |options| Needs { part_events: 25, ..options.recent(options.fanout, 1) }
}

/// The parameters of a GraphMixer.
#[derive(Clone, Debug)]
pub(super) struct GraphMixer {
    options: GraphMixerOptions,
    time: TimeEncoder,
    types: Option<ParamId>,
    token: [ParamId; 2],
    blocks: Vec<Block>,
    output: [ParamId; 2],
    pub link: LinkPredictor,
}

/// One mixer block.
#[derive(Clone, Copy, Debug)]
struct Block {
    tokens: SlotMixing,
    norm: [ParamId; 2],
    expand: [ParamId; 2],
    contract: [ParamId; 2],
}

impl Block {
    fn build(o: &GraphMixerOptions, b: &mut Builder<'_>, name: &str) -> Result<Self, ModelError> {
        let (tokens, channels) = (o.fanout, o.embedding_dim);
        let (few, many) = ((tokens / 2).max(1), CHANNEL_EXPANSION * channels);
        let [gamma, beta] = b.norm(&format!("{name}.tokens.norm"), tokens)?;
        let [w_a, b_a] = b.linear(&format!("{name}.tokens.contract"), few, tokens)?;
        let [w_b, b_b] = b.linear(&format!("{name}.tokens.expand"), tokens, few)?;
        let (eps, dropout, key) = (LAYER_NORM_EPSILON, o.dropout, [0; 3]);
        Ok(Self {
            tokens: SlotMixing { gamma, beta, w_a, b_a, w_b, b_b, eps, dropout, key },
            norm: b.norm(&format!("{name}.channels.norm"), channels)?,
            expand: b.linear(&format!("{name}.channels.expand"), many, channels)?,
            contract: b.linear(&format!("{name}.channels.contract"), channels, many)?,
        })
    }

    /// `[seeds * K, channels]` to the same. `first` names its masks, of which there are four.
    fn apply(&self, tape: &mut Tape<'_>, x: Var, [seed, step, first]: [u64; 3]) -> Var {
        let x = tape.mix_slots(x, SlotMixing { key: [seed, step, first], ..self.tokens });
        let dropout = self.tokens.dropout;
        let norm = tape.layer_norm(x, self.norm[0], self.norm[1], LAYER_NORM_EPSILON);
        let wide = tape.linear(norm, self.expand[0], Some(self.expand[1]));
        let wide = tape.gelu(wide, dropout, [seed, step, first + 2]);
        let back = tape.linear(wide, self.contract[0], Some(self.contract[1]));
        let back = tape.dropout(back, dropout, [seed, step, first + 3]);
        tape.add(x, back)
    }
}

impl GraphMixer {
    pub fn build(options: GraphMixerOptions, b: &mut Builder<'_>) -> Result<Self, ModelError> {
        let GraphMixerOptions { embedding_dim, time_dim, node_feature_dim, edge_feature_dim, .. } = options;
        let edge = options.edge_types.width + edge_feature_dim;
        let token = b.linear("token", embedding_dim, edge + time_dim)?;
        let blocks = (1..=options.blocks).map(|n| Block::build(&options, b, &format!("block{n}")));
        let blocks = blocks.collect::<Result<_, _>>()?;
        let output = b.linear("output", embedding_dim, embedding_dim + node_feature_dim)?;
        let (time, link) =
            (TimeEncoder::of_ticks(time_dim, options.ticks_per_second), b.link(embedding_dim)?);
        let types = options.edge_types.build(b)?;
        Ok(Self { options, time, types, token, blocks, output, link })
    }

    /// The features of these distinct nodes; `memory` has no columns.
    pub fn table(
        &self,
        tape: &mut Tape<'_>,
        memory: Var,
        input: &EmbeddingInput<'_>,
        nodes: Range<usize>,
    ) -> Var {
        match self.options.node_feature_dim {
            0 => memory,
            width => input.node_features(tape, nodes, width, None),
        }
    }

    /// Embeddings `[seeds, embedding_dim]`, given the features of the distinct nodes.
    pub fn embed(&self, tape: &mut Tape<'_>, features: Var, input: &EmbeddingInput<'_>) -> Var {
        let hop = input.hop(1);
        let (own, neighbors, counts) = (hop.own.clone(), hop.neighbors.clone(), hop.counts.clone());
        let (slots, [seed, step]) = (self.options.fanout, input.dropout);
        let none = tape.take(tape.value(features).rows(), 0);
        let none = tape.constant(none);
        let mut tokens = self.tokens(tape, none, hop);
        for (n, block) in (0..).zip(&self.blocks) {
            tokens = block.apply(tape, tokens, [seed, step, 4 * n]);
        }
        let all = Groups::Slots { slots, counts: Arc::new(vec![slots as u32; own.len()]) };
        let mut shown = tape.reduce(tokens, &all, Reduce::Mean);
        if self.options.node_feature_dim > 0 {
            let own = tape.gather(features, own);
            let filled = Groups::Slots { slots, counts: Arc::new(counts) };
            // Empty slots are in no group, so any row will do for them.
            let theirs = neighbors.values().iter().map(|&node| if node == EMPTY_SLOT { 0 } else { node });
            let theirs = tape.gather(features, theirs.collect::<Vec<u32>>());
            let theirs = tape.reduce(theirs, &filled, Reduce::Mean);
            let node = tape.add(own, theirs);
            shown = tape.concat(&[shown, node]);
        }
        tape.linear(shown, self.output[0], Some(self.output[1]))
    }

    /// Tokens `[seeds * K, embedding_dim]`. They do not identify the neighbor: `none` has no columns.
    fn tokens(&self, tape: &mut Tape<'_>, none: Var, mut hop: Hop) -> Var {
        let rows = hop.typed(tape, none, self.types);
        let rows = hop.slot_rows(tape, rows, &self.time);
        tape.linear(rows, self.token[0], Some(self.token[1]))
    }
}
