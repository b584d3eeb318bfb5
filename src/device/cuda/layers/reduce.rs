//! Sums and means over groups of rows, and rows that are cleared or replaced, as `kernels/reduce.cu`, which has the
//! formulas. Numbers of rows are the GPU's to check: what a table does not have is left out.

#![allow(unsafe_code)]

use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::module::Entry;
use crate::device::cuda::twins::Address;

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // counts, groups, slots, x, columns, mean, out.
    Entry { name: "reduce_slots", parameters: takes![Address, u64, u32, Address, u32, u32, Address] },
    // counts, groups, slots, d, columns, mean, dx.
    Entry { name: "spread_slots", parameters: takes![Address, u64, u32, Address, u32, u32, Address] },
    // rows, count, columns, limit, d.
    Entry { name: "clear_rows", parameters: takes![Address, u64, u32, u64, Address] },
    // slots, count, columns, d.
    Entry { name: "clear_empty", parameters: takes![Address, u64, u32, Address] },
    // rows, count, columns, limit, from, into.
    Entry { name: "put_rows", parameters: takes![Address, u64, u32, u64, Address, Address] },
];

const THREADS: u32 = 256;
const LANES: u64 = 32;

/// Rows that stand together: how many of each group count, the number of groups, and the rows that each has.
pub type SlotGroups<'a> = (&'a CudaBuffer<u32>, usize, usize);

/// `out`, `[groups, columns]`: of each group the sum of the rows of `x`, `[groups * slots, columns]`, that count, or
/// their `mean`. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn reduce_slots(
    (cuda, stream): Place<'_>,
    (counts, groups, slots): SlotGroups<'_>,
    x: &CudaBuffer<f32>,
    columns: usize,
    mean: bool,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "adding up groups of rows";
    let sums = product(operation, "sums", &[groups, columns])?;
    let all = product(operation, "rows", &[groups, slots, columns])?;
    hold(operation, &[("counts", counts.len(), groups), ("rows", x.len(), all), ("sums", out.len(), sums)])?;
    if sums == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(counts).number(groups as u64);
    let launch = launch.number(narrow(operation, "slots", slots)?).reads(x);
    let launch = launch.number(narrow(operation, "columns", columns)?).number(u32::from(mean)).writes(out);
    let sizes = || format!("{groups} groups of {slots} rows of {columns}");
    // SAFETY: every group has its rows and its sum, and no more of the rows count.
    unsafe { launch.run("reduce_slots", grid(cuda, sums as u64, THREADS), sizes) }
}

/// `dx`, `[groups * slots, columns]`: what each row gets of `d`, `[groups, columns]`, the gradient of [`reduce_slots`];
/// zeros where it does not count. Does not wait.
///
/// # Errors
/// As for [`reduce_slots`].
pub fn spread_slots(
    (cuda, stream): Place<'_>,
    (counts, groups, slots): SlotGroups<'_>,
    d: &CudaBuffer<f32>,
    columns: usize,
    mean: bool,
    dx: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "spreading gradients over groups of rows";
    let sums = product(operation, "gradients", &[groups, columns])?;
    let all = product(operation, "rows", &[groups, slots, columns])?;
    hold(
        operation,
        &[("counts", counts.len(), groups), ("gradients", d.len(), sums), ("rows", dx.len(), all)],
    )?;
    if all == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads(counts).number(groups as u64);
    let launch = launch.number(narrow(operation, "slots", slots)?).reads(d);
    let launch = launch.number(narrow(operation, "columns", columns)?).number(u32::from(mean)).writes(dx);
    let sizes = || format!("{groups} groups of {slots} rows of {columns}");
    // SAFETY: every group has its rows and its gradient.
    unsafe { launch.run("spread_slots", grid(cuda, sums as u64, THREADS), sizes) }
}

/// A grid with a warp for each of `count` rows.
fn warps((cuda, _): Place<'_>, count: usize) -> crate::device::cuda::launch::Grid {
    grid(cuda, (count as u64).saturating_mul(LANES), THREADS)
}

/// Clears the rows of `d`, of `columns` values, that the first `count` of `rows` name. Does not wait.
///
/// # Errors
/// As for [`reduce_slots`].
pub fn clear_rows(
    place: Place<'_>,
    rows: &CudaBuffer<u32>,
    count: usize,
    columns: usize,
    d: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "clearing rows";
    hold(operation, &[("rows", rows.len(), count)])?;
    if count == 0 || columns == 0 {
        return Ok(());
    }
    let limit = (d.len() / columns) as u64;
    let launch = Launch::new(place.0, place.1, operation).reads(rows).number(count as u64);
    let launch = launch.number(narrow(operation, "columns", columns)?).number(limit).writes(d);
    // SAFETY: as many rows are named, and the kernel clears those that there are.
    unsafe { launch.run("clear_rows", warps(place, count), || format!("{count} rows of {columns}")) }
}

/// Clears of the first `count` rows of `d`, of `columns` values, those whose slot is empty: of `slots` all ones. Does
/// not wait.
///
/// # Errors
/// As for [`reduce_slots`].
pub fn clear_empty(
    place: Place<'_>,
    slots: &CudaBuffer<u32>,
    count: usize,
    columns: usize,
    d: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "clearing empty slots";
    let all = product(operation, "rows", &[count, columns])?;
    hold(operation, &[("slots", slots.len(), count), ("rows", d.len(), all)])?;
    if all == 0 {
        return Ok(());
    }
    let launch = Launch::new(place.0, place.1, operation).reads(slots).number(count as u64);
    let launch = launch.number(narrow(operation, "columns", columns)?).writes(d);
    // SAFETY: there are as many slots and rows.
    unsafe { launch.run("clear_empty", warps(place, count), || format!("{count} rows of {columns}")) }
}

/// The rows of `into`, of `columns` values, that the first `count` of `rows` name become those of `from`, in order; no
/// row is to be named twice. Does not wait.
///
/// # Errors
/// As for [`reduce_slots`].
pub fn put_rows(
    place: Place<'_>,
    rows: &CudaBuffer<u32>,
    count: usize,
    columns: usize,
    from: &CudaBuffer<f32>,
    into: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "replacing rows";
    let all = product(operation, "values", &[count, columns])?;
    hold(operation, &[("rows", rows.len(), count), ("values", from.len(), all)])?;
    if all == 0 {
        return Ok(());
    }
    let limit = (into.len() / columns) as u64;
    let launch = Launch::new(place.0, place.1, operation).reads(rows).number(count as u64);
    let launch = launch.number(narrow(operation, "columns", columns)?).number(limit).reads(from).writes(into);
    // SAFETY: as many rows are named and given, and the kernel writes those that there are.
    unsafe { launch.run("put_rows", warps(place, count), || format!("{count} rows of {columns}")) }
}
