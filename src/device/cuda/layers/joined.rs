//! Rows joined, and their gradients added up; and what is done to them value by value, as `kernels/joined.cu`, which
//! has the formulas.
//!
//! Numbers of rows are the GPU's to check: a row that a table does not have is zeros.

use std::sync::Arc;

use super::layout::{Matrix, MatrixMut, Put};
use super::{Floats, Rows};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, to_u32};
use crate::device::cuda::pooled_buffer::PooledBuffer;
use crate::device::cuda::twins::{Address, Mask, ROW_PARTS, RowPart, RowParts, RowUsers, USERS_MANY};
use crate::device::cuda::work::CudaWork;

const THREADS: u32 = 256;
/// Threads of a row: a warp.
const LANES: usize = 32;

/// Some columns of rows.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Where they come from.
    pub table: Matrix<'a>,
    /// Rows and columns of the table.
    pub shape: [usize; 2],
    /// The table's row for each row of the result; row i for row i if not given.
    pub list: Option<&'a Rows>,
}

impl<'a> Part<'a> {
    /// Checks that the table and the list are long enough for `count` rows of a result.
    pub(super) fn check(&self, operation: &'static str, count: usize) -> Result<(), CudaError> {
        let ((table, layout), [rows, columns]) = (self.table, self.shape);
        check_len(
            operation,
            &[
                ("the table", table.len(), layout.end(operation, "the table", [rows, columns, 1])?),
                ("the list of rows", self.list.map_or(count, Rows::len), count),
            ],
        )
    }

    /// As a kernel has it.
    pub(super) fn twin(self, launch: &mut Launch<'a>, operation: &'static str) -> Result<RowPart, CudaError> {
        let ((table, layout), [rows, columns]) = (self.table, self.shape);
        Ok(RowPart {
            table: launch.reading_from(table, layout.first),
            list: self.list.map_or(Address::NULL, |list| launch.reading(list)),
            stride: layout.stride as u64,
            rows: to_u32(operation, "rows", rows)?,
            columns: to_u32(operation, "columns", columns)?,
        })
    }
}

