//! The operations on tensors on a GPU that ask for several kernels, or that several operations of the tape ask for,
//! backward beside forward. The formulas are those of `ops` and stand there; what is one kernel is called there, too.
//!
//! Nothing here waits, and nothing fails: a fault is kept by the GPU's [`CudaWork`](crate::device::cuda::CudaWork),
//! which leaves out what is asked for after it. Lists of rows and time differences come from the CPU and are
//! uploaded where they are read.

pub mod adam;
pub mod gather;
pub mod linear;
pub mod sums;
pub mod time;

use crate::device::cuda::layers::{Layout, Matrix, MatrixMut, Part};
use crate::device::cuda::{CudaBuffer, CudaError};

use super::Tensor;

/// All rows of a tensor.
pub fn whole(tensor: &Tensor) -> Result<Matrix<'_>, CudaError> {
    Ok((tensor.on_gpu()?, Layout::dense(tensor.cols())))
}

/// All rows of a tensor, for writing.
pub fn whole_mut(tensor: &mut Tensor) -> Result<MatrixMut<'_>, CudaError> {
    let layout = Layout::dense(tensor.cols());
    Ok((tensor.on_gpu_mut()?, layout))
}

/// Where the rows of a tensor from `first` on stand.
pub fn rows_behind(tensor: &Tensor, first: usize) -> Layout {
    Layout::dense(tensor.cols()).at(first * tensor.cols())
}

/// How many rows of a tensor a list may name: any number will do for a table without columns.
pub fn rows_to_read(tensor: &Tensor) -> usize {
    if tensor.cols() == 0 { u32::MAX as usize } else { tensor.rows() }
}

/// The rows of a tensor that `list` names, or all of them.
pub fn rows_of<'a>(tensor: &'a Tensor, list: Option<&'a CudaBuffer<u32>>) -> Result<Part<'a>, CudaError> {
    Ok(Part { table: whole(tensor)?, shape: [rows_to_read(tensor), tensor.cols()], list })
}
