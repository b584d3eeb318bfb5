//! Settings of the thread that writes snapshots and cuts the log, which a reload changes while it runs, and the rate at
//! which snapshots and checkpoints are written together.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;
use crate::device::disk::WriteRate;

/// When snapshots are written, how many are kept, and how much of the log.
#[derive(Clone, Copy)]
pub(super) struct SnapshotSettings {
    pub keep: usize,
    pub log_bytes: u64,
    pub interval: Duration,
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
            log_bytes_kept: config.log.retention_bytes,
            log_age_kept: config.log_age_kept(),
        }
    }
}

/// The settings of the thread that writes snapshots, which a reload changes.
pub(super) struct SharedSnapshotSettings {
    settings: Mutex<SnapshotSettings>,
    /// Of snapshots and checkpoints.
    pub rate: Arc<WriteRate>,
}

impl SharedSnapshotSettings {
    /// Those of `config`.
    pub fn new(config: &Config) -> Arc<Self> {
        let rate = Arc::new(WriteRate::new(config.io.bytes_per_second_max));
        Arc::new(Self { settings: Mutex::new(SnapshotSettings::of(config)), rate })
    }

    /// Takes over those of `config`.
    pub fn take(&self, config: &Config) {
        *self.settings.lock() = SnapshotSettings::of(config);
        self.rate.set(config.io.bytes_per_second_max);
    }

    /// Those in effect.
    pub fn get(&self) -> SnapshotSettings {
        *self.settings.lock()
    }
}
