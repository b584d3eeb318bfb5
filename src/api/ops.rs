//! Operations routes: health, status, metrics, version. They respond however busy the data routes are, as long as
//! connections are free: a separate address has its own connections.

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::App;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::health::HealthReport;
use super::info::InfoResponse;
use super::status::StatusDocument;
use crate::metrics::CONTENT_TYPE as PROMETHEUS_TEXT;

/// The state of the daemon: every part with its figures.
#[utoipa::path(
    get, path = "/v1/status", tag = "operations", operation_id = "get_status",
    responses(
        (status = 200, description = "One entry for each part, and `freshness`", body = StatusDocument),
        (status = 500, description = "A bug in the daemon", body = ErrorBody),
        (status = 503, description = "Too many concurrent requests", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
    )
)]
pub(super) async fn status(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Json<StatusDocument>, ApiError> {
    let limit = app.state.limits.request_timeout;
    Ok(Json(blocking(Some(permit), limit, move || (app.state.status)()).await?))
}

/// Liveness: fails only if a supervised thread is stuck.
#[utoipa::path(
    get, path = "/livez", tag = "operations", operation_id = "check_liveness",
    responses(
        (status = 200, description = "Every thread beats", body = HealthReport),
        (status = 503, description = "A thread is stuck", body = HealthReport),
    )
)]
pub(super) async fn livez(State(app): State<App>) -> Response {
    probe(app.state.health.liveness())
}

/// Readiness: fails while starting, restoring or draining.
///
/// A log that cannot be written is reported as degraded: requests are served.
#[utoipa::path(
    get, path = "/readyz", tag = "operations", operation_id = "check_readiness",
    responses(
        (status = 200, description = "Ready, possibly degraded", body = HealthReport),
        (status = 503, description = "Not ready", body = HealthReport),
    )
)]
pub(super) async fn readyz(State(app): State<App>) -> Response {
    probe(app.state.health.readiness())
}

/// Liveness and readiness together.
#[utoipa::path(
    get, path = "/healthz", tag = "operations", operation_id = "check_health",
    responses(
        (status = 200, description = "Every check passes", body = HealthReport),
        (status = 503, description = "A check fails", body = HealthReport),
    )
)]
pub(super) async fn healthz(State(app): State<App>) -> Response {
    probe(app.state.health.everything())
}

fn probe(report: HealthReport) -> Response {
    let status = if report.passes() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report)).into_response()
}

/// Metrics in the Prometheus text format.
#[utoipa::path(
    get, path = "/metrics", tag = "operations", operation_id = "get_metrics",
    responses(
        (status = 200, description = "All metrics", body = String, content_type = "text/plain"),
        (status = 500, description = "A bug in the daemon", body = ErrorBody),
        (status = 503, description = "Too many concurrent requests", body = ErrorBody),
        (status = 504, description = "It took too long", body = ErrorBody),
    )
)]
pub(super) async fn metrics(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let held = &app.state.metrics.http.held_bytes;
    for (direction, ledger) in [("request", &app.bodies), ("response", &app.responses)] {
        held.with_label_values(&[direction]).set(i64::try_from(ledger.bytes()).unwrap_or(i64::MAX));
    }
    match blocking(Some(permit), app.state.limits.request_timeout, move || app.state.metrics.encode()).await?
    {
        Ok(text) => Ok(([(CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response()),
        Err(error) => {
            tracing::error!(%error, "the metrics could not be written as text");
            Err(ApiError::Internal)
        }
    }
}

/// What runs, and what it accepts.
#[utoipa::path(
    get, path = "/v1/info", tag = "operations", operation_id = "get_info",
    responses((status = 200, description = "Version, device, model, lengths of rows, limits", body = InfoResponse))
)]
pub(super) async fn info(State(app): State<App>) -> Json<InfoResponse> {
    Json(InfoResponse::of(&app.state.info, &app.state.limits))
}
