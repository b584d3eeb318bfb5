//! What layers do value by value, as `kernels/elementwise.cu`, which has the formulas.
//!
//! Each takes how many values there are; buffers may be longer. None waits. An error is a buffer that is too short, one
//! of another stream, or the driver's.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, Mask};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // x, y, count, out.
    Entry { name: "add_values", parameters: takes![Address, Address, u64, Address] },
    // d, count, fresh, sum.
    Entry { name: "accumulate", parameters: takes![Address, u64, u32, Address] },
    // x, y, count, fresh, out.
    Entry { name: "multiply_values", parameters: takes![Address, Address, u64, u32, Address] },
    // factor, x, count, out.
    Entry { name: "scale_values", parameters: takes![f32, Address, u64, Address] },
    // x, count, out.
    Entry { name: "relu", parameters: takes![Address, u64, Address] },
    // mask, x, count, out.
    Entry { name: "gelu", parameters: takes![Mask, Address, u64, Address] },
    // mask, x, count, d.
    Entry { name: "gelu_backward", parameters: takes![Mask, Address, u64, Address] },
    // hidden, count, y.
    Entry { name: "rnn", parameters: takes![Address, u64, Address] },
    // result, count, d.
    Entry { name: "rnn_backward", parameters: takes![Address, u64, Address] },
];

const THREADS: u32 = 256;

/// Asks for the kernel `name`, whose arguments are those of `launch` and, behind them, `count` and what follows.
///
/// # Safety
/// The kernel goes no further than `count` values in any of the buffers among them, and each has as many.
unsafe fn run(
    (cuda, _): Place<'_>,
    launch: Launch<'_>,
    name: &'static str,
    (count, each): (usize, u64),
) -> Result<(), CudaError> {
    if count == 0 {
        return Ok(());
    }
    let grid = grid(cuda, (count as u64).div_ceil(each), THREADS);
    // SAFETY: the caller's promise.
    unsafe { launch.run(name, grid, || format!("{count} values")) }
}

