//! The metrics of the change feed.

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

group! {
    /// The change feed; all are 0 where there is none.
    FeedMetrics, FEED;
    rows: IntCounter = "feed_rows_total" "Embeddings delivered to the topic of the change feed.";
    index_rows: IntCounter = "feed_index_rows_total"
        "Embeddings delivered to the topic of the change feed that the live index computed.";
    deletions: IntCounter = "feed_deletions_total" "Deleted nodes delivered to the topic of the change feed.";
    failures: IntCounter = "feed_failures_total" "Deliveries of the change feed that failed and are tried again.";
    pending_nodes: IntGauge = "feed_pending_nodes"
        "Nodes whose embeddings have changed and are not delivered to the topic of the change feed.";
    behind_seconds: Gauge = "feed_behind_seconds"
        "For how long changes that the change feed has taken have not been delivered; 0: all are.";
    position: IntGauge = "feed_position"
        "Log position below which every event is in what the change feed has delivered.";
}
