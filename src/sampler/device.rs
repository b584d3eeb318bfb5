//! [`DeviceSampler`]: samples that are drawn on a GPU and read by the host, of a graph store that goes on changing.
//!
//! It keeps a copy of the graph on the GPU ([`CudaGraph`]), which the loop that trains brings up to date batch by
//! batch. Samples are those of the CPU, bit for bit, so whoever cannot be served here samples there: when the copy is
//! lacking, or became too large, or the GPU failed. Each change of that kind is logged, and both kinds of samples are
//! counted.
//!
//! ```text
//! open      between steps: makes the copy, and makes it anew where it became full        reads the whole store
//! follow    a batch, in order, before the first sample that sees it                       one upload
//! sample    any thread: what was deleted in the store, seeds up, kernels, columns down    waits for the GPU
//! ```
//!
//! **What is gone.** Edges that the store releases because of their age stay in the copy, where no view shows them,
//! until it is full; then a new copy is without them. If that is not much smaller either, the graph does not fit.
//!
//! **Beside a step.** `follow` and `sample` work in a stream of their own and may be called while a step is recorded,
//! which the end of pinned memory would disturb. So a copy that failed is kept until `open` is called.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{CudaLayers, HostColumns, Layers, SampleRequest, Seeds};
use crate::device::cuda::Cuda;
use crate::event::{EdgeBatch, EdgeId};
use crate::graph::{CudaGraph, CudaGraphError, CudaGraphOptions, GraphStore, GraphView, MirrorOptions};

/// Room for the copy of a graph; without any on the GPU there is no copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSamplerOptions {
    /// Bytes of the GPU's memory; at most half of what its budget leaves when the copy is made.
    pub gpu_bytes_max: u64,
    /// Bytes of the host's memory, page-locked, for its older part, which the GPU reads in place.
    pub host_bytes_max: u64,
}

/// How many samples were drawn where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCounts {
    /// On the GPU.
    pub on_device: u64,
    /// On the CPU, where the GPU was to.
    pub on_cpu: u64,
}

/// Samples one graph store on a GPU.
pub struct DeviceSampler {
    cuda: Arc<Cuda>,
    options: DeviceSamplerOptions,
    /// Whether the host reads all columns, whoever asks.
    whole: bool,
    state: Mutex<State>,
    on_device: AtomicU64,
    on_cpu: AtomicU64,
}

enum State {
    /// There is no copy yet.
    Empty,
    Open(Box<Copied>),
    /// The copy is void, and kept until nothing is recorded. With so many bytes it was full.
    Failed {
        _kept: Box<Copied>,
        full_bytes: Option<u64>,
    },
    Off,
}

/// A copy, and room for samples.
struct Copied {
    graph: CudaGraph,
    layers: CudaLayers,
}

impl Copied {
    /// Bytes of entries and tables, wherever they are, without the room that they have to grow.
    fn bytes(&self) -> u64 {
        self.graph.bytes()
    }
}

impl DeviceSampler {
    /// One without a copy yet.
    #[must_use]
    pub fn new(cuda: &Arc<Cuda>, options: DeviceSamplerOptions) -> Self {
        let (on_device, on_cpu) = (AtomicU64::new(0), AtomicU64::new(0));
        let (cuda, state) = (cuda.clone(), Mutex::new(State::Empty));
        Self { cuda, options, whole: false, state, on_device, on_cpu }
    }

    /// The same, which leaves no column of a sample on the GPU, for those who look at samples.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// Makes the copy of `store` if there is none yet, or a new one if it is full. Not while a step is computed.
    pub fn open(&self, store: &GraphStore) {
        let mut state = self.state.lock();
        let full_bytes = match &*state {
            State::Open(_) | State::Off => return,
            State::Empty => None,
            State::Failed { full_bytes: None, .. } => {
                *state = State::Off;
                return;
            }
            State::Failed { full_bytes, .. } => *full_bytes,
        };
        // The old copy makes room.
        *state = State::Off;
        match self.copy(store) {
            // One that is hardly smaller would soon be full again.
            Ok(copied) if full_bytes.is_none_or(|full| copied.bytes() / 3 <= full / 4) => {
                let (bytes, position) = (copied.bytes(), copied.graph.applied().0);
                tracing::info!(bytes, position, "the GPU has a copy of the graph and samples the batches");
                *state = State::Open(Box::new(copied));
            }
            Ok(_) => tracing::warn!("the graph does not fit on the GPU: the CPU samples the batches"),
            Err(error) => {
                tracing::warn!(%error, "the graph cannot be copied to the GPU: the CPU samples the batches");
            }
        }
    }

