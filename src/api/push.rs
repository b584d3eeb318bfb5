//! Events in, over HTTP: the body goes to the [`Intake`](crate::event::Intake) unparsed, and the outcome comes back.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};

use super::App;
use super::body::RawBody;
use super::envelope::{Permit, blocking, media_type};
use super::error::{ApiError, ErrorBody};
use super::events::{EventsDocument, EventsResponse};
use crate::event::BodyFormat;

/// Content types that the route reads.
const MEDIA_TYPES: &str =
    "application/json (one event or an array) or application/x-ndjson (one event a line)";

/// Longest idempotency key of a request, in bytes.
const REQUEST_KEY_MAX: usize = 255;

/// The idempotency key of a request, if it has one.
fn request_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut sent = headers.get_all("idempotency-key").iter();
    let Some(key) = sent.next() else { return Ok(None) };
    let text = key.to_str().ok().filter(|text| (1..=REQUEST_KEY_MAX).contains(&text.len()));
    match text {
        Some(text) if sent.next().is_none() => Ok(Some(text.to_owned())),
        _ => Err(ApiError::Invalid(format!(
            "the header `Idempotency-Key` must come once, with 1 to {REQUEST_KEY_MAX} visible ASCII characters"
        ))),
    }
}

/// Stores events. Responds once they are durable and in the graph.
///
/// Events that cannot be accepted are reported per item and kept as dead letters; the others are stored.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", operation_id = "push_events",
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Identifies the request: an event of it that is \
            sent again under the same key is stored once. 1 to 255 visible ASCII characters. An event's own \
            `idempotency_key` takes precedence"),
    ),
    request_body(
        description = "One event, an array of events, or one event a line",
        content((EventsDocument = "application/json"), (String = "application/x-ndjson")),
    ),
    responses(
        (status = 200, description = "The outcome for the events", body = EventsResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 404, description = "The push source is off", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "Neither JSON nor lines of JSON", body = ErrorBody),
        (status = 422, description = "Every event was rejected", body = ErrorBody),
        (status = 429, description = "The ingest queue is full, or the key exceeds its rate limit",
            body = ErrorBody),
        (status = 503, description = "Busy, disk full, restoring, or shutting down", body = ErrorBody),
        (status = 504, description = "The events may be stored or not (`outcome_unknown`)", body = ErrorBody),
    )
)]
pub(super) async fn events(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    request: Request,
) -> Result<Json<EventsResponse>, ApiError> {
    let intake = app.state.intake.clone().ok_or(ApiError::PushDisabled)?;
    let format = match media_type(request.headers()).as_deref() {
        Some("application/json") => BodyFormat::Json,
        Some("application/x-ndjson" | "application/jsonl") => BodyFormat::JsonLines,
        _ => return Err(ApiError::ContentType { expected: MEDIA_TYPES }),
    };
    let key = request_key(request.headers())?;
    let RawBody(body) = RawBody::from_request(request, &app).await?;
    let store = move || intake.submit(&body, format, key.as_deref());
    let stored = blocking(Some(permit), app.state.limits.request_timeout, store).await;
    let response = stored.map_err(|error| match error {
        late @ ApiError::WorkTimeout { .. } => ApiError::OutcomeUnknown { detail: late.to_string() },
        other => other,
    })??;
    let receipt = response.receipt;
    let rejected: Vec<_> = response.rejected.into_iter().map(Into::into).collect();
    if receipt.accepted == 0 && receipt.duplicates == 0 && !rejected.is_empty() {
        return Err(ApiError::AllRejected(rejected));
    }
    Ok(Json(EventsResponse {
        first_position: receipt.first.0,
        end_position: receipt.end.0,
        accepted: receipt.accepted,
        duplicates: receipt.duplicates,
        rejected,
        freshness: Arc::clone(&app.state.engine).freshness().into(),
    }))
}
