//! [`EdgeCache`]: the edge rows that a trainer on a GPU keeps there from batch to batch. Most of what a batch reads
//! was read by one before it; with this only the rest is brought to the GPU, and operations read all of it in place.
//!
//! ```text
//! foresee   what the next batches read, before or after the step of this one
//! place     before a pass: what the batch misses is brought; a batch that was placed last is there
//! choose    behind that: which rows of the foreseen batch are brought before it comes (see [`Chooser`])
//! restore   once the step is asked for: those rows, behind the step in the GPU's order
//! set aside before another batch is placed: the rows that readers' rows are made of
//! ```
//!
//! What the GPU holds is a copy, by edge, of rows of one version of one store. A batch of another version finds
//! nothing; so does one after a failure. The memory is asked for when the first batch is placed, and is never more than
//! half of what the GPU's budget leaves then. Rows that the host did not gather ([`DeviceRows`]) are always placed:
//! where the cache does not take them, in a table for one pass.
//!
//! A batch that is read more than once, by rivals, without dropout and by its step, is placed once.

use std::sync::Arc;

use crossbeam_channel::Sender;

use super::chooser::Chooser;
use super::foreseen::{Coming, Foreseen};
use super::prepare::PreparedBatch;
use super::trainer::{TrainError, Trainer};
use crate::device::Device;
use crate::device::cuda::CudaWork;
use crate::event::EdgeId;
use crate::feature::FeatureStore;
use crate::feature::cache::{GpuRowCounts, RoundRows};
use crate::model::{DeviceRows, EdgePlaces, FeatureRows, GatherError, RowReads};
use crate::nn::Tensor;

/// Edge rows on a GPU, if a budget is given and a GPU computes.
#[derive(Default)]
pub(super) struct EdgeCache {
    budget: u64,
    open: Option<Open>,
    /// The batches after the one that is placed next, as far as they are known.
    coming: Coming,
}

/// A table on a GPU and what is in it.
struct Open {
    table: Arc<Tensor>,
    rows: Chooser,
    /// Of which content of the store.
    version: u64,
    /// The batch that was placed last.
    edges: Vec<u64>,
    /// `None` where it was too large.
    places: Option<Arc<Vec<u32>>>,
    /// Whether rows of the batch behind it were chosen.
    chose: bool,
}

impl EdgeCache {
    /// Brings the edge rows of a batch to `device` and returns where they are, valid until others are placed. `None` if
    /// they are to be read from `rows`.
    pub fn place(&mut self, device: &Device, rows: &FeatureRows) -> Option<EdgePlaces> {
        // A batch that was foreseen twice, or like one that was.
        while self.coming.front().is_some_and(|next| next.edges == rows.edges()) {
            self.coming.pop_front();
        }
        self.placed(device, rows, |open, work, round, next| open.place(work, (rows.version(), round), next))
    }

    /// The rows of messages that a batch leaves, of which rows for readers are made, in a table that stays when later
    /// batches are placed. `None` where [`place`](Self::place) is no better.
    pub fn set_aside(&mut self, device: &Device, rows: &FeatureRows) -> Option<EdgePlaces> {
        let messages = rows.next_messages();
        if messages.is_empty() {
            return None;
        }
        Some(self.place(device, rows)?.only(messages, rows.edges().len()))
    }

    /// Has the batch that was placed last placed anew: its rows are not there.
    pub fn misplaced(&mut self) {
        self.open.iter_mut().for_each(|open| open.edges.clear());
    }

    /// As [`place`](Self::place), for what is read beside the batches: nothing stays for it.
    pub fn glance(&mut self, device: &Device, rows: &FeatureRows) -> Option<EdgePlaces> {
        self.placed(device, rows, |open, work, round, _| open.glance(work, (rows.version(), round)))
    }

