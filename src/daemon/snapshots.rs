//! The snapshots of a data directory: which one a start uses, and the thread that writes them while the daemon runs.
//!
//! One is written when the log has grown by `snapshot.log_bytes` since the last, or `snapshot.interval_seconds` have
//! passed and there is something new; so what a start reads of the log is bounded. The thread asks the appender for a
//! [`Capture`](crate::appender::snapshot::Capture) between two frames, and writes the rest beside it.
//!
//! With retention, a snapshot may lack what a learner still reads that goes on from an earlier checkpoint. So a
//! checkpoint is written after each, and only then older snapshots are removed: at any moment there is one for the
//! newest checkpoint.
//!
//! With `log.retention_bytes`, the log is cut afterwards: what no kept snapshot and no kept checkpoint needs goes while
//! it is longer. Only snapshots count that this daemon has loaded or written, and there must be two, because the newest
//! one may be damaged when it is needed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;

use super::snapshot_requests::{Kept, Outcome, SnapshotRequests, Wanted};
use super::{Parts, Store, Supervisor, unix_ms};
use crate::api::OperatorError;
use crate::appender::AppenderStatus;
use crate::appender::snapshot::{self, Pace, SUFFIX, SnapshotHead, UNFINISHED_SUFFIX, WrittenSnapshot};
use crate::catalog::Catalog;
use crate::config::Config;
use crate::event::{ClockRules, EdgeId};
use crate::graph::RetentionBounds;
use crate::learner::LearnerStatus;
use crate::log::LogReaders;
use crate::metrics::Metrics;
use crate::serving::{Progress, Stores};

/// Pause between two looks at whether a snapshot is due.
const PERIOD: Duration = Duration::from_millis(250);

/// Pause between two looks at whether the log was cut.
const SHORT: Duration = Duration::from_millis(20);

/// Pause between two looks at whether the log can be cut.
const CUT_PERIOD: Duration = Duration::from_secs(5);

/// Pause after one that could not be written.
const FAILED_PAUSE: Duration = Duration::from_secs(60);

/// How long the appender may take to capture, and the learner to write a checkpoint; each may be waiting for a disk.
const RESPONSE_LIMIT: Duration = Duration::from_secs(600);

/// Room that a snapshot leaves to the log, bytes.
const ROOM_LEFT: u64 = 256 << 20;

/// The folder of snapshots of a data directory.
pub(super) fn dir(config: &Config) -> PathBuf {
    config.data.dir.join("snapshots")
}

/// The positions of the snapshots in `dir`, latest first. Removes what a crash left unfinished.
fn positions(dir: &Path) -> Result<Vec<EdgeId>> {
    let unreadable = || format!("cannot read the folder {}", dir.display());
    let mut positions = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(unreadable)? {
        let name = entry.with_context(unreadable)?.file_name();
        let Some(name) = name.to_str() else { continue };
        if name.ends_with(UNFINISHED_SUFFIX) {
            remove(&dir.join(name));
        } else if let Some(position) = name.strip_suffix(SUFFIX).and_then(|digits| digits.parse().ok()) {
            positions.push(EdgeId(position));
        }
    }
    positions.sort_unstable_by_key(|position| std::cmp::Reverse(*position));
    Ok(positions)
}

fn remove(folder: &Path) {
    if let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::warn!(path = %folder.display(), %error, "an old snapshot cannot be removed");
    }
}

