//! What the status says of a leader, or of one of its replicas.

use serde::Serialize;
use utoipa::ToSchema;

use super::status::FeedState;

/// A leader, or one of its replicas.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ClusterDocument {
    #[schema(value_type = ClusterRole)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub role: &'static str,
    #[schema(value_type = FeedState)]
    #[allow(missing_docs)] // words beside a reference would be a second schema
    pub state: &'static str,
    /// Why, in words; may be empty.
    pub detail: String,
    /// Where the leader takes events; may be empty.
    pub leader: String,
    /// Log position below which frames are shipped, or received.
    pub frames_position: u64,
    /// Log position of the learned state that was shipped, or applied, last; null before the first.
    #[schema(required = true)]
    pub states_position: Option<u64>,
    /// Time since then, seconds; before the first, since the start.
    pub staleness_seconds: f64,
    /// Turns that failed since the start.
    #[serde(skip)]
    pub failures: u64,
}

/// What a daemon is among others.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "described to clients, never made")]
pub enum ClusterRole {
    /// It takes events, learns, and ships both to its replicas.
    Leader,
    /// It serves what a leader has shipped.
    Replica,
}
