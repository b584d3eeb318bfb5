//! [`Staging`]: pinned memory through which the small things of a step go to a GPU, and come from it, without a wait.
//!
//! ```text
//!   values ── copied by the CPU ──▶ room ── copied in the order of a stream ──▶ CudaBuffer     upload
//!   values ◀── Fetched::read, after a wait ── room ◀── copied in the order of a stream ── CudaBuffer   download
//! ```
//!
//! Room is given out from the front, a line of 128 bytes at least, and nothing is recorded per copy: a step makes some
//! forty, and may be recorded itself. What makes that safe is one rule: **room is given out again only behind a wait
//! for every stream that was asked for a copy**. So one wait at the end of a step, which it needs anyway to get its
//! loss, frees all of it. Where the room is too small for a step, the wait comes in the middle; what is larger than all
//! of it is copied straight from or to the caller's memory, which waits as well.
//!
//! While a stream is recorded (`capture`) no wait would help: what does not fit into what is left is refused. The
//! memory then lives until the graph has been launched, whatever happens to the [`Staging`].
//!
//! Values that come from the GPU belong to a [`Fetched`], which cannot be read before they are there: reading waits,
//! for nothing if the caller has waited, and reads them in the room. If that is given out again first, they are put
//! aside.

#![allow(unsafe_code)]

use std::any::Any;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

use bytemuck::Pod;

use super::arena::{Arena, LINE_BYTES, PinnedSlice};
use super::context::Cuda;
use super::error::{CudaError, During};
use super::launch::check_len;
use super::memory::CudaBuffer;
use super::stream::{Event, Stream};

const UPLOADING: &str = "uploading through pinned memory";
const DOWNLOADING: &str = "downloading through pinned memory";

/// Pinned memory that a step's uploads and downloads share.
pub struct Staging {
    /// Seen by its address only: the slice's own events are not kept up to date.
    room: PinnedSlice<u8>,
    /// What it is a part of.
    memory: Arc<dyn Any + Send + Sync>,
    /// Bytes from the front that are given out, and those of them that nothing has been under way in since a wait.
    taken: usize,
    settled: usize,
    /// Streams that were asked for copies and have not been waited for.
    streams: Vec<Stream>,
    late: Vec<Late>,
}

/// Values that are on their way to the host, by their place in the room.
struct Late {
    first: usize,
    bytes: usize,
    /// Where they go when they are there; nowhere if nobody wants them any more.
    to: Weak<OnceLock<Vec<u8>>>,
}

/// Values of a plain type `T` that were enqueued on a GPU. If that was in a recorded step that failed, nothing was
/// copied, and they are whatever the room held.
pub struct Fetched<T: Pod> {
    bytes: Arc<OnceLock<Vec<u8>>>,
    kind: PhantomData<T>,
}

/// Values on their way from a GPU that any thread can wait for, while others are asked for.
pub struct Detached<T: Pod> {
    values: Fetched<T>,
    /// Behind their copy.
    end: Event,
}

impl Staging {
    /// Room for `bytes` bytes, rounded up to what the arena gives.
    ///
    /// # Errors
    /// As for [`Arena::new`].
    pub fn new(cuda: &Cuda, bytes: usize) -> Result<Self, CudaError> {
        let mut arena = Arena::new(bytes, Some(cuda))?;
        let room = arena.take(arena.bytes())?;
        let memory = room.memory();
        Ok(Self { room, memory, taken: 0, settled: 0, streams: Vec::new(), late: Vec::new() })
    }

