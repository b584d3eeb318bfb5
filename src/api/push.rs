//! Events in, over HTTP: the body goes to the [`Intake`](crate::event::Intake) unparsed, and the outcome comes back.

use std::sync::Arc;

use axum::extract::{FromRequest, Request, State};
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

/// Stores events. Responds once they are durable and in the graph.
///
/// Events that cannot be accepted are reported per item and kept as dead letters; the others are stored.
#[utoipa::path(
    post, path = "/v1/events", tag = "events", operation_id = "push_events",
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
    let RawBody(body) = RawBody::from_request(request, &app).await?;
    let response =
        blocking(Some(permit), app.state.limits.request_timeout, move || intake.submit(&body, format))
            .await??;
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
