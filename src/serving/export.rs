//! Everything, slice by slice: the embeddings of all nodes, and all edges, each as of one moment that goes on while
//! slices are read.
//!
//! An export of embeddings keeps the weights, the rows of node states and those of node features as they were between
//! two batches of the learner; what changes later is copied then, so it takes at most as much memory again. Of the
//! graph it sees the edges below the position that those rows reflect. An export of edges keeps nothing but a position.
//! What is deleted meanwhile, or released by its age, is missing in all slices that come after.

use std::sync::Arc;

use super::engine::{CHUNK_ROWS, QueryEngine};
use super::neighbors::EdgeRow;
use super::response::{NodeEmbedding, QueryError, Source, UnknownKeys};
use super::{Freshness, Moment, Stores};
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::graph::{Direction, EdgeListing, EdgePlace, ListedEdge};
use crate::model::GatherError;

/// Edges of a slice.
const SLICE_EDGES: usize = 8_192;

/// Edges of a node that are read for a slice, whatever their direction.
const READ_MAX: usize = 65_536;

/// Ids that are looked at for a slice of edges, and pages of edges that are read for one.
const SLICE_NODES: usize = 65_536;
const SLICE_PAGES: usize = 64;

/// The embeddings of all nodes that the model had learned of at one moment.
pub struct EmbeddingExport {
    engine: QueryEngine,
    moment: Moment,
    /// Nodes that there are.
    nodes: usize,
    next: usize,
}

/// A slice of embeddings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddingSlice {
    /// The nodes, by age.
    pub nodes: Vec<NodeKey>,
    /// What [`QueryEngine::embeddings`] returns for each.
    pub embeddings: Vec<NodeEmbedding>,
    /// Event time of the latest event of each that the model has learned.
    pub learned_events: Vec<EventTime>,
}

/// All edges at one moment, by source node.
pub struct EdgeExport {
    engine: Arc<QueryEngine>,
    below: EdgeId,
    now: EventTime,
    ids: usize,
    node: usize,
    older_than: Option<EdgePlace>,
}

/// A slice of edges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeSlice {
    /// Source and destination of each edge, and the edge.
    pub edges: Vec<(NodeKey, NodeKey, ListedEdge)>,
    /// What the feature row of each holds.
    pub rows: Vec<EdgeRow>,
}

impl QueryEngine {
    /// Begins an export of embeddings. Waits while the learner publishes a batch.
    ///
    /// # Errors
    /// No weights were published yet.
    pub fn export_embeddings(&self) -> Result<EmbeddingExport, QueryError> {
        // Between two batches the rows are those of a position.
        let publication = self.states.publication();
        let moment = self.moment(None)?.without_rows();
        let states = Arc::new(self.states.frozen());
        let node_features = self.stores.node_features.copy().map(Arc::new);
        drop(publication);
        let node_features = node_features.unwrap_or_else(|| self.stores.node_features.clone());
        let stores = Stores { node_features, ..self.stores.clone() };
        let below = EdgeId(moment.freshness.applied_position);
        let (nodes, next) = (states.count(), 0);
        let engine = Self::new(stores, states, self.progress.clone()).seeing_edges_below(below);
        Ok(EmbeddingExport { engine, moment, nodes, next })
    }

    /// Begins an export of edges.
    #[must_use]
    pub fn export_edges(self: &Arc<Self>) -> EdgeExport {
        let below = self.stores.graph.applied();
        let (now, ids) = (self.time_or_now(None), self.stores.keys.len());
        EdgeExport { engine: self.clone(), below, now, ids, node: 0, older_than: None }
    }
}

