//! The thread that writes snapshots while the daemon runs, and has the log cut behind them.
//!
//! One is written when the log has grown by `snapshot.log_bytes` since the last, or `snapshot.interval_seconds` have
//! passed and there is something new; so what a start reads of the log is bounded. The thread asks the appender for a
//! [`Capture`](crate::appender::snapshot::Capture) between two frames, and writes the rest beside it.
//!
//! With retention, a snapshot may lack what a learner still reads that goes on from an earlier checkpoint. So a
//! checkpoint is written after each, and only then older snapshots are removed: at any moment there is one for the
//! newest checkpoint.
//!
//! With `log.retention_bytes` or `log.retention_seconds`, the log is cut afterwards: what no kept snapshot and none of
//! the newest checkpoints needs goes while it is longer, or is older; so do older checkpoints that lie in it. Only
//! snapshots count that this daemon has loaded, written or read as a whole, and there must be two, because the newest
//! one may be damaged when it is needed.
//!
//! A replica has no checkpoints, and its log is never cut: as a leader it would learn from all of it.

mod cutting;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use crossbeam_channel::{Receiver, RecvTimeoutError};

use self::cutting::Learning;
use super::feed::Deletions;
use super::snapshot_files::{dir, remove};
use super::snapshot_settings::{SharedSnapshotSettings, SnapshotSettings};
use super::{Parts, Store, Supervisor, unix_ms};
use crate::api::OperatorError;
use crate::appender::AppenderStatus;
use crate::appender::snapshot::{self, Pace, WrittenSnapshot};
use crate::config::{ClusterRole, Config};
use crate::event::EdgeId;
use crate::learner::{Requests, WantedCheckpoint};
use crate::log::LogReaders;
use crate::metrics::Metrics;
use crate::serving::Stores;

/// Pause between two looks at whether a snapshot is due.
const PERIOD: Duration = Duration::from_millis(250);

/// Pause between two looks at whether the log can be cut.
const CUT_PERIOD: Duration = Duration::from_secs(5);

/// Pause after one that could not be written.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// How long the appender may take to capture, and the learner to write a checkpoint; each may be waiting for a disk.
const RESPONSE_LIMIT: Duration = Duration::from_secs(600);

/// Room that a snapshot leaves to the log, bytes; on a small disk a twentieth of it.
const ROOM_LEFT: u64 = 256 << 20;

/// Most requests of operators that wait at a time.
const WAITING_MAX: usize = 16;

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A snapshot of what is in the log now.
    Snapshot,
    /// That the log is cut behind the kept snapshots and checkpoints.
    Cut,
}

/// What there is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Position of the newest snapshot.
    pub snapshot: EdgeId,
    /// The first position of the log.
    pub log_first: EdgeId,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// What operators ask of the thread that writes snapshots.
pub(super) type SnapshotRequests = Requests<Wanted, Kept, OperatorError>;

/// No requests yet.
pub(super) fn requests() -> Arc<SnapshotRequests> {
    Arc::new(Requests::new("the writer of snapshots", WAITING_MAX))
}

/// Writes snapshots until it is stopped.
pub(super) struct Writer {
    dir: PathBuf,
    /// As of the last turn.
    settings: SnapshotSettings,
    shared: Arc<SharedSnapshotSettings>,
    /// Who learns here; nobody on a replica.
    learning: Option<Learning>,
    stores: Stores,
    log: LogReaders,
    appender: Arc<AppenderStatus>,
    metrics: Arc<Metrics>,
    requests: Arc<SnapshotRequests>,
    stop: Arc<AtomicBool>,
    /// The snapshots that were loaded, read or written, the oldest first.
    known: Vec<EdgeId>,
    /// Whether those from before the start were looked at.
    knows_older: bool,
    /// Length of the log at the last snapshot, about.
    last_bytes: u64,
    /// Length of the last snapshot.
    snapshot_bytes: u64,
    written: Instant,
    not_before: Instant,
    /// When it was last seen whether the log can be cut.
    looked: Instant,
    /// What a snapshot forgets and the change feed still owes.
    deletions: Option<Arc<Deletions>>,
}

