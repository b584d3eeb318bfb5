//! [`List`]: numbers that an operation reads, one for each of its rows, wherever they were made.

use std::sync::Arc;

use bytemuck::Pod;

use crate::device::cuda::layers::follow_list;
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
            Self::Gpu(_) => panic!("this list is on a GPU: the host cannot read it"),
        }
    }

    /// The numbers, for the host to change; those of others who have the list stay as they are.
    ///
    /// # Panics
    /// If they are on a GPU.
    pub fn values_mut(&mut self) -> &mut Vec<T> {
        match self {
            Self::Host(values) => Arc::make_mut(values),
            Self::Gpu(_) => panic!("this list is on a GPU: the host cannot change it"),
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

/// Which row of a table each row reads.
#[derive(Clone, Debug)]
pub enum Places {
    /// As the host lists them.
    Host(Arc<Vec<u32>>),
    /// Row i reads what `rows` has at `at[i]`; none where there is nothing.
    Through {
        /// Places in `rows`, on the GPU that computes.
        at: GpuColumn<u32>,
        /// Rows of the table.
        rows: Vec<u32>,
    },
}

impl Places {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Host(places) => places.len(),
            Self::Through { at, .. } => at.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same with each row of the table become the one that `of` says.
    #[must_use]
    pub fn moved(self, of: impl Fn(u32) -> u32) -> Self {
        let moved = |rows: &[u32]| rows.iter().map(|&row| of(row)).collect::<Vec<_>>();
        match self {
            Self::Host(places) => moved(&places).into(),
            Self::Through { at, rows } => Self::Through { at, rows: moved(&rows) },
        }
    }

    /// Row i reads this, for the host to read.
    ///
    /// # Panics
    /// If a GPU has a part of it.
    #[must_use]
    pub fn values(&self) -> &[u32] {
        match self {
            Self::Host(places) => places,
            Self::Through { .. } => panic!("this list is on a GPU: the host cannot read it"),
        }
    }

    /// Checks what the host has of it, for a table of so many rows: `node` is all ones in slots that are not read.
    ///
    /// # Panics
    /// If a row is not there.
    pub(super) fn check(&self, node: &List<u32>, rows: usize) {
        let is_there = |row: &u32| (*row as usize) < rows;
        let node = node.on_host().map(|node| node.as_slice()).unwrap_or_default();
        let fits = match self {
            Self::Host(places) => {
                places.iter().zip(node).all(|(row, node)| *node == u32::MAX || is_there(row))
            }
            Self::Through { rows, .. } => rows.iter().all(is_there),
        };
        assert!(fits, "an edge beyond {rows} edge rows");
    }

    /// The places for `work` to read.
    pub(super) fn sent(&self, work: &Arc<CudaWork>) -> PooledBuffer<u32> {
        match self {
            Self::Host(places) => work.upload(places),
            Self::Through { at, rows } => {
                let (list, mut places) = (work.upload(rows), work.pooled(at.len()));
                work.run(|context| {
                    follow_list(context, at.buffer(), at.len(), list.get()?, places.get_mut()?)
                });
                places
            }
        }
    }
}

impl From<Vec<u32>> for Places {
    fn from(places: Vec<u32>) -> Self {
        Self::Host(Arc::new(places))
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
