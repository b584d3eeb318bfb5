//! Handlers of embedding, link score and node requests.

use std::time::Duration;

use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Response;

use super::arrow::WantsArrow;
use super::body::JsonBody;
use super::compression::AcceptsGzip;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::key::{Form, Key};
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use super::vector::{EncodingFormat, Vector};
use super::wire::{
    EmbeddingsRequest, EmbeddingsResponse, FoundEmbedding, FoundScore, ItemError, MissingEmbedding,
    MissingScore, Neighbor, NodeEmbedding, NodeQuery, NodeResponse, Pair, PairScore, ScoresRequest,
    ScoresResponse, Wait,
};
use super::{ApiLimits, App};
use crate::event::{EdgeId, EventTime, NodeKey};
use crate::serving;

/// How long a request with `min_position` waits without `wait_ms`.
const DEFAULT_WAIT: Duration = Duration::from_secs(1);

/// Neighbors listed without `neighbors`.
const DEFAULT_NEIGHBORS: usize = 10;

/// About the size of a neighbor in a response, without its name.
const NEIGHBOR_BYTES: usize = 80;

/// Embeddings of nodes as of now, or of a time in the past.
///
/// Nodes that the graph does not know are reported per item, or get the model's prior; they do not fail the request.
#[utoipa::path(
    post, path = "/v1/embeddings", tag = "query", operation_id = "compute_embeddings",
    request_body = EmbeddingsRequest,
    responses(
        (status = 200, description = "One entry for each node, in order", body = EmbeddingsResponse),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many nodes or bytes", body = ErrorBody),
        (status = 415, description = "The body is not declared as JSON", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, no version of the model \
            promoted yet (`no_model`), or the disk could not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn embeddings(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    wants: WantsArrow,
    JsonBody(request): JsonBody<EmbeddingsRequest>,
) -> Result<Response, ApiError> {
    let limits = app.state.limits;
    check_count(&app, "nodes", request.nodes.len())?;
    let wait = Wait { min_position: request.min_position, wait_ms: request.wait_ms };
    wait_until_visible(&app, wait).await?;
    // A number takes about 12 bytes, in base64 5 and a third, in columns 4.
    let is_short = wants.0 || request.encoding_format == EncodingFormat::Base64;
    let number_bytes = if is_short { 6 } else { 12 };
    let item_bytes = 100 + number_bytes * app.state.info.embedding_dimension;
    let names_bytes: usize = request.nodes.iter().map(Key::text_bytes).sum();
    let room = reserve(&app, &client, request.nodes.len().saturating_mul(item_bytes) + names_bytes)?;
    let (keys, forms) = request.nodes.into_iter().map(|key| (key.node, key.form)).unzip::<_, _, _, Vec<_>>();
    let (unknown, at) = (request.unknown.into(), request.at.map(EventTime));
    let work = app.embeddings.submit(keys, unknown, at, (permit.clone(), limits.request_timeout));
    let (keys, response) = work.await?;
    let made = move || {
        let as_sent = keys.into_iter().zip(forms).map(|(node, form)| Key { node, form });
        let embeddings = as_sent.zip(response.embeddings);
        let embeddings =
            embeddings.map(|(key, found)| node_embedding(key, found, request.encoding_format)).collect();
        let (source, freshness) = (response.source.into(), response.freshness.into());
        EmbeddingsResponse { at: response.at.0, embeddings, source, freshness }
    };
    Writing::new(&app, accepts).columns_or_json(wants, (permit, room), made).await
}

fn node_embedding(node: Key, found: serving::NodeEmbedding, format: EncodingFormat) -> NodeEmbedding {
    match found {
        serving::NodeEmbedding::Found { vector, last_event, cold } => {
            let (embedding, last_event) = (Vector { numbers: vector, format }, last_event.map(|time| time.0));
            NodeEmbedding::Found(FoundEmbedding { node, embedding, last_event, cold })
        }
        serving::NodeEmbedding::Unknown => {
            NodeEmbedding::Missing(MissingEmbedding { node, error: ItemError::UnknownNode })
        }
        serving::NodeEmbedding::NotFinite => {
            NodeEmbedding::Missing(MissingEmbedding { node, error: ItemError::NotFinite })
        }
    }
}

/// How likely links between pairs of nodes are, now or at a time in the past.
///
/// Pairs with a node that the graph does not know are reported per item, or scored by the model's prior; they do not
/// fail the request.
#[utoipa::path(
    post, path = "/v1/links/score", tag = "query", operation_id = "score_links",
    request_body = ScoresRequest,
    responses(
        (status = 200, description = "One entry for each pair, in order", body = ScoresResponse),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many pairs or bytes", body = ErrorBody),
        (status = 415, description = "The body is not declared as JSON", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, no version of the model \
            promoted yet (`no_model`), or the disk could not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn link_scores(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    wants: WantsArrow,
    JsonBody(request): JsonBody<ScoresRequest>,
) -> Result<Response, ApiError> {
    let limits = app.state.limits;
    check_count(&app, "pairs", request.pairs.len())?;
    let wait = Wait { min_position: request.min_position, wait_ms: request.wait_ms };
    wait_until_visible(&app, wait).await?;
    // A name that the graph does not know is written twice.
    let names_bytes: usize =
        request.pairs.iter().map(|pair| 2 * (pair.src.text_bytes() + pair.dst.text_bytes())).sum();
    let room = reserve(&app, &client, request.pairs.len().saturating_mul(100) + names_bytes)?;
    let (keys, forms) = request.pairs.into_iter().map(split).unzip::<_, _, _, Vec<_>>();
    let (unknown, at) = (request.unknown.into(), request.at.map(EventTime));
    let work = app.scores.submit(keys, unknown, at, (permit.clone(), limits.request_timeout));
    let (pairs, response) = work.await?;
    let made = move || {
        let as_sent = pairs.into_iter().zip(forms).map(joined);
        let scores = as_sent.zip(response.scores).map(|(pair, found)| pair_score(pair, found)).collect();
        let (source, freshness) = (response.source.into(), response.freshness.into());
        ScoresResponse { at: response.at.0, scores, source, freshness }
    };
    Writing::new(&app, accepts).columns_or_json(wants, (permit, room), made).await
}

/// The keys of a pair, and how they are written.
fn split(Pair { src, dst }: Pair) -> ((NodeKey, NodeKey), (Form, Form)) {
    ((src.node, dst.node), (src.form, dst.form))
}

/// The opposite of [`split`].
fn joined(((src, dst), forms): ((NodeKey, NodeKey), (Form, Form))) -> Pair {
    Pair { src: Key { node: src, form: forms.0 }, dst: Key { node: dst, form: forms.1 } }
}

fn pair_score(Pair { src, dst }: Pair, found: serving::PairScore) -> PairScore {
    let (error, unknown) = match found {
        serving::PairScore::Found { probability, percentile, cold } => {
            return PairScore::Found(FoundScore { src, dst, score: probability, percentile, cold });
        }
        serving::PairScore::Unknown { src: no_src, dst: no_dst } => {
            let unknown = [no_src.then(|| src.clone()), no_dst.then(|| dst.clone())];
            (ItemError::UnknownNode, unknown.into_iter().flatten().collect())
        }
        serving::PairScore::NotFinite => (ItemError::NotFinite, Vec::new()),
    };
    PairScore::Missing(MissingScore { src, dst, error, unknown })
}

/// A node's degree, latest event and newest neighbors.
#[utoipa::path(
    get, path = "/v1/nodes/{key}", tag = "query", operation_id = "get_node",
    params(("key" = String, Path, description = "Node key, percent-encoded; `7` is the node 7 and \"7\"",
        max_length = 1024, example = "user-1"), NodeQuery),
    responses(
        (status = 200, description = "The node", body = NodeResponse),
        (status = 404, description = "The graph does not know the node", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many neighbors", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, or the \
            disk could not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn node(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    path: Result<Path<String>, PathRejection>,
    query: Result<Query<NodeQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (Path(key), Query(query)) = (path?, query?);
    let key = Key::of_path(&key)?;
    let limits = app.state.limits;
    let neighbors = query.neighbors.unwrap_or(DEFAULT_NEIGHBORS.min(limits.batch_items));
    check_limit("neighbors", neighbors, &limits)?;
    let wait = Wait { min_position: query.min_position, wait_ms: query.wait_ms };
    wait_until_visible(&app, wait).await?;
    let room = reserve(&app, &client, neighbors.saturating_mul(NEIGHBOR_BYTES))?;
    let engine = app.state.engine.clone();
    let response = blocking(Some(permit.clone()), limits.request_timeout, move || {
        let Some(found) = engine.node(&key.node, neighbors)? else {
            return Err(ApiError::UnknownNode { key, freshness: engine.freshness().into() });
        };
        let neighbors = found.neighbors.into_iter().map(|neighbor| Neighbor {
            node: Key::named(neighbor.key),
            time: neighbor.time.0,
            position: neighbor.edge.0,
        });
        Ok(NodeResponse {
            node: key,
            degree: found.degree,
            last_event: found.last_event.map(|time| time.0),
            learned_event: found.learned_event.map(|time| time.0),
            neighbors: neighbors.collect(),
            freshness: found.freshness.into(),
        })
    });
    let response = response.await??;
    let names_bytes: usize = response.neighbors.iter().map(|neighbor| neighbor.node.text_bytes()).sum();
    let bytes = response.neighbors.len() * NEIGHBOR_BYTES + names_bytes;
    let room = settle(&app, &client, room, bytes);
    Writing::new(&app, accepts).json(permit, room, move || response).await
}

/// As [`node`], of the node whose key is the last word of the path of similar nodes.
pub(super) async fn node_named_similar(
    app: State<App>,
    permit: Extension<Permit>,
    client: Extension<Client>,
    accepts: AcceptsGzip,
    query: Result<Query<NodeQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    node(app, permit, client, accepts, Ok(Path("similar".to_owned())), query).await
}

pub(super) fn check_count(app: &App, what: &'static str, found: usize) -> Result<(), ApiError> {
    #[allow(clippy::cast_precision_loss)]
    app.state.metrics.http.request_items.with_label_values(&[what]).observe(found as f64);
    if found == 0 {
        return Err(ApiError::Invalid(format!("{what} is empty; list at least one")));
    }
    check_limit(what, found, &app.state.limits)
}

pub(super) fn check_limit(what: &'static str, found: usize, limits: &ApiLimits) -> Result<(), ApiError> {
    let limit = limits.batch_items;
    if found > limit { Err(ApiError::BatchTooLarge { what, found, limit }) } else { Ok(()) }
}

/// Checks how many items a request asks for by its `limit`.
pub(super) fn check_asked(found: usize, limits: &ApiLimits) -> Result<(), ApiError> {
    let limit = limits.batch_items;
    if found > limit { Err(ApiError::LimitTooLarge { found, limit }) } else { Ok(()) }
}

/// The longest wait of this request.
pub(super) fn wait_limit(wait: Wait, limits: &ApiLimits) -> Result<Duration, ApiError> {
    let Some(milliseconds) = wait.wait_ms else { return Ok(DEFAULT_WAIT.min(limits.wait)) };
    let requested = Duration::from_millis(milliseconds);
    if wait.min_position.is_none() {
        return Err(ApiError::Invalid(
            "wait_ms is how long to wait for `min_position`; give both".to_owned(),
        ));
    }
    if requested > limits.wait {
        let most = limits.wait.as_millis();
        return Err(ApiError::Invalid(format!("wait_ms is {milliseconds}, at most {most} is allowed")));
    }
    Ok(requested)
}

/// Waits, without a thread, until responses reflect `min_position`.
pub(super) async fn wait_until_visible(app: &App, wait: Wait) -> Result<(), ApiError> {
    let limit = wait_limit(wait, &app.state.limits)?;
    match wait.min_position {
        Some(min_position) if !app.learned(EdgeId(min_position), limit).await => {
            Err(ApiError::NotYetVisible { min_position, freshness: app.state.engine.freshness().into() })
        }
        _ => Ok(()),
    }
}
