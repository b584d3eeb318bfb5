//! Copies counts that are kept outside the metrics into them at every scrape.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::StatVfs;

use super::memory_limit::limit_bytes;
use super::{StatusSource, backup};
use crate::api::{
    ClusterDocument, FeedDocument, GraphStatus, Health, IngestStatus, SourceReport, TierStatus,
};
use crate::config::Config;
use crate::ingest::rejection::Reason;
use crate::metrics::{Metrics, mirror, set_count, set_if_known, set_state};
use crate::serving::QueryEngine;

/// Registers the scrape hook.
pub(super) fn register(
    metrics: &Metrics,
    (status, engine): (StatusSource, Arc<QueryEngine>),
    device: &str,
    machine: Machine,
) {
    metrics.build.info.with_label_values(&[env!("CARGO_PKG_VERSION"), device]).set(1);
    metrics.on_scrape(Box::new(move |metrics| {
        let document = status.document();
        graph(metrics, &document.graph);
        tiers(metrics, &document.memory);
        ingest(metrics, &document.ingest);
        set_count(&metrics.log.bytes, document.log.bytes);
        set_count(&metrics.log.end_position, document.log.durable_position);
        // What a replica has indexed and not applied is no learner's lag.
        let learns = document.cluster.as_ref().is_none_or(|cluster| cluster.role != "replica");
        set_count(&metrics.train.lag_events, if learns { document.learner.lag_events } else { 0 });
        index(metrics, &engine);
        document.feed.iter().for_each(|document| feed(metrics, document));
        document.cluster.iter().for_each(|document| cluster(metrics, document));
        machine.report(metrics);
    }));
}

/// What the daemon runs on, and whether it serves.
pub(super) struct Machine {
    health: Arc<Health>,
    data: PathBuf,
    memory_limit: Option<u64>,
}

impl Machine {
    pub(super) fn new(config: &Config, health: Arc<Health>) -> Self {
        Self { health, data: config.data.dir.clone(), memory_limit: limit_bytes() }
    }

    fn report(&self, metrics: &Metrics) {
        let known = |bytes: u64| i64::try_from(bytes).ok();
        metrics.build.ready.set(i64::from(self.health.readiness().passes()));
        set_if_known(&metrics.build.memory_limit, self.memory_limit.and_then(known));
        let disk = rustix::fs::statvfs(&self.data).ok();
        let bytes = |blocks: fn(&StatVfs) -> u64| disk.as_ref().map(|disk| blocks(disk) * disk.f_frsize);
        set_if_known(&metrics.build.disk_size, bytes(|disk| disk.f_blocks).and_then(known));
        set_if_known(&metrics.build.disk_free, bytes(|disk| disk.f_bavail).and_then(known));
        set_if_known(&metrics.build.last_backup, backup::last_unix_seconds(&self.data));
    }
}

fn index(metrics: &Metrics, engine: &QueryEngine) {
    let Some(index) = &engine.index else { return };
    let report = index.report(&engine.progress, &engine.states.touched);
    set_count(&metrics.index.rows, report.rows as u64);
    set_count(&metrics.index.bytes, report.bytes);
    set_count(&metrics.index.pending_nodes, report.state.pending_nodes as u64);
    metrics.index.oldest_row_seconds.set(report.state.oldest_row_seconds);
}

fn cluster(metrics: &Metrics, document: &ClusterDocument) {
    let cluster = &metrics.cluster;
    set_count(&cluster.frames_position, document.frames_position);
    set_count(&cluster.states_position, document.states_position.unwrap_or_default());
    cluster.staleness_seconds.set(document.staleness_seconds);
    mirror(&cluster.failures, document.failures);
}

fn feed(metrics: &Metrics, document: &FeedDocument) {
    let feed = &metrics.feed;
    mirror(&feed.rows, document.delivered_rows);
    mirror(&feed.index_rows, document.delivered_index_rows);
    mirror(&feed.deletions, document.delivered_deletions);
    mirror(&feed.failures, document.failures);
    set_count(&feed.pending_nodes, document.pending_nodes);
    feed.behind_seconds.set(document.behind_seconds);
    set_count(&feed.position, document.delivered_position.unwrap_or_default());
}

fn graph(metrics: &Metrics, graph: &GraphStatus) {
    set_count(&metrics.graph.nodes, graph.nodes);
    set_count(&metrics.graph.edges, graph.edges);
    mirror(&metrics.graph.expired_edges, graph.expired_edges);
    mirror(&metrics.graph.unknown_type_edges, graph.unknown_type_edges);
    set_count(&metrics.graph.blocks, graph.blocks);
    for (part, bytes) in &graph.bytes {
        set_count(&metrics.graph.bytes.with_label_values(&[*part]), *bytes);
    }
    set_if_known(&metrics.ingest.latest_event_time, graph.latest_event_time);
    set_if_known(&metrics.ingest.watermark, graph.watermark);
}