    /// Gives the copy up: the GPU is not used any more. Not while a step is computed.
    pub fn close(&self) {
        *self.state.lock() = State::Off;
    }

    fn copy(&self, store: &GraphStore) -> Result<Copied, CudaGraphError> {
        let memory = self.cuda.memory();
        let free = memory.budget.saturating_sub(memory.used);
        let bytes = |most: u64| usize::try_from(most).unwrap_or(usize::MAX);
        let gpu_bytes_max = bytes(self.options.gpu_bytes_max).min(free / 2);
        let host_bytes_max = bytes(self.options.host_bytes_max);
        // Of the tables the host has a copy, which is no part of any budget of its own.
        let (form, table_bytes_max) = (MirrorOptions::default(), gpu_bytes_max / 4);
        let options = CudaGraphOptions { form, gpu_bytes_max, host_bytes_max, table_bytes_max };
        let graph = CudaGraph::copy(&self.cuda, store, options)?;
        Ok(Copied { graph, layers: CudaLayers::new(&self.cuda) })
    }

    /// One past the last edge of the copy, if there is one.
    #[must_use]
    pub fn applied(&self) -> Option<EdgeId> {
        match &*self.state.lock() {
            State::Open(copied) => Some(copied.graph.applied()),
            _ => None,
        }
    }

    /// Takes in `batch`, which `store` has applied and which begins where the copy ends. Of its records, edges count.
    pub fn follow(&self, store: &GraphStore, batch: &EdgeBatch) {
        self.with_copy(|copied| copied.graph.follow(store, batch));
    }

    /// As [`Layers::sample`], on the GPU; `false` if it cannot be done there, and `out` is void. Columns that `host`,
    /// if given, leaves out stay on the GPU, in the memory of those that `out` had: what was asked of these has to be
    /// over.
    pub fn sample(
        &self,
        view: GraphView<'_>,
        seeds: Seeds<'_>,
        (request, count): (&SampleRequest, usize),
        host: Option<HostColumns>,
        out: &mut Layers,
    ) -> bool {
        let host = host.filter(|_| !self.whole);
        let drawn = self.with_copy(|Copied { graph, layers }| {
            graph.follow_deletions(view)?;
            layers.sample(graph, view, seeds, request, count)?;
            Ok(layers.read_columns(host, out)?)
        });
        let counter = if drawn { &self.on_device } else { &self.on_cpu };
        counter.fetch_add(1, Ordering::Relaxed);
        drawn
    }

    /// Bytes of the host's memory that the copy takes.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        match &*self.state.lock() {
            State::Open(copied) => copied.graph.host_bytes() as u64,
            _ => 0,
        }
    }

    /// How many samples were drawn where.
    #[must_use]
    pub fn counts(&self) -> SampleCounts {
        SampleCounts {
            on_device: self.on_device.load(Ordering::Relaxed),
            on_cpu: self.on_cpu.load(Ordering::Relaxed),
        }
    }

    /// Does `work` with the copy; `false` if there is none or that fails, after which there is none.
    fn with_copy(&self, work: impl FnOnce(&mut Copied) -> Result<(), CudaGraphError>) -> bool {
        let mut state = self.state.lock();
        let State::Open(copied) = &mut *state else { return false };
        let Err(error) = work(copied) else { return true };
        let is_full = matches!(&error, CudaGraphError::Cuda(error) if error.is_out_of_memory());
        let full_bytes = is_full.then(|| copied.bytes());
        tracing::warn!(%error, "the copy of the graph on the GPU ends: the CPU samples the batches");
        if let State::Open(copied) = std::mem::replace(&mut *state, State::Off) {
            *state = State::Failed { _kept: copied, full_bytes };
        }
        false
    }
}

impl std::fmt::Debug for DeviceSampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceSampler").field("counts", &self.counts()).finish_non_exhaustive()
    }
}
