//! Scores of pairs by the baseline, which serve while no version of the weights was promoted: EdgeBank, as the graph
//! itself holds it. A pair scores
//!
//! ```text
//! 0                          the source had no event to the destination
//! 0.5 + 0.5 (p + 1) / end    its newest such event has log position p, and the graph ends at position end
//! ```
//!
//! So a known pair is likely, as with a model's score from 0.5 on, and of two known pairs the one that met later is
//! ahead. Events count that a sample for the same time would hold: strictly earlier, retained, not deleted. Of a pair
//! whose ends both have more than [`EDGES_MAX`] edges, so many of one end are searched.

use super::QueryEngine;
use crate::event::{EventTime, NodeId};
use crate::model::GatherError;

/// Most edges that are searched for a pair; bounds the time of a request about two hubs.
const EDGES_MAX: usize = 8_192;

impl QueryEngine {
    /// Scores of `pairs` at `at`.
    pub(super) fn score_baseline(
        &self,
        pairs: &[(NodeId, NodeId)],
        at: EventTime,
    ) -> Result<Vec<f32>, GatherError> {
        let view = self.stores.graph.view();
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
        // ties of neighbors in a long log
        let share = |position: u64| ((position + 1) as f64 / view.bound().0 as f64) as f32;
        let score = |&(src, dst): &(NodeId, NodeId)| {
            let met = view.latest_edge(src, dst, at, EDGES_MAX)?;
            Ok::<f32, GatherError>(met.map_or(0.0, |edge| 0.5 + 0.5 * share(edge.0)))
        };
        pairs.iter().map(score).collect()
    }
}
