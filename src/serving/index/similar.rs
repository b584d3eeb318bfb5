//! The nodes most like another, or like a vector.

use std::sync::Arc;

use super::super::engine::{distinct, embedding_of};
use super::super::{Freshness, Moment, QueryEngine, QueryError, Source};
use super::Coverage;
use super::best::{Allowed, Best, better_first};
use super::candidates::{AllowedBy, Candidates};
use super::generation::Generation;
use super::table::{Measure, Scan};
use super::top::shortlist_length;
use super::top_response::FoundNode;
use crate::event::{EventTime, NodeId, NodeKey};
use crate::model::Weights;

/// How alike two vectors are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metric {
    /// The cosine of the angle between them; 0 where one has no length.
    #[default]
    Cosine,
    /// Their inner product.
    Dot,
}

impl Metric {
    /// How alike `a` and `b` are, summed in double precision.
    fn of(self, a: &[f32], b: &[f32]) -> f32 {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let product = dot(a, b);
        let scale = match self {
            Self::Dot => 1.0,
            Self::Cosine => (dot(a, a) * dot(b, b)).sqrt(),
        };
        #[allow(clippy::cast_possible_truncation)] // a score is a single-precision number
        let alike = if scale > 0.0 { (product / scale) as f32 } else { 0.0 };
        alike
    }
}

/// What is asked about a number of nodes or vectors.
#[derive(Clone, Debug, Default)]
pub struct SimilarRequest {
    /// Most results for each.
    pub limit: usize,
    /// Which nodes may be found. The node itself is one only where it is listed.
    pub candidates: Candidates,
    /// How alike vectors are.
    pub metric: Metric,
}

/// What results are like.
#[derive(Clone, Debug, PartialEq)]
pub enum SimilarTo {
    /// A node.
    Node(NodeKey),
    /// A vector as long as an embedding, by the weights of the rows.
    Vector(Vec<f32>),
}

/// A node or vector and what is asked about it.
#[derive(Clone, Debug)]
pub struct SimilarItem {
    /// What results are like.
    pub to: SimilarTo,
    /// What is asked.
    pub request: Arc<SimilarRequest>,
}

impl SimilarItem {
    /// Nodes that are compared with it.
    #[must_use]
    pub fn compared(&self) -> usize {
        let request = &self.request;
        request.candidates.keys.as_ref().map_or_else(|| shortlist_length(request.limit), Vec::len)
    }
}

/// What was found for a node or a vector.
#[derive(Clone, Debug, PartialEq)]
pub enum SimilarResult {
    /// The best first.
    Found(Vec<FoundNode>),
    /// No event has named the node.
    Unknown,
    /// The model's output for the node is not finite.
    NotFinite,
}

/// The response about some nodes or vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct SimilarResponse {
    /// Time of the embeddings.
    pub at: EventTime,
    /// One per item, in order.
    pub results: Vec<SimilarResult>,
    /// What computed the embeddings.
    pub source: Source,
    /// How fresh they are.
    pub freshness: Freshness,
    /// How the candidates were found.
    pub coverage: Coverage,
}

impl QueryEngine {
    /// The nodes most like others, for several queries in one pass: one response each, in order. Vectors are those of
    /// the weights of the rows, which may be some versions behind the ones that are served.
    ///
    /// # Errors
    /// No weights were published yet, there is no index or it is not ready, or storage failed.
    pub fn similar_of(
        &self,
        queries: &[&[SimilarItem]],
        moment: &Moment,
    ) -> Result<Vec<SimilarResponse>, QueryError> {
        let is_listed = |item: &SimilarItem| item.request.candidates.keys.is_some();
        let needs_rows = queries.iter().copied().flatten().any(|item| !is_listed(item));
        let rows = if needs_rows { Some(self.rows(moment)?) } else { None };
        let before = rows.as_ref().map(|rows| self.index_state(rows));
        // Those that list their candidates are compared by the weights that are served, others by those of the rows.
        let of =
            |listed: bool| queries.iter().copied().flatten().filter(move |item| is_listed(item) == listed);
        let (listed, others): (Vec<_>, Vec<_>) = (of(true).collect(), of(false).collect());
        let (by_list, _) = self.alike(&listed, None, &moment.weights, moment.at)?;
        let (by_rows, scanned) = match &rows {
            Some(rows) => self.alike(&others, Some(rows), &rows.weights, moment.at)?,
            None => (Vec::new(), 0),
        };
        let after = rows.as_ref().map(|rows| self.index_state(rows));
        let learned = moment.freshness.applied_position;
        let settled = [before, after].iter().flatten().all(|state| state.is_settled(learned));
        // Of few candidates, each is computed anew, whatever its row.
        let precise = rows.as_ref().is_none_or(|rows| rows.table.is_precise());
        let all_computed = |item: &SimilarItem| scanned <= shortlist_length(item.request.limit);
        let (mut by_list, mut by_rows) = (by_list.into_iter(), by_rows.into_iter());
        let source = if moment.scores == Source::Model { Source::Model } else { Source::Candidate };
        let response = |query: &&[SimilarItem]| {
            let listed = query.iter().all(is_listed);
            let next = |item| if is_listed(item) { by_list.next() } else { by_rows.next() };
            let rows = rows.as_ref().filter(|_| !listed);
            let model_version = rows.map_or(moment.weights.version, |rows| rows.weights.version);
            let most = |item: &SimilarItem| item.request.candidates.keys.as_ref().map_or(scanned, Vec::len);
            SimilarResponse {
                at: moment.at,
                results: query.iter().filter_map(next).collect(),
                source,
                freshness: Freshness { model_version, ..moment.freshness },
                coverage: Coverage {
                    index: after.filter(|_| !listed),
                    scanned: query.iter().map(most).max().unwrap_or_default(),
                    exact: listed || settled && (precise || query.iter().all(all_computed)),
                },
            }
        };
        Ok(queries.iter().map(response).collect())
    }

