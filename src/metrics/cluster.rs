//! The metrics of a leader and of its replicas.

use prometheus::{Gauge, IntCounter, IntGauge, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

group! {
    /// Replication; all are 0 where the daemon stands alone.
    ClusterMetrics, CLUSTER;
    frames_position: IntGauge = "cluster_frames_position"
        "Log position below which a leader has shipped frames, or a replica has received them.";
    states_position: IntGauge = "cluster_states_position"
        "Log position of the learned state that a leader has shipped, or a replica has applied, last.";
    staleness_seconds: Gauge = "cluster_staleness_seconds"
        "Time since a learned state was shipped, or applied, last; at least each second one is shipped.";
    failures: IntCounter = "cluster_failures_total"
        "Turns of shipping or receiving that failed and are tried again.";
}
