//! Copies the numbers that are counted outside the metrics into them, whenever they are read.

use prometheus::IntCounter;

use super::StatusSource;
use super::status::{GraphStatus, IngestStatus};
use crate::metrics::Metrics;

/// Registers the copying.
pub(super) fn register(metrics: &Metrics, status: StatusSource, device: &str) {
    metrics.build.info.with_label_values(&[env!("CARGO_PKG_VERSION"), device]).set(1);
    metrics.on_scrape(Box::new(move |metrics| {
        let document = status.document();
        graph(metrics, &document.graph);
        ingest(metrics, &document.ingest);
        metrics.log.bytes.set(document.log.bytes.cast_signed());
        metrics.log.end_position.set(document.log.durable_position.cast_signed());
        metrics.train.events_behind.set(document.learner.events_behind.cast_signed());
    }));
}

fn graph(metrics: &Metrics, graph: &GraphStatus) {
    metrics.graph.nodes.set(graph.nodes.cast_signed());
    metrics.graph.edges.set(graph.edges.cast_signed());
    metrics.graph.blocks.set(graph.blocks.cast_signed());
    for (part, bytes) in &graph.bytes {
        metrics.graph.bytes.with_label_values(&[*part]).set(bytes.cast_signed());
    }
    if let Some(time) = graph.latest_event_time {
        metrics.ingest.watermark.set(time);
    }
}

fn ingest(metrics: &Metrics, ingest: &IngestStatus) {
    for (reason, &count) in &ingest.rejected_events {
        raise(&metrics.ingest.dead_letters.with_label_values(&[*reason]), count);
    }
    let mut paused = 0;
    for source in &ingest.sources {
        let events = |result: &str| metrics.ingest.events.with_label_values(&[source.name.as_str(), result]);
        raise(&events("accepted"), source.accepted_events);
        raise(&events("duplicate"), source.duplicate_events);
        raise(&events("rejected"), source.rejected_events);
        for state in super::sources::STATES {
            let now = i64::from(state == source.state);
            metrics.ingest.source_state.with_label_values(&[source.name.as_str(), state]).set(now);
        }
        for (partition, lag) in &source.lag_records {
            metrics.ingest.lag_records.with_label_values(&[partition.to_string()]).set(*lag);
        }
        paused |= i64::from(source.state == "paused");
        raise(&metrics.ingest.late_events.with_label_values(&["accept"]), source.late_accepted_events);
        raise(&metrics.ingest.late_events.with_label_values(&["drop"]), source.late_dropped_events);
    }
    metrics.ingest.paused.set(paused);
}

/// Brings a counter up to a total that is counted elsewhere.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
