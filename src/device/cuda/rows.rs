//! Rows of a table on a GPU: [`RowCall::gather`] fetches those that a list names, [`RowCall::scatter`] writes them
//! back. The table lies in the GPU's memory or in an arena of the host, which the GPU reads over the bus in place.
//!
//! Twins of the loops over rows in `nn` and `feature`: the same bytes, since nothing is computed. Sizes that the kernel
//! gets are checked here; row numbers the GPU checks itself, and counts those that name no row.

use bytemuck::Pod;

use super::arena::PinnedSlice;
use super::context::Cuda;
use super::declare::kernels;
use super::error::CudaError;
use super::launch::{Launch, check_owner};
use super::memory::CudaBuffer;
use super::stream::Stream;
use super::twins::{Address, LINE, ROWS_AT_ONCE};

/// Threads of a block.
const THREADS: u32 = 256;
/// A row of more bytes may begin before its first line.
const LINE_BYTES: u64 = LINE as u64;
/// Blocks of a multiprocessor that fill a GPU, and that fill the bus and leave the rest to others.
const BLOCKS_ON_GPU: u32 = 8;
const BLOCKS_OVER_BUS: u32 = 2;
/// Lanes of all rows together, up to which a row gets more than a warp of them: less than what is under way on a GPU.
const FEW_LANES: u64 = 1 << 16;
/// Rows of a list, and bytes of a row, at most.
const SIZE_MAX: usize = 1 << 31;

/// Where the rows of a table lie, in values of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// How many rows there are.
    pub rows: usize,
    /// Values of a row.
    pub width: usize,
    /// Values from the beginning of a row to that of the next, at least `width`.
    pub stride: usize,
}

impl RowLayout {
    /// Rows without anything between them.
    #[must_use]
    pub fn dense(rows: usize, width: usize) -> Self {
        Self { rows, width, stride: width }
    }

    /// Values from the first one of the first row to the last one of the last row.
    fn extent(self) -> Option<usize> {
        match self.rows {
            0 => Some(0),
            rows => (rows - 1).checked_mul(self.stride)?.checked_add(self.width),
        }
    }

    fn check(self, operation: &'static str, what: &str, len: usize) -> Result<(), CudaError> {
        let fits = self.stride >= self.width && self.extent().is_some_and(|extent| extent <= len);
        if fits {
            return Ok(());
        }
        let Self { rows, width, stride } = self;
        let mismatch = format!("{what}: {rows} rows of {width} values, {stride} apart, in a buffer of {len}");
        Err(CudaError::Arguments { operation, mismatch })
    }
}

