//! The second step of sums over rows, as `kernels/pieces.cu`: partial sums of pieces, added up in their order, for many
//! results in one launch.

use std::sync::Arc;

use super::Floats;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, to_u32};
use crate::device::cuda::pooled_buffer::PooledBuffer;
use crate::device::cuda::twins::{PIECE_ROWS, PieceSum, PieceTerm};
use crate::device::cuda::work::CudaWork;

const THREADS: u32 = 128;
const ADDING_UP: &str = "adding up partial sums";

/// Pieces of so many rows.
#[must_use]
pub fn pieces_of(rows: usize) -> usize {
    rows.div_ceil(PIECE_ROWS as usize)
}

/// Partial sums: those of a piece begin `step` values behind those of the piece before.
#[derive(Clone, Copy)]
pub struct Partials<'a> {
    /// Where they are.
    pub values: &'a Floats,
    /// Where those of the first piece begin.
    pub first: usize,
    /// From the beginning of a piece to that of the next.
    pub step: usize,
    /// How many pieces.
    pub pieces: usize,
}

impl Partials<'_> {
    /// Values that a buffer has at least that holds `columns` of each piece.
    fn end(&self, columns: usize) -> usize {
        match self.pieces {
            0 => 0,
            pieces => self.step.saturating_mul(pieces - 1).saturating_add(self.first).saturating_add(columns),
        }
    }
}

/// Results and their terms, on a GPU, and how many columns all results have.
struct Tables {
    sums: PooledBuffer<PieceSum>,
    terms: PooledBuffer<PieceTerm>,
    columns: usize,
}

kernels! {
    /// Adds up the terms of every result of `tables`.
    fn add_up = sum_pieces(tables: &Tables) {
        let operation = ADDING_UP;
        let (sums, terms) = (tables.sums.get()?, tables.terms.get()?);
        let count = sums.len();
        pass read(sums, count, "results"), u32(count, "results"), read(terms, terms.len(), "terms"),
            u64(tables.columns);
        grid tables.columns, THREADS;
        text "{count} results of {} values together", tables.columns;
        safe "Each column belongs to a result of the table, whose buffer and those of its terms have as many values as
              it states, and no buffer is written as two of them.";
    }
}

/// Each result, of so many columns, becomes the sum of its terms, in their order, or has them added unless it is to be
/// overwritten; in one launch. Does not wait.
///
/// # Errors
/// Buffers that are too short, a buffer of another stream, or the driver's.
pub fn sum_pieces<'a>(
    work: &Arc<CudaWork>,
    results: impl IntoIterator<Item = ((&'a mut Floats, usize, bool), Vec<Partials<'a>>)>,
) -> Result<(), CudaError> {
    let (cuda, stream) = work.context();
    let mut found = Launch::new(cuda, stream, ADDING_UP);
    let (mut sums, mut terms, mut columns) = (Vec::new(), Vec::new(), 0);
    for ((out, own, overwrite), given) in results {
        check_len(ADDING_UP, &[("sums", out.len(), own)])?;
        sums.push(PieceSum {
            out: found.writing(out),
            before: columns as u64,
            first: to_u32(ADDING_UP, "terms", terms.len())?,
            terms: to_u32(ADDING_UP, "terms", given.len())?,
            fresh: u32::from(overwrite),
            unused: 0,
        });
        columns += own;
        for term in given {
            check_len(ADDING_UP, &[("partial sums", term.values.len(), term.end(own))])?;
            let partials = found.reading_from(term.values, term.first);
            terms.push(PieceTerm { partials, step: term.step as u64, pieces: term.pieces as u64 });
        }
    }
    found.found()?;
    if columns == 0 {
        return Ok(());
    }
    let tables = Tables { sums: work.upload(&sums), terms: work.upload(&terms), columns };
    add_up(work.context(), &tables)
}
