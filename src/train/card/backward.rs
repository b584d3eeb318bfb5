//! The gradients of a TGN's weights on a card: the forward pass turned around, layer by layer.

use super::forward::{Forward, Pass};
use super::room;
use super::weights::Each;
use crate::device::cuda::layers::{
    AttentionBackward, Layout, LinearSizes, Matrix, Part, Place, Put, add_rows, drop_out, gru_backward,
    join_rows, layer_norm_backward, layer_norm_parameters, linear_bias, linear_forward, linear_input,
    linear_pieces, linear_weights, pieces_of, relu_backward, spread_rows, sum_pieces,
};
use crate::device::cuda::{CudaBuffer, CudaError};

/// Where gradients go.
pub(super) type Gradients = Each<CudaBuffer<f32>>;

/// Partial sums of the gradient of one parameter. What is not written is zero.
struct Partial<'a> {
    place: Place<'a>,
    sums: CudaBuffer<f32>,
    pieces: usize,
    count: usize,
}

impl<'a> Partial<'a> {
    /// Of `count` values, for sums over so many rows at most.
    fn new(place: Place<'a>, rows_max: usize, count: usize) -> Result<Self, CudaError> {
        let pieces = linear_pieces(rows_max);
        Ok(Self { place, sums: room(place, pieces * count)?, pieces, count })
    }

    /// The gradient of a weight that met the rows `a`, given that of the result.
    fn weights(
        &mut self,
        sizes: LinearSizes,
        d: Matrix<'_>,
        a: Matrix<'_>,
        layout: Layout,
    ) -> Result<(), CudaError> {
        linear_weights(self.place, sizes, d, a, self.count, (&mut self.sums, layout))
    }

    /// Replaces `gradient` by the sums.
    fn finish(self, gradient: &mut CudaBuffer<f32>) -> Result<(), CudaError> {
        sum_pieces(self.place, [self.pieces, self.count], &self.sums, gradient, true)
    }
}

/// The gradient of the weight of one linear layer.
fn weight(
    place: Place<'_>,
    sizes: LinearSizes,
    (d, a): (Matrix<'_>, Matrix<'_>),
    layout: Layout,
    gradient: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let mut partial = Partial::new(place, sizes.rows, gradient.len())?;
    partial.weights(sizes, d, a, layout)?;
    partial.finish(gradient)
}

/// The gradient of a bias that was added to rows with the gradients `d`.
fn bias(
    place: Place<'_>,
    [rows, columns]: [usize; 2],
    d: &CudaBuffer<f32>,
    gradient: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let mut partial = Partial::new(place, rows, columns)?;
    linear_bias(place, [rows, columns], (d, Layout::dense(columns)), columns, (&mut partial.sums, 0))?;
    partial.finish(gradient)
}

