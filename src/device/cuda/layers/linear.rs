//! Linear layers, forward and backward, as `kernels/linear.cu`, which has the formulas.
//!
//! Operands are rows wherever they lie ([`Layout`](super::Layout)), so parts of longer rows need no copies. Gradients
//! of weights and biases are partial sums of pieces of rows first, to be added up by [`sum_pieces`](super::sum_pieces).

#![allow(unsafe_code)]

use super::layout::{Layout, Matrix, MatrixMut, Put};
use super::{Place, grid};
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Grid, Launch, hold, narrow, takes};
use crate::device::cuda::memory::CudaBuffer;
use crate::device::cuda::texts::Entry;
use crate::device::cuda::twins::{Address, PRODUCT_PIECE_ROWS, PRODUCT_TILE, Product};

pub(in crate::device::cuda) const ENTRIES: &[Entry] = &[
    // product, a, w, bias, out.
    Entry { name: "linear_forward", parameters: takes![Product, Address, Address, Address, Address] },
    // product, d, w, da.
    Entry { name: "linear_input", parameters: takes![Product, Address, Address, Address] },
    // product, d, a, piece_step, partials.
    Entry { name: "linear_weights", parameters: takes![Product, Address, Address, u64, Address] },
    // d, stride, rows, columns, piece_step, partials.
    Entry { name: "linear_bias", parameters: takes![Address, u64, u64, u32, u64, Address] },
];

const THREADS: u32 = 256;
/// What a kernel counts in 32 bits stays clear of their end by more than a tile.
const SIZE_MAX: usize = 1 << 30;

/// Sizes of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearSizes {
    /// Rows that go through, m.
    pub rows: usize,
    /// Columns of a result, n.
    pub outputs: usize,
    /// Columns of an input, k.
    pub inputs: usize,
    /// How many layers of these sizes at once, as the heads of an attention.
    pub parts: usize,
    /// Times which products count.
    pub scale: f32,
}

impl LinearSizes {
    /// Of one layer.
    #[must_use]
    pub fn new([rows, inputs, outputs]: [usize; 3]) -> Self {
        Self { rows, outputs, inputs, parts: 1, scale: 1.0 }
    }

    /// Of several layers, the products of which count `scale` times.
    #[must_use]
    pub fn parts(self, parts: usize, scale: f32) -> Self {
        Self { parts, scale, ..self }
    }
}

/// Pieces of so many rows, as gradients of weights and biases are summed by.
#[must_use]
pub fn linear_pieces(rows: usize) -> usize {
    rows.div_ceil(PRODUCT_PIECE_ROWS as usize)
}

/// A product that is about to be asked for.
struct Call {
    operation: &'static str,
    scale: f32,
    /// Rows, columns and inner size of the result, and how many parts.
    shape: [usize; 4],
    layouts: [Layout; 3],
    put: Put,
}

impl Call {
    fn twin(&self) -> Result<Product, CudaError> {
        let size = |number| narrow(self.operation, "a size", number);
        let [rows, columns, inner, parts] = self.shape;
        if let Some(large) = self.shape.iter().find(|size| **size > SIZE_MAX) {
            let mismatch = format!("a size of {large}, and {SIZE_MAX} is the most");
            return Err(CudaError::Arguments { operation: self.operation, mismatch });
        }
        let [left, right, out] = self.layouts;
        Ok(Product {
            rows: size(rows)?,
            columns: size(columns)?,
            inner: size(inner)?,
            parts: size(parts)?,
            left_stride: left.stride as u64,
            right_stride: right.stride as u64,
            out_stride: out.stride as u64,
            left_step: left.step as u64,
            right_step: right.step as u64,
            out_step: out.step as u64,
            scale: self.scale,
            into: self.put.bits(),
        })
    }

    /// A block to a tile of each part, `pieces` times.
    fn grid(&self, place: Place<'_>, pieces: usize) -> Grid {
        let tiles = |size: usize| size.div_ceil(PRODUCT_TILE as usize) as u64;
        let [rows, columns, _, parts] = self.shape;
        let blocks = tiles(rows).saturating_mul(tiles(columns)).saturating_mul((parts * pieces) as u64);
        grid(place.0, blocks.saturating_mul(THREADS.into()), THREADS)
    }

    fn is_empty(&self) -> bool {
        let [rows, columns, _, parts] = self.shape;
        rows == 0 || columns == 0 || parts == 0
    }

    fn sizes(&self) -> String {
        let [rows, columns, inner, parts] = self.shape;
        format!("{parts} products of {rows} rows, {columns} columns and {inner} between")
    }
}

