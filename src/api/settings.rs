//! `POST /v1/admin/reload`: takes over changed settings. Audited like all [admin routes](super::admin).

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::admin::done;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};

/// A setting that was changed since it took effect.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChangedSetting {
    /// Its dotted key.
    #[schema(example = "learner.batch_events")]
    pub key: String,
    /// The value in effect before; null if there was none.
    #[schema(required = true)]
    pub before: Value,
    /// The value in the settings now; null if there is none.
    #[schema(required = true)]
    pub now: Value,
}

/// What a reload did.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ReloadResponse {
    /// Changed settings that are in effect now.
    pub applied: Vec<ChangedSetting>,
    /// Changed settings that take effect at the next start.
    pub waiting: Vec<ChangedSetting>,
}

/// Reads the settings again and takes over those that can change while the daemon runs, as SIGHUP does. Keys and
/// certificates are read again by themselves when their files change.
#[utoipa::path(
    post, path = "/v1/admin/reload", tag = "admin", operation_id = "reload_settings",
    responses(
        (status = 200, description = "What changed", body = ReloadResponse),
        (status = 422, description = "The settings have faults; those in effect stay", body = ErrorBody),
        (status = 503, description = "Starting or stopping", body = ErrorBody),
        (status = 504, description = "It took too long and may still be done", body = ErrorBody),
    )
)]
pub(super) async fn reload(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let limit = app.state.limits.request_timeout;
    let changes = blocking(Some(permit), limit, move || operator.reload()).await??;
    let what = format!("{} settings applied, {} waiting", changes.applied.len(), changes.waiting.len());
    Ok(done(what, changes))
}
