//! [`ChangeFeed`]: which rows a feed of changes still owes, and the rows themselves, slice by slice.
//!
//! A node is due once the learner has published another row of it. However often that happens until the node's turn, it
//! is one row: the one of its turn, computed as a request for its embedding would be. A pass makes all nodes due, for a
//! reader who begins or who wants the rows of one version of the weights; it goes on behind what has changed.
//!
//! Where there is a live index with the rows of the weights that are served, it has to embed the same nodes. So changed
//! nodes are left to it for a turn, in which it hands over what it computes; what it has not come to then is computed
//! here. What it has handed over comes first, before what is computed later, and of a node that it has embedded several
//! times the last row. A row of other weights than those that are served, or one that may be older than a row that was
//! computed here, is not used: its node is due.
//!
//! A slice that was taken is owed until it was delivered: what could not be delivered is given back. Deleted nodes have
//! no row any more. What is to become of them is the matter of whoever knows their names.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};

use super::engine::QueryEngine;
use super::index::{HandedRows, LiveIndex};
use super::response::{NodeEmbedding, QueryError, Source, UnknownKeys};
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::serving::Freshness;

/// How rows are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedOptions {
    /// Rows that are computed at a time, and then delivered.
    pub slice_rows: usize,
    /// Most bytes of rows of the live index that wait; 0: none of its rows are used.
    pub queue_bytes_max: usize,
}

/// What is owed to the readers of a feed.
pub struct ChangeFeed {
    engine: Arc<QueryEngine>,
    options: FeedOptions,
    /// Taken from those that have changed, and not delivered.
    due: Vec<NodeId>,
    /// Computed by the index, and not delivered.
    handed: VecDeque<HandedRows>,
    /// Until when rows were computed here, of nodes that the index may have claimed before.
    computed: HashMap<NodeId, Instant>,
    /// When rows were taken from the index last.
    taken: Instant,
    /// How long it took to compute the last rows here.
    computing: Duration,
    /// What was learned when nodes were left to the index that are not delivered yet, and when that was.
    left: Option<(EdgeId, Instant)>,
    /// Every event below was learned when what was taken last had changed; `None` before the first time.
    learned: Option<EdgeId>,
    /// Since when they are due, if anything was due.
    since: Option<Instant>,
    pass: Option<Pass>,
    /// Version of the weights that the last whole pass began with.
    passed: Option<u64>,
}

/// A way through all nodes.
struct Pass {
    next: NodeId,
    version: u64,
}

/// Rows that were computed at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedRows {
    /// The nodes they are of, and those that have none.
    pub(crate) nodes: Vec<NodeId>,
    /// The rows.
    pub rows: Vec<ChangedRow>,
    /// The event time that they are for.
    pub at: EventTime,
    /// Whose they are.
    pub source: Source,
    /// How fresh they are.
    pub freshness: Freshness,
    /// Whether the live index computed them.
    pub is_indexed: bool,
}

/// The row of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedRow {
    /// The node.
    pub node: NodeKey,
    /// Its embedding.
    pub vector: Vec<f32>,
    /// Time of its latest event in the graph.
    pub last_event: Option<EventTime>,
    /// Whether the model has learned nothing about it any more.
    pub cold: bool,
}

impl ChangeFeed {
    /// A feed that owes nothing yet, of nodes that change from now on.
    #[must_use]
    pub fn new(engine: Arc<QueryEngine>, options: FeedOptions) -> Self {
        engine.states.changed.follow();
        engine.index.iter().for_each(|index| index.handover.left.follow());
        let (due, handed, computed) = (Vec::new(), VecDeque::new(), HashMap::new());
        let taken = Instant::now();
        let (computing, left, learned, since) = (Duration::ZERO, None, None, None);
        let (pass, passed) = (None, None);
        Self { engine, options, due, handed, computed, taken, computing, left, learned, since, pass, passed }
    }

    /// Whether `node` has a row.
    #[must_use]
    pub fn has_row(&self, node: NodeId) -> bool {
        self.engine.states.has(node)
    }

    /// Makes `node` due.
    pub fn touch(&self, node: NodeId) {
        self.engine.states.changed.touch(node);
    }

    /// The last whole pass began with this version of the weights.
    pub fn set_passed(&mut self, version: Option<u64>) {
        self.passed = version;
    }

    /// Version of the weights that the last whole pass began with; `None` before the first.
    #[must_use]
    pub fn passed(&self) -> Option<u64> {
        self.passed
    }

    /// Makes all nodes due, from the first one on, unless a pass is under way; `false` while there are no weights.
    pub fn begin_pass(&mut self) -> bool {
        let Some(weights) = self.engine.model() else { return false };
        self.pass.get_or_insert(Pass { next: NodeId(0), version: weights.version });
        true
    }