/// The newest intact snapshot in `dir` that a start can use: it is of this log and of these settings, and nothing was
/// released before it was written that is not released for a learner that keeps `kept`. Others are named in the log;
/// damaged ones, and those of another log, are removed.
///
/// # Errors
/// When the folder cannot be read.
pub(super) fn newest(
    dir: &Path,
    log: &LogReaders,
    stores: &Stores,
    kept: RetentionBounds,
) -> Result<Option<SnapshotHead>> {
    let rules = stores.graph.clock_rules();
    for position in positions(dir)? {
        let path = dir.join(snapshot::name(position));
        let unusable = |why: &str| tracing::warn!(path = %path.display(), "the snapshot is not used: {why}");
        let head = match snapshot::open(&path, rules) {
            Ok(head) => head,
            Err(error) => {
                tracing::error!(%error, "the snapshot is skipped and removed");
                remove(&path);
                continue;
            }
        };
        let is_of_log =
            position <= log.durable_end() && log.history(position).is_ok_and(|found| found == head.history);
        if !is_of_log {
            unusable("it is of another history of the log; it is removed");
            remove(&path);
        } else if let Some(why) = misfit(&head, rules, (stores, log.first() == EdgeId(0)), kept) {
            unusable(why);
        } else if let Err(error) = head.verify() {
            tracing::error!(%error, "the snapshot is skipped and removed");
            remove(&path);
        } else {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// Why a snapshot of this log cannot be used.
fn misfit(
    head: &SnapshotHead,
    rules: ClockRules,
    (stores, is_whole): (&Stores, bool),
    kept: RetentionBounds,
) -> Option<&'static str> {
    let capture = &head.capture;
    let released = (capture.released.since, capture.released.first);
    if capture.not_after != rules.not_after && is_whole {
        // Exact where all of the log is there; where not, the snapshot's clocks are corrected.
        Some("the clock was corrected since")
    } else if !head.fits(stores) {
        Some("it has rows of other dimensions: [model] or [stream] were changed")
    } else if released.0 > kept.since || released.1 > kept.first {
        Some("edges were released that the checkpoint needs: it is older than the snapshot")
    } else {
        None
    }
}

/// Writes snapshots until it is stopped.
pub(super) struct Writer {
    dir: PathBuf,
    keep: usize,
    log_bytes: u64,
    interval: Duration,
    bytes_per_second_max: u64,
    /// Bytes that the log keeps; 0: all.
    log_bytes_kept: u64,
    catalog: Arc<Mutex<Catalog>>,
    stores: Stores,
    log: LogReaders,
    appender: Arc<AppenderStatus>,
    learner: Arc<LearnerStatus>,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    requests: SnapshotRequests,
    stop: Arc<AtomicBool>,
    /// The snapshots that were loaded or written, the oldest first.
    known: Vec<EdgeId>,
    /// Length of the log at the last snapshot, about.
    last_bytes: u64,
    /// Length of the last snapshot.
    snapshot_bytes: u64,
    written: Instant,
    not_before: Instant,
    /// When it was last seen whether the log can be cut.
    looked: Instant,
}

impl Writer {
    /// For a daemon whose index came from the snapshot at `last`; 0: from none.
    pub(super) fn new(config: &Config, parts: &Parts, store: &Store, last: EdgeId) -> Self {
        let (now, snapshot, log) = (Instant::now(), &config.snapshot, store.log.readers());
        let (first, end, bytes) = (log.first().0, log.durable_end().0, store.log.bytes());
        let [read, all] = [last.0.max(first) - first, (end - first).max(1)].map(u128::from);
        Self {
            dir: dir(config),
            keep: snapshot.keep,
            log_bytes: snapshot.log_bytes,
            interval: Duration::from_secs(snapshot.interval_seconds),
            bytes_per_second_max: snapshot.bytes_per_second_max,
            log_bytes_kept: config.log.retention_bytes,
            catalog: store.checkpoints.catalog(),
            stores: parts.engine.stores.clone(),
            log,
            appender: parts.appender.clone(),
            learner: parts.learner.clone(),
            progress: parts.progress.clone(),
            metrics: parts.metrics.clone(),
            requests: parts.snapshots.clone(),
            stop: Arc::default(),
            known: if last == EdgeId(0) { Vec::new() } else { vec![last] },
            last_bytes: u64::try_from(u128::from(bytes) * read / all).unwrap_or(bytes),
            snapshot_bytes: 0,
            written: now,
            not_before: now,
            looked: now,
        }
    }

    /// Runs on a thread of its own until `stop` is set.
    pub(super) fn start(mut self, supervisor: &Supervisor, stop: &Arc<AtomicBool>) -> Result<JoinHandle<()>> {
        self.stop = stop.clone();
        supervisor.start("snapshots", "snapshots", stop, move || {
            while !self.is_stopped() {
                if self.is_due() {
                    // The next try comes after a pause.
                    let _ = self.write();
                }
                if self.looked.elapsed() >= CUT_PERIOD {
                    self.looked = Instant::now();
                    if self.log_bytes_kept > 0 {
                        self.cut(self.log_bytes_kept);
                    }
                }
                if let Some((wanted, reply)) = self.requests.next(PERIOD) {
                    // A requester that gave up has dropped its receiver.
                    let _ = reply.try_send(self.respond(wanted));
                }
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
            && (bytes - self.last_bytes >= self.log_bytes || self.written.elapsed() >= self.interval)
    }

    /// Does what an operator asks for.
    fn respond(&mut self, wanted: Wanted) -> Outcome {
        match wanted {
            Wanted::Snapshot if self.log.durable_end() == EdgeId(0) => {
                return Err(OperatorError::Invalid("the log has no events yet".to_owned()));
            }
            Wanted::Snapshot if self.known.last() == Some(&self.log.durable_end()) => {}
            Wanted::Snapshot => self.write().map_err(|error| OperatorError::Failed(format!("{error:#}")))?,
            Wanted::Cut if self.known.len() < 2 => {
                return Err(OperatorError::Invalid(format!(
                    "the log is cut behind the older of two snapshots, and {} was loaded or written since the start; \
                     write another one first",
                    self.known.len()
                )));
            }
            Wanted::Cut => {
                self.cut(0);
                while self.appender.is_to_be_cut() && !self.is_stopped() {
                    std::thread::sleep(SHORT);
                }
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
        let free = rustix::fs::statvfs(&self.dir).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        ensure!(
            free >= self.snapshot_bytes + ROOM_LEFT,
            "{free} bytes are free on its disk, and a snapshot takes about {} and leaves {ROOM_LEFT} to the log",
            self.snapshot_bytes
        );
        let captured = self.wait_for(&self.appender.request_capture(), "the appender")?;
        let pace = Pace { bytes_per_second_max: self.bytes_per_second_max, stop: &self.stop };
        let written = self.log.history(captured.capture.position()).map_err(anyhow::Error::from);
        let written = written.and_then(|history| {
            let head = (&captured.capture, history);
            Ok(snapshot::write(&self.dir, head, &self.stores, &captured.meanwhile, pace)?)
        });
        captured.meanwhile.end();
        let written = written?;
        if self.stores.graph.retention().is_some() {
            let checkpointed = self.checkpoint();
            if checkpointed.is_err() {
                // No checkpoint fits it yet.
                remove(&self.dir.join(snapshot::name(written.position)));
            }
            checkpointed?;
        }
        Ok(written)
    }

    /// Has a checkpoint written of what is learned by now.
    fn checkpoint(&self) -> Result<()> {
        let requested = self.learner.requests.submit().map_err(anyhow::Error::msg)?;
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
        let surplus = self.known.len().saturating_sub(self.keep);
        self.known.drain(..surplus);
        // What is not known was of no use at the start, and is not needed once there are enough others.
        let is_old = |position: &EdgeId| self.known.len() >= self.keep && !self.known.contains(position);
        let old = positions(&self.dir).unwrap_or_default().into_iter().filter(is_old);
        old.for_each(|position| remove(&self.dir.join(snapshot::name(position))));
    }

    /// Has what nobody needs any more cut off a log of more than `bytes_kept` bytes: newer checkpoints may allow that
    /// long after a snapshot.
    fn cut(&self, bytes_kept: u64) {
        if self.appender.log_bytes() <= bytes_kept || self.known.len() < 2 {
            return;
        }
        let checkpoints = self.catalog.lock().checkpoints().unwrap_or_default();
        let checkpoint = checkpoints.iter().map(|row| EdgeId(row.position)).min();
        let learned = self.progress.learned();
        if let (Some(&snapshot), Some(checkpoint)) = (self.known.first(), checkpoint) {
            self.appender.request_cut(snapshot.min(checkpoint).min(learned), bytes_kept);
        }
    }
}
