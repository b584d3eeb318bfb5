//! [`CudaBuffer`]: a run of plain values in the memory of a GPU.
//!
//! A buffer belongs to one stream. It is made, written, read and freed in that stream's order, so nothing has to be
//! recorded and nobody waits; one for whose work the host has waited can move to another stream. Copies to and from
//! ordinary memory of the host wait until they are done; those to and from an arena do not.
//!
//! The driver's own pool sits behind the allocations and keeps freed memory up to the budget, so a step that asks for
//! the same sizes again costs no call to the system.
//!
//! While a stream is recorded (`capture`), memory for it is taken from the other one, so that it is not the graph's
//! own, and what is freed goes back behind the graph.

#![allow(unsafe_code)]

mod copies;
mod part;
mod pinned;

use std::any::Any;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use bytemuck::Pod;

use super::budget::Reservation;
use super::context::Cuda;
use super::driver::Queue;
use super::error::{CudaError, During};
use super::launch::check_len;
use super::recording::Freed;
use super::stream::Stream;

/// Allocations are counted in units of this size, which is also their least alignment.
const UNIT_BYTES: usize = 256;

/// `len` values of a plain type `T` in the memory of a GPU, in the order of one stream.
pub struct CudaBuffer<T: Pod> {
    address: u64,
    len: usize,
    /// Bytes of the memory, of which `len` values are shown.
    room: usize,
    stream: Stream,
    in_order: bool,
    share: Option<Reservation>,
    /// Who has the memory that it is a part of, if it is, and frees it.
    whole: Option<Arc<dyn Any + Send + Sync>>,
    kind: PhantomData<T>,
}

impl<T: Pod> CudaBuffer<T> {
    /// `len` zeros for `operation`, which errors name.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] beyond the budget or when the GPU is full.
    pub fn zeros(
        cuda: &Cuda,
        stream: &Stream,
        len: usize,
        operation: &'static str,
    ) -> Result<Self, CudaError> {
        let mut buffer = Self::room(cuda, stream, len, operation)?;
        if buffer.is_empty() {
            return Ok(buffer);
        }
        buffer.fill_with(0, operation)?;
        Ok(buffer)
    }

    /// A copy of `values` for `operation`. Waits until it is made.
    ///
    /// # Errors
    /// As for [`zeros`](Self::zeros).
    pub fn from_slice(
        cuda: &Cuda,
        stream: &Stream,
        values: &[T],
        operation: &'static str,
    ) -> Result<Self, CudaError> {
        let mut buffer = Self::room(cuda, stream, values.len(), operation)?;
        buffer.write_at(0, values)?;
        Ok(buffer)
    }

    /// Memory whose bytes are whatever they were: whoever calls it writes all of them first.
    pub(super) fn room(
        cuda: &Cuda,
        stream: &Stream,
        len: usize,
        operation: &'static str,
    ) -> Result<Self, CudaError> {
        if !stream.driver().is(cuda.driver()) {
            let mismatch = format!("{stream} is not of cuda:{}", cuda.gpu().ordinal);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        let budget = cuda.budget();
        // The driver refuses to allocate nothing.
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.max(1).checked_next_multiple_of(UNIT_BYTES));
        let Some(bytes) = bytes else {
            return Err(budget.refusal(operation, &format!("{len} values of {} bytes", size_of::<T>())));
        };
        let share = budget.reserve(operation, bytes)?;
        let in_order = cuda.gpu().allocates_in_order;
        let sizes = || format!("{len} values of {} bytes", size_of::<T>());
        let order = allocator(cuda, stream, operation)?;
        // The address is freed once, by `drop`, in the order of the stream that the buffer belongs to by then. A
        // simulated GPU gets the exact length, so that it sees what goes beyond.
        let address = order.queue().allocate((len * size_of::<T>()).max(1), in_order).map_err(|error| {
            match CudaError::of_driver(operation, sizes(), error) {
                CudaError::OutOfMemory { .. } => {
                    budget.refusal(operation, &format!("{bytes} bytes, which the driver refused"))
                }
                other => other,
            }
        })?;
        let (stream, share) = (stream.clone(), Some(share));
        let room = len * size_of::<T>();
        let buffer = Self { address, len, room, stream, in_order, share, whole: None, kind: PhantomData };
        if !order.is(&buffer.stream) {
            order.synchronize()?;
        }
        Ok(buffer)
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many values it can show.
    pub(super) fn capacity(&self) -> usize {
        self.room / size_of::<T>()
    }

    /// Bytes of its memory.
    pub(super) fn room_bytes(&self) -> usize {
        self.room
    }

    /// Shows the first `len` values of the memory, whatever they hold; at most the [`capacity`](Self::capacity).
    pub(super) fn show(&mut self, len: usize) {
        self.len = len.min(self.capacity());
    }

    /// The stream in whose order everything happens to it.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The same memory as values of another type: `len` of them, or as many as there is room for.
    pub(super) fn cast<U: Pod>(self, len: usize) -> CudaBuffer<U> {
        let buffer = ManuallyDrop::new(self);
        let (room, capacity) = (buffer.room, buffer.room / size_of::<U>());
        // SAFETY: each part is moved out once, and what they were moved out of is not dropped.
        let (stream, share, whole) = unsafe {
            (
                ptr::read(&raw const buffer.stream),
                ptr::read(&raw const buffer.share),
                ptr::read(&raw const buffer.whole),
            )
        };
        let (address, in_order) = (buffer.address, buffer.in_order);
        CudaBuffer {
            address,
            len: len.min(capacity),
            room,
            stream,
            in_order,
            share,
            whole,
            kind: PhantomData,
        }
    }

    /// The same memory in the order of `stream`. The caller must have waited on the host for all work on it.
    pub(super) fn moved_idle_to(mut self, stream: &Stream) -> Self {
        self.stream = stream.clone();
        self
    }

    /// Puts `byte` into every byte of all values. Does not wait.
    pub(super) fn fill_with(&mut self, byte: u8, operation: &'static str) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: the address is of that many bytes, in the order of this stream.
        unsafe { self.queue().fill(self.address, byte, self.bytes()) }.during(operation, || self.sizes())
    }

    /// Puts `word` everywhere into the first `len` values. Does not wait.
    ///
    /// # Errors
    /// Values that are no words of 32 bits, more than there are, or the driver's.
    pub(super) fn fill_front_words(
        &mut self,
        len: usize,
        word: u32,
        operation: &'static str,
    ) -> Result<(), CudaError> {
        const { assert!(size_of::<T>() == size_of::<u32>()) };
        check_len(operation, &[("the buffer", self.len, len)])?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the address is of that many words, in the order of this stream.
        unsafe { self.queue().fill_words(self.address, word, len) }.during(operation, || self.sizes())
    }

    /// Overwrites the values from `first` on. Waits until it is done.
    ///
    /// # Errors
    /// Values that go beyond the end, or the driver's.
    pub fn write_at(&mut self, first: usize, values: &[T]) -> Result<(), CudaError> {
        let operation = "copying to the GPU";
        if first.checked_add(values.len()).is_none_or(|end| end > self.len) {
            let mismatch = format!("{} values from {first} on, and a buffer of {}", values.len(), self.len);
            return Err(CudaError::Arguments { operation, mismatch });
        }
        if values.is_empty() {
            return Ok(());
        }
        self.stream.at_once(operation)?;
        let (to, bytes) = (self.address + (first * size_of::<T>()) as u64, size_of_val(values));
        // SAFETY: both sides have these bytes; the copy is over, one way or another, before `values` may change.
        let copied = unsafe { self.stream.upload(to, values.as_ptr().cast(), bytes) };
        let done = self.stream.synchronize();
        copied.during(operation, || self.sizes())?;
        done
    }

    /// A copy of the values in memory of the host. Waits until it is made.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_to_host(&self) -> Result<Vec<T>, CudaError> {
        self.copy_front_to_host(self.len)
    }

