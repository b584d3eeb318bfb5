//! The metrics of the served model: the promotion gate, what computes responses, end-to-end freshness.

use prometheus::{Gauge, GaugeVec, Histogram, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

/// Buckets for end-to-end freshness, which grows to hours while the learner catches up.
const FRESHNESS_SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0];

group! {
    /// The promotion gate between the candidate and the published version.
    GateMetrics, GATE;
    decisions: IntCounterVec ["verdict"] = "gate_decisions_total"
        "Decisions of the promotion gate; verdict is promoted, held or rolled_back.";
    average_precision: GaugeVec ["of"] = "gate_average_precision"
        "Average precision over the batches of the last verdict; of is candidate, published, anchor or edgebank.";
    log_loss: GaugeVec ["of"] = "gate_log_loss"
        "Mean negative log-likelihood over these batches, in nats; of is candidate, published or anchor.";
}

group! {
    /// The published model and end-to-end freshness.
    ModelMetrics, MODEL;
    version: IntGauge = "model_version" "Version of the published weights.";
    score_source: IntGaugeVec ["source"] = "model_score_source"
        "1 for what scores pairs now, 0 for the others; source is model, candidate or baseline.";
    published_timestamp: Gauge = "model_published_timestamp_seconds"
        "When the published weights were published, seconds since the Unix epoch.";
    end_to_end_freshness: Histogram (FRESHNESS_SECONDS) = "end_to_end_freshness_seconds"
        "Time from the production of a live event (broker timestamp or receipt) until responses reflect it.";
}