    /// Bytes of the room, given out or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.room.len()
    }

    /// Bytes of it that are given out.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Copies `values` into the room and enqueues their copy into the first values of `to`, in the order of its stream.
    /// Does not wait unless the room is full, or smaller than `values`.
    ///
    /// # Errors
    /// More values than `to` has, a buffer of another GPU, no room while its stream is recorded, or the driver's.
    pub fn upload<T: Pod>(&mut self, values: &[T], to: &mut CudaBuffer<T>) -> Result<(), CudaError> {
        check_len(UPLOADING, &[("the buffer", to.len(), values.len())])?;
        let bytes = size_of_val(values);
        if bytes == 0 {
            return Ok(());
        }
        let Some(first) = self.take(UPLOADING, to.stream(), bytes)? else {
            return to.write_at(0, values);
        };
        let host = self.place(first);
        // SAFETY: `take` gave out these bytes to this call alone: no GPU reads or writes them, since every stream that
        // was asked to has been waited for. `values` lies outside of the room, of which nobody has a reference.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), host, bytes) };
        // SAFETY: the buffer has these bytes, and is freed in the order of this stream. Those of the host live until
        // the GPU is through with them (the arena's end waits), and are written again only behind a wait for the
        // stream.
        unsafe { to.stream().upload(to.address(), host, bytes) }
            .during(UPLOADING, || format!("{} values of {} bytes", values.len(), size_of::<T>()))
    }

    /// While the stream of `to` is recorded: gives out `bytes` bytes of the room and records a copy of them to the
    /// front of `to`, which happens when the recorded step is launched. Until then [`put`](Self::put) fills them in.
    /// Returns where they begin; none where the room is too small.
    ///
    /// # Errors
    /// A buffer of another GPU or a shorter one, or the driver's.
    pub(super) fn copy_later(
        &mut self,
        to: &CudaBuffer<u8>,
        bytes: usize,
    ) -> Result<Option<usize>, CudaError> {
        check_len(UPLOADING, &[("the buffer", to.len(), bytes)])?;
        // What else the step copies needs room, too.
        if !to.stream().is_recorded() || 2 * bytes > self.bytes() - self.taken {
            return Ok(None);
        }
        let Some(first) = self.take(UPLOADING, to.stream(), bytes)? else { return Ok(None) };
        // SAFETY: as in `upload`; until the launch the host alone has the bytes, whatever they hold.
        unsafe { to.stream().upload(to.address(), self.place(first), bytes) }
            .during(UPLOADING, || format!("the lists of a step, {bytes} bytes"))?;
        Ok(Some(first))
    }

    /// Puts `values` to place `first` of the room, which [`copy_later`](Self::copy_later) gave out for a step that is
    /// not launched yet.
    pub(super) fn put<T: Pod>(&mut self, first: usize, values: &[T]) {
        assert!(first + size_of_val(values) <= self.taken, "bytes that were given out");
        // SAFETY: the bytes lie inside of the room, and no GPU reads them before the launch.
        unsafe {
            ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), self.place(first), size_of_val(values));
        }
    }

    /// Enqueues a copy of the first `len` values of `from`, in the order of its stream. Waits only where
    /// [`upload`](Self::upload) does.
    ///
    /// # Errors
    /// More values than `from` has, a buffer of another GPU, no room while its stream is recorded, or the driver's.
    pub fn download<T: Pod>(&mut self, from: &CudaBuffer<T>, len: usize) -> Result<Fetched<T>, CudaError> {
        check_len(DOWNLOADING, &[("the buffer", from.len(), len)])?;
        let (bytes, fetched) = (len * size_of::<T>(), Fetched::new());
        if bytes == 0 {
            fetched.set(Vec::new());
            return Ok(fetched);
        }
        let Some(first) = self.take(DOWNLOADING, from.stream(), bytes)? else {
            fetched.set(bytemuck::cast_slice(&from.copy_front_to_host(len)?).to_vec());
            return Ok(fetched);
        };
        // SAFETY: as in `upload`; nobody looks at these bytes before the stream has been waited for.
        unsafe { from.stream().download(from.address(), self.place(first), bytes) }
            .during(DOWNLOADING, || format!("{len} values of {} bytes", size_of::<T>()))?;
        self.late.push(Late { first, bytes, to: Arc::downgrade(&fetched.bytes) });
        Ok(fetched)
    }

    /// As [`download`](Self::download), for values that are waited for beside what the stream is asked for next. Not
    /// while the stream is recorded.
    ///
    /// # Errors
    /// As for [`download`](Self::download).
    pub fn download_detached<T: Pod>(
        &mut self,
        from: &CudaBuffer<T>,
        len: usize,
    ) -> Result<Detached<T>, CudaError> {
        from.stream().at_once(DOWNLOADING)?;
        let values = self.download(from, len)?;
        Ok(Detached { values, end: from.stream().record_blocking()? })
    }

    /// A step is over and has been waited for: all of the room may be given out again. If it has not been, this waits;
    /// if that fails, or a stream is recorded, the room stays as it is, and whoever needs it gets the reason.
    pub fn start_over(&mut self) {
        let _ = self.empty();
    }

    /// Gives out room for `bytes` bytes that `stream` is about to be asked to copy; none if there never is as much.
    fn take(
        &mut self,
        operation: &'static str,
        stream: &Stream,
        bytes: usize,
    ) -> Result<Option<usize>, CudaError> {
        // Also sees to it that the stream is of the GPU that the memory was pinned for.
        self.room.address(operation, stream)?;
        let whole = bytes.checked_next_multiple_of(LINE_BYTES);
        if stream.is_recorded() && whole.is_none_or(|whole| whole > self.bytes() - self.taken) {
            return Err(self.too_small(operation, stream, bytes));
        }
        let Some(whole) = whole.filter(|whole| *whole <= self.bytes()) else {
            return Ok(None);
        };
        if whole > self.bytes() - self.taken {
            self.empty()?;
        }
        stream.recording().keep(&self.memory);
        if !self.streams.iter().any(|other| other.is(stream)) {
            self.streams.push(stream.clone());
        }
        let first = self.taken;
        self.taken += whole;
        Ok(Some(first))
    }

    fn too_small(&self, operation: &'static str, stream: &Stream, bytes: usize) -> CudaError {
        let (taken, all) = (self.taken, self.bytes());
        let mismatch = format!(
            "{bytes} bytes while {stream} is recorded, and {taken} of {all} bytes are given out: a recorded step needs \
             pinned memory for all that it copies"
        );
        stream.recording().refuses();
        CudaError::Arguments { operation, mismatch }
    }

    /// Waits for what is under way, puts aside what has come from the GPU and is wanted, and takes all room back.
    fn empty(&mut self) -> Result<(), CudaError> {
        self.settle()?;
        for late in std::mem::take(&mut self.late) {
            if let Some(to) = late.to.upgrade() {
                let _ = to.set(self.values(&late).to_vec());
            }
        }
        (self.taken, self.settled) = (0, 0);
        Ok(())
    }

    /// Whether somebody waits for values that are on their way, or are here and not read.
    pub(super) fn is_awaited(&self) -> bool {
        self.late.iter().any(|late| late.to.strong_count() > 0)
    }

    /// Waits for what is under way.
    fn settle(&mut self) -> Result<(), CudaError> {
        while let Some(stream) = self.streams.last() {
            stream.synchronize()?;
            self.streams.pop();
        }
        self.settled = self.taken;
        Ok(())
    }

    /// Values that have come from the GPU.
    fn values(&self, late: &Late) -> &[u8] {
        assert!(late.first + late.bytes <= self.settled, "a copy that was waited for");
        // SAFETY: every stream that was asked for a copy up to there has been waited for.
        unsafe { self.arrived(late) }
    }

    /// Values whose copy is over.
    ///
    /// # Safety
    /// Their copy has been waited for.
    unsafe fn arrived(&self, late: &Late) -> &[u8] {
        // SAFETY: `take` gave out these bytes, which always hold something, and nobody writes them: their copy is over,
        // and they are not given out again as long as `late` is known.
        unsafe { std::slice::from_raw_parts(self.place(late.first), late.bytes) }
    }

    fn place(&self, first: usize) -> *mut u8 {
        // SAFETY: `take` gave out `first`, which lies inside of the room.
        unsafe { self.room.host().add(first) }
    }
}

