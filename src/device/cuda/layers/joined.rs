//! Rows joined and spread, and what is done to them value by value, as `kernels/joined.cu`, which has the formulas.
//!
//! Numbers of rows are the GPU's to check: a row that a table does not have is zeros.

#![allow(unsafe_code)]

use std::sync::Arc;

use super::layout::{Matrix, MatrixMut, Put};
use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::module::Entry;
use crate::device::cuda::pooled_buffer::PooledBuffer;
use crate::device::cuda::twins::{Address, Mask, ROW_PARTS, RowPart, RowParts, RowUsers};
use crate::device::cuda::work::CudaWork;

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // parts, count, out_stride, out.
    Entry { name: "join_rows", parameters: takes![RowParts, u64, u64, Address] },
    // part, count, out_stride, into, out.
    Entry { name: "add_rows", parameters: takes![RowPart, u64, u64, u32, Address] },
    // users, d, stride, rows, columns, out_stride, fresh, dx.
    Entry { name: "spread_rows", parameters: takes![RowUsers, Address, u64, u64, u32, u64, u32, Address] },
    // d, result, count.
    Entry { name: "relu_backward", parameters: takes![Address, Address, u64] },
    // mask, values, count.
    Entry { name: "drop_out", parameters: takes![Mask, Address, u64] },
];

const THREADS: u32 = 256;
const LANES: u64 = 32;

/// Some columns of rows.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Where they come from.
    pub table: Matrix<'a>,
    /// Rows and columns of the table.
    pub shape: [usize; 2],
    /// The table's row for each row of the result; row i for row i if not given.
    pub list: Option<&'a CudaBuffer<u32>>,
}

impl<'a> Part<'a> {
    /// As a kernel has it, for `count` rows of a result.
    pub(super) fn twin(
        self,
        launch: &mut Launch<'a>,
        operation: &'static str,
        count: usize,
    ) -> Result<RowPart, CudaError> {
        let ((table, layout), [rows, columns]) = (self.table, self.shape);
        hold(
            operation,
            &[
                ("the table", table.len(), layout.end(operation, "the table", [rows, columns, 1])?),
                ("the list of rows", self.list.map_or(count, CudaBuffer::len), count),
            ],
        )?;
        Ok(RowPart {
            table: launch.reading_from(table, layout.first),
            list: self.list.map_or(Address::NULL, |list| launch.reading(list)),
            stride: layout.stride as u64,
            rows: narrow(operation, "rows", rows)?,
            columns: narrow(operation, "columns", columns)?,
        })
    }
}

