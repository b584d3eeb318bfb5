//! Admin routes for what a daemon otherwise does by itself: which version of the weights is served, whether weights are
//! trained, snapshots, and the length of the log. Audited like all [admin routes](super::admin).

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin::{OperatorError, done};
use super::body::JsonBody;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};
use super::keys::Caller;

/// Longest wait for a snapshot, or for a decision and its checkpoint.
const LIMIT: Duration = Duration::from_secs(600);

/// Which version to serve.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromotionRequest {
    /// The version: the candidate, the previous one, or the anchor of the gate. Without it, the candidate as it is now.
    #[schema(example = 1200)]
    pub version: Option<u64>,
}

/// The version that is served, by an operator's decision.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelResponse {
    /// The version that is served now.
    #[schema(example = 1200)]
    pub model_version: u64,
    /// The version that was served before; null before the first promotion.
    #[schema(required = true)]
    pub replaced_version: Option<u64>,
    /// Version of the weights that are trained.
    pub candidate_version: u64,
    /// Every log position below is learned.
    pub position: u64,
    /// Whether node memory went back, too: never. It holds every event below `position`, as the weights of their time
    /// wrote it, whichever version is served.
    pub memory_restored: bool,
}

/// The requested state of training.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrainingRequest {
    /// Whether it is paused: events are remembered and served, and no weights are trained on them until it is resumed,
    /// also across restarts.
    pub paused: bool,
}

/// Whether weights are trained.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TrainingResponse {
    /// Whether an operator paused it.
    pub paused: bool,
    /// Name of the key that paused it; null while it is not paused.
    #[schema(required = true)]
    pub by: Option<String>,
    /// Since when, milliseconds since the Unix epoch; null while it is not paused.
    #[schema(required = true)]
    pub since_unix_ms: Option<i64>,
}

/// A snapshot that is durable.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SnapshotResponse {
    /// Its name, a folder in `snapshots` of the data directory.
    #[schema(example = "00000000000000012800.snapshot")]
    pub name: String,
    /// It holds every log position below.
    pub position: u64,
}

/// The beginning of the log.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct LogCutResponse {
    /// The first position that the log has.
    pub first_position: u64,
    /// Bytes of the log on disk.
    pub bytes: u64,
}

/// Carries out these requests. Every call may block.
pub trait Decisions: Send + Sync {
    /// Publishes a version of the weights; without one, the candidate.
    ///
    /// # Errors
    /// When it is served already or is not at hand, there is no gate, or it could not be made durable within `limit`.
    fn promote(&self, version: Option<u64>, limit: Duration) -> Result<ModelResponse, OperatorError>;

    /// Publishes the previous version again, and trains on from it.
    ///
    /// # Errors
    /// As [`promote`](Self::promote), or when there is no previous version.
    fn roll_back(&self, limit: Duration) -> Result<ModelResponse, OperatorError>;

    /// Pauses or resumes training until the next such request, also across restarts.
    ///
    /// # Errors
    /// When the settings do not train, or the decision cannot be stored.
    fn set_training_paused(&self, paused: bool, by: &str) -> Result<TrainingResponse, OperatorError>;

    /// Writes a snapshot, unless nothing came since the last one, and waits until it is durable.
    ///
    /// # Errors
    /// When it could not be written, or not within `limit`.
    fn snapshot(&self, limit: Duration) -> Result<SnapshotResponse, OperatorError>;

    /// Cuts off the log what no kept snapshot and no kept checkpoint needs.
    ///
    /// # Errors
    /// When there are not two snapshots yet, or it could not be cut within `limit`.
    fn cut_log(&self, limit: Duration) -> Result<LogCutResponse, OperatorError>;
}

