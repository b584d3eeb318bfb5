//! Handlers over the live index: the likeliest destinations of sources, the nodes that are like others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;

use super::arrow::WantsArrow;
use super::body::JsonBody;
use super::compression::AcceptsGzip;
use super::envelope::Permit;
use super::error::{ApiError, ErrorBody};
use super::index_wire::{
    CandidateRole, Candidates, FoundSimilar, IndexFacts, Metric, MissingSimilar, SimilarNode, SimilarNodes,
    SimilarNodesRequest, SimilarNodesResponse, TopLink, TopLinks, TopLinksRequest, TopLinksResponse,
};
use super::items::Items;
use super::key::{Form, KEY_BYTES_MAX, Key};
use super::query::{check_count, check_limit, wait_limit, wait_until_visible};
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use super::wire::{ItemError, Wait};
use super::{ApiLimits, App};
use crate::event::{EdgeId, NodeKey};
use crate::serving::{
    self, Condition, FoundNode, LiveIndex, SimilarItem, SimilarRequest, SimilarResponse, SimilarResult,
    SimilarTo, TopRequest, TopResponse, TopSource, UnknownKeys,
};

/// Results for each source, node or vector without `limit`.
const DEFAULT_LIMIT: usize = 10;

/// About the size of a result in a response, without its name.
const RESULT_BYTES: usize = 60;

/// The candidates of a request, and how it wrote their keys.
struct Chosen {
    candidates: serving::Candidates,
    forms: HashMap<NodeKey, Form>,
}

impl Chosen {
    /// What `sent` allows; `destinations`: whether that is the role if none is given.
    fn new(sent: Candidates, destinations: bool, app: &App) -> Result<Self, ApiError> {
        if let Some(keys) = &sent.keys {
            check_listed("candidates.keys", keys.len(), &app.state.limits)?;
        }
        for (name, text) in [("key_prefix", &sent.key_prefix), ("type", &sent.edge_type)] {
            let Some(text) = text else { continue };
            if sent.keys.is_some() {
                let words = format!("candidates has both keys and {name}: give one of them");
                return Err(ApiError::Invalid(words));
            }
            let bytes = text.len();
            if !(1..=KEY_BYTES_MAX).contains(&bytes) {
                return Err(ApiError::Invalid(format!(
                    "candidates.{name} has {bytes} bytes, from 1 to {KEY_BYTES_MAX} are allowed"
                )));
            }
        }
        if sent.edge_type.is_some() && app.state.engine.stores.types.is_empty() {
            let words = "no event of this stream has had a type: leave candidates.type out, or send events with types";
            return Err(ApiError::Invalid(words.to_owned()));
        }
        let keys = sent.keys.map(|keys| keys.into_iter().collect::<Vec<Key>>());
        let forms = keys.iter().flatten().map(|key| (key.node.clone(), key.form)).collect();
        let destinations = sent.role.map_or(destinations, |role| role == CandidateRole::Destination);
        let candidates = serving::Candidates {
            destinations: destinations && keys.is_none(),
            keys: keys.map(|keys| keys.into_iter().map(|key| key.node).collect()),
            key_prefix: sent.key_prefix,
            edge_type: sent.edge_type,
        };
        Ok(Self { candidates, forms })
    }

    /// A key that was found, as the request wrote it.
    fn written(&self, node: NodeKey) -> Key {
        match self.forms.get(&node) {
            Some(&form) => Key { node, form },
            None => Key::named(node),
        }
    }

    /// The keys that the graph does not know.
    fn unknown(&self, app: &App) -> Vec<Key> {
        let unknown = |key: &&NodeKey| app.state.engine.stores.keys.lookup(key).is_none();
        let keys = self.candidates.keys.iter().flatten().filter(unknown);
        keys.map(|key| self.written(key.clone())).collect()
    }

    /// Bytes of keys that a response may write.
    fn bytes(&self) -> usize {
        self.forms.keys().map(|key| Key::named(key.clone()).text_bytes() + RESULT_BYTES).sum()
    }
}

