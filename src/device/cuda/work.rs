//! [`CudaWork`]: a GPU on which a run of operations computes, one after the other in its stream `compute`, without
//! waiting for any; what [`Device::Cuda`](crate::device::Device::Cuda) holds.
//!
//! **Memory.** [`CudaWork::pooled`] gives [`PooledBuffer`] memory, which returns to the pool when it is dropped, in
//! sizes that a later step may ask for: a steady step asks the driver for nothing. What comes back may still be read
//! by work that was enqueued before; what is enqueued next comes after it in the same stream. What a step gives back
//! that waits for its launch serves nobody before (`ahead`).
//!
//! **Faults.** An operation of a tape has no way to fail. The first thing that goes wrong is kept, everything that is
//! asked for after it is left out, and who asked for the run finds it by [`CudaWork::check`]. Until then numbers mean
//! nothing, and memory may be missing ([`PooledBuffer::get`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use bytemuck::Pod;
use parking_lot::Mutex;

use super::arena::LINE_BYTES;
use super::capture::{Recorder, RecorderCounts};
use super::context::Cuda;
use super::driver::Driver;
use super::error::CudaError;
use super::layers::StreamContext;
use super::lists::Lists;
use super::memory::CudaBuffer;
use super::pace::Pace;
use super::pooled_buffer::PooledBuffer;
use super::staging::Staging;
use super::stream::Event;
use crate::device;

/// The least memory that is kept, in bytes.
const LEAST_BYTES: usize = 256;
/// Pinned memory through which values come and go: what a step of some thousand events moves, some times over.
const STAGING_BYTES: usize = 64 << 20;
/// Some times what fills the largest GPUs of today with blocks of a product.
const ALONE_BYTES: usize = 32 << 20;
const POOLING: &str = "memory of an operation";

/// Memory of the GPU that waits for its next use, by size class.
pub(super) type Pool = BTreeMap<usize, Vec<CudaBuffer<u8>>>;

/// A GPU at work. One run at a time: its stream orders everything.
pub struct CudaWork {
    pub(super) cuda: Arc<Cuda>,
    pub(super) kept: Mutex<Pool>,
    /// What came back to the pool while a step was recorded ahead.
    pub(super) kept_ahead: Mutex<Option<Pool>>,
    /// Made when the first value is uploaded.
    pub(super) staging: Mutex<Option<Staging>>,
    /// For the next step that is recorded ahead.
    pub(super) spare: Mutex<Option<Staging>>,
    /// By the address of what they are copies of.
    pub(super) constants: Mutex<HashMap<usize, Constant>>,
    pub(super) fault: Mutex<Option<CudaError>>,
    pub(super) recorder: Mutex<Recorder>,
    pub(super) lists: Mutex<Lists>,
    /// Bytes of the pinned room, and whether a step that was recorded wanted more.
    pub(super) staging_bytes: AtomicUsize,
    pub(super) overflow: AtomicBool,
    pub(super) pace: Mutex<Pace>,
    /// Bytes of a gradient from which on a product with it waits for no others.
    alone_bytes: AtomicUsize,
    /// Whether memory is asked for in the sizes that are wanted.
    exact: bool,
}

/// Numbers that never change, and their copy. Whoever holds the numbers keeps their address from meaning others.
pub(super) struct Constant {
    _of: Arc<[f32]>,
    copy: Arc<CudaBuffer<f32>>,
}

/// The size in which memory for `bytes` is kept: four sizes to a power of two.
fn size_class(bytes: usize) -> usize {
    device::size_class(bytes, LEAST_BYTES, LEAST_BYTES)
}

impl CudaWork {
    /// Work on `cuda`. A simulated GPU gets the exact sizes, so that it sees what goes beyond.
    #[must_use]
    pub fn new(cuda: Arc<Cuda>) -> Arc<Self> {
        let simulated = matches!(cuda.driver(), Driver::Simulated(_));
        Self::make(cuda, simulated)
    }

    /// The same with a simulated GPU too asked for the sizes that a GPU is asked for.
    #[must_use]
    pub fn in_classes(cuda: Arc<Cuda>) -> Arc<Self> {
        Self::make(cuda, false)
    }

    fn make(cuda: Arc<Cuda>, exact: bool) -> Arc<Self> {
        Arc::new(Self {
            cuda,
            kept: Mutex::default(),
            kept_ahead: Mutex::default(),
            staging: Mutex::default(),
            spare: Mutex::default(),
            constants: Mutex::default(),
            fault: Mutex::default(),
            recorder: Mutex::default(),
            lists: Mutex::default(),
            staging_bytes: AtomicUsize::new(STAGING_BYTES),
            overflow: AtomicBool::new(false),
            pace: Mutex::default(),
            alone_bytes: AtomicUsize::new(ALONE_BYTES),
            exact,
        })
    }

