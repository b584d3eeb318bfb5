//! What a step learns from, and how far it goes, as `kernels/loss.cu`, which has the formulas. Nothing here waits: the
//! bound of the gradients' norm is applied on the GPU, by [`adam_bounded_all`](super::adam_bounded_all).

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Grid, Launch, hold, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::module::Entry;
use crate::device::cuda::twins::{Address, SQUARES_PIECE};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // logits, target, count, loss.
    Entry { name: "bce", parameters: takes![Address, f32, u64, Address] },
    // logits, target, scale, count, d.
    Entry { name: "bce_backward", parameters: takes![Address, f32, Address, u64, Address] },
    // tensors, count, pieces, partials.
    Entry { name: "squares_of_all", parameters: takes![Address, u32, u64, Address] },
    // partials, pieces, most, loss, bound.
    Entry { name: "bound_norm", parameters: takes![Address, u64, f32, Address, Address] },
];

const THREADS: u32 = 256;

/// `loss`, one value: the mean cross-entropy of the first `count` of `logits`, all with the same `target` in `[0, 1]`.
/// Does not wait.
///
/// # Errors
/// No logits, too little room, a buffer of another stream, or the driver's.
pub fn bce(
    (cuda, stream): Place<'_>,
    logits: &CudaBuffer<f32>,
    target: f32,
    count: usize,
    loss: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a cross-entropy";
    hold(
        operation,
        &[("values to average", count, 1), ("logits", logits.len(), count), ("the loss", loss.len(), 1)],
    )?;
    let launch = Launch::new(cuda, stream, operation).reads(logits).number(target).number(count as u64);
    let grid = Grid { blocks: 1, threads: THREADS };
    // SAFETY: there are as many logits as the kernel goes through, and a loss.
    unsafe { launch.writes(loss).run("bce", grid, || format!("{count} logits")) }
}

/// The first `count` of `d` become the gradient of the logits of [`bce`], given that of the loss: `scale`, one value.
/// Does not wait.
///
/// # Errors
/// As for [`bce`].
pub fn bce_backward(
    (cuda, stream): Place<'_>,
    logits: &CudaBuffer<f32>,
    target: f32,
    scale: &CudaBuffer<f32>,
    count: usize,
    d: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a cross-entropy backward";
    hold(
        operation,
        &[
            ("values to average", count, 1),
            ("logits", logits.len(), count),
            ("the loss's gradient", scale.len(), 1),
            ("gradients", d.len(), count),
        ],
    )?;
    let launch = Launch::new(cuda, stream, operation).reads(logits).number(target).reads(scale);
    let launch = launch.number(count as u64).writes(d);
    let grid = grid(cuda, count as u64, THREADS);
    // SAFETY: there are as many logits and gradients as the kernel goes through, and a scale.
    unsafe { launch.run("bce_backward", grid, || format!("{count} logits")) }
}

/// Pieces that so many values are squared and summed by.
#[must_use]
pub fn squares_pieces(count: usize) -> usize {
    count.div_ceil(SQUARES_PIECE as usize)
}

/// `bound`, two values: the norm of everything whose squares are summed in `partials`, and the factor that keeps it
/// from being more than `most`; 0 where norm or `loss` is not finite. Does not wait.
///
/// # Errors
/// Too little room, a buffer of another stream, or the driver's.
pub fn bound_norm(
    (cuda, stream): Place<'_>,
    partials: &CudaBuffer<f64>,
    most: f32,
    loss: &CudaBuffer<f32>,
    bound: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "bounding gradients";
    hold(operation, &[("the loss", loss.len(), 1), ("norm and factor", bound.len(), 2)])?;
    let pieces = partials.len() as u64;
    let launch = Launch::new(cuda, stream, operation).reads(partials).number(pieces).number(most);
    let launch = launch.reads(loss).writes(bound);
    let grid = Grid { blocks: 1, threads: THREADS };
    // SAFETY: the kernel reads the partial sums and the loss, and writes two values.
    unsafe { launch.run("bound_norm", grid, || format!("{pieces} partial sums")) }
}
