//! `POST /v1/admin/sources/{source}/seek`: takes a paused Kafka source to another position. Audited like all
//! [admin routes](super::admin).

use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::admin::done;
use super::body::JsonBody;
use super::envelope::{Permit, blocking};
use super::error::{ApiError, ErrorBody};

/// Longest wait for brokers, the end of the source, and the log.
const LIMIT: Duration = Duration::from_secs(90);

/// Where a source is to read on.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeekRequest {
    /// earliest, latest, `offset:N`, or `time:MS`: the first message that is no older, milliseconds since the Unix
    /// epoch.
    #[schema(example = "offset:1200")]
    pub to: String,
    /// Only this partition; all without it.
    pub partition: Option<i32>,
    /// Whether to report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a seek does to one partition.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PartitionSeek {
    /// The partition.
    pub partition: i32,
    /// The next offset to read before the seek; null if nothing of the partition was read.
    #[schema(required = true)]
    pub from: Option<i64>,
    /// The next offset to read after it.
    pub to: i64,
    /// Number of offsets that are never read.
    pub skipped: i64,
    /// Number of offsets that are read again: their events are stored and learned twice, but for those with idempotency
    /// keys that are remembered.
    pub read_again: i64,
    /// The oldest offset that the broker has.
    pub broker_earliest: i64,
    /// One past the newest offset that the broker has.
    pub broker_latest: i64,
}

/// A seek.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SeekResponse {
    /// Name of the source.
    #[schema(example = "kafka:evergraph-events")]
    pub source: String,
    /// Whether it was carried out; with `dry_run` it was not.
    pub done: bool,
    /// The partitions that were, or are, elsewhere.
    pub partitions: Vec<PartitionSeek>,
}

/// Moves a Kafka source that is paused or has failed to another position. Responds once that is durable; the source
/// stays paused until it is resumed, and one that has failed starts again.
#[utoipa::path(
    post, path = "/v1/admin/sources/{source}/seek", tag = "admin", operation_id = "seek_source",
    params(
        ("source" = String, Path, description = "Name of the source, as in `/v1/status`", example = "kafka:events"),
    ),
    request_body = SeekRequest,
    responses(
        (status = 200, description = "What was done, or would be", body = SeekResponse),
        (status = 400, description = "The body cannot be read", body = ErrorBody),
        (status = 404, description = "No source has this name", body = ErrorBody),
        (status = 408, description = "The body did not arrive in time", body = ErrorBody),
        (status = 413, description = "Too many bytes", body = ErrorBody),
        (status = 415, description = "No JSON", body = ErrorBody),
        (status = 422, description = "It is running, is no Kafka source, or has no such position", body = ErrorBody),
        (status = 503, description = "Starting, stopping, or no broker responds: no change", body = ErrorBody),
        (status = 504, description = "It may have been done", body = ErrorBody),
    )
)]
pub(super) async fn seek(
    State(app): State<App>,
    Extension(permit): Extension<Permit>,
    Path(source): Path<String>,
    JsonBody(request): JsonBody<SeekRequest>,
) -> Result<Response, ApiError> {
    let operator = app.state.operator.clone();
    let change = move || operator.seek(&source, &request);
    let sought = blocking(Some(permit), LIMIT, change).await??;
    let what = if sought.done { "seeks in" } else { "would seek in" };
    Ok(done(format!("{} {what} {} partitions", sought.source, sought.partitions.len()), sought))
}
