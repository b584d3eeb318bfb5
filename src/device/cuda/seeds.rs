//! What a layer of samples is on a GPU: [`GpuSeeds`], the pairs that are asked about, and [`GpuSlots`], what was
//! found for them. How many pairs there are stands in the GPU's memory beside them, so that one layer can follow
//! another without the host; that number is written here and by `distinct` only, and never exceeds the room.

use super::arena::PinnedSlice;
use super::context::Cuda;
use super::error::CudaError;
use super::launch::{Launch, check_len, product, to_u32};
use super::memory::CudaBuffer;
use super::staging::{Fetched, Staging};
use super::stream::Stream;
use super::twins::{Seeds, Slots};

/// Slots of a layer at most.
pub(super) const SLOTS_MAX: usize = (1 << 31) - 1;

/// (node, time) pairs in the memory of a GPU, and how many there are.
pub struct GpuSeeds {
    pub(super) nodes: CudaBuffer<u32>,
    pub(super) times: CudaBuffer<i64>,
    /// One number, `most` at most.
    pub(super) count: CudaBuffer<u32>,
    most: usize,
}

impl GpuSeeds {
    /// Room for `most` pairs, and none yet.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or more than 2^31.
    pub fn new(cuda: &Cuda, stream: &Stream, most: usize) -> Result<Self, CudaError> {
        let operation = "making room for seeds";
        check_len(operation, &[("seeds", SLOTS_MAX, most)])?;
        Ok(Self {
            nodes: CudaBuffer::zeros(cuda, stream, most, operation)?,
            times: CudaBuffer::zeros(cuda, stream, most, operation)?,
            count: CudaBuffer::zeros(cuda, stream, 1, operation)?,
            most,
        })
    }

    /// How many pairs there may be.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// From now on the first `count` pairs of an arena. Does not wait.
    ///
    /// # Errors
    /// More than there is room for, or the driver's.
    pub fn set_from_pinned(
        &mut self,
        nodes: &PinnedSlice<u32>,
        times: &PinnedSlice<i64>,
        count: usize,
    ) -> Result<(), CudaError> {
        let operation = "setting seeds";
        check_len(operation, &[("room for seeds", self.most, count)])?;
        self.nodes.copy_front_from_pinned(nodes, count)?;
        self.times.copy_front_from_pinned(times, count)?;
        self.count.fill_front_words(1, to_u32(operation, "seeds", count)?, operation)
    }

    /// Enqueues a copy of how many pairs there are, through `staging`.
    ///
    /// # Errors
    /// The driver's.
    pub fn fetch_count(&self, staging: &mut Staging) -> Result<Fetched<u32>, CudaError> {
        staging.download(&self.count, 1)
    }

    /// Enqueues a copy of the nodes of the first `count` pairs, likewise.
    ///
    /// # Errors
    /// The driver's, or more than there is room for.
    pub fn fetch_nodes(&self, staging: &mut Staging, count: usize) -> Result<Fetched<u32>, CudaError> {
        staging.download(&self.nodes, count)
    }

    /// Enqueues a copy of their times, likewise.
    ///
    /// # Errors
    /// The driver's, or more than there is room for.
    pub fn fetch_times(&self, staging: &mut Staging, count: usize) -> Result<Fetched<i64>, CudaError> {
        staging.download(&self.times, count)
    }

    pub(super) fn argument<'a>(&'a self, launch: &mut Launch<'a>) -> Seeds {
        Seeds {
            nodes: launch.reading(&self.nodes),
            times: launch.reading(&self.times),
            count: launch.reading(&self.count),
        }
    }
}

/// What was found for all seeds of a layer, in the memory of a GPU, laid out as `sampler::MessageFlowGraph`.
pub struct GpuSlots {
    /// Filled slots of each seed.
    pub counts: CudaBuffer<u32>,
    /// Other ends of edges by slot, all ones in empty slots.
    pub neighbors: CudaBuffer<u32>,
    /// Edges by slot, all ones in empty slots.
    pub edges: CudaBuffer<u64>,
    /// Their times.
    pub times: CudaBuffer<i64>,
    /// The seed's time less the edge's.
    pub deltas: CudaBuffer<f32>,
    fanout: u32,
}

impl GpuSlots {
    /// Room for `seeds` seeds of `fanout` slots.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or 2^31 slots and more.
    pub fn new(cuda: &Cuda, stream: &Stream, seeds: usize, fanout: usize) -> Result<Self, CudaError> {
        let operation = "making room for samples";
        let slots = product(operation, "slots", &[seeds, fanout])?;
        check_len(operation, &[("slots of a layer", SLOTS_MAX, slots)])?;
        Ok(Self {
            counts: CudaBuffer::zeros(cuda, stream, seeds, operation)?,
            neighbors: CudaBuffer::zeros(cuda, stream, slots, operation)?,
            edges: CudaBuffer::zeros(cuda, stream, slots, operation)?,
            times: CudaBuffer::zeros(cuda, stream, slots, operation)?,
            deltas: CudaBuffer::zeros(cuda, stream, slots, operation)?,
            fanout: to_u32(operation, "slots per seed", fanout)?,
        })
    }

    /// Slots per seed.
    #[must_use]
    pub fn fanout(&self) -> usize {
        self.fanout as usize
    }

    pub(super) fn argument<'a>(&'a mut self, launch: &mut Launch<'a>) -> Slots {
        Slots {
            counts: launch.writing(&mut self.counts),
            neighbors: launch.writing(&mut self.neighbors),
            edges: launch.writing(&mut self.edges),
            times: launch.writing(&mut self.times),
            deltas: launch.writing(&mut self.deltas),
        }
    }

    pub(super) fn check(&self, operation: &'static str, seeds: &GpuSeeds) -> Result<(), CudaError> {
        let slots = product(operation, "slots", &[seeds.most, self.fanout()])?;
        check_len(
            operation,
            &[
                ("counts", self.counts.len(), seeds.most),
                ("neighbors", self.neighbors.len(), slots),
                ("edges", self.edges.len(), slots),
                ("times", self.times.len(), slots),
                ("deltas", self.deltas.len(), slots),
                ("slots of a layer", SLOTS_MAX, slots),
            ],
        )
    }
}
