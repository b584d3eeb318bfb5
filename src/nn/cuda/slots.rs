//! What is done with the slots of seeds: their rows made, mixed and reduced.

use std::sync::Arc;

use super::time::Waves;
use crate::device::cuda::CudaWork;
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
pub fn reduce(work: &Arc<CudaWork>, _y: &mut Tensor, _x: &Tensor, _counts: &[u32], _mean: bool) { work.refuse("wip") }
pub fn reduce_backward(work: &Arc<CudaWork>, _dx: &mut Tensor, _d: &Tensor, _counts: &[u32], _mean: bool) { work.refuse("wip") }
pub fn mix(work: &Arc<CudaWork>, _y: &mut Tensor, _x: &Tensor, _w: [&Tensor; 6], _m: Mixing) { work.refuse("wip") }
pub fn mix_backward(work: &Arc<CudaWork>, _d: &mut Tensor, _x: &Tensor, _w: [&Tensor; 6], _m: Mixing) -> Tensor { work.refuse("wip"); Tensor::default() }
pub fn slot_rows(work: &Arc<CudaWork>, _out: &mut Tensor, _nodes: (&Tensor, &[u32]), _edges: (&Tensor, &[u32]), _t: (&[f32], &Waves<'_>)) { work.refuse("wip") }
