//! [`CudaGraph`]: the graph on a GPU, which follows the store batch by batch. The mirror decides where data goes, and
//! the tables receive it; recent pages are in GPU memory, older ones in host memory, where the GPU reads them in place.

use std::sync::Arc;

use super::mirror::{GraphMirror, GraphPatch, MirrorError, MirrorOptions};
use super::store::GraphStore;
use super::view::GraphView;
use crate::device::cuda::graph::GraphTables;
use crate::device::cuda::twins::{Entry, View};
use crate::device::cuda::{Cuda, CudaError, TierOptions};
use crate::event::{EdgeBatch, EdgeId};

/// Why a GPU has no graph any more, or shows less than was requested.
#[derive(Debug, thiserror::Error)]
pub enum CudaGraphError {
    /// The mirror cannot follow.
    #[error(transparent)]
    Mirror(#[from] MirrorError),
    /// The GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The view shows edges that the GPU does not have.
    #[error(
        "the GPU's graph ends at edge {at}, and edges up to {bound} are requested: update it from the store first"
    )]
    Behind {
        /// Where the GPU's graph ends.
        at: EdgeId,
        /// Where the view does.
        bound: EdgeId,
    },
}

/// How a [`CudaGraph`] is laid out. No option changes a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaGraphOptions {
    /// Blocks and pages.
    pub form: MirrorOptions,
    /// Bytes of the GPU's memory; a page and the tables that find it at least.
    pub gpu_bytes_max: usize,
    /// Bytes of pages in the host's memory beyond those.
    pub host_bytes_max: usize,
    /// Bytes of the tables of nodes and blocks, of which the host has copies.
    pub table_bytes_max: usize,
}

/// The graph on a GPU. Void after an error of [`follow`](Self::follow).
pub struct CudaGraph {
    cuda: Arc<Cuda>,
    table_bytes_max: usize,
    mirror: GraphMirror,
    tables: GraphTables,
}

impl CudaGraph {
    /// What `store` holds, on `cuda`, in the order of its stream for sampling.
    ///
    /// # Errors
    /// Entries that cannot be read, a graph that is too large, or the GPU's.
    pub fn copy(
        cuda: &Arc<Cuda>,
        store: &GraphStore,
        options: CudaGraphOptions,
    ) -> Result<Self, CudaGraphError> {
        let CudaGraphOptions { form, gpu_bytes_max, host_bytes_max, table_bytes_max } = options;
        let tiers = TierOptions { page_log2: form.page_log2, gpu_bytes_max, host_bytes_max };
        let mut tables = GraphTables::new(cuda, cuda.sampling(), tiers)?;
        let mirror =
            GraphMirror::copy(store, form, |patch| take_in(cuda, &mut tables, patch, table_bytes_max))?;
        Ok(Self { cuda: cuda.clone(), table_bytes_max, mirror, tables })
    }

    /// Applies `batch`, which `store` has applied and which is the next one, and what was deleted in the store
    /// meanwhile. Samples that were requested before do not see it.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy), or batches are missing.
    pub fn follow(&mut self, store: &GraphStore, batch: &EdgeBatch) -> Result<(), CudaGraphError> {
        let patch = self.mirror.follow(store, batch)?;
        take_in(&self.cuda, &mut self.tables, &patch, self.table_bytes_max)
    }

    /// Takes in what was deleted in the store of `view`.
    ///
    /// # Errors
    /// As for [`copy`](Self::copy).
    pub fn follow_deletions(&mut self, view: GraphView<'_>) -> Result<(), CudaGraphError> {
        if !self.mirror.has_deleted() {
            return Ok(());
        }
        self.follow(view.store(), &EdgeBatch { first: self.applied(), ..EdgeBatch::default() })
    }

    /// The GPU.
    #[must_use]
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// What a sampler searches.
    #[must_use]
    pub fn tables(&self) -> &GraphTables {
        &self.tables
    }

    /// One past the last edge that it has.
    #[must_use]
    pub fn applied(&self) -> EdgeId {
        self.mirror.applied()
    }

    /// Bytes of its pages and tables, without the room that they have to grow.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let lengths = self.tables.lengths();
        lengths.bytes() + ((lengths.pages * size_of::<Entry>() as u64) << self.mirror.page_log2())
    }

    /// Bytes of the host's memory: of pages, and of what the mirror keeps.
    #[must_use]
    pub fn host_bytes(&self) -> usize {
        self.mirror.bytes() + ((self.tables.pages().1 * size_of::<Entry>()) << self.mirror.page_log2())
    }

    /// `view`, as the GPU sees it.
    ///
    /// # Errors
    /// [`CudaGraphError::Behind`] when it shows edges that the GPU does not have.
    pub fn view(&self, view: GraphView<'_>) -> Result<View, CudaGraphError> {
        let (at, bound) = (self.applied(), view.bound().min(view.applied()));
        if at < bound {
            return Err(CudaGraphError::Behind { at, bound });
        }
        // What the store applied since then must not be visible, though a mirror that rewrote a list may have it.
        Ok(View { bound: view.bound().0, since: view.since().0, age: view.age().unwrap_or(-1) })
    }
}

/// Puts a patch into the tables, which may have so many bytes beside pages.
fn take_in(
    cuda: &Cuda,
    tables: &mut GraphTables,
    patch: &GraphPatch,
    table_bytes_max: usize,
) -> Result<(), CudaGraphError> {
    let bytes = patch.tables().bytes();
    if bytes > table_bytes_max as u64 {
        let detail = format!(
            "the tables of a graph of so many nodes and blocks take {bytes} bytes, and {table_bytes_max} are allowed; \
             allow more, or keep less of the past"
        );
        return Err(CudaError::OutOfMemory { operation: "copying a graph", detail }.into());
    }
    Ok(tables.apply(cuda, patch.parts())?)
}
