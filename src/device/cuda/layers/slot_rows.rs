//! What slots hold: node row, edge row and encoded time side by side, as `kernels/slot_rows.cu`.
//!
//! Backward needs nothing of its own: [`clear_empty`](super::clear_empty) of the gradient, whose first columns
//! [`scatter_add_rows`](super::scatter_add_rows) then adds up by node, and whose last ones are
//! [`time_backward`](super::time_backward)'s.

use super::Floats;
use super::joined::Part;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;
use crate::device::cuda::twins::RowPart;

/// Times of slots and how they are encoded.
#[derive(Clone, Copy)]
pub struct SlotTimes<'a> {
    /// A difference per slot.
    pub deltas: &'a Floats,
    /// Frequencies, `columns` of them.
    pub w: &'a Floats,
    /// Phases, as many.
    pub b: &'a Floats,
    /// Columns of an encoding.
    pub columns: usize,
}

kernels! {
    /// The first `count` rows of `out`, without anything between them: columns of `nodes`, of `edges` and of `times`
    /// for each slot, zeros where `nodes` lists no row.
    pub fn slot_rows = slot_rows(
        [nodes, edges]: [Part<'_>; 2], times: SlotTimes<'_>, count: usize, out: &mut Floats,
    ) {
        let operation = "putting slots together";
        let width = nodes.shape[1].saturating_add(edges.shape[1]).saturating_add(times.columns);
        let all = product(operation, "results", &[count, width])?;
        pass built(RowPart, |launch| nodes.twin(&mut launch, operation)?),
            built(RowPart, |launch| edges.twin(&mut launch, operation)?),
            read(times.deltas, count, "differences"), read(times.w, times.columns, "frequencies"),
            read(times.b, times.columns, "phases"), u32(times.columns, "the encoding's width"), u64(count),
            write(out, all, "results");
        then nodes.check(operation, count)?;
        then edges.check(operation, count)?;
        grid 32 * count, 256;
        skip all == 0;
        text "{count} slots of {width}";
        safe "The kernel reads rows that tables have, for which they are long enough, and of each list and of the
              differences a number for each slot, and writes a row of the result for each.";
    }
}
