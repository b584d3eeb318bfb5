//! Floor 7: the loop that takes events in. A submission becomes durable, then indexed, then
//! acknowledged, in that order; many submissions share one fsync.
//!
//! - The queue is bounded by its maker; when it is full, sources pause and pushes are refused.
//! - A failed commit keeps nothing of its group and refuses all of it. Nothing is lost: whoever submitted still has
//!   the events and hands them in again. The state is then [`LogState::Full`] or [`LogState::Failing`]; every later
//!   submission is a new try, and when none comes, a trial write of the refused size finds out whether there is room.
//! - The state is set before a reply goes out: who was refused for a full disk finds it in the status.
//! - Nothing here knows where events come from, nor who learns from them.

mod encode;

mod idempotency;
mod index;
mod own_frames;
mod replay;
mod replicate;
mod retain;
mod scrub;
pub mod snapshot;
mod status;
#[cfg(test)]
mod tests;
mod watermark;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

pub use index::{Index, Positions};
use own_frames::Removing;
pub use replay::{ReplayError, replay};
use retain::Releasing;
use scrub::Scrubbing;
pub use status::{AppenderStatus, Captured, LogState};
use watermark::ActivePartitions;

use crate::event::{Receipt, Submission, SubmitError};
use crate::graph::SpillError;
use crate::log::{Frame, Log, LogError};
use crate::metrics::Metrics;
use crate::serving::Progress;

/// How long the loop waits for a submission before it checks for a stop and for other work.
const IDLE: Duration = Duration::from_millis(100);

/// How often, and with which pauses, the index tries to follow the log when its disk cannot be read.
const FOLLOW_TRIES: u32 = 20;
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);

