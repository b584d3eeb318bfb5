//! Which columns of a sample that a GPU drew come to the host, and which stay there for the model to read
//! ([`GpuColumns`]). A slot of all columns is 28 bytes, and a sample of two layers has hundreds of slots for each
//! event; a model without rows of nodes and edges reads none of them on the host.

use super::CudaLayer;
use crate::device::cuda::{Cuda, CudaError, GpuColumn, PendingColumn};

/// What the host reads of a sample beside the seeds of each layer, how many slots each has filled, and which seed of
/// the next layer a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostColumns {
    /// The other end of the edge in each slot.
    pub neighbors: bool,
    /// The edge in each slot.
    pub edges: bool,
    /// Times of seeds and edges, and differences of time.
    pub times: bool,
}

impl HostColumns {
    /// As the CPU samples.
    pub const ALL: Self = Self { neighbors: true, edges: true, times: true };
}

/// Columns that are not on the host, of all layers, one behind the other.
#[derive(Clone, Debug)]
pub struct GpuColumns {
    /// The other end of the edge in each slot, all ones in empty slots; `None` if the host has them.
    pub neighbors: Option<GpuColumn<u32>>,
    /// Differences of time by slot.
    pub deltas: GpuColumn<f32>,
}

/// Columns that are being made.
pub(super) struct PendingColumns {
    neighbors: Option<PendingColumn<u32>>,
    deltas: PendingColumn<f32>,
}

impl GpuColumns {
    /// Asks for what the host does not read of `layers`, each with its number of slots; in the memory of `before` if
    /// nobody reads it any more. `None` if it reads everything.
    pub(super) fn keep(
        cuda: &Cuda,
        layers: &[(&CudaLayer, usize)],
        host: HostColumns,
        before: Option<Self>,
    ) -> Result<Option<PendingColumns>, CudaError> {
        if host.times {
            return Ok(None);
        }
        let (place, layers) = ((cuda, cuda.sampling()), layers.iter());
        let (neighbors, deltas) = before.map(|Self { neighbors, deltas }| (neighbors, deltas)).unzip();
        let differences = layers.clone().map(|(layer, slots)| (&layer.slots.deltas, *slots));
        let deltas = GpuColumn::joined(place, differences, deltas)?;
        let ends = layers.map(|(layer, slots)| (&layer.slots.neighbors, *slots));
        let neighbors = match host.neighbors {
            true => None,
            false => Some(GpuColumn::joined(place, ends, neighbors.flatten())?),
        };
        Ok(Some(PendingColumns { neighbors, deltas }))
    }
}

impl PendingColumns {
    /// The columns. Waits until they are made.
    pub(super) fn publish(self, cuda: &Cuda) -> Result<GpuColumns, CudaError> {
        let neighbors = self.neighbors.map(|column| column.publish(cuda)).transpose()?;
        Ok(GpuColumns { neighbors, deltas: self.deltas.publish(cuda)? })
    }
}
