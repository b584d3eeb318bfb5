//! Linear layers, forward and backward, as `kernels/linear.cu`, which has the formulas.
//!
//! Operands are rows wherever they lie ([`Layout`](super::Layout)), so parts of longer rows need no copies. Gradients
//! of weights and biases are partial sums of pieces of rows first, to be added up by [`sum_pieces`](super::sum_pieces).

use std::sync::Arc;

use super::Floats;
use super::layout::{Layout, Matrix, MatrixMut, Put};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::error::CudaError;
use crate::device::cuda::launch::{Launch, check_len, to_u32};
use crate::device::cuda::pooled_buffer::PooledBuffer;
use crate::device::cuda::twins::{PRODUCT_PIECE_ROWS, PRODUCT_TILE, PieceProduct, Product};
use crate::device::cuda::work::CudaWork;

const THREADS: u32 = 256;
const WEIGHTS: &str = "gradients of weights of linear layers";
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
    /// Columns of a gradient of inputs that are written: the inputs, and zeros behind them.
    pub padded: usize,
}

impl LinearSizes {
    /// Of one layer.
    #[must_use]
    pub fn new([rows, inputs, outputs]: [usize; 3]) -> Self {
        Self { rows, outputs, inputs, parts: 1, scale: 1.0, padded: inputs }
    }

    /// Of several layers, the products of which count `scale` times.
    #[must_use]
    pub fn parts(self, parts: usize, scale: f32) -> Self {
        Self { parts, scale, ..self }
    }

    /// With gradients of inputs of `padded` columns, zeros behind those of the inputs.
    #[must_use]
    pub fn padded(self, padded: usize) -> Self {
        Self { padded: padded.max(self.inputs), ..self }
    }

    /// How many blocks of threads compute the gradients of weights, of so many pieces of rows.
    #[must_use]
    pub fn weight_blocks(self, pieces: usize) -> usize {
        blocks([self.outputs, self.inputs, self.parts, pieces])
    }
}

/// Pieces of so many rows, as gradients of weights and biases are summed by.
#[must_use]
pub fn linear_pieces(rows: usize) -> usize {
    rows.div_ceil(PRODUCT_PIECE_ROWS as usize)
}

/// Blocks for all tiles of products of so many rows and columns, parts and pieces.
fn blocks([rows, columns, parts, pieces]: [usize; 4]) -> usize {
    let tiles = |size: usize| size.div_ceil(PRODUCT_TILE as usize);
    [tiles(rows), tiles(columns), parts, pieces].into_iter().fold(1, usize::saturating_mul)
}

/// Sizes and layouts of a product.
struct Shape {
    scale: f32,
    /// Rows, columns and inner size of the result, and how many parts.
    sizes: [usize; 4],
    /// Columns that the right side has.
    right_columns: usize,
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
            right_columns: size(self.right_columns)?,
            unused: 0,
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

    /// Threads for a block to a tile of each part.
    fn threads(&self) -> usize {
        let [rows, columns, _, parts] = self.sizes;
        blocks([rows, columns, parts, 1]).saturating_mul(THREADS as usize)
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
        let LinearSizes { rows, outputs, inputs, parts, scale, .. } = sizes;
        let (sizes, layouts) = ([rows, outputs, inputs, parts], [a_at, w_at, out_at]);
        let shape = Shape { scale, sizes, right_columns: outputs, layouts, put };
        pass value(Product, shape.twin(operation)?), rows(a, a_at, [rows, inputs, parts], "inputs"),
            rows(w, w_at, [outputs, inputs, parts], "weights"), optional(bias, outputs, "the bias"),
            rows_mut(out, out_at, [rows, outputs, parts], "results");
        grid shape.threads(), THREADS;
        text "{shape}";
        safe "Every row of every part is inside of its buffer, and the kernel goes no further; of vectors it loads and
              stores those that end with a row at most.";
    }

    /// `da[m, k]` = (or `+=`) `scale d[m, n] w[n, k]`, zeros behind it up to [`LinearSizes::padded`].
    pub fn linear_input = linear_input(
        sizes: LinearSizes, (d, d_at): Matrix<'_>, (w, w_at): Matrix<'_>, put: Put,
        (da, da_at): MatrixMut<'_>,
    ) {
        let operation = "the gradient of inputs of a linear layer";
        let LinearSizes { rows, outputs, inputs, parts, scale, padded } = sizes;
        let (sizes, layouts) = ([rows, padded, outputs, parts], [d_at, w_at, da_at]);
        let shape = Shape { scale, sizes, right_columns: inputs, layouts, put };
        pass value(Product, shape.twin(operation)?), rows(d, d_at, [rows, outputs, parts], "gradients"),
            rows(w, w_at, [outputs, inputs, parts], "weights"),
            rows_mut(da, da_at, [rows, padded, parts], "results");
        grid shape.threads(), THREADS;
        text "{shape}";
        safe "As for [`linear_forward`].";
    }