    fn placed(
        &mut self,
        device: &Device,
        rows: &FeatureRows,
        place: impl FnOnce(&mut Open, &Arc<CudaWork>, &RoundRows<'_>, Option<&Foreseen>) -> Option<EdgePlaces>,
    ) -> Option<EdgePlaces> {
        let Device::Cuda(work) = device else { return None };
        let from = rows.edge_rows()?;
        let in_place = rows.in_place().map(|(rows, here)| (&**rows, here));
        let round = RoundRows { ids: rows.edges(), in_place, values: from.data() };
        if in_place.is_none() && from.rows() != round.ids.len() {
            return None;
        }
        if rows.version() > 0
            && let Some(open) = self.opened(work, from.cols())
        {
            let (open, next) = open;
            if let Some(places) = place(open, work, &round, next) {
                return Some(places);
            }
        }
        in_place.is_some().then(|| once(work, &round, from.cols()))
    }

    /// The table for rows of this width, if there is one.
    fn opened(&mut self, work: &Arc<CudaWork>, width: usize) -> Option<(&mut Open, Option<&Foreseen>)> {
        let device = Device::Cuda(work.clone());
        if self.budget > 0 && self.open.as_ref().is_none_or(|open| !open.fits(&device, width)) {
            self.open = None;
            self.open = Open::new(work, self.budget, width);
            if self.open.is_none() {
                // The GPU has no room for it; do not try again.
                self.budget = 0;
            }
        }
        let next = self.coming.front();
        self.open.as_mut().map(|open| (open, next))
    }

    /// Chooses which rows of the foreseen batch [`restore`](Self::restore) brings in: where the batch that was placed
    /// last has none. With `how` either beside what comes next or now.
    fn choose_by(&mut self, how: fn(&mut Chooser, Foreseen)) {
        let is_due = |open: &&mut Open| !open.chose && !open.rows.has_chosen();
        let Some(open) = self.open.as_mut().filter(is_due) else { return };
        let Some(next) = self.coming.pop_front() else { return };
        open.chose = true;
        if next.round().is_some_and(|(_, version)| version == open.version) {
            how(&mut open.rows, next);
        }
    }

    /// Begins to choose which rows of the foreseen batch are brought in, beside what comes next.
    pub fn begin_to_choose(&mut self) {
        self.choose_by(Chooser::begin);
    }

    /// Brings in the rows that were chosen, if any were. Behind the step of the batch before theirs; not while a pass
    /// reads the table or will.
    pub fn restore(&mut self, device: &Device) {
        let (Device::Cuda(work), Some(open)) = (device, &mut self.open) else { return };
        let Some(table) = Arc::get_mut(&mut open.table).map(Tensor::on_gpu_mut) else { return };
        let chosen = open.rows.chosen();
        if let (Some((round, _)), Ok(table)) = (chosen.as_ref().and_then(Foreseen::round), table) {
            open.rows.rows().restore(work, table, &round);
        }
    }

    /// Bytes of host memory.
    pub fn bytes(&mut self) -> usize {
        let open = self.open.as_mut().map_or(0, |open| {
            open.rows.bytes()
                + open.edges.capacity() * size_of::<u64>()
                + open.places.as_ref().map_or(0, |places| places.capacity()) * size_of::<u32>()
        });
        open + self.coming.bytes()
    }
}

/// A table for one pass, with all rows of it.
fn once(work: &Arc<CudaWork>, round: &RoundRows<'_>, width: usize) -> EdgePlaces {
    let mut table = Tensor::room(&Device::Cuda(work.clone()), round.ids.len(), width);
    // Rows of a pass are counted in 32 bits.
    let places: Vec<u32> = (0..round.ids.len() as u32).collect();
    let brought: Vec<(usize, u32)> = places.iter().map(|&place| (place as usize, place)).collect();
    work.run(|_| round.bring(work, &brought, (table.on_gpu_mut()?, width)));
    EdgePlaces::new(table.into(), places.into())
}

impl Open {
    /// As many rows as a budget pays for.
    fn new(work: &Arc<CudaWork>, budget: u64, width: usize) -> Option<Self> {
        let memory = work.cuda().memory();
        let free = memory.budget.saturating_sub(memory.used) as u64;
        let mut rows = Chooser::new(budget.min(free / 2) / (width * size_of::<f32>()).max(1) as u64, width);
        let places = rows.rows().places();
        if places == 0 {
            return None;
        }
        let table = Tensor::zeros_apart(&Device::Cuda(work.clone()), places, width)?;
        Some(Self { table: table.into(), rows, version: 0, edges: Vec::new(), places: None, chose: false })
    }

    fn fits(&self, device: &Device, width: usize) -> bool {
        self.table.device() == device && self.table.cols() == width
    }