    /// Forgets a pass that is under way, and that there was one: what was delivered is gone.
    pub fn forget_passes(&mut self) {
        (self.pass, self.passed) = (None, None);
    }

    /// Whether a pass is under way.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether other weights are served than the last whole pass began with.
    #[must_use]
    pub fn has_other_weights(&self) -> bool {
        self.engine.model().is_some_and(|weights| Some(weights.version) != self.passed)
    }

    /// Takes the nodes that have changed, and the rows that the index has computed, once those taken before are
    /// delivered. Waits for a slice that the index computes.
    pub fn take(&mut self) {
        if !self.is_empty() {
            return;
        }
        let now = Instant::now();
        // Before they are taken: what was learned then is among them.
        let learned = self.engine.progress.learned();
        let served = self.engine.model();
        let has_rows = |index: &Arc<LiveIndex>| served.is_some_and(|weights| index.is_of(&weights));
        if self.options.queue_bytes_max > 0 && self.engine.index.as_ref().is_some_and(has_rows) {
            self.take_handed(self.options.queue_bytes_max);
            self.leave();
            if let Some((learned, since)) = self.left.replace((learned, now)) {
                (self.learned, self.since) = (Some(learned), Some(since));
            }
        } else {
            self.take_handed(0);
            self.engine.states.changed.take(&mut self.due);
            (self.learned, self.left) = (Some(learned), None);
        }
        // Slices are cut off the end, so that ids come in order.
        self.due.reverse();
        self.since = if self.is_empty() { None } else { self.since.or(Some(now)) };
    }

    /// The next rows, by the moments at which they were computed; none if no more are due.
    ///
    /// # Errors
    /// No weights were published yet, or storage failed: what was to be taken is due as before.
    pub fn next_rows(&mut self) -> Result<Vec<ChangedRows>, QueryError> {
        self.computing = Duration::ZERO;
        let (mut moments, mut left) = (Vec::new(), self.options.slice_rows.max(1));
        while left > 0
            && let Some(mut handed) = self.handed.pop_front()
        {
            if let Some(rest) = handed.split_off(left) {
                self.handed.push_front(rest);
            }
            left -= handed.nodes.len();
            moments.push(self.rows_handed(handed));
        }
        if !moments.is_empty() {
            return Ok(moments);
        }
        let nodes = self.next_nodes();
        if nodes.is_empty() {
            return Ok(moments);
        }
        let rows = self.rows_of(nodes.clone());
        if rows.is_err() {
            self.due.extend(nodes);
        }
        rows.map(|rows| vec![rows])
    }

    /// How long it took to compute the last rows; zero for those of the index.
    #[must_use]
    pub fn computing(&self) -> Duration {
        self.computing
    }

    /// Rows that could not be delivered are due again. So are those of the index, which hands none over until the next
    /// are taken.
    pub fn give_back(&mut self, moments: Vec<ChangedRows>) {
        self.since.get_or_insert_with(Instant::now);
        self.due.extend(moments.into_iter().flat_map(|rows| rows.nodes));
        self.take_handed(0);
        self.due.extend(self.handed.drain(..).flat_map(|rows| rows.nodes));
    }

    /// Once nothing is owed: every event below this position is in what was delivered. To be asked after what was taken
    /// last was delivered.
    #[must_use]
    pub fn delivered(&mut self) -> Option<EdgeId> {
        if !self.is_empty() {
            return None;
        }
        self.since = None;
        self.learned.filter(|_| self.pass.is_none())
    }

    /// Nodes that are due, those that have changed since and, in a pass, about how many it has left.
    #[must_use]
    pub fn pending(&self) -> usize {
        let ids = self.engine.stores.keys.len();
        let pass = self.pass.as_ref().map_or(0, |pass| ids.saturating_sub(pass.next.index()));
        let handed: usize = self.handed.iter().map(|rows| rows.nodes.len()).sum();
        let index = self.engine.index.as_ref().map_or(0, |index| index.handover.count());
        self.due.len() + handed + index + self.engine.states.changed.count() + pass
    }

