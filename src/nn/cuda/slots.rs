//! What is done with the slots of seeds: their rows made, mixed and reduced.

use std::sync::Arc;

use super::time::Waves;
use super::{rows_of, whole_mut};
use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{
    MixingSizes, MixingWeights, join_rows, mix_backward_slots, mix_slots, mixing_pieces, reduce_slots,
    spread_slots, sum_pieces, time_encode,
};
use crate::device::cuda::twins::Mask;
use crate::nn::Tensor;
