//! [`Launch`]: a kernel with its arguments, enqueued on a stream.
//!
//! Arguments are added in the order of the kernel's parameters and are borrowed until the launch, so a buffer is
//! written by one argument at most; a struct of addresses gets them by [`Launch::reading`] and [`Launch::writing`].
//! A buffer has to belong to the stream; a slice of the arena is ordered by its events. Whether what the kernel does
//! with them stays inside is for the launchers to see to (`declare`), which is why [`Launch::run`] is unsafe.

#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use bytemuck::Pod;

use super::context::Cuda;
use super::error::{CudaError, During};
use super::memory::CudaBuffer;
use super::module::Kernel;
use super::stream::Stream;
use super::twins::Address;

/// Threads that a multiprocessor of a GPU for data centers has at a time; others have fewer, and take more turns.
const THREADS_OF_MULTIPROCESSOR: u32 = 2048;

/// Where a kernel runs: a GPU, and the stream to which all its buffers belong.
pub type StreamContext<'a> = (&'a Cuda, &'a Stream);

/// Blocks and threads of a launch, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    pub blocks: u32,
    pub threads: u32,
}

impl Grid {
    /// Blocks of `threads` for `work` threads in all: at least one, at most `most`. Kernels walk in strides of the
    /// grid, so fewer are right as well.
    pub(super) fn of(work: u64, threads: u32, most: u32) -> Self {
        let blocks = work.div_ceil(u64::from(threads.max(1))).clamp(1, u64::from(most.max(1)));
        Self { blocks: u32::try_from(blocks).unwrap_or(u32::MAX), threads }
    }

    /// The same with at most so many blocks for each multiprocessor, or as many as it can have threads of, which fill a
    /// GPU with threads that wait for memory.
    pub(super) fn filling(cuda: &Cuda, work: u64, threads: u32, blocks: Option<u32>) -> Self {
        let blocks = blocks.unwrap_or(THREADS_OF_MULTIPROCESSOR / threads.max(1));
        Self::of(work, threads, cuda.gpu().multiprocessors.saturating_mul(blocks))
    }
}

/// Checks that what is passed is long enough: its name, how many values it has, how many are needed.
///
/// # Errors
/// [`CudaError::Arguments`] with the first that is too short.
pub(super) fn check_len(operation: &'static str, parts: &[(&str, usize, usize)]) -> Result<(), CudaError> {
    match parts.iter().find(|(_, has, needs)| has < needs) {
        None => Ok(()),
        Some((what, has, needs)) => {
            let mismatch = format!("{what}: {has} values, and {needs} are needed");
            Err(CudaError::Arguments { operation, mismatch })
        }
    }
}

/// `number` as a kernel takes it.
///
/// # Errors
/// [`CudaError::Arguments`] if it is too large.
pub(super) fn to_u32(operation: &'static str, what: &str, number: usize) -> Result<u32, CudaError> {
    u32::try_from(number).map_err(|_| {
        let mismatch = format!("{what}: {number}, and {} are the most", u32::MAX);
        CudaError::Arguments { operation, mismatch }
    })
}

/// Checks that what belongs to `owner` may be used in `stream`.
///
/// # Errors
/// [`CudaError::Arguments`] if they are two.
pub(super) fn check_owner(operation: &'static str, owner: &Stream, stream: &Stream) -> Result<(), CudaError> {
    if owner.is(stream) {
        return Ok(());
    }
    let mismatch = format!("a buffer of {owner} in {stream}: hand it over first");
    Err(CudaError::Arguments { operation, mismatch })
}

/// The product of sizes.
///
/// # Errors
/// [`CudaError::Arguments`] if it is more than memory can have.
pub(super) fn product(operation: &'static str, what: &str, sizes: &[usize]) -> Result<usize, CudaError> {
    let all = sizes.iter().try_fold(1_usize, |all, size| all.checked_mul(*size));
    all.ok_or_else(|| {
        let mismatch = format!("{what}: {sizes:?} values are more than an address can hold");
        CudaError::Arguments { operation, mismatch }
    })
}

/// Words of the largest argument: a struct of some addresses and sizes, by value.
const VALUE_WORDS: usize = 16;

/// A kernel that is about to be asked for.
pub(super) struct Launch<'a> {
    cuda: &'a Cuda,
    stream: &'a Stream,
    operation: &'static str,
    /// Each argument at the beginning of room of its own, and its size.
    values: Vec<([u64; VALUE_WORDS], usize)>,
    fault: Option<CudaError>,
}

impl<'a> Launch<'a> {
    /// Of `operation`, which errors name.
    pub(super) fn new(cuda: &'a Cuda, stream: &'a Stream, operation: &'static str) -> Self {
        Self { cuda, stream, operation, values: Vec::with_capacity(16), fault: None }
    }

    /// A buffer that the kernel reads.
    pub(super) fn reads<T: Pod>(mut self, buffer: &'a CudaBuffer<T>) -> Self {
        let address = self.reading(buffer);
        self.number(address)
    }

    /// A buffer that the kernel writes.
    pub(super) fn writes<T: Pod>(mut self, buffer: &'a mut CudaBuffer<T>) -> Self {
        let address = self.writing(buffer);
        self.number(address)
    }

