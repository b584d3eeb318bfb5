//! Temporal attention over slots, in folded form: the products around the fused pass of
//! [`Attention`](crate::device::cuda::layers::Attention).

use std::sync::Arc;

use super::linear::Sums;
use super::time::Waves;
use super::{whole, whole_mut};
use crate::device::Device;
use crate::device::cuda::layers::{
    Attention, AttentionBackward, AttentionForward, AttentionSizes, Layout, LinearSizes, Put, linear_forward,
    linear_input,
};
use crate::device::cuda::twins::Mask;
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, PooledBuffer};
use crate::nn::Tensor;

/// Sizes of an attention whose heads are `model` columns together.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Seeds, slots and columns.
    pub sizes: AttentionSizes,
    /// Columns of all heads.
    pub model: usize,
}

impl Shape {
    fn head(&self) -> usize {
        self.model / self.sizes.heads
    }

    /// Columns of a slot's row.
    fn slot(&self) -> usize {
        self.sizes.node + self.sizes.edge + self.sizes.time
    }

    /// Columns of u and y, all heads together.
    fn blocks(&self) -> usize {
        self.sizes.heads * self.sizes.padded()
    }

    /// Parts of rows of u and y, by head.
    fn block_parts(&self) -> Layout {
        Layout::dense(self.blocks()).parts(self.sizes.padded())
    }

    /// Parts of rows of the attention, by head.
    fn head_parts(&self) -> Layout {
        Layout::dense(self.model).parts(self.head())
    }

    /// Rows of a weight between slots and the attention, by head.
    fn weight_parts(&self) -> Layout {
        Layout::dense(self.slot()).parts(self.head() * self.slot())
    }

    /// Products with such a weight.
    fn folded(&self, rows: usize, scale: f32) -> LinearSizes {
        LinearSizes::new([rows, self.slot(), self.head()]).parts(self.sizes.heads, scale)
    }

    /// What keeps scores from growing with the width of a head.
    fn scale(&self) -> f32 {
        1.0 / (self.head() as f32).sqrt()
    }
}

/// What both directions read that comes from the CPU. Edge rows may be on the GPU already.
pub struct Uploads {
    queries: Option<PooledBuffer<u32>>,
    slots: PooledBuffer<u32>,
    deltas: PooledBuffer<f32>,
    edges: Arc<Tensor>,
    edge_slots: Option<PooledBuffer<u32>>,
}

impl Uploads {
    /// Of lists by seed and by slot, and of rows of edges.
    pub fn new(
        work: &Arc<CudaWork>,
        (queries, slots, deltas): (Option<&[u32]>, &[u32], &[f32]),
        (edges, edge_slots): (Option<&Arc<Tensor>>, Option<&[u32]>),
    ) -> Self {
        let there = Device::Cuda(work.clone());
        let edges = match edges {
            Some(edges) if *edges.device() == there => edges.clone(),
            Some(edges) => Arc::new(edges.to(&there)),
            None => Arc::new(Tensor::zeros(&there, 0, 0)),
        };
        Self {
            queries: queries.map(|list| work.upload(list)),
            slots: work.upload(slots),
            deltas: work.upload(deltas),
            edges,
            edge_slots: edge_slots.map(|list| work.upload(list)),
        }
    }

    /// Time differences by slot.
    pub fn deltas(&self) -> &PooledBuffer<f32> {
        &self.deltas
    }
}

/// What the fused pass reads in both directions.
pub struct Given<'a> {
    pub shape: Shape,
    pub uploads: &'a Uploads,
    pub nodes: &'a Tensor,
    pub waves: Waves<'a>,
    pub mask: Mask,
}

impl Given<'_> {
    fn pass<'b>(
        &'b self,
        work: &'b CudaWork,
        u: &'b CudaBuffer<f32>,
        rows: usize,
    ) -> Result<Attention<'b>, CudaError> {
        let up = self.uploads;
        Ok(Attention {
            context: work.context(),
            sizes: self.shape.sizes,
            queries: up.queries.as_ref().map(PooledBuffer::get).transpose()?,
            slots: up.slots.get()?,
            edge_slots: up.edge_slots.as_ref().map(PooledBuffer::get).transpose()?,
            nodes: (self.nodes.on_gpu()?, self.nodes.rows()),
            edges: (up.edges.on_gpu()?, up.edges.rows()),
            deltas: up.deltas.get()?,
            encoding: self.waves.get()?,
            mask: self.mask,
            u: (u, rows),
        })
    }
}

