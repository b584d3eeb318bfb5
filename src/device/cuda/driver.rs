//! [`Queue`]: what is enqueued on one stream of a GPU, down to the call: NVIDIA's driver, or a [`Simulator`].
//!
//! What is passed to it is addresses and lengths; that they are right is the promise of `memory`, `arena` and `launch`,
//! which is why nearly everything here is unsafe.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaEvent, CudaFunction, CudaStream, DriverError, result, sys};

use super::simulator::Simulator;

/// The error of a GPU that does not do what was requested.
#[derive(Debug)]
pub(super) enum Fault {
    /// The driver's code.
    Driver(DriverError),
    /// A simulated GPU's words.
    Simulator(String),
}

impl From<DriverError> for Fault {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<String> for Fault {
    fn from(words: String) -> Self {
        Self::Simulator(words)
    }
}

/// What all streams of a GPU share.
#[derive(Clone)]
pub(super) enum Driver {
    Nvidia(Arc<CudaContext>),
    Simulated(Arc<dyn Simulator>),
}

impl Driver {
    /// Whether both are the same GPU.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nvidia(one), Self::Nvidia(other)) => one == other,
            (Self::Simulated(one), Self::Simulated(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Its number in the driver's order.
    pub fn ordinal(&self) -> usize {
        match self {
            Self::Nvidia(context) => context.ordinal(),
            Self::Simulated(_) => 0,
        }
    }

    /// Waits for everything that was enqueued on the GPU.
    pub fn synchronize(&self) -> Result<(), Fault> {
        match self {
            Self::Nvidia(context) => Ok(waited(|| context.synchronize())?),
            Self::Simulated(_) => Ok(()),
        }
    }
}

/// Waits, whatever was reported before: what the driver refused when something was dropped, in any thread, `cudarc`
/// returns from the next call, once, in the place of that call's work.
pub(super) fn waited(wait: impl Fn() -> Result<(), DriverError>) -> Result<(), DriverError> {
    wait().inspect_err(|_| {
        let _ = wait();
    })
}

/// An order of work.
#[derive(Clone)]
pub(super) enum Queue {
    Nvidia(Arc<CudaStream>),
    /// A number distinguishes the streams of a simulated GPU.
    Simulated(Arc<dyn Simulator>, u8),
}

/// A place in such an order.
#[derive(Debug)]
pub(super) enum Mark {
    Nvidia(CudaEvent),
    /// Everything before it is over.
    Simulated(Instant),
}

/// What a place is for.
#[derive(Clone, Copy)]
pub(super) enum Marking {
    /// To be waited for.
    Plain,
    /// To be asked for its time.
    Timed,
    /// To be waited for by a thread that blocks, where others spin.
    Blocking,
}

impl Queue {
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nvidia(one), Self::Nvidia(other)) => Arc::ptr_eq(one, other),
            (Self::Simulated(one, number), Self::Simulated(other, another)) => {
                Arc::ptr_eq(one, other) && number == another
            }
            _ => false,
        }
    }

    pub fn driver(&self) -> Driver {
        match self {
            Self::Nvidia(stream) => Driver::Nvidia(stream.context().clone()),
            Self::Simulated(simulator, _) => Driver::Simulated(simulator.clone()),
        }
    }

