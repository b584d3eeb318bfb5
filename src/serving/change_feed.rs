//! [`ChangeFeed`]: which rows a feed of changes still owes, and the rows themselves, slice by slice.
//!
//! A node is due once the learner has published another row of it. However often that happens until the node's turn, it
//! is one row: the one of its turn, computed as a request for its embedding would be. A pass makes all nodes due, for a
//! reader who begins or who wants the rows of one version of the weights; it goes on behind what has changed.
//!
//! A slice that was taken is owed until it was delivered: what could not be delivered is given back. Deleted nodes have
//! no row any more. What is to become of them is the matter of whoever knows their names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::engine::{CHUNK_ROWS, QueryEngine};
use super::response::{NodeEmbedding, QueryError, Source, UnknownKeys};
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::serving::Freshness;

/// What is owed to the readers of a feed.
pub struct ChangeFeed {
    engine: Arc<QueryEngine>,
    /// Taken from those that have changed, and not delivered.
    due: Vec<NodeId>,
    /// Every event below was learned when they were taken; `None` before the first time.
    learned: Option<EdgeId>,
    /// When they were taken, if anything was due.
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
    pub fn new(engine: Arc<QueryEngine>) -> Self {
        engine.states.changed.follow();
        Self { engine, due: Vec::new(), learned: None, since: None, pass: None, passed: None }
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

    /// Takes the nodes that have changed, once those taken before are delivered.
    pub fn take(&mut self) {
        if !self.due.is_empty() {
            return;
        }
        // Before they are taken: what was learned then is among them.
        self.learned = Some(self.engine.progress.learned());
        self.engine.states.changed.take(&mut self.due);
        // Slices are cut off the end, so that ids come in order.
        self.due.reverse();
        self.since = (!self.due.is_empty()).then(Instant::now);
    }

    /// The next rows; `None` if no more are due.
    ///
    /// # Errors
    /// No weights were published yet, or storage failed: what was to be taken is due as before.
    pub fn next_rows(&mut self) -> Result<Option<ChangedRows>, QueryError> {
        let nodes = self.next_nodes();
        if nodes.is_empty() {
            return Ok(None);
        }
        let rows = self.rows_of(nodes.clone());
        if rows.is_err() {
            self.due.extend(nodes);
        }
        rows.map(Some)
    }

    /// Rows that could not be delivered are due again.
    pub fn give_back(&mut self, rows: ChangedRows) {
        self.since.get_or_insert_with(Instant::now);
        self.due.extend(rows.nodes);
    }

    /// Once nothing is owed: every event below this position is in what was delivered. To be asked after what was taken
    /// last was delivered.
    #[must_use]
    pub fn delivered(&mut self) -> Option<EdgeId> {
        if !self.due.is_empty() {
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
        self.due.len() + self.engine.states.changed.count() + pass
    }

    /// For how long the nodes that were taken last have been due; zero once they are delivered.
    #[must_use]
    pub fn behind(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn next_nodes(&mut self) -> Vec<NodeId> {
        let mut nodes = self.due.split_off(self.due.len().saturating_sub(CHUNK_ROWS));
        nodes.reverse();
        if nodes.is_empty() {
            // Those before were delivered.
            self.since = None;
        }
        let Some(pass) = self.pass.as_mut().filter(|_| nodes.is_empty()) else { return nodes };
        while nodes.len() < CHUNK_ROWS
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
    pub fn rows_of(&self, nodes: Vec<NodeId>) -> Result<ChangedRows, QueryError> {
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
        let (at, source, freshness) = (moment.at, moment.embedded_by(), moment.freshness);
        Ok(ChangedRows { nodes, rows, at, source, freshness })
    }
}
