//! Temporal attention over fixed slots, in folded form.
//!
//! With `x_k = [node row; edge row; phi(dt_k)]` the score of slot k is `q . (W_K x_k) = (W_Kᵀ q) . x_k` and the
//! output is `sum a_k W_V x_k = W_V (sum a_k x_k)`. So `W_K` is folded into the query once per seed and head
//! (`u`), the raw slot rows are weighed and summed (`y`), and `W_V` is applied once: nothing is projected per
//! slot, forward or backward.
//!
//! ```text
//! q = query W_Qᵀ        u_h = q_h W_K,h / sqrt(d_head)        a = softmax(u_h . x_k)   (over occupied slots)
//! y_h = sum_k a_k x_k   out_h = y_h W_V,hᵀ
//! ```
//! Where the last columns of all query rows are the same constants, as the encoding of no time is, what they add to q
//! is the same row, computed once.
//!
//! `u` and `y` have rows of `heads` blocks, each padded with zeros to whole vectors (`Shape::padded`).

mod gpu;
mod views;

use std::sync::Arc;

use crate::device::Device;
use crate::device::matmul::{Into, ViewMut, matmul};
use crate::nn::cpu::attention::{self as cpu, Shape};
use crate::nn::cpu::elementwise::accumulate;
use crate::nn::cpu::gather::InverseIndex;
use crate::nn::cpu::linear::{column_sums, fill_rows};
use crate::nn::cpu::vector::sum;
use crate::nn::tape::{Backward, Walk};
use crate::nn::{List, ParamId, Places, Tape, TapePool, Tensor, TimeEncoder, Var};

use super::time;
use views::before_tail;

/// Arguments of [`Tape::temporal_attention`] for `S` seeds with `K` slots each.
pub struct TemporalAttention<'a> {
    /// `[Q, dq]`.
    pub query: Var,
    /// What follows in every row of the query, the same for all; nothing on a GPU.
    pub tail: Vec<f32>,
    /// `[S]`: the row of `query` for each seed; `None` means row i for seed i.
    pub queries: Option<Arc<Vec<u32>>>,
    /// Rows of the nodes in the slots, `[U, dn]`; usually one per different node.
    pub nodes: Var,
    /// `[S * K]`: the row of `nodes` in each slot; `u32::MAX` marks an empty slot.
    /// On a GPU only where `nodes` has no columns: then they say which slots are empty.
    pub slots: List<u32>,
    /// Which slots read each row of `nodes`, where they were listed before: `slots` inverted.
    pub readers: Option<Arc<InverseIndex>>,
    /// `[S * K]`: seed time minus edge time; any finite number in empty slots, whose gradient is 0.
    pub deltas: List<f32>,
    /// Edge features, no gradient: `[S * K, de]`, or any rows if `edge_slots` lists which. `None` means `de = 0`.
    /// Shared with whoever gathered them, on the CPU or on the GPU that computes; free again when the tape is
    /// gone.
    pub edge_rows: Option<Arc<Tensor>>,
    /// `[S * K]`: the row of `edge_rows` for each slot; `None` means row i for slot i.
    pub edge_slots: Option<Places>,
    /// `[D, dq + tail]`, `D` divisible by `heads`.
    pub w_q: ParamId,
    /// `[D, dn + de + time]`, columns in that order.
    pub w_k: ParamId,
    /// `[D, dn + de + time]`, columns in that order.
    pub w_v: ParamId,
    /// Number of heads.
    pub heads: usize,
    /// The encoding of `deltas`.
    pub time: &'a TimeEncoder,
    /// Probability with which an attention weight is dropped in training, in `[0, 1)`.
    pub dropout: f32,
    /// Key of the dropout mask.
    pub key: [u64; 3],
}

struct Attention {
    query: Var,
    tail: Vec<f32>,
    queries: Option<Arc<Vec<u32>>>,
    nodes: Var,
    w_q: ParamId,
    w_k: ParamId,
    w_v: ParamId,
    time: TimeEncoder,
    dropout: f32,
    key: [u64; 3],
    shape: Shape,
    slots: List<u32>,
    readers: Option<Arc<InverseIndex>>,
    deltas: List<f32>,
    edge_rows: Option<Arc<Tensor>>,
    edge_slots: Option<Places>,
    /// `[Q, D]`.
    q: Tensor,
    /// `[Q, heads * padded]`.
    u: Tensor,
    /// `[S, heads * padded]`.
    y: Tensor,
    /// `[S, heads * K]`, before dropout.
    weights: Tensor,
    /// `[S * K, time]`.
    phi: Tensor,
    /// What a GPU was given.
    uploads: Option<gpu::Uploads>,
}

