//! [`Moment`]: what a query sees from its begin to its end.

use std::sync::Arc;

use super::index::Generation;
use super::{Freshness, Source};
use crate::event::EventTime;
use crate::model::Weights;

/// What a query sees, however many passes it takes: one version of the weights, one time.
#[derive(Clone)]
pub struct Moment {
    pub(super) weights: Arc<Weights>,
    pub(super) scores: Source,
    pub(super) freshness: Freshness,
    pub(super) at: EventTime,
    /// The rows of the index, of one version of the weights, too.
    pub(super) rows: Option<Arc<Generation>>,
}

impl Moment {
    /// The same without the rows of the index, for whoever keeps it for long.
    pub(super) fn without_rows(self) -> Self {
        Self { rows: None, ..self }
    }

    /// What computes embeddings; never the baseline, which has none.
    #[must_use]
    pub fn embedded_by(&self) -> Source {
        match self.scores {
            Source::Model => Source::Model,
            Source::Candidate | Source::Baseline => Source::Candidate,
        }
    }
}
