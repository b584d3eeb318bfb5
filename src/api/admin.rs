//! Admin routes of a running daemon: write a checkpoint, pause or resume a source, change the log level; those about
//! weights, snapshots and the log are in [`operate`](super::operate). They need a key whose role is admin; without keys
//! they are open to the local machine only.
//!
//! Every attempt is audited, refused ones too: a log line with the target [`AUDIT`], and a metric. Of refused ones only
//! some have a line, which counts those left out before it. The daemon provides the implementation as an [`Operator`].

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use super::App;
use super::body::JsonBody;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody, shortened};
use super::keys::Caller;
use super::operate::Decisions;
use super::request_id::request_id;
use super::requests_log::{cut, trace_id};
use super::seek::{SeekRequest, SeekResponse};
use super::settings::ReloadResponse;

/// Target of the audit log lines.
pub const AUDIT: &str = "evergraph::audit";

/// Longest wait for a checkpoint.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(600);

/// Carries out admin requests. Every call may block.
pub trait Operator: Decisions {
    /// Writes a checkpoint of everything learned so far, and waits until it is durable.
    ///
    /// # Errors
    /// When it could not be written, or not within `limit`.
    fn checkpoint(&self, limit: Duration) -> Result<CheckpointResponse, OperatorError>;

    /// Pauses or resumes a source until the next such request, also across restarts.
    ///
    /// # Errors
    /// When there is no such source, or the decision cannot be stored.
    fn set_paused(&self, source: &str, paused: bool, by: &str) -> Result<SourceResponse, OperatorError>;

    /// Moves a paused Kafka source, or reports what that would do.
    ///
    /// # Errors
    /// When there is no such source, it is running, the position is none, no broker responds or the log cannot be
    /// written.
    fn seek(&self, source: &str, request: &SeekRequest) -> Result<SeekResponse, OperatorError>;

    /// Reads the settings again and takes over those that can change.
    ///
    /// # Errors
    /// When they have faults; then nothing changes.
    fn reload(&self) -> Result<ReloadResponse, OperatorError>;

    /// The log level.
    fn log_level(&self) -> LogLevelResponse;

    /// Changes the log level until the next start.
    ///
    /// # Errors
    /// When it is no level and no filter.
    fn set_log_level(&self, level: &str) -> Result<LogLevelResponse, OperatorError>;
}

/// Why an admin request failed.
#[derive(Clone, Debug, Error)]
pub enum OperatorError {
    /// No source has this name.
    #[error("no source has the name {requested}; there are {}", .known.join(", "))]
    UnknownSource {
        /// The requested name.
        requested: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be done at this moment; nothing was changed.
    #[error("{0}")]
    Failed(String),
    /// It may have been done, or was done and is not durable.
    #[error("{0}")]
    Unsettled(String),
}

/// A checkpoint that is durable.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CheckpointResponse {
    /// Its name, as `evergraph checkpoint restore` takes it.
    #[schema(example = "00000000000000012800.checkpoint")]
    pub name: String,
    /// It reflects every log position below.
    pub position: u64,
    /// Version of the served weights.
    pub model_version: u64,
}

/// The requested state of a source.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Whether it is paused: it submits no events until it is resumed, also across restarts.
    pub paused: bool,
}

/// A source and whether it is paused.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceResponse {
    /// Its name.
    #[schema(example = "kafka:evergraph-events")]
    pub source: String,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Name of the key that paused it; null while it is not paused.
    #[schema(required = true)]
    pub by: Option<String>,
    /// Since when, milliseconds since the Unix epoch; null while it is not paused.
    #[schema(required = true)]
    pub since_unix_ms: Option<i64>,
}

/// The requested log level.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevelRequest {
    /// error, warn, info, debug or trace, or a filter such as `info,evergraph::ingest=debug`.
    #[schema(example = "debug")]
    pub level: String,
}

/// The log level.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LogLevelResponse {
    /// The level or filter in effect.
    #[schema(example = "debug")]
    pub level: String,
    /// The level in the settings, which is in effect again after a restart.
    #[schema(example = "info")]
    pub configured: String,
}

/// Description of a completed action, for the audit.
#[derive(Clone)]
struct Done(String);

/// The response to an action that was carried out.
pub(super) fn done<T: Serialize>(what: String, response: T) -> Response {
    let mut response = Json(response).into_response();
    response.extensions_mut().insert(Done(what));
    response
}

/// Writes a checkpoint of everything learned so far. Responds once it is durable.
#[utoipa::path(
    post, path = "/v1/admin/checkpoints", tag = "admin", operation_id = "create_checkpoint",
    responses(
        (status = 200, description = "It is durable", body = CheckpointResponse),
        (status = 503, description = "It could not be written, or not in time", body = ErrorBody),
        (status = 504, description = "It took too long and may still be written", body = ErrorBody),
    )
)]
pub(super) async fn checkpoint(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let made = blocking(Some(permit), 2 * CHECKPOINT_LIMIT, move || operator.checkpoint(CHECKPOINT_LIMIT));
    let made = made.await??;
    Ok(done(made.name.clone(), made))
}