impl Tape<'_> {
    /// Multi-head scaled dot-product attention of each seed over its occupied slots, heads side by side:
    /// `[S, D]`. A seed without an occupied slot gets zeros.
    ///
    /// # Panics
    /// If the shapes do not agree or a slot names a row that is not there.
    pub fn temporal_attention(&mut self, args: TemporalAttention<'_>) -> Var {
        let shape = self.attention_shape(&args);
        let (queries, seeds) = (self.value(args.query).rows(), shape.seeds);
        // A GPU encodes the times again.
        let encoded = if *self.device() == Device::Cpu { seeds * shape.slots } else { 0 };
        let mut saved = Attention {
            q: self.room(queries, shape.model),
            u: self.room(queries, shape.heads * shape.padded),
            y: self.room(seeds, shape.heads * shape.padded),
            weights: self.room(seeds, shape.heads * shape.slots),
            phi: self.room(encoded, shape.time),
            uploads: None,
            query: args.query,
            tail: args.tail,
            queries: args.queries,
            nodes: args.nodes,
            w_q: args.w_q,
            w_k: args.w_k,
            w_v: args.w_v,
            time: args.time.clone(),
            dropout: if self.training() { args.dropout } else { 0.0 },
            key: args.key,
            shape,
            slots: args.slots,
            readers: args.readers,
            deltas: args.deltas,
            edge_rows: args.edge_rows,
            edge_slots: args.edge_slots,
        };
        let mut out = self.room(seeds, shape.model);
        match self.device() {
            Device::Cpu => saved.forward(self, &mut out),
            Device::Cuda(work) => saved.forward_on_gpu(work, self, &mut out),
        }
        if self.training() {
            return self.push(out, true, Some(Box::new(saved)));
        }
        for tensor in saved.tensors() {
            self.give(tensor);
        }
        self.push(out, false, None)
    }

    fn attention_shape(&self, args: &TemporalAttention<'_>) -> Shape {
        let parameters = self.parameters();
        let (queries, dq) = self.value(args.query).shape();
        let seeds = args.queries.as_ref().map_or(queries, |of| of.len());
        if let Some(of) = &args.queries {
            super::gather::check(of, queries);
        }
        let (rows, node) = self.value(args.nodes).shape();
        let edge = args.edge_rows.as_ref().map_or(0, |rows| rows.cols());
        let time = args.time.dim(parameters);
        let width = node + edge + time;
        let (model, slots) =
            (parameters.get(args.w_q).rows(), args.slots.len().checked_div(seeds).unwrap_or(0));
        assert!(
            args.heads > 0 && model % args.heads == 0,
            "attention: {model} columns in {} heads",
            args.heads
        );
        let dq = dq + args.tail.len();
        assert_eq!(parameters.get(args.w_q).cols(), dq, "attention: w_q for queries of {dq}");
        assert_eq!(parameters.get(args.w_k).shape(), (model, width), "attention: w_k for slots of {width}");
        assert_eq!(parameters.get(args.w_v).shape(), (model, width), "attention: w_v for slots of {width}");
        assert_eq!(
            args.slots.len(),
            seeds * slots,
            "attention: {} slots for {seeds} seeds",
            args.slots.len()
        );
        assert_eq!(args.deltas.len(), args.slots.len(), "attention: a time difference per slot");
        match args.slots.on_host() {
            Some(slots) => super::gather::check_slots(slots, rows),
            None => assert_eq!(node, 0, "attention: slots on a GPU of rows that are read"),
        }
        if let Some(readers) = &args.readers {
            let found = (readers.rows(), readers.place_count());
            assert_eq!(found, (rows, args.slots.len()), "attention: readers of rows by slots");
            let are_listed =
                |slots: &Arc<Vec<u32>>| InverseIndex::new(slots, rows).lists() == readers.lists();
            debug_assert!(args.slots.on_host().is_none_or(are_listed), "attention: readers by other slots");
        }
        let are_finite = |deltas: &Arc<Vec<f32>>| deltas.iter().all(|delta| delta.is_finite());
        debug_assert!(args.deltas.on_host().is_none_or(are_finite), "attention: times that are not finite");
        if let Some(edges) = &args.edge_rows {
            match &args.edge_slots {
                Some(at) => {
                    assert_eq!(at.len(), args.slots.len(), "attention: an edge row per slot");
                    at.check(&args.slots, edges.rows());
                }
                None => assert_eq!(edges.rows(), args.slots.len(), "attention: an edge row per slot"),
            }
        }
        Shape::new(seeds, slots, args.heads, model, [node, edge, time])
    }
}

