//! Sums and means over groups of rows, and rows that are cleared, as `kernels/reduce.cu`, which has the
//! formulas. Numbers of rows are the GPU's to check: what a table does not have is left out.

use super::{Floats, Rows};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;

const THREADS: u32 = 256;
/// Threads of a row: a warp.
const LANES: usize = 32;

/// Rows that stand together: how many of each group count, the number of groups, and the rows that each has.
pub type SlotGroups<'a> = (&'a Rows, usize, usize);

kernels! {
    /// `out`, `[groups, columns]`: of each group the sum of the rows of `x`, `[groups * slots, columns]`, that count,
    /// or their `mean`.
    pub fn reduce_slots = reduce_slots(
        (counts, groups, slots): SlotGroups<'_>, x: &Floats, columns: usize, mean: bool, out: &mut Floats,
    ) {
        let operation = "adding up groups of rows";
        let sums = product(operation, "sums", &[groups, columns])?;
        let all = product(operation, "rows", &[groups, slots, columns])?;
        pass read(counts, groups, "counts"), u64(groups), u32(slots, "slots"), read(x, all, "rows"),
            u32(columns, "columns"), flag(mean), write(out, sums, "sums");
        grid sums, THREADS;
        text "{groups} groups of {slots} rows of {columns}";
        safe "Every group has its rows and its sum, and no more of the rows count.";
    }

    /// `dx`, `[groups * slots, columns]`: what each row gets of `d`, `[groups, columns]`, the gradient of
    /// [`reduce_slots`]; zeros where it does not count.
    pub fn broadcast_slots = spread_slots(
        (counts, groups, slots): SlotGroups<'_>, d: &Floats, columns: usize, mean: bool, dx: &mut Floats,
    ) {
        let operation = "broadcasting gradients over groups of rows";
        let sums = product(operation, "gradients", &[groups, columns])?;
        let all = product(operation, "rows", &[groups, slots, columns])?;
        pass read(counts, groups, "counts"), u64(groups), u32(slots, "slots"), read(d, sums, "gradients"),
            u32(columns, "columns"), flag(mean), write(dx, all, "rows");
        grid sums, THREADS;
        skip all == 0;
        text "{groups} groups of {slots} rows of {columns}";
        safe "Every group has its rows and its gradient.";
    }

    /// Clears the rows of `d`, of `columns` values, that the first `count` of `rows` name.
    pub fn clear_rows = clear_rows(rows: &Rows, count: usize, columns: usize, d: &mut Floats) {
        let operation = "clearing rows";
        pass read(rows, count, "rows"), u64(count), u32(columns, "columns"), u64(d.len() / columns),
            write(d, 0, "values");
        grid count.saturating_mul(LANES), THREADS;
        skip count == 0 || columns == 0;
        text "{count} rows of {columns}";
        safe "As many rows are named, and the kernel clears those that there are.";
    }

    /// Clears of the first `count` rows of `d`, of `columns` values, those whose slot is empty: of `slots` all ones.
    pub fn clear_empty = clear_empty(slots: &Rows, count: usize, columns: usize, d: &mut Floats) {
        let operation = "clearing empty slots";
        let all = product(operation, "rows", &[count, columns])?;
        pass read(slots, count, "slots"), u64(count), u32(columns, "columns"), write(d, all, "rows");
        grid count.saturating_mul(LANES), THREADS;
        skip all == 0;
        text "{count} rows of {columns}";
        safe "There are as many slots and rows.";
    }
}
