//! Floor 1: where numbers live and how they are multiplied. [`Device`] names a place of computation,
//! [`DeviceBuffer`] is aligned memory on it, [`matmul`] is the matrix product, [`disk`] is pages of a file,
//! [`simd`] compiles a loop for the widest vectors the CPU has, [`stream`] writes past the caches, [`exchange`] passes
//! bytes between processes, [`rng`] is the counter-based randomness everyone shares, [`cuda`] is NVIDIA GPUs, and
//! [`probe`] reports which device this machine offers and why.
//!
//! All `unsafe` code of the package is here, also the one call of librdkafka that rdkafka does not have
//! ([`set_kafka_token`]). Knows nothing of tensors or models, or of what a graph is for. Of the
//! tables that kernels search ([`cuda::graph`], [`cuda::sample`]) it knows as much as it has to
//! check so that no kernel leaves its buffers. Who asks for a kernel stands beside its twin on the CPU.

mod buffer;
pub mod cuda;
pub mod disk;
pub mod exchange;
mod kafka_token;
pub mod matmul;
mod pages;
mod prefetch;
mod priority;
mod probe;
pub mod rng;
pub mod simd;
mod spec;
pub mod stream;

use std::sync::Arc;

use cuda::{Cuda, CudaError, CudaOptions, CudaWork};

pub use buffer::{DeviceBuffer, size_class};
pub use kafka_token::{KafkaToken, set_kafka_token};
pub use pages::keep_pages_small;
pub use prefetch::{prefetch, prefetch_near};
pub use priority::{stand_back, wake_promptly};
pub use probe::{CudaDevice, CudaFound, Probe, probe};
pub use spec::DeviceSpec;

/// A place where buffers live and operations run.
#[derive(Clone, Debug, Default)]
pub enum Device {
    /// The CPU and its main memory.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda(Arc<CudaWork>),
}

impl Device {
    /// What `spec` names; without a name of a GPU, the CPU. Takes some seconds with a GPU.
    ///
    /// # Errors
    /// Why the GPU cannot be used.
    pub fn open(spec: DeviceSpec, options: &CudaOptions) -> Result<Self, CudaError> {
        match spec {
            DeviceSpec::Auto | DeviceSpec::Cpu => Ok(Self::Cpu),
            DeviceSpec::Cuda(number) => Ok(Self::Cuda(CudaWork::new(Cuda::open(number, options)?))),
        }
    }

    /// Does what asks for a whole step; see [`CudaWork::record`]. The CPU does it at once.
    pub fn record<R>(&self, mut step: impl FnMut() -> R) -> R {
        match self {
            Self::Cpu => step(),
            Self::Cuda(work) => work.record(step),
        }
    }

    /// What went wrong on a GPU since this was asked last. The CPU does not fail.
    ///
    /// # Errors
    /// The first fault; what was computed since means nothing.
    pub fn check(&self) -> Result<(), CudaError> {
        match self {
            Self::Cpu => Ok(()),
            Self::Cuda(work) => work.check(),
        }
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cpu, Self::Cpu) => true,
            (Self::Cuda(one), Self::Cuda(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(work) => write!(f, "cuda:{}", work.cuda().gpu().ordinal),
        }
    }
}
