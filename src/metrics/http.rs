//! The metrics of the HTTP interface.

use prometheus::{HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

/// Buckets for request latency.
const REQUEST_SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0];
/// Buckets for items in a request.
const ITEM_COUNTS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0];

group! {
    /// The HTTP interface.
    HttpMetrics, HTTP;
    requests: IntCounterVec ["route", "code"] = "http_requests_total"
        "HTTP requests by route template and status code.";
    request_duration: HistogramVec ["route"] (REQUEST_SECONDS) = "http_request_duration_seconds"
        "Request latency, from the end of the request, its body included, to the header of the response.";
    inflight_requests: IntGauge = "http_inflight_requests" "Requests in flight now.";
    admin_actions: IntCounterVec ["action", "outcome"] = "admin_actions_total"
        "Admin requests; action is the operation, as the audit log names it, outcome is done, refused or failed.";
    rejected: IntCounterVec ["reason"] = "http_rejected_total"
        "Requests rejected by a limit; reason is the error_type of the response, for example overloaded or timeout.";
    authentication_failures: IntCounterVec ["reason"] = "http_authentication_failures_total"
        "Requests refused for who sent them; reason is missing, unknown or role of a key, or not_local without keys.";
    refused_connections: IntCounterVec ["reason"] = "http_refused_connections_total"
        "Connections closed by the daemon: handshake, handshake_timeout, header_timeout, malformed, response_timeout.";
    open_connections: IntGauge = "http_open_connections" "Open connections of all addresses.";
    held_bytes: IntGaugeVec ["direction"] = "http_held_bytes"
        "Bytes of large bodies in memory; direction is request, or response for those not sent yet.";
    request_items: HistogramVec ["kind"] (ITEM_COUNTS) = "http_request_items"
        "Items of a request; kind is nodes, pairs, src or vectors.";
    pass_items: HistogramVec ["kind"] (ITEM_COUNTS) = "http_pass_items"
        "Items that one pass of the model computed, for one or several requests; kind is embeddings, links, top or \
         similar.";
    certificate_expiry: IntGaugeVec = "http_certificate_expiry_timestamp_seconds"
        "When the TLS certificate expires, seconds since the Unix epoch; absent without one.";
}

/// Admin actions, the label of [`HttpMetrics::admin_actions`].
pub const ADMIN_ACTIONS: [&str; 10] = [
    "checkpoint",
    "source",
    "seek",
    "reload",
    "log_level",
    "promote",
    "rollback",
    "training",
    "snapshot",
    "cut_log",
];

impl HttpMetrics {
    /// Series whose labels are known beforehand start at 0.
    pub(super) fn start_closed_lists(&self) {
        for kind in ["nodes", "pairs", "src", "vectors"] {
            self.request_items.with_label_values(&[kind]);
        }
        for action in ADMIN_ACTIONS {
            for outcome in ["done", "refused", "failed"] {
                self.admin_actions.with_label_values(&[action, outcome]);
            }
        }
        for reason in [
            "overloaded",
            "queue_full",
            "rate_limited",
            "body_too_large",
            "batch_too_large",
            "timeout",
            "too_many_transfers",
            "outcome_unknown",
            "body_timeout",
        ] {
            self.rejected.with_label_values(&[reason]);
        }
    }
}
