//! Linear layers, forward and backward, as `kernels/linear.cu`, which has the formulas.
//!
//! Operands are rows wherever they lie ([`Layout`](super::Layout)), so parts of longer rows need no copies. Gradients
//! of weights and biases are partial sums of pieces of rows first, to be added up by [`sum_pieces`](super::sum_pieces).

use super::Floats;
use super::layout::{Layout, Matrix, MatrixMut, Put};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::to_u32;
use crate::device::cuda::twins::{PRODUCT_PIECE_ROWS, PRODUCT_TILE, Product};

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

/// Sizes and layouts of a product.
struct Shape {
    scale: f32,
    /// Rows, columns and inner size of the result, and how many parts.
    sizes: [usize; 4],
    layouts: [Layout; 3],
    put: Put,
}

impl Shape {
    fn twin(&self, operation: &'static str) -> Result<Product, CudaError> {
        let size = |number| to_u32(operation, "a size", number);
        let [rows, columns, inner, parts] = self.sizes;
        if let Some(large) = self.sizes.iter().find(|size| **size > SIZE_MAX) {
            let mismatch = format!("a size of {large}, and {SIZE_MAX} is the most");
            return Err(CudaError::Arguments { operation, mismatch });
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

    /// Threads for a block to a tile of each part, `pieces` times.
    fn threads(&self, pieces: usize) -> usize {
        let tiles = |size: usize| size.div_ceil(PRODUCT_TILE as usize);
        let [rows, columns, _, parts] = self.sizes;
        let blocks = tiles(rows).saturating_mul(tiles(columns)).saturating_mul(parts * pieces);
        blocks.saturating_mul(THREADS as usize)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [rows, columns, inner, parts] = self.sizes;
        write!(f, "{parts} products of {rows} rows, {columns} columns and {inner} between")
    }
}

kernels! {
    /// `out[m, n]` = (or `+=`) `scale a[m, k] w[n, k]^T + bias`, each part with the same bias, which is `[n]`;
    /// rectified if asked for.
    pub fn linear_forward = linear_forward(
        sizes: LinearSizes, (a, a_at): Matrix<'_>, (w, w_at): Matrix<'_>, bias: Option<&Floats>, put: Put,
        (out, out_at): MatrixMut<'_>,
    ) {
        let operation = "a linear layer";
        let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
        let shape = Shape { scale, sizes: [rows, outputs, inputs, parts], layouts: [a_at, w_at, out_at], put };
        pass value(Product, shape.twin(operation)?), rows(a, a_at, [rows, inputs, parts], "inputs"),
            rows(w, w_at, [outputs, inputs, parts], "weights"), optional(bias, outputs, "the bias"),
            rows_mut(out, out_at, [rows, outputs, parts], "results");
        grid shape.threads(1), THREADS;
        text "{shape}";
        safe "Every row of every part is inside of its buffer, and the kernel goes no further; of vectors it loads and
              stores those that end with a row at most.";
    }

    /// `da[m, k]` = (or `+=`) `scale d[m, n] w[n, k]`.
    pub fn linear_input = linear_input(
        sizes: LinearSizes, (d, d_at): Matrix<'_>, (w, w_at): Matrix<'_>, put: Put,
        (da, da_at): MatrixMut<'_>,
    ) {
        let operation = "the gradient of inputs of a linear layer";
        let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
        let shape = Shape { scale, sizes: [rows, inputs, outputs, parts], layouts: [d_at, w_at, da_at], put };
        pass value(Product, shape.twin(operation)?), rows(d, d_at, [rows, outputs, parts], "gradients"),
            rows(w, w_at, [outputs, inputs, parts], "weights"),
            rows_mut(da, da_at, [rows, inputs, parts], "results");
        grid shape.threads(1), THREADS;
        text "{shape}";
        safe "As for [`linear_forward`].";
    }

    /// Partial sums of the gradient of weights, `scale d[m, n]^T a[m, k]`, for each of the [`linear_pieces`] of rows.
    /// Those of a piece lie in `partials` by their layout, `piece_step` values behind those of the piece before, and
    /// `bias` values behind their beginning, if given, the sums of the gradient of a bias: those over the rows of the
    /// first part of `d`.
    pub fn linear_weights = linear_weights(
        sizes: LinearSizes, (d, d_at): Matrix<'_>, (a, a_at): Matrix<'_>,
        (piece_step, bias): (usize, Option<usize>), (partials, at): MatrixMut<'_>,
    ) {
        let operation = "gradients of weights of a linear layer";
        let LinearSizes { rows, outputs, inputs, parts, scale } = sizes;
        let (sizes, layouts) = ([outputs, inputs, rows, parts], [d_at, a_at, at]);
        let shape = Shape { scale, sizes, layouts, put: Put::REPLACE };
        let weights = at.end_apart(operation, "partial sums", [outputs, inputs, parts])?;
        let behind = bias.map_or(0, |bias| at.first.saturating_add(bias).saturating_add(outputs));
        let (piece, pieces) = (weights.max(behind), linear_pieces(rows));
        check ("columns beside a bias", inputs, usize::from(bias.is_some()));
        pass value(Product, shape.twin(operation)?), rows(d, d_at, [rows, outputs, parts], "gradients"),
            rows(a, a_at, [rows, inputs, parts], "inputs"), u64(piece_step),
            flag(bias.is_some()), u64(bias.unwrap_or(0)),
            write_at(partials, at.first, of_pieces(pieces, piece_step, piece), "partial sums");
        grid shape.threads(pieces), THREADS;
        text "{shape}";
        safe "As for [`linear_forward`], and every piece has its sums.";
    }
}

/// Values of `pieces` pieces that end `piece` values behind their beginnings, which are `step` apart.
fn of_pieces(pieces: usize, step: usize, piece: usize) -> usize {
    if pieces == 0 || piece == 0 { 0 } else { step.saturating_mul(pieces - 1).saturating_add(piece) }
}
