//! [`CudaWork`]: a card on which a run of operations computes, one after the other in its stream `compute`, without
//! waiting for any; what [`Device::Cuda`](crate::device::Device::Cuda) holds.
//!
//! **Memory.** [`CudaWork::lend`] gives [`Lent`] memory, which comes back when it is dropped and is lent again, in
//! sizes that a later step may ask for: a steady step asks the driver for nothing. What comes back may still be read by
//! work that was asked for before; what is asked for next comes after it in the same stream.
//!
//! **Faults.** An operation of a tape has no way to fail. The first thing that goes wrong is kept, everything that is
//! asked for after it is left out, and who asked for the run finds it by [`CudaWork::check`]. Until then numbers mean
//! nothing, and memory may be missing ([`Lent::get`]).
//!
//! Not verified on a GPU; tested with a card that the processor plays.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytemuck::Pod;
use parking_lot::Mutex;

use super::capture::{Recorder, RecorderCounts};
use super::context::Cuda;
use super::driver::Driver;
use super::error::CudaError;
use super::layers::Place;
use super::memory::CudaBuffer;
use super::staging::{Fetched, Staging};

/// The least memory that is kept, in bytes.
const LEAST_BYTES: usize = 256;
/// Pinned memory through which values come and go: what a step of some thousand events moves, some times over.
const STAGING_BYTES: usize = 64 << 20;
const LENDING: &str = "memory of an operation";

/// A card at work. One run at a time: its stream orders everything.
pub struct CudaWork {
    cuda: Arc<Cuda>,
    kept: Mutex<BTreeMap<usize, Vec<CudaBuffer<u8>>>>,
    /// Made when the first value is uploaded.
    staging: Mutex<Option<Staging>>,
    /// By the address of what they are copies of.
    constants: Mutex<HashMap<usize, Constant>>,
    fault: Mutex<Option<CudaError>>,
    recorder: Mutex<Recorder>,
}

/// Numbers that never change, and their copy. Whoever holds the numbers keeps their address from meaning others.
struct Constant {
    _of: Arc<[f32]>,
    copy: Arc<CudaBuffer<f32>>,
}

/// The size in which memory for `bytes` is kept: four sizes to a power of two.
fn size_class(bytes: usize) -> usize {
    let bytes = bytes.max(LEAST_BYTES);
    let step = (bytes.checked_next_power_of_two().unwrap_or(bytes) / 8).max(LEAST_BYTES);
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

impl CudaWork {
    /// Work on `cuda`.
    #[must_use]
    pub fn new(cuda: Arc<Cuda>) -> Arc<Self> {
        Arc::new(Self {
            cuda,
            kept: Mutex::default(),
            staging: Mutex::default(),
            constants: Mutex::default(),
            fault: Mutex::default(),
            recorder: Mutex::default(),
        })
    }

    /// The card.
    #[must_use]
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// The card and the stream in whose order the work is done.
    #[must_use]
    pub fn place(&self) -> Place<'_> {
        (&self.cuda, self.cuda.compute())
    }

    /// Asks for something, unless something went wrong before.
    pub fn run(&self, ask: impl FnOnce(Place<'_>) -> Result<(), CudaError>) {
        if self.fault.lock().is_some() {
            return;
        }
        if let Err(error) = ask(self.place()) {
            self.fail(error);
        }
    }

    /// Does what asks for a whole step, which is recorded as a graph where the card does that; then `step` may be
    /// called twice, the second time because nothing came of the first. It must not read what it asked for.
    pub fn record<R>(&self, mut step: impl FnMut() -> R) -> R {
        if let Some(staging) = &mut *self.staging.lock() {
            staging.start_over();
        }
        let mut recorder = self.recorder.lock();
        let (mut done, before) = (None, recorder.counts().refused);
        let ran = recorder.run(self.cuda.compute(), || {
            done = Some(step());
            self.fault.lock().clone().map_or(Ok(()), Err)
        });
        if let Err(error) = ran {
            // What a graph was to write that never ran is not there.
            self.constants.lock().clear();
            if recorder.counts().refused == before || error.is_lost() {
                self.fail(error);
            } else {
                tracing::warn!("{}", recorder.complaint().unwrap_or_default());
                *self.fault.lock() = None;
                return step();
            }
        }
        done.unwrap_or_else(step)
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

    /// Notes that a card does not do something that was asked of it.
    pub fn refuse(&self, what: &'static str) {
        let mismatch = "no kernel does that; let the processor compute it".to_owned();
        self.fail(CudaError::Arguments { operation: what, mismatch });
    }

    /// Waits for what was asked for, and says what went wrong since this was asked last, if anything did.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), CudaError> {
        self.wait();
        if let Some(staging) = &mut *self.staging.lock() {
            staging.start_over();
        }
        self.fault.lock().take().map_or(Ok(()), Err)
    }

    /// Waits until all that was asked for is done.
    pub fn wait(&self) {
        self.run(|(_, stream)| stream.synchronize());
    }

    /// Room for `len` values, which hold anything.
    #[must_use]
    pub fn lend<T: Pod>(self: &Arc<Self>, len: usize) -> Lent<T> {
        let buffer = if self.fault.lock().is_some() { None } else { self.find(len) };
        Lent { buffer, work: self.clone() }
    }

    fn find<T: Pod>(&self, len: usize) -> Option<CudaBuffer<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        // A player sees what goes beyond the exact length.
        let class = if self.is_played() { bytes } else { size_class(bytes) };
        let waiting = self.kept.lock().get_mut(&class).and_then(Vec::pop);
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
        let (cuda, stream) = self.place();
        match CudaBuffer::room(cuda, stream, bytes, LENDING) {
            Err(error) if error.is_out_of_memory() => {
                // What waits in other sizes makes room.
                self.kept.lock().clear();
                CudaBuffer::room(cuda, stream, bytes, LENDING)
            }
            asked => asked,
        }
    }

    /// The same with a copy of `values`.
    #[must_use]
    pub fn upload<T: Pod>(self: &Arc<Self>, values: &[T]) -> Lent<T> {
        let mut lent = self.lend(values.len());
        self.run(|_| self.staged(|staging| staging.upload(values, lent.get_mut()?)));
        lent
    }

    /// Does something with the pinned memory of this work.
    fn staged<R>(&self, ask: impl FnOnce(&mut Staging) -> Result<R, CudaError>) -> Result<R, CudaError> {
        let mut staging = self.staging.lock();
        match &mut *staging {
            Some(staging) => ask(staging),
            none => ask(none.insert(Staging::new(&self.cuda, STAGING_BYTES)?)),
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
            let mut copy = CudaBuffer::room(cuda, stream, values.len(), LENDING)?;
            self.staged(|staging| staging.upload(values, &mut copy))?;
            made = Some(Arc::new(copy));
            Ok(())
        });
        let copy = made?;
        self.constants.lock().insert(key, Constant { _of: values.clone(), copy: copy.clone() });
        Some(copy)
    }

    /// Bytes of the card that wait to be lent.
    #[must_use]
    pub fn kept_bytes(&self) -> usize {
        self.kept.lock().iter().map(|(bytes, list)| bytes * list.len()).sum()
    }

    fn is_played(&self) -> bool {
        matches!(self.cuda.driver(), Driver::Played(_))
    }
}

