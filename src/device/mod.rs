//! Floor 1: where numbers live and how they are multiplied. [`Device`] names a place of computation,
//! [`DeviceBuffer`] is aligned memory on it, [`matmul`] is the matrix product, [`disk`] is pages of a file,
//! [`simd`] compiles a loop for the widest vectors the processor has, [`stream`] writes past the caches, [`rng`] is
//! the counter-based randomness everyone shares, [`cuda`] is NVIDIA cards, and [`probe`] says which device this
//! machine offers and why.
//!
//! All `unsafe` code of the package is here. Knows nothing of tensors, graphs or models.

mod buffer;
pub mod cuda;
pub mod disk;
pub mod matmul;
mod pages;
mod prefetch;
mod probe;
pub mod rng;
pub mod simd;
pub mod stream;
mod wish;

pub use buffer::DeviceBuffer;
pub use pages::keep_pages_small;
pub use prefetch::{prefetch, prefetch_near};
pub use probe::{CudaDevice, CudaFound, Probe, probe};
pub use wish::Wish;

/// A place where buffers live and operations run.
///
/// Not `Copy`: an accelerator's variant will hold a handle to its context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor and its main memory.
    #[default]
    Cpu,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
        }
    }
}