/// The first `count` rows of `out` become those of `parts`, four at most, side by side. Does not wait.
///
/// # Errors
/// Sizes that do not fit, a buffer of another stream, or the driver's.
pub fn join_rows(
    (cuda, stream): Place<'_>,
    parts: &[Part<'_>],
    count: usize,
    (out, layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "joining rows";
    let columns: usize = parts.iter().map(|part| part.shape[1]).sum();
    let needed = layout.end_apart(operation, "results", [count, columns, 1])?;
    hold(operation, &[("results", out.len(), needed), ("room for tables", ROW_PARTS as usize, parts.len())])?;
    let mut launch = Launch::new(cuda, stream, operation);
    let mut joined = RowParts::default();
    for (place, part) in joined.parts.iter_mut().zip(parts) {
        *place = part.twin(&mut launch, operation, count)?;
    }
    if needed == 0 {
        return Ok(());
    }
    let launch = launch.number(joined).number(count as u64).number(layout.stride as u64);
    let launch = launch.writes_from(out, layout.first);
    let grid = grid(cuda, LANES * count as u64, THREADS);
    // SAFETY: the kernel reads rows that tables have, for which they are long enough, and a number of each list and
    // writes a row of the result for each.
    unsafe { launch.run("join_rows", grid, || format!("{count} rows of {columns}")) }
}

/// The first `count` rows of `out` become those of `part`, or have them added, and are rectified if asked for. Does not
/// wait.
///
/// # Errors
/// As for [`join_rows`].
pub fn add_rows(
    (cuda, stream): Place<'_>,
    part: Part<'_>,
    count: usize,
    put: Put,
    (out, layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "adding rows";
    let columns = part.shape[1];
    let needed = layout.end_apart(operation, "results", [count, columns, 1])?;
    hold(operation, &[("results", out.len(), needed)])?;
    let mut launch = Launch::new(cuda, stream, operation);
    let part = part.twin(&mut launch, operation, count)?;
    if needed == 0 {
        return Ok(());
    }
    let launch = launch.number(part).number(count as u64).number(layout.stride as u64).number(put.bits());
    let launch = launch.writes_from(out, layout.first);
    let grid = grid(cuda, LANES * count as u64, THREADS);
    // SAFETY: as for joining.
    unsafe { launch.run("add_rows", grid, || format!("{count} rows of {columns}")) }
}

/// A list of rows turned around: who reads each row of a table, in order.
pub struct Users {
    starts: PooledBuffer<u32>,
    places: PooledBuffer<u32>,
    /// Rows of the table.
    rows: usize,
    /// Places that there are, whether they read a row or not.
    readers: usize,
}

impl Users {
    /// Of the rows that `index` names, out of `rows`; all ones names none.
    ///
    /// # Errors
    /// A number that names no row.
    pub fn new(work: &Arc<CudaWork>, index: &[u32], rows: usize) -> Result<Self, CudaError> {
        let operation = "turning a list of rows around";
        narrow(operation, "rows that are read", index.len())?;
        // Counted two places further, `starts[r + 1]` is where row r is listed next, and ends as its end.
        let mut starts = vec![0_u32; rows.saturating_add(2)];
        for &row in index.iter().filter(|row| **row != u32::MAX) {
            if row as usize >= rows {
                let mismatch = format!("row {row} of a table with {rows} rows");
                return Err(CudaError::Arguments { operation, mismatch });
            }
            starts[row as usize + 2] += 1;
        }
        for r in 2..starts.len() {
            starts[r] += starts[r - 1];
        }
        let mut places = vec![0_u32; starts.last().map_or(0, |end| *end as usize)];
        for (place, &row) in (0..).zip(index).filter(|(_, row)| **row != u32::MAX) {
            let next = &mut starts[row as usize + 1];
            places[*next as usize] = place;
            *next += 1;
        }
        starts.pop();
        Ok(Self { starts: work.upload(&starts), places: work.upload(&places), rows, readers: index.len() })
    }

    /// Rows of the table.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// Each row of `dx`, of `columns` values, becomes the sum of the rows of `d` of its users, in their order, or has it
/// added where it is not to be `fresh`. Does not wait.
///
/// # Errors
/// As for [`join_rows`].
pub fn spread_rows(
    (cuda, stream): Place<'_>,
    users: &Users,
    columns: usize,
    (d, d_layout): Matrix<'_>,
    fresh: bool,
    (dx, layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "adding up the gradients of rows";
    let (rows, readers, starts, places) =
        (users.rows, users.readers, users.starts.get()?, users.places.get()?);
    let needed = layout.end_apart(operation, "results", [rows, columns, 1])?;
    let given = d_layout.end(operation, "gradients", [readers, columns, 1])?;
    hold(operation, &[("gradients", d.len(), given), ("results", dx.len(), needed)])?;
    if needed == 0 {
        return Ok(());
    }
    let mut launch = Launch::new(cuda, stream, operation);
    let users = RowUsers {
        starts: launch.reading(starts),
        places: launch.reading(places),
        count: narrow(operation, "places", places.len())?,
        rows: narrow(operation, "rows that are read", readers)?,
    };
    let launch = launch.number(users).reads_from(d, d_layout.first).number(d_layout.stride as u64);
    let launch = launch.number(rows as u64).number(narrow(operation, "columns", columns)?);
    let launch = launch.number(layout.stride as u64).number(u32::from(fresh));
    let launch = launch.writes_from(dx, layout.first);
    let warps = (rows as u64).saturating_mul(columns.div_ceil(LANES as usize) as u64);
    let grid = grid(cuda, warps.saturating_mul(LANES), THREADS);
    // SAFETY: the kernel takes no place that is not listed and no row of `d` that there is not; it writes the rows of
    // `dx`, for which there is room.
    unsafe { launch.run("spread_rows", grid, || format!("{rows} rows of {columns}")) }
}

/// Clears the first `count` of `d` where `result` is not positive. Does not wait.
///
/// # Errors
/// As for [`join_rows`].
pub fn relu_backward(
    (cuda, stream): Place<'_>,
    d: &mut CudaBuffer<f32>,
    result: &CudaBuffer<f32>,
    count: usize,
) -> Result<(), CudaError> {
    let operation = "a rectifier backward";
    hold(operation, &[("results", result.len(), count), ("gradients", d.len(), count)])?;
    if count == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).writes(d).reads(result).number(count as u64);
    let grid = grid(cuda, count as u64, THREADS);
    // SAFETY: both have `count` values, and the kernel goes no further.
    unsafe { launch.run("relu_backward", grid, || format!("{count} values")) }
}

/// Multiplies the first `count` of `values` by the factors of `mask`. Does not wait.
///
/// # Errors
/// As for [`join_rows`].
pub fn drop_out(
    (cuda, stream): Place<'_>,
    mask: Mask,
    values: &mut CudaBuffer<f32>,
    count: usize,
) -> Result<(), CudaError> {
    let operation = "dropping values";
    hold(operation, &[("values", values.len(), count)])?;
    if count == 0 || mask.drop == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).number(mask).writes(values).number(count as u64);
    let grid = grid(cuda, count.div_ceil(4) as u64, THREADS);
    // SAFETY: there are `count` values, and the kernel goes no further.
    unsafe { launch.run("drop_out", grid, || format!("{count} values")) }
}
