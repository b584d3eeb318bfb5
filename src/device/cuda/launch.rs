//! [`Launch`]: a kernel with its arguments, asked of a stream.
//!
//! Arguments are added in the order of the kernel's parameters and are borrowed until the launch, so a buffer is
//! written by one argument at most. A buffer has to belong to the stream; a slice of the arena is ordered by its
//! events. Whether what the kernel does with them stays inside is for the launchers to see to (`rows` and its like),
//! which is why [`Launch::run`] is unsafe.
//!
//! Not verified on a GPU.

#![allow(unsafe_code)]

use std::ffi::c_void;

use bytemuck::Pod;
use cudarc::driver::result;

use super::context::{Cuda, Stream};
use super::error::{CudaError, During};
use super::memory::CudaBuffer;

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
}

/// Words of the largest argument: a struct of some addresses and sizes, by value.
const VALUE_WORDS: usize = 8;

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
    pub(super) fn reads<T: Pod>(self, buffer: &'a CudaBuffer<T>) -> Self {
        self.buffer(buffer.stream(), buffer.address())
    }

    /// A buffer that the kernel writes.
    pub(super) fn writes<T: Pod>(self, buffer: &'a mut CudaBuffer<T>) -> Self {
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

    fn buffer(mut self, owner: &Stream, address: u64) -> Self {
        if !owner.is(self.stream) {
            let mismatch = format!("a buffer of {owner} in {}: hand it over first", self.stream);
            self.fault.get_or_insert(CudaError::Arguments { operation: self.operation, mismatch });
        }
        self.number(address)
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
        let (entry, function) = self.cuda.kernels().get(name)?;
        if !self.values.iter().map(|(_, bytes)| *bytes).eq(entry.parameters.iter().copied()) {
            let passed: Vec<usize> = self.values.iter().map(|(_, bytes)| *bytes).collect();
            let mismatch = format!("{name} takes {:?} bytes and is passed {passed:?}", entry.parameters);
            return Err(CudaError::Arguments { operation: self.operation, mismatch });
        }
        self.stream.context().bind_to_thread().during(self.operation, || name.into())?;
        let mut pointers: Vec<*mut c_void> =
            self.values.iter_mut().map(|(value, _)| value.as_mut_ptr().cast()).collect();
        // SAFETY: the function lives in `kernels`; there is a pointer for each parameter, to as many bytes as it has,
        // which the driver copies before it returns. The rest is the caller's promise.
        unsafe {
            result::launch_kernel(
                function.cu_function(),
                (grid.blocks, 1, 1),
                (grid.threads, 1, 1),
                0,
                self.stream.raw(),
                &mut pointers,
            )
        }
        .during(self.operation, || format!("{name}, {} blocks of {}: {}", grid.blocks, grid.threads, sizes()))
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
