//! What readers see of a batch that is learned: rows of nodes, and behind them the position.
//!
//! Where a GPU computes the rows, they are handed over beside the steps behind the batch
//! ([`Publisher`](super::publisher::Publisher)). A batch that deletes nodes is published by the loop, because readers
//! get a deletion with its position. Which nodes have received events of which types is shown at once.
//!
//! What cannot be published, because the GPU that computed it is lost, is [`Owed`]: rows of all those nodes as they are
//! when that is made good, and then the last position.

use std::time::Instant;

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
    /// Nodes that got rows of their own.
    touched: Vec<NodeId>,
    /// When its live events began, in milliseconds since the Unix epoch.
    origins_unix_ms: Vec<i64>,
}

/// A batch that is learned, and whose rows a GPU computes.
pub(super) struct Unpublished {
    rows: ComingRows,
    batch: Reflected,
    shared: Shared,
    /// When its rows were asked for.
    asked: Instant,
}

/// What readers are still to get.
#[derive(Default)]
pub(super) struct Owed {
    nodes: Vec<NodeId>,
    /// The last of the batches.
    batch: Option<Reflected>,
}

impl Owed {
    /// Adds a batch that was learned behind the others, with the nodes whose rows it changed.
    fn add(&mut self, nodes: &[NodeId], batch: Reflected) {
        self.nodes.extend_from_slice(nodes);
        let earlier = self.batch.replace(batch);
        if let (Some(earlier), Some(batch)) = (earlier, &mut self.batch) {
            batch.touched.extend(earlier.touched);
            batch.origins_unix_ms.extend(earlier.origins_unix_ms);
        }
    }
}

impl Reflected {
    /// From now on responses reflect the batch. Its rows are published, and the lock on publications is held.
    fn reflect(&self, shared: &Shared) {
        self.touched.iter().for_each(|&node| shared.engine.states.touch(node));
        shared.progress.set_learned(self.end);
        shared.progress.set_kept(self.kept);
    }

    /// Reports that they do, and how long the batch's live events took from their origin until now.
    fn report(&self, shared: &Shared) {
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
        let seconds = self.asked.elapsed().as_secs_f64();
        self.shared.metrics.train.step_duration.with_label_values(&["hand_over"]).observe(seconds);
        Ok(())
    }
}

impl Learner {
    /// Publishes what `batch`, which was just learned, changes for readers, how unusual the events are that were
    /// `scored`, and its position; later, if a GPU computes the rows.
    ///
    /// # Errors
    /// The trainer cannot go on.
    pub(super) fn publish(&mut self, batch: &LearnBatch, scored: Unjudged) -> Result<(), TrainError> {
        // Whatever comes of it, the batch is learned once.
        self.learned = batch.end;
        let (mut reflected, has_events) = (self.reflected(batch, scored), !batch.edges.is_empty());
        let states = self.shared.engine.states.clone();
        batch.dst.iter().for_each(|&node| states.touched.set_destination(node));
        states.received.observe(&batch.dst, &batch.kinds);
        batch.node_rows.set_later(&self.node_rows);
        if has_events && let Some(rows) = self.ask_rows(batch)? {
            let (batch, shared, asked) = (reflected, self.shared.clone(), Instant::now());
            self.publisher.push(Unpublished { rows, batch, shared, asked });
            return Ok(());
        }
        self.publisher.settle();
        self.note_failed()?;
        reflected.scored.judge(&self.shared);
        let publication = states.publication();
        let mut is_published = self.owed.batch.is_none();
        if has_events && is_published {
            is_published = match self.publish_batch() {
                Err(TrainError::Storage(_)) => false,
                published => published.map(|()| true)?,
            };
        }
        self.forget(&batch.deleted);
        if !is_published {
            let nodes = if has_events { self.at_hand.prepared.touched() } else { &[] };
            self.owed.add(nodes, reflected);
            return Ok(());
        }
        reflected.reflect(&self.shared);
        drop(publication);
        reflected.report(&self.shared);
        Ok(())
    }

    /// Publishes what readers are owed.
    ///
    /// # Errors
    /// Storage failed, and they still are; or the trainer cannot go on.
    pub(super) fn publish_owed(&mut self) -> Result<(), TrainError> {
        self.note_failed()?;
        self.owed.nodes.sort_unstable();
        self.owed.nodes.dedup();
        let Some(batch) = &self.owed.batch else { return Ok(()) };
        let states = self.shared.engine.states.clone();
        let publication = states.publication();
        self.publish_rows(batch.kept, &self.owed.nodes)?;
        batch.reflect(&self.shared);
        drop(publication);
        batch.report(&self.shared);
        self.owed = Owed::default();
        Ok(())
    }

    /// Waits until readers have all that was handed over.
    ///
    /// # Errors
    /// As for [`publish_owed`](Self::publish_owed).
    pub(super) fn settle(&mut self) -> Result<(), TrainError> {
        self.publisher.settle();
        self.publish_owed()
    }

    /// Takes what the GPU failed to compute for what is owed, and goes on without the GPU.
    fn note_failed(&mut self) -> Result<(), TrainError> {
        while let Some((Unpublished { rows, mut batch, shared, .. }, error)) = self.publisher.take_failed() {
            batch.scored.judge(&shared);
            self.owed.add(rows.nodes(), batch);
            if let Some(error) = error
                && *self.trainer.device() != Device::Cpu
            {
                self.leave_gpu(error)?;
            }
        }
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
        let touched = batch.node_rows.nodes().collect();
        Reflected { scored, end: batch.end, kept: batch.kept, touched, origins_unix_ms }
    }

    /// Asks the GPU for the rows that `batch`, whose step was just taken, leaves to readers. `None` if the loop is to
    /// publish it.
    ///
    /// # Errors
    /// The GPU's, and the trainer cannot go on without it.
    fn ask_rows(&mut self, batch: &LearnBatch) -> Result<Option<ComingRows>, TrainError> {
        if *self.trainer.device() == Device::Cpu || !batch.deleted.is_empty() {
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
}
