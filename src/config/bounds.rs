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

/// Settings and the most of each, with what the fault says.
macro_rules! at_most {
    ($($section:ident.$field:ident = $most:literal),+ $(,)?) => {
        &[$((
            concat!(stringify!($section), ".", stringify!($field)),
            |config| wide(config.$section.$field),
            $most,
            concat!("must be at most ", $most),
        )),+]
    };
}

/// Numbers from which threads, descriptors or memory follow, and the most of each: far beyond what is of use.
pub(super) const AT_MOST: &[(&str, Number, u64, &str)] = at_most![
    // Each may need a thread.
    api.concurrent_requests_max = 10_000,
    // Each has a file descriptor.
    api.connections_max = 1_000_000,
    // Each is sent figures every second.
    api.console_pages_max = 10_000,
    stream.edge_feature_dimension = 65_536,
    stream.node_feature_dimension = 65_536,
    model.memory_dimension = 16_384,
    model.time_dimension = 16_384,
    model.embedding_dimension = 16_384,
    model.edge_type_dimension = 16_384,
    model.fanout = 10_000,
    model.snapshots = 1_000,
    learner.batch_events = 1_000_000,
    learner.rank_candidates = 100_000,
    learner.threads = 4_096,
    graph.shards = 65_536,
];
