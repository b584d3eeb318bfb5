//! What is asked about sources, and what is returned: plain values.

use std::sync::Arc;

use super::super::{Freshness, Source};
use super::Coverage;
use super::candidates::Candidates;
use super::top::shortlist_length;
use crate::event::{EventTime, NodeKey};

/// What is asked about a number of sources.
#[derive(Clone, Debug, Default)]
pub struct TopRequest {
    /// Most destinations for each source.
    pub limit: usize,
    /// Which nodes may be found. The source itself is one only where it is listed.
    pub candidates: Candidates,
    /// Whether destinations that the source had an event to are left out.
    pub exclude_met: bool,
    /// Whether all candidates are scored anew, without rows.
    pub exact: bool,
    /// Most pairs of all sources together that are scored anew.
    pub pairs_max: usize,
    /// Sources of the request.
    pub sources: usize,
    /// Candidates of each source that a second stage looks at (see
    /// [`second_stage`](super::super::QueryEngine::second_stage)).
    pub second_stage: usize,
}

/// A source and what is asked about it.
#[derive(Clone, Debug)]
pub struct TopSource {
    /// Its key.
    pub key: NodeKey,
    /// What is asked.
    pub request: Arc<TopRequest>,
}

/// What destinations are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The model's scores.
    Model,
    /// The baseline's scores, and of what it knows nothing about, the number of edges.
    Baseline,
    /// The number of edges: nothing is known of the source.
    Popularity,
}

/// A node that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundNode {
    /// Its key.
    pub key: NodeKey,
    /// Its score, as the route that scores pairs or vectors computes it.
    pub score: f32,
    /// Whether the model has learned nothing about it or about the source.
    pub cold: bool,
}

/// What was found for a source.
#[derive(Clone, Debug, PartialEq)]
pub struct TopResult {
    /// What `found` is ordered by.
    pub order: Order,
    /// Whether the model has learned nothing about the source.
    pub cold: bool,
    /// The best first.
    pub found: Vec<FoundNode>,
}

/// The response about some sources.
#[derive(Clone, Debug, PartialEq)]
pub struct TopResponse {
    /// Time of the scores.
    pub at: EventTime,
    /// One per source, in order.
    pub results: Vec<TopResult>,
    /// What computed the scores.
    pub source: Source,
    /// How fresh the scores are.
    pub freshness: Freshness,
    /// How the candidates were found.
    pub coverage: Coverage,
}

impl TopSource {
    /// Pairs that are scored for it, or what amounts to that: a second stage embeds nobody.
    #[must_use]
    pub fn pairs(&self) -> usize {
        let request = &self.request;
        match &request.candidates.keys {
            Some(keys) => keys.len(),
            None if request.exact => request.pairs_max,
            None => shortlist_length(request.limit) + request.second_stage / 8,
        }
    }

    /// Whether all candidates are scored, without rows.
    pub(super) fn is_listed(&self) -> bool {
        self.request.exact || self.request.candidates.keys.is_some()
    }
}
