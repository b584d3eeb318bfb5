//! The second stage of preparing a batch: which messages will wait for its nodes. Its first half reads the mailbox,
//! which a step changes; the other half, which looks up every edge, may run beside a step.

use std::time::Instant;

use super::foreseen::Foreseen;
use super::prepare::{PreparedBatch, Preparer, lap};
use super::trainer::StepMode;
use crate::event::{EdgeId, EventTime, NodeId};
use crate::feature::FeatureStore;
use crate::model::Mailbox;

impl Preparer {
    /// Notes which message will wait for each node of the batch when its step begins, and numbers their edges: the
    /// second stage. `pending` returns the event that left it.
    pub fn expect(&self, pending: impl Fn(NodeId) -> Option<(EdgeId, EventTime)>, batch: &mut PreparedBatch) {
        self.note(pending, batch);
        self.number_messages(batch);
    }

    /// The first half of [`expect`](Self::expect): reads the mailbox.
    fn note(&self, pending: impl Fn(NodeId) -> Option<(EdgeId, EventTime)>, batch: &mut PreparedBatch) {
        if !self.needs.reads_messages() {
            return;
        }
        batch.number = 0;
        let mut clock = Instant::now();
        let nodes = match batch.mode {
            StepMode::StateOnly => batch.touched.nodes(),
            StepMode::Train | StepMode::Score => batch.neighborhood.nodes().nodes(),
        };
        batch.rows.note_messages(nodes, pending);
        batch.gather_seconds += lap(&mut clock);
    }

    /// The other half: works on the batch alone.
    pub(super) fn number_messages(&self, batch: &mut PreparedBatch) {
        if !self.needs.reads_messages() {
            return;
        }
        let mut clock = Instant::now();
        let read = batch.nodes_read(batch.share, batch.nodes().len());
        batch.rows.number_messages(read, batch.since);
        batch.gather_seconds += lap(&mut clock);
    }

    /// As [`expect`](Self::expect), while the steps of the batches `before` it are still to come or are computed, the
    /// last of them first.
    pub fn expect_behind(&self, before: &[&PreparedBatch], mailbox: &Mailbox, batch: &mut PreparedBatch) {
        self.note_behind(before, mailbox, batch);
        self.number_messages(batch);
    }

    /// The first half of that: [`number_messages`](Self::number_messages) is to come.
    pub(super) fn note_behind(
        &self,
        before: &[&PreparedBatch],
        mailbox: &Mailbox,
        batch: &mut PreparedBatch,
    ) {
        let left = |node| before.iter().find_map(|batch| batch.leaves(node));
        self.note(|node| left(node).or_else(|| mailbox.pending_event(node)), batch);
    }

    /// What a GPU that keeps edge rows has to know of the batch.
    pub(super) fn foreseen(&self, edge_features: &FeatureStore, batch: &PreparedBatch) -> Foreseen {
        Foreseen::of(&self.needs, self.rows.as_deref(), edge_features, &batch.rows)
    }
}
