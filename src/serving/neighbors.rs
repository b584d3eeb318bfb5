//! A node's edges page by page, with their types and, where they are asked for, their feature rows.

use std::sync::Arc;

use super::engine::QueryEngine;
use super::progress::Freshness;
use super::response::QueryError;
use crate::event::NodeKey;
use crate::feature::FeatureError;
use crate::graph::{EdgeListing, EdgePlace, ListedEdge};
use crate::model::GatherError;

/// Edges of any type that are read at a time for those of one.
const TYPED_READ_MIN: usize = 1024;

/// Which edges of which node.
#[derive(Clone, Debug)]
pub struct NeighborsRequest {
    /// The node.
    pub node: NodeKey,
    /// Which of its edges.
    pub listing: EdgeListing,
    /// Only edges of this type; any if not given.
    pub edge_type: Option<String>,
    /// Whether feature rows are wanted.
    pub features: bool,
}

/// An edge of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct NeighborEdge {
    /// The edge.
    pub edge: ListedEdge,
    /// The other end's key.
    pub node: NodeKey,
    /// What its row holds.
    pub row: EdgeRow,
}

/// What the feature row of an edge holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EdgeRow {
    /// Its type; `None` where rows were released or have no types, and of an edge without one.
    pub edge_type: Option<Arc<str>>,
    /// Its features, shape `[edge feature dimension]`; `None` where rows were released or none is wanted.
    pub features: Option<Vec<f32>>,
}

/// A page of a node's edges.
#[derive(Clone, Debug)]
pub struct NeighborsResponse {
    /// Newest first.
    pub edges: Vec<NeighborEdge>,
    /// Where the next page begins; `None` if there are no further edges.
    pub next: Option<EdgePlace>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

impl QueryEngine {
    /// A page of a node's edges; `None` if no event has named the node. One of a type may be shorter than it could be.
    ///
    /// # Errors
    /// Storage failed.
    pub fn neighbors(&self, request: &NeighborsRequest) -> Result<Option<NeighborsResponse>, QueryError> {
        let freshness = self.freshness();
        let stores = &self.stores;
        let Some(id) = stores.keys.lookup(&request.node) else { return Ok(None) };
        let now = self.time_or_now(None);
        let NeighborsRequest { listing, edge_type, features, .. } = request;
        let (mut edges, mut next, mut left) = (Vec::new(), listing.older_than, listing.read_max);
        while edges.len() < listing.most && left > 0 {
            let missing = listing.most - edges.len();
            let part = match edge_type {
                Some(_) => {
                    // Few of those that are read may be of the type.
                    let step = missing.max(TYPED_READ_MIN).min(left);
                    EdgeListing { older_than: next, most: step, read_max: step, ..listing.clone() }
                }
                None => listing.clone(),
            };
            left -= part.read_max;
            let page = stores.graph.view().list_edges(id, &part, now).map_err(GatherError::from)?;
            next = page.next;
            let rows = self.rows_of(&page.edges, *features)?;
            for (i, (edge, row)) in page.edges.iter().zip(rows).enumerate() {
                if edge_type.is_none() || row.edge_type.as_deref() == edge_type.as_deref() {
                    let named = stores.keys.key(edge.neighbor);
                    edges.extend(named.map(|node| NeighborEdge { edge: *edge, node, row }));
                }
                if edges.len() == listing.most && i + 1 < page.edges.len() {
                    next = Some((edge.time, edge.edge));
                    break;
                }
            }
            if next.is_none() {
                break;
            }
        }
        Ok(Some(NeighborsResponse { edges, next, freshness }))
    }

    /// The rows of edges. They are read for types alone where rows have these.
    pub(super) fn rows_of(&self, edges: &[ListedEdge], features: bool) -> Result<Vec<EdgeRow>, QueryError> {
        let (rows, typed) = (&self.stores.edge_features, self.stores.rows_have_types);
        if !features && !typed {
            return Ok(vec![EdgeRow::default(); edges.len()]);
        }
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
                let split = values.split_at_checked(dimension).filter(|_| edge.edge.0 >= first);
                let Some((row, rest)) = split else { return EdgeRow::default() };
                values = rest;
                let (number, row) = row.split_at(usize::from(typed));
                // Numbers of types are exact in 32 bits.
                let edge_type = number.first().and_then(|number| self.stores.types.name(*number as u16));
                EdgeRow { edge_type, features: features.then(|| row.to_vec()) }
            };
            return Ok(edges.iter().map(row).collect());
        }
    }
}
