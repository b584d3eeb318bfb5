//! NVIDIA GPUs: everything that knows CUDA. [`Cuda`] is one GPU that was opened, with three streams, a budget of
//! memory and the kernels built for it; [`CudaBuffer`] is memory on it, [`Arena`] memory of the host that the GPU
//! reads in place. What is done there: [`rows`] moves rows, [`graph`] holds the temporal graph, which [`sample`] and
//! [`distinct`] search, [`layers`] computes; [`twins`] is what they and the kernels share.
//! Each kernel is declared once, in `kernels!`, from which its entry and its launcher derive (`declare`).
//!
//! ```text
//!   kernels/*.cu ── nvrtc ──▶ cubin ── cache, module ──▶ Kernels ── launch ──▶ rows, graph, sample, layers, …
//!                                                          ▲
//!   driver ── context ──▶ Cuda, Stream, Event ─────────────┘
//!                           └── memory ──▶ CudaBuffer ◀── staging ◀── arena ──▶ PinnedSlice
//! ```
//!
//! Nothing here is chosen when the program is compiled: libraries are found at run time, and the error of
//! [`Cuda::open`] lists what is missing. The program then goes on without a GPU.
//!
//! **Order without events.** cudarc would record events at every launch to order streams; that is switched off. In its
//! place: a [`CudaBuffer`] belongs to one stream, whose order is the order of everything that happens to it, until the
//! host has waited for all of that. Memory of the host can be seen by every stream and by the CPU, so a [`PinnedSlice`]
//! remembers by events who still reads or writes it, and makes the next one wait.
//!
//! **As a graph.** A [`Recorder`] turns what is enqueued on a stream into one launch; meanwhile nothing can be waited
//! for.
//!
//! **Without a GPU.** A [`Simulator`] can take the place of the driver: then everything above `driver` runs as on a
//! GPU, with the kernels' own text (`tests/it/gpu`). The calls to the driver run on a stand-in driver
//! (`tests/it/stand_in.rs`). What has run on a GPU is in `docs/benchmarks/gpu`.

mod ahead;
mod arena;
mod budget;
mod bus;
mod cache;
mod capture;
mod column;
mod context;
mod cubin;
mod declare;
pub mod distinct;
mod distinct_edges;
mod driver;
mod energy;
mod error;
mod executable;
pub mod graph;
mod launch;
pub mod layers;
mod lists;
mod memory;
mod module;
mod nvrtc;
mod pace;
mod pages;
mod pooled_buffer;
mod recording;
mod row_room;
mod row_segment;
pub mod rows;
pub mod sample;
pub mod seeds;
mod simulator;
mod staging;
mod step;
mod stream;
mod texts;
pub mod twins;
mod work;

pub use ahead::Ahead;
pub use arena::{Arena, PinnedSlice};
pub use budget::MemoryUse;
pub use bus::BusBytes;
pub use cache::CubinCache;
pub use capture::{Recorder, RecorderCounts};
pub use column::{GpuColumn, PendingColumn};
pub use context::{Cuda, CudaOptions, Gpu};
pub use cubin::{Usage, parameter_bytes, usage};
pub use distinct_edges::DistinctEdges;
pub use energy::EnergyMeter;
pub use error::CudaError;
pub use memory::CudaBuffer;
pub(super) use module::architecture;
pub use nvrtc::{Compiled, version as nvrtc_version};
pub use pace::Launching;
pub use pages::TierOptions;
pub use pooled_buffer::{DetachedCopy, PendingCopy, PooledBuffer};
pub use row_room::{RowRoom, RowsInPlace};
pub use simulator::Simulator;
pub use staging::{Fetched, Staging};
pub use stream::{Event, Stream};
pub use texts::{Entry, HEADERS, SOURCES, Source, Texts};
pub use work::CudaWork;
