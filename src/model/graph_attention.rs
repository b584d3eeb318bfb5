//! The graph attention layer of GAT and DySAT: neighbors weighed by who they are and who asks, without time.
//!
//! ```text
//! v_j   = W_v [h_j ; e_ij]                             d values in heads of d / heads
//! a_ij  = softmax over j of a . leaky(v_j + W_q h_i)   each head on its own columns; leaky(x) = max(x, x / 5)
//! z_i   = sum_j a_ij v_j + W_s h_i + b                 the sum is zero where there is no neighbor
//! ```
//! That is the layer of Velickovic et al., "Graph Attention Networks" (2018), with the nonlinearity inside the score as
//! Brody et al. have it ("How Attentive are Graph Attention Networks?", 2022): else all who ask would rank their
//! neighbors alike. Instead of a loop to itself a node has the skip connection `W_s h_i` of the first paper's deeper
//! networks, as what it is and whom it met must stay apart for a pair to be compared.

use std::sync::Arc;

use super::Hop;
use super::builder::{Builder, ModelError};
use crate::nn::{ParamId, SlotAttention, Tape, TimeEncoder, Var};

/// Slope of the rectifier below 0.
const SLOPE: f32 = 0.2;

/// The parameters of a layer.
#[derive(Clone, Debug)]
pub(super) struct GraphAttention {
    values: ParamId,
    query: ParamId,
    score: ParamId,
    own: [ParamId; 2],
    heads: usize,
    no_time: TimeEncoder,
}

impl GraphAttention {
    /// From rows of `below` values and edges of `edge` values to rows of `width` values, which `heads` divides.
    pub fn build(
        b: &mut Builder<'_>,
        name: &str,
        [below, edge, width]: [usize; 3],
        heads: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            values: b.weight(&format!("{name}.w_v"), width, below + edge)?,
            query: b.weight(&format!("{name}.w_q"), width, below)?,
            score: b.weight(&format!("{name}.a"), width, 1)?,
            own: b.linear(&format!("{name}.own"), width, below)?,
            heads,
            no_time: TimeEncoder::fixed(0),
        })
    }

    /// A row per pair of `hop`, given the `table` of rows that it reads, and that of types of edges if there is one.
    pub fn apply(&self, tape: &mut Tape<'_>, table: Var, types: Option<ParamId>, mut hop: Hop) -> Var {
        let pairs = hop.own.len();
        let slots = hop.neighbors.len().checked_div(pairs).unwrap_or(0);
        let counts = Arc::new(std::mem::take(&mut hop.counts));
        let own = tape.gather(table, std::mem::take(&mut hop.own));
        let theirs = hop.typed(tape, table, types);
        let rows = hop.slot_rows(tape, theirs, &self.no_time);
        let v = tape.linear(rows, self.values, None);
        let asking = tape.linear(own, self.query, None);
        let pair_of_slot: Vec<u32> =
            (0..pairs as u32).flat_map(|pair| std::iter::repeat_n(pair, slots)).collect();
        let asking = tape.gather(asking, pair_of_slot);
        let k = tape.add(v, asking);
        let k = leaky(tape, k);
        // One score vector for all who ask: a column of ones times `a`.
        let mut ones = tape.take(pairs, 1);
        ones.data_mut().fill(1.0);
        let ones = tape.constant(ones);
        let q = tape.linear(ones, self.score, None);
        let met = tape.slot_attention(SlotAttention { q, k, v, counts, heads: self.heads });
        let own = tape.linear(own, self.own[0], Some(self.own[1]));
        tape.add(met, own)
    }
}

/// `max(x, SLOPE x)`.
fn leaky(tape: &mut Tape<'_>, x: Var) -> Var {
    let above = tape.relu(x);
    let above = tape.scale(above, 1.0 - SLOPE);
    let all = tape.scale(x, SLOPE);
    tape.add(above, all)
}
