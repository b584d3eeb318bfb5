//! [`Cuda`]: one GPU, opened, with what everything on it shares: three streams, the budget of its memory, the kernels
//! built for it.
//!
//! Three streams are enough for one loop: `compute` at the highest priority, and `transfer` and `sampling` at the
//! lowest, that of streams that were made without one, so that taking memory and sampling the next batch fill what
//! computing leaves. The context is the GPU's primary one, which
//! other libraries in this process would share.

#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, result, sys};

use super::budget::{Budget, MemoryUse};
use super::bus::BusBytes;
use super::cache::CubinCache;
use super::driver::Driver;
use super::error::{CudaError, During};
use super::module::{self, Kernels, Target};
use super::nvrtc;
use super::simulator::Simulator;
use super::stream::{Priority, Stream};
use super::texts::Texts;

/// The oldest CUDA that the driver may support, `1000 * major + 10 * minor`. `cudarc` looks a call up when it is first
/// made, and panics where the driver lacks it. The newest call that a daemon makes is `cuGraphExecUpdate_v2`, of CUDA
/// 12.0; [`TIMING_VERSION_MIN`] is that of benchmarks.
const DRIVER_VERSION_MIN: i32 = 12_000;

/// The oldest CUDA whose driver times events by the call that `cudarc` makes, `cuEventElapsedTime_v2`.
pub(super) const TIMING_VERSION_MIN: i32 = 12_080;

/// How a GPU is to be used.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Bytes of the GPU's memory that may be used; 0 means nine tenths of what is free when it is opened.
    pub memory_bytes_max: u64,
    /// Where compiled kernels are kept; `None` compiles them at each start.
    pub kernel_dir: Option<PathBuf>,
    /// A folder whose `.cu` and `.cuh` files take the place of those compiled in: for tests and benchmarks.
    pub kernel_sources: Option<PathBuf>,
}

/// Facts about an opened GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its number in the driver's order.
    pub ordinal: usize,
    /// Its marketing name.
    pub name: String,
    /// What kernels are compiled for, e.g. `sm_90`.
    pub architecture: String,
    /// Processors that run blocks.
    pub multiprocessors: u32,
    /// Whether it reads memory of the host that is mapped for it.
    pub maps_host_memory: bool,
    /// Whether it reads all memory of the host as it is, through the host's page tables.
    pub shares_page_tables: bool,
    /// Whether it allocates in the order of a stream.
    pub(super) allocates_in_order: bool,
}

/// One GPU that was opened.
pub struct Cuda {
    driver: Driver,
    gpu: Gpu,
    compute: Stream,
    transfer: Stream,
    sampling: Stream,
    budget: Arc<Budget>,
    kernels: Kernels,
}

impl Drop for Cuda {
    /// Kernels that run must not lose their code.
    fn drop(&mut self) {
        let _ = self.driver.synchronize();
    }
}

impl Cuda {
    /// Opens GPU `ordinal` and builds the kernels for it: some ten seconds the first time, some tenths of one when
    /// they are in the cache.
    ///
    /// # Errors
    /// [`CudaError::Absent`] names which library, driver or GPU is missing; else what the driver or the kernel compiler
    /// refused. Never panics, and leaves nothing behind on the GPU.
    pub fn open(ordinal: usize, options: &CudaOptions) -> Result<Arc<Self>, CudaError> {
        // cudarc panics over a library or a call that is missing; the checks before its calls rule out all the
        // cases that are known.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_present(ordinal, options)));
        opened.unwrap_or_else(|_| {
            Err(absent("a library lacks a call that is needed; update the driver".into()))
        })
    }

    fn open_present(ordinal: usize, options: &CudaOptions) -> Result<Arc<Self>, CudaError> {
        let opening = "opening the GPU";
        // SAFETY: loading a library runs its initializers; these are NVIDIA's own, from the system's library path.
        if !unsafe { sys::is_culib_present() } {
            return Err(absent("no NVIDIA driver library (libcuda.so.1) on this machine".into()));
        }
        let compiler = nvrtc::version()?;
        result::init().during(opening, || "initializing the driver".into())?;
        let driver = driver_version()?;
        // A driver loads the machine code of every compiler of its own major version and of older ones.
        let needed = DRIVER_VERSION_MIN.max(compiler.0 * 1000);
        if driver < needed {
            let (have, need) = (shown(driver), shown(needed));
            return Err(absent(format!(
                "the driver knows CUDA {have} and {need} is needed; update the driver"
            )));
        }
        let count = result::device::get_count().during(opening, || "counting the GPUs".into())?;
        if usize::try_from(count).is_ok_and(|count| ordinal >= count) {
            return Err(absent(format!(
                "there is no GPU {ordinal}: the driver shows {count}, counted from 0"
            )));
        }
        let context = CudaContext::new(ordinal).during(opening, || format!("GPU {ordinal}"))?;
        // SAFETY: every buffer belongs to one stream, in whose order it is made, used and freed, and changes streams
        // only once the host has waited for all work on it (`memory`); memory of the host keeps events of its own
        // (`arena`).
        unsafe { context.disable_event_tracking() };
        let gpu = Gpu::of(&context, ordinal)?;
        let bus = Arc::default();
        let compute = Stream::new(&context, "compute", Priority::Greatest, &bus)?;
        let transfer = Stream::new(&context, "transfer", Priority::Least, &bus)?;
        let sampling = Stream::new(&context, "sampling", Priority::Least, &bus)?;
        let cache = options.kernel_dir.as_deref().map(CubinCache::new);
        let texts =
            options.kernel_sources.as_deref().map_or_else(|| Ok(Texts::default()), Texts::of_folder)?;
        let target = Target { architecture: gpu.architecture.clone(), compiler, driver };
        let kernels = Kernels::load(&context, &target, &texts, cache.as_ref())?;
        let budget = Budget::of_gpu(&context, &gpu, options.memory_bytes_max)?;
        let driver = Driver::Nvidia(context);
        Ok(Arc::new(Self { driver, gpu, compute, transfer, sampling, budget, kernels }))
    }