impl Writer {
    /// For a daemon whose index came from the snapshot at `last`; 0: from none.
    pub(super) fn new(config: &Config, parts: &Parts, store: &Store, last: EdgeId) -> Self {
        let (now, log) = (Instant::now(), store.log.readers());
        let (first, end, bytes) = (log.first().0, log.durable_end().0, store.log.bytes());
        let [read, all] = [last.0.max(first) - first, (end - first).max(1)].map(u128::from);
        Self {
            dir: dir(config),
            settings: SnapshotSettings::of(config),
            shared: parts.snapshot_settings.clone(),
            learning: (config.cluster.role != ClusterRole::Replica)
                .then(|| Learning::of(config, parts, store)),
            stores: parts.engine.stores.clone(),
            log,
            appender: parts.appender.clone(),
            metrics: parts.metrics.clone(),
            requests: parts.snapshots.clone(),
            stop: Arc::default(),
            known: if last == EdgeId(0) { Vec::new() } else { vec![last] },
            knows_older: false,
            last_bytes: u64::try_from(u128::from(bytes) * read / all).unwrap_or(bytes),
            snapshot_bytes: 0,
            written: now,
            not_before: now,
            looked: now,
            deletions: None,
        }
    }

    /// The same, which records deletions before a snapshot forgets them.
    pub(super) fn recording(mut self, deletions: Option<Arc<Deletions>>) -> Self {
        self.deletions = deletions;
        self
    }