impl std::fmt::Debug for Staging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Staging({} of {} bytes)", self.taken, self.bytes())
    }
}

impl<T: Pod> Fetched<T> {
    fn new() -> Self {
        Self { bytes: Arc::default(), kind: PhantomData }
    }

    fn set(&self, bytes: Vec<u8>) {
        let _ = self.bytes.set(bytes);
    }

    /// Whether `late` is these values.
    fn is_of(&self, late: &Late) -> bool {
        late.to.as_ptr() == Arc::as_ptr(&self.bytes)
    }

    /// The values. `staging`, which was asked for them, waits for them if nobody has.
    ///
    /// # Errors
    /// A fault of the GPU, or a `staging` that was not asked for them.
    pub fn read(&self, staging: &mut Staging) -> Result<Vec<T>, CudaError> {
        let mut values = Vec::new();
        self.append_to(&mut values, staging)?;
        Ok(values)
    }

    /// Whether they would have to be waited for, if `staging` was asked for them.
    pub(super) fn is_coming(&self, staging: &Staging) -> bool {
        let coming = |late: &Late| self.is_of(late) && late.first + late.bytes > staging.settled;
        self.bytes.get().is_none() && staging.late.iter().any(coming)
    }

    /// Appends the values to others.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn append_to(&self, values: &mut Vec<T>, staging: &mut Staging) -> Result<(), CudaError> {
        if let Some(bytes) = self.bytes.get() {
            values.extend(plain::<T>(bytes));
            return Ok(());
        }
        let place =
            staging.late.iter().position(|late| self.is_of(late)).ok_or_else(CudaError::other_room)?;
        if staging.late[place].first + staging.late[place].bytes > staging.settled {
            staging.settle()?;
        }
        // Room is given out by lines, so that it begins where any plain type may.
        values.extend_from_slice(bytemuck::cast_slice(staging.values(&staging.late[place])));
        Ok(())
    }
}

impl<T: Pod> Detached<T> {
    /// Waits until the values are there.
    ///
    /// # Errors
    /// A fault of the GPU.
    pub fn wait(&self) -> Result<(), CudaError> {
        self.end.synchronize()
    }

    /// The values, of which one of `rooms` was asked. Waits.
    ///
    /// # Errors
    /// A fault of the GPU, or none of `rooms` was asked for them.
    pub fn read(&self, rooms: [Option<&Staging>; 2]) -> Result<Vec<T>, CudaError> {
        self.wait()?;
        if let Some(bytes) = self.values.bytes.get() {
            return Ok(plain(bytes));
        }
        let of = |room: &'_ Staging| room.late.iter().position(|late| self.values.is_of(late));
        let found = rooms.into_iter().flatten().find_map(|room| Some((room, of(room)?)));
        let (room, place) = found.ok_or_else(CudaError::other_room)?;
        // SAFETY: the event behind its copy has been waited for.
        Ok(plain(unsafe { room.arrived(&room.late[place]) }))
    }
}

/// Values of a plain type, wherever their bytes begin.
fn plain<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>().max(1)];
    let to: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
    to.copy_from_slice(&bytes[..to.len()]);
    values
}

impl CudaError {
    fn other_room() -> Self {
        let mismatch = "values that were asked for through other pinned memory".into();
        Self::Arguments { operation: DOWNLOADING, mismatch }
    }
}

impl<T: Pod> std::fmt::Debug for Fetched<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let there = if self.bytes.get().is_some() { "there" } else { "under way" };
        write!(f, "Fetched({there})")
    }
}
