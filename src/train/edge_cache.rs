//! [`EdgeCache`]: the edge rows that a trainer on a GPU keeps there from batch to batch. Most of what a batch reads
//! was read by one before it; with this only the rest is copied to the GPU, and operations read all of it in place.
//!
//! The CPU gathers every row all the same: what the GPU holds is a copy, by edge, of rows of one version of one
//! store. A batch of another version finds nothing; so does one after a failure. The memory is asked for when the first
//! batch is placed, and is never more than half of what the GPU's budget leaves then.
//!
//! A batch that is read more than once, by rivals, without dropout and by its step, is placed once.

use std::sync::Arc;

use super::prepare::PreparedBatch;
use super::trainer::Trainer;
use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::feature::cache::{GpuRowCounts, GpuRows};
use crate::model::{EdgePlaces, FeatureRows};
use crate::nn::Tensor;

/// Edge rows on a GPU, if a budget is given and a GPU computes.
#[derive(Default)]
pub(super) struct EdgeCache {
    budget: u64,
    open: Option<Open>,
    /// The edges of the batch after the one that is placed next, if they are known.
    next: Vec<u64>,
}

/// A table on a GPU and what is in it.
struct Open {
    table: Arc<Tensor>,
    rows: GpuRows,
    /// Of which content of the store.
    version: u64,
    /// The batch that was placed last.
    edges: Vec<u64>,
    /// `None` where it was too large.
    places: Option<Arc<Vec<u32>>>,
}

impl EdgeCache {
    /// Copies the edge rows of a batch to `device` and returns where they are, valid until the next batch is placed.
    /// `None` if they are to be read from `rows`.
    pub fn place(&mut self, device: &Device, rows: &FeatureRows) -> Option<EdgePlaces> {
        let next = std::mem::take(&mut self.next);
        let (Device::Cuda(work), true) = (device, self.budget > 0 && rows.version() > 0) else { return None };
        let from = rows.edge_rows().filter(|from| from.rows() == rows.edges().len())?;
        if self.open.as_ref().is_none_or(|open| !open.fits(device, from.cols())) {
            self.open = None;
            self.open = Open::new(work, self.budget, from.cols());
            if self.open.is_none() {
                // The GPU has no room for it; do not try again.
                self.budget = 0;
            }
        }
        self.open.as_mut()?.place(work, rows, &from, &next)
    }

    /// Bytes of host memory.
    pub fn bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| {
            open.rows.bytes()
                + open.edges.capacity() * size_of::<u64>()
                + open.places.as_ref().map_or(0, |places| places.capacity()) * size_of::<u32>()
        });
        open + self.next.capacity() * size_of::<u64>()
    }
}

impl Open {
    /// As many rows as a budget pays for.
    fn new(work: &Arc<CudaWork>, budget: u64, width: usize) -> Option<Self> {
        let memory = work.cuda().memory();
        let free = memory.budget.saturating_sub(memory.used) as u64;
        let rows = GpuRows::new(budget.min(free / 2) / (width * size_of::<f32>()).max(1) as u64, width);
        if rows.places() == 0 {
            return None;
        }
        let table = Tensor::zeros_apart(&Device::Cuda(work.clone()), rows.places(), width)?;
        Some(Self { table: table.into(), rows, version: 0, edges: Vec::new(), places: None })
    }

    fn fits(&self, device: &Device, width: usize) -> bool {
        self.table.device() == device && self.table.cols() == width
    }

    fn place(
        &mut self,
        work: &Arc<CudaWork>,
        rows: &FeatureRows,
        from: &Tensor,
        next: &[u64],
    ) -> Option<EdgePlaces> {
        if self.version != rows.version() {
            self.version = rows.version();
            self.rows.forget();
            self.edges.clear();
        }
        if self.edges.is_empty() || self.edges != rows.edges() {
            self.edges.clear();
            self.places = None;
            // A tape that is still alive reads the rows of its own batch.
            let table = Arc::get_mut(&mut self.table)?.on_gpu_mut().ok()?;
            let places = self.rows.round(work, table, (rows.edges(), from.data()), next);
            self.edges.extend_from_slice(rows.edges());
            self.places = places.map(Arc::new);
        }
        Some(EdgePlaces::new(self.table.clone(), self.places.clone()?))
    }
}

impl Trainer {
    /// Keeps edge rows in so many bytes of the GPU's memory while a GPU computes; 0: keeps none, as at first. What
    /// is computed is the same, bit for bit.
    pub fn cache_rows(&mut self, bytes: u64) {
        self.scratch.get_mut().edges = EdgeCache { budget: bytes, ..EdgeCache::default() };
    }

    /// What was done with edge rows on the GPU; `None` if none are kept.
    #[must_use]
    pub fn cached_rows(&self) -> Option<GpuRowCounts> {
        self.scratch.lock().edges.open.as_ref().map(|open| open.rows.counts())
    }

    /// Announces the batch after the current one, if the edges that it reads are known.
    pub(super) fn foresee(&mut self, batch: &PreparedBatch) {
        let EdgeCache { open, next, .. } = &mut self.scratch.get_mut().edges;
        if open.is_some() {
            next.clear();
            next.extend_from_slice(batch.rows.edges());
        }
    }
}