    fn place(
        &mut self,
        work: &Arc<CudaWork>,
        (version, round): (u64, &RoundRows<'_>),
        next: Option<&Foreseen>,
    ) -> Option<EdgePlaces> {
        if self.version != version || self.edges.is_empty() || self.edges != round.ids {
            // A pass whose step is still to be launched reads the rows of its own batch.
            let table = Arc::get_mut(&mut self.table)?.on_gpu_mut().ok()?;
            self.edges.clear();
            (self.places, self.chose) = (None, false);
            keep(&mut self.rows, &mut self.version, version);
            let next = next.map_or(&[][..], |next| &next.edges);
            let places = self.rows.rows().round(work, table, round, next);
            self.edges.extend_from_slice(round.ids);
            self.places = places.map(Arc::new);
        }
        Some(EdgePlaces::new(self.table.clone(), self.places.clone()?))
    }

    fn glance(
        &mut self,
        work: &Arc<CudaWork>,
        (version, round): (u64, &RoundRows<'_>),
    ) -> Option<EdgePlaces> {
        let table = Arc::get_mut(&mut self.table)?.on_gpu_mut().ok()?;
        keep(&mut self.rows, &mut self.version, version);
        // Its rows may lie where the last batch has some.
        self.edges.clear();
        self.places = None;
        let places = self.rows.rows().glance(work, table, round)?;
        Some(EdgePlaces::new(self.table.clone(), places.into()))
    }
}

/// Drops the rows of another version than `version`.
fn keep(rows: &mut Chooser, known: &mut u64, version: u64) {
    if std::mem::replace(known, version) != version {
        rows.rows().forget();
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
        self.scratch.lock().edges.open.as_mut().map(|open| open.rows.rows().counts())
    }

    /// Announces the batch after the one whose step comes next or was announced last, or after the one whose step was
    /// just taken: what it reads stays on the GPU, or is brought there behind the step before it. Its messages are
    /// those that will wait.
    pub fn foresee(&mut self, edge_features: &FeatureStore, batch: &PreparedBatch) {
        let (needs, rows) = (self.model.needs(), self.rows.as_deref());
        let edges = &mut self.scratch.get_mut().edges;
        if edges.open.is_some() {
            edges.coming.push(Foreseen::of(&needs, rows, edge_features, &batch.rows));
        }
    }

    /// As [`foresee`](Self::foresee), for a thread that finds out what the batch reads, and sends it; `None` where
    /// nobody wants to know.
    pub(super) fn foresee_by(&mut self) -> Option<Sender<Foreseen>> {
        let edges = &mut self.scratch.get_mut().edges;
        edges.open.as_ref().map(|_| edges.coming.push_sender())
    }

    /// Brings rows of the batch that was foreseen to the GPU, behind all that was asked of it.
    pub fn restore_rows(&mut self) {
        let edges = &mut self.scratch.get_mut().edges;
        // Nobody does anything beside.
        edges.choose_by(Chooser::choose);
        edges.restore(&self.device);
    }

    /// Has the GPU that computes read edge rows in so many bytes of the host's memory; 0, as at first: the host gathers
    /// and copies them. What is computed is the same, bit for bit.
    pub fn read_rows_in_place(&mut self, bytes: u64) {
        let Device::Cuda(work) = &self.device else { return };
        self.rows = Some(Arc::new(DeviceRows::new(work.cuda(), bytes)));
    }

    /// Copies the rows of `edge_features` below `end` to where the GPU reads them, if it does.
    ///
    /// # Errors
    /// Rows cannot be read.
    pub fn follow_rows(&self, edge_features: &FeatureStore, end: EdgeId) -> Result<(), TrainError> {
        let Some(rows) = &self.rows else { return Ok(()) };
        Ok(rows.follow(&self.model.needs(), edge_features, end.0).map_err(GatherError::from)?)
    }

    /// How many edge rows of batches a GPU read where; `None` if none computes.
    #[must_use]
    pub fn row_reads(&self) -> Option<RowReads> {
        self.rows.as_ref().map(|rows| rows.reads())
    }

    /// Bytes of the host's memory in which a GPU reads edge rows.
    #[must_use]
    pub fn pinned_row_bytes(&self) -> u64 {
        self.rows.as_ref().map_or(0, |rows| rows.host_bytes())
    }
}
