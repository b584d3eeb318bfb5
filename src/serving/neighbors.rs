//! A node's edges page by page, with their feature rows where they are asked for.

use super::engine::QueryEngine;
use super::progress::Freshness;
use super::response::QueryError;
use crate::event::NodeKey;
use crate::feature::FeatureError;
use crate::graph::{EdgeListing, EdgePlace, ListedEdge};
use crate::model::GatherError;

/// Which edges of which node.
#[derive(Clone, Debug)]
pub struct NeighborsRequest {
    /// The node.
    pub node: NodeKey,
    /// Which of its edges.
    pub listing: EdgeListing,
    /// Whether feature rows are wanted.
    pub features: bool,
}

/// A page of a node's edges.
#[derive(Clone, Debug)]
pub struct NeighborsResponse {
    /// Newest first; with each edge the other end's key and, where it is wanted, the edge's feature row. That is
    /// `None` where rows were released, and shape `[edge feature dimension]` else.
    pub edges: Vec<(ListedEdge, NodeKey, Option<Vec<f32>>)>,
    /// Where the next page begins; `None` if there are no further edges.
    pub next: Option<EdgePlace>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

impl QueryEngine {
    /// A page of a node's edges; `None` if no event has named the node.
    ///
    /// # Errors
    /// Storage failed.
    pub fn neighbors(&self, request: &NeighborsRequest) -> Result<Option<NeighborsResponse>, QueryError> {
        let freshness = self.freshness();
        let stores = &self.stores;
        let Some(id) = stores.keys.lookup(&request.node) else { return Ok(None) };
        let now = self.time_or_now(None);
        let page = stores.graph.view().list_edges(id, &request.listing, now).map_err(GatherError::from)?;
        let rows = if request.features { self.rows_of(&page.edges)? } else { vec![None; page.edges.len()] };
        let named = |(edge, row): (ListedEdge, _)| Some((edge, stores.keys.key(edge.neighbor)?, row));
        let edges = page.edges.into_iter().zip(rows).filter_map(named).collect();
        Ok(Some(NeighborsResponse { edges, next: page.next, freshness }))
    }

    /// The feature rows of edges.
    pub(super) fn rows_of(&self, edges: &[ListedEdge]) -> Result<Vec<Option<Vec<f32>>>, QueryError> {
        let rows = &self.stores.edge_features;
        let dimension = rows.dimension();
        loop {
            // Rows are released from the oldest on, so there are some more without one after a failure.
            let first = rows.first();
            let kept: Vec<u64> = edges.iter().map(|edge| edge.edge.0).filter(|&edge| edge >= first).collect();
            let mut values = vec![0.0; kept.len() * dimension];
            match rows.gather(&kept, &mut values) {
                Ok(()) => {}
                Err(FeatureError::Released { .. }) => continue,
                Err(error) => return Err(GatherError::from(error).into()),
            }
            let mut values = values.as_slice();
            let row = |edge: &ListedEdge| {
                let (row, rest) = values.split_at_checked(dimension).filter(|_| edge.edge.0 >= first)?;
                values = rest;
                Some(row.to_vec())
            };
            return Ok(edges.iter().map(row).collect());
        }
    }
}
