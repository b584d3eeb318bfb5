//! Copies the numbers that are counted outside the metrics into them, whenever they are read.

use super::StatusSource;
use super::status::{GraphStatus, IngestStatus};
use crate::ingest::rejection::Reason;
use crate::metrics::{Metrics, mirror, set_count, set_state};

/// Registers the copying.
pub(super) fn register(metrics: &Metrics, status: StatusSource, device: &str) {
    metrics.build.info.with_label_values(&[env!("CARGO_PKG_VERSION"), device]).set(1);
    metrics.on_scrape(Box::new(move |metrics| {
        let document = status.document();
        graph(metrics, &document.graph);
        ingest(metrics, &document.ingest);
        set_count(&metrics.log.bytes, document.log.bytes);
        set_count(&metrics.log.end_position, document.log.durable_position);
        set_count(&metrics.train.events_behind, document.learner.events_behind);
    }));
}

fn graph(metrics: &Metrics, graph: &GraphStatus) {
    set_count(&metrics.graph.nodes, graph.nodes);
    set_count(&metrics.graph.edges, graph.edges);
    set_count(&metrics.graph.blocks, graph.blocks);
    for (part, bytes) in &graph.bytes {
        set_count(&metrics.graph.bytes.with_label_values(&[*part]), *bytes);
    }
    if let Some(time) = graph.latest_event_time {
        metrics.ingest.watermark.set(time);
    }
}

fn ingest(metrics: &Metrics, ingest: &IngestStatus) {
    for (reason, &count) in &ingest.rejected_events {
        mirror(&metrics.ingest.rejected_events.with_label_values(&[*reason]), count);
    }
    for source in &ingest.sources {
        let name = source.name.as_str();
        let events = |result: &str| metrics.ingest.events.with_label_values(&[name, result]);
        mirror(&events("accepted"), source.accepted_events);
        mirror(&events("duplicate"), source.duplicate_events);
        mirror(&events("rejected"), source.rejected_events);
        mirror(&metrics.ingest.dead_letters.with_label_values(&[name]), source.dead_letters);
        set_state(&metrics.ingest.source_state, name, source.state, &super::sources::STATES);
        for (partition, lag) in &source.lag_records {
            metrics.ingest.lag_records.with_label_values(&[partition.to_string()]).set(*lag);
        }
    }
    let late = |action: &str| metrics.ingest.late_events.with_label_values(&[action]);
    mirror(&late("accept"), ingest.sources.iter().map(|source| source.late_accepted_events).sum());
    mirror(&late("drop"), ingest.sources.iter().map(|source| source.late_dropped_events).sum());
    mirror(&late("dead_letter"), ingest.rejected_events.get(Reason::TooLate.as_str()).copied().unwrap_or(0));
    metrics.ingest.paused.set(i64::from(ingest.sources.iter().any(|source| source.state == "paused")));
}
