//! The attention block of TGN and TGAT: what a node learns from its neighbors in one level.
//!
//! ```text
//! q    = [h_i ; phi(0)]                    slots: [h_j ; e_ij ; phi(t - t_ij)]
//! a    = attention(q W_Q ; slots W_K, slots W_V)       zero where there is no neighbor
//! o    = layer_norm(dropout(a W_O + b_O) + q)
//! z_i  = W_b relu(W_a [o ; h_i] + b_a) + b_b
//! ```
//! Without rows of nodes the h are left out: the block then sees times and features of edges.

use super::Hop;
use super::builder::{Builder, Fill, ModelError};
use super::link::MergeParams;
use crate::device::Device;
use crate::nn::{ParamId, Tape, TemporalAttention, TimeEncoder, Var};

/// Keeps a layer norm's denominator away from 0.
pub(crate) const LAYER_NORM_EPSILON: f32 = 1e-5;

/// The projections of the attention, without biases on its inputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projections {
    w_q: ParamId,
    w_k: ParamId,
    w_v: ParamId,
    w_o: ParamId,
}

impl Projections {
    /// For queries of `width` values and slots of `slot` values.
    pub fn build(b: &mut Builder<'_>, name: &str, width: usize, slot: usize) -> Result<Self, ModelError> {
        Ok(Self {
            w_q: b.weight(&format!("{name}.w_q"), width, width)?,
            w_k: b.weight(&format!("{name}.w_k"), width, slot)?,
            w_v: b.weight(&format!("{name}.w_v"), width, slot)?,
            w_o: b.weight(&format!("{name}.w_o"), width, width)?,
        })
    }
}

/// What is learned of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Output {
    b_o: ParamId,
    norm: [ParamId; 2],
}

impl Output {
    /// For outputs of `width` values.
    pub fn build(b: &mut Builder<'_>, name: &str, width: usize) -> Result<Self, ModelError> {
        let b_o = b.add(&format!("{name}.b_o"), 1, width, Fill::Uniform { fan_in: width })?;
        Ok(Self { b_o, norm: b.norm(name, width)? })
    }
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionBlock {
    pub projections: Projections,
    pub output: Output,
    pub merge: MergeParams,
    /// The table of types of edges.
    pub types: Option<ParamId>,
    pub heads: usize,
    pub dropout: f32,
}

impl AttentionBlock {
    /// A row per pair of `hop`, given the `table` of rows that it reads. `masks` names the dropout masks, of which the
    /// block takes two numbers.
    pub fn apply(
        &self,
        tape: &mut Tape<'_>,
        table: Var,
        mut hop: Hop,
        time: &TimeEncoder,
        [seed, step, first]: [u64; 3],
    ) -> Var {
        let p = &self.projections;
        // Of a node that is asked about many times the query is the same.
        let nodes = hop.typed(tape, table, self.types);
        // The CPU multiplies all rows of `own.x`, and a GPU those of the query made of them, below.
        let own = match tape.device() {
            Device::Cpu => tape.gather_distinct(table, hop.own),
            Device::Cuda(_) => tape.distinct_columns(table, hop.own),
        };
        let range = own.range_in(tape);
        let now = tape.time_encoding(&vec![0.0; range.len()], time);
        let every = 0..range.len();
        let query = tape.concat_rows(vec![(own.x, range), (now, every)]);
        // Where the encoding is not learned, that of no time is the same in every query.
        let is_constant = *tape.device() == Device::Cpu && !matches!(time, TimeEncoder::Trained { .. });
        let (asked, tail) = match is_constant && tape.value(now).rows() > 0 {
            true => (own.x, tape.value(now).row(0).to_vec()),
            false => (query, Vec::new()),
        };
        let attended = tape.temporal_attention(TemporalAttention {
            query: asked,
            tail,
            queries: own.rows.clone(),
            nodes,
            slots: hop.neighbors,
            readers: hop.readers,
            deltas: hop.deltas,
            edge_rows: hop.edge_rows,
            edge_slots: hop.edges,
            w_q: p.w_q,
            w_k: p.w_k,
            w_v: p.w_v,
            heads: self.heads,
            time,
            dropout: self.dropout,
            key: [seed, step, first],
        });
        let [gamma, beta] = self.output.norm;
        let out = tape.linear(attended, p.w_o, Some(self.output.b_o));
        let out = tape.dropout(out, self.dropout, [seed, step, first + 1]);
        let out = match &own.rows {
            Some(rows) => tape.add_gathered(out, query, rows.clone()),
            None => tape.add(out, query),
        };
        let out = tape.layer_norm(out, gamma, beta, LAYER_NORM_EPSILON);
        self.merge.apply(tape, vec![out.into(), own])
    }
}