    pub fn synchronize(&self) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => Ok(waited(|| stream.synchronize())?),
            Self::Simulated(..) => Ok(()),
        }
    }

    pub fn record(&self, marking: Marking) -> Result<Mark, Fault> {
        match self {
            Self::Nvidia(stream) => {
                use sys::CUevent_flags as Flags;
                let flags = match marking {
                    Marking::Plain => Flags::CU_EVENT_DISABLE_TIMING,
                    Marking::Timed => Flags::CU_EVENT_DEFAULT,
                    // It has a time, too: cudarc has no name for both flags together.
                    Marking::Blocking => Flags::CU_EVENT_BLOCKING_SYNC,
                };
                Ok(Mark::Nvidia(stream.record_event(Some(flags))?))
            }
            Self::Simulated(..) => Ok(Mark::Simulated(Instant::now())),
        }
    }

    pub fn wait_for(&self, mark: &Mark) -> Result<(), Fault> {
        match (self, mark) {
            (Self::Nvidia(stream), Mark::Nvidia(event)) => Ok(stream.wait(event)?),
            _ => Ok(()),
        }
    }

    /// Memory of the GPU, `in_order` where it allocates so. Freed once, by [`free`](Self::free) with the same.
    pub fn allocate(&self, bytes: usize, in_order: bool) -> Result<u64, Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the stream is alive and its context is current; what the memory holds is for the caller.
                let address = unsafe {
                    if in_order {
                        result::malloc_async(stream.cu_stream(), bytes)
                    } else {
                        result::malloc_sync(bytes)
                    }
                };
                Ok(address?)
            }
            Self::Simulated(simulator, _) => Ok(simulator.allocate(bytes)?),
        }
    }

    /// Gives memory back. A fault is reported by the next operation of the GPU.
    ///
    /// # Safety
    /// `address` is from [`allocate`](Self::allocate) with the same `in_order`, and everything that uses it was asked
    /// of this stream or of one that this stream waits for.
    pub unsafe fn free(&self, address: u64, in_order: bool) {
        match self {
            Self::Nvidia(stream) => {
                let context = stream.context();
                context.record_err(context.bind_to_thread());
                // SAFETY: the caller's promise; without an allocator in order, the work is over.
                let freed = unsafe {
                    if in_order {
                        result::free_async(address, stream.cu_stream())
                    } else {
                        result::stream::synchronize(stream.cu_stream())
                            .and_then(|()| result::free_sync(address))
                    }
                };
                context.record_err(freed);
            }
            Self::Simulated(simulator, _) => {
                // The next call to a simulated GPU that ended returns an error.
                let _ = simulator.free(address);
            }
        }
    }

    /// Puts `byte` everywhere, in order.
    ///
    /// # Safety
    /// The bytes are the caller's, in memory of the GPU.
    pub unsafe fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the caller's promise.
                Ok(unsafe { result::memset_d8_async(address, byte, bytes, stream.cu_stream()) }?)
            }
            Self::Simulated(simulator, _) => Ok(simulator.fill(address, byte, bytes)?),
        }
    }

    /// Puts `word` into `words` words of 32 bits, in order.
    ///
    /// # Safety
    /// The words are the caller's, in memory of the GPU, at a multiple of 4.
    pub unsafe fn fill_words(&self, address: u64, word: u32, words: usize) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the caller's promise.
                let filled = unsafe { sys::cuMemsetD32Async(address, word, words, stream.cu_stream()) };
                Ok(filled.result()?)
            }
            Self::Simulated(simulator, _) => Ok(simulator.write(address, &word.to_ne_bytes().repeat(words))?),
        }
    }

    /// Enqueues a copy from memory of the host.
    ///
    /// # Safety
    /// Both sides have these bytes, those of the host until the copy is over.
    pub unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the caller's promise.
                let copied = unsafe {
                    sys::cuMemcpyHtoDAsync_v2(to, from.cast::<c_void>(), bytes, stream.cu_stream())
                };
                Ok(copied.result()?)
            }
            Self::Simulated(simulator, _) => {
                // SAFETY: the caller's promise; nobody writes them while this call is under way.
                Ok(simulator.write(to, unsafe { slice::from_raw_parts(from, bytes) })?)
            }
        }
    }

    /// Enqueues a copy to memory of the host.
    ///
    /// # Safety
    /// Both sides have these bytes, and nobody looks at those of the host until the copy is over.
    pub unsafe fn download(&self, from: u64, to: *mut u8, bytes: usize) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the caller's promise.
                let copied = unsafe {
                    sys::cuMemcpyDtoHAsync_v2(to.cast::<c_void>(), from, bytes, stream.cu_stream())
                };
                Ok(copied.result()?)
            }
            Self::Simulated(simulator, _) => {
                // SAFETY: the caller's promise.
                Ok(simulator.read(from, unsafe { slice::from_raw_parts_mut(to, bytes) })?)
            }
        }
    }

    /// Enqueues a copy on the GPU.
    ///
    /// # Safety
    /// Both sides have these bytes, and do not overlap.
    pub unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), Fault> {
        match self {
            Self::Nvidia(stream) => {
                stream.context().bind_to_thread()?;
                // SAFETY: the caller's promise.
                Ok(unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }?)
            }
            Self::Simulated(simulator, _) => Ok(simulator.copy(from, to, bytes)?),
        }
    }

    /// Enqueues a kernel: `function` for NVIDIA's driver, `name` for a simulated GPU.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and what it does with them stays inside of memory that is the caller's.
    pub unsafe fn launch(
        &self,
        (name, function): (&str, Option<&CudaFunction>),
        (blocks, threads): (u32, u32),
        arguments: &mut [&mut [u8]],
    ) -> Result<(), Fault> {
        match (self, function) {
            (Self::Nvidia(stream), Some(function)) => {
                stream.context().bind_to_thread()?;
                let mut pointers: Vec<*mut c_void> =
                    arguments.iter_mut().map(|argument| argument.as_mut_ptr().cast()).collect();
                // SAFETY: there is a pointer for each parameter, to as many bytes as it has, which the driver copies
                // before it returns. The rest is the caller's promise.
                let launched = unsafe {
                    result::launch_kernel(
                        function.cu_function(),
                        (blocks, 1, 1),
                        (threads, 1, 1),
                        0,
                        stream.cu_stream(),
                        &mut pointers,
                    )
                };
                Ok(launched?)
            }
            (Self::Nvidia(_), None) => Err(Fault::Simulator(format!("{name} is not loaded"))),
            (Self::Simulated(simulator, _), _) => {
                let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &**argument).collect();
                Ok(simulator.launch(name, blocks, threads, &arguments)?)
            }
        }
    }
}
