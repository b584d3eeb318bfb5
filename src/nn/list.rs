//! [`List`]: numbers that an operation reads, one for each of its rows, wherever they were made.

use std::sync::Arc;

use bytemuck::Pod;

use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, GpuColumn, PooledBuffer};

/// A number for each row: which row of a table it reads, or a value.
#[derive(Clone, Debug)]
pub enum List<T: Pod> {
    /// In memory of the host. A GPU that reads them gets a copy.
    Host(Arc<Vec<T>>),
    /// On the GPU that computes, which sees to it that no row is read that is not there.
    Gpu(GpuColumn<T>),
}

impl<T: Pod> List<T> {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Gpu(values) => values.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they are on a GPU.
    #[must_use]
    pub fn is_on_gpu(&self) -> bool {
        matches!(self, Self::Gpu(_))
    }

    /// The numbers on the host; none if they are on a GPU.
    #[must_use]
    pub fn on_host(&self) -> Option<&Arc<Vec<T>>> {
        match self {
            Self::Host(values) => Some(values),
            Self::Gpu(_) => None,
        }
    }

    /// The numbers, for the host to read.
    ///
    /// # Panics
    /// If they are on a GPU.
    #[must_use]
    pub fn values(&self) -> &[T] {
        match self {
            Self::Host(values) => values,
            Self::Gpu(_) => panic!("a list that the host reads is on the host"),
        }
    }

    /// The numbers, for the host to change; those of others who have the list stay as they are.
    ///
    /// # Panics
    /// If they are on a GPU.
    pub fn values_mut(&mut self) -> &mut Vec<T> {
        match self {
            Self::Host(values) => Arc::make_mut(values),
            Self::Gpu(_) => panic!("a list that the host changes is on the host"),
        }
    }

    /// The numbers for `work` to read.
    pub(super) fn sent(&self, work: &Arc<CudaWork>) -> Sent<T> {
        match self {
            Self::Host(values) => Sent::Copied(work.upload(values)),
            Self::Gpu(values) => Sent::There(values.clone()),
        }
    }
}

impl<T: Pod> From<Vec<T>> for List<T> {
    fn from(values: Vec<T>) -> Self {
        Self::Host(Arc::new(values))
    }
}

impl<T: Pod> From<Arc<Vec<T>>> for List<T> {
    fn from(values: Arc<Vec<T>>) -> Self {
        Self::Host(values)
    }
}

/// A list where a GPU reads it.
pub(super) enum Sent<T: Pod> {
    Copied(PooledBuffer<T>),
    There(GpuColumn<T>),
}

impl<T: Pod> Sent<T> {
    /// The memory.
    ///
    /// # Errors
    /// There is none: the work has a fault, which states the reason.
    pub fn get(&self) -> Result<&CudaBuffer<T>, CudaError> {
        match self {
            Self::Copied(values) => values.get(),
            Self::There(values) => Ok(values.buffer()),
        }
    }
}
