//! Settings of the thread that writes snapshots and cuts the log, which a reload changes while it runs.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;

/// When snapshots are written, how many are kept, and how much of the log.
#[derive(Clone, Copy)]
pub(super) struct SnapshotSettings {
    pub keep: usize,
    pub log_bytes: u64,
    pub interval: Duration,
    pub bytes_per_second_max: u64,
    /// Bytes that the log keeps; 0: all.
    pub log_bytes_kept: u64,
    /// For how long the log keeps a segment after its last write; `None`: for ever.
    pub log_age_kept: Option<Duration>,
}

impl SnapshotSettings {
    pub fn of(config: &Config) -> Self {
        let snapshot = &config.snapshot;
        Self {
            keep: snapshot.keep,
            log_bytes: snapshot.log_bytes,
            interval: Duration::from_secs(snapshot.interval_seconds),
            bytes_per_second_max: snapshot.bytes_per_second_max,
            log_bytes_kept: config.log.retention_bytes,
            log_age_kept: config.log_age_kept(),
        }
    }
}

/// The settings of the thread that writes snapshots, which a reload changes.
pub(super) struct SharedSnapshotSettings(Mutex<SnapshotSettings>);

impl SharedSnapshotSettings {
    /// Those of `config`.
    pub fn new(config: &Config) -> Arc<Self> {
        Arc::new(Self(Mutex::new(SnapshotSettings::of(config))))
    }

    /// Takes over those of `config`.
    pub fn take(&self, config: &Config) {
        *self.0.lock() = SnapshotSettings::of(config);
    }

    /// Those in effect.
    pub fn get(&self) -> SnapshotSettings {
        *self.0.lock()
    }
}
