//! Copies between a buffer and an arena. They do not wait: a slice of the arena keeps events, and who comes next waits.

#![allow(unsafe_code)]

use bytemuck::Pod;

use super::CudaBuffer;
use crate::device::cuda::arena::PinnedSlice;
use crate::device::cuda::error::{CudaError, During};
use crate::device::cuda::launch::check_len;

impl<T: Pod> CudaBuffer<T> {
    /// Asks for an overwriting of all values by those of an arena, and does not wait.
    ///
    /// # Errors
    /// Another number of values, or the driver's.
    pub fn copy_from_pinned(&mut self, values: &PinnedSlice<T>) -> Result<(), CudaError> {
        self.fits("copying from the arena to the GPU", values.len())?;
        self.copy_front_from_pinned(values, values.len())
    }

    /// Asks for an overwriting of the first `len` values by the first ones of an arena's, and does not wait.
    ///
    /// # Errors
    /// More values than one of them has, or the driver's.
    pub fn copy_front_from_pinned(&mut self, values: &PinnedSlice<T>, len: usize) -> Result<(), CudaError> {
        let operation = "copying from the arena to the GPU";
        check_len(operation, &[("the arena", values.len(), len), ("the buffer", self.len, len)])?;
        if len == 0 {
            return Ok(());
        }
        values.while_read(&self.stream, |host| {
            // SAFETY: both sides have these bytes. The memory of the arena lives on and is not written before the event
            // that `while_read` records; the buffer is freed in the order of this stream.
            unsafe { self.stream.upload(self.address, host.cast(), len * size_of::<T>()) }
                .during(operation, || self.sizes())
        })
    }

    /// Enqueues a copy of the values from `first` on, as many as the arena's, and does not wait: who reads
    /// them there does.
    ///
    /// # Errors
    /// Values that go beyond the end, or the driver's.
    pub fn copy_part_to_pinned(&self, first: usize, values: &mut PinnedSlice<T>) -> Result<(), CudaError> {
        let operation = "copying from the GPU to the arena";
        let len = values.len();
        check_len(operation, &[("the buffer", self.len, first.saturating_add(len))])?;
        if len == 0 {
            return Ok(());
        }
        let from = self.address + (first * size_of::<T>()) as u64;
        values.while_written(&self.stream, |host| {
            // SAFETY: as above, with `while_written`, which also keeps readers away.
            unsafe { self.stream.download(from, host.cast(), len * size_of::<T>()) }
                .during(operation, || self.sizes())
        })
    }
}