    /// All products of a table.
    fn multiply = linear_weights(table: &PooledBuffer<PieceProduct>, items: usize) {
        let operation = WEIGHTS;
        let products = table.get()?;
        pass read(products, products.len(), "products"), u32(products.len(), "products"), u64(items);
        grid items.saturating_mul(THREADS as usize), THREADS;
        text "{} products in {items} tiles", products.len();
        safe "As for [`linear_forward`] of each product, as many tiles as each has belong to it, and every piece has its
              sums.";
    }
}

/// The gradient of a weight, and of its bias if it has one, before pieces of rows are added up: `scale d[m, n]^T
/// a[m, k]`, and sums over the rows of the first part of `d`.
#[derive(Clone, Copy)]
pub struct WeightGradient<'a> {
    /// Of the layer.
    pub sizes: LinearSizes,
    /// The gradient of its result, `[m, n]`.
    pub d: Matrix<'a>,
    /// What it was given, `[m, k]`; k is at least 1 where there is a bias.
    pub a: Matrix<'a>,
    /// Where the weight's, `[n, k]`, lie in the partial sums of each piece.
    pub at: Layout,
    /// How far behind their beginning the bias's do.
    pub bias: Option<usize>,
}

/// Where partial sums of gradients go, and what they are of.
pub struct WeightSums<'a> {
    /// Of all pieces.
    pub partials: &'a mut Floats,
    /// From the beginning of a piece to that of the next, in values.
    pub step: usize,
    /// How many pieces: as many as the rows of each product have ([`linear_pieces`]) at least; behind them are zeros.
    pub pieces: usize,
    /// What is written; no value belongs to two.
    pub products: Vec<WeightGradient<'a>>,
}

/// Computes all partial sums of gradients of weights in one launch. Does not wait.
///
/// # Errors
/// Sizes that do not fit, a buffer that is too short or of another stream, or the driver's.
pub fn linear_weights<'a>(
    work: &Arc<CudaWork>,
    sums: impl IntoIterator<Item = WeightSums<'a>>,
) -> Result<(), CudaError> {
    let (cuda, stream) = work.context();
    let mut found = Launch::new(cuda, stream, WEIGHTS);
    let (mut table, mut items) = (Vec::new(), 0_usize);
    for WeightSums { partials, step, pieces, products } in sums {
        let values = partials.len();
        let out = found.writing(partials);
        for WeightGradient { sizes, d: (d, d_at), a: (a, a_at), at, bias } in products {
            let LinearSizes { rows, outputs, inputs, parts, scale, .. } = sizes;
            let weights = at.end_apart(WEIGHTS, "partial sums", [outputs, inputs, parts])?;
            let behind = bias.map_or(0, |bias| at.first.saturating_add(bias).saturating_add(outputs));
            check_len(
                WEIGHTS,
                &[
                    ("columns beside a bias", inputs, usize::from(bias.is_some())),
                    ("pieces", pieces, linear_pieces(rows)),
                    ("gradients", d.len(), d_at.end(WEIGHTS, "gradients", [rows, outputs, parts])?),
                    ("inputs", a.len(), a_at.end(WEIGHTS, "inputs", [rows, inputs, parts])?),
                    ("partial sums", values, of_pieces(pieces, step, weights.max(behind))),
                ],
            )?;
            let (of, layouts) = ([outputs, inputs, rows, parts], [d_at, a_at, at]);
            let shape = Shape { scale, sizes: of, right_columns: inputs, layouts, put: Put::REPLACE };
            table.push(PieceProduct {
                left: found.reading_from(d, d_at.first),
                right: found.reading_from(a, a_at.first),
                out: out.behind::<f32>(at.first),
                shape: shape.twin(WEIGHTS)?,
                before: items as u64,
                piece_step: step as u64,
                left_sums: bias.unwrap_or(0) as u64,
                has_left_sums: u32::from(bias.is_some()),
                unused: 0,
            });
            items = items.saturating_add(sizes.weight_blocks(pieces));
        }
    }
    found.found()?;
    if items == 0 {
        return Ok(());
    }
    multiply(work.context(), &work.upload(&table), items)
}

/// Values of `pieces` pieces that end `piece` values behind their beginnings, which are `step` apart.
fn of_pieces(pieces: usize, step: usize, piece: usize) -> usize {
    if pieces == 0 || piece == 0 { 0 } else { step.saturating_mul(pieces - 1).saturating_add(piece) }
}
