//! The time encoding as rows, as `kernels/time_encoding.cu`, which has the formulas.

use super::{Floats, pieces_of};
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;

kernels! {
    /// `out`, `[deltas, dim]`: the encoding of each of `deltas` by frequencies `w` and phases `b`, `dim` each.
    pub fn time_encode = time_encode(deltas: &Floats, (w, b): (&Floats, &Floats), out: &mut Floats) {
        let operation = "encoding times";
        let (rows, dim) = (deltas.len(), w.len());
        let count = product(operation, "encodings", &[rows, dim])?;
        pass read(deltas, rows, "differences"), read(w, dim, "frequencies"), read(b, dim, "phases"), u64(rows),
            u32(dim, "the width"), write(out, count, "encodings");
        grid count, 256;
        text "{rows} rows of {dim}";
        safe "Everything has its rows, and the kernel goes no further.";
    }

    /// `partials`, `[pieces_of(rows), 2 dim]`: sums of the gradients of frequencies and, behind them, phases, of the
    /// first `rows` of `deltas`. The gradient of encoding i is the `dim` values of `d` from `first + i * stride` on.
    pub fn time_backward = time_backward(
        (deltas, rows): (&Floats, usize), (w, b): (&Floats, &Floats), (d, first, stride): (&Floats, usize, usize),
        partials: &mut Floats,
    ) {
        let operation = "encoding times backward";
        let dim = w.len();
        let sums = product(operation, "partial sums", &[pieces_of(rows), 2, dim])?;
        let before = product(operation, "gradients", &[rows.saturating_sub(1), stride])?;
        let needed = if rows == 0 { 0 } else { before.saturating_add(first).saturating_add(dim) };
        pass read(deltas, rows, "differences"), read(w, dim, "frequencies"), read(b, dim, "phases"),
            read_at(d, first, needed, "gradients"), u64(stride), u64(rows), u32(dim, "the width"),
            write(partials, sums, "partial sums");
        grid 128 * pieces_of(rows), 128;
        skip sums == 0;
        text "{rows} rows of {dim}";
        safe "Everything has its rows, and the kernel goes no further; a block sums a piece.";
    }
}
