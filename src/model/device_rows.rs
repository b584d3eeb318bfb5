//! [`DeviceRows`]: features of edges where the GPU that trains reads them in place: a copy, in page-locked memory of
//! the host, of the newest rows of a feature store.
//!
//! ```text
//! store ── follow, each row once ──▶ RowRoom ── locate ──▶ RowsInPlace ── fill, if not cached ──▶ table on the GPU
//! ```
//!
//! Without it every batch copies its rows from the store to itself, from there to staging memory, and from there to the
//! GPU. With it the host only says where rows are. The copy holds features as a pass reads them: bounded, and without
//! the number of the edge's type, which stays here for the host to look up. So what is computed is the same, bit for
//! bit.
//!
//! **What is gone.** Rows that the store cleared are made zeros here before the next batch is located; its version
//! shows it to caches on the GPU, as for gathered rows. Rows that it released are an error here as there.
//!
//! **What is not here.** Older rows than there is room for, and all rows of models that read some on the CPU (means of
//! messages), are gathered by the host as ever. [`RowReads`] counts both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::limit::limit;
use super::{FeatureRows, GatherError, Needs, edge_types};
use crate::device::cuda::{Cuda, RowRoom, RowsInPlace};
use crate::feature::{FeatureError, FeatureStore};
use crate::sampler::MessageFlowGraph;

/// Rows that are copied at a time.
const CHUNK_ROWS: u64 = 1024;

/// How many edge rows batches on a GPU read where; each row of a batch counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowReads {
    /// On the GPU: from its cache, or in place.
    pub on_device: u64,
    /// Gathered by the host, and copied.
    pub on_host: u64,
}

/// A copy of the rows of a feature store for a GPU.
pub struct DeviceRows {
    cuda: Arc<Cuda>,
    bytes_max: u64,
    copy: Mutex<Option<Copied>>,
    /// No copy is made any more.
    failed: std::sync::atomic::AtomicBool,
    on_device: AtomicU64,
    on_host: AtomicU64,
}

/// The copy of one store.
struct Copied {
    store: u64,
    /// Values of a stored row, and how many types are known.
    shape: (usize, usize),
    /// How many cleared rows of the store are cleared here.
    cleared: u64,
    room: RowRoom,
    /// Numbers of types, if some are known: of the last rows of the room.
    types: VecDeque<u32>,
    stored: Vec<f32>,
    features: Vec<f32>,
}

/// Where the rows of a pass are, and of which version of the store.
pub(super) struct Located {
    pub rows: RowsInPlace,
    /// The number of the type of each edge that is there.
    pub types: Vec<u32>,
}

impl DeviceRows {
    /// For rows in so many bytes of the host's memory; 0: the host gathers all.
    #[must_use]
    pub fn new(cuda: &Arc<Cuda>, bytes_max: u64) -> Self {
        Self {
            cuda: cuda.clone(),
            bytes_max,
            copy: Mutex::default(),
            failed: false.into(),
            on_device: AtomicU64::new(0),
            on_host: AtomicU64::new(0),
        }
    }

    /// Bytes of the host's memory that the copy takes.
    #[must_use]
    pub fn host_bytes(&self) -> u64 {
        let copy = self.copy.lock();
        copy.as_ref().map_or(0, |copy| copy.room.bytes() + (copy.types.capacity() * size_of::<u32>()) as u64)
    }

    /// How many rows were read where.
    #[must_use]
    pub fn reads(&self) -> RowReads {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RowReads { on_device: of(&self.on_device), on_host: of(&self.on_host) }
    }

    /// Notes rows that the host gathers for the GPU.
    pub fn count_gathered(&self, rows: usize) {
        self.on_host.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Copies the rows of `store` below `end` that are not copied yet, as far as there is room.
    ///
    /// # Errors
    /// Rows cannot be read.
    pub fn follow(&self, needs: &Needs, store: &FeatureStore, end: u64) -> Result<(), FeatureError> {
        if self.serves(needs) {
            self.with_copy(needs, store, |copy| copy.follow(store, end)).map(drop)
        } else {
            Ok(())
        }
    }

    /// Copies the rows that a batch to come reads and that are not copied yet, as far as there is room. What the store
    /// cleared is not looked for, since batches are read that were located before. Rows that cannot be read are met
    /// again at the batch's turn.
    pub fn follow_early(&self, store: &FeatureStore, edges: &[u64]) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let of_store = |copied: &&mut Copied| copied.store == store.id();
        let lacking = self.copy.lock().as_mut().filter(of_store).and_then(|copied| {
            let _ = self.outcome(copied.follow(store, end_of(edges)));
            copied.room.lacking()
        });
        // Without the lock, since the trainer waits for that. What fails here fails again when it is needed.
        if let Some(made) = lacking.and_then(|lacking| lacking.make().ok())
            && let Some(copied) = self.copy.lock().as_mut().filter(of_store)
        {
            copied.room.add(made);
        }
    }