impl Attention {
    fn source<'a>(&'a self, nodes: &'a Tensor) -> cpu::Source<'a> {
        cpu::Source {
            queries: self.queries.as_deref().map(Vec::as_slice),
            slots: self.slots.values(),
            nodes: nodes.data(),
            edges: self.edge_rows.as_ref().map_or(&[], |rows| rows.data()),
            edge_slots: self.edge_slots.as_ref().map(Places::values),
        }
    }

    fn forward(&mut self, tape: &Tape<'_>, out: &mut Tensor) {
        let s = self.shape;
        let (w_q, w_k, w_v) = (
            tape.parameters().get(self.w_q),
            tape.parameters().get(self.w_k),
            tape.parameters().get(self.w_v),
        );
        let (query, into) = (tape.value(self.query), self.begin_queries(w_q));
        matmul(self.q.view_mut(), into, 1.0, query.view(), before_tail(w_q, &self.tail).t());
        for h in 0..s.heads {
            let u = s.block_mut(self.u.data_mut(), h);
            matmul(u, Into::Replace, s.scale(), s.head(self.q.data(), h), s.weight(w_k.data(), h));
        }
        s.clear_padding(self.u.data_mut());
        let (w, b) = self.time.weights(tape.parameters());
        let [mut y, mut weights, mut phi] =
            [&mut self.y, &mut self.weights, &mut self.phi].map(std::mem::take);
        let source = self.source(tape.value(self.nodes));
        let mut results = cpu::Forward { y: y.data_mut(), weights: weights.data_mut(), phi: phi.data_mut() };
        let clock = cpu::Clock { deltas: self.deltas.values(), w, b };
        let mask = cpu::Mask { p: self.dropout, key: self.key };
        cpu::forward(&s, &source, &clock, mask, self.u.data(), &mut results);
        (self.y, self.weights, self.phi) = (y, weights, phi);
        for h in 0..s.heads {
            let o = s.head_mut(out.data_mut(), h);
            matmul(o, Into::Replace, 1.0, s.block(self.y.data(), h), s.weight(w_v.data(), h).t());
        }
    }

    /// Fills the queries with what the tail adds to each, if there is one; returns what is to be done with the rest.
    fn begin_queries(&mut self, w_q: &Tensor) -> Into {
        if self.tail.is_empty() {
            return Into::Replace;
        }
        let rows = w_q.data().chunks_exact(w_q.cols());
        let tails = rows.map(|row| &row[w_q.cols() - self.tail.len()..]);
        let added: Vec<f32> = tails.map(|row| sum([row, &self.tail], |[w, x]| w * x)).collect();
        fill_rows(self.q.data_mut(), &added);
        Into::Add
    }

    fn tensors(self) -> impl Iterator<Item = Tensor> {
        [self.q, self.u, self.y, self.weights, self.phi].into_iter()
    }

    /// The whole backward on the CPU, given the gradient of the result.
    fn backward_on_cpu(self, d: Tensor, walk: &mut Walk<'_>) {
        let s = self.shape;
        let dy = self.backward_output(&d, walk);
        let learned = matches!(self.time, TimeEncoder::Trained { .. });
        let columns = cpu::SlotColumns::new(&s, walk.needs(self.nodes), learned);
        let mut du = walk.take(s.seeds, s.heads * s.padded);
        let mut dx = walk.take(s.seeds * s.slots, columns.width());
        let saved = cpu::Saved {
            u: self.u.data(),
            dy: dy.data(),
            weights: self.weights.data(),
            phi: self.phi.data(),
        };
        let mask = cpu::Mask { p: self.dropout, key: self.key };
        let mut results = cpu::Gradients { du: du.data_mut(), dx: dx.data_mut(), columns };
        cpu::backward(&s, &self.source(walk.value(self.nodes)), mask, &saved, &mut results);
        let du = self.by_query(du, walk);
        self.backward_query(&du, walk);
        walk.flow_with(self.nodes, |dn, overwrite| self.add_up(dn, overwrite, &dx));
        if let TimeEncoder::Trained { w, b } = self.time {
            let first = columns.width().saturating_sub(s.time);
            time::backward(walk, (w, b), &self.deltas, (&dx, first));
        }
        [d, dy, du, dx].into_iter().for_each(|t| walk.give(t));
        let pool = walk.pool();
        self.tensors().for_each(|t| pool.give(t));
    }

