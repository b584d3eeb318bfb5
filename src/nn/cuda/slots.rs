//! What is done with the slots of seeds: their rows made, mixed and reduced.

use std::sync::Arc;

use super::rows_of;
use super::time::Waves;
use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{self, SlotTimes, reduce_slots, spread_slots};
use crate::device::cuda::twins::Mask;
use crate::nn::Tensor;

/// What a mixing is told beside rows and weights.
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
    work.run(|place| {
        reduce_slots(place, (filled.get()?, groups, slots), x.on_card()?, columns, mean, y.on_card_mut()?)
    });
}

/// The gradient of each row, given those of the groups; zeros for rows of nobody.
pub fn reduce_backward(work: &Arc<CudaWork>, dx: &mut Tensor, d: &Tensor, counts: &[u32], mean: bool) {
    let (filled, groups, columns) = (work.upload(counts), counts.len(), d.cols());
    let slots = dx.rows().checked_div(groups).unwrap_or(0);
    work.run(|place| {
        spread_slots(place, (filled.get()?, groups, slots), d.on_card()?, columns, mean, dx.on_card_mut()?)
    });
}
pub fn mix(work: &Arc<CudaWork>, _y: &mut Tensor, _x: &Tensor, _w: [&Tensor; 6], _m: Mixing) { work.refuse("wip") }
pub fn mix_backward(work: &Arc<CudaWork>, _d: &mut Tensor, _x: &Tensor, _w: [&Tensor; 6], _m: Mixing) -> Tensor { work.refuse("wip"); Tensor::default() }

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
    work.run(|place| {
        let parts = [rows_of(nodes, Some(node_list.get()?))?, rows_of(edges, Some(edge_list.get()?))?];
        let (w, b) = waves.get()?;
        let times = SlotTimes { deltas: deltas.get()?, w, b, columns };
        layers::slot_rows(place, parts, times, count, out.on_card_mut()?)
    });
}
