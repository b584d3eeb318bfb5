//! Layer normalization of rows, as `kernels/layer_norm.cu`, which has the formulas.

use super::{Floats, pieces_of};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;

kernels! {
    /// `y`, `[rows, cols]`: the rows of `x` normalized, and their `moments`, `[rows, 2]`; `gamma` and `beta` are
    /// `[cols]`, and a row has a column at least.
    pub fn layer_norm_forward = layer_norm_forward(
        [rows, cols]: [usize; 2],
        x: &Floats, (gamma, beta, eps): (&Floats, &Floats, f32), (y, moments): (&mut Floats, &mut Floats),
    ) {
        let operation = "normalizing rows";
        let count = product(operation, "rows", &[rows, cols])?;
        check ("columns", cols, 1);
        pass read(x, count, "rows"), read(gamma, cols, "gamma"), read(beta, cols, "beta"), f32(eps), u64(rows),
            u32(cols, "the width"), write(y, count, "results"), write(moments, rows.saturating_mul(2), "moments");
        grid 32 * rows, 128;
        text "{rows} rows of {cols}";
        safe "Everything has its rows, and the kernel goes no further.";
    }

    /// `partials`, `[pieces_of(rows), 2 cols]`: sums of the gradients of gamma and, behind them, beta, given that of
    /// the result, `d`. Before [`layer_norm_backward`], which overwrites it.
    pub fn layer_norm_parameters = layer_norm_parameters(
        [rows, cols]: [usize; 2], (d, x): (&Floats, &Floats), moments: &Floats, partials: &mut Floats,
    ) {
        let operation = "gradients of normalizing rows";
        let count = product(operation, "rows", &[rows, cols])?;
        let sums = product(operation, "partial sums", &[pieces_of(rows), 2, cols])?;
        pass read(d, count, "gradients"), read(x, count, "rows"),
            read(moments, rows.saturating_mul(2), "moments"), u64(rows), u32(cols, "the width"),
            write(partials, sums, "partial sums");
        grid 128 * pieces_of(rows), 128;
        skip sums == 0;
        text "{rows} rows of {cols}";
        safe "Everything has its rows, and the kernel goes no further; a block sums a piece.";
    }

    /// The gradient of `x` in place of that of the result, `d`.
    pub fn layer_norm_backward = layer_norm_backward(
        [rows, cols]: [usize; 2], d: &mut Floats, (x, moments): (&Floats, &Floats), gamma: &Floats,
    ) {
        let operation = "normalizing rows backward";
        let count = product(operation, "rows", &[rows, cols])?;
        pass write(d, count, "gradients"), read(x, count, "rows"),
            read(moments, rows.saturating_mul(2), "moments"), read(gamma, cols, "gamma"), u64(rows),
            u32(cols, "the width");
        grid 32 * rows, 128;
        skip count == 0;
        text "{rows} rows of {cols}";
        safe "Everything has its rows, and the kernel goes no further.";
    }
}
