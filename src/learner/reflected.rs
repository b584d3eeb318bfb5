//! What readers see of a batch that is learned: rows of nodes, and with them the position.
//!
//! Where a GPU computes the rows, they are handed over beside the steps behind the batch
//! ([`Publisher`](super::publisher::Publisher)). A batch that deletes nodes or brings rows of nodes is published by the
//! loop, because readers get that with its position.

use super::measure::unix_seconds;
use super::publisher::Pending;
use super::unusual::Unjudged;
use super::{LearnBatch, Learner, Shared};
use crate::device::Device;
use crate::event::{EdgeId, NodeId};
use crate::graph::RetentionBounds;
use crate::train::{ComingRows, TrainError};

/// A batch that is learned, without its rows.
pub(super) struct Reflected {
    scored: Unjudged,
    end: EdgeId,
    kept: RetentionBounds,
    /// When its live events began, in milliseconds since the Unix epoch.
    origins_unix_ms: Vec<i64>,
}

/// A batch that is learned, and whose rows a GPU computes.
pub(super) struct Unpublished {
    rows: ComingRows,
    batch: Reflected,
    shared: Shared,
}

impl Reflected {
    /// From now on responses reflect the batch. Its rows are published, and the lock on publications is held.
    pub fn reflect(&self, shared: &Shared) {
        shared.progress.set_learned(self.end);
        shared.progress.set_kept(self.kept);
    }

    /// Reports that they do, and how long the batch's live events took from their origin until now.
    pub fn report(&self, shared: &Shared) {
        let now = unix_seconds();
        for &origin in &self.origins_unix_ms {
            #[allow(clippy::cast_precision_loss)] // milliseconds of today fit a f64
            let seconds = (now - origin as f64 / 1000.0).max(0.0);
            shared.metrics.model.end_to_end_freshness.observe(seconds);
            shared.status.freshness(seconds);
        }
        shared.status.update(|report| report.position = self.end);
    }
}

impl Pending for Unpublished {
    fn hand_over(&mut self) -> Result<(), TrainError> {
        self.batch.scored.judge(&self.shared);
        let (rows, states) = (self.rows.wait()?, &self.shared.engine.states);
        let publication = states.publication();
        self.rows.hand_over(&rows, |node, row, updated| states.publish(node, row, updated));
        self.batch.reflect(&self.shared);
        drop(publication);
        self.batch.report(&self.shared);
        Ok(())
    }
}

impl Learner {
    /// Publishes what `batch`, which was just learned, changes for readers, how unusual the events are that were
    /// `scored`, and its position; later, if a GPU computes the rows.
    ///
    /// # Errors
    /// A GPU's, or storage's; and the trainer cannot go on without it.
    pub(super) fn publish(&mut self, batch: &LearnBatch, scored: Unjudged) -> Result<(), TrainError> {
        let (mut reflected, has_events) = (self.reflected(batch, scored), !batch.edges.is_empty());
        let states = self.shared.engine.states.clone();
        batch.dst.iter().for_each(|&node| states.touched.set_destination(node));
        states.received.observe(&batch.dst, &batch.kinds);
        if has_events && let Some(rows) = self.ask_rows(batch)? {
            self.publisher.push(Unpublished { rows, batch: reflected, shared: self.shared.clone() });
            self.learned = batch.end;
            return self.publish_failed();
        }
        match self.settle() {
            // The batch is learned once, whatever the rows of earlier ones wait for.
            Err(error @ TrainError::Storage(_)) => tracing::error!(%error, "published rows wait for storage"),
            settled => settled?,
        }
        reflected.scored.judge(&self.shared);
        let publication = states.publication();
        if has_events {
            self.publish_batch()?;
        }
        batch.node_rows.set_later(&self.node_rows);
        batch.node_rows.nodes().for_each(|node| states.touch(node));
        self.forget(&batch.deleted);
        self.learned = batch.end;
        reflected.reflect(&self.shared);
        drop(publication);
        reflected.report(&self.shared);
        Ok(())
    }

    /// Removes deleted nodes from the model and from what readers see. Nodes that lose a message from one are published
    /// with their memory from before it.
    fn forget(&mut self, deleted: &[NodeId]) {
        if deleted.is_empty() {
            return;
        }
        let states = &self.shared.engine.states;
        let affected = self.trainer.forget(deleted);
        let state = self.trainer.state();
        for &node in deleted.iter().chain(&affected) {
            match state.written_row(node) {
                Some((row, updated)) => states.publish(node, &row, updated),
                None => states.forget(node),
            }
        }
        deleted.iter().for_each(|&node| states.touched.forget(node));
        self.shared.engine.anomalies.forget(deleted);
        deleted.iter().for_each(|node| self.node_rows.clear(u64::from(node.0)));
        self.pool.remove(deleted);
        self.deleted.extend_from_slice(deleted);
    }

    /// What readers are to see of `batch`. Freshness is that of live events; what was in the log at the start is left
    /// out, since its age does not measure the daemon.
    fn reflected(&self, batch: &LearnBatch, scored: Unjudged) -> Reflected {
        let is_live = |origin: &i64| *origin >= self.options.began_unix_ms;
        let origins = batch.origins_unix_ms.iter().copied().filter(is_live);
        let origins_unix_ms = if batch.first < self.start.until { Vec::new() } else { origins.collect() };
        Reflected { scored, end: batch.end, kept: batch.kept, origins_unix_ms }
    }

    /// Asks the GPU for the rows that `batch`, whose step was just taken, leaves to readers. `None` if the loop is to
    /// publish it.
    ///
    /// # Errors
    /// The GPU's, and the trainer cannot go on without it.
    fn ask_rows(&mut self, batch: &LearnBatch) -> Result<Option<ComingRows>, TrainError> {
        let changes_more = !batch.deleted.is_empty() || batch.node_rows.nodes().next().is_some();
        if *self.trainer.device() == Device::Cpu || changes_more {
            return Ok(None);
        }
        let placed = self.placed();
        let model = placed.as_deref().unwrap_or_else(|| self.trainer.model());
        match self.trainer.ask_rows(model, &self.at_hand.prepared) {
            Ok(rows) => Ok(Some(rows)),
            // The batch is learned: only its rows are computed again.
            Err(error) => self.leave_gpu(error).map(|()| None),
        }
    }

    /// Waits until readers have all that was handed over.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        self.publisher.settle();
        self.publish_failed()
    }

    /// Publishes on the CPU what a GPU is known to have failed to compute.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); what is left is published at another call.
    pub(super) fn publish_failed(&mut self) -> Result<(), TrainError> {
        while let Some((mut unpublished, error)) = self.publisher.take_failed() {
            let published = self.publish_again(&mut unpublished, error);
            if published.is_err() {
                self.publisher.put_back(unpublished);
                return published;
            }
        }
        Ok(())
    }

    fn publish_again(
        &mut self,
        Unpublished { rows, batch, shared }: &mut Unpublished,
        error: Option<TrainError>,
    ) -> Result<(), TrainError> {
        if let Some(error) = error
            && *self.trainer.device() != Device::Cpu
        {
            self.leave_gpu(error)?;
        }
        batch.scored.judge(shared);
        let publication = shared.engine.states.publication();
        self.publish_rows(batch.kept, rows.nodes())?;
        batch.reflect(shared);
        drop(publication);
        batch.report(shared);
        Ok(())
    }
}
