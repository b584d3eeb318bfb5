//! Examples of the OpenAPI document: requests, and what a daemon returned. A test sends each request to a daemon and
//! compares.

use serde_json::Value;

/// Lists files of examples by the names of their operations.
macro_rules! files {
    ($($operation:literal),+ $(,)?) => {
        &[$(($operation, include_str!(concat!("examples/", $operation, ".json")))),+]
    };
}

/// A file for each operation, and the two shapes of an error.
const FILES: &[(&str, &str)] = files![
    "push_events",
    "compute_embeddings",
    "score_links",
    "find_top_links",
    "find_similar_nodes",
    "compute_map",
    "list_anomalies",
    "get_node",
    "list_neighbors",
    "get_status",
    "get_info",
    "get_metrics",
    "check_liveness",
    "check_readiness",
    "check_health",
    "create_checkpoint",
    "update_source",
    "seek_source",
    "reload_settings",
    "get_log_level",
    "set_log_level",
    "promote_model",
    "roll_back_model",
    "update_training",
    "create_snapshot",
    "cut_log",
    "error",
    "problem",
];

/// The example of an operation: an object with `response`, and `request` where it has a body; null where there is none.
pub(super) fn of(operation: &str) -> Value {
    let file = FILES.iter().find(|(name, _)| *name == operation);
    // A test reads them all.
    file.and_then(|(_, text)| serde_json::from_str(text).ok()).unwrap_or_default()
}
