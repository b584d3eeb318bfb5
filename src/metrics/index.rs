//! The metrics of the live index.

use prometheus::{Gauge, IntGauge, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

group! {
    /// The live index; all are 0 where there is none.
    IndexMetrics, INDEX;
    rows: IntGauge = "index_rows" "Nodes with a row in the live index.";
    bytes: IntGauge = "index_bytes" "Bytes of rows in the live index.";
    pending_nodes: IntGauge = "index_pending_nodes"
        "Nodes whose rows in the live index are older than their last event or their deletion.";
    oldest_row_seconds: Gauge = "index_oldest_row_seconds"
        "Staleness of the most outdated row of the live index, in seconds; 0 if all are current.";
}