    /// A GPU that `simulator` simulates, with memory for `memory_bytes_max` bytes. It has few multiprocessors, so that
    /// kernels walk in strides of small grids.
    #[must_use]
    pub fn simulated(simulator: Arc<dyn Simulator>, memory_bytes_max: usize) -> Arc<Self> {
        let bus = Arc::default();
        Arc::new(Self {
            compute: Stream::simulated(simulator.clone(), "compute", 0, &bus),
            transfer: Stream::simulated(simulator.clone(), "transfer", 1, &bus),
            sampling: Stream::simulated(simulator.clone(), "sampling", 2, &bus),
            driver: Driver::Simulated(simulator),
            gpu: Gpu {
                ordinal: 0,
                name: "simulated".into(),
                architecture: "none".into(),
                multiprocessors: 2,
                maps_host_memory: true,
                shares_page_tables: false,
                allocates_in_order: true,
            },
            budget: Budget::new(memory_bytes_max),
            kernels: Kernels::simulated(),
        })
    }

    /// What was opened.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Where work is computed.
    #[must_use]
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// Where memory is taken from while `compute` is recorded, after everything else.
    #[must_use]
    pub fn transfer(&self) -> &Stream {
        &self.transfer
    }

    /// Where the graph follows the stream and is sampled, beside a step.
    #[must_use]
    pub fn sampling(&self) -> &Stream {
        &self.sampling
    }

    /// Memory of the GPU that is in use.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        self.budget.in_use()
    }

    /// Bytes that went over the bus.
    #[must_use]
    pub fn bus(&self) -> BusBytes {
        self.compute.bus().bytes()
    }

    /// Which GPU it is, for people; the same at every start.
    #[must_use]
    pub fn describe(&self) -> String {
        let Gpu { ordinal, name, architecture, .. } = &self.gpu;
        format!("cuda:{ordinal} {name} ({architecture})")
    }

    /// How it was opened, for people: its budget and where its kernels came from.
    #[must_use]
    pub fn details(&self) -> String {
        let (gib, kernels) = (self.memory().budget as f64 / f64::from(1 << 30), &self.kernels);
        format!("up to {gib:.1} GiB of its memory, {kernels}")
    }

    /// What went wrong while the GPU was opened and does not keep it from working, a sentence each.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        self.kernels.warnings()
    }

    /// How often kernels of each file of `kernels/` were launched.
    #[must_use]
    pub fn launches(&self) -> Vec<(&'static str, u64)> {
        self.kernels.launches()
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.kernels
    }
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cuda").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

impl Gpu {
    fn of(context: &CudaContext, ordinal: usize) -> Result<Self, CudaError> {
        let asking = "asking the GPU";
        let ask = |what: Attribute| context.attribute(what).during(asking, || format!("{what:?}"));
        let (major, minor) = context.compute_capability().during(asking, || "compute capability".into())?;
        Ok(Self {
            ordinal,
            name: context.name().during(asking, || "name".into())?,
            architecture: module::architecture(major, minor),
            multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
            maps_host_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)? != 0,
            shares_page_tables: ask(
                Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            )? != 0,
            allocates_in_order: context.has_async_alloc(),
        })
    }
}

fn absent(missing: String) -> CudaError {
    CudaError::Absent { operation: "opening the GPU", missing }
}

/// The newest CUDA that the driver supports, `1000 * major + 10 * minor`.
pub(super) fn driver_version() -> Result<i32, CudaError> {
    let mut version = 0;
    // SAFETY: the driver library is present; the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .during("asking the driver for its version", || "before any GPU".into())?;
    Ok(version)
}

pub(super) fn shown(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