/// A table to gather from.
#[derive(Debug)]
pub enum Table<'a, T: Pod> {
    /// In the GPU's memory.
    Gpu(&'a CudaBuffer<T>),
    /// In an arena that is mapped for the GPU.
    Host(&'a PinnedSlice<T>),
}

/// A table to scatter to.
#[derive(Debug)]
pub enum TableMut<'a, T: Pod> {
    /// In the GPU's memory.
    Gpu(&'a mut CudaBuffer<T>),
    /// In an arena that is mapped for the GPU.
    Host(&'a mut PinnedSlice<T>),
}

/// Row numbers, in the GPU's memory. The largest number of the type means "no row".
#[derive(Clone, Copy, Debug)]
pub enum RowList<'a> {
    /// Of 32 bits.
    Narrow(&'a CudaBuffer<u32>),
    /// Of 64 bits.
    Wide(&'a CudaBuffer<u64>),
}

impl<'a> RowList<'a> {
    fn len(self) -> usize {
        match self {
            Self::Narrow(list) => list.len(),
            Self::Wide(list) => list.len(),
        }
    }

    fn address(self, launch: &mut Launch<'a>) -> Address {
        match self {
            Self::Narrow(list) => launch.reading(list),
            Self::Wide(list) => launch.reading(list),
        }
    }
}

/// What every operation on rows needs.
pub struct RowCall<'a> {
    /// The GPU.
    pub cuda: &'a Cuda,
    /// In whose order it happens; all buffers belong to it.
    pub stream: &'a Stream,
    /// Which rows of the table.
    pub list: RowList<'a>,
    /// Its first number is increased by the numbers in `list` that name neither a row nor "no row".
    pub errors: &'a mut CudaBuffer<u32>,
}

/// One side of a copy.
#[derive(Clone, Copy)]
struct Side {
    address: u64,
    stride_bytes: u64,
}

/// Sides and sizes of a copy that were checked, and the kernel that follows from them.
struct Plan {
    operation: &'static str,
    kernel: usize,
    blocks: u32,
    from: Side,
    to: Side,
    rows: usize,
    width_bytes: usize,
    lanes_log2: u32,
}

// By the width of an access: 16, 8, 4 and 1 bytes.
kernels! {
    /// Copies the rows of a table that `list` names from it, or to it, and counts in `errors` what names none.
    fn copy = gather_rows_16 | gather_rows_8 | gather_rows_4 | gather_rows_1 | scatter_rows_16 | scatter_rows_8
        | scatter_rows_4 | scatter_rows_1(plan: &Plan, list: RowList<'_>, errors: &mut CudaBuffer<u32>) {
        let operation = plan.operation;
        let count = list.len();
        pass mapped(plan.from.address), u64(plan.from.stride_bytes), u64(plan.rows),
            built(Address, |launch| list.address(&mut launch)), flag(matches!(list, RowList::Wide(_))),
            u32(count, "rows"), mapped(plan.to.address), u64(plan.to.stride_bytes), u32(plan.width_bytes, "bytes"),
            bits(plan.lanes_log2),
            write(errors, 1, "the counter of errors");
        then check_sizes(operation, count, plan.width_bytes)?;
        choose plan.kernel;
        grid ((count as u64) << plan.lanes_log2).div_ceil(ROWS_AT_ONCE.into()), THREADS, plan.blocks;
        skip count == 0 || plan.width_bytes == 0;
        text "{count} of {} rows of {} bytes", plan.rows, plan.width_bytes;
        safe "All rows of the table and all rows in order lie in what is passed. The kernel takes no row number that is
              not below `rows`, walks `count` rows in strides of the grid, and its accesses are as wide as addresses,
              strides and width allow.";
    }

    /// Copies `count` rows to rows of `table`: of each the list has its address and its place there.
    pub(super) fn fill_places = fill_rows_16 | fill_rows_8 | fill_rows_4 | fill_rows_1(
        list: &CudaBuffer<u64>, count: usize, width: usize, table: &mut CudaBuffer<f32>
    ) {
        let operation = "filling places with rows of the host";
        let (rows, bytes) = (table.len() / width.max(1), width * size_of::<f32>());
        // Rows of the host begin at multiples of their stride, which is one of 16 bytes where their width is.
        let (vector, kernel) = widest(bytes as u64);
        let lanes = lanes_log2(bytes as u64, vector, count);
        pass read(list, 2 * count, "addresses and places"), u32(count, "rows"),
            write(table, rows * width, "the table"), u64(bytes), u64(rows), u32(bytes, "bytes"), bits(lanes);
        then check_sizes(operation, count, bytes)?;
        choose kernel;
        grid ((count as u64) << lanes).div_ceil(ROWS_AT_ONCE.into()), THREADS, BLOCKS_OVER_BUS;
        skip count == 0 || bytes == 0;
        text "{count} rows of {bytes} bytes";
        safe "The addresses are of rows of this width in segments that live until the GPU is through with them: an
              arena's end waits for it. The kernel writes only rows of the table.";
    }
}

impl RowCall<'_> {
    /// `to[i] = table[list[i]]`; zeros where the list names no row. Rows of `to` are `to_stride` values apart.
    /// Does not wait.
    ///
    /// # Errors
    /// Sizes that do not fit, a buffer of another stream, or the driver's.
    pub fn gather<T: Pod>(
        self,
        table: Table<'_, T>,
        layout: RowLayout,
        to: &mut CudaBuffer<T>,
        to_stride: usize,
    ) -> Result<(), CudaError> {
        let (operation, stream) = ("gathering rows", self.stream);
        let packed = RowLayout { rows: self.list.len(), width: layout.width, stride: to_stride };
        let (from, held) = match table {
            Table::Gpu(rows) => (place(operation, stream, rows, layout)?, None),
            Table::Host(rows) => (mapped(operation, stream, rows, layout)?, Some(rows)),
        };
        let to = place(operation, stream, to, packed)?;
        let plan = plan::<T>(operation, 0, (from, to), (layout, self.list.len(), held.is_some()));
        let mut copy = || copy((self.cuda, stream), &plan, self.list, self.errors);
        match held {
            Some(rows) => rows.while_read(stream, |_| copy()),
            None => copy(),
        }
    }

    /// `table[list[i]] = from[i]`; nothing where the list names no row. Rows of `from` are `from_stride` values apart.
    /// A row that the list names twice gets values of both. Does not wait.
    ///
    /// # Errors
    /// As for [`gather`](Self::gather).
    pub fn scatter<T: Pod>(
        self,
        from: &CudaBuffer<T>,
        from_stride: usize,
        table: TableMut<'_, T>,
        layout: RowLayout,
    ) -> Result<(), CudaError> {
        let (operation, stream) = ("scattering rows", self.stream);
        let packed = RowLayout { rows: self.list.len(), width: layout.width, stride: from_stride };
        let from = place(operation, stream, from, packed)?;
        let (to, held) = match table {
            TableMut::Gpu(rows) => (place(operation, stream, rows, layout)?, None),
            TableMut::Host(rows) => (mapped(operation, stream, rows, layout)?, Some(rows)),
        };
        let plan = plan::<T>(operation, 4, (from, to), (layout, self.list.len(), held.is_some()));
        let mut copy = || copy((self.cuda, stream), &plan, self.list, self.errors);
        match held {
            Some(rows) => rows.while_written(stream, |_| copy()),
            None => copy(),
        }
    }
}

/// Rows of a buffer, which has them all.
fn place<T: Pod>(
    operation: &'static str,
    stream: &Stream,
    rows: &CudaBuffer<T>,
    layout: RowLayout,
) -> Result<Side, CudaError> {
    layout.check(operation, "rows on the GPU", rows.len())?;
    check_owner(operation, rows.stream(), stream)?;
    Ok(side::<T>(rows.address(), layout))
}

/// Rows of the host, likewise.
fn mapped<T: Pod>(
    operation: &'static str,
    stream: &Stream,
    rows: &PinnedSlice<T>,
    layout: RowLayout,
) -> Result<Side, CudaError> {
    layout.check(operation, "rows of the host", rows.len())?;
    Ok(side::<T>(rows.address(operation, stream)?, layout))
}

/// The first of the kernels of its kind is `first`.
fn plan<T>(
    operation: &'static str,
    first: usize,
    (from, to): (Side, Side),
    (table, count, over_bus): (RowLayout, usize, bool),
) -> Plan {
    let width_bytes = table.width * size_of::<T>();
    let all = from.address | to.address | from.stride_bytes | to.stride_bytes | width_bytes as u64;
    let (vector, kernel) = widest(all);
    let blocks = if over_bus { BLOCKS_OVER_BUS } else { BLOCKS_ON_GPU };
    let (kernel, lanes_log2) = (first + kernel, lanes_log2(width_bytes as u64, vector, count));
    Plan { operation, kernel, blocks, from, to, rows: table.rows, width_bytes, lanes_log2 }
}

/// A kernel counts rows of a list and columns of a row in 32 bits, by several at a time.
fn check_sizes(operation: &'static str, count: usize, width_bytes: usize) -> Result<(), CudaError> {
    if count <= SIZE_MAX && width_bytes <= SIZE_MAX {
        return Ok(());
    }
    let mismatch =
        format!("a list of {count} rows of {width_bytes} bytes, and {SIZE_MAX} of each are the most");
    Err(CudaError::Arguments { operation, mismatch })
}

fn side<T>(address: u64, layout: RowLayout) -> Side {
    Side { address, stride_bytes: (layout.stride * size_of::<T>()) as u64 }
}

/// The widest access in bytes that fits what was combined by "or", and which kernel it is.
fn widest(all: u64) -> (u64, usize) {
    match all.trailing_zeros() {
        4.. => (16, 0),
        3 => (8, 1),
        2 => (4, 2),
        _ => (1, 3),
    }
}

/// The exponent of how many lanes copy a row: as many as do it in one step, at most a warp, or a block where there are
/// so few rows that their steps, one after the other, would be what takes long. A row that may begin before its first
/// line takes as many columns more.
fn lanes_log2(width_bytes: u64, vector: u64, count: usize) -> u32 {
    let before = if width_bytes > LINE_BYTES { LINE_BYTES - vector } else { 0 };
    let columns = (width_bytes + before) / vector;
    let in_one_step = columns.max(1).next_power_of_two().trailing_zeros();
    let few = (FEW_LANES / count.max(1) as u64).max(1).ilog2();
    in_one_step.min(few.clamp(5, THREADS.ilog2()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_leave_their_buffer_are_refused_with_sizes() {
        let check = |rows, width, stride, len| RowLayout { rows, width, stride }.check("test", "it", len);
        assert!(check(3, 4, 5, 14).is_ok(), "after the last row nothing is needed");
        assert!(check(0, 4, 5, 0).is_ok());
        for (rows, width, stride, len) in
            [(3, 4, 5, 13), (3, 5, 4, 100), (usize::MAX, 2, 2, 100), (2, 4, usize::MAX, 100)]
        {
            let error = check(rows, width, stride, len).unwrap_err().to_string();
            assert!(error.contains(&format!("{rows} rows of {width} values")), "{error}");
        }
        assert_eq!(RowLayout::dense(2, 7), RowLayout { rows: 2, width: 7, stride: 7 });
        assert!(check_sizes("test", SIZE_MAX, SIZE_MAX).is_ok());
        for (count, bytes) in [(SIZE_MAX + 1, 4), (4, SIZE_MAX + 1)] {
            let error = check_sizes("test", count, bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("{count} rows of {bytes} bytes")), "{error}");
        }
    }

    #[test]
    fn accesses_are_as_wide_as_everything_allows() {
        for (all, expected) in
            [(0, 16), (688, 16), (344, 8), (4, 4), (2, 1), (7, 1), (16 | 8, 8), (u64::MAX, 1)]
        {
            let (width, kernel) = widest(all);
            let names = [kernel, 4 + kernel].map(|kernel| ENTRIES[0].names[kernel]);
            assert_eq!(width, expected);
            assert_eq!(names, ["gather", "scatter"].map(|way| format!("{way}_rows_{expected}")));
        }
    }

    #[test]
    fn a_row_has_the_fewest_lanes_that_copy_it_in_one_step() {
        for (width, vector, lanes) in [
            (16, 16, 1),
            (1, 1, 1),
            (64, 16, 4),
            (128, 16, 8),
            (100, 4, 32),
            (48, 16, 4),
            (688, 16, 32),
            (160, 16, 32),
        ] {
            assert_eq!(1 << lanes_log2(width, vector, 1 << 20), lanes, "{width} in {vector}");
        }
        let of_few = |count| 1 << lanes_log2(4096, 16, count);
        assert_eq!([0, 1, 256, 257, 1_000, 2_047, 2_048].map(of_few), [256, 256, 256, 128, 64, 32, 32]);
        assert_eq!(1 << lanes_log2(688, 16, 1), 64, "no more than one step takes");
    }
}
