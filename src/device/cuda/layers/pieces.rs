//! The second step of sums over rows, as `kernels/pieces.cu`: partial sums of pieces, added up in their order.

use super::Floats;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;
use crate::device::cuda::twins::PIECE_ROWS;

/// Pieces of so many rows.
#[must_use]
pub fn pieces_of(rows: usize) -> usize {
    rows.div_ceil(PIECE_ROWS as usize)
}

kernels! {
    /// `out`, `[cols]`, becomes the sum of the rows of `partials`, `[pieces, cols]`, or has it added unless
    ///  `overwrite`.
    pub fn sum_pieces = sum_pieces([pieces, cols]: [usize; 2], partials: &Floats, out: &mut Floats, overwrite: bool) {
        let operation = "adding up partial sums";
        let all = product(operation, "partial sums", &[pieces, cols])?;
        pass read(partials, all, "partial sums"), u64(pieces), u64(cols), write(out, cols, "sums"), flag(overwrite);
        grid cols, 128;
        text "{pieces} rows of {cols}";
        safe "Both have as many values as the kernel reads and writes.";
    }
}
