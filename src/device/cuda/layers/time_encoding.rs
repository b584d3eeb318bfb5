//! The time encoding as rows, as `kernels/time_encoding.cu`, which has the formulas.

#![allow(unsafe_code)]

use super::{Place, grid, pieces_of};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::Address;

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // deltas, w, b, rows, dim, out.
    Entry { name: "time_encode", parameters: takes![Address, Address, Address, u64, u32, Address] },
    // deltas, w, b, d, stride, rows, dim, partials.
    Entry {
        name: "time_backward",
        parameters: takes![Address, Address, Address, Address, u64, u64, u32, Address],
    },
];

/// `out`, `[deltas, dim]`: the encoding of each of `deltas` by frequencies `w` and phases `b`, `dim` each. Does not
/// wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn time_encode(
    (cuda, stream): Place<'_>,
    deltas: &CudaBuffer<f32>,
    (w, b): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "encoding times";
    let (rows, dim) = (deltas.len(), w.len());
    let count = product(operation, "encodings", &[rows, dim])?;
    hold(operation, &[("phases", b.len(), dim), ("encodings", out.len(), count)])?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(deltas).reads(w).reads(b).number(rows as u64);
    let launch = launch.number(narrow(operation, "the width", dim)?).writes(out);
    // SAFETY: everything has its rows, and the kernel goes no further.
    unsafe { launch.run("time_encode", grid(cuda, count as u64, 256), || format!("{rows} rows of {dim}")) }
}

/// `partials`, `[pieces_of(deltas), 2 dim]`: sums of the gradients of frequencies and, behind them, phases. The
/// gradient of encoding i is the `dim` values of `d` from `first + i * stride` on. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn time_backward(
    (cuda, stream): Place<'_>,
    deltas: &CudaBuffer<f32>,
    (w, b): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    (d, first, stride): (&CudaBuffer<f32>, usize, usize),
    partials: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "encoding times backward";
    let (rows, dim) = (deltas.len(), w.len());
    let sums = product(operation, "partial sums", &[pieces_of(rows), 2, dim])?;
    let before = product(operation, "gradients", &[rows.saturating_sub(1), stride])?;
    let needed = before.saturating_add(first).saturating_add(dim);
    hold(
        operation,
        &[
            ("phases", b.len(), dim),
            ("gradients", d.len(), if rows == 0 { 0 } else { needed }),
            ("partial sums", partials.len(), sums),
        ],
    )?;
    if sums == 0 {
        return Ok(());
    }
    let mut launch = Launch::new(cuda, stream, operation).reads(deltas).reads(w).reads(b);
    let gradients = launch.reading_from(d, first);
    let launch = launch.number(gradients).number(stride as u64).number(rows as u64);
    let launch = launch.number(narrow(operation, "the width", dim)?).writes(partials);
    let threads = 128 * pieces_of(rows) as u64;
    // SAFETY: everything has its rows, and the kernel goes no further; a block sums a piece.
    unsafe { launch.run("time_backward", grid(cuda, threads, 128), || format!("{rows} rows of {dim}")) }
}
