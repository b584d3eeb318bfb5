//! [`Arena`]: one big piece of the host's memory that a GPU can read in place, and [`PinnedSlice`], a part of it.
//!
//! The memory is ours, begins on a page of 2 MiB and is registered with CUDA once (portable, mapped, not
//! write-combined: the CPU reads it as well). Registering page-locks it, so it is slow and done for the whole.
//! The same memory may be where the disk is read to. Without a GPU it is plain memory and the same code.
//!
//! A slice may be seen by the CPU and by every stream, so it keeps an event of the last write and of the last
//! read of each stream. Who comes next waits for what it must: a reader for the write, a writer for all. Borrowing does
//! the rest: while the CPU holds `&mut`, nothing can be enqueued on a GPU, and what was enqueued before is over.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{CudaContext, sys};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::context::Cuda;
use super::driver::Driver;
use super::error::{CudaError, During};
use super::stream::{Event, Stream};
use crate::device::pages;

/// The arena begins at a multiple of this, and slices are cut at multiples of [`LINE_BYTES`].
const PAGE_BYTES: usize = 2 << 20;
/// What a GPU reads over the bus in one request.
pub(super) const LINE_BYTES: usize = 128;

/// Memory of the host, given out in slices. It ends with its last slice.
pub struct Arena {
    memory: Arc<Memory>,
    taken: usize,
}

impl Arena {
    /// `bytes` zeros, rounded up to pages of 2 MiB, which `cuda`, if there is one, can read and write.
    ///
    /// # Errors
    /// The system has no such memory, or the GPU cannot map it or may not page-lock as much.
    pub fn new(bytes: usize, cuda: Option<&Cuda>) -> Result<Self, CudaError> {
        Ok(Self { memory: Arc::new(Memory::new(bytes, cuda)?), taken: 0 })
    }

    /// The next `len` values, all zero, beginning on a line of 128 bytes. They come back with the whole arena.
    ///
    /// # Errors
    /// [`CudaError::Arguments`] when the arena has no such room left.
    pub fn take<T: Pod>(&mut self, len: usize) -> Result<PinnedSlice<T>, CudaError> {
        const { assert!(align_of::<T>() <= LINE_BYTES) };
        let bytes =
            len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_next_multiple_of(LINE_BYTES));
        let end = bytes.and_then(|bytes| self.taken.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= self.memory.bytes) else {
            let left = self.memory.bytes - self.taken;
            let mismatch = format!("{len} values of {} bytes, and {left} bytes are left", size_of::<T>());
            return Err(CudaError::Arguments { operation: "taking from the arena", mismatch });
        };
        let offset = std::mem::replace(&mut self.taken, end);
        let uses = Mutex::default();
        Ok(PinnedSlice { memory: self.memory.clone(), offset, len, uses, kind: PhantomData })
    }

    /// Bytes of it, taken or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }
}

/// Pages of the system, and what a GPU calls them.
struct Memory {
    /// First byte, on a page of 2 MiB, and how many follow.
    begin: NonNull<u8>,
    bytes: usize,
    /// What the system gave, which is one such page longer.
    reserved: NonNull<c_void>,
    mapping: Option<Mapping>,
}

/// A file without a name, in memory, that a simulated GPU can map as well.
fn shareable(bytes: usize) -> rustix::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("evergraph arena", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes as u64)?;
    Ok(file)
}

/// Pages of the system: those of `file`, or nobody else's.
fn reserve(bytes: usize, file: Option<&OwnedFd>) -> rustix::io::Result<*mut c_void> {
    let (access, nowhere) = (ProtFlags::READ | ProtFlags::WRITE, ptr::null_mut());
    // SAFETY: a new mapping at an address of the system's choice touches nothing that is there.
    unsafe {
        match file {
            Some(file) => rustix::mm::mmap(nowhere, bytes, access, MapFlags::SHARED, file, 0),
            None => {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(nowhere, bytes, access, flags)
            }
        }
    }
}

/// How a GPU sees the memory.
struct Mapping {
    driver: Driver,
    address: u64,
    /// Whether it has to be unregistered.
    registered: bool,
}

