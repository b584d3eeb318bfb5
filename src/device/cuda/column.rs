//! [`GpuColumn`]: values on a GPU that one stream made and the stream `compute` reads, for as long as anybody wants to.
//!
//! They are made beside a step, and a stream that is recorded for that step cannot wait for another. So the host waits
//! in its place, before anybody gets them, and likewise before their memory is written anew.

use std::sync::Arc;

use bytemuck::Pod;

use super::context::Cuda;
use super::error::CudaError;
use super::memory::CudaBuffer;
use super::stream::Stream;
use crate::device;

const OPERATION: &str = "keeping columns of a sample on the GPU";
/// The least room of a column, in bytes.
const LEAST_BYTES: usize = 4096;

/// The first values of a buffer of the stream `compute`, which nobody writes.
pub struct GpuColumn<T: Pod> {
    buffer: Arc<CudaBuffer<T>>,
    len: usize,
}

impl<T: Pod> GpuColumn<T> {
    /// Puts the first values of `parts`, which belong to `stream`, one behind the other, into the memory of `before` if
    /// that suffices and nobody else has it. They may be read once [`publish`](PendingColumn::publish) has waited.
    ///
    /// What was asked of `before` has to be over: the host has waited for it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], parts that have fewer values or belong to another stream, or the driver's.
    pub fn joined<'a>(
        (cuda, stream): (&Cuda, &Stream),
        parts: impl Iterator<Item = (&'a CudaBuffer<T>, usize)> + Clone,
        before: Option<Self>,
    ) -> Result<PendingColumn<T>, CudaError> {
        let len = parts.clone().map(|(_, len)| len).sum();
        let wanted = device::size_class(len * size_of::<T>(), LEAST_BYTES, LEAST_BYTES);
        let kept = before.and_then(|before| Arc::try_unwrap(before.buffer).ok());
        let fits = |buffer: &CudaBuffer<T>| buffer.len() >= len && buffer.room_bytes() / 4 <= wanted;
        let mut buffer = match kept.filter(fits) {
            Some(buffer) => buffer.at_rest_in(stream),
            None => CudaBuffer::room(cuda, stream, wanted / size_of::<T>(), OPERATION)?,
        };
        let mut first = 0;
        for (part, len) in parts {
            buffer.copy_at(first, part, len)?;
            first += len;
        }
        Ok(PendingColumn { buffer, len })
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first `len` of them, or all if there are fewer.
    #[must_use]
    pub fn front(&self, len: usize) -> Self {
        Self { buffer: self.buffer.clone(), len: len.min(self.len) }
    }

    /// The memory, which may have more values.
    #[must_use]
    pub fn buffer(&self) -> &CudaBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> Clone for GpuColumn<T> {
    fn clone(&self) -> Self {
        Self { buffer: self.buffer.clone(), len: self.len }
    }
}

impl<T: Pod> std::fmt::Debug for GpuColumn<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuColumn({} values)", self.len)
    }
}

/// A column that is being made.
pub struct PendingColumn<T: Pod> {
    buffer: CudaBuffer<T>,
    len: usize,
}

impl<T: Pod> PendingColumn<T> {
    /// The column, for the stream `compute` to read. Waits until it is made.
    ///
    /// # Errors
    /// A fault of the GPU.
    pub fn publish(self, cuda: &Cuda) -> Result<GpuColumn<T>, CudaError> {
        self.buffer.stream().synchronize()?;
        Ok(GpuColumn { buffer: Arc::new(self.buffer.at_rest_in(cuda.compute())), len: self.len })
    }
}
