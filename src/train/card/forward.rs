//! The forward pass of a TGN on a card, with what its backward reads again: the equations of `model::tgn` and
//! `model::attention`, layer by layer.

use super::upload::{Distinct, Upload};
use super::weights::Each;
use super::{Sizes, room};
use crate::device::cuda::layers::{
    Attention, AttentionForward, CardMemory, Layout, LinearSizes, Matrix, Messages, Part, Place, Put,
    add_rows, drop_out, gru_forward, join_rows, layer_norm_forward, linear_forward, linear_input, link_loss,
};
use crate::device::cuda::twins::Mask;
use crate::device::cuda::{CudaBuffer, CudaError};
use crate::model::attention::LAYER_NORM_EPSILON;

/// What every layer of a pass needs.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub place: Place<'a>,
    pub sizes: Sizes,
    pub batch: &'a Upload,
    pub weights: &'a Each<CudaBuffer<f32>>,
    /// Frequencies and phases of the encoding, and the encoding of no time at all.
    pub encoding: [&'a CudaBuffer<f32>; 3],
    /// Dropout of attention weights, and of what attention gives.
    pub masks: [Mask; 2],
}

/// What a forward pass leaves. `[rows, columns]`, with P pending messages, N distinct nodes, Q distinct seeds' nodes, S
/// seeds.
pub(super) struct Forward {
    /// `[P, message]`.
    pub messages: CudaBuffer<f32>,
    /// `[P, memory]`.
    pub own: CudaBuffer<f32>,
    /// `[P, 3 memory]` and `[P, memory]`: what the GRU leaves.
    pub gates: CudaBuffer<f32>,
    pub hidden: CudaBuffer<f32>,
    /// `[N, memory]`: memory after pending messages.
    pub fresh: CudaBuffer<f32>,
    /// `[Q, attention]`: memory and the encoding of no time.
    pub query: CudaBuffer<f32>,
    /// `[Q, attention]` and `[Q, heads padded]`.
    pub q: CudaBuffer<f32>,
    pub u: CudaBuffer<f32>,
    /// `[S, heads padded]` and `[S, heads slots]`.
    pub y: CudaBuffer<f32>,
    pub shares: CudaBuffer<f32>,
    /// `[S, attention]`: attended, with the query added, and normalized.
    pub attended: CudaBuffer<f32>,
    pub summed: CudaBuffer<f32>,
    pub normed: CudaBuffer<f32>,
    /// `[S, 2]`.
    pub moments: CudaBuffer<f32>,
    /// `[S, embedding]`: inside of the merge.
    pub merged: CudaBuffer<f32>,
    /// Embeddings of sources and of destinations, each once.
    pub ends: [CudaBuffer<f32>; 2],
    /// `[pairs, embedding]`: inside of the link predictor.
    pub linked: CudaBuffer<f32>,
    /// `[pairs]`: logits and their gradient.
    pub logits: CudaBuffer<f32>,
    pub d_logits: CudaBuffer<f32>,
    pub loss: CudaBuffer<f32>,
}

impl<'a> Pass<'a> {
    /// Everything up to the loss. Does not wait.
    ///
    /// # Errors
    /// The card's.
    pub fn forward(&self, memory: &CardMemory, origin: i64) -> Result<Forward, CudaError> {
        let [messages, own, gates, hidden, fresh] = self.refresh(memory, origin)?;
        let [query, q, u] = self.ask(&fresh)?;
        let [y, shares, attended] = self.attend(&fresh, &u)?;
        let [summed, normed, moments] = self.normalize(&attended, &query)?;
        let [merged, embeddings] = self.merge(&normed, &query)?;
        let [sources, destinations, linked, logits] = self.link(&embeddings)?;
        let (mut d_logits, mut loss) = (room(self.place, self.batch.pairs)?, room(self.place, 1)?);
        link_loss(self.place, &logits, &mut d_logits, &mut loss)?;
        Ok(Forward {
            messages,
            own,
            gates,
            hidden,
            fresh,
            query,
            q,
            u,
            y,
            shares,
            attended,
            summed,
            normed,
            moments,
            merged,
            ends: [sources, destinations],
            linked,
            logits,
            d_logits,
            loss,
        })
    }