    /// Adds up what flows back into the rows of nodes, the first columns of `dx`.
    fn add_up(&self, dn: &mut Tensor, overwrite: bool, dx: &Tensor) {
        match &self.readers {
            Some(readers) => super::gather::add_up_read(dn, overwrite, readers, dx),
            None => super::gather::add_up(dn, overwrite, self.slots.values(), dx),
        }
    }

    /// Adds to the gradient of `w_v`; returns the gradient of `y`.
    fn backward_output(&self, d: &Tensor, walk: &mut Walk<'_>) -> Tensor {
        let s = self.shape;
        let w_v = walk.parameter(self.w_v);
        let mut dy = walk.take(s.seeds, s.heads * s.padded);
        let (dw, overwrite) = walk.gradient(self.w_v);
        for h in 0..s.heads {
            let dw = s.weight_mut(dw.data_mut(), h);
            matmul(dw, Into::over(overwrite), 1.0, s.head(d.data(), h).t(), s.block(self.y.data(), h));
            let (block, d) = (s.block_mut(dy.data_mut(), h), s.head(d.data(), h));
            matmul(block, Into::Replace, 1.0, d, s.weight(w_v.data(), h));
        }
        s.clear_padding(dy.data_mut());
        dy
    }

    /// The gradient of `u`, given that by seed.
    fn by_query(&self, du: Tensor, walk: &mut Walk<'_>) -> Tensor {
        let Some(of) = &self.queries else { return du };
        let mut sums = walk.take(self.u.rows(), du.cols());
        super::gather::add_up(&mut sums, true, of, &du);
        walk.give(du);
        sums
    }

    /// Adds to the gradients of `w_k`, `w_q` and the query, given the gradient of `u`.
    fn backward_query(&self, du: &Tensor, walk: &mut Walk<'_>) {
        let s = self.shape;
        let (w_q, w_k, query) = (walk.parameter(self.w_q), walk.parameter(self.w_k), walk.value(self.query));
        let mut dq = walk.take(query.rows(), s.model);
        let (dw, overwrite) = walk.gradient(self.w_k);
        for h in 0..s.heads {
            let dw = s.weight_mut(dw.data_mut(), h);
            matmul(dw, Into::over(overwrite), s.scale(), s.head(self.q.data(), h).t(), s.block(du.data(), h));
            let (head, block) = (s.head_mut(dq.data_mut(), h), s.block(du.data(), h));
            matmul(head, Into::Replace, s.scale(), block, s.weight(w_k.data(), h).t());
        }
        let (dw, overwrite) = walk.gradient(self.w_q);
        let (rows, cols, tail) = (dw.rows(), dw.cols(), self.tail.len());
        let first = ViewMut::strided(dw.data_mut(), rows, cols - tail, cols);
        matmul(first, Into::over(overwrite), 1.0, dq.view().t(), query.view());
        if tail > 0 {
            let mut sums = vec![0.0; s.model];
            column_sums(&mut sums, dq.data(), true);
            for (row, sum) in dw.data_mut().chunks_exact_mut(cols).zip(sums) {
                let values = self.tail.iter().map(|value| sum * value).collect::<Vec<f32>>();
                accumulate(&mut row[cols - tail..], &values, overwrite);
            }
        }
        walk.flow_with(self.query, |d, overwrite| {
            matmul(d.view_mut(), Into::over(overwrite), 1.0, dq.view(), before_tail(w_q, &self.tail));
        });
        walk.give(dq);
    }
}

impl Backward for Attention {
    fn backward(self: Box<Self>, _result: Var, d: Tensor, walk: &mut Walk<'_>) {
        match walk.device {
            Device::Cpu => self.backward_on_cpu(d, walk),
            Device::Cuda(work) => self.backward_on_gpu(work, d, walk),
        }
    }

    fn release(self: Box<Self>, pool: &mut TapePool) {
        self.tensors().for_each(|t| pool.give(t));
    }
}
