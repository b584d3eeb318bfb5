//! Floor 7: the loop that takes events in. A submission becomes durable, then indexed, then
//! acknowledged, in that order; many submissions share one fsync.
//!
//! - The queue is bounded by its maker; when it is full, sources pause and pushes are refused.
//! - A failed commit keeps nothing of its group. Batches that a source can deliver only once (they
//!   carry offsets) are held and tried again until there is room; pushed batches are refused at once,
//!   because their client can try again. While anything is held, the state is [`LogState::Full`] or
//!   [`LogState::Failing`], and no further batch with offsets is taken from the queue.
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

use crate::event::{EdgeId, Receipt, Submission, SubmitError};
use crate::log::{Frame, Log, LogError};
use crate::metrics::Metrics;
use crate::serving::Progress;

/// How long the loop waits for a submission before it looks at its surroundings.
const IDLE: Duration = Duration::from_millis(100);
/// How long it waits before a failed commit is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Most batches held while the log cannot be written; past it the queue fills up and sources pause.
const HELD_MAX: usize = 8;

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
}

/// The one writer of the log and the index.
pub struct Appender {
    log: Log,
    index: Index,
    progress: Arc<Progress>,
    status: Arc<AppenderStatus>,
    metrics: Arc<Metrics>,
    options: AppenderOptions,
    held: Vec<Submission>,
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
        Self { log, index, progress, status, metrics, options, held: Vec::new() }
    }

    /// Takes submissions until `stop` is set and the queue is empty.
    pub fn run(mut self, queue: &Receiver<Submission>, stop: &AtomicBool) {
        loop {
            if !self.held.is_empty() {
                self.retry(queue, stop);
                if stop.load(Ordering::Acquire) {
                    return self.refuse_all(queue);
                }
                continue;
            }
            match queue.recv_timeout(IDLE) {
                Ok(first) => {
                    let group = self.collect(first, queue);
                    self.write(group);
                }
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Acquire) => return,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
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

    /// Makes a group durable, indexes it and replies; or holds and refuses.
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
            Err(error) => self.hold(group, &error),
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
        }
        self.status.accepted.fetch_add(receipt.accepted, Ordering::Relaxed);
        self.status.duplicates.fetch_add(receipt.duplicates, Ordering::Relaxed);
    }

    /// After a failed commit: batches with offsets are kept for another try, the others are refused.
    fn hold(&mut self, group: Vec<Submission>, error: &LogError) {
        self.metrics.log.commit_failures.inc();
        let detail = error.to_string();
        let (state, refusal) = if error.is_disk_full() {
            (LogState::Full(detail.clone()), SubmitError::DiskFull { detail })
        } else {
            (LogState::Failing(detail.clone()), SubmitError::Failed { detail })
        };
        self.set_state(state);
        for submission in group {
            if submission.batch.ranges.is_empty() {
                refuse(submission, &refusal);
            } else {
                self.held.push(submission);
            }
        }
    }

    /// While batches are held: refuses pushes for a moment, then tries again.
    fn retry(&mut self, queue: &Receiver<Submission>, stop: &AtomicBool) {
        let refusal = match self.status.state() {
            LogState::Full(detail) => SubmitError::DiskFull { detail },
            LogState::Failing(detail) => SubmitError::Failed { detail },
            LogState::Writable => SubmitError::ShuttingDown,
        };
        let until = Instant::now() + RETRY;
        while self.held.len() < HELD_MAX
            && let Ok(submission) = queue.recv_deadline(until)
        {
            if submission.batch.ranges.is_empty() {
                refuse(submission, &refusal);
            } else {
                self.held.push(submission);
            }
        }
        if stop.load(Ordering::Acquire) {
            return;
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let held = std::mem::take(&mut self.held);
        self.write(held);
    }

    /// At a stop with a log that cannot be written: nothing held is lost, its sources read it again.
    fn refuse_all(&mut self, queue: &Receiver<Submission>) {
        for submission in self.held.drain(..).chain(queue.try_iter()) {
            refuse(submission, &SubmitError::ShuttingDown);
        }
    }

    fn set_state(&self, state: LogState) {
        let mut current = self.status.state.write();
        if *current == state {
            return;
        }
        match state.fault() {
            Some(fault) => tracing::error!(%fault, "ingest stopped; it goes on by itself when the log can be written"),
            None => tracing::info!("the log can be written again"),
        }
        self.metrics.log.disk_full.set(i64::from(matches!(state, LogState::Full(_))));
        *current = state;
    }
}

fn refuse(submission: Submission, refusal: &SubmitError) {
    if let Some(reply) = submission.reply {
        reply(Err(refusal.clone()));
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
