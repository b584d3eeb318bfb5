//! Floor 7: the loop that takes events in. A submission becomes durable, then indexed, then
//! acknowledged, in that order; many submissions share one fsync.
//!
//! - The queue is bounded by its maker; when it is full, sources pause and pushes are refused.
//! - A failed commit keeps nothing of its group and refuses all of it. Nothing is lost: whoever submitted
//!   still has the events and hands them in again. The state is then [`LogState::Full`] or
//!   [`LogState::Failing`]; every later submission is a new try, and when none comes, a trial write of
//!   the refused size finds out whether there is room again.
//! - Nothing here knows where events come from, nor who learns from them.

mod encode;
mod idempotency;
mod index;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::RwLock;

pub use index::{Index, Positions, TypeNames};

use crate::event::{EdgeId, EventTime, Receipt, Submission, SubmitError};
use crate::log::{Frame, Log, LogError};
use crate::metrics::Metrics;
use crate::serving::Progress;

/// How long the loop waits for a submission before it looks at its surroundings.
const IDLE: Duration = Duration::from_millis(100);

/// Whether the log takes events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LogState {
    /// It does.
    #[default]
    Writable,
    /// The disk has no room; the text is the operating system's.
    Full(String),
    /// It cannot be written for another reason.
    Failing(String),
}

impl LogState {
    fn of(error: &LogError) -> Self {
        if error.is_disk_full() { Self::Full(error.to_string()) } else { Self::Failing(error.to_string()) }
    }

    /// Why it cannot be written, if so.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Writable => None,
            Self::Full(detail) => Some(format!("the log's disk is full: {detail}")),
            Self::Failing(detail) => Some(format!("the log cannot be written: {detail}")),
        }
    }
}

/// What others may see of the appender while it runs.
#[derive(Debug, Default)]
pub struct AppenderStatus {
    state: RwLock<LogState>,
    accepted: AtomicU64,
    duplicates: AtomicU64,
    bytes: AtomicU64,
}

impl AppenderStatus {
    /// Whether the log takes events.
    #[must_use]
    pub fn state(&self) -> LogState {
        self.state.read().clone()
    }

    /// Events written since start.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Events left out since start because they had been written before.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Size of the log on disk in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// The loop's settings.
#[derive(Clone, Copy, Debug)]
pub struct AppenderOptions {
    /// Most events written with one fsync.
    pub commit_events_max: usize,
    /// How far behind the latest event time events are still expected, in the stream's unit; the
    /// watermark stays behind by this much. `None`: an event of any time may come, so there is no watermark.
    pub allowed_lateness: Option<i64>,
}

/// The one writer of the log and the index.
pub struct Appender {
    log: Log,
    index: Index,
    progress: Arc<Progress>,
    status: Arc<AppenderStatus>,
    metrics: Arc<Metrics>,
    options: AppenderOptions,
    /// Size of the last group that could not be written.
    refused_bytes: usize,
}

impl Appender {
    /// A writer that goes on where `log` and `index` stand.
    #[must_use]
    pub fn new(
        log: Log,
        index: Index,
        progress: Arc<Progress>,
        status: Arc<AppenderStatus>,
        metrics: Arc<Metrics>,
        options: AppenderOptions,
    ) -> Self {
        status.bytes.store(log.bytes(), Ordering::Relaxed);
        progress.set_durable(log.durable_end());
        progress.set_indexed(index.end());
        let appender = Self { log, index, progress, status, metrics, options, refused_bytes: 0 };
        appender.advance_watermark();
        appender
    }

