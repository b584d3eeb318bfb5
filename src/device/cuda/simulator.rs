//! [`Simulator`]: what simulates a GPU, so that what runs on GPUs can be tested without one.
//!
//! A simulated GPU has memory of its own, with addresses of its own, and runs kernels by name, with the bytes that a
//! launcher passes. It does one thing after the other and is done with each when the call returns: what it cannot show
//! is what goes wrong when things happen at the same time. `tests/it/gpu/simulated.rs` has one, which compiles the
//! kernels' text for the CPU.

use std::os::fd::BorrowedFd;

/// What is enqueued on a GPU, below buffers and launchers. Every error ends the GPU for whoever uses it.
pub trait Simulator: Send + Sync {
    /// The address of `bytes` new bytes, at least one, at a multiple of 256. They hold anything.
    ///
    /// # Errors
    /// In words.
    fn allocate(&self, bytes: usize) -> Result<u64, String>;

    /// Takes back what [`allocate`](Self::allocate) gave.
    ///
    /// # Errors
    /// In words.
    fn free(&self, address: u64) -> Result<(), String>;

    /// Puts `byte` into `bytes` bytes from `address` on.
    ///
    /// # Errors
    /// In words.
    fn fill(&self, address: u64, byte: u8, bytes: usize) -> Result<(), String>;

    /// Copies to the GPU.
    ///
    /// # Errors
    /// In words.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), String>;

    /// Copies from the GPU.
    ///
    /// # Errors
    /// In words.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), String>;

    /// Copies on the GPU.
    ///
    /// # Errors
    /// In words.
    fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<(), String>;

    /// Where the GPU sees the `bytes` bytes of `memory`, a file without a name that the host has mapped shared. They
    /// stay until the simulated GPU ends.
    ///
    /// # Errors
    /// In words.
    fn map(&self, memory: BorrowedFd<'_>, bytes: usize) -> Result<u64, String>;

    /// Runs `blocks` blocks of `threads` threads of `kernel`, with the bytes of each of its parameters.
    ///
    /// # Errors
    /// In words; also what the kernel did wrong, as far as the simulated GPU sees it.
    fn launch(&self, kernel: &str, blocks: u32, threads: u32, arguments: &[&[u8]]) -> Result<(), String>;
}
