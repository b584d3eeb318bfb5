//! The request for a node's edges, page by page.

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::compression::AcceptsGzip;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::key::Key;
use super::query::{check_asked, wait_until_visible};
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use super::wire::{Freshness, Wait};
use crate::event::{EdgeId, EventTime};
use crate::graph::{Direction, EdgeListing, EdgePlace, ListedEdge};
use crate::serving::{NeighborEdge, NeighborsRequest};

/// Edges of a page without `limit`.
const DEFAULT_LIMIT: usize = 100;

/// Edges of either direction that are read for a page. Where few have the wanted direction, a page may be short.
const READ_MAX: usize = 65_536;

/// About the size of an edge in a response, without its names and features, and of a value of those.
const EDGE_BYTES: usize = 110;
const NUMBER_BYTES: usize = 12;

/// Query parameters of a request for edges.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NeighborsQuery {
    /// At most so many edges; default 100.
    #[param(example = 2, minimum = 1)]
    pub limit: Option<usize>,
    /// `next` of the page before; the first page if absent.
    #[param(max_length = 64)]
    pub cursor: Option<String>,
    /// Only edges of this direction.
    #[param(inline)]
    pub direction: Option<EdgeDirection>,
    /// Only edges of this type; the daemon has to keep types (`model.edge_types`).
    #[serde(rename = "type")]
    #[param(max_length = 1024)]
    pub edge_type: Option<String>,
    /// Only edges at or after this event time.
    pub from: Option<i64>,
    /// Only edges before this event time.
    pub before: Option<i64>,
    /// Whether to list the edges' features; default false.
    pub features: Option<bool>,
    /// Respond only once `applied_position` is at least this log position: read your own write.
    pub min_position: Option<u64>,
    /// How long to wait for that, milliseconds.
    pub wait_ms: Option<u64>,
}

/// Which end of an edge the requested node is.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EdgeDirection {
    /// Its source, or both ends.
    Out,
    /// Its destination.
    In,
}

/// One edge of the requested node.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeEdge {
    /// The node at the other end: a number up to 2^53 - 1 in size, else a string.
    pub node: Key,
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub direction: EdgeDirection,
    /// Event time of the edge.
    pub time: i64,
    /// Log position of the edge.
    pub position: u64,
    /// Its type, where the daemon keeps types (`model.edge_types`), the row is not released and the event had one.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub edge_type: Option<String>,
    /// Its features, where they were asked for and are not released; zeros where the event had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<f32>>,
}

/// A page of a node's edges.
#[derive(Debug, Serialize, ToSchema)]
pub struct NeighborsResponse {
    /// The node: a number if its key is an integer up to 2^53 - 1 in size, else a string, however the path wrote it.
    pub node: Key,
    /// Its edges, newest first: by time, and at equal times by arrival.
    pub neighbors: Vec<NodeEdge>,
    /// The `cursor` of the next page; null if there are no further edges. With a `direction` or `type`, a page may be
    /// shorter than `limit`, or empty, and still have a next one. Late events may fall between pages that were already
    /// read.
    #[schema(required = true)]
    pub next: Option<String>,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// A node's edges, newest first, page by page.
#[utoipa::path(
    get, path = "/v1/nodes/{key}/neighbors", tag = "query", operation_id = "list_neighbors",
    params(("key" = String, Path, description = "Node key, percent-encoded; `7` is the node 7 and \"7\"",
        max_length = 1024, example = "user-1"), NeighborsQuery),
    responses(
        (status = 200, description = "A page of edges", body = NeighborsResponse),
        (status = 404, description = "The graph does not know the node", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many edges", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, or the \
            disk could not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn neighbors(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<NeighborsQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (Path(key), Query(query)) = (path?, query?);
    let key = Key::of_path(&key)?;
    let limits = app.state.limits;
    let listing = listing(&query, limits.batch_items)?;
    check_asked(listing.most, &limits)?;
    if query.edge_type.is_some() && !app.state.engine.stores.rows_have_types {
        let words = "this daemon keeps no types of edges; set model.edge_types, or leave type out";
        return Err(ApiError::Invalid(words.to_owned()));
    }
    let wait = Wait { min_position: query.min_position, wait_ms: query.wait_ms };
    wait_until_visible(&app, wait).await?;
    let (features, edge_type) = (query.features.unwrap_or_default(), query.edge_type);
    let numbers = if features { app.state.info.edge_feature_dimension } else { 0 };
    let edge_bytes = EDGE_BYTES + NUMBER_BYTES * numbers;
    let room = reserve(&app, &client, listing.most.saturating_mul(edge_bytes))?;
    let engine = app.state.engine.clone();
    let response = blocking(Some(permit.clone()), limits.request_timeout, move || {
        let request = NeighborsRequest { node: key.node.clone(), listing, edge_type, features };
        let Some(found) = engine.neighbors(&request)? else {
            return Err(ApiError::UnknownNode { key, freshness: engine.freshness().into() });
        };
        let neighbors = found.edges.into_iter().map(|NeighborEdge { edge, node, row }| NodeEdge {
            node: Key::named(node),
            direction: direction(edge),
            time: edge.time.0,
            position: edge.edge.0,
            edge_type: row.edge_type.map(|name| name.to_string()),
            features: row.features,
        });
        let next = found.next.map(|(time, edge)| format!("{}:{}", time.0, edge.0));
        Ok(NeighborsResponse {
            node: key,
            neighbors: neighbors.collect(),
            next,
            freshness: found.freshness.into(),
        })
    });
    let response = response.await??;
    let type_bytes = |edge: &NodeEdge| edge.edge_type.as_ref().map_or(0, |name| name.len() + 10);
    let names_bytes = |edge: &NodeEdge| edge.node.text_bytes() + type_bytes(edge);
    let names_bytes: usize = response.neighbors.iter().map(names_bytes).sum();
    let room = settle(&app, &client, room, response.neighbors.len() * edge_bytes + names_bytes);
    Writing::new(&app, accepts).json(permit, room, move || response).await
}

fn listing(query: &NeighborsQuery, batch_items: usize) -> Result<EdgeListing, ApiError> {
    let most = query.limit.unwrap_or(DEFAULT_LIMIT.min(batch_items));
    if most == 0 {
        return Err(ApiError::Invalid("limit is 0; ask for at least one edge".to_owned()));
    }
    let times = EventTime(query.from.unwrap_or(i64::MIN))..EventTime(query.before.unwrap_or(i64::MAX));
    let direction = query.direction.map(|wanted| match wanted {
        EdgeDirection::Out => Direction::Outgoing,
        EdgeDirection::In => Direction::Incoming,
    });
    let older_than = query.cursor.as_deref().map(place).transpose()?;
    Ok(EdgeListing { times, older_than, direction, most, read_max: READ_MAX })
}

fn place(cursor: &str) -> Result<EdgePlace, ApiError> {
    let place = cursor
        .split_once(':')
        .and_then(|(time, edge)| Some((EventTime(time.parse().ok()?), EdgeId(edge.parse().ok()?))));
    place.ok_or_else(|| ApiError::Invalid("cursor is not one: pass `next` of the page before".to_owned()))
}

fn direction(edge: ListedEdge) -> EdgeDirection {
    match edge.direction {
        Direction::Outgoing => EdgeDirection::Out,
        Direction::Incoming => EdgeDirection::In,
    }
}
