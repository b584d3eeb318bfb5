//! The element-wise part of a GRU cell, as `kernels/gru.cu`, which has the formulas.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::Address;

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // gates, hidden, h, bias, rows, width, out.
    Entry { name: "gru_forward", parameters: takes![Address, Address, Address, Address, u64, u32, Address] },
    // d, gates, hidden, h, rows, width.
    Entry { name: "gru_backward", parameters: takes![Address, Address, Address, Address, u64, u32] },
];

/// `out`, `[rows, width]`, from `gates` `[rows, 3 width]` and `hidden` `[rows, width]`, which hold the matrix products
/// before and what the backward needs after. `h` is `[rows, width]`, `bias` `[3 width]`. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn gru_forward(
    (cuda, stream): Place<'_>,
    [rows, width]: [usize; 2],
    (gates, hidden): (&mut CudaBuffer<f32>, &mut CudaBuffer<f32>),
    (h, bias): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a GRU cell forward";
    let count = product(operation, "states", &[rows, width])?;
    let all = product(operation, "gates", &[rows, 3, width])?;
    hold(
        operation,
        &[
            ("gates", gates.len(), all),
            ("hidden", hidden.len(), count),
            ("states", h.len(), count),
            ("the bias", bias.len(), 3 * width),
            ("the result", out.len(), count),
        ],
    )?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).writes(gates).writes(hidden).reads(h).reads(bias);
    let launch = launch.number(rows as u64).number(narrow(operation, "the width", width)?).writes(out);
    // SAFETY: everything has its rows, and the kernel goes no further.
    unsafe { launch.run("gru_forward", grid(cuda, count as u64, 256), || format!("{rows} rows of {width}")) }
}

/// The gradients, in place, from what the forward left: `d` of the result becomes the direct part of that of `h`,
/// `gates` and `hidden` those of the matrix products. Does not wait.
///
/// # Errors
/// As for [`gru_forward`].
pub fn gru_backward(
    (cuda, stream): Place<'_>,
    [rows, width]: [usize; 2],
    d: &mut CudaBuffer<f32>,
    (gates, hidden): (&mut CudaBuffer<f32>, &mut CudaBuffer<f32>),
    h: &CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a GRU cell backward";
    let count = product(operation, "states", &[rows, width])?;
    let all = product(operation, "gates", &[rows, 3, width])?;
    hold(
        operation,
        &[
            ("the gradient", d.len(), count),
            ("gates", gates.len(), all),
            ("hidden", hidden.len(), count),
            ("states", h.len(), count),
        ],
    )?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).writes(d).writes(gates).writes(hidden).reads(h);
    let launch = launch.number(rows as u64).number(narrow(operation, "the width", width)?);
    // SAFETY: everything has its rows, and the kernel goes no further.
    unsafe { launch.run("gru_backward", grid(cuda, count as u64, 256), || format!("{rows} rows of {width}")) }
}