kernels! {
    /// The first `count` rows of `out` become those of `parts`, four at most, side by side.
    pub fn join_rows = join_rows(parts: &[Part<'_>], count: usize, (out, layout): MatrixMut<'_>) {
        let operation = "joining rows";
        let columns = parts.iter().map(|part| part.shape[1]).sum::<usize>();
        pass built(RowParts, |launch| {
                let mut joined = RowParts::default();
                for (room, part) in joined.parts.iter_mut().zip(parts) {
                    *room = part.twin(&mut launch, operation)?;
                }
                joined
            }),
            u32(parts.len(), "parts"), u64(count), u64(layout.stride),
            rows_mut(out, layout, [count, columns, 1], "results");
        then check_len(operation, &[("room for tables", ROW_PARTS as usize, parts.len())])?;
        then parts.iter().try_for_each(|part| part.check(operation, count))?;
        grid count.saturating_mul(parts.len() * LANES), THREADS;
        skip count == 0 || columns == 0;
        text "{count} rows of {columns}";
        safe "The kernel reads rows that tables have, for which they are long enough, and a number of each list and
              writes a row of the result for each.";
    }

    /// The rows of `out`, of as many columns as `part` has, that the first `count` of `rows` name become those of
    /// `part`, in order; no row is to be named twice, and one that there is not is left out.
    pub fn put_rows = put_rows(rows: &Rows, count: usize, part: Part<'_>, out: &mut Floats) {
        let operation = "replacing rows";
        let columns = part.shape[1];
        pass read(rows, count, "rows"), u64(count), u64(out.len() / columns),
            built(RowPart, |launch| part.twin(&mut launch, operation)?), write(out, 0, "rows");
        then part.check(operation, count)?;
        grid count.saturating_mul(LANES), THREADS;
        skip count == 0 || columns == 0;
        text "{count} rows of {columns}";
        safe "As for [`join_rows`], and the kernel writes rows that there are.";
    }

    /// The first `count` rows of `out` become those of `part`, or have them added, and are rectified if asked for.
    /// They are added to those of `before`, if given, else to what is there.
    pub fn add_rows = add_rows(
        part: Part<'_>, before: Option<Part<'_>>, count: usize, put: Put, (out, layout): MatrixMut<'_>,
    ) {
        let operation = "adding rows";
        let columns = part.shape[1];
        let width = before.map_or(columns, |before| before.shape[1]);
        check ("columns to add to", width, columns);
        pass built(RowPart, |launch| part.twin(&mut launch, operation)?),
            built(RowPart, |launch| before.map_or(Ok(RowPart::default()), |part| part.twin(&mut launch, operation))?),
            u64(count), u64(layout.stride), bits(put.bits()), rows_mut(out, layout, [count, columns, 1], "results");
        then [Some(part), before].iter().flatten().try_for_each(|part| part.check(operation, count))?;
        grid count.saturating_mul(LANES), THREADS;
        skip count == 0 || columns == 0;
        text "{count} rows of {columns}";
        safe "As for [`join_rows`].";
    }

    /// Each row of `dx`, of `columns` values, becomes the sum of the rows of `d` of its readers, in their order, or has
    /// it added unless `overwrite`.
    pub fn scatter_add_rows = spread_rows(
        readers: &RowReaders, columns: usize, (d, given): Matrix<'_>, overwrite: bool, (dx, layout): MatrixMut<'_>,
    ) {
        let operation = "adding up the gradients of rows";
        let (rows, starts, places) = (readers.rows, readers.starts.get()?, readers.places.get()?);
        pass built(RowUsers, |launch| RowUsers {
                starts: launch.reading(starts),
                places: launch.reading(places),
                count: to_u32(operation, "places", places.len())?,
                rows: to_u32(operation, "rows that are read", readers.place_count)?,
            }),
            rows(d, given, [readers.place_count, columns, 1], "gradients"), u64(given.stride), u64(rows),
            u32(columns, "columns"), u64(layout.stride), flag(overwrite), flag(readers.has_hubs),
            rows_mut(dx, layout, [rows, columns, 1], "results");
        grid rows.saturating_mul(columns.div_ceil(LANES)).saturating_mul(LANES), THREADS;
        skip rows == 0 || columns == 0;
        text "{rows} rows of {columns}";
        safe "The kernel takes no place that is not listed and no row of `d` that there is not; it writes the rows of
              `dx`, for which there is room.";
    }

    /// The first `count` of `out` become the entries of `list` that `at` names, all ones where it has no such entry.
    pub fn follow_list = follow_list(at: &Rows, count: usize, list: &Rows, out: &mut Rows) {
        let operation = "reading a list by way of another";
        pass read(at, count, "places"), u64(count), read(list, 0, "entries"), u64(list.len()),
            write(out, count, "results");
        grid count, THREADS;
        safe "The kernel reads entries that there are, and a place for each result.";
    }

    /// Clears the first `count` of `d` where `result` is not positive.
    pub fn relu_backward = relu_backward(d: &mut Floats, result: &Floats, count: usize) {
        let operation = "a rectifier backward";
        pass write(d, count, "gradients"), read(result, count, "results"), u64(count);
        grid count, THREADS;
        safe "Both have `count` values, and the kernel goes no further.";
    }

    /// The first `count` of `out` become those of `x`, times the factors of `mask`.
    pub fn drop_out = drop_out(mask: Mask, x: &Floats, count: usize, out: &mut Floats) {
        let operation = "dropping values";
        pass value(Mask, mask), read(x, count, "values"), u64(count), write(out, count, "results");
        grid count.div_ceil(4), THREADS;
        text "{count} values";
        safe "Both have `count` values, and the kernel goes no further.";
    }
}

/// Who reads each row of a table, for a GPU to read: an index turned around.
pub struct RowReaders {
    starts: PooledBuffer<u32>,
    places: PooledBuffer<u32>,
    /// Rows of the table.
    rows: usize,
    /// Places that there are, whether they read a row or not.
    place_count: usize,
    /// Whether any row has more readers than a warp adds up by itself.
    has_hubs: bool,
}

impl RowReaders {
    /// Row r is read by `places[starts[r]..starts[r + 1]]`, ascending, each below `place_count`.
    #[must_use]
    pub fn new(work: &Arc<CudaWork>, starts: &[u32], places: &[u32], place_count: usize) -> Self {
        let has_hubs = starts.windows(2).any(|row| row[1].saturating_sub(row[0]) > USERS_MANY);
        let rows = starts.len().saturating_sub(1);
        Self { starts: work.upload(starts), places: work.upload(places), rows, place_count, has_hubs }
    }
}
