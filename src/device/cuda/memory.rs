//! Memory of a card: [`Budget`], how much of it may be used, and [`CudaBuffer`], a run of plain values in it.
//!
//! A buffer belongs to one stream. It is made, written, read and freed in that stream's order, so nothing has to be
//! recorded and nobody waits; [`CudaBuffer::hand_to`] moves it to another stream behind an event. Copies to and from
//! ordinary memory of the host wait until they are done; those to and from an arena do not.
//!
//! The driver's own pool sits behind the allocations and keeps freed memory up to the budget, so a step that asks for
//! the same sizes again costs no call to the system.
//!
//! Not verified on a GPU, but for the budget.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, result, sys};

use super::arena::PinnedSlice;
use super::context::{Card, Cuda, Stream};
use super::error::{CudaError, During};

/// Allocations are counted in units of this size, which is also their least alignment.
const UNIT_BYTES: usize = 256;

/// Memory of a card that is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of live buffers.
    pub used: usize,
    /// The most there ever were.
    pub peak: usize,
    /// How many there may be.
    pub budget: usize,
}

/// How much of a card's memory may be used, and how much is.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Budget {
    fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) })
    }

    /// `most` bytes, or nine tenths of what is free if that is 0. The driver's pool is told to keep as much.
    pub(super) fn of_card(context: &CudaContext, card: &Card, most: u64) -> Result<Arc<Self>, CudaError> {
        let asking = "asking for free memory";
        let (free, _total) = context.mem_get_info().during(asking, || card.name.clone())?;
        let limit = match usize::try_from(most) {
            Ok(0) => free / 10 * 9,
            Ok(most) => most,
            Err(_) => usize::MAX,
        };
        if card.allocates_in_order {
            let mut keep = limit as u64;
            // SAFETY: the device is open; this attribute is a 64-bit number, to which the pointer is.
            let set = unsafe {
                result::device::get_default_mem_pool(context.cu_device()).and_then(|pool| {
                    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
                    result::mem_pool::set_attribute(pool, threshold, (&raw mut keep).cast())
                })
            };
            set.during("setting up the pool of memory", || format!("{limit} bytes"))?;
        }
        Ok(Self::new(limit))
    }

    pub(super) fn in_use(&self) -> MemoryUse {
        MemoryUse {
            used: self.used.load(Ordering::Relaxed),
            peak: self.peak.load(Ordering::Relaxed),
            budget: self.limit,
        }
    }

    /// Sets `bytes` aside for `operation`.
    fn reserve(self: &Arc<Self>, operation: &'static str, bytes: usize) -> Result<Reservation, CudaError> {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(Reservation { budget: self.clone(), bytes })
            }
            Err(_) => Err(self.refusal(operation, &format!("{bytes} bytes"))),
        }
    }

    fn refusal(&self, operation: &'static str, asked: &str) -> CudaError {
        let MemoryUse { used, budget, .. } = self.in_use();
        let detail = format!(
            "{asked}, and {used} of the {budget} bytes of the card's budget are in use; raise \
             device.memory_bytes_max, free the card, or ask for less"
        );
        CudaError::OutOfMemory { operation, detail }
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// `len` values of a plain type `T` in the memory of a card, in the order of one stream.
pub struct CudaBuffer<T: Pod> {
    address: sys::CUdeviceptr,
    len: usize,
    stream: Stream,
    in_order: bool,
    _share: Reservation,
    kind: PhantomData<T>,
}

impl<T: Pod> CudaBuffer<T> {
    /// `len` zeros for `operation`, which errors name.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] beyond the budget or when the card is full.
    pub fn zeros(
        cuda: &Cuda,
        stream: &Stream,
        len: usize,
        operation: &'static str,
    ) -> Result<Self, CudaError> {
        let buffer = Self::room(cuda, stream, len, operation)?;
        if buffer.is_empty() {
            return Ok(buffer);
        }
        // SAFETY: the address is of at least that many bytes, allocated in the order of this stream.
        unsafe { result::memset_d8_async(buffer.address, 0, buffer.bytes(), stream.raw()) }
            .during(operation, || buffer.sizes())?;
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
        buffer.copy_from(values)?;
        Ok(buffer)
    }

    /// Memory whose bytes are whatever they were. Private: whoever calls it writes all of them first.
    fn room(cuda: &Cuda, stream: &Stream, len: usize, operation: &'static str) -> Result<Self, CudaError> {
        if stream.context() != cuda.context() {
            let mismatch = format!("{stream} is not of cuda:{}", cuda.card().ordinal);
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
        let in_order = cuda.card().allocates_in_order;
        let sizes = || format!("{len} values of {} bytes", size_of::<T>());
        stream.context().bind_to_thread().during(operation, sizes)?;
        // SAFETY: the stream is alive and its context is current; the address is freed once, by `drop`, in the order
        // of the stream that the buffer belongs to by then.
        let address = unsafe {
            if in_order { result::malloc_async(stream.raw(), bytes) } else { result::malloc_sync(bytes) }
        };
        let address = address.map_err(|error| match CudaError::of_driver(operation, sizes(), error) {
            CudaError::OutOfMemory { .. } => {
                budget.refusal(operation, &format!("{bytes} bytes, which the driver refused"))
            }
            other => other,
        })?;
        Ok(Self { address, len, stream: stream.clone(), in_order, _share: share, kind: PhantomData })
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

    /// The stream in whose order everything happens to it.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// From now on it belongs to `stream`, which waits for what was asked of the old one so far.
    ///
    /// # Errors
    /// The driver's, or a stream of another card; it then still belongs to the old one.
    pub fn hand_to(&mut self, stream: &Stream) -> Result<(), CudaError> {
        if stream.is(&self.stream) {
            return Ok(());
        }
        if stream.context() != self.stream.context() {
            let mismatch = format!("a buffer of {} cannot go to {stream}", self.stream);
            return Err(CudaError::Arguments { operation: "handing a buffer over", mismatch });
        }
        stream.wait_for(&self.stream.record()?)?;
        self.stream = stream.clone();
        Ok(())
    }

    /// Overwrites all values. Waits until it is done.
    ///
    /// # Errors
    /// Another number of values, or the driver's.
    pub fn copy_from(&mut self, values: &[T]) -> Result<(), CudaError> {
        let operation = "copying to the card";
        self.fits(operation, values.len())?;
        if self.is_empty() {
            return Ok(());
        }
        self.bind(operation)?;
        // SAFETY: both sides have these bytes; the copy is over, one way or another, before `values` may change.
        let copied = unsafe { result::memcpy_htod_async(self.address, values, self.stream.raw()) };
        let done = self.stream.synchronize();
        copied.during(operation, || self.sizes())?;
        done
    }

    /// A copy of the values in memory of the host. Waits until it is made.
    ///
    /// # Errors
    /// The driver's.
    pub fn copy_to_host(&self) -> Result<Vec<T>, CudaError> {
        let operation = "copying from the card";
        let mut values = vec![T::zeroed(); self.len];
        if self.is_empty() {
            return Ok(values);
        }
        self.bind(operation)?;
        // SAFETY: both sides have these bytes; the copy is over, one way or another, before `values` is read or freed.
        let copied = unsafe { result::memcpy_dtoh_async(&mut values, self.address, self.stream.raw()) };
        let done = self.stream.synchronize();
        copied.during(operation, || self.sizes())?;
        done?;
        Ok(values)
    }

    /// Asks for an overwriting of all values by those of an arena, and does not wait.
    ///
    /// # Errors
    /// Another number of values, or the driver's.
    pub fn copy_from_pinned(&mut self, values: &PinnedSlice<T>) -> Result<(), CudaError> {
        let operation = "copying from the arena to the card";
        self.fits(operation, values.len())?;
        if self.is_empty() {
            return Ok(());
        }
        self.bind(operation)?;
        let (address, bytes, stream) = (self.address, self.bytes(), self.stream.clone());
        let sizes = self.sizes();
        values.while_read(&stream, |host| {
            // SAFETY: both sides have these bytes. The memory of the arena lives on and is not written before the event
            // that `while_read` records; the buffer is freed in the order of this stream.
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, host.cast::<c_void>(), bytes, stream.raw()) }
                .result()
                .during(operation, || sizes)
        })
    }

    /// Asks for a copy of the values to an arena, and does not wait: who reads them there does.
    ///
    /// # Errors
    /// Another number of values, or the driver's.
    pub fn copy_to_pinned(&self, values: &mut PinnedSlice<T>) -> Result<(), CudaError> {
        let operation = "copying from the card to the arena";
        self.fits(operation, values.len())?;
        if self.is_empty() {
            return Ok(());
        }
        self.bind(operation)?;
        values.while_written(&self.stream, |host| {
            // SAFETY: as above, with `while_written`, which also keeps readers away.
            unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    host.cast::<c_void>(),
                    self.address,
                    self.bytes(),
                    self.stream.raw(),
                )
            }
            .result()
            .during(operation, || self.sizes())
        })
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

    fn bind(&self, operation: &'static str) -> Result<(), CudaError> {
        self.stream.context().bind_to_thread().during(operation, || self.sizes())
    }

    fn fits(&self, operation: &'static str, len: usize) -> Result<(), CudaError> {
        if len == self.len {
            return Ok(());
        }
        let mismatch = format!("a buffer of {} values and {len} of the host", self.len);
        Err(CudaError::Arguments { operation, mismatch })
    }
}

