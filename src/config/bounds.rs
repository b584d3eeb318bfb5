//! Numbers with a least or a greatest value that follows from nothing else in the settings.

use super::Config;

/// A number of the settings.
type Number = fn(&Config) -> u64;

/// Numbers of which there must be at least one.
pub(super) const AT_LEAST_ONE: [(&str, Number); 40] = [
    ("api.connections_max", |config| wide(config.api.connections_max)),
    ("api.header_timeout_ms", |config| config.api.header_timeout_ms),
    ("api.bytes_per_second_min", |config| config.api.bytes_per_second_min.into()),
    ("api.body_pause_ms_max", |config| config.api.body_pause_ms_max),
    ("api.late_bodies_max", |config| wide(config.api.late_bodies_max)),
    ("api.body_bytes_max", |config| wide(config.api.body_bytes_max)),
    ("api.batch_items_max", |config| wide(config.api.batch_items_max)),
    ("api.concurrent_requests_max", |config| wide(config.api.concurrent_requests_max)),
    ("api.request_timeout_ms", |config| config.api.request_timeout_ms),
    ("ingest.queue_batches_max", |config| wide(config.ingest.queue_batches_max)),
    ("ingest.dead_letter_file_bytes_max", |config| config.ingest.dead_letter_file_bytes_max),
    ("ingest.kafka.batch_messages_max", |config| wide(config.ingest.kafka.batch_messages_max)),
    ("log.commit_events_max", |config| wide(config.log.commit_events_max)),
    ("log.commit_bytes_max", |config| wide(config.log.commit_bytes_max)),
    ("graph.shards", |config| wide(config.graph.shards)),
    ("model.memory_dimension", |config| wide(config.model.memory_dimension)),
    ("model.time_dimension", |config| wide(config.model.time_dimension)),
    ("model.embedding_dimension", |config| wide(config.model.embedding_dimension)),
    ("model.heads", |config| wide(config.model.heads)),
    ("model.fanout", |config| wide(config.model.fanout)),
    ("model.edge_type_dimension", |config| wide(config.model.edge_type_dimension)),
    ("model.snapshots", |config| wide(config.model.snapshots)),
    ("model.snapshot_width", |config| wide(config.model.snapshot_width)),
    ("learner.batch_events", |config| wide(config.learner.batch_events)),
    ("learner.lag_events_max", |config| config.learner.lag_events_max),
    ("learner.quality_window_batches", |config| wide(config.learner.quality_window_batches)),
    ("learner.rank_candidates", |config| wide(config.learner.rank_candidates)),
    ("learner.schedule.decay_steps", |config| config.learner.schedule.decay_steps),
    ("learner.gate.every_batches", |config| config.learner.gate.every_batches),
    ("learner.gate.window_batches", |config| config.learner.gate.window_batches),
    ("learner.gate.rollback_windows", |config| config.learner.gate.rollback_windows),
    ("checkpoint.keep", |config| wide(config.checkpoint.keep)),
    ("checkpoint.full_every", |config| config.checkpoint.full_every),
    ("checkpoint.keep_every_seconds", |config| config.checkpoint.keep_every_seconds),
    ("snapshot.log_bytes", |config| config.snapshot.log_bytes),
    ("snapshot.keep", |config| wide(config.snapshot.keep)),
    ("index.coalesce_ms", |config| config.index.coalesce_ms),
    ("feed.coalesce_ms", |config| config.feed.coalesce_ms),
    ("cluster.coalesce_ms", |config| config.cluster.coalesce_ms),
    ("anomalies.queue_batches_max", |config| wide(config.anomalies.queue_batches_max)),
];

fn wide(value: usize) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// Numbers from which memory follows, and the most of each: far beyond what is of use, and below what no memory holds.
/// With what the fault says.
pub(super) const AT_MOST: [(&str, Number, u64, &str); 12] = [
    ("stream.edge_feature_dimension", |config| wide(config.stream.edge_feature_dimension), 65_536, TO_65536),
    ("stream.node_feature_dimension", |config| wide(config.stream.node_feature_dimension), 65_536, TO_65536),
    ("model.memory_dimension", |config| wide(config.model.memory_dimension), 16_384, TO_16384),
    ("model.time_dimension", |config| wide(config.model.time_dimension), 16_384, TO_16384),
    ("model.embedding_dimension", |config| wide(config.model.embedding_dimension), 16_384, TO_16384),
    ("model.edge_type_dimension", |config| wide(config.model.edge_type_dimension), 16_384, TO_16384),
    ("model.fanout", |config| wide(config.model.fanout), 10_000, TO_10000),
    ("model.snapshots", |config| wide(config.model.snapshots), 1_000, "must be at most 1000"),
    (
        "learner.batch_events",
        |config| wide(config.learner.batch_events),
        1_000_000,
        "must be at most 1000000",
    ),
    (
        "learner.rank_candidates",
        |config| wide(config.learner.rank_candidates),
        100_000,
        "must be at most 100000",
    ),
    ("learner.threads", |config| wide(config.learner.threads), 4_096, "must be at most 4096"),
    ("graph.shards", |config| wide(config.graph.shards), 65_536, TO_65536),
];
const TO_65536: &str = "must be at most 65536";
const TO_16384: &str = "must be at most 16384";
const TO_10000: &str = "must be at most 10000";
