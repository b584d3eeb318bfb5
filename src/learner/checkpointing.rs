//! When the loop writes a checkpoint: at intervals, when one is requested, with an operator's decision, and at its end.
//!
//! The loop only captures what was learned, which takes the time of copying weights and pairs. A thread of its own
//! writes that while the loop goes on, at the rate that background writes have. One checkpoint is written at a time;
//! requests that come meanwhile get the next.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

use super::checkpoint::CheckpointWriter;
use super::learned::Captured;
use super::measure::unix_seconds;
use super::requests::Reply;
use super::threads::yield_to_serving;
use super::{
    BatchQuality, CheckpointError, CheckpointFile, CheckpointHead, Durable, LearnBatch, Learner,
    LearnerOptions, OperationError, WantedCheckpoint, checkpoint,
};
use crate::device::disk::Pace;
use crate::event::EdgeId;

/// The first checkpoint comes so soon: it also keeps since when events are live, and from where on they are learned.
const FIRST: Duration = Duration::from_secs(10);

/// Pause between two signs of life while the loop waits for a checkpoint.
const PULSE: Duration = Duration::from_millis(100);

/// What became of a checkpoint, and the writer for the next.
type Outcome = (Result<CheckpointFile, CheckpointError>, CheckpointWriter);

/// A checkpoint that is being written.
pub(super) struct Writing {
    /// Set when the loop or an operator waits for it, which is then not for the rate of writing to delay.
    hurry: Arc<AtomicBool>,
    position: EdgeId,
    /// Quality when it was captured.
    quality: Option<BatchQuality>,
    started: Instant,
    pub(super) outcome: Receiver<Outcome>,
    /// Who waits for it.
    replies: Vec<Reply<Durable, OperationError>>,
}

/// The position of the checkpoint that a loop at `position` goes on from; `None` where it begins without one.
pub(super) fn found(options: &LearnerOptions, position: EdgeId) -> Option<EdgeId> {
    options.checkpoint_dir.join(checkpoint::name(position)).is_file().then_some(position)
}

/// Time to the next checkpoint, given the position of the last one.
pub(super) fn interval(options: &LearnerOptions, last: Option<EdgeId>) -> Duration {
    let soon = if last.is_none() { FIRST } else { Duration::MAX };
    options.checkpoint_interval.min(soon)
}

impl Learner {
    /// Begins a checkpoint if one is due and takes note of one that is written. Never waits for the disk.
    pub(super) fn checkpoint_if_due(&mut self, batch: &LearnBatch) {
        if let Some(writing) = &self.writing {
            let written = match writing.outcome.try_recv() {
                Err(TryRecvError::Empty) => return,
                received => self.take_back_writer(received.ok()),
            };
            // A failure was logged, and is reported to those who wait.
            let _ = self.conclude(written);
        }
        if Instant::now() >= self.checkpoint_due || self.shared.status.requests.is_waiting() {
            self.begin_checkpoint(batch);
        }
    }

    /// Writes a checkpoint of all that was learned, and waits for it.
    ///
    /// # Errors
    /// It could not be written.
    pub(super) fn checkpoint_now(
        &mut self,
        batch: &LearnBatch,
        pulse: &dyn Fn(),
    ) -> Result<(), CheckpointError> {
        // Weights may have changed since that began, at the same position.
        let _ = self.wait_for_checkpoint(pulse);
        self.checkpointed = None;
        self.begin_checkpoint(batch);
        self.wait_for_checkpoint(pulse)
    }

    /// Writes a last checkpoint of what was learned since the one before.
    pub(super) fn checkpoint_at_end(&mut self, batch: &LearnBatch, pulse: &dyn Fn()) {
        for _ in 0..2 {
            // A failure was logged.
            let _ = self.wait_for_checkpoint(pulse);
            self.begin_checkpoint(batch);
        }
        let _ = self.wait_for_checkpoint(pulse);
    }

    fn wait_for_checkpoint(&mut self, pulse: &dyn Fn()) -> Result<(), CheckpointError> {
        while let Some(writing) = &self.writing {
            writing.hurry.store(true, Ordering::Release);
            pulse();
            match writing.outcome.recv_timeout(PULSE) {
                Err(RecvTimeoutError::Timeout) => {}
                received => {
                    let written = self.take_back_writer(received.ok());
                    return self.conclude(written);
                }
            }
        }
        Ok(())
    }

    /// What became of the checkpoint; `None` where its thread ended without an outcome.
    fn take_back_writer(&mut self, outcome: Option<Outcome>) -> Result<CheckpointFile, CheckpointError> {
        let (written, writer) = outcome.ok_or_else(|| self.failed("the thread that writes it has ended"))?;
        self.checkpoint_writer = Some(writer);
        written
    }