/// Publishes a version of the weights that are at hand: the candidate, the previous version or the anchor. Responds
/// once the
/// decision survives a crash. The gate goes on from it.
#[utoipa::path(
    post, path = "/v1/admin/model/promote", tag = "admin", operation_id = "promote_model",
    request_body = PromotionRequest,
    responses(
        (status = 200, description = "It is served", body = ModelResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "It is served already or is not at hand, or there is no gate", body = ErrorBody),
        (status = 503, description = "Starting or stopping; nothing was changed", body = ErrorBody),
        (status = 504, description = "It may have been done, or is not durable", body = ErrorBody),
    )
)]
pub(super) async fn promote(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    JsonBody(request): JsonBody<PromotionRequest>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let stands =
        blocking(Some(permit), 2 * LIMIT, move || operator.promote(request.version, LIMIT)).await??;
    Ok(done(format!("version {} is served", stands.model_version), stands))
}

/// Publishes the previous version of the weights again, and trains on from it. Node memory is not restored. Responds
/// once the decision survives a crash.
#[utoipa::path(
    post, path = "/v1/admin/model/rollback", tag = "admin", operation_id = "roll_back_model",
    responses(
        (status = 200, description = "It is served", body = ModelResponse),
        (status = 422, description = "There is no previous version, or no gate", body = ErrorBody),
        (status = 503, description = "Starting or stopping; nothing was changed", body = ErrorBody),
        (status = 504, description = "It may have been done, or is not durable", body = ErrorBody),
    )
)]
pub(super) async fn roll_back(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let stands = blocking(Some(permit), 2 * LIMIT, move || operator.roll_back(LIMIT)).await??;
    Ok(done(format!("version {} is served again", stands.model_version), stands))
}

/// Pauses or resumes training.
#[utoipa::path(
    put, path = "/v1/admin/training", tag = "admin", operation_id = "update_training",
    request_body = TrainingRequest,
    responses(
        (status = 200, description = "Its state", body = TrainingResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "The settings do not train, or the body has another shape", body = ErrorBody),
        (status = 503, description = "Starting, stopping, or the decision could not be stored", body = ErrorBody),
        (status = 504, description = "It took too long and may still be done", body = ErrorBody),
    )
)]
pub(super) async fn training(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Extension(caller): Extension<Caller>,
    JsonBody(request): JsonBody<TrainingRequest>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let change = move || operator.set_training_paused(request.paused, &caller.0);
    let stands = blocking(Some(permit), app.state.limits.request_timeout, change).await??;
    let what = if stands.paused { "training is paused" } else { "training is resumed" };
    Ok(done(what.to_owned(), stands))
}

/// Writes a snapshot of graph, names and rows. Responds once it is durable.
#[utoipa::path(
    post, path = "/v1/admin/snapshots", tag = "admin", operation_id = "create_snapshot",
    responses(
        (status = 200, description = "It is durable", body = SnapshotResponse),
        (status = 422, description = "The log has no events yet", body = ErrorBody),
        (status = 503, description = "It could not be written, or not in time", body = ErrorBody),
        (status = 504, description = "It took too long and may still be written", body = ErrorBody),
    )
)]
pub(super) async fn snapshot(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let made = blocking(Some(permit), 2 * LIMIT, move || operator.snapshot(LIMIT)).await??;
    Ok(done(made.name.clone(), made))
}

/// Cuts off the log what no kept snapshot and no kept checkpoint needs, whatever `log.retention_bytes` is. What is cut
/// off cannot be replayed any more.
#[utoipa::path(
    post, path = "/v1/admin/log/cut", tag = "admin", operation_id = "cut_log",
    responses(
        (status = 200, description = "The log as it is now", body = LogCutResponse),
        (
            status = 422,
            description = "There are not two snapshots yet, or this is a replica, whose log is not cut",
            body = ErrorBody
        ),
        (status = 503, description = "It could not be cut, or not in time", body = ErrorBody),
        (status = 504, description = "It took too long and may still be cut", body = ErrorBody),
    )
)]
pub(super) async fn cut_log(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let cut = blocking(Some(permit), 2 * LIMIT, move || operator.cut_log(LIMIT)).await??;
    Ok(done(format!("the log begins at position {}", cut.first_position), cut))
}