impl Pass<'_> {
    /// All gradients, from those of the logits. Overwrites what only the backward reads. Does not wait.
    ///
    /// # Errors
    /// The card's.
    pub fn backward(&self, done: &mut Forward, gradients: &mut Gradients) -> Result<(), CudaError> {
        let d_embeddings = self.link_backward(done, gradients)?;
        let (d_normed, mut d_query) = self.merge_backward(done, d_embeddings, gradients)?;
        let d_attended = self.normalize_backward(done, d_normed, &mut d_query, gradients)?;
        let d_fresh = self.attend_backward(done, &d_attended, d_query, gradients)?;
        self.refresh_backward(done, &d_fresh, gradients)
    }

    /// The gradient of embeddings.
    fn link_backward(&self, done: &Forward, gradients: &mut Gradients) -> Result<CudaBuffer<f32>, CudaError> {
        let (place, batch, w, width) = (self.place, self.batch, self.weights, self.sizes.embedding);
        let (pairs, dense, one) = (batch.pairs, Layout::dense(width), Layout::dense(1));
        let sizes = LinearSizes::new([pairs, width, 1]);
        let d = &done.d_logits;
        weight(place, sizes, ((d, one), (&done.linked, dense)), dense, &mut gradients.link_w_b)?;
        bias(place, [pairs, 1], d, &mut gradients.link_b_b)?;
        let mut d_linked = room(place, pairs * width)?;
        linear_input(place, sizes, (d, one), (&w.link_w_b, dense), Put::REPLACE, (&mut d_linked, dense))?;
        relu_backward(place, &mut d_linked, &done.linked, pairs * width)?;
        bias(place, [pairs, width], &d_linked, &mut gradients.link_b_a)?;
        let mut d_embeddings = room(place, batch.seeds * width)?;
        let mut partial = Partial::new(place, pairs, gradients.link_w_a.len())?;
        for (number, (of, rows)) in batch.ends.iter().zip(&done.ends).enumerate() {
            let mut d_once = room(place, of.len() * width)?;
            spread_rows(place, &of.of_rows, width, (&d_linked, dense), true, (&mut d_once, dense))?;
            let sizes = LinearSizes::new([of.len(), width, width]);
            let columns = Layout::dense(2 * width).at(number * width);
            partial.weights(sizes, (&d_once, dense), (rows, dense), columns)?;
            let mut d_rows = room(place, of.len() * width)?;
            let into = (&mut d_rows, dense);
            linear_input(place, sizes, (&d_once, dense), (&w.link_w_a, columns), Put::REPLACE, into)?;
            let into = (&mut d_embeddings, dense);
            spread_rows(place, &of.of_table, width, (&d_rows, dense), number == 0, into)?;
        }
        partial.finish(&mut gradients.link_w_a)?;
        Ok(d_embeddings)
    }

    /// The gradients of the normalized rows and, as far as the merge reads it, of the query.
    fn merge_backward(
        &self,
        done: &Forward,
        d_embeddings: CudaBuffer<f32>,
        gradients: &mut Gradients,
    ) -> Result<(CudaBuffer<f32>, CudaBuffer<f32>), CudaError> {
        let (place, batch, w, s) = (self.place, self.batch, self.weights, self.sizes);
        let (rows, own, width, attention) = (batch.seeds, batch.own.len(), s.embedding, s.attention());
        let (dense, wide) = (Layout::dense(width), Layout::dense(attention));
        let columns = Layout::dense(attention + s.memory);
        let (sizes, d) = (LinearSizes::new([rows, width, width]), (&d_embeddings, dense));
        weight(place, sizes, (d, (&done.merged, dense)), dense, &mut gradients.merge_w_b)?;
        bias(place, [rows, width], &d_embeddings, &mut gradients.merge_b_b)?;
        let mut d_merged = room(place, rows * width)?;
        linear_input(place, sizes, d, (&w.merge_w_b, dense), Put::REPLACE, (&mut d_merged, dense))?;
        relu_backward(place, &mut d_merged, &done.merged, rows * width)?;
        bias(place, [rows, width], &d_merged, &mut gradients.merge_b_a)?;

        let mut partial = Partial::new(place, rows, gradients.merge_w_a.len())?;
        let sizes = LinearSizes::new([rows, attention, width]);
        partial.weights(sizes, (&d_merged, dense), (&done.normed, wide), columns)?;
        let mut d_normed = room(place, rows * attention)?;
        let into = (&mut d_normed, wide);
        linear_input(place, sizes, (&d_merged, dense), (&w.merge_w_a, columns), Put::REPLACE, into)?;
        let mut d_once = room(place, own * width)?;
        spread_rows(place, &batch.own.of_rows, width, (&d_merged, dense), true, (&mut d_once, dense))?;
        let sizes = LinearSizes::new([own, s.memory, width]);
        let behind = columns.at(attention);
        partial.weights(sizes, (&d_once, dense), (&done.query, wide), behind)?;
        partial.finish(&mut gradients.merge_w_a)?;
        let mut d_query = room(place, own * attention)?;
        let into = (&mut d_query, wide);
        linear_input(place, sizes, (&d_once, dense), (&w.merge_w_a, behind), Put::REPLACE, into)?;
        Ok((d_normed, d_query))
    }

    /// The gradient of what was attended; that of the query is added to.
    fn normalize_backward(
        &self,
        done: &Forward,
        mut d: CudaBuffer<f32>,
        d_query: &mut CudaBuffer<f32>,
        gradients: &mut Gradients,
    ) -> Result<CudaBuffer<f32>, CudaError> {
        let (place, batch, w) = (self.place, self.batch, self.weights);
        let (rows, width) = (batch.seeds, self.sizes.attention());
        let (sizes, dense) = ([rows, width], Layout::dense(width));
        let mut partials = room(place, pieces_of(rows) * 2 * width)?;
        layer_norm_parameters(place, sizes, (&d, &done.summed), &done.moments, &mut partials)?;
        let mut both = room(place, 2 * width)?;
        sum_pieces(place, [pieces_of(rows), 2 * width], &partials, &mut both, true)?;
        for (number, gradient) in [&mut gradients.gamma, &mut gradients.beta].into_iter().enumerate() {
            let half = Part { table: (&both, dense.at(number * width)), shape: [1, width], list: None };
            add_rows(place, half, 1, Put::REPLACE, (gradient, dense))?;
        }
        layer_norm_backward(place, sizes, &mut d, (&done.summed, &done.moments), &w.gamma)?;
        spread_rows(place, &batch.own.of_rows, width, (&d, dense), false, (d_query, dense))?;
        drop_out(place, self.masks[1], &mut d, rows * width)?;
        let sizes = LinearSizes::new([rows, width, width]);
        weight(place, sizes, ((&d, dense), (&done.attended, dense)), dense, &mut gradients.w_o)?;
        bias(place, [rows, width], &d, &mut gradients.b_o)?;
        let mut d_attended = room(place, rows * width)?;
        linear_input(place, sizes, (&d, dense), (&w.w_o, dense), Put::REPLACE, (&mut d_attended, dense))?;
        Ok(d_attended)
    }

    /// The gradient of the nodes' fresh memory.
    fn attend_backward(
        &self,
        done: &Forward,
        d_attended: &CudaBuffer<f32>,
        mut d_query: CudaBuffer<f32>,
        gradients: &mut Gradients,
    ) -> Result<CudaBuffer<f32>, CudaError> {
        let (place, batch, w, s) = (self.place, self.batch, self.weights, self.sizes);
        let (seeds, own, blocks, dense) =
            (batch.seeds, batch.own.len(), s.blocks(), Layout::dense(s.attention()));
        let (heads, block, head_weights) = (s.heads_layout(), s.blocks_layout(), s.head_weights());
        let folded = s.folded(seeds, 1.0);
        let given = (d_attended, heads);
        weight(place, folded, (given, (&done.y, block)), head_weights, &mut gradients.w_v)?;
        let mut dy = room(place, seeds * blocks)?;
        linear_input(place, folded, given, (&w.w_v, head_weights), Put::REPLACE, (&mut dy, block))?;
        let mut du = room(place, seeds * blocks)?;
        let mut dx = room(place, seeds * batch.slots_per_seed * s.memory)?;
        self.attention(&done.fresh, &done.u).backward(AttentionBackward {
            y: &done.y,
            weights: &done.shares,
            dy: &dy,
            wanted: (true, false),
            du: &mut du,
            dx: &mut dx,
        })?;
        let (mut du_once, whole) = (room(place, own * blocks)?, Layout::dense(blocks));
        spread_rows(place, &batch.own.of_rows, blocks, (&du, whole), true, (&mut du_once, whole))?;
        let folded = s.folded(own, s.scale());
        let given = (&du_once, block);
        weight(place, folded, ((&done.q, heads), given), head_weights, &mut gradients.w_k)?;
        let mut dq = room(place, own * s.attention())?;
        let into = (&mut dq, heads);
        linear_forward(place, folded, given, (&w.w_k, head_weights), None, Put::REPLACE, into)?;
        let sizes = LinearSizes::new([own, s.attention(), s.attention()]);
        weight(place, sizes, ((&dq, dense), (&done.query, dense)), dense, &mut gradients.w_q)?;
        linear_input(place, sizes, (&dq, dense), (&w.w_q, dense), Put::ADD, (&mut d_query, dense))?;
        // Of the query only the memory rows are learned: the encoding of no time is given.
        let (mut d_fresh, rows) = (room(place, batch.nodes.len() * s.memory)?, Layout::dense(s.memory));
        spread_rows(place, &batch.slot_users, s.memory, (&dx, rows), true, (&mut d_fresh, rows))?;
        let into = (&mut d_fresh, rows);
        spread_rows(place, &batch.own.of_table, s.memory, (&d_query, dense), false, into)?;
        Ok(d_fresh)
    }

    /// The gradients of the GRU, the messages and rows of which are given.
    fn refresh_backward(
        &self,
        done: &mut Forward,
        d_fresh: &CudaBuffer<f32>,
        gradients: &mut Gradients,
    ) -> Result<(), CudaError> {
        let (place, batch, s) = (self.place, self.batch, self.sizes);
        let (rows, width, columns) = (batch.pending.len(), s.memory, s.message());
        let (dense, all) = (Layout::dense(width), Layout::dense(3 * width));
        let mut d = room(place, rows * width)?;
        let part = Part {
            table: (d_fresh, dense),
            shape: [batch.nodes.len(), width],
            list: Some(&batch.pending_places),
        };
        join_rows(place, &[part], rows, (&mut d, dense))?;
        gru_backward(place, [rows, width], &mut d, (&mut done.gates, &mut done.hidden), &done.own)?;
        let (gates, hidden) = (&done.gates, &done.hidden);
        let messages = (&done.messages, Layout::dense(columns));
        let sizes = LinearSizes::new([rows, columns, 3 * width]);
        weight(place, sizes, ((gates, all), messages), Layout::dense(columns), &mut gradients.w_ih)?;
        bias(place, [rows, 3 * width], gates, &mut gradients.b_ih)?;
        // The reset gate lets a part of block n through: it has a gradient of its own.
        let mut partial = Partial::new(place, rows, gradients.w_hh.len())?;
        let own = (&done.own, dense);
        partial.weights(LinearSizes::new([rows, width, 2 * width]), (gates, all), own, dense)?;
        let behind = dense.at(2 * width * width);
        partial.weights(LinearSizes::new([rows, width, width]), (hidden, dense), own, behind)?;
        partial.finish(&mut gradients.w_hh)?;
        let mut partial = Partial::new(place, rows, 3 * width)?;
        let sums = (&mut partial.sums, 0);
        linear_bias(place, [rows, 2 * width], (gates, all), 3 * width, sums)?;
        let sums = (&mut partial.sums, 2 * width);
        linear_bias(place, [rows, width], (hidden, dense), 3 * width, sums)?;
        partial.finish(&mut gradients.b_hh)
    }
}
