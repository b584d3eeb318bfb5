//! Which columns of a sample that a GPU drew come to the host, and which stay there for the model to read
//! ([`GpuColumns`]). A slot of all columns is 28 bytes, and a sample of two layers has hundreds of slots for each
//! event; a model without rows of nodes and edges reads none of them on the host, and of edges one reads a list in
//! which an edge comes twice at most.

use super::CudaLayer;
use crate::device::cuda::{Cuda, CudaError, GpuColumn, PendingColumn};

/// What the host reads of a sample beside the nodes that are the seeds of each layer, how many slots each has filled,
/// and which seed of the next layer a slot is. It reads no times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostColumns {
    /// The other end of the edge in each slot.
    pub neighbors: bool,
    /// The edges.
    pub edges: HostEdges,
}

/// What the host reads of the edges in slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEdges {
    /// Nothing.
    No,
    /// Which there are. Which of these is in a slot stays on the GPU.
    Listed,
    /// The edge in each slot.
    BySlot,
}

/// Columns that are not on the host, of all layers, one behind the other.
#[derive(Clone, Debug)]
pub struct GpuColumns {
    /// The other end of the edge in each slot, all ones in empty slots; `None` if the host has them.
    pub neighbors: Option<GpuColumn<u32>>,
    /// Differences of time by slot.
    pub deltas: GpuColumn<f32>,
    /// The place of each slot's edge among those that are listed, all ones in empty slots; `None` if none are.
    pub edges: Option<GpuColumn<u32>>,
}

/// Columns that are being made.
pub(super) struct PendingColumns {
    neighbors: Option<PendingColumn<u32>>,
    deltas: PendingColumn<f32>,
    pub edges: Option<PendingColumn<u32>>,
}

impl GpuColumns {
    /// Asks for what the host does not read of `layers`, each with its number of slots, and makes room for places of
    /// edges; in the memory of `before` if nobody else has that.
    pub(super) fn keep(
        cuda: &Cuda,
        layers: &[(&CudaLayer, usize)],
        host: HostColumns,
        before: Option<Self>,
    ) -> Result<PendingColumns, CudaError> {
        let (place, slots) = ((cuda, cuda.sampling()), layers.iter().map(|(_, slots)| slots).sum());
        let (old_ends, old_deltas, old_edges) = match before {
            Some(Self { neighbors, deltas, edges }) => (neighbors, Some(deltas), edges),
            None => (None, None, None),
        };
        let mut deltas = GpuColumn::room(place, slots, old_deltas)?;
        deltas.join(layers.iter().map(|(layer, slots)| (&layer.slots.deltas, *slots)))?;
        let mut neighbors = None;
        if !host.neighbors {
            let ends = neighbors.insert(GpuColumn::room(place, slots, old_ends)?);
            ends.join(layers.iter().map(|(layer, slots)| (&layer.slots.neighbors, *slots)))?;
        }
        let is_listed = host.edges == HostEdges::Listed;
        let edges = is_listed.then(|| GpuColumn::room(place, slots, old_edges)).transpose()?;
        Ok(PendingColumns { neighbors, deltas, edges })
    }
}

impl PendingColumns {
    /// The columns. Waits until they are made.
    pub(super) fn publish(self, cuda: &Cuda) -> Result<GpuColumns, CudaError> {
        let of = |column: Option<PendingColumn<u32>>| column.map(|column| column.publish(cuda)).transpose();
        let (neighbors, edges) = (of(self.neighbors)?, of(self.edges)?);
        Ok(GpuColumns { neighbors, deltas: self.deltas.publish(cuda)?, edges })
    }
}
