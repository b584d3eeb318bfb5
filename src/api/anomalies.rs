//! The request for the most unusual events of late.

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
use super::query::check_asked;
use super::sending::{Writing, reserve, settle};
use super::transfer::Client;
use super::wire::Freshness;

/// Events of a response without `limit`.
const DEFAULT_LIMIT: usize = 100;

/// About the size of an event in a response, without its names.
const EVENT_BYTES: usize = 130;

/// Query parameters of a request for unusual events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AnomaliesQuery {
    /// At most so many events; default 100.
    #[param(example = 2, minimum = 1)]
    pub limit: Option<usize>,
    /// Only events of this percentile or a higher one; those below `anomalies.percentile_min` are not kept.
    #[param(minimum = 0, maximum = 1)]
    pub percentile: Option<f32>,
}

/// An event that the model thought unlikely before it had learned it.
#[derive(Debug, Serialize, ToSchema)]
pub struct UnusualEvent {
    /// Source node.
    pub src: Key,
    /// Destination node.
    pub dst: Key,
    /// Event time.
    pub time: i64,
    /// Log position of the event.
    pub position: u64,
    /// Score of the pair at that time, before the event was learned.
    #[schema(minimum = 0, maximum = 1)]
    pub score: f32,
    /// Share of earlier events of its type that the model thought likelier.
    #[schema(minimum = 0, maximum = 1)]
    pub percentile: f32,
}

/// The latest unusual events.
#[derive(Debug, Serialize, ToSchema)]
pub struct AnomaliesResponse {
    /// The events, in the order in which they were learned, the newest first.
    pub anomalies: Vec<UnusualEvent>,
    /// Events of a lower percentile are not kept.
    pub percentile_min: f32,
    /// How fresh the response is.
    pub freshness: Freshness,
}

/// The latest unusual events: those that the model thought unlikely before it had learned them.
///
/// The percentile of an event is the share of the latest 4,096 events of its type that the model thought likelier, of
/// equally likely ones a half. The first 200 events have none. Events that the learner did not score, because it was
/// behind, are missing, unless `anomalies.score_all` is set. A restart begins with an empty list.
#[utoipa::path(
    get, path = "/v1/anomalies", tag = "query", operation_id = "list_anomalies",
    params(AnomaliesQuery),
    responses(
        (status = 200, description = "The events", body = AnomaliesResponse),
        (status = 413, description = "Too many events", body = ErrorBody),
        (status = 422, description = "A value is impossible", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
        (status = 503, description = "Too many requests at a time", body = ErrorBody),
    )
)]
pub(super) async fn anomalies(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(client): Extension<Client>,
    accepts: AcceptsGzip,
    query: Result<Query<AnomaliesQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(query) = query?;
    let limits = app.state.limits;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT.min(limits.batch_items));
    if limit == 0 {
        return Err(ApiError::Invalid("limit is 0; ask for at least one event".to_owned()));
    }
    check_asked(limit, &limits)?;
    let percentile = query.percentile.unwrap_or_default();
    if !(0.0..=1.0).contains(&percentile) {
        return Err(ApiError::Invalid(format!("percentile is {percentile}; it must be from 0 to 1")));
    }
    let room = reserve(&app, &client, limit.saturating_mul(EVENT_BYTES))?;
    let engine = app.state.engine.clone();
    let response = blocking(Some(permit.clone()), limits.request_timeout, move || {
        let freshness = engine.freshness().into();
        let keys = &engine.stores.keys;
        let event = |found: crate::serving::Anomaly| {
            Some(UnusualEvent {
                src: Key::named(keys.key(found.src)?),
                dst: Key::named(keys.key(found.dst)?),
                time: found.time.0,
                position: found.edge.0,
                score: found.score,
                percentile: found.percentile?,
            })
        };
        let anomalies = engine.anomalies.latest(percentile, limit).into_iter().filter_map(event).collect();
        Ok::<_, ApiError>(AnomaliesResponse {
            anomalies,
            percentile_min: engine.anomalies.percentile_min(),
            freshness,
        })
    });
    let response: AnomaliesResponse = response.await??;
    let names = response.anomalies.iter().map(|event| event.src.text_bytes() + event.dst.text_bytes());
    let bytes = response.anomalies.len() * EVENT_BYTES + names.sum::<usize>();
    let room = settle(&app, &client, room, bytes);
    Writing::new(&app, accepts).json(permit, room, move || response).await
}
