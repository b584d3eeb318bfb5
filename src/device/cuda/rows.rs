//! Rows of a table on a GPU: [`RowCall::gather`] fetches those that a list names, [`RowCall::scatter`] writes them
//! back. The table lies in the GPU's memory or in an arena of the host, which the GPU reads over the bus in place.
//!
//! Twins of the loops over rows in `nn` and `feature`: the same bytes, since nothing is computed. Sizes that the kernel
//! gets are checked here; row numbers the GPU checks itself, and counts those that name no row.

#![allow(unsafe_code)]

use bytemuck::Pod;

use super::arena::PinnedSlice;
use super::context::Cuda;
use super::error::CudaError;
use super::launch::{Grid, Launch, takes};
use super::memory::CudaBuffer;
use super::stream::Stream;
use super::texts::Entry;
use super::twins::{Address, LINE, ROWS_AT_ONCE};

/// from, from_stride, rows, list, wide, count, to, to_stride, width, lanes_log2, errors.
const PARAMETERS: &[usize] = takes![Address, u64, u64, Address, u32, u64, Address, u64, u64, u32, Address];

/// The kernels of `gather_rows.cu`.
pub(super) const ENTRIES: &[Entry] = &[
    Entry { name: "gather_rows_16", parameters: PARAMETERS },
    Entry { name: "gather_rows_8", parameters: PARAMETERS },
    Entry { name: "gather_rows_4", parameters: PARAMETERS },
    Entry { name: "gather_rows_1", parameters: PARAMETERS },
    Entry { name: "scatter_rows_16", parameters: PARAMETERS },
    Entry { name: "scatter_rows_8", parameters: PARAMETERS },
    Entry { name: "scatter_rows_4", parameters: PARAMETERS },
    Entry { name: "scatter_rows_1", parameters: PARAMETERS },
];

/// Threads of a block.
const THREADS: u32 = 256;
/// A row of more bytes may begin before its first line.
const LINE_BYTES: u64 = LINE as u64;
/// Blocks of a multiprocessor that fill a GPU, and that fill the bus and leave the rest to others.
const BLOCKS_ON_GPU: u32 = 8;
const BLOCKS_OVER_BUS: u32 = 2;

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

impl RowList<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Narrow(list) => list.len(),
            Self::Wide(list) => list.len(),
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

/// A kernel and the arguments that follow from sizes.
struct Plan {
    name: &'static str,
    grid: Grid,
    from: Side,
    to: Side,
    width_bytes: u64,
    lanes_log2: u32,
}

impl<'a> RowCall<'a> {
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
        let operation = "gathering rows";
        let (table_len, over_bus) = match &table {
            Table::Gpu(rows) => (rows.len(), false),
            Table::Host(rows) => (rows.len(), true),
        };
        let packed = RowLayout { rows: self.list.len(), width: layout.width, stride: to_stride };
        self.check(operation, (layout, table_len), (packed, to.len()))?;
        if packed.rows == 0 || layout.width == 0 {
            return Ok(());
        }
        let from = match &table {
            Table::Gpu(rows) => rows.address(),
            Table::Host(rows) => rows.address(operation, self.stream)?,
        };
        let sides = (side::<T>(from, layout), side::<T>(to.address(), packed));
        let plan = self.plan::<T>(&GATHER, sides, packed, over_bus);
        let (stream, launch) = (self.stream, Launch::new(self.cuda, self.stream, operation));
        match table {
            Table::Gpu(rows) => self.run(plan, layout, launch.reads(rows), |launch| launch.writes(to)),
            Table::Host(rows) => rows.while_read(stream, |_| {
                self.run(plan, layout, launch.mapped(from), |launch| launch.writes(to))
            }),
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
        let operation = "scattering rows";
        let (table_len, over_bus) = match &table {
            TableMut::Gpu(rows) => (rows.len(), false),
            TableMut::Host(rows) => (rows.len(), true),
        };
        let packed = RowLayout { rows: self.list.len(), width: layout.width, stride: from_stride };
        self.check(operation, (layout, table_len), (packed, from.len()))?;
        if packed.rows == 0 || layout.width == 0 {
            return Ok(());
        }
        let to = match &table {
            TableMut::Gpu(rows) => rows.address(),
            TableMut::Host(rows) => rows.address(operation, self.stream)?,
        };
        let sides = (side::<T>(from.address(), packed), side::<T>(to, layout));
        let plan = self.plan::<T>(&SCATTER, sides, packed, over_bus);
        let (stream, launch) = (self.stream, Launch::new(self.cuda, self.stream, operation).reads(from));
        match table {
            TableMut::Gpu(rows) => self.run(plan, layout, launch, |launch| launch.writes(rows)),
            TableMut::Host(rows) => {
                rows.while_written(stream, |_| self.run(plan, layout, launch, |launch| launch.mapped(to)))
            }
        }
    }

