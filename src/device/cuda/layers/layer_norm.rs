//! Layer normalization of rows, as `kernels/layer_norm.cu`, which has the formulas.

#![allow(unsafe_code)]

use super::{Place, grid, pieces_of};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::Address;

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // x, gamma, beta, eps, rows, cols, y, moments.
    Entry {
        name: "layer_norm_forward",
        parameters: takes![Address, Address, Address, f32, u64, u32, Address, Address],
    },
    // d, x, moments, rows, cols, partials.
    Entry { name: "layer_norm_parameters", parameters: takes![Address, Address, Address, u64, u32, Address] },
    // d, x, moments, gamma, rows, cols.
    Entry { name: "layer_norm_backward", parameters: takes![Address, Address, Address, Address, u64, u32] },
];

/// `y`, `[rows, cols]`: the rows of `x` normalized, and their `moments`, `[rows, 2]`; `gamma` and `beta` are `[cols]`,
/// and a row has a column at least. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn layer_norm_forward(
    (cuda, stream): Place<'_>,
    [rows, cols]: [usize; 2],
    x: &CudaBuffer<f32>,
    (gamma, beta, eps): (&CudaBuffer<f32>, &CudaBuffer<f32>, f32),
    (y, moments): (&mut CudaBuffer<f32>, &mut CudaBuffer<f32>),
) -> Result<(), CudaError> {
    let operation = "normalizing rows";
    let count = product(operation, "rows", &[rows, cols])?;
    hold(
        operation,
        &[
            ("columns", cols, 1),
            ("rows", x.len(), count),
            ("gamma", gamma.len(), cols),
            ("beta", beta.len(), cols),
            ("results", y.len(), count),
            ("moments", moments.len(), rows.saturating_mul(2)),
        ],
    )?;
    if rows == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(x).reads(gamma).reads(beta).number(eps);
    let launch = launch.number(rows as u64).number(narrow(operation, "the width", cols)?);
    let launch = launch.writes(y).writes(moments);
    let (grid, sizes) = (grid(cuda, 32 * rows as u64, 128), || format!("{rows} rows of {cols}"));
    // SAFETY: everything has its rows, and the kernel goes no further.
    unsafe { launch.run("layer_norm_forward", grid, sizes) }
}

/// `partials`, `[pieces_of(rows), 2 cols]`: sums of the gradients of gamma and, behind them, beta, given that of the
/// result, `d`. Before [`layer_norm_backward`], which overwrites it. Does not wait.
///
/// # Errors
/// As for [`layer_norm_forward`].
pub fn layer_norm_parameters(
    (cuda, stream): Place<'_>,
    [rows, cols]: [usize; 2],
    (d, x): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    moments: &CudaBuffer<f32>,
    partials: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "gradients of normalizing rows";
    let count = product(operation, "rows", &[rows, cols])?;
    let sums = product(operation, "partial sums", &[pieces_of(rows), 2, cols])?;
    hold(
        operation,
        &[
            ("gradients", d.len(), count),
            ("rows", x.len(), count),
            ("moments", moments.len(), rows.saturating_mul(2)),
            ("partial sums", partials.len(), sums),
        ],
    )?;
    if sums == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(d).reads(x).reads(moments);
    let launch = launch.number(rows as u64).number(narrow(operation, "the width", cols)?).writes(partials);
    let grid = grid(cuda, 128 * pieces_of(rows) as u64, 128);
    let sizes = || format!("{rows} rows of {cols}");
    // SAFETY: everything has its rows, and the kernel goes no further; a block sums a piece.
    unsafe { launch.run("layer_norm_parameters", grid, sizes) }
}

/// The gradient of `x` in place of that of the result, `d`. Does not wait.
///
/// # Errors
/// As for [`layer_norm_forward`].
pub fn layer_norm_backward(
    (cuda, stream): Place<'_>,
    [rows, cols]: [usize; 2],
    d: &mut CudaBuffer<f32>,
    (x, moments): (&CudaBuffer<f32>, &CudaBuffer<f32>),
    gamma: &CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "normalizing rows backward";
    let count = product(operation, "rows", &[rows, cols])?;
    hold(
        operation,
        &[
            ("gradients", d.len(), count),
            ("rows", x.len(), count),
            ("moments", moments.len(), rows.saturating_mul(2)),
            ("gamma", gamma.len(), cols),
        ],
    )?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).writes(d).reads(x).reads(moments).reads(gamma);
    let launch = launch.number(rows as u64).number(narrow(operation, "the width", cols)?);
    let (grid, sizes) = (grid(cuda, 32 * rows as u64, 128), || format!("{rows} rows of {cols}"));
    // SAFETY: everything has its rows, and the kernel goes no further.
    unsafe { launch.run("layer_norm_backward", grid, sizes) }
}
