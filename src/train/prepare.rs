//! The first half of a step: seeds, their sample, and the feature rows that the second half computes on.
//!
//! ```text
//! sample        seeds -> neighbors -> distinct nodes and edges        reads the graph
//! expect        which messages will wait for those nodes              reads the mailbox
//! gather        rows of all these edges, each once, and of the nodes  reads the feature stores
//! ```
//!
//! None of it depends on weights or memory, so it may be done while earlier batches are trained on, as long as
//! `expect` is given what those batches will leave in the mailbox. A step refuses a batch whose messages are not
//! those that wait by then. Each stage may fail when storage does; it leaves the batch as it was before the stage,
//! which may be tried again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::pairs::Pairs;
use super::pass::in_parts;
use super::ranks::{Ranks, Share};
use super::trainer::{Negatives, Positives, StepMode, TrainError, Trainer, World};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::feature::{Announced, FeatureStore};
use crate::graph::RetentionBounds;
use crate::model::{DeviceRows, FeatureRows, Interactions, Needs, Neighborhood, Touched};

/// Events, their negatives, and all that a step reads for them. Its buffers are reused for the next batch.
#[derive(Debug)]
pub struct PreparedBatch {
    pub(super) src: Vec<NodeId>,
    pub(super) dst: Vec<NodeId>,
    pub(super) times: Vec<EventTime>,
    pub(super) edges: Vec<EdgeId>,
    /// Edges before this time are not kept for the batch.
    pub(super) since: EventTime,
    pub(super) mode: StepMode,
    /// Places of the events that are scored, ascending.
    pub(super) scored: Vec<u32>,
    pub(super) pairs: Pairs,
    pub(super) touched: Touched,
    pub(super) neighborhood: Neighborhood,
    pub(super) rows: FeatureRows,
    /// Names the rows that were gathered: no other batch has it, nor this one with others. 0: it has none.
    pub(super) number: u64,
    /// Holds the rows that were announced until they are gathered.
    announced: Option<Announced>,
    /// Whose part of the batch has rows, if several ranks share it.
    pub(super) share: Option<Share>,
    pub(super) sample_seconds: f64,
    pub(super) gather_seconds: f64,
}

impl Default for PreparedBatch {
    fn default() -> Self {
        Self {
            src: Vec::new(),
            dst: Vec::new(),
            times: Vec::new(),
            edges: Vec::new(),
            since: EventTime::MIN,
            mode: StepMode::Score,
            scored: Vec::new(),
            pairs: Pairs::default(),
            touched: Touched::default(),
            neighborhood: Neighborhood::default(),
            rows: FeatureRows::default(),
            number: 0,
            announced: None,
            share: None,
            sample_seconds: 0.0,
            gather_seconds: 0.0,
        }
    }
}

impl PreparedBatch {
    /// The events.
    #[must_use]
    pub fn positives(&self) -> Positives<'_> {
        Interactions { src: &self.src, dst: &self.dst, times: &self.times, edges: &self.edges }
    }

    /// How much of a step the batch is for.
    #[must_use]
    pub fn mode(&self) -> StepMode {
        self.mode
    }

    /// Places of the events that are scored beside their negatives, ascending: all, unless fewer were asked for. None
    /// in [`StepMode::StateOnly`].
    #[must_use]
    pub fn scored(&self) -> &[u32] {
        &self.scored
    }

    /// Whether an event of the batch is of `node`.
    pub(super) fn is_touched(&self, node: NodeId) -> bool {
        self.touched.last(node).is_some()
    }

    /// The distinct nodes of the events, in order of first appearance.
    #[must_use]
    pub fn touched(&self) -> &[NodeId] {
        self.touched.nodes()
    }

    /// The sample, empty in [`StepMode::StateOnly`], and the rows.
    #[must_use]
    pub fn sample_and_rows(&self) -> (&Neighborhood, &FeatureRows) {
        (&self.neighborhood, &self.rows)
    }

    /// The event that the batch leaves as the message of `node`, if the node is one of its own: its edge and its time.
    #[must_use]
    pub fn leaves(&self, node: NodeId) -> Option<(EdgeId, EventTime)> {
        self.touched.last(node).map(|event| (self.edges[event], self.times[event]))
    }

    /// Notes that its rows are gathered.
    pub(super) fn has_all_rows(&mut self) {
        static LAST: AtomicU64 = AtomicU64::new(0);
        self.number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    }

    /// Whether all stages are done.
    #[must_use]
    pub fn has_rows(&self) -> bool {
        self.number > 0
    }

    /// What retention keeps for the batch.
    pub(super) fn kept(&self) -> RetentionBounds {
        RetentionBounds { since: self.since, first: self.rows.first(), ..RetentionBounds::default() }
    }

    /// Whether rows were announced that may be on disk, and are not gathered.
    #[must_use]
    pub fn waits_for_disk(&self) -> bool {
        self.announced.is_some()
    }

    /// How many gradient steps its step takes.
    pub(super) fn gradient_steps(&self) -> u64 {
        u64::from(self.mode == StepMode::Train && !self.src.is_empty())
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.neighborhood.bytes() + self.rows.bytes()
    }

    /// Sources, destinations and times of these scored events and, below them, of their negatives.
    pub(super) fn pairs(&self, events: &Range<usize>) -> (Vec<NodeId>, Vec<NodeId>, Vec<EventTime>) {
        let whole = self.scored.len();
        let ends = self.pairs.of(whole);
        let pairs = events.clone().chain(whole + events.start..whole + events.end);
        let seed = |column: &[u32], pair: usize| self.neighborhood.seed(column[pair] as usize);
        let (src, times) = pairs.clone().map(|pair| seed(&ends[0], pair)).unzip();
        (src, pairs.map(|pair| seed(&ends[1], pair).0).collect(), times)
    }

    /// The nodes whose memory the step computes.
    pub(super) fn nodes(&self) -> &[NodeId] {
        match self.mode {
            StepMode::StateOnly => self.touched.nodes(),
            StepMode::Train | StepMode::Score => self.neighborhood.nodes().nodes(),
        }
    }

    pub(super) fn load(&mut self, positives: &Positives<'_>, since: EventTime, mode: StepMode) {
        fn copy<T: Copy>(into: &mut Vec<T>, from: &[T]) {
            into.clear();
            into.extend_from_slice(from);
        }
        copy(&mut self.src, positives.src);
        copy(&mut self.dst, positives.dst);
        copy(&mut self.times, positives.times);
        copy(&mut self.edges, positives.edges);
        (self.since, self.mode) = (since, mode);
        self.scored.clear();
        self.touched.build(positives);
        self.neighborhood.clear();
        self.rows.clear();
        (self.number, self.announced) = (0, None);
        (self.sample_seconds, self.gather_seconds) = (0.0, 0.0);
    }
}

