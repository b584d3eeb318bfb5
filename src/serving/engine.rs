//! [`QueryEngine`]: responses from published weights, published node states and the graph.
//!
//! A query loads the weights once and keeps them to its end. It takes the freshness before it reads anything, so the
//! reported freshness is a lower bound. Memory rows and edges may be of different moments: the graph may already hold
//! an event that the node states have not learned of; such an event then counts as a neighbor, and its end points keep
//! their rows for a moment longer. A query for a past time sees the neighbors of that time and the memory of today;
//! with a retention, it sees the neighbors that are not released yet.
//!
//! Queries run on many threads. Each takes a set of buffers from a pool and returns it; nothing waits for a training
//! step.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::{
    Anomalies, EmbeddingResponse, Freshness, IndexOptions, LiveIndex, Moment, NodeEmbedding, NodeNeighbor,
    NodeResponse, NodeStates, PairScore, Progress, QueryError, ScoreResponse, Source, Stores, UnknownKeys,
    percentile, surprise,
};
use crate::device::Device;
use crate::event::{EdgeId, EventTime, NodeId, NodeKey};
use crate::feature::FeatureError;
use crate::graph::{EdgeListing, ListedEdge, SpillError};
use crate::model::{DistinctNodes, EmbeddingInput, FeatureRows, GatherError, Needs, Neighborhood, Weights};
use crate::nn::{Mode, Tape, TapePool};

/// Nodes or pairs computed at a time; bounds the memory of a query.
pub(super) const CHUNK_ROWS: usize = 512;

/// Most sets of buffers in the pool.
const POOL_MAX: usize = 64;

/// Computes queries; shared by all request threads.
pub struct QueryEngine {
    /// The graph, names and feature rows.
    pub stores: Stores,
    /// Published memory rows.
    pub states: Arc<NodeStates>,
    /// How far the loops have come.
    pub progress: Arc<Progress>,
    /// The live index, if there is one.
    pub index: Option<Arc<LiveIndex>>,
    /// How unusual events are.
    pub anomalies: Arc<Anomalies>,
    model: ArcSwapOption<Published>,
    buffers: Mutex<Vec<Scratch>>,
    /// Edges from this position on are not seen.
    below: EdgeId,
}

/// The weights in use, and what scores pairs.
struct Published {
    weights: Arc<Weights>,
    scores: Source,
}

/// Buffers of one query.
#[derive(Default)]
pub(super) struct Scratch {
    pub pool: TapePool,
    neighborhood: Neighborhood,
    rows: FeatureRows,
}

impl QueryEngine {
    /// An engine without weights yet.
    #[must_use]
    pub fn new(stores: Stores, states: Arc<NodeStates>, progress: Arc<Progress>) -> Self {
        let model = ArcSwapOption::empty();
        let (buffers, below) = (Mutex::default(), EdgeId(u64::MAX));
        let (index, anomalies) = (None, Arc::default());
        Self { stores, states, progress, index, anomalies, model, buffers, below }
    }

    /// The same, which embeds nodes by edges below a position only.
    pub(super) fn seeing_edges_below(self, below: EdgeId) -> Self {
        Self { below, ..self }
    }

    /// The same with a live index, whose rows follow the node states from now on.
    #[must_use]
    pub fn with_index(self, options: IndexOptions) -> Self {
        self.states.touched.follow();
        Self { index: Some(Arc::new(LiveIndex::new(options))), ..self }
    }

    /// Publishes `weights` for every query that starts from now on, as promoted.
    ///
    /// # Errors
    /// As [`publish_for`](Self::publish_for).
    pub fn publish(&self, weights: Weights) -> Result<(), QueryError> {
        self.publish_for(weights, Source::Model)
    }