    /// What came of work with the copy; `None` if there will be none any more.
    fn outcome<R>(&self, done: Result<R, FollowError>) -> Result<Option<R>, FeatureError> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(FollowError::Rows(error)) => Err(error),
            Err(FollowError::Room(error)) => {
                tracing::warn!(%error, "rows of edges have no page-locked memory: the CPU gathers them for the GPU");
                self.failed.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Fetches the rows that were numbered: of those that are here, where they are; the others from `store`.
    ///
    /// # Errors
    /// Rows cannot be read.
    pub fn fetch(
        &self,
        needs: &Needs,
        store: &FeatureStore,
        rows: &mut FeatureRows,
    ) -> Result<(), GatherError> {
        rows.set_version(store.version());
        let gather = |ids: &[u64], out: &mut [f32]| store.gather(ids, out);
        let Some(located) = self.locate(needs, store, rows.edges())? else {
            if needs.edge_row_dim > 0 {
                self.count_gathered(rows.edges().len());
            }
            return Ok(rows.fetch_edge_rows(needs, gather)?);
        };
        let gathered = rows.fetch_others(needs, located, gather)?;
        self.count_gathered(gathered);
        self.on_device.fetch_add((rows.edges().len() - gathered) as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Those of `edges` whose rows the host will gather; `None`: all of them.
    #[must_use]
    pub fn others(&self, store: &FeatureStore, edges: &[u64]) -> Option<Vec<u64>> {
        let copy = self.copy.lock();
        let first = copy.as_ref().filter(|copy| copy.store == store.id())?.room.rows().start;
        Some(edges.iter().copied().filter(|edge| *edge < first).collect())
    }

    /// Where the rows of a later pass will be read in place, if they are.
    #[must_use]
    pub fn foresee(&self, needs: &Needs, store: &FeatureStore, edges: &[u64]) -> Option<RowsInPlace> {
        self.locate(needs, store, edges).ok().flatten().map(|located| located.rows)
    }

    /// Whether a model with these needs reads rows here. One that averages messages reads rows on the CPU.
    fn serves(&self, needs: &Needs) -> bool {
        let features = needs.edge_row_dim.saturating_sub(usize::from(needs.edge_types > 0));
        self.bytes_max > 0 && features > 0 && !needs.averages() && !self.failed.load(Ordering::Relaxed)
    }

    fn locate(
        &self,
        needs: &Needs,
        store: &FeatureStore,
        edges: &[u64],
    ) -> Result<Option<Located>, FeatureError> {
        if !self.serves(needs) {
            return Ok(None);
        }
        store.check_kept(edges)?;
        self.with_copy(needs, store, |copy| {
            copy.follow(store, end_of(edges))?;
            Ok(copy.locate(edges))
        })
    }

    /// Does `work` with the copy of `store`, in which the same rows are cleared; `None` if there is none.
    fn with_copy<R>(
        &self,
        needs: &Needs,
        store: &FeatureStore,
        work: impl FnOnce(&mut Copied) -> Result<R, FollowError>,
    ) -> Result<Option<R>, FeatureError> {
        let mut copy = self.copy.lock();
        let shape = (needs.edge_row_dim, needs.edge_types);
        let is_it = |copy: &Copied| copy.store == store.id() && copy.shape == shape;
        let known = copy.as_ref().filter(|copy| is_it(copy)).map(|copy| store.cleared_after(copy.cleared));
        let copied = match (&mut *copy, known.flatten()) {
            (Some(copied), Some(cleared)) => {
                cleared.iter().for_each(|&row| copied.clear(row));
                copied.cleared += cleared.len() as u64;
                copied
            }
            (Some(copied), None) if copied.shape == shape => {
                copied.start_over(store);
                copied
            }
            (none, _) => none.insert(Copied::new(&self.cuda, shape, store, self.bytes_max)),
        };
        self.outcome(work(copied))
    }
}

impl std::fmt::Debug for DeviceRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceRows").field("reads", &self.reads()).finish_non_exhaustive()
    }
}

/// One past the last of `edges`.
fn end_of(edges: &[u64]) -> u64 {
    let is_edge = |edge: &&u64| **edge != MessageFlowGraph::NO_EDGE.0;
    edges.iter().filter(is_edge).max().map_or(0, |edge| edge + 1)
}

/// Why rows cannot be copied.
enum FollowError {
    /// The store cannot read them.
    Rows(FeatureError),
    /// There is no memory that a GPU reads in place.
    Room(crate::device::cuda::CudaError),
}

impl Copied {
    /// Nothing yet of `store`.
    fn new(cuda: &Arc<Cuda>, shape: (usize, usize), store: &FeatureStore, bytes_max: u64) -> Self {
        let (stored, types) = shape;
        let room = RowRoom::new(cuda, stored - usize::from(types > 0), bytes_max, store.first());
        let (id, cleared) = (store.id(), store.cleared());
        let (types, stored, features) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { store: id, shape, cleared, room, types, stored, features }
    }