/// Prepares batches for a trainer. Needs nothing of it but its shape, so it can work beside it.
#[derive(Clone, Debug)]
pub struct Preparer {
    pub(super) needs: Needs,
    publishes: bool,
    /// Places of the events that are scored, if not all are.
    scored: Option<Vec<u32>>,
    /// Where a GPU reads edge rows in place.
    pub(super) rows: Option<Arc<DeviceRows>>,
    /// What is computed here, if several ranks share each batch.
    share: Option<Share>,
    /// Whether samples are cut into parts. A GPU computes none, and finds the nodes of the seeds side by side.
    cuts: bool,
    /// Whether the slots that read each node are listed, for the backward pass.
    lists_slots: bool,
}

impl Preparer {
    /// The same, for steps whose nodes are published: the rows of the batch's own events are gathered too.
    #[must_use]
    pub fn publishing(self) -> Self {
        Self { publishes: true, ..self }
    }

    /// The same, for a step that scores, and learns from, only the events at these places of its batch, of which there
    /// is one at least; `None`: all. Whatever is scored, all events reach the state.
    #[must_use]
    pub fn scoring(self, places: Option<Vec<u32>>) -> Self {
        Self { scored: places, ..self }
    }

    /// Takes in a batch, with a negative for each event, and samples its neighbors: the first stage.
    ///
    /// # Errors
    /// Columns or feature stores do not fit, or storage failed.
    pub fn sample(
        &self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
        batch: &mut PreparedBatch,
    ) -> Result<(), TrainError> {
        check(&self.needs, world, positives, negatives, mode)?;
        let mut clock = Instant::now();
        batch.load(positives, world.view.since(), mode);
        batch.share = self.share;
        batch.rows.keep_from(world.view.rows_from());
        if mode != StepMode::StateOnly && !positives.src.is_empty() {
            self.seed(positives, negatives, batch);
        }
        if self.needs.embeds() && mode != StepMode::StateOnly && !positives.src.is_empty() {
            world.sample(&self.needs, &mut batch.neighborhood)?;
            batch.sample_seconds = lap(&mut clock);
            // The step computes the memory of all that its events touch, scored or not.
            batch.neighborhood.number(batch.touched.nodes());
            batch.cut(&self.needs, self.cuts);
            if self.lists_slots && mode == StepMode::Train {
                batch.neighborhood.list_slots();
            }
            if self.needs.edge_row_dim > 0 {
                batch.number_slots(&self.needs);
            }
        }
        if self.needs.reads_messages() && self.publishes {
            let last = batch.touched.nodes().iter().filter_map(|&node| batch.touched.last(node));
            let events = last.map(|event| (positives.edges[event], positives.times[event]));
            batch.rows.index_next_messages(batch.since, events);
        } else if self.needs.averages() && self.needs.edge_row_dim > 0 {
            let events = positives.edges.iter().copied().zip(positives.times.iter().copied());
            batch.rows.index_next_messages(batch.since, events);
        }
        batch.gather_seconds = lap(&mut clock);
        Ok(())
    }