    /// Captures what was learned since the last checkpoint and has it written, for all who wait for one. It holds
    /// nothing of nodes that were deleted until now.
    fn begin_checkpoint(&mut self, batch: &LearnBatch) {
        self.fetch_gpu_weights();
        let (mut replies, mut full) = (Vec::new(), false);
        while let Some((wanted, reply)) = self.shared.status.requests.next() {
            full |= wanted == WantedCheckpoint::Full;
            replies.push(reply);
        }
        let is_full = self.checkpoint_writer.as_ref().is_some_and(CheckpointWriter::is_full);
        self.checkpoint_due = Instant::now() + interval(&self.options, self.checkpointed);
        let (started, position) = (Instant::now(), self.learned);
        if position == EdgeId(0) || (self.checkpointed == Some(position) && (is_full || !full)) {
            let durable = self.durable(position).ok_or_else(|| {
                let why = "nothing was learned yet, so there is nothing to keep";
                OperationError::Failed(why.to_owned())
            });
            replies.into_iter().for_each(|reply| reply.send(durable.clone()));
            return;
        }
        self.drop_pairs();
        let (sender, outcome) = bounded(1);
        // An operator waits for a full one, and not for longer than a request may take.
        let (quality, hurry) = (self.quality.mean(), Arc::new(AtomicBool::new(full)));
        self.writing = Some(Writing { hurry: hurry.clone(), position, quality, started, outcome, replies });
        let captured = self.capture(&self.mark(batch));
        let begun = captured.and_then(|captured| self.write_aside((captured, full), hurry, sender));
        if let Err(error) = begun {
            let why = self.failed(error);
            // Reported to those who wait.
            let _ = self.conclude(Err(why));
        }
        self.shared.metrics.checkpoint.pause.observe(started.elapsed().as_secs_f64());
    }

    /// Writes what was captured on a thread of its own.
    fn write_aside(
        &mut self,
        (captured, full): (Captured, bool),
        hurry: Arc<AtomicBool>,
        sender: Sender<Outcome>,
    ) -> io::Result<()> {
        let (log, dir, nice) = (self.log.clone(), self.options.checkpoint_dir.clone(), self.options.nice);
        let writer = self.checkpoint_writer.take();
        let mut writer =
            writer.unwrap_or_else(|| CheckpointWriter::new(&dir, self.options.checkpoint_full_every));
        let (position, model_version) = (self.learned, self.version);
        let (began_unix_ms, rate) = (self.options.began_unix_ms, self.options.write_rate.clone());
        let write = move || {
            yield_to_serving(nice);
            let failed = |error| CheckpointError::Io { path: dir.clone(), source: io::Error::other(error) };
            let written = log.history(position).map_err(failed).and_then(|history| {
                let head = CheckpointHead { position, history, model_version, began_unix_ms };
                let pace = Pace { rate: &rate, hurry: &hurry };
                writer.write(head, full, pace, |sink| captured.write(sink))
            });
            // The loop has ended where nobody waits for it.
            let _ = sender.send((written, writer));
        };
        std::thread::Builder::new().name("checkpoint".into()).spawn(write).map(drop)
    }

    /// Takes note of a checkpoint that was written, or was not, and responds to those who wait for it.
    fn conclude(&mut self, written: Result<CheckpointFile, CheckpointError>) -> Result<(), CheckpointError> {
        let Some(Writing { position, quality, started, replies, .. }) = self.writing.take() else {
            return Ok(());
        };
        let metrics = &self.shared.metrics.checkpoint;
        let outcome = match written {
            Ok(file) => {
                metrics.duration.observe(started.elapsed().as_secs_f64());
                metrics.last_success_timestamp.set(unix_seconds());
                metrics.bytes.set(file.bytes.cast_signed());
                let written = self.checkpoint_writer.as_ref().map_or(0, CheckpointWriter::written);
                metrics.written_bytes.set(written.cast_signed());
                self.checkpointed = Some(position);
                (self.record.checkpoint)(&file, quality);
                Ok(file.head.model_version)
            }
            Err(error) => {
                metrics.failures.inc();
                tracing::error!(
                    %error,
                    "no checkpoint was written; the next interval tries again while the daemon runs, and a start \
                     learns anew what no checkpoint has"
                );
                Err(error)
            }
        };
        let durable = match &outcome {
            Ok(model_version) => {
                Ok(Durable { name: checkpoint::name(position), position, model_version: *model_version })
            }
            Err(error) => Err(OperationError::Failed(error.to_string())),
        };
        replies.into_iter().for_each(|reply| reply.send(durable.clone()));
        outcome.map(drop)
    }

    /// The checkpoint of this position; `None` before anything was learned.
    fn durable(&self, position: EdgeId) -> Option<Durable> {
        let name = checkpoint::name(position);
        (position > EdgeId(0)).then_some(Durable { name, position, model_version: self.version })
    }

    fn failed(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CheckpointError {
        CheckpointError::Io { path: self.options.checkpoint_dir.clone(), source: io::Error::other(why) }
    }
}
