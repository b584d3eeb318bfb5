//! What is done with the slots of seeds: their rows made, mixed and reduced.

use std::sync::Arc;

use super::rows_of;
use super::time::Waves;
use crate::device::Device;
use crate::device::cuda::layers::{
    self, SlotMixer, SlotTimes, broadcast_slots, mixing_backward, mixing_forward, reduce_slots, sum_pieces,
};
use crate::device::cuda::twins::Mask;
use crate::device::cuda::{CudaError, CudaWork};
use crate::nn::Tensor;

/// Settings of a mixing beside rows and weights.
#[derive(Clone, Copy)]
pub struct Mixing {
    /// Added to the variance.
    pub eps: f32,
    /// Of the two layers.
    pub masks: [Mask; 2],
}

/// The sum, or the mean, of the first `counts[g]` of the rows of each group.
pub fn reduce(work: &Arc<CudaWork>, y: &mut Tensor, x: &Tensor, counts: &[u32], mean: bool) {
    let (filled, groups, columns) = (work.upload(counts), counts.len(), x.cols());
    let slots = x.rows().checked_div(groups).unwrap_or(0);
    work.run(|context| {
        reduce_slots(context, (filled.get()?, groups, slots), x.on_gpu()?, columns, mean, y.on_gpu_mut()?)
    });
}

/// The gradient of each row, given those of the groups; zeros for rows of nobody.
pub fn reduce_backward(work: &Arc<CudaWork>, dx: &mut Tensor, d: &Tensor, counts: &[u32], mean: bool) {
    let (filled, groups, columns) = (work.upload(counts), counts.len(), d.cols());
    let slots = dx.rows().checked_div(groups).unwrap_or(0);
    work.run(|context| {
        broadcast_slots(context, (filled.get()?, groups, slots), d.on_gpu()?, columns, mean, dx.on_gpu_mut()?)
    });
}

impl Mixing {
    /// The block over rows of `columns` values, and how many seeds have so many rows.
    fn of<'a>(
        self,
        [gamma, beta, w_a, b_a, w_b, b_b]: [&'a Tensor; 6],
        (rows, columns): (usize, usize),
    ) -> Result<(SlotMixer<'a>, usize), CudaError> {
        let (hidden, slots) = w_a.shape();
        let mixer = SlotMixer {
            slots,
            hidden,
            columns,
            gamma: gamma.on_gpu()?,
            beta: beta.on_gpu()?,
            w_a: w_a.on_gpu()?,
            b_a: b_a.on_gpu()?,
            w_b: w_b.on_gpu()?,
            b_b: b_b.on_gpu()?,
            eps: self.eps,
            masks: self.masks,
        };
        Ok((mixer, rows.checked_div(slots).unwrap_or(0)))
    }
}

/// The slots of each seed mixed.
pub fn mix(work: &CudaWork, y: &mut Tensor, x: &Tensor, weights: [&Tensor; 6], mixing: Mixing) {
    work.run(|context| {
        let (mixer, seeds) = mixing.of(weights, x.shape())?;
        mixing_forward(context, &mixer, seeds, x.on_gpu()?, y.on_gpu_mut()?)
    });
}

/// The gradient of `x` in the place of that of the result, and sums of those of the weights, one behind the other.
pub fn mix_backward(
    work: &Arc<CudaWork>,
    d: &mut Tensor,
    x: &Tensor,
    weights: [&Tensor; 6],
    mixing: Mixing,
) -> Tensor {
    let values = weights.iter().map(|weight| weight.data_len()).sum();
    let mut sums = Tensor::room(&Device::Cuda(work.clone()), 1, values);
    work.run(|context| {
        let (mixer, seeds) = mixing.of(weights, x.shape())?;
        let pieces = mixer.pieces(seeds);
        let mut partials = work.pooled(pieces * values);
        mixing_backward(context, &mixer, seeds, x.on_gpu()?, d.on_gpu_mut()?, partials.get_mut()?)?;
        sum_pieces(context, [pieces, values], partials.get()?, sums.on_gpu_mut()?, true)
    });
    sums
}

/// Clears the rows of empty slots.
pub fn clear_empty(work: &Arc<CudaWork>, d: &mut Tensor, slots: &[u32]) {
    let (list, columns) = (work.upload(slots), d.cols());
    work.run(|context| layers::clear_empty(context, list.get()?, slots.len(), columns, d.on_gpu_mut()?));
}

/// Node row, edge row and encoded time difference of each slot side by side, zeros in empty ones.
pub fn slot_rows(
    work: &Arc<CudaWork>,
    out: &mut Tensor,
    (nodes, node): (&Tensor, &[u32]),
    (edges, edge): (&Tensor, &[u32]),
    (deltas, waves): (&[f32], &Waves<'_>),
) {
    let there = Device::Cuda(work.clone());
    let (node_list, edge_list, deltas) = (work.upload(node), work.upload(edge), work.upload(deltas));
    let copied = (*edges.device() != there).then(|| edges.to(&there));
    let (edges, count) = (copied.as_ref().unwrap_or(edges), node.len());
    let columns = out.cols() - nodes.cols() - edges.cols();
    work.run(|context| {
        let parts = [rows_of(nodes, Some(node_list.get()?))?, rows_of(edges, Some(edge_list.get()?))?];
        let (w, b) = waves.get()?;
        let times = SlotTimes { deltas: deltas.get()?, w, b, columns };
        layers::slot_rows(context, parts, times, count, out.on_gpu_mut()?)
    });
}
