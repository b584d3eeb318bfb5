//! The element-wise part of a GRU cell, as `kernels/gru.cu`, which has the formulas.

use super::Floats;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::launch::product;

kernels! {
    /// `out`, `[rows, width]`, from `gates` and `hidden`, both `[rows, 3 width]`, which hold the matrix products before
    /// and what the backward needs after. `h` is `[rows, width]`, `bias` `[3 width]`.
    pub fn gru_forward = gru_forward(
        [rows, width]: [usize; 2],
        (gates, hidden): (&mut Floats, &mut Floats), (h, bias): (&Floats, &Floats), out: &mut Floats,
    ) {
        let operation = "a GRU cell forward";
        let count = product(operation, "states", &[rows, width])?;
        let all = product(operation, "gates", &[rows, 3, width])?;
        pass write(gates, all, "gates"), write(hidden, all, "hidden"), read(h, count, "states"),
            read(bias, 3 * width, "the bias"), u64(rows), u32(width, "the width"), write(out, count, "the result");
        grid count, 256;
        text "{rows} rows of {width}";
        safe "Everything has its rows, and the kernel goes no further.";
    }

    /// The gradients, in place, from what the forward left: `d` of the result becomes the direct part of that of `h`,
    /// `gates` and `hidden` those of the matrix products.
    pub fn gru_backward = gru_backward(
        [rows, width]: [usize; 2], d: &mut Floats, (gates, hidden): (&mut Floats, &mut Floats), h: &Floats,
    ) {
        let operation = "a GRU cell backward";
        let count = product(operation, "states", &[rows, width])?;
        let all = product(operation, "gates", &[rows, 3, width])?;
        pass write(d, count, "the gradient"), write(gates, all, "gates"), write(hidden, all, "hidden"),
            read(h, count, "states"), u64(rows), u32(width, "the width");
        grid count, 256;
        text "{rows} rows of {width}";
        safe "Everything has its rows, and the kernel goes no further.";
    }
}
