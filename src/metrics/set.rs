//! Ways to set metrics to what is counted elsewhere.

use prometheus::{IntCounter, IntGauge, IntGaugeVec};

/// Brings `counter` to `total`, a count kept elsewhere that only grows. For use in scrape hooks, which
/// run one at a time; a smaller total than before changes nothing.
pub fn mirror(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// Sets a gauge to an unsigned number; numbers above `i64::MAX` stand at that bound.
pub fn set_count(gauge: &IntGauge, value: u64) {
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
}

/// Sets a gauge without labels that may be absent.
pub fn set_if_known(gauge: &IntGaugeVec, value: Option<i64>) {
    match value {
        Some(value) => gauge.with_label_values::<&str>(&[]).set(value),
        None => gauge.reset(),
    }
}

/// Marks `current` as the one state of `states` that holds for `subject`. For state sets such as
/// [`IngestMetrics::source_state`](super::IngestMetrics::source_state).
pub fn set_state(gauge: &IntGaugeVec, subject: &str, current: &str, states: &[&str]) {
    for &state in states {
        gauge.with_label_values(&[subject, state]).set(i64::from(state == current));
    }
}