    /// Where a buffer is that the kernel reads through a struct.
    pub(super) fn reading<T: Pod>(&mut self, buffer: &'a CudaBuffer<T>) -> Address {
        self.buffer(buffer.stream(), buffer.address())
    }

    /// Where value `first` of a buffer is that the kernel reads; the caller sees to it that there is one.
    pub(super) fn reading_from<T: Pod>(&mut self, buffer: &'a CudaBuffer<T>, first: usize) -> Address {
        self.reading(buffer).behind::<T>(first)
    }

    /// A buffer that the kernel reads from value `first` on; the caller sees to it that it stays inside.
    pub(super) fn reads_from<T: Pod>(mut self, buffer: &'a CudaBuffer<T>, first: usize) -> Self {
        let address = self.reading_from(buffer, first);
        self.number(address)
    }

    /// A buffer that the kernel writes from value `first` on, likewise.
    pub(super) fn writes_from<T: Pod>(mut self, buffer: &'a mut CudaBuffer<T>, first: usize) -> Self {
        let address = self.writing(buffer).behind::<T>(first);
        self.number(address)
    }

    /// A buffer that the kernel reads, or no address.
    pub(super) fn reads_optional<T: Pod>(mut self, buffer: Option<&'a CudaBuffer<T>>) -> Self {
        let address = buffer.map_or(Address::NULL, |buffer| self.reading(buffer));
        self.number(address)
    }

    /// Where a buffer is that the kernel writes through a struct.
    pub(super) fn writing<T: Pod>(&mut self, buffer: &'a mut CudaBuffer<T>) -> Address {
        self.buffer(buffer.stream(), buffer.address())
    }

    /// An address of the arena; the caller launches inside of `while_read` or `while_written`.
    pub(super) fn mapped(self, address: u64) -> Self {
        self.number(address)
    }

    /// A number or a struct of numbers, laid out as the kernel has it.
    pub(super) fn number<N: Pod>(mut self, number: N) -> Self {
        const { assert!(size_of::<N>() <= VALUE_WORDS * 8 && align_of::<N>() <= 8) };
        let mut value = [0; VALUE_WORDS];
        bytemuck::cast_slice_mut::<u64, u8>(&mut value)[..size_of::<N>()]
            .copy_from_slice(bytemuck::bytes_of(&number));
        self.values.push((value, size_of::<N>()));
        self
    }

    fn buffer(&mut self, owner: &Stream, address: u64) -> Address {
        if let Err(fault) = check_owner(self.operation, owner, self.stream) {
            self.fault.get_or_insert(fault);
        }
        Address(address)
    }

    /// Where the buffers are that were asked for; for who makes a table of them.
    ///
    /// # Errors
    /// A buffer of another stream.
    pub(super) fn found(self) -> Result<(), CudaError> {
        self.fault.map_or(Ok(()), Err)
    }

    /// Asks the stream for the kernel `name`, and does not wait. `sizes` is for errors.
    ///
    /// # Safety
    /// With these arguments and at any size of the grid the kernel touches only what the buffers and mapped slices hold
    /// that are among them, writes only those that are to be written, and ends.
    ///
    /// # Errors
    /// Arguments that are not those of the kernel, a buffer of another stream, or the driver's.
    pub(super) unsafe fn run(
        mut self,
        name: &'static str,
        grid: Grid,
        sizes: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let Kernel { parameters, function, launches } = self.cuda.kernels().get(name)?;
        if !self.values.iter().map(|(_, bytes)| *bytes).eq(parameters.iter().copied()) {
            let passed: Vec<usize> = self.values.iter().map(|(_, bytes)| *bytes).collect();
            let mismatch = format!("{name} takes {parameters:?} bytes and is passed {passed:?}");
            return Err(CudaError::Arguments { operation: self.operation, mismatch });
        }
        let mut arguments: Vec<&mut [u8]> = self
            .values
            .iter_mut()
            .map(|(value, bytes)| &mut bytemuck::cast_slice_mut::<u64, u8>(value)[..*bytes])
            .collect();
        let (kernel, shape) = ((name, function.as_ref()), (grid.blocks, grid.threads));
        // SAFETY: the function lives in `kernels`; there are as many bytes for each parameter as it has, each at a
        // multiple of 8. The rest is the caller's promise.
        let launched = unsafe { self.stream.queue().launch(kernel, shape, &mut arguments) };
        launches.fetch_add(1, Ordering::Relaxed);
        let Grid { blocks, threads } = grid;
        launched.during(self.operation, || format!("{name}, {blocks} blocks of {threads}: {}", sizes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_covers_its_work_within_its_bound() {
        let blocks = |work, most| Grid::of(work, 256, most).blocks;
        assert_eq!([blocks(0, 9), blocks(1, 9), blocks(256, 9), blocks(257, 9)], [1, 1, 1, 2]);
        assert_eq!([blocks(u64::MAX, 9), blocks(1 << 40, u32::MAX), blocks(5, 0)], [9, u32::MAX, 1]);
    }
}
