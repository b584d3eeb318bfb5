//! What operators do to a running daemon: have a checkpoint written, hold a source and let it go on, change how much
//! the log says. Asks for a key whose role is admin; a daemon without keys does it for its own machine alone.
//!
//! Every try is audited, refused ones too: a line of the log with the target [`AUDIT`], and a metric. Knows nothing of
//! how things are done: the daemon hands in an [`Operator`].

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tower_http::request_id::RequestId;
use utoipa::ToSchema;

use super::App;
use super::body::JsonBody;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::keys::Caller;

/// Target of the log's lines about what operators do.
pub const AUDIT: &str = "evergraph::audit";

/// Longest time that a checkpoint is waited for.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(600);

/// Does what operators ask for. Every call may block.
pub trait Operator: Send + Sync {
    /// Has everything written down that was learned so far, and waits until it is durable.
    ///
    /// # Errors
    /// When it could not be written, or not within `limit`.
    fn checkpoint(&self, limit: Duration) -> Result<CheckpointResponse, OperatorError>;

    /// Holds a source, or lets it go on, until somebody says otherwise, also through restarts.
    ///
    /// # Errors
    /// When there is no such source, or the decision cannot be kept.
    fn set_paused(&self, source: &str, paused: bool, by: &str) -> Result<SourceResponse, OperatorError>;

    /// How much the log says.
    fn log_level(&self) -> LogLevelResponse;

    /// Changes how much the log says, until the next start.
    ///
    /// # Errors
    /// When it is no level and no filter.
    fn set_log_level(&self, level: &str) -> Result<LogLevelResponse, OperatorError>;
}

/// Why something was not done.
#[derive(Clone, Debug, Error)]
pub enum OperatorError {
    /// No source is called so.
    #[error("no source is called {requested}; there are {}", .known.join(", "))]
    UnknownSource {
        /// What was asked for.
        requested: String,
        /// What there is.
        known: Vec<String>,
    },
    /// What is asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be done at this moment.
    #[error("{0}")]
    Failed(String),
}

/// A checkpoint that is durable.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CheckpointResponse {
    /// Its name, as `evergraph checkpoint restore` takes it.
    #[schema(example = "00000000000000012800.checkpoint")]
    pub name: String,
    /// It holds what was learned of every log position below.
    pub position: u64,
    /// Version of the weights that are served.
    pub model_version: u64,
}

/// What a source is to do.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SourceRequest {
    /// Whether it is held: it hands in nothing new until it is let go, also through restarts.
    pub paused: bool,
}

/// A source and whether an operator holds it.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SourceResponse {
    /// Its name.
    #[schema(example = "kafka:evergraph-events")]
    pub source: String,
    /// Whether an operator holds it.
    pub paused: bool,
    /// Name of the key that held it; null while it is not held.
    pub by: Option<String>,
    /// Since when, milliseconds since the Unix epoch; null while it is not held.
    pub since_unix_ms: Option<i64>,
}

/// How much the log is to say.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LogLevelRequest {
    /// error, warn, info, debug or trace, or a filter such as `info,evergraph::ingest=debug`.
    #[schema(example = "debug")]
    pub level: String,
}

/// How much the log says.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LogLevelResponse {
    /// The level or filter in effect.
    #[schema(example = "debug")]
    pub level: String,
    /// The one of the settings, which is in effect again after a restart.
    #[schema(example = "info")]
    pub configured: String,
}

/// What was done, in words, for the audit.
#[derive(Clone)]
struct Done(String);

fn done<T: Serialize>(what: String, response: T) -> Response {
    let mut response = Json(response).into_response();
    response.extensions_mut().insert(Done(what));
    response
}

/// Writes a checkpoint of everything that was learned so far. Answered once it is durable.
#[utoipa::path(
    post, path = "/v1/admin/checkpoints", tag = "admin",
    responses(
        (status = 200, description = "It is durable", body = CheckpointResponse),
        (status = 503, description = "It could not be written, or not in time", body = ErrorBody),
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

/// Holds a source, or lets it go on.
#[utoipa::path(
    put, path = "/v1/admin/sources/{source}", tag = "admin",
    params(
        ("source" = String, Path, description = "Name of the source, as `/v1/status` tells it", example = "http"),
    ),
    request_body = SourceRequest,
    responses(
        (status = 200, description = "How it stands", body = SourceResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 404, description = "No source is called so", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "The body says something else", body = ErrorBody),
        (status = 503, description = "The daemon starts or stops, or the decision could not be kept", body = ErrorBody),
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
    let what = if stands.paused { "is held" } else { "goes on" };
    Ok(done(format!("{} {what}", stands.source), stands))
}

/// How much the log says.
#[utoipa::path(
    get, path = "/v1/admin/log-level", tag = "admin",
    responses((status = 200, description = "The level in effect", body = LogLevelResponse))
)]
pub(super) async fn log_level(State(app): State<App>) -> Json<LogLevelResponse> {
    Json(app.state.operator.log_level())
}

/// Changes how much the log says, until the next start.
#[utoipa::path(
    put, path = "/v1/admin/log-level", tag = "admin",
    request_body = LogLevelRequest,
    responses(
        (status = 200, description = "The level in effect", body = LogLevelResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "No level and no filter", body = ErrorBody),
        (status = 503, description = "Too many ask at a time", body = ErrorBody),
    )
)]
pub(super) async fn set_log_level(
    State(app): State<App>,
    JsonBody(request): JsonBody<LogLevelRequest>,
) -> Result<Response, ApiError> {
    let stands = app.state.operator.set_log_level(&request.level)?;
    Ok(done(stands.level.clone(), stands))
}

/// Writes down who tried to do what, and how it went. Reading is no deed.
pub(super) async fn audit(State(app): State<App>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let action = request.extensions().get::<MatchedPath>().map_or("", |path| action_of(path.as_str()));
    let path = request.uri().path().to_owned();
    let from = request.extensions().get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
    let id = request.extensions().get::<RequestId>().cloned();
    let id = id.as_ref().and_then(|id| id.header_value().to_str().ok()).unwrap_or_default();

    let response = next.run(request).await;

    let error = response.extensions().get::<ApiError>();
    let who = match (response.extensions().get::<Caller>(), error) {
        (Some(caller), _) => caller.0.as_str(),
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
        (None, error) => error.map(ToString::to_string).unwrap_or_default(),
    };
    app.state.metrics.http.admin_actions.with_label_values(&[action, outcome]).inc();
    match outcome {
        "done" => {
            tracing::info!(target: AUDIT, who, from, action, outcome, detail, request_id = id, "{path}")
        }
        _ => tracing::warn!(target: AUDIT, who, from, action, outcome, detail, request_id = id, "{path}"),
    }
    response
}

/// The word for what a route does, in metrics and in the audit.
fn action_of(route: &str) -> &'static str {
    match route {
        "/v1/admin/checkpoints" => "checkpoint",
        "/v1/admin/sources/{source}" => "source",
        _ => "log_level",
    }
}

/// The other side of a request's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub SocketAddr);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ADMIN_ACTIONS;

    #[test]
    fn every_route_has_a_word_of_the_metric() {
        for route in ["/v1/admin/checkpoints", "/v1/admin/sources/{source}", "/v1/admin/log-level"] {
            assert!(ADMIN_ACTIONS.contains(&action_of(route)), "{route}");
        }
    }
}
