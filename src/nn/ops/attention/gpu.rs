//! The same on a GPU: which products stand around the fused pass of
//! [`attention_forward`](crate::device::cuda::layers::attention_forward).

use std::sync::Arc;

use super::super::{linear, time};
use super::Attention;
use crate::device::Device;
use crate::device::cuda::layers::{
    self, AttentionSizes, Layout, LinearSizes, Put, attention_backward, attention_forward, linear_forward,
    linear_input,
};
use crate::device::cuda::twins::Mask;
use crate::device::cuda::{CudaError, CudaWork, PooledBuffer};
use crate::nn::cpu::attention::Shape;
use crate::nn::cuda::sums::{RowsRead, Sums, WeightProduct};
use crate::nn::cuda::time::Waves;
use crate::nn::cuda::{rows_to_read, whole, whole_mut};
use crate::nn::list::Sent;
use crate::nn::tape::Walk;
use crate::nn::{ParamId, Tape, Tensor, TimeEncoder};

/// What both directions read, on the GPU.
pub(super) struct Uploads {
    queries: Option<PooledBuffer<u32>>,
    slots: Sent<u32>,
    deltas: Sent<f32>,
    edges: Arc<Tensor>,
    edge_slots: Option<PooledBuffer<u32>>,
}

/// Products by head.
impl Shape {
    fn on_gpu(&self) -> AttentionSizes {
        let Shape { seeds, slots, heads, node, edge, time, .. } = *self;
        AttentionSizes { seeds, slots, heads, node, edge, time }
    }

    /// Parts of rows of u and y.
    fn block_parts(&self) -> Layout {
        let padded = self.on_gpu().padded();
        Layout::dense(self.heads * padded).parts(padded)
    }

    /// Parts of rows of the attention.
    fn head_parts(&self) -> Layout {
        Layout::dense(self.model).parts(self.head_width())
    }

    /// Rows of a weight between slots and the attention.
    fn weight_parts(&self) -> Layout {
        Layout::dense(self.width).parts(self.head_width() * self.width)
    }

    /// Products with such a weight.
    fn folded(&self, rows: usize, scale: f32) -> LinearSizes {
        let sizes = LinearSizes::new([rows, self.width, self.head_width()]);
        sizes.parts(self.heads, scale).padded(self.on_gpu().padded())
    }
}

impl Attention {
    fn upload(&self, work: &Arc<CudaWork>) -> Uploads {
        let there = Device::Cuda(work.clone());
        let edges = match &self.edge_rows {
            Some(edges) if *edges.device() == there => edges.clone(),
            Some(edges) => Arc::new(edges.to(&there)),
            None => Arc::new(Tensor::zeros(&there, 0, 0)),
        };
        Uploads {
            queries: self.queries.as_ref().map(|list| work.upload(list)),
            slots: self.slots.sent(work),
            deltas: self.deltas.sent(work),
            edges,
            edge_slots: self.edge_slots.as_ref().map(|places| places.sent(work)),
        }
    }

