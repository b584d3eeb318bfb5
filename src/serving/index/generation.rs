//! [`Generation`]: the rows of one version of the weights, and how a row is computed.

use std::sync::Arc;

use super::super::QueryEngine;
use super::handover::Claim;
use super::table::{Row, Table};
use super::values::IndexPrecision;
use crate::event::NodeId;
use crate::model::{GatherError, SplitLink, Weights};

/// The rows of one version of the weights.
pub(in crate::serving) struct Generation {
    pub weights: Arc<Weights>,
    /// The link head, where it splits.
    pub link: Option<SplitLink>,
    pub(super) table: Table,
}

impl Generation {
    /// No rows yet.
    pub(super) fn new(weights: Arc<Weights>, precision: IndexPrecision) -> Self {
        let link = weights.model().split_link();
        let hidden = link.as_ref().map_or(0, SplitLink::hidden);
        let table = Table::new(precision, hidden, weights.model().needs().embedding_dim);
        Self { weights, link, table }
    }

    /// Computes the rows of `nodes` as of now, for the change feed, too. A node that was deleted has none.
    pub(super) fn embed(&self, engine: &QueryEngine, nodes: &[NodeId]) -> Result<(), GatherError> {
        let (named, gone): (Vec<_>, Vec<_>) =
            nodes.iter().copied().partition(|&node| engine.stores.keys.is_named(node));
        gone.into_iter().for_each(|node| self.table.remove(node));
        let width = self.weights.model().needs().embedding_dim;
        let handover = engine.index.as_ref().map(|index| &index.handover);
        let claim = handover.and_then(|handover| handover.claim(engine, &self.weights, &named));
        let at = claim.as_ref().map(Claim::at);
        let vectors = engine.embed(&self.weights, &named, engine.time_or_now(at))?;
        claim.map_or(Ok(()), |claim| claim.fulfill(engine, &vectors))?;
        let heads = self.link.as_ref().map(|link| (link.hidden(), link.destinations(&vectors)));
        for (i, node) in named.into_iter().enumerate() {
            let head = heads.as_ref().map_or(&[][..], |(hidden, rows)| &rows[i * hidden..][..*hidden]);
            let row = Row {
                head,
                vector: &vectors[i * width..][..width],
                degree: u32::try_from(engine.stores.graph.degree(node)).unwrap_or(u32::MAX),
                is_destination: engine.states.touched.is_destination(node),
            };
            self.table.write(node, &row);
        }
        Ok(())
    }
}