    /// Runs on a thread of its own until `stop` is set.
    pub(super) fn start(mut self, supervisor: &Supervisor, stop: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
        self.stop = stop.clone();
        supervisor.start("snapshots", "snapshots", stop, move || {
            while !self.is_stopped() {
                self.settings = self.shared.get();
                if self.is_due() {
                    // The next try comes after a pause.
                    let _ = self.write();
                }
                if self.looked.elapsed() >= CUT_PERIOD {
                    self.looked = Instant::now();
                    self.cut_if_due();
                }
                while let Some((wanted, reply)) = self.requests.next() {
                    reply.send(self.respond(wanted));
                }
                std::thread::sleep(PERIOD);
            }
            Ok(())
        })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn is_due(&mut self) -> bool {
        let bytes = self.appender.log_bytes();
        // It may have been cut.
        self.last_bytes = self.last_bytes.min(bytes);
        let last = self.known.last().copied().unwrap_or_default();
        Instant::now() >= self.not_before
            && self.log.durable_end() > last
            && (bytes - self.last_bytes >= self.settings.log_bytes
                || self.written.elapsed() >= self.settings.interval)
    }

    /// Does what an operator asks for.
    fn respond(&mut self, wanted: Wanted) -> Result<Kept, OperatorError> {
        match (wanted, self.learning.clone()) {
            (Wanted::Snapshot, _) if self.log.durable_end() == EdgeId(0) => {
                return Err(OperatorError::Invalid("the log has no events yet".to_owned()));
            }
            (Wanted::Snapshot, _) if self.known.last() == Some(&self.log.durable_end()) => {}
            (Wanted::Snapshot, _) => {
                self.write().map_err(|error| OperatorError::Failed(format!("{error:#}")))?;
            }
            (Wanted::Cut, Some(learning)) => self.cut_now(&learning)?,
            (Wanted::Cut, None) => {
                let why = "a replica's log is not cut: as a leader it would learn from all of it";
                return Err(OperatorError::Invalid(why.to_owned()));
            }
        }
        let snapshot = self.known.last().copied().unwrap_or_default();
        Ok(Kept { snapshot, log_first: self.log.first(), log_bytes: self.appender.log_bytes() })
    }

    fn write(&mut self) -> Result<()> {
        let bytes = self.appender.log_bytes();
        let outcome = self.write_one();
        match &outcome {
            Ok(written) => {
                self.record(written);
                self.known.push(written.position);
                (self.snapshot_bytes, self.last_bytes) = (written.bytes, bytes);
                self.written = Instant::now();
                self.prune();
            }
            Err(_) if self.is_stopped() => {}
            Err(error) => {
                self.metrics.snapshot.failures.inc();
                self.not_before = Instant::now() + FAILED_PAUSE;
                tracing::error!(
                    error = format!("{error:#}"),
                    "no snapshot was written; the next try is in a minute"
                );
            }
        }
        outcome.map(drop)
    }

    #[allow(clippy::cast_precision_loss)]
    fn record(&self, written: &WrittenSnapshot) {
        let (seconds, metrics) = (written.took.as_secs_f64(), &self.metrics.snapshot);
        metrics.duration.observe(seconds);
        metrics.bytes.set(written.bytes.cast_signed());
        metrics.position.set(written.position.0.cast_signed());
        metrics.last_success_timestamp.set(unix_ms() as f64 / 1e3);
        let (position, bytes) = (written.position.0, written.bytes);
        tracing::info!(position, bytes, seconds, "a snapshot was written");
    }

    fn write_one(&self) -> Result<WrittenSnapshot> {
        if let Ok(disk) = rustix::fs::statvfs(&self.dir) {
            let (free, left) =
                (disk.f_bavail * disk.f_frsize, ROOM_LEFT.min(disk.f_blocks * disk.f_frsize / 20));
            ensure!(
                free >= self.snapshot_bytes + left,
                "{free} bytes are free on its disk, and a snapshot takes about {} and leaves {left} to the log",
                self.snapshot_bytes
            );
        }
        let captured = self.wait_for(&self.appender.request_capture(), "the appender")?;
        let pace = Pace { rate: &self.shared.rate, stop: &self.stop };
        // Names that are forgotten while it is written are not in it either.
        let record = || self.deletions.as_ref().map_or(Ok(()), |deletions| deletions.record(&|| ()));
        let complete = || record().map_err(std::io::Error::other);
        let written = self.log.history(captured.capture.position()).map_err(anyhow::Error::from);
        let written = written.and_then(|history| {
            let head = (&captured.capture, history);
            Ok(snapshot::write(&self.dir, head, &self.stores, &captured.meanwhile, pace, &complete)?)
        });
        captured.meanwhile.end();
        let written = written?;
        if let Some(learning) = &self.learning
            && self.stores.graph.retention().is_some()
        {
            let checkpointed = self.checkpoint(learning);
            if checkpointed.is_err() {
                // No checkpoint fits it yet.
                remove(&self.dir.join(snapshot::name(written.position)));
            }
            checkpointed?;
        }
        Ok(written)
    }

    /// Has a checkpoint written of what is learned by now.
    fn checkpoint(&self, learning: &Learning) -> Result<()> {
        let requested = learning.status.requests.submit(WantedCheckpoint::Any)?;
        let outcome = self.wait_for(&requested, "the learner")?;
        outcome.map(drop).map_err(|why| anyhow!("no checkpoint goes with it: {why}"))
    }

    fn wait_for<T>(&self, response: &Receiver<T>, whose: &str) -> Result<T> {
        let begun = Instant::now();
        loop {
            match response.recv_timeout(PERIOD) {
                Ok(response) => return Ok(response),
                Err(RecvTimeoutError::Disconnected) => return Err(anyhow!("{whose} has ended")),
                Err(RecvTimeoutError::Timeout) => {
                    ensure!(!self.is_stopped(), "the daemon stops");
                    let limit = RESPONSE_LIMIT.as_secs();
                    ensure!(begun.elapsed() < RESPONSE_LIMIT, "no response from {whose} within {limit} s");
                }
            }
        }
    }

    /// Removes all but the newest ones.
    fn prune(&mut self) {
        let surplus = self.known.len().saturating_sub(self.settings.keep);
        self.known.drain(..surplus);
        // What is not known was of no use at the start, and is not needed once there are enough others.
        let is_old =
            |position: &EdgeId| self.known.len() >= self.settings.keep && !self.known.contains(position);
        let old = snapshot::positions(&self.dir).unwrap_or_default().into_iter().filter(is_old);
        old.for_each(|position| remove(&self.dir.join(snapshot::name(position))));
    }
}

/// Who waits for a writer that has ended gets to know, however it ended.
impl Drop for Writer {
    fn drop(&mut self) {
        self.requests.close();
    }
}
