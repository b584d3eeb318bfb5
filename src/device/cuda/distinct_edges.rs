//! [`DistinctEdges`]: a list of the edges of a sample, on a GPU, so that the host reads and looks up each about once
//! and not once a slot. An edge is met from both of its ends and may be listed for either.

use super::context::Cuda;
use super::distinct::{DistinctRoom, SlotPairs, list_distinct};
use super::error::CudaError;
use super::launch::{StreamContext, to_u32};
use super::memory::CudaBuffer;
use super::seeds::{GpuSeeds, GpuSlots};
use super::staging::{Fetched, Staging};
use super::stream::Stream;

const OPERATION: &str = "listing the edges of a sample";

/// The edges of a sample, and what listing them takes.
pub struct DistinctEdges {
    room: DistinctRoom,
    ends: CudaBuffer<u32>,
    /// Of all slots; `None` only while they are copied.
    edges: Option<CudaBuffer<u64>>,
    slots: CudaBuffer<u32>,
    listed: GpuSeeds,
}

impl DistinctEdges {
    /// Room for samples of `slots` slots; `key` as for [`DistinctRoom::new`].
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`], or more than 2^30 slots.
    pub fn new(cuda: &Cuda, stream: &Stream, slots: usize, key: u64) -> Result<Self, CudaError> {
        Ok(Self {
            room: DistinctRoom::new(cuda, stream, slots, key)?,
            ends: CudaBuffer::zeros(cuda, stream, slots, OPERATION)?,
            edges: Some(CudaBuffer::zeros(cuda, stream, slots, OPERATION)?),
            slots: CudaBuffer::zeros(cuda, stream, 1, OPERATION)?,
            listed: GpuSeeds::new(cuda, stream, slots)?,
        })
    }

    /// For how many slots it is enough.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.room.slots()
    }

    /// Lists the distinct (neighbor, edge) pairs of the first slots of `layers`, one layer behind the other, in order
    /// of first appearance, and notes for each slot in `at` which of them it has, all ones in empty slots. Does not
    /// wait.
    ///
    /// # Errors
    /// Room that does not suffice, a buffer of another stream, or the driver's; what was listed is void.
    pub fn list(
        &mut self,
        context: StreamContext<'_>,
        layers: &[(&GpuSlots, usize)],
        at: &mut CudaBuffer<u32>,
    ) -> Result<(), CudaError> {
        let slots = layers.iter().map(|(_, slots)| slots).sum();
        if slots == 0 {
            return self.listed.count.fill_front_words(1, 0, OPERATION);
        }
        let Some(mut edges) = self.edges.take() else {
            let mismatch = "an earlier list failed".to_owned();
            return Err(CudaError::Arguments { operation: OPERATION, mismatch });
        };
        self.ends.join(layers.iter().map(|(layer, slots)| (&layer.neighbors, *slots)))?;
        edges.join(layers.iter().map(|(layer, slots)| (&layer.edges, *slots)))?;
        let room = edges.len();
        let second = edges.cast::<i64>(room);
        self.slots.fill_front_words(1, to_u32(OPERATION, "slots", slots)?, OPERATION)?;
        // Each slot is a group of its own.
        let pairs =
            SlotPairs { first: &self.ends, second: &second, groups: &self.slots, most: slots, fanout: 1 };
        list_distinct(context, pairs, &mut self.room, at, &mut self.listed)?;
        self.edges = Some(second.cast(room));
        Ok(())
    }

    /// Enqueues a copy of how many are listed, through `staging`.
    ///
    /// # Errors
    /// The driver's.
    pub fn fetch_count(&self, staging: &mut Staging) -> Result<Fetched<u32>, CudaError> {
        self.listed.fetch_count(staging)
    }

    /// Enqueues a copy of the edges of the first `count` that are listed, likewise.
    ///
    /// # Errors
    /// The driver's, or more than there is room for.
    pub fn fetch(&self, staging: &mut Staging, count: usize) -> Result<Fetched<i64>, CudaError> {
        self.listed.fetch_times(staging, count)
    }
}