    /// The GPU.
    #[must_use]
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// The GPU and the stream in whose order the work is done.
    #[must_use]
    pub fn context(&self) -> StreamContext<'_> {
        (&self.cuda, self.cuda.compute())
    }

    /// Enqueues something, unless something went wrong before.
    pub fn run(&self, ask: impl FnOnce(StreamContext<'_>) -> Result<(), CudaError>) {
        if self.fault.lock().is_some() {
            return;
        }
        if let Err(error) = ask(self.context()) {
            self.fail(error);
        }
    }

    /// Makes the two pinned rooms, when they are next made, of `bytes` each. Waits for what is under way through them.
    pub fn set_staging(&self, bytes: usize) {
        self.staging_bytes.store(bytes.max(1), Ordering::Relaxed);
        for room in [&self.staging, &self.spare] {
            room.lock().take().iter_mut().for_each(Staging::start_over);
        }
    }

    /// From now on, a product with a gradient of so many bytes or more is computed at once, and does not wait for
    /// others to be launched with.
    pub fn compute_alone(&self, bytes: usize) {
        self.alone_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether a product with a gradient of so many bytes is computed at once.
    pub(crate) fn computes_alone(&self, bytes: usize) -> bool {
        bytes >= self.alone_bytes.load(Ordering::Relaxed)
    }

    /// Gives back all pooled memory and the pinned room: the GPU is not used any more.
    pub fn release(&self) {
        *self.recorder.lock() = Recorder::default();
        self.kept.lock().clear();
        self.constants.lock().clear();
        *self.lists.lock() = Lists::default();
        (*self.staging.lock(), *self.spare.lock()) = (None, None);
    }

    /// How often steps were recorded, and how that went.
    #[must_use]
    pub fn recorded(&self) -> RecorderCounts {
        self.recorder.lock().counts()
    }

    /// Notes that something went wrong; the first fault stays.
    pub fn fail(&self, error: CudaError) {
        self.fault.lock().get_or_insert(error);
    }

    /// Notes that a GPU does not do something that was enqueued on it.
    pub fn refuse(&self, what: &'static str) {
        let mismatch = "no kernel does that; let the CPU compute it".to_owned();
        self.fail(CudaError::Arguments { operation: what, mismatch });
    }

    /// Waits for what was asked for, and returns the first fault since the last check, if there is one.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), CudaError> {
        self.wait();
        for room in [&self.staging, &self.spare] {
            room.lock().iter_mut().for_each(Staging::start_over);
        }
        let fault = self.fault.lock().take();
        let mut pace = self.pace.lock();
        if fault.is_some() {
            pace.failed()
        } else {
            pace.is_over(Instant::now())
        }
        fault.map_or(Ok(()), Err)
    }

    /// A place behind all that was asked for; none after a fault.
    #[must_use]
    pub fn mark(&self) -> Option<Event> {
        let mut mark = None;
        self.run(|(_, stream)| {
            mark = Some(stream.record()?);
            Ok(())
        });
        mark
    }

    /// Waits until all that was asked for is done, also after a fault.
    pub fn wait(&self) {
        if let Err(error) = self.cuda.compute().synchronize() {
            self.fail(error);
        }
    }

    /// Room for `len` values, which hold anything.
    #[must_use]
    pub fn pooled<T: Pod>(self: &Arc<Self>, len: usize) -> PooledBuffer<T> {
        let buffer = if self.fault.lock().is_some() { None } else { self.find(len) };
        PooledBuffer::of(buffer, self)
    }

    /// Room for `len` values outside the pool, for what stays long; none where the GPU has no room, which is no
    /// fault.
    #[must_use]
    pub fn unpooled<T: Pod>(self: &Arc<Self>, len: usize) -> Option<PooledBuffer<T>> {
        let (cuda, stream) = self.context();
        match CudaBuffer::room(cuda, stream, len, POOLING) {
            Ok(buffer) => Some(PooledBuffer::apart(buffer, self)),
            Err(error) if error.is_out_of_memory() => None,
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn find<T: Pod>(&self, len: usize) -> Option<CudaBuffer<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        let class = if self.exact { bytes } else { size_class(bytes) };
        let one = |pool: &mut Pool| pool.get_mut(&class).and_then(Vec::pop);
        let ahead = self.kept_ahead.lock().as_mut().and_then(one);
        let waiting = ahead.or_else(|| one(&mut self.kept.lock()));
        let found = waiting.map_or_else(|| self.ask(class), Ok);
        match found {
            Ok(bytes) => Some(bytes.cast(len)),
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    fn ask(&self, bytes: usize) -> Result<CudaBuffer<u8>, CudaError> {
        let (cuda, stream) = self.context();
        match CudaBuffer::room(cuda, stream, bytes, POOLING) {
            Err(error) if error.is_out_of_memory() => {
                // What waits in other sizes makes room.
                self.kept.lock().clear();
                CudaBuffer::room(cuda, stream, bytes, POOLING)
            }
            asked => asked,
        }
    }

    /// The same with a copy of `values`.
    #[must_use]
    pub fn upload<T: Pod>(self: &Arc<Self>, values: &[T]) -> PooledBuffer<T> {
        let mut listed = None;
        self.run(|_| {
            listed = self.staged(|staging| Ok(self.lists.lock().take(staging, values)))?;
            Ok(())
        });
        if listed.is_some() {
            return PooledBuffer::of(listed, self);
        }
        let (mut buffer, mut sent) = (self.pooled(values.len()), false);
        self.run(|_| {
            self.send(values, buffer.get_mut()?)?;
            sent = true;
            Ok(())
        });
        // A kernel that is asked for within the same `run` must not find a table that holds anything.
        if sent { buffer } else { PooledBuffer::of(None, self) }
    }

    /// The same for several lists, which go there in one copy.
    #[must_use]
    pub fn upload_together<T: Pod>(self: &Arc<Self>, lists: &[Vec<T>]) -> Vec<PooledBuffer<T>> {
        if self.cuda.compute().is_recorded() {
            return lists.iter().map(|list| self.upload(list)).collect();
        }
        let (mut bytes, mut begins) = (Vec::<u8>::new(), Vec::new());
        for list in lists {
            begins.push(bytes.len());
            bytes.extend_from_slice(bytemuck::cast_slice(list));
            bytes.resize(bytes.len().next_multiple_of(LINE_BYTES), 0);
        }
        let whole = Arc::new(self.upload(&bytes));
        let part = |(list, begin): (&Vec<T>, usize)| {
            let part = whole.get().ok().map(|all| CudaBuffer::part_of(all, whole.clone(), begin, list.len()));
            PooledBuffer::of(part, self)
        };
        lists.iter().zip(begins).map(part).collect()
    }

    fn send<T: Pod>(&self, values: &[T], to: &mut CudaBuffer<T>) -> Result<(), CudaError> {
        self.staged(|staging| {
            let most = staging.bytes().min(self.staging_bytes.load(Ordering::Relaxed));
            let left = most.saturating_sub(staging.taken());
            if to.stream().is_recorded() && left < size_of_val(values) + LINE_BYTES {
                self.overflow.store(true, Ordering::Relaxed);
                let mismatch = format!("a step copies more than {most} bytes");
                return Err(CudaError::Arguments { operation: POOLING, mismatch });
            }
            staging.upload(values, to)
        })
    }

    /// Takes memory back into the pool.
    pub(super) fn keep(&self, buffer: CudaBuffer<u8>) {
        if buffer.is_part() {
            return;
        }
        let put = |pool: &mut Pool| pool.entry(buffer.room_bytes()).or_default().push(buffer);
        match self.kept_ahead.lock().as_mut() {
            Some(pool) => put(pool),
            None => put(&mut self.kept.lock()),
        }
    }

    /// Does something with the pinned memory of this work.
    pub(super) fn staged<R>(
        &self,
        ask: impl FnOnce(&mut Staging) -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        let mut staging = self.staging.lock();
        match &mut *staging {
            Some(staging) => ask(staging),
            none => {
                let bytes = self.staging_bytes.load(Ordering::Relaxed);
                ask(none.insert(Staging::new(&self.cuda, bytes)?))
            }
        }
    }

    /// A copy of `values` that stays as long as the work does: of numbers that never change. None after a fault.
    pub fn constant(&self, values: &Arc<[f32]>) -> Option<Arc<CudaBuffer<f32>>> {
        let key = values.as_ptr() as usize;
        if let Some(constant) = self.constants.lock().get(&key) {
            return Some(constant.copy.clone());
        }
        let mut made = None;
        self.run(|(cuda, stream)| {
            let mut copy = CudaBuffer::room(cuda, stream, values.len(), POOLING)?;
            self.send(values, &mut copy)?;
            made = Some(Arc::new(copy));
            Ok(())
        });
        let copy = made?;
        self.constants.lock().insert(key, Constant { _of: values.clone(), copy: copy.clone() });
        Some(copy)
    }

    /// Bytes of the GPU that wait in the pool.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept.lock().iter().map(|(bytes, list)| bytes * list.len()).sum()
    }
}

impl std::fmt::Debug for CudaWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaWork").field("cuda", &self.cuda).finish_non_exhaustive()
    }
}

impl CudaError {
    /// Memory is missing because its work has a fault, which states the reason.
    pub(crate) fn no_buffer() -> Self {
        Self::Arguments {
            operation: POOLING,
            mismatch: "there is none, because an earlier operation failed".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_stable_and_waste_a_quarter_at_most() {
        for bytes in [0, 1, 256, 257, 1000, 4096, 4097, 1_000_003, 1 << 33] {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(256), "{bytes} {class}");
            assert_eq!(size_class(class), class, "{bytes}");
            assert!(bytes < 2048 || class * 4 <= bytes * 5, "{bytes} {class}");
        }
    }
}
