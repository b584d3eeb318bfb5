//! What an error says to programs.

use serde_json::{Value, json};

use super::ApiError;

impl ApiError {
    /// Facts for programs; always an object.
    pub(super) fn details(&self) -> Value {
        match self {
            Self::BodyTooLarge { limit } => json!({ "limit_bytes": limit }),
            Self::BatchTooLarge { found, limit, .. } | Self::LimitTooLarge { found, limit } => {
                json!({ "found": found, "limit": limit })
            }
            Self::BodyTimeout { seconds } | Self::WorkTimeout { seconds } => {
                json!({ "limit_seconds": seconds })
            }
            Self::BodyTooSlow { bytes_per_second, seconds } => {
                json!({ "least_bytes_per_second": bytes_per_second, "limit_seconds": seconds })
            }
            Self::UnknownNode { key, freshness } => json!({ "node": key, "freshness": freshness }),
            Self::NotYetVisible { min_position, freshness } => {
                json!({ "min_position": min_position, "freshness": freshness })
            }
            Self::UnknownSource { known, .. } => json!({ "known": known }),
            Self::Forbidden { role, needed, .. } => json!({ "role": role, "needed": needed }),
            Self::TooFast { per_second, .. } => json!({ "limit_per_second": per_second }),
            Self::AllRejected { count, rejected } => json!({ "rejected": rejected, "rejected_count": count }),
            _ => json!({}),
        }
    }
}