    /// Makes the nodes of the events that are scored the seeds of the sample.
    fn seed(&self, positives: &Positives<'_>, negatives: &Negatives<'_>, batch: &mut PreparedBatch) {
        let Some(scored) = &self.scored else {
            // Places are counted in 32 bits.
            batch.scored.extend(0..positives.src.len() as u32);
            batch.pairs.seed(&mut batch.neighborhood, positives, negatives);
            return;
        };
        batch.scored.extend(scored.iter().filter(|&&place| (place as usize) < positives.src.len()));
        let nodes = |all: &[NodeId]| select(all, &batch.scored);
        let (src, dst, times) =
            (nodes(positives.src), nodes(positives.dst), select(positives.times, &batch.scored));
        let (other_src, other_dst) = (nodes(negatives.src), nodes(negatives.dst));
        let positives = Interactions { src: &src, dst: &dst, times: &times, edges: &[] };
        let negatives = Negatives { src: &other_src, dst: &other_dst };
        batch.pairs.seed(&mut batch.neighborhood, &positives, &negatives);
    }

    /// Announces to the feature stores the rows of `batch` that will be read soon, and copies those that are new to
    /// where a GPU reads them.
    pub fn announce(&self, world: &World<'_>, batch: &mut PreparedBatch) {
        if self.needs.edge_row_dim > 0 {
            let (edges, rows) = (batch.rows.edges(), world.edge_features);
            self.rows.iter().for_each(|in_place| in_place.follow_early(rows, edges));
            let others = self.rows.as_ref().and_then(|in_place| in_place.others(rows, edges));
            let announced = others.as_deref().unwrap_or(edges);
            batch.announced = if announced.is_empty() { None } else { rows.announce(announced) };
        }
    }

    /// Gathers the batch's rows: the third stage.
    ///
    /// # Errors
    /// Storage failed.
    pub fn gather(&self, world: &World<'_>, batch: &mut PreparedBatch) -> Result<(), TrainError> {
        let mut clock = Instant::now();
        let PreparedBatch { neighborhood, rows, mode, .. } = batch;
        let nodes = if *mode == StepMode::StateOnly { &[] } else { neighborhood.nodes().nodes() };
        world.fetch(&self.needs, nodes, rows, self.rows.as_deref())?;
        batch.has_all_rows();
        batch.announced = None;
        batch.gather_seconds += lap(&mut clock);
        Ok(())
    }
}

impl Trainer {
    /// What prepares batches for this trainer.
    #[must_use]
    pub fn preparer(&self) -> Preparer {
        let (needs, cuts) = (self.model.needs(), in_parts(&self.model));
        Preparer {
            lists_slots: !cuts && needs.slots_read_memory(),
            needs,
            publishes: false,
            scored: None,
            rows: self.rows.clone(),
            share: self.scratch.lock().ranks.as_ref().and_then(Ranks::share_prepared),
            cuts,
        }
    }

    /// Prepares a batch for the next step, all stages at once.
    ///
    /// # Errors
    /// Columns or feature stores do not fit, or storage failed; nothing was done to the trainer.
    pub fn prepare(
        &self,
        world: &World<'_>,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
        mode: StepMode,
        batch: &mut PreparedBatch,
    ) -> Result<(), TrainError> {
        let preparer = self.preparer();
        preparer.sample(world, positives, negatives, mode, batch)?;
        preparer.expect(|node| self.state.mailbox.pending_event(node), batch);
        preparer.gather(world, batch)
    }
}

/// The values at these places.
fn select<T: Copy>(values: &[T], places: &[u32]) -> Vec<T> {
    places.iter().map(|&place| values[place as usize]).collect()
}

/// Seconds since `since`, which moves to now.
pub(super) fn lap(since: &mut Instant) -> f64 {
    let before = std::mem::replace(since, Instant::now());
    since.duration_since(before).as_secs_f64()
}

/// Whether columns and stores fit the model.
fn check(
    needs: &Needs,
    world: &World<'_>,
    positives: &Positives<'_>,
    negatives: &Negatives<'_>,
    mode: StepMode,
) -> Result<(), TrainError> {
    let expected = positives.src.len();
    let mut columns = vec![
        ("positives.dst", positives.dst.len()),
        ("positives.times", positives.times.len()),
        ("positives.edges", positives.edges.len()),
    ];
    if mode != StepMode::StateOnly {
        columns.extend([("negatives.src", negatives.src.len()), ("negatives.dst", negatives.dst.len())]);
    }
    if let Some(&(column, found)) = columns.iter().find(|(_, found)| *found != expected) {
        return Err(TrainError::Length { column, found, expected });
    }
    let stores: [(&str, &FeatureStore, usize); 2] = [
        ("edge", world.edge_features, needs.edge_row_dim),
        ("node", world.node_features, needs.node_feature_dim),
    ];
    for (store, rows, expected) in stores {
        let found = rows.dimension();
        if expected != 0 && found != expected {
            return Err(TrainError::FeatureWidth { store, found, expected });
        }
    }
    Ok(())
}