// SAFETY: the memory belongs to this value alone and is reached through slices only, which do not overlap and follow
// the rules of borrowing; the driver's calls may come from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above; a shared `Memory` only hands out its address.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(bytes: usize, cuda: Option<&Cuda>) -> Result<Self, CudaError> {
        let operation = "making the arena";
        let no_room = |cause: String| CudaError::Absent {
            operation,
            missing: format!("no memory for {bytes} bytes: {cause}"),
        };
        let rounded = bytes.max(1).checked_next_multiple_of(PAGE_BYTES);
        let whole = rounded.and_then(|bytes| Some((bytes, bytes.checked_add(PAGE_BYTES)?)));
        let (bytes, length) = whole.ok_or_else(|| no_room("it is more than an address can hold".into()))?;
        let shared = cuda.is_some_and(|cuda| matches!(cuda.driver(), Driver::Simulated(_)));
        let file =
            shared.then(|| shareable(length)).transpose().map_err(|error| no_room(error.to_string()))?;
        let reserved = reserve(length, file.as_ref()).map_err(|error| no_room(error.to_string()))?;
        let reserved = NonNull::new(reserved).ok_or_else(|| no_room("the system gives address 0".into()))?;
        let head = reserved.cast::<u8>().align_offset(PAGE_BYTES);
        // SAFETY: `head` is less than a page, and the mapping is one page longer than what is used.
        let begin = unsafe { reserved.cast::<u8>().add(head) };
        // From here on dropping it gives the pages back.
        let mut memory = Self { begin, bytes, reserved, mapping: None };
        pages::ask_for_big_at(begin, bytes);
        memory.mapping = match (cuda, cuda.map(Cuda::driver), file) {
            (Some(cuda), Some(Driver::Nvidia(context)), _) => Some(memory.map(cuda, context)?),
            (_, Some(Driver::Simulated(simulator)), Some(file)) => {
                let address = simulator.map(file.as_fd(), length);
                let address = address.during("mapping the arena for the GPU", || format!("{bytes} bytes"))?;
                let driver = Driver::Simulated(simulator.clone());
                Some(Mapping { driver, address: address + head as u64, registered: false })
            }
            _ => None,
        };
        Ok(memory)
    }

    fn map(&self, cuda: &Cuda, context: &Arc<CudaContext>) -> Result<Mapping, CudaError> {
        let operation = "mapping the arena for the GPU";
        let (driver, host) = (cuda.driver().clone(), self.begin.as_ptr());
        if cuda.gpu().shares_page_tables {
            return Ok(Mapping { driver, address: host as u64, registered: false });
        }
        if !cuda.gpu().maps_host_memory {
            let missing = format!("{} cannot read memory of the host", cuda.gpu().name);
            return Err(CudaError::Absent { operation, missing });
        }
        let sizes = || format!("{} bytes", self.bytes);
        context.bind_to_thread().during(operation, sizes)?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the range is ours, whole pages, and not registered yet; it is unregistered before it is given back.
        unsafe { sys::cuMemHostRegister_v2(host.cast(), self.bytes, flags) }
            .result()
            .during(operation, sizes)?;
        let mut mapping = Mapping { driver, address: 0, registered: true };
        // SAFETY: the range was registered as mapped just now; the pointer is to a live address.
        let asked = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut mapping.address, host.cast(), 0) };
        match asked.result() {
            Ok(()) => Ok(mapping),
            Err(error) => {
                // SAFETY: registered above, and nobody knows of it.
                let _ = unsafe { sys::cuMemHostUnregister(host.cast()) };
                Err(CudaError::of_driver(operation, sizes(), error))
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(mapping) = &self.mapping {
            let host = self.begin.as_ptr();
            // Nothing of the GPU may be under way to it: a slice that was dropped did not wait.
            let over = mapping.driver.synchronize().or_else(|_| mapping.driver.synchronize());
            let over = over.and_then(|()| match mapping.registered {
                // SAFETY: registered once by `map`; all work on the GPU is over.
                true => Ok(unsafe { sys::cuMemHostUnregister(host.cast()) }.result()?),
                false => Ok(()),
            });
            if over.is_err() {
                // The GPU may still reach it: memory that is lost is better than memory that two have.
                return;
            }
        }
        // SAFETY: the mapping came from the system with this length, and the last who knew of it is gone.
        let unmapped = unsafe { rustix::mm::munmap(self.reserved.as_ptr(), self.bytes + PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// Work on a GPU that reads or writes a slice and may not be over.
#[derive(Default)]
struct Uses {
    write: Option<Event>,
    /// The last read of each stream.
    reads: Vec<(Stream, Event)>,
}

impl Uses {
    /// Waits for what writes, and if `alone` for what reads as well.
    fn settle(&mut self, alone: bool) -> Result<(), CudaError> {
        if let Some(write) = &self.write {
            write.synchronize()?;
            self.write = None;
        }
        if alone {
            for (_, read) in &self.reads {
                read.synchronize()?;
            }
            self.reads.clear();
        }
        Ok(())
    }
}

/// `len` values of a plain type `T` in an arena.
pub struct PinnedSlice<T: Pod> {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
    uses: Mutex<Uses>,
    kind: PhantomData<T>,
}

impl<T: Pod> PinnedSlice<T> {
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

    /// The values. Waits for a GPU that writes them.
    ///
    /// # Errors
    /// A fault of the GPU; the values are then unknown.
    pub fn as_slice(&self) -> Result<&[T], CudaError> {
        self.uses.lock().settle(false)?;
        // SAFETY: the range lies in memory that lives as long as `self`, begins on a line and holds values of a plain
        // type. No GPU writes it: that is over, and asking for more takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(self.host(), self.len) })
    }

    /// The values for writing. Waits for a GPU that reads or writes them.
    ///
    /// # Errors
    /// As for [`as_slice`](Self::as_slice).
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], CudaError> {
        self.uses.lock().settle(true)?;
        // SAFETY: as in `as_slice`; no other slice has this range, and no GPU uses it: that is over, and asking for
        // more takes a borrow of `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.host(), self.len) })
    }

    /// Asks `stream` for work that reads the values: `ask` gets their address on the host. Does not wait. Not while the
    /// stream is recorded: the events would be of a time at which nothing has happened.
    pub(super) fn while_read<R>(
        &self,
        stream: &Stream,
        ask: impl FnOnce(*const T) -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        stream.at_once("reading the arena")?;
        let mut uses = self.uses.lock();
        if let Some(write) = &uses.write {
            stream.wait_for(write)?;
        }
        let asked = ask(self.host());
        // Also after a fault: some of the work may have been taken on.
        let over = after(stream)?;
        uses.reads.retain(|(reader, _)| !reader.is(stream));
        uses.reads.extend(over.map(|event| (stream.clone(), event)));
        asked
    }

    /// Asks `stream` for work that writes the values, likewise.
    pub(super) fn while_written<R>(
        &mut self,
        stream: &Stream,
        ask: impl FnOnce(*mut T) -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        stream.at_once("writing the arena")?;
        let host = self.host();
        let uses = self.uses.get_mut();
        for event in uses.write.iter().chain(uses.reads.iter().map(|(_, event)| event)) {
            stream.wait_for(event)?;
        }
        let asked = ask(host);
        uses.write = after(stream)?;
        uses.reads.clear();
        asked
    }

    /// Where the GPU finds the values.
    ///
    /// # Errors
    /// [`CudaError::Arguments`] if the arena was made without a GPU, or for another one.
    pub(super) fn address(&self, operation: &'static str, stream: &Stream) -> Result<u64, CudaError> {
        match &self.memory.mapping {
            Some(mapping) if mapping.driver.is(&stream.driver()) => Ok(mapping.address + self.offset as u64),
            _ => {
                let mismatch = format!("the arena is not mapped for the GPU of {stream}");
                Err(CudaError::Arguments { operation, mismatch })
            }
        }
    }

    /// The memory that it is a part of, for whoever has to see to it that it lives on.
    pub(super) fn memory(&self) -> Arc<dyn Any + Send + Sync> {
        self.memory.clone()
    }

    /// Where the host finds the values; whoever goes by it keeps the order of readers and writers.
    pub(super) fn host(&self) -> *mut T {
        // SAFETY: `take` gave out a range inside the memory.
        unsafe { self.memory.begin.as_ptr().add(self.offset) }.cast()
    }
}

/// An event after what was just enqueued on `stream`. If none can be recorded, waits for all of it instead.
fn after(stream: &Stream) -> Result<Option<Event>, CudaError> {
    stream.record().map(Some).or_else(|_| stream.synchronize().map(|()| None))
}

impl<T: Pod> std::fmt::Debug for PinnedSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedSlice({} values of {} bytes at {})", self.len, size_of::<T>(), self.offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_it_is_plain_memory() {
        let mut arena = Arena::new(3 << 20, None).unwrap();
        assert_eq!(arena.bytes(), 4 << 20);
        let mut floats = arena.take::<f32>(33).unwrap();
        let mut longs = arena.take::<u64>(5).unwrap();
        assert_eq!(floats.as_slice().unwrap().as_ptr() as usize % PAGE_BYTES, 0);
        assert_eq!(longs.as_slice().unwrap().as_ptr() as usize % LINE_BYTES, 0);
        assert!(floats.as_slice().unwrap().iter().all(|value| *value == 0.0));
        floats.as_mut_slice().unwrap().fill(1.5);
        longs.as_mut_slice().unwrap().fill(u64::MAX);
        drop(arena);
        assert_eq!(floats.as_slice().unwrap(), [1.5; 33], "slices keep the memory, and do not overlap");
        assert_eq!(longs.as_slice().unwrap(), [u64::MAX; 5]);
    }

    #[test]
    fn what_is_not_left_is_refused_with_sizes() {
        let mut arena = Arena::new(1, None).unwrap();
        let first = arena.take::<u8>(PAGE_BYTES - LINE_BYTES).unwrap();
        let error = arena.take::<u8>(LINE_BYTES + 1).unwrap_err().to_string();
        assert!(error.contains("129 values of 1 bytes, and 128 bytes are left"), "{error}");
        assert!(arena.take::<u64>(usize::MAX).is_err());
        let last = arena.take::<u8>(LINE_BYTES).unwrap();
        assert!(arena.take::<u8>(0).unwrap().is_empty());
        assert_eq!((first.len(), last.len()), (PAGE_BYTES - LINE_BYTES, LINE_BYTES));
        let error = Arena::new(usize::MAX, None).err().unwrap().to_string();
        assert!(error.contains("making the arena"), "{error}");
    }
}
