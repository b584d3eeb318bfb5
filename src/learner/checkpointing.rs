//! When the loop writes a checkpoint: at intervals, when one is requested, with an operator's decision, and at its end.

use std::io;
use std::time::{Duration, Instant};

use super::measure::unix_seconds;
use super::{
    CheckpointError, CheckpointHead, Durable, FeedMark, LearnBatch, Learner, LearnerOptions, OperationError,
    checkpoint,
};
use crate::event::EdgeId;

/// The first checkpoint comes so soon: it also keeps since when events are live, and from where on they are learned.
const FIRST: Duration = Duration::from_secs(10);

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
    /// Writes a checkpoint if anything was learned since the last one, and completes the requests for one. A failure is
    /// counted and logged, and retried at the next interval: the log still has everything.
    pub(super) fn checkpoint(&mut self, batch: &LearnBatch, pulse: &dyn Fn()) {
        self.fetch_gpu_weights();
        let position = self.learned;
        let is_kept = position == EdgeId(0) || self.checkpointed == Some(position);
        let written = if is_kept { Ok(()) } else { self.write_checkpoint(&self.mark(batch), pulse) };
        self.checkpoint_due = Instant::now() + interval(&self.options, self.checkpointed);
        let failed = |error: CheckpointError| OperationError::Failed(error.to_string());
        let durable = written.map_err(failed).and_then(|()| {
            let name = checkpoint::name(position);
            let learned = position > EdgeId(0);
            learned.then_some(Durable { name, position, model_version: self.version }).ok_or_else(|| {
                let why = "nothing was learned yet, so there is nothing to keep";
                OperationError::Failed(why.to_owned())
            })
        });
        while let Some(((), reply)) = self.shared.status.requests.next() {
            reply.send(durable.clone());
        }
    }

    /// Writes a checkpoint of all that was learned; it holds nothing of nodes that were deleted until then.
    pub(super) fn write_checkpoint(
        &mut self,
        mark: &FeedMark,
        pulse: &dyn Fn(),
    ) -> Result<(), CheckpointError> {
        self.drop_pairs();
        let (started, position) = (Instant::now(), self.learned);
        let dir = &self.options.checkpoint_dir;
        let failed = |error| CheckpointError::Io { path: dir.clone(), source: io::Error::other(error) };
        let written = self.log.history(position).map_err(failed).and_then(|history| {
            let began_unix_ms = self.options.began_unix_ms;
            let head = CheckpointHead { position, history, model_version: self.version, began_unix_ms };
            checkpoint::write(dir, head, pulse, |sink| self.save(mark, sink))
        });
        let metrics = &self.shared.metrics.checkpoint;
        match written {
            Ok(file) => {
                metrics.duration.observe(started.elapsed().as_secs_f64());
                metrics.last_success_timestamp.set(unix_seconds());
                metrics.bytes.set(file.bytes.cast_signed());
                self.checkpointed = Some(position);
                (self.record.checkpoint)(&file, self.quality.mean());
                Ok(())
            }
            Err(error) => {
                metrics.failures.inc();
                tracing::error!(%error, "no checkpoint was written; the next try is at the next interval");
                Err(error)
            }
        }
    }
}