/// The loop's settings.
#[derive(Clone, Copy, Debug)]
pub struct AppenderOptions {
    /// An fsync with so many events waits for no further batch.
    pub commit_events_max: usize,
    /// Nor does one with so many bytes.
    pub commit_bytes_max: usize,
    /// How far behind the slowest active partition events are still expected, in the stream's unit; the
    /// watermark stays behind by this much. `None`: an event of any time may come, so there is no watermark.
    pub allowed_lateness: Option<i64>,
    /// Most nodes with a name; an event with a new one beyond them is not stored. 0: as many as there are ids.
    pub nodes_max: usize,
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
    /// Whether it was logged that edge types ran out.
    out_of_types: bool,
    /// Whether the log holds what the index could not take in: only a replay helps.
    behind: bool,
    scrubbing: Scrubbing,
    releasing: Releasing,
    removing: Removing,
    active: ActivePartitions,
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
        metrics.log.first_position.set(log.readers().first().0.cast_signed());
        progress.set_durable(log.durable_end());
        progress.set_indexed(index.end());
        let active = ActivePartitions::new(&index.positions, Instant::now());
        let appender = Self {
            log,
            index,
            progress,
            status,
            metrics,
            options,
            refused_bytes: 0,
            out_of_types: false,
            behind: false,
            scrubbing: Scrubbing::new(),
            releasing: Releasing::new(),
            removing: Removing::new(),
            active,
        };
        appender.advance_watermark();
        appender
    }

    /// Takes submissions until `stop` is set, writes what waits then, and refuses what comes later. Calls
    /// `pulse` at every turn, and within long ones. Ends before if the index cannot follow the log: the daemon is to
    /// start again.
    pub fn run(mut self, queue: &Receiver<Submission>, stop: &AtomicBool, pulse: impl Fn()) {
        let _refusing = RefuseTheRest(queue);
        while !stop.load(Ordering::Acquire) && !self.behind {
            pulse();
            self.advance_watermark();
            self.scrubbing.turn(&mut self.index);
            self.releasing.turn(&mut self.index, self.progress.kept());
            self.remove_idle(&pulse);
            self.move_source(&pulse);
            self.capture();
            self.cut();
            match queue.recv_timeout(IDLE) {
                Ok(first) => {
                    self.take_group(first, queue, &pulse);
                }
                Err(RecvTimeoutError::Timeout) => self.probe(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        // Its source has ended; whoever waits gets to know.
        drop(self.status.moved.lock().take());
        // No more than what waits now, or whoever goes on submitting would keep the loop alive.
        let mut waiting = queue.len();
        while waiting > 0
            && !self.behind
            && let Ok(first) = queue.try_recv()
        {
            pulse();
            waiting = waiting.saturating_sub(self.take_group(first, queue, &pulse));
        }
    }

    /// Hands out a capture of the index, if one is wanted.
    fn capture(&self) {
        let Some(reply) = self.status.capture.lock().take() else { return };
        let (capture, meanwhile) = (self.index.capture(), self.index.deleted_meanwhile.clone());
        if reply.send(Captured { capture, meanwhile }).is_err() {
            self.index.deleted_meanwhile.end();
        }
    }

    /// Cuts a segment off the log, if that is wanted; the next one follows at the next turn.
    fn cut(&mut self) {
        let Some(cut) = self.status.cut.lock().take() else { return };
        let is_long = self.log.bytes() > cut.bytes_kept;
        let position = self.status.allowed_cut(cut.position);
        let done = if is_long { self.log.cut(position) } else { Ok(0) };
        self.record_length();
        self.metrics.log.first_position.set(self.log.readers().first().0.cast_signed());
        match done {
            Ok(1..) => {
                tracing::info!(first = self.log.readers().first().0, "the log was cut");
                // Unless there is a newer request by now.
                self.status.cut.lock().get_or_insert(cut);
                return;
            }
            Ok(0) => {}
            Err(ref error) => tracing::error!(%error, "the log could not be cut"),
        }
        // Whoever does not wait has dropped the receiver.
        let _ = cut.reply.try_send(done.map(drop));
    }

    fn record_length(&self) {
        self.status.bytes.store(self.log.bytes(), Ordering::Relaxed);
        self.metrics.log.bytes.set(self.log.bytes().cast_signed());
    }

    /// Writes `first` and what else waits; the number of submissions taken.
    fn take_group(&mut self, first: Submission, queue: &Receiver<Submission>, pulse: &dyn Fn()) -> usize {
        let group = self.collect(first, queue);
        let taken = group.len();
        self.write(group, pulse);
        taken
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

    /// Makes a group durable, indexes it and replies; or refuses all of it. A submission that no log could
    /// hold is refused alone.
    fn write(&mut self, mut group: Vec<Submission>, pulse: &dyn Fn()) {
        while !group.is_empty() {
            match self.commit(&group) {
                Ok(outcomes) => {
                    self.set_state(LogState::Writable);
                    let written = group.drain(..outcomes.len());
                    for (submission, (frame, receipt)) in written.zip(outcomes) {
                        self.take_in(frame.as_ref(), pulse);
                        if !self.behind {
                            self.status.accepted.fetch_add(receipt.accepted, Ordering::Relaxed);
                            self.status.duplicates.fetch_add(receipt.duplicates, Ordering::Relaxed);
                        }
                        if let Some(reply) = submission.reply {
                            reply(Ok(receipt));
                        }
                    }
                    if self.behind {
                        return refuse_for_the_end(group);
                    }
                }
                Err(Refusal::Submission { number, error }) => {
                    tracing::error!(%error, "a batch is refused as it is");
                    if let Some(reply) = group.remove(number).reply {
                        reply(Err(error));
                    }
                }
                Err(Refusal::Log(error)) => return self.refuse(group, &error),
            }
        }
    }

    /// Encodes the group, or as much of it as one commit takes, into the log and commits it. Nothing of it is
    /// left in the log on an error.
    fn commit(&mut self, group: &[Submission]) -> Result<Vec<(Option<Frame>, Receipt)>, Refusal> {
        let started = Instant::now();
        let outcomes = self.append(group).inspect_err(|_| self.log.discard())?;
        self.refused_bytes = self.log.pending_bytes();
        let durable = self.log.commit().map_err(Refusal::Log)?;
        self.metrics.log.commit_duration.observe(started.elapsed().as_secs_f64());
        self.metrics.log.end_position.set(durable.0.cast_signed());
        self.record_length();
        self.progress.set_durable(durable);
        Ok(outcomes)
    }

    fn append(&mut self, group: &[Submission]) -> Result<Vec<(Option<Frame>, Receipt)>, Refusal> {
        let mut encoder = encode::Group::new(&self.index, self.log.durable_end(), self.options.nodes_max);
        let mut outcomes = Vec::with_capacity(group.len());
        for (number, submission) in group.iter().enumerate() {
            let blame = |error| Refusal::Submission { number, error };
            let (frame, receipt) = encoder.encode(&submission.batch).map_err(|unfit| blame(unfit.into()))?;
            if let Some(frame) = &frame {
                let refused = |error| encode::refused_alone(&error).map_or(Refusal::Log(error), blame);
                self.log.append(frame).map_err(refused)?;
            }
            outcomes.push((frame, receipt));
            if self.log.pending_bytes() >= self.options.commit_bytes_max {
                break;
            }
        }
        if let Some(name) = encoder.untyped
            && !std::mem::replace(&mut self.out_of_types, true)
        {
            tracing::error!(
                name,
                types = self.index.stores.types.len(),
                "no more edge types can be distinguished: edges of further types are stored without a type"
            );
        }
        Ok(outcomes)
    }

    /// Takes a durable frame into the index. Durable is durable: what the index cannot follow now, the next start
    /// reads.
    fn take_in(&mut self, frame: Option<&Frame>, pulse: &dyn Fn()) {
        let Some(frame) = frame.filter(|_| !self.behind) else { return };
        let started = Instant::now();
        if let Err(error) = self.follow(frame, pulse) {
            return self.give_up(&error);
        }
        self.metrics.graph.apply_duration.observe(started.elapsed().as_secs_f64());
        self.progress.set_indexed(self.index.end());
        self.active.note(frame, Instant::now());
        self.advance_watermark();
    }

    /// Takes a frame into the index; a disk that fails to give back what the index keeps there is given some
    /// time.
    fn follow(&mut self, frame: &Frame, pulse: &dyn Fn()) -> Result<(), SpillError> {
        let mut tries = 0;
        while let Err(error) = self.index.absorb_with(frame, pulse) {
            tries += 1;
            tracing::error!(%error, tries, "events are in the log, but not yet in the graph");
            if tries == FOLLOW_TRIES {
                return Err(error);
            }
            std::thread::sleep(FOLLOW_PAUSE);
        }
        Ok(())
    }

    /// The log is ahead of the index for good.
    fn give_up(&mut self, error: &SpillError) {
        self.behind = true;
        self.set_state(LogState::Ended(format!(
            "the graph cannot follow the log: {error}; restart the daemon"
        )));
    }

    fn advance_watermark(&self) {
        let Some(late) = self.options.allowed_lateness else { return };
        let closed = self.active.closed(&self.index.positions, late, Instant::now());
        closed.into_iter().for_each(|time| self.progress.set_watermark(time));
    }

    fn refuse(&self, group: Vec<Submission>, error: &LogError) {
        self.metrics.log.commit_failures.inc();
        let state = LogState::of(error);
        self.set_state(state.clone());
        for reply in group.into_iter().filter_map(|submission| submission.reply) {
            reply(Err(match &state {
                LogState::Full(detail) => SubmitError::DiskFull { detail: detail.clone() },
                _ => SubmitError::Failed { detail: error.to_string() },
            }));
        }
    }

    fn set_state(&self, state: LogState) {
        let mut current = self.status.state.write();
        if *current == state || matches!(*current, LogState::Ended(_)) {
            return;
        }
        match state.fault() {
            Some(fault) if matches!(state, LogState::Ended(_)) => tracing::error!(%fault, "ingest has ended"),
            Some(fault) => {
                tracing::error!(%fault, "ingest stopped; it goes on by itself when the log can be written")
            }
            None => tracing::info!("the log can be written again"),
        }
        self.metrics.log.disk_full.set(i64::from(matches!(state, LogState::Full(_))));
        *current = state;
    }
}

/// Why a group was not written.
enum Refusal {
    /// The log takes nothing at present.
    Log(LogError),
    /// One submission of the group cannot be stored as it is.
    Submission { number: usize, error: SubmitError },
}

impl Drop for Appender {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.set_state(LogState::Ended("the appender has panicked; restart the daemon".to_owned()));
        }
    }
}

/// Replies to what still waits when the loop ends, however it ends: nothing else would, for the queue keeps its
/// submissions while a sender lives.
struct RefuseTheRest<'a>(&'a Receiver<Submission>);

impl Drop for RefuseTheRest<'_> {
    fn drop(&mut self) {
        refuse_for_the_end(self.0.try_iter());
    }
}

/// Replies to submissions of which nothing was written.
fn refuse_for_the_end(submissions: impl IntoIterator<Item = Submission>) {
    for reply in submissions.into_iter().filter_map(|submission| submission.reply) {
        reply(Err(SubmitError::ShuttingDown));
    }
}
