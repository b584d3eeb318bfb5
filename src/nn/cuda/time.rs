//! The encoding of time differences.

use std::sync::Arc;

use crate::device::Device;
use crate::device::cuda::layers::{pieces_of, sum_pieces, time_backward, time_encode};
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, PooledBuffer};
use crate::nn::{Parameters, Tensor, TimeEncoder};

/// Frequencies and phases on a GPU.
pub enum Waves<'a> {
    /// Of a fixed encoding.
    Fixed([Option<Arc<CudaBuffer<f32>>>; 2]),
    /// Of a learned one.
    Learned([&'a Tensor; 2]),
}

impl<'a> Waves<'a> {
    /// Those of `encoder`.
    pub fn of(work: &Arc<CudaWork>, encoder: &TimeEncoder, parameters: &'a Parameters) -> Self {
        match encoder {
            TimeEncoder::Fixed { w, b } => Self::Fixed([work.constant(w), work.constant(b)]),
            TimeEncoder::Trained { w, b } => Self::Learned([parameters.get(*w), parameters.get(*b)]),
        }
    }

    /// Where they are.
    ///
    /// # Errors
    /// They are not there, because the work has a fault.
    pub fn get(&self) -> Result<(&CudaBuffer<f32>, &CudaBuffer<f32>), CudaError> {
        match self {
            Self::Fixed([Some(w), Some(b)]) => Ok((w, b)),
            Self::Fixed(_) => Err(CudaError::no_buffer()),
            Self::Learned([w, b]) => Ok((w.on_gpu()?, b.on_gpu()?)),
        }
    }
}

/// The encoding of each of `deltas`.
pub fn encode(work: &CudaWork, y: &mut Tensor, deltas: &PooledBuffer<f32>, waves: &Waves<'_>) {
    work.run(|context| time_encode(context, deltas.get()?, waves.get()?, y.on_gpu_mut()?));
}

/// Sums of the gradients of frequencies and phases, side by side, given that of the result: the columns of `d` from
/// `first` on.
pub fn backward(
    work: &Arc<CudaWork>,
    deltas: &PooledBuffer<f32>,
    waves: &Waves<'_>,
    (d, first): (&Tensor, usize),
    dim: usize,
) -> Tensor {
    let (rows, stride) = d.shape();
    let pieces = pieces_of(rows);
    let mut partials = work.pooled(pieces * 2 * dim);
    let mut both = Tensor::room(&Device::Cuda(work.clone()), 1, 2 * dim);
    work.run(|context| {
        let given = (d.on_gpu()?, first, stride);
        time_backward(context, deltas.get()?, waves.get()?, given, partials.get_mut()?)?;
        sum_pieces(context, [pieces, 2 * dim], partials.get()?, both.on_gpu_mut()?, true)
    });
    both
}
