//! The element-wise parts of recurrent cells, and what their gradients are made of.

use std::sync::Arc;

use super::linear::Sums;
use super::whole;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{
    self, Layout, LinearSizes, Put, gru_backward, gru_forward, linear_forward, linear_input,
};
use crate::nn::Tensor;

/// What `h` adds to the gates, and the block n of `W_hh h`, which stands apart.
pub fn gru_hidden(work: &CudaWork, (gates, hidden): (&mut Tensor, &mut Tensor), h: &Tensor, w_hh: &Tensor) {
    let (rows, width) = h.shape();
    let dense = Layout::dense(width);
    work.run(|context| {
        let (sizes, all) = (LinearSizes::new([rows, width, 2 * width]), Layout::dense(3 * width));
        let into = (gates.on_gpu_mut()?, all);
        linear_forward(context, sizes, whole(h)?, (w_hh.on_gpu()?, dense), None, Put::ADD, into)?;
        let (sizes, new) = (LinearSizes::new([rows, width, width]), dense.at(2 * width * width));
        let into = (hidden.on_gpu_mut()?, dense);
        linear_forward(context, sizes, whole(h)?, (w_hh.on_gpu()?, new), None, Put::REPLACE, into)
    });
}

/// The next state, from gates and hidden, which keep what the backward needs.
pub fn gru(
    work: &CudaWork,
    y: &mut Tensor,
    (gates, hidden): (&mut Tensor, &mut Tensor),
    (h, bias): (&Tensor, &Tensor),
) {
    let (rows, width) = h.shape();
    work.run(|context| {
        let saved = (gates.on_gpu_mut()?, hidden.on_gpu_mut()?);
        gru_forward(context, [rows, width], saved, (h.on_gpu()?, bias.on_gpu()?), y.on_gpu_mut()?)
    });
}

/// Gates and hidden become the gradients of their products, and `d` the direct part of that of `h`.
pub fn gru_gates(work: &CudaWork, d: &mut Tensor, (gates, hidden): (&mut Tensor, &mut Tensor), h: &Tensor) {
    let (rows, width) = h.shape();
    work.run(|context| {
        let saved = (gates.on_gpu_mut()?, hidden.on_gpu_mut()?);
        gru_backward(context, [rows, width], d.on_gpu_mut()?, saved, h.on_gpu()?)
    });
}

/// The gradient of `W_hh`.
pub fn gru_weight(
    work: &Arc<CudaWork>,
    dw: &mut Tensor,
    overwrite: bool,
    (gates, hidden): (&Tensor, &Tensor),
    h: &Tensor,
) {
    let (rows, width) = h.shape();
    let (mut sums, dense) = (Sums::new(work, rows, dw.data_len()), Layout::dense(width));
    work.run(|_| {
        sums.weights(LinearSizes::new([rows, width, 2 * width]), whole(gates)?, whole(h)?, dense)?;
        let behind = dense.at(2 * width * width);
        sums.weights(LinearSizes::new([rows, width, width]), whole(hidden)?, whole(h)?, behind)
    });
    sums.finish(dw, overwrite);
}

/// The gradient of `b_hh`.
pub fn gru_bias(work: &Arc<CudaWork>, db: &mut Tensor, overwrite: bool, (gates, hidden): (&Tensor, &Tensor)) {
    let (rows, width) = hidden.shape();
    let mut sums = Sums::new(work, rows, 3 * width);
    work.run(|_| {
        sums.bias([rows, 2 * width], whole(gates)?, 0)?;
        sums.bias([rows, width], whole(hidden)?, 2 * width)
    });
    sums.finish(db, overwrite);
}

/// Adds what flows into `h` through the products.
pub fn gru_state(work: &CudaWork, d: &mut Tensor, (gates, hidden): (&Tensor, &Tensor), w_hh: &Tensor) {
    let (rows, width) = d.shape();
    let dense = Layout::dense(width);
    work.run(|context| {
        let into = (d.on_gpu_mut()?, dense);
        let sizes = LinearSizes::new([rows, width, 2 * width]);
        linear_input(context, sizes, whole(gates)?, (w_hh.on_gpu()?, dense), Put::ADD, into)?;
        let (sizes, new) = (LinearSizes::new([rows, width, width]), dense.at(2 * width * width));
        let into = (d.on_gpu_mut()?, dense);
        linear_input(context, sizes, whole(hidden)?, (w_hh.on_gpu()?, new), Put::ADD, into)
    });
}

/// `y = tanh(y + hidden)`.
pub fn rnn(work: &CudaWork, y: &mut Tensor, hidden: &Tensor) {
    let count = hidden.data_len();
    work.run(|context| layers::rnn(context, hidden.on_gpu()?, count, y.on_gpu_mut()?));
}

/// The gradient of the sum in the place of that of the result.
pub fn rnn_backward(work: &CudaWork, d: &mut Tensor, result: &Tensor) {
    let count = result.data_len();
    work.run(|context| layers::rnn_backward(context, result.on_gpu()?, count, d.on_gpu_mut()?));
}