impl EmbeddingExport {
    /// How fresh the embeddings are: they reflect its applied position, and nothing above.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.moment.freshness
    }

    /// The event time that they are for.
    #[must_use]
    pub fn at(&self) -> EventTime {
        self.moment.at
    }

    /// Whose they are.
    #[must_use]
    pub fn source(&self) -> Source {
        self.moment.embedded_by()
    }

    /// Values of an embedding.
    #[must_use]
    pub fn dimension(&self) -> usize {
        self.moment.weights.model().needs().embedding_dim
    }

    /// How many there are, but for nodes that are deleted meanwhile.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// The next slice; `None` behind the last one.
    ///
    /// # Errors
    /// Storage failed.
    pub fn next_slice(&mut self) -> Result<Option<EmbeddingSlice>, QueryError> {
        let (stores, states) = (&self.engine.stores, &self.engine.states);
        let mut nodes = Vec::with_capacity(CHUNK_ROWS);
        let mut learned_events = Vec::with_capacity(CHUNK_ROWS);
        while nodes.len() < CHUNK_ROWS
            && let Some(node) = states.next_known(NodeId(u32::try_from(self.next).unwrap_or(u32::MAX)))
        {
            self.next = node.index() + 1;
            if let (Some(key), Some(updated)) = (stores.keys.key(node), states.updated(node)) {
                nodes.push(key);
                learned_events.push(updated);
            }
        }
        if nodes.is_empty() {
            return Ok(None);
        }
        let mut responses =
            self.engine.embeddings_of(&[(nodes.as_slice(), UnknownKeys::Error)], &self.moment)?;
        let embeddings = responses.pop().map(|response| response.embeddings).unwrap_or_default();
        Ok(Some(EmbeddingSlice { nodes, embeddings, learned_events }))
    }
}

impl EdgeExport {
    /// One past the last log position that it sees.
    #[must_use]
    pub fn position(&self) -> EdgeId {
        self.below
    }

    /// Features of an edge.
    #[must_use]
    pub fn feature_dimension(&self) -> usize {
        self.engine.stores.edge_feature_dimension()
    }

    /// Whether types of edges are there.
    #[must_use]
    pub fn has_types(&self) -> bool {
        self.engine.stores.rows_have_types
    }

    /// Edges that the graph has now.
    #[must_use]
    pub fn edges(&self) -> u64 {
        self.engine.stores.graph.stats().edges
    }

    /// The next slice; `None` behind the last one.
    ///
    /// # Errors
    /// Storage failed.
    pub fn next_slice(&mut self) -> Result<Option<EdgeSlice>, QueryError> {
        if self.node >= self.ids {
            return Ok(None);
        }
        let (engine, mut edges, mut pages) = (self.engine.clone(), Vec::new(), 0);
        let end = self.ids.min(self.node + SLICE_NODES);
        while self.node < end && edges.len() < SLICE_EDGES && pages < SLICE_PAGES {
            let id = NodeId(u32::try_from(self.node).unwrap_or(u32::MAX));
            let listing = EdgeListing {
                times: EventTime::MIN..EventTime(i64::MAX),
                older_than: self.older_than,
                direction: Some(Direction::Outgoing),
                most: SLICE_EDGES - edges.len(),
                read_max: READ_MAX,
            };
            // Looked up before the edges: a node that is deleted in between has none.
            if let Some(src) = engine.stores.keys.key(id) {
                let view = engine.stores.graph.view_at(self.below);
                let page = view.list_edges(id, &listing, self.now).map_err(GatherError::from)?;
                let named =
                    |edge: ListedEdge| Some((src.clone(), engine.stores.keys.key(edge.neighbor)?, edge));
                edges.extend(page.edges.into_iter().filter_map(named));
                self.older_than = page.next;
            } else {
                self.older_than = None;
            }
            match self.older_than {
                Some(_) => pages += 1,
                None => self.node += 1,
            }
        }
        let listed: Vec<ListedEdge> = edges.iter().map(|(_, _, edge)| *edge).collect();
        let rows = engine.rows_of(&listed, self.feature_dimension() > 0)?;
        Ok(Some(EdgeSlice { edges, rows }))
    }
}