    /// Memory of all nodes after their pending messages.
    fn refresh(&self, memory: &CardMemory, origin: i64) -> Result<[CudaBuffer<f32>; 5], CudaError> {
        let (place, batch, w, s) = (self.place, self.batch, self.weights, self.sizes);
        let (rows, width, columns) = (batch.pending.len(), s.memory, s.message());
        let (mut messages, mut own) = (room(place, rows * columns)?, room(place, rows * width)?);
        let from = Messages {
            nodes: &batch.pending,
            features: (&batch.edges, s.edge, &batch.mail_rows),
            encoding: (self.encoding[0], self.encoding[1]),
            origin,
        };
        memory.messages(place, from, &mut messages, &mut own)?;
        let (mut gates, mut hidden) = (room(place, rows * 3 * width)?, room(place, rows * width)?);
        let (given, recurrent) = (Layout::dense(columns), Layout::dense(width));
        let all = Layout::dense(3 * width);
        let sizes = LinearSizes::new([rows, columns, 3 * width]);
        let bias = Some(&w.b_ih);
        linear_forward(
            place,
            sizes,
            (&messages, given),
            (&w.w_ih, given),
            bias,
            Put::REPLACE,
            (&mut gates, all),
        )?;
        let sizes = LinearSizes::new([rows, width, 2 * width]);
        let both = (&w.w_hh, recurrent);
        linear_forward(place, sizes, (&own, recurrent), both, None, Put::ADD, (&mut gates, all))?;
        let sizes = LinearSizes::new([rows, width, width]);
        let new = (&w.w_hh, recurrent.at(2 * width * width));
        let into = (&mut hidden, recurrent);
        linear_forward(place, sizes, (&own, recurrent), new, None, Put::REPLACE, into)?;
        let mut updated = room(place, rows * width)?;
        gru_forward(place, [rows, width], (&mut gates, &mut hidden), (&own, &w.b_hh), &mut updated)?;
        let mut fresh = room(place, batch.nodes.len() * width)?;
        memory.fresh(place, (&batch.nodes, &batch.fresh_from), &updated, &mut fresh)?;
        Ok([messages, own, gates, hidden, fresh])
    }

    /// What is asked for the distinct nodes of seeds: query, q, u.
    fn ask(&self, fresh: &CudaBuffer<f32>) -> Result<[CudaBuffer<f32>; 3], CudaError> {
        let (place, batch, w, s) = (self.place, self.batch, self.weights, self.sizes);
        let (rows, width) = (batch.own.len(), s.attention());
        let mut query = room(place, rows * width)?;
        let of_nodes = Part {
            table: (fresh, Layout::dense(s.memory)),
            shape: [batch.nodes.len(), s.memory],
            list: Some(&batch.own.rows),
        };
        let now = Layout { first: 0, stride: 0, step: 0 };
        let of_time = Part { table: (self.encoding[2], now), shape: [rows, s.time], list: None };
        join_rows(place, &[of_nodes, of_time], rows, (&mut query, Layout::dense(width)))?;
        let mut q = room(place, rows * width)?;
        let (sizes, dense) = (LinearSizes::new([rows, width, width]), Layout::dense(width));
        let into = (&mut q, dense);
        linear_forward(place, sizes, (&query, dense), (&w.w_q, dense), None, Put::REPLACE, into)?;
        let mut u = room(place, rows * s.blocks())?;
        let folded = s.folded(rows, s.scale());
        linear_input(
            place,
            folded,
            (&q, s.heads_layout()),
            (&w.w_k, s.head_weights()),
            Put::REPLACE,
            (&mut u, s.blocks_layout()),
        )?;
        Ok([query, q, u])
    }

    /// The attention over slots, as both directions need it.
    pub fn attention<'b>(&self, fresh: &'b CudaBuffer<f32>, u: &'b CudaBuffer<f32>) -> Attention<'b>
    where
        'a: 'b,
    {
        let (batch, s) = (self.batch, self.sizes);
        Attention {
            place: self.place,
            sizes: s.attention_sizes(batch.seeds, batch.slots_per_seed),
            queries: Some(&batch.own.places),
            slots: &batch.slots,
            edge_slots: batch.edge_slots.as_ref(),
            nodes: (fresh, batch.nodes.len()),
            edges: (&batch.edges, batch.edge_rows),
            deltas: &batch.deltas,
            encoding: (self.encoding[0], self.encoding[1]),
            mask: self.masks[0],
            u: (u, batch.own.len()),
        }
    }

    /// y, the weights of slots, and what each seed learned of its neighbors.
    fn attend(
        &self,
        fresh: &CudaBuffer<f32>,
        u: &CudaBuffer<f32>,
    ) -> Result<[CudaBuffer<f32>; 3], CudaError> {
        let (place, batch, s) = (self.place, self.batch, self.sizes);
        let mut y = room(place, batch.seeds * s.blocks())?;
        let mut shares = room(place, batch.seeds * s.heads * batch.slots_per_seed)?;
        self.attention(fresh, u).forward(AttentionForward { y: &mut y, weights: &mut shares })?;
        let mut attended = room(place, batch.seeds * s.attention())?;
        let from = (&y, s.blocks_layout());
        let weights = (&self.weights.w_v, s.head_weights());
        let into = (&mut attended, s.heads_layout());
        linear_forward(place, s.folded(batch.seeds, 1.0), from, weights, None, Put::REPLACE, into)?;
        Ok([y, shares, attended])
    }

