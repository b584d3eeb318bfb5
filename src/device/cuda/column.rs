//! [`GpuColumn`]: values on a GPU that one stream made and the stream `compute` reads, for as long as anybody wants to.
//!
//! They are made beside a step, and a stream that is recorded for that step cannot wait for another. So the host waits
//! in its place, before anybody gets them, and likewise before their memory is written anew.

use std::sync::Arc;

use bytemuck::Pod;

use super::context::Cuda;
use super::driver::Driver;
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
    /// Room for a column of `len` values in `stream`: that of `before` if it suffices and nobody else has it.
    ///
    /// What was asked of `before` has to be over: the host has waited for it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or the driver's.
    pub fn room(
        (cuda, stream): (&Cuda, &Stream),
        len: usize,
        before: Option<Self>,
    ) -> Result<PendingColumn<T>, CudaError> {
        let bytes = len * size_of::<T>();
        let (wanted, most) = match cuda.driver() {
            // It sees what goes beyond the end.
            Driver::Simulated(_) => (bytes, bytes),
            Driver::Nvidia(_) => {
                let wanted = device::size_class(bytes, LEAST_BYTES, LEAST_BYTES);
                (wanted, 4 * wanted)
            }
        };
        // What is not used again is freed in the order of `stream`.
        let kept = before.and_then(|before| Arc::try_unwrap(before.buffer).ok());
        let kept = kept.map(|buffer| buffer.moved_idle_to(stream));
        let fits = |buffer: &CudaBuffer<T>| (wanted..=most).contains(&buffer.room_bytes());
        let buffer = match kept.filter(fits) {
            Some(buffer) => buffer,
            None => CudaBuffer::room(cuda, stream, wanted / size_of::<T>(), OPERATION)?,
        };
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
    /// The memory, for whoever makes the column; it may have more values.
    pub fn buffer_mut(&mut self) -> &mut CudaBuffer<T> {
        &mut self.buffer
    }

    /// The column becomes the first values of `parts`, one behind the other. Does not wait.
    ///
    /// # Errors
    /// Parts with fewer values, with more than there is room for or of another stream, or the driver's.
    pub fn join<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a CudaBuffer<T>, usize)>,
    ) -> Result<(), CudaError> {
        self.buffer.join(parts)
    }

    /// The column, for the stream `compute` to read. Waits until it is made.
    ///
    /// # Errors
    /// A fault of the GPU.
    pub fn publish(self, cuda: &Cuda) -> Result<GpuColumn<T>, CudaError> {
        self.buffer.stream().synchronize()?;
        Ok(GpuColumn { buffer: Arc::new(self.buffer.moved_idle_to(cuda.compute())), len: self.len })
    }
}