    /// Takes submissions until `stop` is set and the queue is empty. Calls `pulse` at every turn.
    pub fn run(mut self, queue: &Receiver<Submission>, stop: &AtomicBool, pulse: impl Fn()) {
        loop {
            pulse();
            match queue.recv_timeout(IDLE) {
                Ok(first) => {
                    let group = self.collect(first, queue);
                    self.write(group);
                }
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Acquire) => return,
                Err(RecvTimeoutError::Timeout) => self.probe(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// While the log could not be written and nobody submits: finds out whether it can be again.
    fn probe(&mut self) {
        if self.status.state() == LogState::Writable {
            return;
        }
        match self.log.try_room(self.refused_bytes) {
            Ok(()) => self.set_state(LogState::Writable),
            Err(error) => self.set_state(LogState::of(&error)),
        }
    }

    /// Everything that waits, up to the size of one commit.
    fn collect(&self, first: Submission, queue: &Receiver<Submission>) -> Vec<Submission> {
        let mut events = first.batch.events.len();
        let mut group = vec![first];
        while events < self.options.commit_events_max
            && let Ok(next) = queue.try_recv()
        {
            events += next.batch.events.len();
            group.push(next);
        }
        group
    }

    /// Makes a group durable, indexes it and replies; or refuses all of it.
    fn write(&mut self, mut group: Vec<Submission>) {
        match self.commit(&group) {
            Ok(outcomes) => {
                for (submission, (frame, receipt)) in group.iter_mut().zip(outcomes) {
                    self.take_in(frame.as_ref(), receipt);
                    if let Some(reply) = submission.reply.take() {
                        reply(Ok(receipt));
                    }
                }
                self.set_state(LogState::Writable);
            }
            Err(error) => self.refuse(group, &error),
        }
    }

    fn commit(&mut self, group: &[Submission]) -> Result<Vec<(Option<Frame>, Receipt)>, LogError> {
        let started = Instant::now();
        let mut encoder = encode::Group::new(&self.index, self.log.durable_end());
        let mut outcomes = Vec::with_capacity(group.len());
        for submission in group {
            let (frame, receipt) = encoder.encode(&mut self.index, &submission.batch);
            if let Some(frame) = &frame {
                self.log.append(frame)?;
            }
            outcomes.push((frame, receipt));
        }
        self.refused_bytes = self.log.pending_bytes();
        let durable = self.log.commit()?;
        self.metrics.log.commit_duration.observe(started.elapsed().as_secs_f64());
        self.metrics.log.end_position.set(durable.0.cast_signed());
        self.metrics.log.bytes.set(self.log.bytes().cast_signed());
        self.status.bytes.store(self.log.bytes(), Ordering::Relaxed);
        self.progress.set_durable(durable);
        Ok(outcomes)
    }

    fn take_in(&mut self, frame: Option<&Frame>, receipt: Receipt) {
        if let Some(frame) = frame {
            let started = Instant::now();
            self.index.absorb(frame);
            self.metrics.graph.apply_duration.observe(started.elapsed().as_secs_f64());
            self.progress.set_indexed(self.index.end());
            self.advance_watermark();
        }
        self.status.accepted.fetch_add(receipt.accepted, Ordering::Relaxed);
        self.status.duplicates.fetch_add(receipt.duplicates, Ordering::Relaxed);
    }

    fn advance_watermark(&self) {
        if let (Some(latest), Some(late)) = (self.index.graph.latest_time(), self.options.allowed_lateness) {
            self.progress.set_watermark(EventTime(latest.0.saturating_sub(late)));
        }
    }

    fn refuse(&self, group: Vec<Submission>, error: &LogError) {
        self.metrics.log.commit_failures.inc();
        let state = LogState::of(error);
        for reply in group.into_iter().filter_map(|submission| submission.reply) {
            reply(Err(match &state {
                LogState::Full(detail) => SubmitError::DiskFull { detail: detail.clone() },
                _ => SubmitError::Failed { detail: error.to_string() },
            }));
        }
        self.set_state(state);
    }

    fn set_state(&self, state: LogState) {
        let mut current = self.status.state.write();
        if std::mem::discriminant(&*current) == std::mem::discriminant(&state) {
            return;
        }
        match state.fault() {
            Some(fault) => {
                tracing::error!(%fault, "ingest stopped; it goes on by itself when the log can be written")
            }
            None => tracing::info!("the log can be written again"),
        }
        self.metrics.log.disk_full.set(i64::from(matches!(state, LogState::Full(_))));
        *current = state;
    }
}

/// Rebuilds the index from the log, calling `progress` with the position reached every so often.
///
/// # Errors
/// When the log cannot be read or is damaged.
pub fn replay(log: &Log, index: &mut Index, mut progress: impl FnMut(EdgeId)) -> Result<(), LogError> {
    let mut reader = log.reader(EdgeId(0));
    let mut reported = Instant::now();
    while let Some(frame) = reader.next_frame()? {
        index.absorb(&frame);
        if reported.elapsed() > Duration::from_secs(1) {
            reported = Instant::now();
            progress(index.end());
        }
    }
    Ok(())
}
