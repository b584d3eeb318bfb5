//! The operations on tensors on a GPU that ask for several kernels, or that several operations of the tape ask for,
//! backward beside forward. The formulas are those of `ops` and stand there; what is one kernel is called there, too.
//!
//! Nothing here waits, and nothing fails: a fault is kept by the GPU's [`CudaWork`](crate::device::cuda::CudaWork),
//! which leaves out what is asked for after it. Lists of rows and time differences come from the CPU and are
//! uploaded where they are read.

pub mod adam;
pub mod cells;
pub mod gather;
pub mod linear;
pub mod time;

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers::{Layout, Matrix, MatrixMut, Part, StreamContext, sum_pieces};
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork};

use super::Tensor;

/// The sums of the rows of `[pieces, values]` that `ask` fills.
pub fn sums_of(
    work: &Arc<CudaWork>,
    [pieces, values]: [usize; 2],
    ask: impl FnOnce(StreamContext<'_>, &mut CudaBuffer<f32>) -> Result<(), CudaError>,
) -> Tensor {
    let mut partials = work.pooled(pieces * values);
    let mut sums = Tensor::room(&Device::Cuda(work.clone()), 1, values);
    work.run(|context| {
        ask(context, partials.get_mut()?)?;
        sum_pieces(context, [pieces, values], partials.get()?, sums.on_gpu_mut()?, true)
    });
    sums
}

/// All rows of a tensor.
pub fn whole(tensor: &Tensor) -> Result<Matrix<'_>, CudaError> {
    Ok((tensor.on_gpu()?, Layout::dense(tensor.cols())))
}

/// All rows of a tensor, for writing.
pub fn whole_mut(tensor: &mut Tensor) -> Result<MatrixMut<'_>, CudaError> {
    let layout = Layout::dense(tensor.cols());
    Ok((tensor.on_gpu_mut()?, layout))
}

/// The rows of a tensor that `list` names, or all of them.
pub fn rows_of<'a>(tensor: &'a Tensor, list: Option<&'a CudaBuffer<u32>>) -> Result<Part<'a>, CudaError> {
    Ok(Part { table: whole(tensor)?, shape: [tensor.rows(), tensor.cols()], list })
}
