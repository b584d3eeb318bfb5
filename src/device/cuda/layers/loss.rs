//! What a step learns from, and how far it goes, as `kernels/loss.cu`, which has the formulas. Nothing here waits: the
//! bound of the gradients' norm is applied on the GPU, by [`adam_bounded_all`](super::adam_bounded_all).

use super::Floats;
use super::adam::Table;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::twins::SQUARES_PIECE;

const THREADS: u32 = 256;
pub(super) const SQUARING: &str = "sums of squares";

/// Pieces that so many values are squared and summed by.
#[must_use]
pub fn squares_pieces(count: usize) -> usize {
    count.div_ceil(SQUARES_PIECE as usize)
}

kernels! {
    /// Sums of squares by pieces; see [`squares_of_all`](super::squares_of_all).
    pub(super) fn sum_squares = squares_of_all(tensors: &Table, partials: &mut CudaBuffer<f64>) {
        let operation = SQUARING;
        let (list, count) = (tensors.uploaded.get()?, tensors.uploaded.get()?.len());
        pass read(list, count, "tensors"), u32(count, "tensors"), u64(tensors.pieces),
            write(partials, tensors.pieces, "partial sums");
        grid tensors.pieces.saturating_mul(THREADS as usize), THREADS;
        text "{count} tensors in {} pieces", tensors.pieces;
        safe "Each piece belongs to a tensor of the table, whose gradient has as many values as it states, and has a
              sum.";
    }

    /// `loss`, one value: of the first `count` of `logits` the mean cross-entropy of the first `ones` with target 1
    /// plus that of the others with target 0; a mean of none is 0.
    pub fn bce = bce(logits: &Floats, [ones, count]: [usize; 2], loss: &mut Floats) {
        let operation = "a cross-entropy";
        check ("values to average", count, ones.max(1));
        pass read(logits, count, "logits"), u64(ones), u64(count), write(loss, 1, "the loss");
        grid 1, THREADS;
        text "{count} logits";
        safe "There are as many logits as the kernel goes through, and a loss.";
    }

    /// The first `count` of `d` become the gradient of the logits of [`bce`], given that of the loss: `scale`, one
    /// value.
    pub fn bce_backward = bce_backward(
        logits: &Floats, [ones, count]: [usize; 2], scale: &Floats, d: &mut Floats,
    ) {
        let operation = "a cross-entropy backward";
        check ("values to average", count, ones.max(1));
        pass read(logits, count, "logits"), u64(ones), read(scale, 1, "the loss's gradient"), u64(count),
            write(d, count, "gradients");
        grid count, THREADS;
        text "{count} logits";
        safe "There are as many logits and gradients as the kernel goes through, and a scale.";
    }

    /// `bound`, two values: the norm of everything whose squares are summed in `partials`, and the factor that keeps it
    /// from being more than `most`; 0 where norm or `loss` is not finite.
    pub fn bound_norm = bound_norm(partials: &CudaBuffer<f64>, most: f32, loss: &Floats, bound: &mut Floats) {
        let operation = "bounding gradients";
        let pieces = partials.len();
        pass read(partials, pieces, "partial sums"), u64(pieces), f32(most), read(loss, 1, "the loss"),
            write(bound, 2, "norm and factor");
        grid 1, THREADS;
        text "{pieces} partial sums";
        safe "The kernel reads the partial sums and the loss, and writes two values.";
    }
}