/// `out[m, n]` = (or `+=`) `scale a[m, k] w[n, k]^T + bias`, each part with the same bias, which is `[n]`; rectified if
/// asked for. Does not wait.
///
/// # Errors
/// Sizes that do not fit, a buffer of another stream, or the driver's.
pub fn linear_forward(
    place: Place<'_>,
    sizes: LinearSizes,
    (a, a_layout): Matrix<'_>,
    (w, w_layout): Matrix<'_>,
    bias: Option<&CudaBuffer<f32>>,
    put: Put,
    (out, out_layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "a linear layer";
    let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
    hold(
        operation,
        &[
            ("inputs", a.len(), a_layout.end(operation, "inputs", [rows, inputs, parts])?),
            ("weights", w.len(), w_layout.end(operation, "weights", [outputs, inputs, parts])?),
            ("the bias", bias.map_or(outputs, CudaBuffer::len), outputs),
            ("results", out.len(), out_layout.end_apart(operation, "results", [rows, outputs, parts])?),
        ],
    )?;
    let shape = [rows, outputs, inputs, parts];
    let call = Call { operation, scale, shape, layouts: [a_layout, w_layout, out_layout], put };
    if call.is_empty() {
        return Ok(());
    }
    let mut launch = Launch::new(place.0, place.1, operation);
    let bias = bias.map_or(Address::NULL, |bias| launch.reading(bias));
    let launch = launch.number(call.twin()?).reads_from(a, a_layout.first).reads_from(w, w_layout.first);
    let launch = launch.number(bias).writes_from(out, out_layout.first);
    // SAFETY: every row of every part is inside of its buffer, and the kernel goes no further; of vectors it loads and
    // stores those that end with a row at most.
    unsafe { launch.run("linear_forward", call.grid(place, 1), || call.sizes()) }
}

/// `da[m, k]` = (or `+=`) `scale d[m, n] w[n, k]`. Does not wait.
///
/// # Errors
/// As for [`linear_forward`].
pub fn linear_input(
    place: Place<'_>,
    sizes: LinearSizes,
    (d, d_layout): Matrix<'_>,
    (w, w_layout): Matrix<'_>,
    put: Put,
    (da, da_layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "the gradient of inputs of a linear layer";
    let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
    hold(
        operation,
        &[
            ("gradients", d.len(), d_layout.end(operation, "gradients", [rows, outputs, parts])?),
            ("weights", w.len(), w_layout.end(operation, "weights", [outputs, inputs, parts])?),
            ("results", da.len(), da_layout.end_apart(operation, "results", [rows, inputs, parts])?),
        ],
    )?;
    let shape = [rows, inputs, outputs, parts];
    let call = Call { operation, scale, shape, layouts: [d_layout, w_layout, da_layout], put };
    if call.is_empty() {
        return Ok(());
    }
    let launch = Launch::new(place.0, place.1, operation).number(call.twin()?);
    let launch = launch.reads_from(d, d_layout.first).reads_from(w, w_layout.first);
    let launch = launch.writes_from(da, da_layout.first);
    // SAFETY: as for the forward.
    unsafe { launch.run("linear_input", call.grid(place, 1), || call.sizes()) }
}

/// Partial sums of the gradient of weights, `scale d[m, n]^T a[m, k]`, for each of the [`linear_pieces`] of rows. Those
/// of a piece lie in `partials` by their layout, `piece_step` values behind those of the piece before. Does not wait.
///
/// # Errors
/// As for [`linear_forward`].
pub fn linear_weights(
    place: Place<'_>,
    sizes: LinearSizes,
    (d, d_layout): Matrix<'_>,
    (a, a_layout): Matrix<'_>,
    piece_step: usize,
    (partials, layout): MatrixMut<'_>,
) -> Result<(), CudaError> {
    let operation = "gradients of weights of a linear layer";
    let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
    let piece = layout.end_apart(operation, "partial sums", [outputs, inputs, parts])?;
    let pieces = linear_pieces(rows);
    hold(
        operation,
        &[
            ("gradients", d.len(), d_layout.end(operation, "gradients", [rows, outputs, parts])?),
            ("inputs", a.len(), a_layout.end(operation, "inputs", [rows, inputs, parts])?),
            ("partial sums", partials.len(), of_pieces(pieces, piece_step, piece)),
        ],
    )?;
    let shape = [outputs, inputs, rows, parts];
    let call = Call { operation, scale, shape, layouts: [d_layout, a_layout, layout], put: Put::REPLACE };
    if call.is_empty() || pieces == 0 {
        return Ok(());
    }
    let launch = Launch::new(place.0, place.1, operation).number(call.twin()?);
    let launch = launch.reads_from(d, d_layout.first).reads_from(a, a_layout.first);
    let launch = launch.number(piece_step as u64).writes_from(partials, layout.first);
    // SAFETY: as for the forward, and every piece has its sums.
    unsafe { launch.run("linear_weights", call.grid(place, pieces), || call.sizes()) }
}

/// Partial sums of the gradient of a bias, the sums over rows of `d`, `[rows, columns]`, for each of the
/// [`linear_pieces`] of rows: `columns` values of `partials` from `first` on, `piece_step` values apart. Does not wait.
///
/// # Errors
/// As for [`linear_forward`].
pub fn linear_bias(
    (cuda, stream): Place<'_>,
    [rows, columns]: [usize; 2],
    (d, layout): Matrix<'_>,
    piece_step: usize,
    (partials, first): (&mut CudaBuffer<f32>, usize),
) -> Result<(), CudaError> {
    let operation = "gradients of a bias";
    let pieces = linear_pieces(rows);
    let sums = of_pieces(pieces, piece_step, first.saturating_add(columns));
    let end = layout.end(operation, "gradients", [rows, columns, 1])?;
    hold(operation, &[("gradients", d.len(), end), ("partial sums", partials.len(), sums)])?;
    if pieces == 0 || columns == 0 {
        return Ok(());
    }
    let launch = Launch::new(cuda, stream, operation).reads_from(d, layout.first);
    let launch = launch.number(layout.stride as u64).number(rows as u64);
    let launch = launch.number(narrow(operation, "columns", columns)?).number(piece_step as u64);
    let launch = launch.writes_from(partials, first);
    let blocks = (pieces * columns.div_ceil(32)) as u64;
    let grid = grid(cuda, blocks.saturating_mul(THREADS.into()), THREADS);
    // SAFETY: every row and every piece is inside of its buffer, and the kernel goes no further.
    unsafe { launch.run("linear_bias", grid, || format!("{rows} rows of {columns}")) }
}

/// Values of `pieces` pieces that end `piece` values behind their beginnings, which are `step` apart.
fn of_pieces(pieces: usize, step: usize, piece: usize) -> usize {
    if pieces == 0 || piece == 0 { 0 } else { step.saturating_mul(pieces - 1).saturating_add(piece) }
}