/// The most likely destinations of sources, now.
///
/// Without `candidates.keys` and `exact`, rows of the live index tell which nodes are scored; `index` says how old
/// those are. Sources that the graph does not know get the nodes with the most edges, marked `cold`.
#[utoipa::path(
    post, path = "/v1/links/top", tag = "query", operation_id = "find_top_links",
    request_body = TopLinksRequest,
    responses(
        (status = 200, description = "One entry for each source, in order", body = TopLinksResponse),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 404, description = "There is no live index (`index_disabled`)", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many sources, results, candidates or bytes", body = ErrorBody),
        (status = 415, description = "The body is not declared as JSON", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, no version of the model promoted yet \
            (`no_model`), the live index has no rows yet or no room for them (`index_not_ready`), or the disk could \
            not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn top_links(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    wants: WantsArrow,
    JsonBody(request): JsonBody<TopLinksRequest>,
) -> Result<Response, ApiError> {
    let limits = app.state.limits;
    check_count(&app, "src", request.src.len())?;
    let sources = request.src.len();
    let limit = result_limit(request.limit, sources, &limits)?;
    let chosen = Chosen::new(request.candidates, true, &app)?;
    if let Some(keys) = &chosen.candidates.keys {
        check_limit("pairs of a source and a candidate", keys.len().saturating_mul(sources), &limits)?;
    }
    let needs_rows = chosen.candidates.keys.is_none() && !request.exact;
    wait_for_rows(&app, Wait { min_position: request.min_position, wait_ms: request.wait_ms }, needs_rows)
        .await?;
    let room = reserve(&app, &client, sources * (limit + 1) * RESULT_BYTES + chosen.bytes())?;
    let asked = Arc::new(TopRequest {
        limit,
        candidates: chosen.candidates.clone(),
        exclude_met: request.exclude_met,
        exact: request.exact,
        pairs_max: limits.batch_items,
        sources,
        second_stage: app.state.engine.second_stage(),
    });
    let forms: Vec<Form> = request.src.iter().map(|key| key.form).collect();
    let item = |key: Key| TopSource { key: key.node, request: asked.clone() };
    let items = request.src.into_iter().map(item).collect();
    let work =
        app.top_links.submit(items, UnknownKeys::Error, None, (permit.clone(), limits.request_timeout));
    let (items, response) = work.await?;
    let names = response.results.iter().flat_map(|result| &result.found).map(name_bytes).sum::<usize>();
    let found = response.results.iter().map(|result| result.found.len() + 1).sum::<usize>();
    let room = settle(&app, &client, room, found * RESULT_BYTES + names + chosen.bytes());
    let unknown_candidates = chosen.unknown(&app);
    let made = move || {
        let TopResponse { at, results, source, freshness, coverage } = response;
        let as_sent = items.into_iter().zip(forms).map(|(item, form)| Key { node: item.key, form });
        let link =
            |FoundNode { key, score, cold }: FoundNode| TopLink { dst: chosen.written(key), score, cold };
        let links = |(src, result): (Key, serving::TopResult)| TopLinks {
            src,
            ranked_by: result.order.into(),
            cold: result.cold,
            top: result.found.into_iter().map(link).collect(),
        };
        TopLinksResponse {
            at: at.0,
            results: as_sent.zip(results).map(links).collect(),
            unknown_candidates,
            source: source.into(),
            freshness: freshness.into(),
            index: IndexFacts::new(coverage, freshness),
        }
    };
    Writing::new(&app, accepts).columns_or_json(wants, (permit, room), made).await
}

/// The nodes whose embeddings are most like those of others, or like vectors, now.
///
/// Without `candidates.keys`, rows of the live index tell which nodes are compared; `index` says how old those are.
/// Nodes that the graph does not know are reported per item; they do not fail the request.
#[utoipa::path(
    post, path = "/v1/nodes/similar", tag = "query", operation_id = "find_similar_nodes",
    request_body = SimilarNodesRequest,
    responses(
        (status = 200, description = "One entry for each node or vector, in order", body = SimilarNodesResponse),
        (status = 400, description = "The body is not JSON", body = ErrorBody),
        (status = 404, description = "There is no live index (`index_disabled`)", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 412, description = "`min_position` is not reflected yet", body = ErrorBody),
        (status = 413, description = "Too many nodes, vectors, results, candidates or bytes", body = ErrorBody),
        (status = 415, description = "The body is not declared as JSON", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time, no version of the model promoted yet \
            (`no_model`), the live index has no rows yet or no room for them (`index_not_ready`), or the disk could \
            not be read (`storage_failed`)", body = ErrorBody),
    )
)]
pub(super) async fn similar_nodes(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    wants: WantsArrow,
    JsonBody(request): JsonBody<SimilarNodesRequest>,
) -> Result<Response, ApiError> {
    let limits = app.state.limits;
    let (wanted, forms) = wanted(&app, request.nodes, request.vectors, request.metric)?;
    let limit = result_limit(request.limit, wanted.len(), &limits)?;
    let chosen = Chosen::new(request.candidates, false, &app)?;
    if let Some(keys) = &chosen.candidates.keys {
        check_limit("pairs of an item and a candidate", keys.len().saturating_mul(wanted.len()), &limits)?;
    }
    let needs_rows = chosen.candidates.keys.is_none();
    wait_for_rows(&app, Wait { min_position: request.min_position, wait_ms: request.wait_ms }, needs_rows)
        .await?;
    let room = reserve(&app, &client, wanted.len() * (limit + 1) * RESULT_BYTES + chosen.bytes())?;
    let candidates = chosen.candidates.clone();
    let asked = Arc::new(SimilarRequest { limit, candidates, metric: request.metric.into() });
    let items = wanted.into_iter().map(|to| SimilarItem { to, request: asked.clone() }).collect();
    let work = app.similar.submit(items, UnknownKeys::Error, None, (permit.clone(), limits.request_timeout));
    let (items, response) = work.await?;
    let found = response.results.iter().filter_map(|result| match result {
        SimilarResult::Found(found) => Some(found),
        _ => None,
    });
    let bytes: usize = found.flatten().map(|found| RESULT_BYTES + name_bytes(found)).sum();
    let room = settle(&app, &client, room, bytes + items.len() * RESULT_BYTES + chosen.bytes());
    let unknown_candidates = chosen.unknown(&app);
    let made = move || {
        let SimilarResponse { at, results, source, freshness, coverage } = response;
        let as_sent = items.into_iter().zip(forms).map(|(item, form)| match item.to {
            SimilarTo::Node(node) => Some(Key { node, form }),
            SimilarTo::Vector(_) => None,
        });
        let results = as_sent.zip(results).map(|(node, result)| similar(node, result, &chosen)).collect();
        SimilarNodesResponse {
            at: at.0,
            results,
            unknown_candidates,
            source: source.into(),
            freshness: freshness.into(),
            index: IndexFacts::new(coverage, freshness),
        }
    };
    Writing::new(&app, accepts).columns_or_json(wants, (permit, room), made).await
}

fn similar(node: Option<Key>, result: SimilarResult, chosen: &Chosen) -> SimilarNodes {
    let error = match result {
        SimilarResult::Found(found) => {
            let one = |FoundNode { key, score, cold }| SimilarNode { node: chosen.written(key), score, cold };
            let similar = found.into_iter().map(one).collect();
            return SimilarNodes::Found(FoundSimilar { node, similar });
        }
        SimilarResult::Unknown => ItemError::UnknownNode,
        SimilarResult::NotFinite => ItemError::NotFinite,
    };
    SimilarNodes::Missing(MissingSimilar { node, error })
}

/// What results are to be like, and how the request wrote it.
fn wanted(
    app: &App,
    nodes: Option<Items<Key>>,
    vectors: Option<Items<Items<f32>>>,
    metric: Metric,
) -> Result<(Vec<SimilarTo>, Vec<Form>), ApiError> {
    match (nodes, vectors) {
        (Some(nodes), None) => {
            check_count(app, "nodes", nodes.len())?;
            Ok(nodes.into_iter().map(|key| (SimilarTo::Node(key.node), key.form)).unzip())
        }
        (None, Some(vectors)) => {
            check_count(app, "vectors", vectors.len())?;
            let length = app.state.info.embedding_dimension;
            let vector = |(i, vector)| checked(i, vector, length, metric);
            vectors.into_iter().enumerate().map(vector).map(|vector| Ok((vector?, Form::Text))).collect()
        }
        _ => Err(ApiError::Invalid("give either nodes or vectors: what results are to be like".to_owned())),
    }
}

/// Vector `i` of a request, if it can be compared with embeddings of `length` values.
fn checked(i: usize, vector: Items<f32>, length: usize, metric: Metric) -> Result<SimilarTo, ApiError> {
    let found = vector.len();
    if found != length {
        return Err(ApiError::Invalid(format!(
            "vectors[{i}] has {found} values, embeddings of this model have {length}: see embedding_dimension of \
             /v1/info"
        )));
    }
    let numbers: Vec<f32> = vector.into_iter().collect();
    if numbers.len() < length {
        return Err(ApiError::Invalid(format!(
            "vectors[{i}] is longer than lists of a request may be here: raise api.batch_items_max to {length}"
        )));
    }
    if let Some(place) = numbers.iter().position(|number| !number.is_finite()) {
        return Err(ApiError::Invalid(format!(
            "vectors[{i}][{place}] is beyond the range of 32-bit floats; send a vector as /v1/embeddings returns it"
        )));
    }
    if metric == Metric::Cosine && numbers.iter().all(|number| *number == 0.0) {
        return Err(ApiError::Invalid(format!(
            "vectors[{i}] is zero, which has no cosine: send another one, or use the metric `dot`"
        )));
    }
    Ok(SimilarTo::Vector(numbers))
}

fn name_bytes(found: &FoundNode) -> usize {
    match &found.key {
        NodeKey::Int(_) => 20,
        NodeKey::Text(text) => text.len(),
    }
}

fn check_listed(what: &'static str, found: usize, limits: &ApiLimits) -> Result<(), ApiError> {
    if found == 0 {
        return Err(ApiError::Invalid(format!("{what} is empty; list at least one, or leave it out")));
    }
    check_limit(what, found, limits)
}

/// Results for each of `items`.
fn result_limit(sent: Option<usize>, items: usize, limits: &ApiLimits) -> Result<usize, ApiError> {
    let limit = sent.unwrap_or(DEFAULT_LIMIT.min((limits.batch_items / items.max(1)).max(1)));
    if limit == 0 {
        return Err(ApiError::Invalid("limit is 0; it must be at least 1".to_owned()));
    }
    check_limit("results", limit.saturating_mul(items), limits)?;
    Ok(limit)
}

/// Waits, without a thread, until responses reflect `min_position`, and the rows too, where they are read.
async fn wait_for_rows(app: &App, wait: Wait, needs_rows: bool) -> Result<(), ApiError> {
    let end = Instant::now() + wait_limit(wait, &app.state.limits)?;
    wait_until_visible(app, wait).await?;
    // Rows that are not there for want of room never come: that is the error then.
    let has_room = |index: &LiveIndex| !matches!(index.condition(), Condition::Full { .. });
    let follows = needs_rows && app.state.engine.index.as_deref().is_some_and(has_room);
    let Some(min_position) = wait.min_position.filter(|_| follows) else { return Ok(()) };
    let left = end.saturating_duration_since(Instant::now());
    match app.embedded(EdgeId(min_position), left).await {
        true => Ok(()),
        false => {
            Err(ApiError::NotYetVisible { min_position, freshness: app.state.engine.freshness().into() })
        }
    }
}
