//! The passes of the engine, as the [batcher](super::batcher) asks for them.

use std::sync::Arc;

use prometheus::Histogram;

use super::batcher::{Passes, Query};
use crate::event::{EventTime, NodeKey};
use crate::serving::{
    EmbeddingResponse, Moment, QueryEngine, QueryError, ScoreResponse, SimilarItem, SimilarResponse,
    TopResponse, TopSource,
};

/// The engine, and where the sizes of passes are recorded.
pub(super) struct Engine {
    pub engine: Arc<QueryEngine>,
    pub items: Histogram,
}

impl Engine {
    /// Records how many items a pass has.
    #[allow(clippy::cast_precision_loss)]
    fn record<I>(&self, queries: &[Query<'_, I>]) {
        self.items.observe(queries.iter().map(|(items, _)| items.len()).sum::<usize>() as f64);
    }
}

/// Embeddings of nodes.
pub(super) struct OfNodes(pub Engine);

impl Passes for OfNodes {
    type Item = NodeKey;
    type Response = EmbeddingResponse;
    type Moment = Moment;

    fn begin(&self, at: Option<EventTime>) -> Result<Moment, QueryError> {
        self.0.engine.moment(at)
    }

    fn pass(
        &self,
        queries: &[Query<'_, NodeKey>],
        moment: &Moment,
    ) -> Result<Vec<EmbeddingResponse>, QueryError> {
        self.0.record(queries);
        self.0.engine.embeddings_of(queries, moment)
    }
}

/// Scores of pairs of nodes.
pub(super) struct OfPairs(pub Engine);

impl Passes for OfPairs {
    type Item = (NodeKey, NodeKey);
    type Response = ScoreResponse;
    type Moment = Moment;

    fn begin(&self, at: Option<EventTime>) -> Result<Moment, QueryError> {
        self.0.engine.moment(at)
    }

    fn pass(
        &self,
        queries: &[Query<'_, (NodeKey, NodeKey)>],
        moment: &Moment,
    ) -> Result<Vec<ScoreResponse>, QueryError> {
        self.0.record(queries);
        self.0.engine.link_scores_of(queries, moment)
    }
}

/// The likeliest destinations of sources.
pub(super) struct OfSources(pub Engine);

impl Passes for OfSources {
    type Item = TopSource;
    type Response = TopResponse;
    type Moment = Moment;

    fn weight(item: &TopSource) -> usize {
        item.pairs()
    }

    fn begin(&self, at: Option<EventTime>) -> Result<Moment, QueryError> {
        self.0.engine.moment(at)
    }

    fn pass(
        &self,
        queries: &[Query<'_, TopSource>],
        moment: &Moment,
    ) -> Result<Vec<TopResponse>, QueryError> {
        self.0.record(queries);
        let queries: Vec<_> = queries.iter().map(|&(items, _)| items).collect();
        self.0.engine.top_links_of(&queries, moment)
    }
}

/// What is like nodes and vectors.
pub(super) struct OfSimilar(pub Engine);

impl Passes for OfSimilar {
    type Item = SimilarItem;
    type Response = SimilarResponse;
    type Moment = Moment;

    fn weight(item: &SimilarItem) -> usize {
        item.compared()
    }

    fn begin(&self, at: Option<EventTime>) -> Result<Moment, QueryError> {
        self.0.engine.moment(at)
    }

    fn pass(
        &self,
        queries: &[Query<'_, SimilarItem>],
        moment: &Moment,
    ) -> Result<Vec<SimilarResponse>, QueryError> {
        self.0.record(queries);
        let queries: Vec<_> = queries.iter().map(|&(items, _)| items).collect();
        self.0.engine.similar_of(&queries, moment)
    }
}