/// The first `count` of `out` become those of `x` plus those of `y`.
///
/// # Errors
/// As this file says.
pub fn add(
    place: Place<'_>,
    x: &CudaBuffer<f32>,
    y: &CudaBuffer<f32>,
    count: usize,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "adding values";
    hold(operation, &[("terms", x.len(), count), ("terms", y.len(), count), ("sums", out.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).reads(x).reads(y).number(count as u64).writes(out);
    // SAFETY: the three have `count` values.
    unsafe { run(place, launch, "add_values", (count, 1)) }
}

/// The first `count` of `sum` become those of `d`, or have them added where they are not to be `fresh`.
///
/// # Errors
/// As this file says.
pub fn accumulate(
    place: Place<'_>,
    d: &CudaBuffer<f32>,
    count: usize,
    fresh: bool,
    sum: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    accumulate_from(place, (d, 0), count, fresh, sum)
}

/// The same with the `count` values of `d` from `first` on.
///
/// # Errors
/// As this file says.
pub fn accumulate_from(
    place: Place<'_>,
    (d, first): (&CudaBuffer<f32>, usize),
    count: usize,
    fresh: bool,
    sum: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "adding to sums";
    hold(operation, &[("terms", d.len(), first.saturating_add(count)), ("sums", sum.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).reads_from(d, first).number(count as u64);
    let launch = launch.number(u32::from(fresh)).writes(sum);
    // SAFETY: the sums have `count` values, and there are as many terms from the first one on.
    unsafe { run(place, launch, "accumulate", (count, 1)) }
}

/// The first `count` of `out` become those of `x` times those of `y`, or have that added where they are not to be
/// `fresh`.
///
/// # Errors
/// As this file says.
pub fn multiply(
    place: Place<'_>,
    x: &CudaBuffer<f32>,
    y: &CudaBuffer<f32>,
    count: usize,
    fresh: bool,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "multiplying values";
    let sizes = [("factors", x.len(), count), ("factors", y.len(), count), ("products", out.len(), count)];
    hold(operation, &sizes)?;
    let launch = Launch::new(place.0, place.1, operation).reads(x).reads(y).number(count as u64);
    let launch = launch.number(u32::from(fresh)).writes(out);
    // SAFETY: the three have `count` values.
    unsafe { run(place, launch, "multiply_values", (count, 1)) }
}

/// The first `count` of `out` become `factor` times those of `x`.
///
/// # Errors
/// As this file says.
pub fn scale(
    place: Place<'_>,
    factor: f32,
    x: &CudaBuffer<f32>,
    count: usize,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "scaling values";
    hold(operation, &[("values", x.len(), count), ("results", out.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).number(factor).reads(x).number(count as u64);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch.writes(out), "scale_values", (count, 1)) }
}

/// The first `count` of `values` become `factor` times what they are.
///
/// # Errors
/// As this file says.
pub fn scale_in_place(
    place: Place<'_>,
    factor: f32,
    values: &mut CudaBuffer<f32>,
    count: usize,
) -> Result<(), CudaError> {
    let operation = "scaling values";
    hold(operation, &[("values", values.len(), count)])?;
    let mut launch = Launch::new(place.0, place.1, operation);
    let both = launch.writing(values);
    let launch = launch.number(factor).number(both).number(count as u64).number(both);
    // SAFETY: there are `count` values, and each thread writes the ones that it read.
    unsafe { run(place, launch, "scale_values", (count, 1)) }
}

/// The first `count` of `out` become those of `x`, 0 where they are negative. Backward is
/// [`relu_backward`](super::relu_backward).
///
/// # Errors
/// As this file says.
pub fn relu(
    place: Place<'_>,
    x: &CudaBuffer<f32>,
    count: usize,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a rectifier";
    hold(operation, &[("values", x.len(), count), ("results", out.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).reads(x).number(count as u64).writes(out);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch, "relu", (count, 1)) }
}

/// The first `count` of `out` become the Gaussian error linear unit of those of `x`, times the factors of `mask`.
///
/// # Errors
/// As this file says.
pub fn gelu(
    place: Place<'_>,
    mask: Mask,
    x: &CudaBuffer<f32>,
    count: usize,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a Gaussian unit";
    hold(operation, &[("values", x.len(), count), ("results", out.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).number(mask).reads(x).number(count as u64);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch.writes(out), "gelu", (count, 4)) }
}

/// The first `count` of `d`, the gradient of the result of [`gelu`], become that of `x`.
///
/// # Errors
/// As this file says.
pub fn gelu_backward(
    place: Place<'_>,
    mask: Mask,
    x: &CudaBuffer<f32>,
    count: usize,
    d: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a Gaussian unit backward";
    hold(operation, &[("values", x.len(), count), ("gradients", d.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).number(mask).reads(x).number(count as u64);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch.writes(d), "gelu_backward", (count, 4)) }
}

/// The first `count` of `y`, a plain cell's product with its input, become the cell's new state, given that with its
/// old one, `hidden`.
///
/// # Errors
/// As this file says.
pub fn rnn(
    place: Place<'_>,
    hidden: &CudaBuffer<f32>,
    count: usize,
    y: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a plain cell";
    hold(operation, &[("hidden", hidden.len(), count), ("states", y.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).reads(hidden).number(count as u64).writes(y);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch, "rnn", (count, 1)) }
}

/// The first `count` of `d`, the gradient of the `result` of [`rnn`], become that of both products.
///
/// # Errors
/// As this file says.
pub fn rnn_backward(
    place: Place<'_>,
    result: &CudaBuffer<f32>,
    count: usize,
    d: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "a plain cell backward";
    hold(operation, &[("states", result.len(), count), ("gradients", d.len(), count)])?;
    let launch = Launch::new(place.0, place.1, operation).reads(result).number(count as u64).writes(d);
    // SAFETY: both have `count` values.
    unsafe { run(place, launch, "rnn_backward", (count, 1)) }
}
