//! One step of Adam over one tensor, as `kernels/adam.cu`.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::module::Entry;
use crate::device::cuda::twins::{AdamStep, Address};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // step, weights, first, second, gradient, count.
    Entry { name: "adam", parameters: takes![AdamStep, Address, Address, Address, Address, u64] },
    // step, weights, first, second, gradient, bound, count.
    Entry {
        name: "adam_bounded",
        parameters: takes![AdamStep, Address, Address, Address, Address, Address, u64],
    },
];

/// Moves `weights` by their `gradient`, and both moments with them; all four are equally long. Does not wait.
///
/// # Errors
/// Lengths that differ, a buffer of another stream, or the driver's.
pub fn adam(
    (cuda, stream): Place<'_>,
    step: AdamStep,
    weights: &mut CudaBuffer<f32>,
    (first, second): (&mut CudaBuffer<f32>, &mut CudaBuffer<f32>),
    gradient: &CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a step of Adam";
    let count = check(operation, weights, (&*first, &*second), gradient)?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).number(step).writes(weights).writes(first);
    let launch = launch.writes(second).reads(gradient).number(count as u64);
    // SAFETY: all four have `count` values, and the kernel goes no further.
    unsafe { launch.run("adam", grid(cuda, count as u64, 256), || format!("{count} weights")) }
}

/// The same with the gradient times the factor that [`bound_norm`](super::bound_norm) left in `bound`; nothing happens
/// where that is 0. Does not wait.
///
/// # Errors
/// As for [`adam`].
pub fn adam_bounded(
    (cuda, stream): Place<'_>,
    step: AdamStep,
    weights: &mut CudaBuffer<f32>,
    (first, second): (&mut CudaBuffer<f32>, &mut CudaBuffer<f32>),
    gradient: &CudaBuffer<f32>,
    bound: &CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a bounded step of Adam";
    let count = check(operation, weights, (&*first, &*second), gradient)?;
    hold(operation, &[("norm and factor", bound.len(), 2)])?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).number(step).writes(weights).writes(first);
    let launch = launch.writes(second).reads(gradient).reads(bound).number(count as u64);
    // SAFETY: the four have `count` values, and the kernel goes no further; the bound has two.
    unsafe { launch.run("adam_bounded", grid(cuda, count as u64, 256), || format!("{count} weights")) }
}

/// How many weights there are, if there is as much of everything else.
fn check(
    operation: &'static str,
    weights: &CudaBuffer<f32>,
    (first, second): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    gradient: &CudaBuffer<f32>,
) -> Result<usize, CudaError> {
    let count = weights.len();
    hold(
        operation,
        &[
            ("first moments", first.len(), count),
            ("second moments", second.len(), count),
            ("the gradient", gradient.len(), count),
            ("weights", count, gradient.len().max(first.len()).max(second.len())),
        ],
    )?;
    Ok(count)
}
