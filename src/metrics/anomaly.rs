//! The metrics of how unusual events are.

use prometheus::{Histogram, IntCounter, Registry};

use super::MetricInfo;
use super::handle::{Handle, Spec};

/// Nats; 0.69 is a score of a half.
const SURPRISE: [f64; 11] = [0.01, 0.03, 0.1, 0.3, 0.69, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0];

group! {
    /// How unusual events are.
    AnomalyMetrics, ANOMALY;
    judged: IntCounter = "anomaly_judged_events_total"
        "Events that got a percentile: the share of earlier events that surprised the model less.";
    unusual: IntCounter = "anomaly_unusual_events_total"
        "Judged events whose percentile is anomalies.percentile_min or higher.";
    unscored: IntCounter = "anomaly_unscored_events_total"
        "Events that the learner did not score, because they got no gradient step and anomalies.score_all is false.";
    left_out: IntCounter = "anomaly_left_out_events_total"
        "Judged events that the topic of anomalies had no room for.";
    delivered: IntCounter = "anomaly_delivered_events_total" "Judged events delivered to the topic of anomalies.";
    surprise: Histogram (SURPRISE) = "anomaly_surprise_nats"
        "Surprise of events: -ln of the score of their pairs before they were learned.";
}
