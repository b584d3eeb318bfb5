//! `GET /v1/map`: the embeddings of many nodes in the plane.

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::App;
use super::compression::AcceptsGzip;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::key::Key;
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use super::wire::{Freshness, Source};
use crate::event::NodeKey;
use crate::serving::{EmbeddingResponse, NodeEmbedding, SpreadNode, UnknownKeys, plane};

/// Most nodes of a map: more lie over one another on a screen.
pub(super) const NODES_MAX: usize = 5000;

/// Nodes without `limit`.
const DEFAULT_LIMIT: usize = 1000;

/// About the size of a node in a response, without its name.
const NODE_BYTES: usize = 90;

/// Query parameters of a request for a map.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct MapQuery {
    /// At most so many nodes, spread evenly over all; default 1000, or `batch_items_max` where that is less.
    #[param(example = 10, minimum = 1)]
    pub limit: Option<usize>,
}

/// A node on the map.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapNode {
    /// The node: a number up to 2^53 - 1 in size, else a string.
    pub node: Key,
    /// Its place along the first axis.
    pub x: f32,
    /// Its place along the second axis.
    pub y: f32,
    /// Edges of the node in the graph.
    pub degree: u64,
    /// Whether it is the destination of an event that was learned of.
    pub destination: bool,
}

/// Embeddings of nodes in the plane.
#[derive(Debug, Serialize, ToSchema)]
pub struct MapResponse {
    /// The event time that embeddings are for.
    pub at: i64,
    /// Nodes with an embedding. Their distances are about those of embeddings, as far as `explained` says.
    pub nodes: Vec<MapNode>,
    /// Nodes that were ever named.
    pub nodes_total: usize,
    /// Share of the embeddings' variance that each of the two axes holds.
    #[schema(min_items = 2, max_items = 2)]
    pub explained: [f64; 2],
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub source: Source,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// Embeddings of many nodes as of now, projected on their two principal axes: a map of the graph as the model sees it.
#[utoipa::path(
    get, path = "/v1/map", tag = "query", operation_id = "compute_map",
    params(MapQuery),
    responses(
        (status = 200, description = "Nodes and their places", body = MapResponse),
        (status = 413, description = "Too many nodes", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, no version of the model \
            promoted yet (`no_model`), or the disk could not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn map(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    query: Result<Query<MapQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let limits = app.state.limits;
    let most = NODES_MAX.min(limits.batch_items);
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT.min(most));
    match limit {
        0 => return Err(ApiError::Invalid("limit is 0; ask for at least one node".to_owned())),
        found if found > most => return Err(ApiError::LimitTooLarge { found, limit: most }),
        _ => {}
    }
    let room = reserve(&app, &client, limit * NODE_BYTES)?;
    let engine = app.state.engine.clone();
    let spread = move || engine.spread_nodes(limit);
    let (nodes, nodes_total) = blocking(Some(permit.clone()), limits.request_timeout, spread).await?;
    let keys: Vec<NodeKey> = nodes.iter().map(|node| node.key.clone()).collect();
    let work =
        app.embeddings.submit(keys, UnknownKeys::Error, None, (permit.clone(), limits.request_timeout));
    let (_, embedded) = work.await?;
    let project = move || projected(nodes, nodes_total, embedded);
    let response = app.state.bulk.run(Some(permit.clone()), limits.request_timeout, project).await?;
    let names_bytes: usize = response.nodes.iter().map(|node| node.node.text_bytes()).sum();
    let room = settle(&app, &client, room, response.nodes.len() * NODE_BYTES + names_bytes);
    Writing::new(&app, accepts).json(permit, room, move || response).await
}

/// The map of nodes, in their order, and their embeddings. One that was deleted meanwhile has none.
fn projected(nodes: Vec<SpreadNode>, nodes_total: usize, embedded: EmbeddingResponse) -> MapResponse {
    let with_vector = |(node, embedding)| match embedding {
        NodeEmbedding::Found { vector, .. } => Some((node, vector)),
        NodeEmbedding::Unknown | NodeEmbedding::NotFinite => None,
    };
    let (nodes, vectors): (Vec<SpreadNode>, Vec<Vec<f32>>) =
        nodes.into_iter().zip(embedded.embeddings).filter_map(with_vector).unzip();
    let plane = plane(&vectors);
    let placed = |(node, [x, y]): (SpreadNode, [f32; 2])| {
        let SpreadNode { key, degree, is_destination: destination } = node;
        MapNode { node: Key::named(key), x, y, degree, destination }
    };
    MapResponse {
        at: embedded.at.0,
        nodes: nodes.into_iter().zip(plane.places).map(placed).collect(),
        nodes_total,
        explained: plane.explained,
        source: embedded.source.into(),
        freshness: embedded.freshness.into(),
    }
}
