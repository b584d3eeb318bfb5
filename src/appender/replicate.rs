//! The loop of a replica: frames of its leader's log become durable and indexed here as they are, so that ids and
//! positions are the same. Nothing is written here that the leader has not written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};

use super::{Appender, IDLE, LogState};
use crate::event::Op;
use crate::graph::{RetentionBounds, RetentionClock};
use crate::log::{Frame, LogError};

/// Pause after frames that could not be written.
const RETRY: Duration = Duration::from_millis(500);

fn records(frames: &[Frame]) -> usize {
    frames.iter().map(|frame| frame.batch.len()).sum()
}

impl Appender {
    /// Takes in frames until `stop` is set: of several groups that wait, all are committed together. What cannot be
    /// written is tried again until it is. Calls `pulse` at every turn, and within long ones.
    ///
    /// # Errors
    /// Frames that can never be written.
    pub fn replicate(
        mut self,
        frames: &Receiver<Vec<Frame>>,
        stop: &AtomicBool,
        pulse: impl Fn(),
    ) -> Result<(), String> {
        let graph = &self.index.stores.graph;
        let clock = RetentionClock::new(graph.retention()).with_rules(graph.clock_rules());
        let mut clock = clock.after(graph.latest_time());
        while !stop.load(Ordering::Acquire) && !self.behind {
            pulse();
            self.advance_watermark();
            self.scrubbing.turn(&mut self.index);
            // Until the leader's bounds are known, what is too old by the frames that were received.
            let leaders = Some(self.progress.kept()).filter(|kept| *kept != RetentionBounds::default());
            self.releasing.turn(&mut self.index, leaders.unwrap_or_else(|| clock.bounds()));
            // The leader deletes them, by a frame.
            self.releasing.idle.clear();
            self.capture();
            let mut group = match frames.recv_timeout(IDLE) {
                Ok(group) => group,
                Err(RecvTimeoutError::Timeout) => {
                    self.probe();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            };
            while records(&group) < self.options.commit_events_max
                && let Ok(more) = frames.try_recv()
            {
                group.extend(more);
            }
            for batch in group.iter().map(|frame| &frame.batch) {
                let edges = (0..batch.len()).filter(|&i| batch.op[i] == Op::Edge);
                edges.for_each(|i| clock.observe(batch.id(i), batch.time[i]));
            }
            while let Err(error) = self.write_frames(&group, &pulse) {
                self.metrics.log.commit_failures.inc();
                if !matches!(error, LogError::Io { .. }) {
                    let detail = format!(
                        "frames of the leader do not fit the log here: {error}; give this replica an empty data.dir, \
                         and it begins with a backup or the topic"
                    );
                    self.set_state(LogState::Ended(detail.clone()));
                    return Err(detail);
                }
                self.set_state(LogState::of(&error));
                tracing::error!(%error, "frames of the leader cannot be written; trying again");
                if stop.load(Ordering::Acquire) {
                    return Ok(());
                }
                pulse();
                std::thread::sleep(RETRY);
            }
        }
        Ok(())
    }

    fn write_frames(&mut self, frames: &[Frame], pulse: &dyn Fn()) -> Result<(), LogError> {
        let started = Instant::now();
        let written = frames.iter().try_for_each(|frame| self.log.append(frame).map(drop));
        if written.is_err() {
            self.log.discard();
        }
        written?;
        let durable = self.log.commit()?;
        self.metrics.log.commit_duration.observe(started.elapsed().as_secs_f64());
        self.metrics.log.end_position.set(durable.0.cast_signed());
        self.record_length();
        self.progress.set_durable(durable);
        self.set_state(LogState::Writable);
        for frame in frames {
            self.take_in(Some(frame), pulse);
            self.status.accepted.fetch_add(frame.batch.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }
}
