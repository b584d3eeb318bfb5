//! The embedding: one layer of attention from a seed over its most recent neighbors.
//!
//! ```text
//! h_i  = s_i + x_i                         memory row plus (projected) node features
//! q    = [h_i ; phi(0)]                    slots: [h_j ; e_ij ; phi(t - t_ij)]
//! a    = attention(q W_Q ; slots W_K, slots W_V)       zero where there is no neighbor
//! o    = layer_norm(dropout(a W_O + b_O) + q)
//! z_i  = W_b relu(W_a [o ; h_i] + b_a) + b_b
//! ```
//! Features are those that were gathered for the pass, bounded (see `limit`).
//! Where memory rows come from (the updater in training, published rows in serving) is the caller's
//! choice; this is the one place that turns them into embeddings.

use super::{GatheredRows, Neighborhood, Tgn};
use crate::nn::{Tape, TemporalAttention, Var};

/// Keeps a layer norm's denominator away from 0.
const LAYER_NORM_EPSILON: f32 = 1e-5;

/// Seeds to embed, with their sample.
#[derive(Clone, Copy)]
pub struct EmbeddingInput<'a> {
    /// Seeds and neighbors as slots of distinct nodes.
    pub neighborhood: &'a Neighborhood,
    /// Feature rows of its slots and nodes, of each kind that the model's options give a width.
    pub rows: &'a GatheredRows,
    /// Names this step's dropout masks: seed and step number.
    pub dropout: [u64; 2],
}

impl Tgn {
    /// Embeddings `[seeds, embedding_dim]`, given the memory rows `[nodes, memory_dim]` of the
    /// neighborhood's distinct nodes.
    ///
    /// # Panics
    /// If the rows were gathered for another neighborhood.
    pub fn embed(&self, tape: &mut Tape<'_>, memory: Var, input: &EmbeddingInput<'_>) -> Var {
        let (options, p) = (self.options(), &self.attention);
        let [seed, step] = input.dropout;
        let rows = self.add_node_features(tape, memory, input);
        let own = tape.gather(rows, input.neighborhood.seeds().to_vec());
        let now = vec![0.0; input.neighborhood.seeds().len()];
        let now = tape.time_encoding(&now, &self.time);
        let query = tape.concat(&[own, now]);
        let edge_rows = input.rows.edge_rows().filter(|_| options.edge_feature_dim > 0);
        let edge_slots = edge_rows.is_some().then(|| input.rows.slots().to_vec());
        let attended = tape.temporal_attention(TemporalAttention {
            query,
            nodes: rows,
            slots: input.neighborhood.neighbors().to_vec(),
            deltas: input.neighborhood.sample().deltas.clone(),
            edge_rows,
            edge_slots,
            w_q: p.w_q,
            w_k: p.w_k,
            w_v: p.w_v,
            heads: options.heads,
            time: &self.time,
            dropout: options.dropout,
            key: [seed, step, 0],
        });
        let out = tape.linear(attended, p.w_o, Some(p.b_o));
        let out = tape.dropout(out, options.dropout, [seed, step, 1]);
        let out = tape.add(out, query);
        let out = tape.layer_norm(out, p.gamma, p.beta, LAYER_NORM_EPSILON);
        let joined = tape.concat(&[out, own]);
        self.merge.apply(tape, joined)
    }

    /// `h = s + x`, with x projected if its width is not that of memory.
    fn add_node_features(&self, tape: &mut Tape<'_>, memory: Var, input: &EmbeddingInput<'_>) -> Var {
        let dimension = self.options().node_feature_dim;
        if dimension == 0 {
            return memory;
        }
        let mut features = tape.take(input.neighborhood.nodes().nodes().len(), dimension);
        features.data_mut().copy_from_slice(input.rows.node_rows());
        let features = tape.constant(features);
        let features = match self.features {
            Some(projection) => tape.linear(features, projection, None),
            None => features,
        };
        tape.add(memory, features)
    }
}