    /// The same, and names what scores pairs: these weights, which were promoted or not, or the baseline in their
    /// place. Embeddings are theirs in any case.
    ///
    /// # Errors
    /// The model does not fit the rows that are served; the weights in use stay.
    pub fn publish_for(&self, weights: Weights, scores: Source) -> Result<(), QueryError> {
        let needs = weights.model().needs();
        let rows = [
            ("node state", needs.row_dim(), self.states.dimension()),
            ("edge feature", needs.edge_row_dim, self.stores.edge_features.dimension()),
            ("node feature", needs.node_feature_dim, self.stores.node_features.dimension()),
        ];
        for (what, expected, found) in rows {
            let unused = expected == 0 && what != "node state";
            if expected != found && !unused {
                return Err(QueryError::Mismatch { what, expected, found });
            }
        }
        self.model.store(Some(Arc::new(Published { weights: Arc::new(weights), scores })));
        Ok(())
    }

    /// The weights in use; `None` before the first publication.
    #[must_use]
    pub fn model(&self) -> Option<Arc<Weights>> {
        self.model.load().as_ref().map(|published| published.weights.clone())
    }

    /// What scores pairs; `None` before the first publication.
    #[must_use]
    pub fn scores(&self) -> Option<Source> {
        self.model.load().as_ref().map(|published| published.scores)
    }

    /// The weights in use, and what scores pairs.
    pub(super) fn served(&self) -> Option<(Arc<Weights>, Source)> {
        self.model.load().as_ref().map(|published| (published.weights.clone(), published.scores))
    }