    /// A copy of the first `len` values in memory of the host. Waits until it is made.
    ///
    /// # Errors
    /// More values than there are, or the driver's.
    pub fn copy_front_to_host(&self, len: usize) -> Result<Vec<T>, CudaError> {
        let operation = "copying from the GPU";
        check_len(operation, &[("the buffer", self.len, len)])?;
        let mut values = vec![T::zeroed(); len];
        if len == 0 {
            return Ok(values);
        }
        self.stream.at_once(operation)?;
        let bytes = size_of_val(values.as_slice());
        // SAFETY: both sides have these bytes; the copy is over, one way or another, before `values` is read or freed.
        let copied = unsafe { self.stream.download(self.address, values.as_mut_ptr().cast(), bytes) };
        let done = self.stream.synchronize();
        copied.during(operation, || self.sizes())?;
        done?;
        Ok(values)
    }

    /// Where the values begin, for launchers, which see to it that the stream is the right one.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn sizes(&self) -> String {
        format!("{} values of {} bytes", self.len, size_of::<T>())
    }

    fn queue(&self) -> &Queue {
        self.stream.queue()
    }

    fn fits(&self, operation: &'static str, len: usize) -> Result<(), CudaError> {
        if len == self.len {
            return Ok(());
        }
        let mismatch = format!("a buffer of {} values and {len} of the host", self.len);
        Err(CudaError::Arguments { operation, mismatch })
    }
}

/// The stream in whose order memory for `stream` is allocated: another one while that is recorded, since what it
/// allocates then is the graph's.
fn allocator<'a>(
    cuda: &'a Cuda,
    stream: &'a Stream,
    operation: &'static str,
) -> Result<&'a Stream, CudaError> {
    if !stream.is_recorded() {
        return Ok(stream);
    }
    let others = [cuda.transfer(), cuda.compute()];
    match others.into_iter().find(|other| !other.is_recorded()) {
        Some(other) => Ok(other),
        None => stream.at_once(operation).map(|()| stream),
    }
}

impl<T: Pod> Drop for CudaBuffer<T> {
    fn drop(&mut self) {
        if self.is_part() {
            return;
        }
        let freed = Freed { address: self.address, in_order: self.in_order, share: self.share.take() };
        self.stream.recording().free(freed, |Freed { address, in_order, share: _share }| {
            // SAFETY: the address came from the matching call and is freed once. Everything that uses it was enqueued
            // on this stream, or on one that this stream was made to wait for.
            unsafe { self.queue().free(address, in_order) };
        });
    }
}

impl<T: Pod> std::fmt::Debug for CudaBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaBuffer({} in {})", self.sizes(), self.stream)
    }
}
