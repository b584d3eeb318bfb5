//! Copies from one buffer to another, on the GPU.

use bytemuck::Pod;

use super::{Cuda, CudaBuffer, CudaError, During, check_len};

impl<T: Pod> CudaBuffer<T> {
    /// Another buffer of the same stream with these values in front and zeros behind, `len` in all. Does not wait.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or a `len` below that of this one.
    pub fn grown(&self, cuda: &Cuda, len: usize, operation: &'static str) -> Result<Self, CudaError> {
        if len < self.len {
            let mismatch = format!("a buffer of {} values cannot grow to {len}", self.len);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        let mut longer = Self::room(cuda, &self.stream, len, operation)?;
        longer.fill_with(0, operation)?;
        longer.copy_front_from(self, self.len)?;
        Ok(longer)
    }

    /// Asks for an overwriting of the first `len` values by the first ones of another buffer of the same stream, and
    /// does not wait.
    ///
    /// # Errors
    /// More values than one of them has, a buffer of another stream, or the driver's.
    pub fn copy_front_from(&mut self, other: &Self, len: usize) -> Result<(), CudaError> {
        self.copy_at(0, other, len)
    }

    /// As [`copy_front_from`](Self::copy_front_from), to the values from `first` on.
    ///
    /// # Errors
    /// As for [`copy_front_from`](Self::copy_front_from).
    fn copy_at(&mut self, first: usize, other: &Self, len: usize) -> Result<(), CudaError> {
        let operation = "copying on the GPU";
        let end = first.saturating_add(len);
        check_len(operation, &[("the source", other.len, len), ("the buffer", self.len, end)])?;
        if !self.stream.is(&other.stream) {
            let mismatch = format!("a buffer of {} in {}: hand it over first", other.stream, self.stream);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        if len == 0 {
            return Ok(());
        }
        let to = self.address + (first * size_of::<T>()) as u64;
        // SAFETY: both have these bytes, and are two allocations in the order of one stream.
        unsafe { self.queue().copy(other.address, to, len * size_of::<T>()) }
            .during(operation, || self.sizes())
    }

    /// Likewise to the first values, from the first ones of `parts`, one behind the other.
    ///
    /// # Errors
    /// As for [`copy_front_from`](Self::copy_front_from).
    pub(in crate::device::cuda) fn join<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Self, usize)>,
    ) -> Result<(), CudaError>
    where
        T: 'a,
    {
        let mut first = 0;
        for (part, len) in parts {
            self.copy_at(first, part, len)?;
            first += len;
        }
        Ok(())
    }
}