fn tiers(metrics: &Metrics, stores: &BTreeMap<&'static str, TierStatus>) {
    let spill = &metrics.spill;
    for (&store, status) in stores {
        set_count(&spill.budget.with_label_values(&[store]), status.budget_bytes);
        set_count(&spill.bytes.with_label_values(&[store, "memory"]), status.memory_bytes);
        set_count(&spill.bytes.with_label_values(&[store, "disk"]), status.disk_bytes);
        mirror(&spill.reads.with_label_values(&[store]), status.reads);
        mirror(&spill.failures.with_label_values(&[store]), status.failures);
        spill.degraded.with_label_values(&[store]).set(i64::from(status.failing.is_some()));
    }
}

fn ingest(metrics: &Metrics, ingest: &IngestStatus) {
    for (reason, &count) in &ingest.rejected_events {
        mirror(&metrics.ingest.rejected_events.with_label_values(&[*reason]), count);
    }
    // What a source no longer reports is gone.
    metrics.ingest.lag_records.reset();
    for source in &ingest.sources {
        let name = source.name.as_str();
        let events = |result: &str| metrics.ingest.events.with_label_values(&[name, result]);
        mirror(&events("accepted"), source.accepted_events);
        mirror(&events("duplicate"), source.duplicate_events);
        mirror(&events("rejected"), source.rejected_events);
        mirror(&events("ignored"), source.ignored_events);
        mirror(&metrics.ingest.dead_letters.with_label_values(&[name]), source.dead_letters);
        mirror(&metrics.ingest.reconnects.with_label_values(&[name]), source.reconnects);
        mirror(&metrics.ingest.token_failures.with_label_values(&[name]), source.token_failures);
        set_state(&metrics.ingest.source_state, name, source.state, &super::sources::STATES);
        for (partition, lag) in &source.lag_records {
            metrics.ingest.lag_records.with_label_values(&[name, &partition.to_string()]).set(*lag);
        }
    }
    let late = |action: &str| metrics.ingest.late_events.with_label_values(&[action]);
    mirror(&late("accept"), ingest.sources.iter().map(|source| source.late_accepted_events).sum());
    mirror(&late("drop"), ingest.sources.iter().map(|source| source.late_dropped_events).sum());
    mirror(&late("dead_letter"), ingest.rejected_events.get(Reason::TooLate.as_str()).copied().unwrap_or(0));
    // Sources paused by an operator do not count: all others pause only when the log does not keep up.
    let blocked = |source: &SourceReport| source.state == "paused" && source.paused_by.is_none();
    metrics.ingest.paused.set(i64::from(ingest.sources.iter().any(blocked)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(lag: &[(i32, i64)]) -> IngestStatus {
        let report = SourceReport {
            name: "kafka:events".to_owned(),
            state: "running",
            detail: String::new(),
            received_events: 0,
            accepted_events: 0,
            duplicate_events: 0,
            rejected_events: 0,
            late_accepted_events: 0,
            late_dropped_events: 0,
            ignored_events: 0,
            dead_letters: 0,
            lag_records: lag.iter().copied().collect(),
            paused_by: None,
            paused_since_unix_ms: None,
            reconnects: 0,
            token_failures: 0,
            rejected_by_reason: Vec::new(),
        };
        IngestStatus {
            accepted_events: 0,
            duplicate_events: 0,
            rejected_events: BTreeMap::new(),
            queue_batches: 0,
            queue_batches_max: 1,
            sources: vec![report],
            positions: Vec::new(),
        }
    }

    fn text(metrics: &Metrics) -> String {
        String::from_utf8(metrics.encode().unwrap()).unwrap()
    }

    #[test]
    fn a_partition_that_was_taken_away_has_no_lag_here() {
        let metrics = Metrics::new();
        let lag = |partition, lag| {
            let labels = format!("partition=\"{partition}\",source=\"kafka:events\"");
            format!("evergraph_ingest_lag_records{{{labels}}} {lag}\n")
        };
        ingest(&metrics, &source(&[(0, 7), (1, 9)]));
        assert!(
            text(&metrics).contains(&lag(0, 7)) && text(&metrics).contains(&lag(1, 9)),
            "{}",
            text(&metrics)
        );
        ingest(&metrics, &source(&[(1, 4)]));
        assert!(!text(&metrics).contains("partition=\"0\"") && text(&metrics).contains(&lag(1, 4)));
    }

    #[test]
    fn the_watermark_equals_that_of_responses_and_is_absent_without_one() {
        let metrics = Metrics::new();
        let mut status = GraphStatus {
            nodes: 0,
            edges: 0,
            late_edges: 0,
            expired_edges: 0,
            unknown_type_edges: 0,
            blocks: 0,
            bytes: BTreeMap::new(),
            latest_event_time: Some(90),
            watermark: Some(80),
        };
        graph(&metrics, &status);
        assert!(text(&metrics).contains("\nevergraph_stream_watermark 80\n"), "{}", text(&metrics));
        assert!(text(&metrics).contains("\nevergraph_stream_latest_event_time 90\n"));
        status.watermark = None;
        graph(&metrics, &status);
        assert!(!text(&metrics).contains("evergraph_stream_watermark"), "{}", text(&metrics));
    }
}