    fn check(
        &self,
        operation: &'static str,
        (table, table_len): (RowLayout, usize),
        (packed, packed_len): (RowLayout, usize),
    ) -> Result<(), CudaError> {
        table.check(operation, "the table", table_len)?;
        packed.check(operation, "the rows in order", packed_len)?;
        if self.errors.is_empty() {
            let mismatch = "the counter of errors has no room".into();
            return Err(CudaError::Arguments { operation, mismatch });
        }
        Ok(())
    }

    fn plan<T>(
        &self,
        names: &[&'static str; 4],
        sides: (Side, Side),
        packed: RowLayout,
        over_bus: bool,
    ) -> Plan {
        let (from, to) = sides;
        let width_bytes = (packed.width * size_of::<T>()) as u64;
        let all = from.address | to.address | from.stride_bytes | to.stride_bytes | width_bytes;
        let (vector, name) = widest(all, names);
        let lanes_log2 = lanes_log2(width_bytes, vector);
        let of_multiprocessor = if over_bus { BLOCKS_OVER_BUS } else { BLOCKS_ON_GPU };
        let most = self.cuda.gpu().multiprocessors.saturating_mul(of_multiprocessor);
        let work = ((packed.rows as u64) << lanes_log2).div_ceil(ROWS_AT_ONCE.into());
        Plan { name, grid: Grid::of(work, THREADS, most), from, to, width_bytes, lanes_log2 }
    }

    /// Adds the arguments after `from`, which `launch` has, and asks for the kernel; `to` adds the one of that name.
    fn run<'b>(
        self,
        plan: Plan,
        layout: RowLayout,
        launch: Launch<'b>,
        to: impl FnOnce(Launch<'b>) -> Launch<'b>,
    ) -> Result<(), CudaError>
    where
        'a: 'b,
    {
        let count = self.list.len();
        let launch = launch.number(plan.from.stride_bytes).number(layout.rows as u64);
        let launch = match self.list {
            RowList::Narrow(list) => launch.reads(list).number(0_u32),
            RowList::Wide(list) => launch.reads(list).number(1_u32),
        };
        let launch = to(launch.number(count as u64)).number(plan.to.stride_bytes).number(plan.width_bytes);
        let launch = launch.number(plan.lanes_log2).writes(self.errors);
        let sizes = || format!("{count} of {} rows of {} bytes", layout.rows, plan.width_bytes);
        // SAFETY: `check` saw to it that all rows of the table and all rows in order lie in what is passed, and that
        // there is a counter. The kernel takes no row number that is not below `rows`, walks `count` rows in strides of
        // the grid, and its accesses are as wide as addresses, strides and width allow.
        unsafe { launch.run(plan.name, plan.grid, sizes) }
    }
}

/// By the width of an access: 16, 8, 4 and 1 bytes.
const GATHER: [&str; 4] = ["gather_rows_16", "gather_rows_8", "gather_rows_4", "gather_rows_1"];
const SCATTER: [&str; 4] = ["scatter_rows_16", "scatter_rows_8", "scatter_rows_4", "scatter_rows_1"];

fn side<T>(address: u64, layout: RowLayout) -> Side {
    Side { address, stride_bytes: (layout.stride * size_of::<T>()) as u64 }
}

/// The widest access in bytes that fits what was combined by "or", and the kernel for it.
fn widest(all: u64, names: &[&'static str; 4]) -> (u64, &'static str) {
    match all.trailing_zeros() {
        4.. => (16, names[0]),
        3 => (8, names[1]),
        2 => (4, names[2]),
        _ => (1, names[3]),
    }
}

/// The exponent of how many lanes copy a row: as many as do it in one step, at most a warp. A row that may begin
/// before its first line takes as many columns more.
fn lanes_log2(width_bytes: u64, vector: u64) -> u32 {
    let before = if width_bytes > LINE_BYTES { LINE_BYTES - vector } else { 0 };
    let columns = (width_bytes + before) / vector;
    columns.max(1).next_power_of_two().trailing_zeros().min(5)
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
    }

    #[test]
    fn accesses_are_as_wide_as_everything_allows() {
        for (all, expected) in
            [(0, 16), (688, 16), (344, 8), (4, 4), (2, 1), (7, 1), (16 | 8, 8), (u64::MAX, 1)]
        {
            assert_eq!(widest(all, &GATHER), (expected, format!("gather_rows_{expected}").leak() as &str));
        }
        assert_eq!(SCATTER.map(|name| widest(16, &SCATTER).1 == name), [true, false, false, false]);
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
            assert_eq!(1 << lanes_log2(width, vector), lanes, "{width} in {vector}");
        }
    }
}
