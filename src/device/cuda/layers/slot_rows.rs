//! What slots hold: node row, edge row and encoded time side by side, as `kernels/slot_rows.cu`.
//!
//! Backward needs nothing of its own: [`clear_empty`](super::clear_empty) of the gradient, whose first columns
//! [`spread_rows`](super::spread_rows) then adds up by node, and whose last ones are
//! [`time_backward`](super::time_backward)'s.

#![allow(unsafe_code)]

use super::joined::Part;
use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, hold, narrow, product, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, RowPart};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // nodes, edges, deltas, w, b, time, count, out.
    Entry {
        name: "slot_rows",
        parameters: takes![RowPart, RowPart, Address, Address, Address, u32, u64, Address],
    },
];

/// Times of slots and how they are encoded.
#[derive(Clone, Copy)]
pub struct SlotTimes<'a> {
    /// A difference per slot.
    pub deltas: &'a CudaBuffer<f32>,
    /// Frequencies, `columns` of them.
    pub w: &'a CudaBuffer<f32>,
    /// Phases, as many.
    pub b: &'a CudaBuffer<f32>,
    /// Columns of an encoding.
    pub columns: usize,
}

/// The first `count` rows of `out`, without anything between them: columns of `nodes`, of `edges` and of `times` for
/// each slot, zeros where `nodes` lists no row. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn slot_rows(
    (cuda, stream): Place<'_>,
    [nodes, edges]: [Part<'_>; 2],
    times: SlotTimes<'_>,
    count: usize,
    out: &mut CudaBuffer<f32>,
) -> Result<(), CudaError> {
    let operation = "putting slots together";
    let width = nodes.shape[1].saturating_add(edges.shape[1]).saturating_add(times.columns);
    let all = product(operation, "results", &[count, width])?;
    hold(
        operation,
        &[
            ("differences", times.deltas.len(), count),
            ("frequencies", times.w.len(), times.columns),
            ("phases", times.b.len(), times.columns),
            ("results", out.len(), all),
        ],
    )?;
    let mut launch = Launch::new(cuda, stream, operation);
    let nodes = nodes.twin(&mut launch, operation, count)?;
    let edges = edges.twin(&mut launch, operation, count)?;
    if all == 0 {
        return Ok(());
    }
    let launch = launch.number(nodes).number(edges).reads(times.deltas).reads(times.w).reads(times.b);
    let launch = launch.number(narrow(operation, "the encoding's width", times.columns)?);
    let launch = launch.number(count as u64).writes(out);
    let grid = grid(cuda, 32 * count as u64, 256);
    // SAFETY: the kernel reads rows that tables have, for which they are long enough, and of each list and of the
    // differences a number for each slot, and writes a row of the result for each.
    unsafe { launch.run("slot_rows", grid, || format!("{count} slots of {width}")) }
}