/// Pauses or resumes a source.
#[utoipa::path(
    put, path = "/v1/admin/sources/{source}", tag = "admin", operation_id = "update_source",
    params(
        ("source" = String, Path, description = "Name of the source, as in `/v1/status`", example = "http"),
    ),
    request_body = SourceRequest,
    responses(
        (status = 200, description = "Its state", body = SourceResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 404, description = "No source has this name", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "The body has another shape", body = ErrorBody),
        (status = 503, description = "Starting, stopping, or the decision could not be stored", body = ErrorBody),
        (status = 504, description = "It took too long and may still be done", body = ErrorBody),
    )
)]
pub(super) async fn source(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(caller): Extension<Caller>,
    Path(source): Path<String>,
    JsonBody(request): JsonBody<SourceRequest>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let change = move || operator.set_paused(&source, request.paused, &caller.0);
    let stands = blocking(Some(permit), app.state.limits.request_timeout, change).await??;
    let what = if stands.paused { "is paused" } else { "is resumed" };
    Ok(done(format!("{} {what}", stands.source), stands))
}

/// Returns the log level.
#[utoipa::path(
    get, path = "/v1/admin/log-level", tag = "admin", operation_id = "get_log_level",
    responses((status = 200, description = "The level in effect", body = LogLevelResponse))
)]
pub(super) async fn log_level(State(app): State<App>) -> Json<LogLevelResponse> {
    Json(app.state.operator.log_level())
}

/// Changes the log level until the next start.
#[utoipa::path(
    put, path = "/v1/admin/log-level", tag = "admin", operation_id = "set_log_level",
    request_body = LogLevelRequest,
    responses(
        (status = 200, description = "The level in effect", body = LogLevelResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "Neither a level nor a filter", body = ErrorBody),
        (status = 503, description = "Too many concurrent requests", body = ErrorBody),
    )
)]
pub(super) async fn set_log_level(
    State(app): State<App>,
    JsonBody(request): JsonBody<LogLevelRequest>,
) -> Result<Response, ApiError> {
    let stands = app.state.operator.set_log_level(&request.level)?;
    Ok(done(stands.level.clone(), stands))
}

/// Logs and counts every attempt with its caller and outcome. Reads are not audited.
pub(super) async fn audit(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let action = request.extensions().get::<MatchedPath>().map_or("", |path| action_of(path.as_str()));
    let path = cut(request.uri().path());
    let trace = trace_id(request.headers()).to_owned();
    let from = request.extensions().get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
    let id = request_id(&request).to_owned();

    let response = next.run(request).await;

    let error = response.extensions().get::<ApiError>();
    let who = match (response.extensions().get::<Caller>(), error) {
        (Some(caller), _) => &*caller.0,
        (None, Some(ApiError::Forbidden { name, .. })) => name.as_str(),
        _ => "unknown",
    };
    let outcome = match response.status().as_u16() {
        200..300 => "done",
        401 | 403 => "refused",
        _ => "failed",
    };
    let detail = match (response.extensions().get::<Done>(), error) {
        (Some(done), _) => done.0.clone(),
        (None, error) => error.map(|error| shortened(error.to_string())).unwrap_or_default(),
    };
    app.state.metrics.http.admin_actions.with_label_values(&[action, outcome]).inc();
    // Strangers can send refused requests, and as many as they like.
    let left_out = if outcome == "refused" { app.refused_admin_lines.admit() } else { Some(0) };
    let Some(left_out) = left_out else { return response };
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                target: AUDIT, who, from, action, outcome, detail, left_out, request_id = id, trace_id = trace, "{path}"
            )
        };
    }
    if outcome == "done" {
        line!(info);
    } else {
        line!(warn);
    }
    response
}

/// The action of a route, in metrics and in the audit.
fn action_of(route: &str) -> &'static str {
    match route {
        "/v1/admin/checkpoints" => "checkpoint",
        "/v1/admin/sources/{source}" => "source",
        "/v1/admin/sources/{source}/seek" => "seek",
        "/v1/admin/reload" => "reload",
        "/v1/admin/model/promote" => "promote",
        "/v1/admin/model/rollback" => "rollback",
        "/v1/admin/training" => "training",
        "/v1/admin/snapshots" => "snapshot",
        "/v1/admin/log/cut" => "cut_log",
        _ => "log_level",
    }
}

/// Address of the client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub SocketAddr);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::docs::GUARDED;
    use crate::metrics::ADMIN_ACTIONS;

    #[test]
    fn every_route_has_a_label_of_the_metric() {
        let routes: Vec<&str> = GUARDED.into_iter().filter(|route| route.starts_with("/v1/admin")).collect();
        for route in &routes {
            assert!(ADMIN_ACTIONS.contains(&action_of(route)), "{route}");
        }
        assert_eq!(routes.len(), ADMIN_ACTIONS.len());
    }
}