    /// What is like each of the items, and how many rows were looked at.
    fn alike(
        &self,
        items: &[&SimilarItem],
        rows: Option<&Generation>,
        weights: &Weights,
        at: EventTime,
    ) -> Result<(Vec<SimilarResult>, usize), QueryError> {
        let id = |item: &&SimilarItem| match &item.to {
            SimilarTo::Node(key) => self.stores.keys.lookup(key),
            SimilarTo::Vector(_) => None,
        };
        let ids: Vec<_> = items.iter().map(id).collect();
        let unique = distinct(ids.iter().flatten().copied());
        let (vectors, width) =
            (self.embed(weights, unique.nodes(), at)?, weights.model().needs().embedding_dim);
        let vector = |i: usize| match (&items[i].to, ids[i]) {
            (SimilarTo::Vector(vector), _) => Some(&vector[..]),
            (SimilarTo::Node(_), id) => id.map(|id| embedding_of(id, &unique, &vectors, width)),
        };
        let (mut allowed, mut scans) = (AllowedBy::default(), Vec::with_capacity(items.len()));
        for (i, item) in items.iter().enumerate() {
            let rows = rows.filter(|_| item.request.candidates.keys.is_none());
            scans.push(rows.and(vector(i)).map(|vector| {
                scan_like(&item.request, ids[i], vector, allowed.of(&item.request.candidates, self))
            }));
        }
        let mut wanted: Vec<&mut Scan> = scans.iter_mut().flatten().collect();
        let scanned = rows.map_or(0, |rows| rows.table.scan(&mut wanted));
        let mut results = Vec::with_capacity(items.len());
        for (i, (item, scan)) in items.iter().zip(scans).enumerate() {
            let Some(vector) = vector(i) else {
                results.push(SimilarResult::Unknown);
                continue;
            };
            if !vector.iter().all(|value| value.is_finite()) {
                results.push(SimilarResult::NotFinite);
                continue;
            }
            let nodes = match rows.zip(scan) {
                Some((rows, scan)) => self.found_by(scan, rows).into_iter().map(|(_, node)| node).collect(),
                None => item.request.candidates.listed(self),
            };
            results.push(SimilarResult::Found(self.rank_alike(
                &item.request,
                vector,
                &nodes,
                weights,
                at,
            )?));
        }
        Ok((results, scanned))
    }

    /// Embeds the candidates anew and puts them in order.
    fn rank_alike(
        &self,
        request: &SimilarRequest,
        vector: &[f32],
        nodes: &[NodeId],
        weights: &Weights,
        at: EventTime,
    ) -> Result<Vec<FoundNode>, QueryError> {
        let vectors = self.embed(weights, nodes, at)?;
        let width = weights.model().needs().embedding_dim;
        let alike = vectors.chunks_exact(width.max(1)).map(|other| request.metric.of(vector, other));
        let mut found: Vec<_> = alike.zip(nodes.iter().copied()).collect();
        found.retain(|(score, _)| score.is_finite());
        found.sort_by(better_first);
        let node = |(score, node): (f32, NodeId)| {
            let key = self.stores.keys.key(node)?;
            Some(FoundNode { key, score, cold: !self.states.has(node) })
        };
        Ok(found.into_iter().filter_map(node).take(request.limit).collect())
    }
}

/// The vector with length 1, whatever its length; zeros if it has none.
#[allow(clippy::cast_possible_truncation)] // values of a single-precision vector
fn unit(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    vector.iter().map(|value| (f64::from(*value) * scale) as f32).collect()
}

/// What the rows are asked.
fn scan_like(request: &SimilarRequest, id: Option<NodeId>, vector: &[f32], mut allowed: Allowed) -> Scan {
    allowed.but.extend(id);
    let measure = match request.metric {
        Metric::Cosine => Measure::Cosine(unit(vector)),
        Metric::Dot => Measure::Dot(vector.to_vec()),
    };
    Scan { measure, allowed, best: Best::new(shortlist_length(request.limit)) }
}
