//! Frames that the appender writes by itself: a move of a source that an operator asks for, and
//! the removal of nodes that have had no edge for `graph.node_retention`: by deletions in the log, as if a producer had
//! sent them. So a start, the learner and whoever else reads the log see a node leave at the same place, and a name
//! that comes again is that of a new node.
//!
//! They are removed in frames of [`NODES`], [`PAUSE`] apart, so that events wait for one of them at most.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::status::Move;
use super::{Appender, LogState, Refusal};
use crate::event::{EdgeBatch, Event, EventBatch, Incoming, NodeId, PositionLookup, Submission};
use crate::log::{Frame, LogError};

/// Most nodes of a frame.
const NODES: usize = 4_096;

/// Time between two frames, at least.
const PAUSE: Duration = Duration::from_millis(100);

/// When the next frame may come.
pub(super) struct Removing(Instant);

impl Removing {
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Appender {
    /// Deletes some of the nodes that have been idle for too long, if there are any.
    pub(super) fn remove_idle(&mut self, pulse: &dyn Fn()) {
        let is_time = Instant::now() >= self.removing.0;
        if self.releasing.idle.is_empty() || !is_time || self.status.state() != LogState::Writable {
            return;
        }
        let left = self.releasing.idle.len().saturating_sub(NODES);
        let nodes = self.releasing.idle.split_off(left);
        let group = [Submission { batch: self.deletions(&nodes), reply: None }];
        match self.commit(&group) {
            Ok(outcomes) => {
                for (frame, receipt) in outcomes {
                    self.take_in(frame.as_ref(), pulse);
                    self.metrics.graph.idle_nodes_removed.inc_by(receipt.accepted);
                }
            }
            // The next release finds them again.
            Err(Refusal::Log(error)) => self.refuse(Vec::new(), &error),
            Err(Refusal::Submission { error, .. }) => tracing::error!(%error, "idle nodes cannot be removed"),
        }
        self.removing = Removing(Instant::now() + PAUSE);
    }

    /// Moves a source, if that is wanted.
    pub(super) fn move_source(&mut self, pulse: &dyn Fn()) {
        let moved = self.status.moved.lock().take();
        let Some(Move { mut sources, origin_unix_ms, reply }) = moved else { return };
        for range in &mut sources {
            // Where the partition stands now, which may be farther than when the move was planned.
            let known = self.index.positions.position(&range.source, range.partition);
            range.from = known.unwrap_or(range.from);
        }
        let batch = EdgeBatch { first: self.log.durable_end(), ..EdgeBatch::default() };
        let frame = Frame { batch, sources, origin_unix_ms, ..Frame::default() };
        let written = self.write_frame(&frame);
        if written.is_ok() {
            self.take_in(Some(&frame), pulse);
        }
        // Whoever does not wait has dropped the receiver.
        let _ = reply.try_send(written);
    }

    fn write_frame(&mut self, frame: &Frame) -> Result<(), LogError> {
        let written = self.log.append(frame).and_then(|()| self.log.commit());
        match written {
            Ok(durable) => {
                self.progress.set_durable(durable);
                self.record_length();
                Ok(())
            }
            Err(error) => {
                self.log.discard();
                self.refuse(Vec::new(), &error);
                Err(error)
            }
        }
    }

    /// The deletions of those of `nodes` that are idle still.
    fn deletions(&self, nodes: &[NodeId]) -> EventBatch {
        let stores = &self.index.stores;
        let still = nodes.iter().filter(|node| stores.graph.is_idle(**node));
        let keys = still.filter_map(|&node| stores.keys.key(node));
        let events = keys.map(|key| Incoming::new(Event::DeleteNode { key })).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_unix_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        EventBatch { events, origin_unix_ms, ..EventBatch::default() }
    }
}
