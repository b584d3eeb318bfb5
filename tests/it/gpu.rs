//! What runs on a GPU does the same as its twin on the CPU.
//!
//! Where there is no GPU the CPU simulates one (`gpu/simulated.rs`): launchers and everything above them run all the
//! same, with the kernels' own text. The test reports this, since a GPU may still differ: it does things at the same time.
//! `EVERGRAPH_GPU=require` makes a missing GPU a failure, as `scripts/gpu-check.sh` does; `small` also takes small
//! sizes, for tools under which a GPU is slow.

pub mod ahead;
mod cache;
mod capture;
mod elementwise;
mod fingerprints;
mod joined;
mod layers;
mod learning;
mod linear;
mod mixing;
mod publish;
mod reduce;
mod rows;
mod sample;
mod sampling;
pub mod simulated;
mod smoke;
mod staging;
mod train;

use std::sync::{Arc, OnceLock};

use evergraph::device::cuda::{Cuda, CudaOptions};
use evergraph::device::rng;

use crate::skip::skipped;

/// Bytes of a simulated GPU.
const SIMULATED_BYTES: usize = 1 << 30;

/// How a GPU is opened. `EVERGRAPH_KERNEL_DIR` names a folder that keeps compiled kernels from run to run, and
/// `EVERGRAPH_KERNEL_SOURCES` one whose files take the place of the kernels that are compiled in.
fn options() -> CudaOptions {
    let folder = |name| std::env::var_os(name).map(Into::into);
    CudaOptions {
        memory_bytes_max: 4 << 30,
        kernel_dir: folder("EVERGRAPH_KERNEL_DIR"),
        kernel_sources: folder("EVERGRAPH_KERNEL_SOURCES"),
    }
}

/// The first GPU, opened once for all tests; if there is none, the test reports a skip and gets a simulated one.
fn gpu() -> Arc<Cuda> {
    real_gpu().unwrap_or_else(|| Cuda::simulated(simulated::Simulated::start(), SIMULATED_BYTES))
}

/// The same, with a budget of memory that no other test takes from.
fn fresh_gpu() -> Arc<Cuda> {
    match real_gpu() {
        Some(_) => Cuda::open(0, &options()).unwrap(),
        None => Cuda::simulated(simulated::Simulated::start(), SIMULATED_BYTES),
    }
}

/// A GPU of which `bytes` bytes may be used.
fn small_gpu(bytes: usize) -> Arc<Cuda> {
    match real_gpu() {
        Some(_) => Cuda::open(0, &CudaOptions { memory_bytes_max: bytes as u64, ..options() }).unwrap(),
        None => Cuda::simulated(simulated::Simulated::start(), bytes),
    }
}

/// The first GPU, if there is one.
fn real_gpu() -> Option<Arc<Cuda>> {
    static GPU: OnceLock<Result<Arc<Cuda>, String>> = OnceLock::new();
    match GPU.get_or_init(|| Cuda::open(0, &options()).map_err(|error| error.to_string())) {
        Ok(gpu) => Some(gpu.clone()),
        Err(error) => {
            let setting = std::env::var_os("EVERGRAPH_GPU");
            assert!(setting.is_none(), "EVERGRAPH_GPU={setting:?}, and {error}");
            skipped(&format!(
                "runs on the simulated GPU only ({error}); on a machine with a GPU run scripts/gpu-check.sh"
            ));
            None
        }
    }
}

/// Whether sizes are to be small: the GPU is slow.
fn small() -> bool {
    std::env::var_os("EVERGRAPH_GPU").is_none_or(|value| value == "small")
}

/// Random numbers of one test, by place.
struct Draws {
    seed: u64,
    at: u64,
}

impl Draws {
    fn new(seed: u64) -> Self {
        Self { seed, at: 0 }
    }

    fn word(&mut self) -> u64 {
        self.at += 1;
        rng::random_u64([self.seed, self.at, 0, 0])
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.word() as u8).collect()
    }

    /// Numbers of the normal distribution, times `scale`.
    fn floats(&mut self, len: usize, scale: f32) -> Vec<f32> {
        (0..len)
            .map(|_| {
                self.at += 1;
                rng::normal_f32([self.seed, self.at, 0, 0]) * scale
            })
            .collect()
    }
}