    /// How fresh a response would be now.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.progress.freshness(self.model().map_or(0, |weights| weights.version))
    }

    /// Embeddings of `keys` for time `at`; without a time, just after the latest event.
    ///
    /// # Errors
    /// No weights were published yet, or storage failed.
    pub fn embeddings(
        &self,
        keys: &[NodeKey],
        at: Option<EventTime>,
        unknown: UnknownKeys,
    ) -> Result<EmbeddingResponse, QueryError> {
        single(self.embeddings_of(&[(keys, unknown)], &self.moment(at)?)?)
    }

    /// The begin of a query about time `at`; without a time, just after the latest event.
    ///
    /// # Errors
    /// No weights were published yet.
    pub fn moment(&self, at: Option<EventTime>) -> Result<Moment, QueryError> {
        let published = self.model.load_full().ok_or(QueryError::NotReady)?;
        let (weights, scores) = (published.weights.clone(), published.scores);
        let freshness = self.progress.freshness(weights.version);
        let rows = self.index.as_ref().and_then(|index| index.generation());
        Ok(Moment { weights, scores, freshness, at: self.time_or_now(at), rows })
    }

    /// As [`embeddings`](Self::embeddings), for several queries in one pass: one response each, in order. Every node is
    /// embedded once, however many queries name it.
    ///
    /// # Errors
    /// As [`embeddings`](Self::embeddings), for all of them.
    pub fn embeddings_of(
        &self,
        queries: &[(&[NodeKey], UnknownKeys)],
        moment: &Moment,
    ) -> Result<Vec<EmbeddingResponse>, QueryError> {
        let Moment { weights, freshness, at, .. } = moment;
        let (freshness, at, source) = (*freshness, *at, moment.embedded_by());
        let ids = |&(keys, unknown): &(&[NodeKey], UnknownKeys)| -> Vec<Option<NodeId>> {
            keys.iter().map(|key| self.lookup(key, unknown)).collect()
        };
        let ids: Vec<_> = queries.iter().map(ids).collect();
        let unique = distinct(ids.iter().flatten().flatten().copied());
        let dimension = weights.model().needs().embedding_dim;
        let cold = self.cold(&unique);
        let vectors = self.embed(weights, unique.nodes(), at)?;
        let found = |id: NodeId| {
            let vector = embedding_of(id, &unique, &vectors, dimension);
            if !vector.iter().all(|value| value.is_finite()) {
                return Ok(NodeEmbedding::NotFinite);
            }
            let (last_event, cold) = (self.stores.graph.last_event(id)?, is_cold(id, &unique, &cold));
            Ok::<_, SpillError>(NodeEmbedding::Found { vector: vector.to_vec(), last_event, cold })
        };
        let response = |ids: Vec<Option<NodeId>>| {
            let embeddings = ids.into_iter().map(|id| id.map_or(Ok(NodeEmbedding::Unknown), found));
            let embeddings = embeddings.collect::<Result<_, _>>().map_err(GatherError::from)?;
            Ok(EmbeddingResponse { at, dimension, embeddings, source, freshness })
        };
        ids.into_iter().map(response).collect()
    }

    /// How likely an event from the first to the second node of each pair is at time `at`; without a time,
    /// just after the latest event. Every node is embedded once, however many pairs name it.
    ///
    /// # Errors
    /// No weights were published yet, or storage failed.
    pub fn link_scores(
        &self,
        pairs: &[(NodeKey, NodeKey)],
        at: Option<EventTime>,
        unknown: UnknownKeys,
    ) -> Result<ScoreResponse, QueryError> {
        single(self.link_scores_of(&[(pairs, unknown)], &self.moment(at)?)?)
    }

    /// As [`link_scores`](Self::link_scores), for several queries in one pass: one response each, in order.
    ///
    /// # Errors
    /// As [`link_scores`](Self::link_scores), for all of them.
    pub fn link_scores_of(
        &self,
        queries: &[(&[(NodeKey, NodeKey)], UnknownKeys)],
        moment: &Moment,
    ) -> Result<Vec<ScoreResponse>, QueryError> {
        let (source, mut freshness, at) = (moment.scores, moment.freshness, moment.at);
        let ids = |&(pairs, unknown): &(&[(NodeKey, NodeKey)], UnknownKeys)| -> Vec<_> {
            pairs.iter().map(|(src, dst)| (self.lookup(src, unknown), self.lookup(dst, unknown))).collect()
        };
        let ids: Vec<_> = queries.iter().map(ids).collect();
        let known: Vec<_> = ids.iter().flatten().filter_map(|&(src, dst)| src.zip(dst)).collect();
        let unique = distinct(known.iter().flat_map(|&(src, dst)| [src, dst]));
        let cold_ones = self.cold(&unique);
        let mut surprises = self.anomalies.surprises();
        if source == Source::Baseline {
            // Its scores are no probabilities.
            (freshness.model_version, surprises) = (0, Arc::default());
        }
        let mut probabilities = self.pair_scores(&known, moment)?.into_iter();
        let mut score = |(src, dst): (Option<NodeId>, Option<NodeId>)| match src.zip(dst) {
            Some((src, dst)) => match probabilities.next().filter(|probability| probability.is_finite()) {
                Some(probability) => {
                    let cold = [src, dst].iter().any(|&end| is_cold(end, &unique, &cold_ones));
                    let percentile = percentile(&surprises, surprise(probability));
                    PairScore::Found { probability, percentile, cold }
                }
                None => PairScore::NotFinite,
            },
            None => PairScore::Unknown { src: src.is_none(), dst: dst.is_none() },
        };
        let mut response = |ids: Vec<_>| {
            let scores = ids.into_iter().map(&mut score).collect();
            ScoreResponse { at, scores, source, freshness }
        };
        Ok(ids.into_iter().map(&mut response).collect())
    }

    /// A node's record, with its `neighbors` newest neighbors; `None` if no event has named it.
    ///
    /// # Errors
    /// Storage failed.
    pub fn node(&self, key: &NodeKey, neighbors: usize) -> Result<Option<NodeResponse>, QueryError> {
        let freshness = self.freshness();
        let Some(id) = self.stores.keys.lookup(key) else { return Ok(None) };
        let times = EventTime::MIN..EventTime(i64::MAX);
        let (most, read_max) = (neighbors, neighbors);
        let listing = EdgeListing { times, older_than: None, direction: None, most, read_max };
        let now = self.time_or_now(None);
        let page = self.stores.graph.view().list_edges(id, &listing, now).map_err(GatherError::from)?;
        let neighbor = |found: ListedEdge| {
            let key = self.stores.keys.key(found.neighbor)?;
            Some(NodeNeighbor { key, time: found.time, edge: found.edge })
        };
        Ok(Some(NodeResponse {
            id,
            degree: self.stores.graph.degree(id),
            last_event: self.stores.graph.last_event(id).map_err(GatherError::from)?,
            learned_event: self.states.updated(id),
            neighbors: page.edges.into_iter().filter_map(neighbor).collect(),
            freshness,
        }))
    }

    /// Which of the requested nodes the model has learned nothing about, by slot; checked before they are embedded, so
    /// that no response computed from zeros counts as warm.
    fn cold(&self, unique: &DistinctNodes) -> Vec<bool> {
        unique.nodes().iter().map(|&id| !self.states.has(id)).collect()
    }

    /// The node of a key. The model sees a node without an id as one that has neither events nor features.
    fn lookup(&self, key: &NodeKey, unknown: UnknownKeys) -> Option<NodeId> {
        self.stores.keys.lookup(key).or((unknown == UnknownKeys::Prior).then_some(NodeId::NONE))
    }

    pub(super) fn time_or_now(&self, at: Option<EventTime>) -> EventTime {
        let after_latest = || self.stores.graph.latest_time().map_or(0, |time| time.0.saturating_add(1));
        at.unwrap_or_else(|| EventTime(after_latest()))
    }

    /// Embeddings `[nodes * embedding_dim]` of `nodes` at `at`.
    pub(super) fn embed(
        &self,
        weights: &Weights,
        nodes: &[NodeId],
        at: EventTime,
    ) -> Result<Vec<f32>, GatherError> {
        let (model, needs) = (weights.model(), weights.model().needs());
        let mut vectors = Vec::with_capacity(nodes.len() * needs.embedding_dim);
        let mut scratch = self.take_scratch();
        let Scratch { pool, neighborhood, rows } = &mut scratch;
        for nodes in nodes.chunks(CHUNK_ROWS) {
            neighborhood.clear();
            neighborhood.add_seeds(nodes, &vec![at; nodes.len()]);
            self.gather(&needs, neighborhood, rows)?;
            let mut tape = Tape::pooled(&Device::Cpu, weights.parameters(), Mode::Inference, pool);
            let nodes = neighborhood.nodes().nodes();
            let mut memory = tape.take(nodes.len(), needs.embedded().len());
            self.states.gather(nodes, needs.embedded(), memory.data_mut());
            let memory = tape.constant(memory);
            let last_event = &|node| self.states.updated(node);
            let origin = self.states.origin();
            let (places, dropout) = (None, [0, 0]);
            let input =
                EmbeddingInput { neighborhood, part: None, rows, places, last_event, origin, dropout };
            let embeddings = model.embed(&mut tape, memory, &input);
            vectors.extend_from_slice(tape.value(embeddings).data());
        }
        self.put_back(scratch);
        Ok(vectors)
    }

    /// Samples and gathers, again if rows were released in between: then the next view excludes them.
    fn gather(
        &self,
        needs: &Needs,
        neighborhood: &mut Neighborhood,
        rows: &mut FeatureRows,
    ) -> Result<(), GatherError> {
        loop {
            let world = self.stores.world(self.stores.graph.view_at(self.below));
            match world.gather(needs, neighborhood, (rows, None), None) {
                Err(GatherError::Rows(FeatureError::Released { .. })) => {}
                done => return done,
            }
        }
    }

    pub(super) fn take_scratch(&self) -> Scratch {
        self.buffers.lock().pop().unwrap_or_default()
    }

    pub(super) fn put_back(&self, scratch: Scratch) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < POOL_MAX {
            buffers.push(scratch);
        }
    }
}

/// The response to a single query.
fn single<A>(responses: Vec<A>) -> Result<A, QueryError> {
    responses.into_iter().next().ok_or(QueryError::NotReady)
}

/// The distinct nodes of a query; a node's slot is the row of its embedding.
pub(super) fn distinct(ids: impl Iterator<Item = NodeId>) -> DistinctNodes {
    let mut nodes = DistinctNodes::default();
    for id in ids {
        nodes.insert(id);
    }
    nodes
}

/// Whether a requested node is cold.
fn is_cold(node: NodeId, unique: &DistinctNodes, cold: &[bool]) -> bool {
    unique.slot(node).and_then(|slot| cold.get(slot as usize).copied()).unwrap_or(true)
}

/// The embedding of one of the requested nodes.
pub(super) fn embedding_of<'v>(
    node: NodeId,
    unique: &DistinctNodes,
    vectors: &'v [f32],
    dimension: usize,
) -> &'v [f32] {
    let row = unique.slot(node).unwrap_or_default() as usize;
    &vectors[row * dimension..][..dimension]
}
