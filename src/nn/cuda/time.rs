//! What a GPU encodes time differences by.

use std::sync::Arc;

use crate::device::cuda::{CudaBuffer, CudaError, CudaWork};
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