impl<T: Pod> Drop for CudaBuffer<T> {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: the address came from the matching call and is freed once. Everything that uses it was asked of this
        // stream, or of one that this stream was made to wait for; without an allocator in order, it is over.
        let freed = unsafe {
            if self.in_order {
                result::free_async(self.address, self.stream.raw())
            } else {
                result::stream::synchronize(self.stream.raw()).and_then(|()| result::free_sync(self.address))
            }
        };
        // The next operation of the context reports it.
        context.record_err(freed);
    }
}

impl<T: Pod> std::fmt::Debug for CudaBuffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaBuffer({} in {})", self.sizes(), self.stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_in_words_and_gives_back() {
        let budget = Budget::new(1000);
        let first = budget.reserve("gathering", 600).unwrap();
        let refused = budget.reserve("sampling", 500).unwrap_err();
        assert!(refused.is_out_of_memory());
        let said = refused.to_string();
        for part in ["sampling", "500 bytes", "600 of the 1000 bytes", "device.memory_bytes_max"] {
            assert!(said.contains(part), "{said}");
        }
        let second = budget.reserve("sampling", 400).unwrap();
        assert_eq!(budget.in_use(), MemoryUse { used: 1000, peak: 1000, budget: 1000 });
        drop(first);
        assert_eq!(budget.in_use(), MemoryUse { used: 400, peak: 1000, budget: 1000 });
        assert!(budget.reserve("anything", usize::MAX).is_err());
        drop(second);
        assert_eq!(budget.in_use().used, 0);
    }

    #[test]
    fn threads_never_get_more_than_the_budget_together() {
        let budget = Budget::new(64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        if let Ok(share) = budget.reserve("test", 24) {
                            assert!(budget.in_use().used <= 64);
                            drop(share);
                        }
                    }
                });
            }
        });
        let MemoryUse { used, peak, .. } = budget.in_use();
        assert_eq!((used, (24..=64).contains(&peak)), (0, true));
    }
}
