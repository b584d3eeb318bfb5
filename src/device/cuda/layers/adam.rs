//! One step of Adam over one tensor or many, and the squares of their gradients, as `kernels/adam.cu` and `loss.cu`.

use std::sync::Arc;

use super::{Floats, grid, squares_pieces};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, to_u32};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::twins::{ADAM_PIECE, AdamStep, AdamTensor, Address};
use crate::device::cuda::work::CudaWork;

const THREADS: u32 = 256;

kernels! {
    // step, tensors, count, pieces, bound.
    by_hand "adam_bounded_all"(AdamStep, Address, u32, u64, Address);

    /// Moves `weights` by their `gradient`, and both moments with them; all four are equally long.
    fn adam = adam(
        step: AdamStep, weights: &mut Floats, (first, second): (&mut Floats, &mut Floats), gradient: &Floats,
    ) {
        let operation = "a step of Adam";
        let count = weights.len();
        let longest = gradient.len().max(first.len()).max(second.len());
        pass value(AdamStep, step), write(weights, longest, "weights"), write(first, count, "first moments"),
            write(second, count, "second moments"), read(gradient, count, "the gradient"), u64(count);
        grid count, THREADS;
        skip count == 0;
        text "{count} weights";
        safe "All four have `count` values, and the kernel goes no further.";
    }
}

/// A tensor that a step moves: the first `count` values of each.
pub struct Moved<'a> {
    /// What moves.
    pub weights: &'a mut Floats,
    /// First moments.
    pub first: &'a mut Floats,
    /// Second moments.
    pub second: &'a mut Floats,
    /// By what it moves.
    pub gradient: &'a Floats,
    /// Values that count.
    pub count: usize,
}

/// Tensors of a table, and their pieces together.
#[derive(Default)]
struct Table {
    tensors: Vec<AdamTensor>,
    pieces: usize,
}

impl Table {
    /// One more behind the others, in so many pieces; one without any is left out.
    fn push(&mut self, tensor: AdamTensor, pieces: usize) {
        if pieces > 0 {
            self.tensors.push(AdamTensor { before: self.pieces as u64, ..tensor });
            self.pieces += pieces;
        }
    }
}

/// [`adam`] for many tensors in one launch, with gradients times the factor that
/// [`bound_norm`](super::bound_norm) left in `bound`; nothing happens where that is 0. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
#[allow(unsafe_code)]
pub fn adam_bounded_all(
    work: &Arc<CudaWork>,
    step: AdamStep,
    tensors: &mut [Moved<'_>],
    bound: &Floats,
) -> Result<(), CudaError> {
    let operation = "a bounded step of Adam";
    check_len(operation, &[("norm and factor", bound.len(), 2)])?;
    let (cuda, stream) = work.context();
    let mut launch = Launch::new(cuda, stream, operation);
    let mut table = Table::default();
    for moved in tensors {
        let count = moved.count;
        check_len(
            operation,
            &[
                ("weights", moved.weights.len(), count),
                ("first moments", moved.first.len(), count),
                ("second moments", moved.second.len(), count),
                ("the gradient", moved.gradient.len(), count),
            ],
        )?;
        let tensor = AdamTensor {
            weights: launch.writing(moved.weights),
            first: launch.writing(moved.first),
            second: launch.writing(moved.second),
            gradient: launch.reading(moved.gradient),
            count: count as u64,
            before: 0,
        };
        table.push(tensor, count.div_ceil(ADAM_PIECE as usize));
    }
    if table.pieces == 0 {
        return Ok(());
    }
    let (count, pieces) = (to_u32(operation, "tensors", table.tensors.len())?, table.pieces as u64);
    let table = work.upload(&table.tensors);
    let launch = launch.number(step).reads(table.get()?).number(count).number(pieces).reads(bound);
    let grid = grid(cuda, pieces.saturating_mul(u64::from(THREADS)), THREADS);
    // SAFETY: each piece belongs to a tensor of the table, whose four buffers have as many values as it states, and no
    // buffer is written as two of them; the bound has two values.
    unsafe { launch.run("adam_bounded_all", grid, || format!("{count} tensors in {pieces} pieces")) }
}

/// Sums of the squares of the first so many values of each of `gradients`, one for each of their
/// [`squares_pieces`], one tensor behind the other, in one launch. Does not wait.
///
/// # Errors
/// As for [`adam_bounded_all`].
#[allow(unsafe_code)]
pub fn squares_of_all(
    work: &Arc<CudaWork>,
    gradients: &[(&Floats, usize)],
    partials: &mut CudaBuffer<f64>,
) -> Result<(), CudaError> {
    let operation = "sums of squares";
    let (cuda, stream) = work.context();
    let mut launch = Launch::new(cuda, stream, operation);
    let mut table = Table::default();
    for &(gradient, count) in gradients {
        check_len(operation, &[("a gradient", gradient.len(), count)])?;
        let gradient = launch.reading(gradient);
        let tensor = AdamTensor { gradient, count: count as u64, ..AdamTensor::default() };
        table.push(tensor, squares_pieces(count));
    }
    check_len(operation, &[("partial sums", partials.len(), table.pieces)])?;
    if table.pieces == 0 {
        return Ok(());
    }
    let (count, pieces) = (to_u32(operation, "tensors", table.tensors.len())?, table.pieces as u64);
    let table = work.upload(&table.tensors);
    let launch = launch.reads(table.get()?).number(count).number(pieces).writes(partials);
    let grid = grid(cuda, pieces.saturating_mul(u64::from(THREADS)), THREADS);
    // SAFETY: each piece belongs to a tensor of the table, whose gradient has as many values as it states, and has a
    // sum.
    unsafe { launch.run("squares_of_all", grid, || format!("{count} tensors in {pieces} pieces")) }
}
