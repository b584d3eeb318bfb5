//! [`PooledBuffer`]: memory of a GPU from the pool of its work; [`PendingCopy`]: values that were asked from
//! there.

use std::sync::Arc;

use bytemuck::Pod;

use super::error::CudaError;
use super::memory::CudaBuffer;
use super::staging::{Detached, Fetched};
use super::work::CudaWork;

const CLEARING: &str = "clearing memory";

/// Memory of a GPU that returns to its pool when it is dropped.
pub struct PooledBuffer<T: Pod> {
    buffer: Option<CudaBuffer<T>>,
    /// Whether it goes back to the driver.
    apart: bool,
    work: Arc<CudaWork>,
}

impl<T: Pod> PooledBuffer<T> {
    pub(super) fn of(buffer: Option<CudaBuffer<T>>, work: &Arc<CudaWork>) -> Self {
        Self { buffer, apart: false, work: work.clone() }
    }

    pub(super) fn apart(buffer: CudaBuffer<T>, work: &Arc<CudaWork>) -> Self {
        Self { buffer: Some(buffer), apart: true, work: work.clone() }
    }

    /// The memory.
    ///
    /// # Errors
    /// There is none: the work has a fault, which states the reason.
    pub fn get(&self) -> Result<&CudaBuffer<T>, CudaError> {
        self.buffer.as_ref().ok_or_else(CudaError::no_buffer)
    }

    /// The memory for writing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_mut(&mut self) -> Result<&mut CudaBuffer<T>, CudaError> {
        self.buffer.as_mut().ok_or_else(CudaError::no_buffer)
    }

    /// How many values there could be.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, CudaBuffer::capacity)
    }

    /// Shows the first `len` values, whatever they hold.
    pub fn show(&mut self, len: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.show(len);
        }
    }

    /// Clears every byte.
    pub fn clear(&mut self) {
        let work = self.work.clone();
        work.run(|_| self.get_mut()?.fill_with(0, CLEARING));
    }

    /// Asks for the first `len` values, and does not wait for them.
    #[must_use]
    pub fn fetch(&self, len: usize) -> PendingCopy<T> {
        let mut values = None;
        self.work.run(|_| {
            let buffer = self.get()?;
            values = Some(self.work.staged(|staging| staging.download(buffer, len))?);
            Ok(())
        });
        PendingCopy { values, len, work: self.work.clone() }
    }

    /// Asks for the first `len` values, for any thread to wait for. Not while a step is recorded.
    ///
    /// # Errors
    /// The work has a fault, which [`check`](CudaWork::check) returns.
    pub fn detach(&self, len: usize) -> Result<DetachedCopy<T>, CudaError> {
        let mut values = None;
        self.work.run(|_| {
            let buffer = self.get()?;
            values = Some(self.work.staged(|staging| staging.download_detached(buffer, len))?);
            Ok(())
        });
        let values = values.ok_or_else(CudaError::no_buffer)?;
        Ok(DetachedCopy { values, work: self.work.clone() })
    }

    /// The first `len` values, zeros after a fault. Waits.
    #[must_use]
    pub fn read(&self, len: usize) -> Vec<T> {
        self.fetch(len).wait()
    }
}

/// Values that are on their way from a GPU.
pub struct PendingCopy<T: Pod> {
    values: Option<Fetched<T>>,
    len: usize,
    work: Arc<CudaWork>,
}

impl<T: Pod> PendingCopy<T> {
    /// The values; zeros after a fault. Waits for them.
    #[must_use]
    pub fn wait(self) -> Vec<T> {
        let mut found = Vec::new();
        self.append_to(&mut found);
        found
    }

    /// Appends the values to others, or zeros after a fault. Waits for them.
    pub fn append_to(self, all: &mut Vec<T>) {
        let end = all.len() + self.len;
        self.work.run(|(_, stream)| {
            let Some(values) = &self.values else { return Ok(()) };
            // Others read values in the room meanwhile.
            if self.work.staged(|staging| Ok(values.is_coming(staging)))? {
                stream.synchronize()?;
            }
            self.work.staged(|staging| values.append_to(all, staging))
        });
        all.resize(end, T::zeroed());
    }
}

/// Values that are on their way from a GPU, for any thread to wait for while others ask that GPU for more.
pub struct DetachedCopy<T: Pod> {
    values: Detached<T>,
    work: Arc<CudaWork>,
}

impl<T: Pod> DetachedCopy<T> {
    /// The values. Waits for them.
    ///
    /// # Errors
    /// A fault of the GPU.
    pub fn wait(&self) -> Result<Vec<T>, CudaError> {
        // Whoever asks for more meanwhile needs the rooms.
        self.values.wait()?;
        // Locked together, since they take each other's place.
        let (staging, spare) = (self.work.staging.lock(), self.work.spare.lock());
        self.values.read([staging.as_ref(), spare.as_ref()])
    }
}

impl<T: Pod> Clone for PooledBuffer<T> {
    fn clone(&self) -> Self {
        let len = self.buffer.as_ref().map_or(0, CudaBuffer::len);
        let mut copy = self.work.pooled(len);
        self.work.run(|_| copy.get_mut()?.copy_front_from(self.get()?, len));
        copy
    }
}

impl<T: Pod> Drop for PooledBuffer<T> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take().filter(|_| !self.apart) {
            self.work.keep(buffer.cast::<u8>(usize::MAX));
        }
    }
}