    /// What the fused pass reads in both directions.
    fn given<'a>(
        &'a self,
        uploads: &'a Uploads,
        nodes: &'a Tensor,
        waves: &'a Waves<'_>,
    ) -> Result<layers::Attention<'a>, CudaError> {
        Ok(layers::Attention {
            sizes: self.shape.on_gpu(),
            queries: uploads.queries.as_ref().map(PooledBuffer::get).transpose()?,
            slots: uploads.slots.get()?,
            edge_slots: uploads.edge_slots.as_ref().map(PooledBuffer::get).transpose()?,
            nodes: (nodes.on_gpu()?, rows_to_read(nodes)),
            edges: (uploads.edges.on_gpu()?, uploads.edges.rows()),
            deltas: uploads.deltas.get()?,
            encoding: waves.get()?,
            mask: Mask::new(self.dropout, self.key),
            u: (self.u.on_gpu()?, self.u.rows()),
        })
    }

    pub(super) fn forward_on_gpu(&mut self, work: &Arc<CudaWork>, tape: &Tape<'_>, out: &mut Tensor) {
        let parameters = tape.parameters();
        let [w_q, w_k, w_v] = [self.w_q, self.w_k, self.w_v].map(|id| parameters.get(id));
        let (s, query) = (self.shape, tape.value(self.query));
        let (rows, width) = query.shape();
        work.run(|context| {
            let (sizes, q) = (LinearSizes::new([rows, width, s.model]), whole_mut(&mut self.q)?);
            linear_forward(context, sizes, whole(query)?, whole(w_q)?, None, Put::REPLACE, q)?;
            let (q, weights) = ((self.q.on_gpu()?, s.head_parts()), (w_k.on_gpu()?, s.weight_parts()));
            let u = (self.u.on_gpu_mut()?, s.block_parts());
            linear_input(context, s.folded(rows, s.scale()), q, weights, Put::REPLACE, u)
        });
        let uploads = self.upload(work);
        let waves = Waves::of(work, &self.time, parameters);
        let [mut y, mut weights] = [&mut self.y, &mut self.weights].map(std::mem::take);
        work.run(|context| {
            let given = self.given(&uploads, tape.value(self.nodes), &waves)?;
            attention_forward(context, &given, (y.on_gpu_mut()?, weights.on_gpu_mut()?))?;
            let (y, weights) = ((y.on_gpu()?, s.block_parts()), (w_v.on_gpu()?, s.weight_parts()));
            let (sizes, into) = (s.folded(s.seeds, 1.0), (out.on_gpu_mut()?, s.head_parts()));
            linear_forward(context, sizes, y, weights, None, Put::REPLACE, into)
        });
        (self.y, self.weights, self.uploads) = (y, weights, Some(uploads));
    }

    /// Sums of the gradient of the weight of slots `id`, a product for each head of parts of the rows of `d` and `a`.
    fn weight_sums<'a>(
        work: &Arc<CudaWork>,
        sizes: LinearSizes,
        (d, a): ((Tensor, Layout), (Tensor, Layout)),
        (walk, id, at): (&mut Walk<'a>, ParamId, Layout),
    ) {
        let mut sums = Sums::over_rows(work, sizes.rows, walk.parameter(id).data_len());
        let [d, a] = [d, a].map(|(rows, layout)| (RowsRead::Made(Arc::new(rows)), layout));
        sums.add(WeightProduct { sizes, d, a, at, bias: None });
        sums.finish(walk, &[id]);
    }

    /// The whole backward on a GPU, given the gradient of the result.
    pub(super) fn backward_on_gpu(mut self, work: &Arc<CudaWork>, d: Tensor, walk: &mut Walk<'_>) {
        let Some(uploads) = self.uploads.take() else { return };
        let (s, nodes, query) = (self.shape, walk.value(self.nodes), walk.value(self.query));
        let (width, rows) = (self.u.cols(), query.rows());
        let mut dy = walk.take(s.seeds, width);
        // Of y.
        let (w_v, of_result) = (walk.parameter(self.w_v), s.folded(s.seeds, 1.0));
        work.run(|context| {
            let (weights, into) = ((w_v.on_gpu()?, s.weight_parts()), (dy.on_gpu_mut()?, s.block_parts()));
            linear_input(context, of_result, (d.on_gpu()?, s.head_parts()), weights, Put::REPLACE, into)
        });
        // Of u, and of slots' rows as far as they are wanted.
        let learned = matches!(self.time, TimeEncoder::Trained { .. });
        let wanted = (walk.needs(self.nodes), learned);
        let columns = if wanted.0 { s.node } else { 0 } + if learned { s.time } else { 0 };
        let (mut du, mut dx) = (walk.take(s.seeds, width), walk.take(s.seeds * s.slots, columns));
        let waves = Waves::of(work, &self.time, walk.parameters());
        work.run(|context| {
            let saved = (self.y.on_gpu()?, self.weights.on_gpu()?, dy.on_gpu()?);
            let results = (du.on_gpu_mut()?, dx.on_gpu_mut()?);
            attention_backward(context, &self.given(&uploads, nodes, &waves)?, saved, wanted, results)
        });
        // Of q, W_K, W_V, W_Q and the query.
        let (du, w_k, of_query) =
            (self.by_query(du, walk), walk.parameter(self.w_k), s.folded(rows, s.scale()));
        let mut dq = walk.take(rows, s.model);
        work.run(|context| {
            let (weights, into) = ((w_k.on_gpu()?, s.weight_parts()), (dq.on_gpu_mut()?, s.head_parts()));
            linear_forward(
                context,
                of_query,
                (du.on_gpu()?, s.block_parts()),
                weights,
                None,
                Put::REPLACE,
                into,
            )
        });
        let [y, q] = [&mut self.y, &mut self.q].map(std::mem::take);
        let (heads, blocks, at) = (s.head_parts(), s.block_parts(), s.weight_parts());
        Self::weight_sums(work, of_result, ((d, heads), (y, blocks)), (walk, self.w_v, at));
        Self::weight_sums(work, of_query, ((q, heads), (du, blocks)), (walk, self.w_k, at));
        let w_q = walk.parameter(self.w_q);
        walk.flow_with(self.query, |d, overwrite| linear::backward_input(d, overwrite, &dq, w_q));
        linear::backward_parameters(walk, Arc::new(dq), RowsRead::Lasting(query), self.w_q, None);
        walk.flow_with(self.nodes, |dn, overwrite| self.add_up(dn, overwrite, &dx));
        if let TimeEncoder::Trained { w, b } = self.time {
            time::backward_on_gpu(walk, (w, b), &uploads.deltas, (&dx, columns - s.time));
        }
    }
}
