//! What layers do value by value, as `kernels/elementwise.cu`, which has the formulas.
//!
//! Each takes how many values there are; buffers may be longer.

use super::Floats;
use crate::device::cuda::declare::kernels;
use crate::device::cuda::twins::Mask;

const THREADS: u32 = 256;

kernels! {
    /// The first `count` of `out` become those of `x` plus those of `y`.
    pub fn add = add_values(x: &Floats, y: &Floats, count: usize, out: &mut Floats) {
        let operation = "adding values";
        pass read(x, count, "terms"), read(y, count, "terms"), u64(count), write(out, count, "sums");
        grid count, THREADS;
        safe "All three have `count` values.";
    }

    /// The first `count` of `sum` become those of `d`, or have them added unless `overwrite`.
    pub fn accumulate = accumulate(d: &Floats, count: usize, overwrite: bool, sum: &mut Floats) {
        let operation = "adding to sums";
        pass read(d, count, "terms"), u64(count), flag(overwrite), write(sum, count, "sums");
        grid count, THREADS;
        safe "Both have `count` values.";
    }

    /// The first `count` of `out` become those of `x` times those of `y`, or have that added unless
    /// `overwrite`.
    pub fn multiply = multiply_values(x: &Floats, y: &Floats, count: usize, overwrite: bool, out: &mut Floats) {
        let operation = "multiplying values";
        pass read(x, count, "factors"), read(y, count, "factors"), u64(count), flag(overwrite),
            write(out, count, "products");
        grid count, THREADS;
        safe "All three have `count` values.";
    }

    /// The first `count` of `out` become `factor` times those of `x`.
    pub fn scale = scale_values(factor: f32, x: &Floats, count: usize, out: &mut Floats) {
        let operation = "scaling values";
        pass f32(factor), read(x, count, "values"), u64(count), write(out, count, "results");
        grid count, THREADS;
        safe "Both have `count` values.";
    }

    /// The first `count` of `out` become those of `x`, 0 where they are negative. Backward is
    /// [`relu_backward`](super::relu_backward).
    pub fn relu = relu(x: &Floats, count: usize, out: &mut Floats) {
        let operation = "a rectifier";
        pass read(x, count, "values"), u64(count), write(out, count, "results");
        grid count, THREADS;
        safe "Both have `count` values.";
    }

    /// The first `count` of `out` become the Gaussian error linear unit of those of `x`, times the factors of `mask`.
    pub fn gelu = gelu(mask: Mask, x: &Floats, count: usize, out: &mut Floats) {
        let operation = "a Gaussian unit";
        pass value(Mask, mask), read(x, count, "values"), u64(count), write(out, count, "results");
        grid count.div_ceil(4), THREADS;
        text "{count} values";
        safe "Both have `count` values.";
    }

    /// The first `count` of `d`, the gradient of the result of [`gelu`], become that of `x`.
    pub fn gelu_backward = gelu_backward(mask: Mask, x: &Floats, count: usize, d: &mut Floats) {
        let operation = "a Gaussian unit backward";
        pass value(Mask, mask), read(x, count, "values"), u64(count), write(d, count, "gradients");
        grid count.div_ceil(4), THREADS;
        text "{count} values";
        safe "Both have `count` values.";
    }

    /// The first `count` of `y`, a plain cell's product with its input, become the cell's new state, given that with
    /// its old one, `hidden`.
    pub fn rnn = rnn(hidden: &Floats, count: usize, y: &mut Floats) {
        let operation = "a plain cell";
        pass read(hidden, count, "hidden"), u64(count), write(y, count, "states");
        grid count, THREADS;
        safe "Both have `count` values.";
    }

    /// The first `count` of `d`, the gradient of the `result` of [`rnn`], become that of both products.
    pub fn rnn_backward = rnn_backward(result: &Floats, count: usize, d: &mut Floats) {
        let operation = "a plain cell backward";
        pass read(result, count, "states"), u64(count), write(d, count, "gradients");
        grid count, THREADS;
        safe "Both have `count` values.";
    }
}
