//! The second step of sums over rows, as `kernels/pieces.cu`: partial sums of pieces, added up in their order.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, PIECE_ROWS};

/// partials, pieces, cols, out, fresh.
pub(in crate::device::cuda) const ENTRIES: &[Entry] =
    &[Entry { name: "sum_pieces", parameters: takes![Address, u64, u64, Address, u32] }];

/// Pieces of so many rows.
#[must_use]
pub fn pieces_of(rows: usize) -> usize {
    rows.div_ceil(PIECE_ROWS as usize)
}

/// `out`, `[cols]`, becomes the sum of the rows of `partials`, `[pieces, cols]`, or has it added where it is not to be
/// `fresh`. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn sum_pieces(
    (cuda, stream): Place<'_>,
    [pieces, cols]: [usize; 2],
    partials: &CudaBuffer<f32>,
    out: &mut CudaBuffer<f32>,
    fresh: bool,
) -> Result<(), CudaError> {
    let operation = "adding up partial sums";
    let all = product(operation, "partial sums", &[pieces, cols])?;
    hold(operation, &[("partial sums", partials.len(), all), ("sums", out.len(), cols)])?;
    if cols == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(partials).number(pieces as u64);
    let launch = launch.number(cols as u64).writes(out).number(u32::from(fresh));
    // SAFETY: both have as many values as the kernel reads and writes.
    unsafe { launch.run("sum_pieces", grid(cuda, cols as u64, 128), || format!("{pieces} rows of {cols}")) }
}