    /// For how long the nodes that were taken last have been due; zero once they are delivered.
    #[must_use]
    pub fn behind(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether all that was taken is delivered.
    fn is_empty(&self) -> bool {
        self.due.is_empty() && self.handed.is_empty()
    }

    /// Leaves the nodes that have changed to the index.
    fn leave(&self) {
        let Some(index) = &self.engine.index else { return };
        let mut changed = Vec::new();
        self.engine.states.changed.take(&mut changed);
        changed.into_iter().for_each(|node| index.handover.left.touch(node));
    }

    /// Takes the rows of the index, and makes due what was left to it and it has not come to. From now on so many bytes
    /// of rows may wait.
    fn take_handed(&mut self, bytes_max: usize) {
        let Some(index) = &self.engine.index else { return };
        let before = self.taken;
        self.handed.extend(index.handover.take(bytes_max, &mut self.due));
        self.taken = Instant::now();
        let mut later = HashSet::new();
        self.handed.iter_mut().rev().for_each(|rows| rows.retain(|node| later.insert(node)));
        self.handed.retain(|rows| !rows.nodes.is_empty());
        // Their rows are yet to be computed, with whatever has changed since.
        self.due.iter().for_each(|&node| _ = self.engine.states.changed.take_one(node));
        // What waited was claimed since rows were taken before.
        self.computed.retain(|_, at| *at >= before);
    }

    /// The rows that the index has computed. What is not to be used of them is due.
    fn rows_handed(&mut self, handed: HandedRows) -> ChangedRows {
        let HandedRows { moment, claimed, nodes: handed, vectors, last_events } = handed;
        let QueryEngine { stores, states, .. } = &*self.engine;
        let is_served = self.engine.model().is_some_and(|weights| weights.is(&moment.weights));
        let width = moment.weights.model().needs().embedding_dim.max(1);
        let (mut nodes, mut rows) = (Vec::with_capacity(handed.len()), Vec::with_capacity(handed.len()));
        for ((node, vector), last_event) in
            handed.into_iter().zip(vectors.chunks_exact(width)).zip(last_events)
        {
            if !is_served || self.computed.get(&node).is_some_and(|at| *at >= claimed) {
                self.due.push(node);
                continue;
            }
            nodes.push(node);
            // Looked up now: one that was deleted meanwhile has no row.
            let key = stores.keys.key(node).filter(|_| states.has(node));
            let is_finite = vector.iter().all(|value| value.is_finite());
            let row = |node| ChangedRow { node, vector: vector.to_vec(), last_event, cold: false };
            rows.extend(key.filter(|_| is_finite).map(row));
        }
        let (at, source, freshness) = (moment.at, moment.embedded_by(), moment.freshness);
        ChangedRows { nodes, rows, at, source, freshness, is_indexed: true }
    }

    fn next_nodes(&mut self) -> Vec<NodeId> {
        let slice_rows = self.options.slice_rows.max(1);
        let mut nodes = self.due.split_off(self.due.len().saturating_sub(slice_rows));
        nodes.reverse();
        if nodes.is_empty() {
            // Those before were delivered.
            self.since = None;
        }
        let Some(pass) = self.pass.as_mut().filter(|_| nodes.is_empty()) else { return nodes };
        while nodes.len() < slice_rows
            && let Some(node) = self.engine.states.next_known(pass.next)
        {
            nodes.push(node);
            pass.next = NodeId(node.0.saturating_add(1));
        }
        if nodes.is_empty() {
            self.passed = Some(pass.version);
            self.pass = None;
        }
        nodes
    }

    /// The rows of these nodes, of those that have one.
    ///
    /// # Errors
    /// As [`next_rows`](Self::next_rows).
    pub fn rows_of(&mut self, nodes: Vec<NodeId>) -> Result<ChangedRows, QueryError> {
        let begun = Instant::now();
        let moment = self.engine.moment(None)?.without_rows();
        let states = &self.engine.states;
        let known = nodes.iter().filter(|&&node| states.has(node));
        let keys: Vec<NodeKey> = known.filter_map(|&node| self.engine.stores.keys.key(node)).collect();
        let mut responses = self.engine.embeddings_of(&[(keys.as_slice(), UnknownKeys::Error)], &moment)?;
        let found = responses.pop().map(|response| response.embeddings).unwrap_or_default();
        let row = |(node, found)| match found {
            NodeEmbedding::Found { vector, last_event, cold } => {
                Some(ChangedRow { node, vector, last_event, cold })
            }
            // Deleted meanwhile, or of no use to anybody.
            NodeEmbedding::Unknown | NodeEmbedding::NotFinite => None,
        };
        let rows = keys.into_iter().zip(found).filter_map(row).collect();
        if self.engine.index.is_some() {
            let until = Instant::now();
            self.computed.extend(nodes.iter().map(|&node| (node, until)));
        }
        self.computing = begun.elapsed();
        Ok(ChangedRows {
            nodes,
            rows,
            at: moment.at,
            source: moment.embedded_by(),
            freshness: moment.freshness,
            is_indexed: false,
        })
    }
}