    /// `[sum, norm, moments]` of `norm(dropout(a W_O + b_O) + q)`.
    fn normalize(
        &self,
        attended: &CudaBuffer<f32>,
        query: &CudaBuffer<f32>,
    ) -> Result<[CudaBuffer<f32>; 3], CudaError> {
        let (place, batch, w) = (self.place, self.batch, self.weights);
        let (rows, width) = (batch.seeds, self.sizes.attention());
        let (mut summed, dense) = (room(place, rows * width)?, Layout::dense(width));
        let (sizes, bias) = (LinearSizes::new([rows, width, width]), Some(&w.b_o));
        let into = (&mut summed, dense);
        linear_forward(place, sizes, (attended, dense), (&w.w_o, dense), bias, Put::REPLACE, into)?;
        drop_out(place, self.masks[1], &mut summed, rows * width)?;
        let residual = part_of((query, dense), [batch.own.len(), width], &batch.own);
        add_rows(place, residual, rows, Put::ADD, (&mut summed, dense))?;
        let (mut normed, mut moments) = (room(place, rows * width)?, room(place, 2 * rows)?);
        let learned = (&w.gamma, &w.beta, LAYER_NORM_EPSILON);
        layer_norm_forward(place, [rows, width], &summed, learned, (&mut normed, &mut moments))?;
        Ok([summed, normed, moments])
    }

    /// `[inside, embeddings]` of `W_b relu(W_a [o ; h_i] + b_a) + b_b`.
    fn merge(
        &self,
        normed: &CudaBuffer<f32>,
        query: &CudaBuffer<f32>,
    ) -> Result<[CudaBuffer<f32>; 2], CudaError> {
        let (place, batch, w, s) = (self.place, self.batch, self.weights, self.sizes);
        let (rows, own, width) = (batch.seeds, batch.own.len(), s.embedding);
        let (attention, dense) = (s.attention(), Layout::dense(width));
        let columns = Layout::dense(attention + s.memory);
        let mut merged = room(place, rows * width)?;
        let (sizes, bias) = (LinearSizes::new([rows, attention, width]), Some(&w.merge_b_a));
        let from = (normed, Layout::dense(attention));
        let into = (&mut merged, dense);
        linear_forward(place, sizes, from, (&w.merge_w_a, columns), bias, Put::REPLACE, into)?;
        let mut once = room(place, own * width)?;
        let sizes = LinearSizes::new([own, s.memory, width]);
        let (from, weights) = ((query, Layout::dense(attention)), (&w.merge_w_a, columns.at(attention)));
        linear_forward(place, sizes, from, weights, None, Put::REPLACE, (&mut once, dense))?;
        let nodes = part_of((&once, dense), [own, width], &batch.own);
        add_rows(place, nodes, rows, Put::ADD.rectified(), (&mut merged, dense))?;
        let mut embeddings = room(place, rows * width)?;
        let (sizes, bias) = (LinearSizes::new([rows, width, width]), Some(&w.merge_b_b));
        let into = (&mut embeddings, dense);
        linear_forward(place, sizes, (&merged, dense), (&w.merge_w_b, dense), bias, Put::REPLACE, into)?;
        Ok([merged, embeddings])
    }

    /// Embeddings of the pairs' ends, the inside of the link predictor, and the logits.
    fn link(&self, embeddings: &CudaBuffer<f32>) -> Result<[CudaBuffer<f32>; 4], CudaError> {
        let (place, batch, w, width) = (self.place, self.batch, self.weights, self.sizes.embedding);
        let (mut linked, dense) = (room(place, batch.pairs * width)?, Layout::dense(width));
        let mut end = |number: usize, put: Put| {
            let of = &batch.ends[number];
            let mut rows = room(place, of.len() * width)?;
            let part = Part { table: (embeddings, dense), shape: [batch.seeds, width], list: Some(&of.rows) };
            join_rows(place, &[part], of.len(), (&mut rows, dense))?;
            let mut once = room(place, of.len() * width)?;
            let sizes = LinearSizes::new([of.len(), width, width]);
            let weights = (&w.link_w_a, Layout::dense(2 * width).at(number * width));
            let bias = (number == 0).then_some(&w.link_b_a);
            linear_forward(place, sizes, (&rows, dense), weights, bias, Put::REPLACE, (&mut once, dense))?;
            let part = part_of((&once, dense), [of.len(), width], of);
            add_rows(place, part, batch.pairs, put, (&mut linked, dense))?;
            Ok::<_, CudaError>(rows)
        };
        let (sources, destinations) = (end(0, Put::REPLACE)?, end(1, Put::ADD.rectified())?);
        let mut logits = room(place, batch.pairs)?;
        let (sizes, bias) = (LinearSizes::new([batch.pairs, width, 1]), Some(&w.link_b_b));
        let into = (&mut logits, Layout::dense(1));
        linear_forward(place, sizes, (&linked, dense), (&w.link_w_b, dense), bias, Put::REPLACE, into)?;
        Ok([sources, destinations, linked, logits])
    }
}

/// Rows of a table that has one for each different one of a list, at the places of the list.
fn part_of<'a>(table: Matrix<'a>, shape: [usize; 2], of: &'a Distinct) -> Part<'a> {
    Part { table, shape, list: Some(&of.places) }
}
