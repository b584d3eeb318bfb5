//! One step of Adam over one tensor or many, and the squares of their gradients, as `kernels/adam.cu` and `loss.cu`.

use std::sync::Arc;

use super::loss::{SQUARING, sum_squares};
use super::{Floats, squares_pieces};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::pooled_buffer::PooledBuffer;
use crate::device::cuda::twins::{ADAM_PIECE, AdamStep, AdamTensor};
use crate::device::cuda::work::CudaWork;

const THREADS: u32 = 256;
const MOVING: &str = "a bounded step of Adam";

kernels! {
    /// Moves `weights` by their `gradient`, and both moments with them; all four are equally long.
    pub fn adam = adam(
        step: AdamStep, weights: &mut Floats, (first, second): (&mut Floats, &mut Floats), gradient: &Floats,
    ) {
        let operation = "a step of Adam";
        let count = weights.len();
        let longest = gradient.len().max(first.len()).max(second.len());
        pass value(AdamStep, step), write(weights, longest, "weights"), write(first, count, "first moments"),
            write(second, count, "second moments"), read(gradient, count, "the gradient"), u64(count);
        grid count, THREADS;
        text "{count} weights";
        safe "All four have `count` values, and the kernel goes no further.";
    }

    /// Moves each of `tensors` by its gradient times the factor in `bound`; nothing happens where that is 0.
    fn move_all = adam_bounded_all(step: AdamStep, tensors: &Table, bound: &Floats) {
        let operation = MOVING;
        let (list, count) = (tensors.uploaded.get()?, tensors.uploaded.get()?.len());
        pass value(AdamStep, step), read(list, count, "tensors"), u32(count, "tensors"), u64(tensors.pieces),
            read(bound, 2, "norm and factor");
        grid tensors.pieces.saturating_mul(THREADS as usize), THREADS;
        text "{count} tensors in {} pieces", tensors.pieces;
        safe "Each piece belongs to a tensor of the table, whose four buffers have as many values as it states, and no
              buffer is written as two of them.";
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

/// Tensors of a list on a GPU, which have the values that it states, and their pieces together.
pub(super) struct Table {
    pub(super) uploaded: PooledBuffer<AdamTensor>,
    pub(super) pieces: usize,
}

impl Table {
    /// Of tensors with the pieces of each; one without any is left out.
    fn new(work: &Arc<CudaWork>, tensors: impl Iterator<Item = (AdamTensor, usize)>) -> Self {
        let mut pieces = 0;
        let place = |(tensor, own): (AdamTensor, usize)| {
            let before = pieces as u64;
            pieces += own;
            AdamTensor { before, ..tensor }
        };
        let list: Vec<AdamTensor> = tensors.filter(|(_, own)| *own > 0).map(place).collect();
        Self { uploaded: work.upload(&list), pieces }
    }
}

/// [`adam`] for many tensors in one launch, with gradients times the factor that
/// [`bound_norm`](super::bound_norm) left in `bound`; nothing happens where that is 0. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn adam_bounded_all(
    work: &Arc<CudaWork>,
    step: AdamStep,
    tensors: &mut [Moved<'_>],
    bound: &Floats,
) -> Result<(), CudaError> {
    let (cuda, stream) = work.context();
    let mut found = Launch::new(cuda, stream, MOVING);
    let mut list = Vec::with_capacity(tensors.len());
    for Moved { weights, first, second, gradient, count } in tensors {
        let count = *count;
        check_len(
            MOVING,
            &[
                ("weights", weights.len(), count),
                ("first moments", first.len(), count),
                ("second moments", second.len(), count),
                ("the gradient", gradient.len(), count),
            ],
        )?;
        let (weights, first, second) = (found.writing(weights), found.writing(first), found.writing(second));
        let gradient = found.reading(gradient);
        let tensor = AdamTensor { weights, first, second, gradient, count: count as u64, before: 0 };
        list.push((tensor, count.div_ceil(ADAM_PIECE as usize)));
    }
    found.found()?;
    move_all(work.context(), step, &Table::new(work, list.into_iter()), bound)
}

/// Sums of the squares of the first so many values of each of `gradients`, one for each of their
/// [`squares_pieces`], one tensor behind the other, in one launch. Does not wait.
///
/// # Errors
/// As for [`adam_bounded_all`].
pub fn squares_of_all(
    work: &Arc<CudaWork>,
    gradients: &[(&Floats, usize)],
    partials: &mut CudaBuffer<f64>,
) -> Result<(), CudaError> {
    let (cuda, stream) = work.context();
    let mut found = Launch::new(cuda, stream, SQUARING);
    let mut list = Vec::with_capacity(gradients.len());
    for &(gradient, count) in gradients {
        check_len(SQUARING, &[("a gradient", gradient.len(), count)])?;
        let tensor =
            AdamTensor { gradient: found.reading(gradient), count: count as u64, ..AdamTensor::default() };
        list.push((tensor, squares_pieces(count)));
    }
    found.found()?;
    sum_squares(work.context(), &Table::new(work, list.into_iter()), partials)
}
