//! A file as a source: its rows are submitted in file order, at full speed or at a set pace. The offset of
//! a row is its place in the file counted from 0, bad rows included, so that a restart goes on exactly
//! where the log stands. The log knows the file by its name and by how it begins ([`Fingerprint`]), so that
//! another file of the same name is read from its start. One batch is on its way to the log while the next
//! one is read; a batch that the log refuses is submitted again until it is accepted, without the events that the log
//! can never store, which become dead letters.

mod batch;
mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;

use super::SourceWiring;
use super::dead_letter::unix_ms;
use super::decode::DecodeOptions;
use super::file_error::FileError;
use super::fingerprint::Fingerprint;
use super::mapping::Mapping;
use super::rejection::IngestStats;
use super::rows::{Rows, expect_file};
use crate::event::PositionLookup;

/// How often a waiting replay checks for a stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Which file, and how fast.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The file; `rows` has its forms.
    pub path: PathBuf,
    /// Events per second; `None` is as fast as the log takes them.
    pub events_per_second: Option<f64>,
    /// Largest batch.
    pub batch_events: usize,
    /// A batch that the log refused, or whose dead letters could not be kept, is tried again after so long.
    pub retry_wait: Duration,
    /// Bounds of an event, but for those of plain CSV.
    pub decode: DecodeOptions,
    /// How rows of another shape are read.
    pub mapping: Option<Arc<Mapping>>,
}

impl ReplayOptions {
    /// Full speed.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self {
            path,
            events_per_second: None,
            batch_events: 8192,
            retry_wait: Duration::from_secs(1),
            decode: DecodeOptions::default(),
            mapping: None,
        }
    }
}

/// The state of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayState {
    /// Rows are being submitted.
    Running,
    /// The log refuses batches, or dead letters cannot be kept; the replay keeps trying.
    Degraded {
        /// Why.
        reason: String,
    },
    /// Every row is durable or a dead letter.
    Done,
    /// The replay has ended before the file did.
    Failed {
        /// Why, and what to do.
        reason: String,
    },
    /// The replay was stopped.
    Stopped,
}

struct Shared {
    stop: AtomicBool,
    next: AtomicI64,
    state: Mutex<ReplayState>,
}

/// A running replay. Dropping it requests a stop and does not wait.
pub struct Replay {
    shared: Arc<Shared>,
    stats: Arc<IngestStats>,
    name: Arc<str>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl Replay {
    /// Opens the file and starts on a thread of its own.
    ///
    /// # Errors
    /// When the file cannot be opened or its header is not one of an event file.
    pub fn start(options: ReplayOptions, wiring: SourceWiring) -> Result<Self, FileError> {
        expect_file(&options.path)?;
        let reader = Rows::open(&options.path, options.decode, options.mapping.clone())?;
        if let Some(warning) = reader.warning() {
            tracing::warn!("{warning}");
        }
        let (name, start) = place_of(&Fingerprint::of(&options.path)?, &*wiring.positions);
        tracing::info!(file = %options.path.display(), source = %name, row = start, "replaying");
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            next: AtomicI64::new(start),
            state: Mutex::new(ReplayState::Running),
        });
        let origin_unix_ms = written_unix_ms(&options.path).unwrap_or_else(unix_ms);
        let stats = Arc::new(IngestStats::default());
        let (alive, ended) = crossbeam_channel::bounded(0);
        let run = run::Run {
            cursor: wiring.cursor(&name, 0, true),
            outcomes: crossbeam_channel::bounded(1),
            shared: Arc::clone(&shared),
            stats: Arc::clone(&stats),
            source: Arc::clone(&name),
            options,
            wiring,
            reader,
            row: 0,
            started: Instant::now(),
            paced: 0,
            origin_unix_ms,
        };
        let spawned = std::thread::Builder::new().name("replay".into()).spawn(move || {
            run.run(start);
            drop::<Sender<()>>(alive);
        });
        if let Err(error) = spawned {
            *shared.state.lock() = ReplayState::Failed { reason: format!("no thread: {error}") };
        }
        Ok(Self { shared, stats, name, ended })
    }

    /// The name under which the log keeps the position.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the replay stands.
    #[must_use]
    pub fn state(&self) -> ReplayState {
        self.shared.state.lock().clone()
    }

    /// The first row that is not durable.
    #[must_use]
    pub fn next_row(&self) -> i64 {
        self.shared.next.load(Relaxed)
    }

    /// The source's counters.
    #[must_use]
    pub fn stats(&self) -> &Arc<IngestStats> {
        &self.stats
    }

    /// Stops; waits at most `timeout` and returns whether the thread has ended.
    pub fn stop(&self, timeout: Duration) -> bool {
        self.shared.stop.store(true, Relaxed);
        self.wait(timeout)
    }

    /// Waits until the replay has ended by itself; returns whether it has.
    pub fn wait(&self, timeout: Duration) -> bool {
        matches!(self.ended.recv_timeout(timeout), Err(RecvTimeoutError::Disconnected))
    }
}

/// When the file was written last, in milliseconds since the Unix epoch, where the file system reports it.
fn written_unix_ms(path: &Path) -> Option<i64> {
    let written = std::fs::metadata(path).and_then(|file| file.modified()).ok()?;
    let since = written.duration_since(UNIX_EPOCH).ok()?;
    Some(i64::try_from(since.as_millis()).ok()?.min(unix_ms()))
}

/// The name under which the log keeps the position, and the row to go on at.
fn place_of(fingerprint: &Fingerprint, positions: &dyn PositionLookup) -> (Arc<str>, i64) {
    let names: Vec<Arc<str>> = fingerprint.names().map(|name| format!("file:{name}").into()).collect();
    let known = names.iter().find_map(|name| Some((Arc::clone(name), positions.position(name, 0)?)));
    known.unwrap_or_else(|| (names.first().cloned().unwrap_or_else(|| "file:".into()), 0))
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

#[cfg(test)]
mod tests;
