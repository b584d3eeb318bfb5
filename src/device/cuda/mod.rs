//! NVIDIA cards: everything that knows CUDA. [`Cuda`] is one card that was opened, with two streams, a budget of
//! memory and the kernels built for it; [`CudaBuffer`] is memory on it, [`Arena`] memory of the host that the card
//! reads in place, [`rows`] the operations on rows.
//!
//! ```text
//!   kernels/*.cu ── nvrtc ──▶ cubin ── cache, module ──▶ Kernels ── launch ──▶ rows, …
//!                                                          ▲
//!   driver ── context ──▶ Cuda, Stream, Event ─────────────┘
//!                           └── memory ──▶ CudaBuffer      arena ──▶ PinnedSlice
//! ```
//!
//! Nothing here is chosen when the program is compiled: libraries are found at run time, and [`Cuda::open`] says in
//! words what is missing. Who is told "no" goes on without a card.
//!
//! **Order without events.** cudarc would record events at every launch to order streams; that is switched off. In its
//! place: a [`CudaBuffer`] belongs to one stream, whose order is the order of everything that happens to it, and
//! [`CudaBuffer::hand_to`] is the one way to another stream. Memory of the host can be seen by every stream and by the
//! processor, so a [`PinnedSlice`] remembers by events who still reads or writes it, and makes the next one wait.
//!
//! Not verified on a GPU: what can be checked without one is tested (compiling, parameters of kernels, the cache, the
//! budget, the arena as plain memory), the rest is written against cudarc 0.19.10 and CUDA's documentation.

mod arena;
mod cache;
mod context;
mod cubin;
mod error;
mod launch;
mod memory;
mod module;
mod nvrtc;
pub mod rows;

pub use arena::{Arena, PinnedSlice};
pub use cache::CubinCache;
pub use context::{Card, Cuda, CudaOptions, Event, Stream};
pub use cubin::{Usage, parameter_bytes, usage};
pub use error::CudaError;
pub use memory::{CudaBuffer, MemoryUse};
pub(super) use module::architecture;
pub use module::{Entry, HEADERS, SOURCES, Source};
pub use nvrtc::{Compiled, version as nvrtc_version};
