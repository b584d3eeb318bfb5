//! The same on a GPU: which products stand around the fused pass.

use std::sync::Arc;

use super::super::{linear, time};
use super::Attention;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::AttentionSizes;
use crate::device::cuda::twins::Mask;
use crate::nn::cpu::attention::Shape;
use crate::nn::cuda::attention as cuda;
use crate::nn::cuda::gather::scatter_add;
use crate::nn::cuda::time::Waves;
use crate::nn::tape::Walk;
use crate::nn::{Parameters, Tape, Tensor, TimeEncoder};

impl Attention {
    /// Sizes as a GPU has them.
    fn gpu_shape(&self) -> cuda::Shape {
        let Shape { seeds, slots, heads, model, node, edge, time, .. } = self.shape;
        cuda::Shape { sizes: AttentionSizes { seeds, slots, heads, node, edge, time }, model }
    }

    fn given<'a>(
        &'a self,
        work: &Arc<CudaWork>,
        nodes: &'a Tensor,
        parameters: &'a Parameters,
    ) -> Option<cuda::Given<'a>> {
        let (waves, mask) = (Waves::of(work, &self.time, parameters), Mask::new(self.dropout, self.key));
        let (shape, uploads) = (self.gpu_shape(), self.uploads.as_ref()?);
        Some(cuda::Given { shape, uploads, nodes, waves, mask })
    }

    pub(super) fn forward_on_gpu(&mut self, work: &Arc<CudaWork>, tape: &Tape<'_>, out: &mut Tensor) {
        let parameters = tape.parameters();
        let [w_q, w_k, w_v] = [self.w_q, self.w_k, self.w_v].map(|id| parameters.get(id));
        let queries = self.queries.as_deref().map(Vec::as_slice);
        let edges = (self.edge_rows.as_ref(), self.edge_slots.as_deref());
        let uploads = cuda::Uploads::new(work, (queries, &self.slots, &self.deltas), edges);
        self.uploads = Some(uploads);
        let shape = self.gpu_shape();
        cuda::ask(work, shape, (&mut self.q, &mut self.u), tape.value(self.query), (w_q, w_k));
        let [mut y, mut weights] = [&mut self.y, &mut self.weights].map(std::mem::take);
        if let Some(given) = self.given(work, tape.value(self.nodes), parameters) {
            cuda::attend(work, &given, &self.u, (&mut y, &mut weights, out), w_v);
        }
        (self.y, self.weights) = (y, weights);
    }

    /// The whole backward on a GPU, given the gradient of the result.
    pub(super) fn backward_on_gpu(&self, work: &Arc<CudaWork>, d: &Tensor, walk: &mut Walk<'_>) {
        let (shape, s) = (self.gpu_shape(), self.shape);
        let [w_q, w_k, w_v] = [self.w_q, self.w_k, self.w_v].map(|id| walk.parameter(id));
        let (nodes, query) = (walk.value(self.nodes), walk.value(self.query));
        let blocks = s.heads * shape.sizes.padded();
        let mut dy = walk.take(s.seeds, blocks);
        cuda::backward_output(work, shape, (d, &self.y, w_v), walk.gradient(self.w_v), &mut dy);
        let learned = matches!(self.time, TimeEncoder::Trained { .. });
        let wanted = (walk.needs(self.nodes), learned);
        let columns = if wanted.0 { s.node } else { 0 } + if learned { s.time } else { 0 };
        let (mut du, mut dx) = (walk.take(s.seeds, blocks), walk.take(s.seeds * s.slots, columns));
        let Some(given) = self.given(work, nodes, walk.parameters()) else { return };
        let saved = (&self.u, &self.y, &self.weights);
        cuda::backward_slots(work, &given, saved, &dy, wanted, (&mut du, &mut dx));
        let du = self.by_query(du, walk);
        let mut dq = walk.take(query.rows(), s.model);
        cuda::backward_key(work, shape, (&du, &self.q, w_k), walk.gradient(self.w_k), &mut dq);
        linear::backward_parameters(walk, &dq, query, self.w_q, None);
        walk.flow_with(self.query, |d, overwrite| linear::backward_input(d, overwrite, &dq, w_q));
        walk.flow_with(self.nodes, |dn, overwrite| scatter_add(work, dn, &dx, &self.slots, overwrite));
        if let (TimeEncoder::Trained { w, b }, Some(uploads)) = (&self.time, &self.uploads) {
            time::backward_on_gpu(walk, (*w, *b), uploads.deltas(), (&dx, columns - s.time));
        }
        [dy, du, dx, dq].into_iter().for_each(|t| walk.give(t));
    }
}