/// What is asked of slots: `q = query W_Q^T`, and `u`, what it asks of their rows.
pub fn ask(
    work: &CudaWork,
    shape: Shape,
    (q, u): (&mut Tensor, &mut Tensor),
    query: &Tensor,
    (w_q, w_k): (&Tensor, &Tensor),
) {
    let (rows, width) = query.shape();
    u.clear();
    work.run(|context| {
        let sizes = LinearSizes::new([rows, width, shape.model]);
        linear_forward(context, sizes, whole(query)?, whole(w_q)?, None, Put::REPLACE, whole_mut(q)?)?;
        let (from, weights) = ((q.on_gpu()?, shape.head_parts()), (w_k.on_gpu()?, shape.weight_parts()));
        let into = (u.on_gpu_mut()?, shape.block_parts());
        linear_input(context, shape.folded(rows, shape.scale()), from, weights, Put::REPLACE, into)
    });
}

/// The weighted sums of slots `y`, the weights, and what seeds learn of them: `out`.
pub fn attend(
    work: &CudaWork,
    given: &Given<'_>,
    u: &Tensor,
    (y, weights, out): (&mut Tensor, &mut Tensor, &mut Tensor),
    w_v: &Tensor,
) {
    let shape = given.shape;
    work.run(|context| {
        let pass = given.pass(work, u.on_gpu()?, u.rows())?;
        pass.forward(AttentionForward { y: y.on_gpu_mut()?, weights: weights.on_gpu_mut()? })?;
        let (from, weights) = ((y.on_gpu()?, shape.block_parts()), (w_v.on_gpu()?, shape.weight_parts()));
        let (sizes, into) = (shape.folded(shape.sizes.seeds, 1.0), (out.on_gpu_mut()?, shape.head_parts()));
        linear_forward(context, sizes, from, weights, None, Put::REPLACE, into)
    });
}

/// The gradient of `W_V` and that of `y`, given that of the result.
pub fn backward_output(
    work: &Arc<CudaWork>,
    shape: Shape,
    (d, y, w_v): (&Tensor, &Tensor, &Tensor),
    (dw, overwrite): (&mut Tensor, bool),
    dy: &mut Tensor,
) {
    let sizes = shape.folded(shape.sizes.seeds, 1.0);
    let mut sums = Sums::new(work, shape.sizes.seeds, dw.data_len());
    dy.clear();
    work.run(|context| {
        let given = (d.on_gpu()?, shape.head_parts());
        sums.weights(sizes, given, (y.on_gpu()?, shape.block_parts()), shape.weight_parts())?;
        let (weights, into) =
            ((w_v.on_gpu()?, shape.weight_parts()), (dy.on_gpu_mut()?, shape.block_parts()));
        linear_input(context, sizes, given, weights, Put::REPLACE, into)
    });
    sums.finish(dw, overwrite);
}

/// The gradients of `u` by seed, and of slots' rows as far as they are wanted: the node's, the encoding's.
pub fn backward_slots(
    work: &CudaWork,
    given: &Given<'_>,
    (u, y, weights): (&Tensor, &Tensor, &Tensor),
    dy: &Tensor,
    wanted: (bool, bool),
    (du, dx): (&mut Tensor, &mut Tensor),
) {
    work.run(|_| {
        given.pass(work, u.on_gpu()?, u.rows())?.backward(AttentionBackward {
            y: y.on_gpu()?,
            weights: weights.on_gpu()?,
            dy: dy.on_gpu()?,
            wanted,
            du: du.on_gpu_mut()?,
            dx: dx.on_gpu_mut()?,
        })
    });
}

/// The gradient of `W_K` and that of `q`, given that of `u` by query.
pub fn backward_key(
    work: &Arc<CudaWork>,
    shape: Shape,
    (du, q, w_k): (&Tensor, &Tensor, &Tensor),
    (dw, overwrite): (&mut Tensor, bool),
    dq: &mut Tensor,
) {
    let rows = q.rows();
    let sizes = shape.folded(rows, shape.scale());
    let mut sums = Sums::new(work, rows, dw.data_len());
    work.run(|context| {
        let given = (du.on_gpu()?, shape.block_parts());
        sums.weights(sizes, (q.on_gpu()?, shape.head_parts()), given, shape.weight_parts())?;
        let (weights, into) = ((w_k.on_gpu()?, shape.weight_parts()), (dq.on_gpu_mut()?, shape.head_parts()));
        linear_forward(context, sizes, given, weights, None, Put::REPLACE, into)
    });
    sums.finish(dw, overwrite);
}
