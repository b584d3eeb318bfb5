//! The products of a GRU cell with its state, and their gradients.

use std::sync::Arc;

use super::linear::Sums;
use super::whole;
use crate::device::cuda::CudaWork;
use crate::device::cuda::layers::{Layout, LinearSizes, Put, linear_forward, linear_input};
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
    sums.finish((dw, overwrite));
}

/// The gradient of `b_hh`.
pub fn gru_bias(work: &Arc<CudaWork>, db: &mut Tensor, overwrite: bool, (gates, hidden): (&Tensor, &Tensor)) {
    let (rows, width) = hidden.shape();
    let mut sums = Sums::new(work, rows, 3 * width);
    work.run(|_| {
        sums.bias([rows, 2 * width], whole(gates)?, 0)?;
        sums.bias([rows, width], whole(hidden)?, 2 * width)
    });
    sums.finish((db, overwrite));
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
