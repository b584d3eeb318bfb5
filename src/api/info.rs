//! What runs and what it accepts: the response of `GET /v1/info`, by which a client sizes its requests.

use serde::Serialize;
use utoipa::ToSchema;

use super::ApiLimits;
use super::key::KEY_BYTES_MAX;
use crate::event;

/// What runs.
#[derive(Clone, Debug)]
pub struct Info {
    /// Its version.
    pub version: String,
    /// The device it computes on, with the reason for that choice.
    pub device: String,
    /// The kind of model.
    pub model: String,
    /// Length of an embedding.
    pub embedding_dimension: usize,
    /// Length of the feature row of an edge; 0: edges carry none.
    pub edge_feature_dimension: usize,
    /// Length of the feature row of a node; 0: nodes carry none.
    pub node_feature_dimension: usize,
    /// Unit of event times; `None` where the settings do not say.
    pub time_unit: Option<TimeUnit>,
    /// When the process started, milliseconds since the Unix epoch.
    pub started_unix_ms: i64,
}

/// The unit of event times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl From<event::TimeUnit> for TimeUnit {
    fn from(unit: event::TimeUnit) -> Self {
        match unit {
            event::TimeUnit::Seconds => Self::Seconds,
            event::TimeUnit::Milliseconds => Self::Milliseconds,
            event::TimeUnit::Microseconds => Self::Microseconds,
            event::TimeUnit::Nanoseconds => Self::Nanoseconds,
        }
    }
}

/// What runs and what it accepts.
#[derive(Debug, Serialize, ToSchema)]
pub struct InfoResponse {
    /// Name of the program.
    #[schema(example = "evergraph")]
    name: &'static str,
    /// Its version.
    version: String,
    /// The device it computes on, with the reason for that choice.
    device: String,
    /// The kind of model.
    #[schema(example = "tgn")]
    model: String,
    /// Length of an embedding.
    embedding_dimension: usize,
    /// Length of the feature row of an edge; 0: edges carry none.
    edge_feature_dimension: usize,
    /// Length of the feature row of a node; 0: nodes carry none.
    node_feature_dimension: usize,
    /// Unit of event times, as the setting `stream.time_unit` says; null where it does not.
    #[schema(required = true)]
    time_unit: Option<TimeUnit>,
    /// When the process started, milliseconds since the Unix epoch.
    started_unix_ms: i64,
    /// What a request may ask for.
    limits: Limits,
}

/// What a request may ask for.
#[derive(Debug, Serialize, ToSchema)]
struct Limits {
    /// Largest request body.
    body_bytes_max: usize,
    /// Most nodes, pairs, neighbors or events in one request.
    batch_items_max: usize,
    /// Longest node key, edge type or idempotency key.
    text_bytes_max: usize,
    /// Longest `wait_ms`.
    wait_ms_max: u64,
    /// Longest time for a body to arrive and, once it has, for the work on the request.
    request_timeout_ms: u64,
    /// Most concurrent queries, and separately most concurrent pushes; more get 503.
    concurrent_requests_max: usize,
}

impl InfoResponse {
    pub(super) fn of(info: &Info, limits: &ApiLimits) -> Self {
        let info = info.clone();
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            name: "evergraph",
            version: info.version,
            device: info.device,
            model: info.model,
            embedding_dimension: info.embedding_dimension,
            edge_feature_dimension: info.edge_feature_dimension,
            node_feature_dimension: info.node_feature_dimension,
            time_unit: info.time_unit,
            started_unix_ms: info.started_unix_ms,
            limits: Limits {
                body_bytes_max: limits.body_bytes,
                batch_items_max: limits.batch_items,
                text_bytes_max: KEY_BYTES_MAX,
                wait_ms_max: ms(limits.wait),
                request_timeout_ms: ms(limits.request_timeout),
                concurrent_requests_max: limits.concurrent_queries,
            },
        }
    }
}