impl std::fmt::Debug for CudaWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaWork").field("cuda", &self.cuda).finish_non_exhaustive()
    }
}

/// Memory of a card that goes back to where it was lent when it is dropped.
pub struct Lent<T: Pod> {
    buffer: Option<CudaBuffer<T>>,
    work: Arc<CudaWork>,
}

impl<T: Pod> Lent<T> {
    /// The memory.
    ///
    /// # Errors
    /// There is none: the work has a fault, which says why.
    pub fn get(&self) -> Result<&CudaBuffer<T>, CudaError> {
        self.buffer.as_ref().ok_or_else(CudaError::none_lent)
    }

    /// The memory for writing.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_mut(&mut self) -> Result<&mut CudaBuffer<T>, CudaError> {
        self.buffer.as_mut().ok_or_else(CudaError::none_lent)
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

    /// Who lent it.
    #[must_use]
    pub fn work(&self) -> &Arc<CudaWork> {
        &self.work
    }

    /// Clears every byte.
    pub fn clear(&mut self) {
        let work = self.work.clone();
        work.run(|_| self.get_mut()?.fill_with(0, LENDING));
    }

    /// Asks for the first `len` values, and does not wait for them.
    #[must_use]
    pub fn fetch(&self, len: usize) -> Coming<T> {
        let mut values = None;
        self.work.run(|_| {
            let buffer = self.get()?;
            values = Some(self.work.staged(|staging| staging.download(buffer, len))?);
            Ok(())
        });
        Coming { values, len, work: self.work.clone() }
    }

    /// The first `len` values, zeros after a fault. Waits.
    #[must_use]
    pub fn read(&self, len: usize) -> Vec<T> {
        self.fetch(len).wait()
    }
}

/// Values that are on their way from a card.
pub struct Coming<T: Pod> {
    values: Option<Fetched<T>>,
    len: usize,
    work: Arc<CudaWork>,
}

impl<T: Pod> Coming<T> {
    /// The values; zeros after a fault. Waits for them.
    #[must_use]
    pub fn wait(self) -> Vec<T> {
        let mut found = Vec::new();
        self.work.run(|_| {
            if let Some(values) = &self.values {
                found = self.work.staged(|staging| values.read(staging))?;
            }
            Ok(())
        });
        found.resize(self.len, T::zeroed());
        found
    }
}

impl<T: Pod> Clone for Lent<T> {
    fn clone(&self) -> Self {
        let len = self.buffer.as_ref().map_or(0, CudaBuffer::len);
        let mut copy = self.work.lend(len);
        self.work.run(|_| copy.get_mut()?.copy_front_from(self.get()?, len));
        copy
    }
}

impl<T: Pod> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let buffer = buffer.cast::<u8>(usize::MAX);
            self.work.kept.lock().entry(buffer.capacity()).or_default().push(buffer);
        }
    }
}

impl CudaError {
    /// Memory is missing because its work has a fault, which says why.
    pub(crate) fn none_lent() -> Self {
        Self::Arguments { operation: LENDING, mismatch: "there was none".to_owned() }
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