    /// Begins to copy `store`, from its first row on.
    fn start_over(&mut self, store: &FeatureStore) {
        (self.store, self.cleared) = (store.id(), store.cleared());
        self.room.start_over(store.first());
        self.types.clear();
    }

    fn follow(&mut self, store: &FeatureStore, end: u64) -> Result<(), FollowError> {
        let least = store.first().max(end.saturating_sub(self.room.capacity()));
        let before = self.room.rows().end;
        if before < least {
            self.room.skip_to(least);
            let there = self.room.rows();
            // Nothing is asked of the rows between.
            let between = (there.end - before).min(there.end - there.start) as usize;
            self.add_types(std::iter::repeat_n(0, between));
            if there.end < least {
                return Ok(());
            }
        }
        while self.room.rows().end < end {
            let first = self.room.rows().end;
            let ids: Vec<u64> = (first..end.min(first + CHUNK_ROWS)).collect();
            if !self.take(store, &ids)? {
                break;
            }
        }
        Ok(())
    }

    /// Copies the next rows; `false` if there is no room for all of them now.
    fn take(&mut self, store: &FeatureStore, ids: &[u64]) -> Result<bool, FollowError> {
        let (width, known) = self.shape;
        self.stored.resize(ids.len() * width, 0.0);
        store.gather(ids, &mut self.stored).map_err(FollowError::Rows)?;
        self.features.clear();
        for row in self.stored.chunks_exact(width) {
            self.features.extend_from_slice(&row[usize::from(known > 0)..]);
        }
        limit(&mut self.features);
        let taken = self.room.push(&self.features).map_err(FollowError::Room)?;
        let stored = std::mem::take(&mut self.stored);
        let rows = stored.chunks_exact(width).take(taken);
        self.add_types(rows.map(|row| edge_types::number(row[0], known)));
        self.stored = stored;
        Ok(taken == ids.len())
    }

    /// Notes the types of the last rows, if types are known.
    fn add_types(&mut self, types: impl Iterator<Item = u32>) {
        if self.shape.1 == 0 {
            return;
        }
        self.types.extend(types);
        let there = self.room.rows();
        let gone = self.types.len().saturating_sub((there.end - there.start) as usize);
        self.types.drain(..gone);
    }

    fn clear(&mut self, row: u64) {
        self.room.clear(row);
        if let Some(kind) = self.type_of(row).and_then(|at| self.types.get_mut(at)) {
            *kind = 0;
        }
    }

    /// Where the type of a row is.
    fn type_of(&self, row: u64) -> Option<usize> {
        let last = self.room.rows().end.checked_sub(row)?;
        self.types.len().checked_sub(usize::try_from(last).ok()?)
    }

    fn locate(&self, edges: &[u64]) -> Located {
        let row = |&edge: &u64| (edge != MessageFlowGraph::NO_EDGE.0).then_some(edge);
        let kind = |edge: &u64| {
            row(edge).and_then(|edge| self.types.get(self.type_of(edge)?).copied()).unwrap_or_default()
        };
        let types = if self.shape.1 > 0 { edges.iter().map(kind).collect() } else { Vec::new() };
        Located { rows: self.room.locate(edges.iter().map(row)), types }
    }
}
