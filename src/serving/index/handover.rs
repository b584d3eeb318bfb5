//! [`Handover`]: embeddings that the index has just computed, on their way to the
//! [change feed](super::super::ChangeFeed), so that a node that both follow is embedded once.
//!
//! The feed leaves nodes that have changed to the index for a turn. Before the index embeds nodes with the weights that
//! are served, it claims those that the feed owes: these are due no more, unless they change again. What was claimed
//! and could not be computed is due as before.
//!
//! A claim holds the lock until its rows are there. So whoever takes rows has those of all claims before, and all that
//! come later are of a later moment. Beyond a bound of bytes nothing is claimed: the feed computes what it still owes.
//! Rows that were taken do not count any more, so as many again may be on their way to the brokers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use super::super::{Moment, QueryEngine, TouchedNodes};
use crate::event::{EventTime, NodeId};
use crate::model::{GatherError, Weights};

/// Rows for the feed.
#[derive(Default)]
pub(in crate::serving) struct Handover {
    /// Nodes that the feed has left to the index.
    pub left: TouchedNodes,
    waiting: Mutex<Waiting>,
    /// Nodes whose rows wait.
    count: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    rows: Vec<HandedRows>,
    bytes: usize,
    /// 0: nothing is claimed.
    bytes_max: usize,
}

/// Rows of nodes at one moment.
pub(in crate::serving) struct HandedRows {
    pub moment: Moment,
    /// When their nodes were claimed.
    pub claimed: Instant,
    pub nodes: Vec<NodeId>,
    /// `[nodes, width]`.
    pub vectors: Vec<f32>,
    /// Time of the latest event of each in the graph.
    pub last_events: Vec<Option<EventTime>>,
}

/// Nodes that the index is about to embed for the feed. Dropped, they are due again.
pub(super) struct Claim<'a> {
    handover: &'a Handover,
    waiting: MutexGuard<'a, Waiting>,
    claimed: Instant,
    moment: Moment,
    /// The nodes, and the places that they have among all that are embedded.
    nodes: Vec<NodeId>,
    places: Vec<usize>,
}

impl Handover {
    /// Takes the rows that wait, and into `left` the nodes that were left and not claimed: together all that was left
    /// before. Waits for a claim that is under way. From now on so many bytes of rows may wait.
    pub fn take(&self, bytes_max: usize, left: &mut Vec<NodeId>) -> Vec<HandedRows> {
        let mut waiting = self.waiting.lock();
        // Under the lock: a claim that fails puts nodes back.
        self.left.take(left);
        self.count.store(0, Ordering::Release);
        std::mem::replace(&mut *waiting, Waiting { bytes_max, ..Waiting::default() }).rows
    }

    /// Nodes that the feed owes and has left, or whose rows wait.
    pub fn count(&self) -> usize {
        self.left.count() + self.count.load(Ordering::Acquire)
    }

    /// Claims those of `nodes` that the feed owes, if `weights` are served and there is room for their rows.
    pub(super) fn claim(
        &self,
        engine: &QueryEngine,
        weights: &Weights,
        nodes: &[NodeId],
    ) -> Option<Claim<'_>> {
        let waiting = self.waiting.lock();
        let row_bytes = bytes_of(1, weights.model().needs().embedding_dim);
        let room = waiting.bytes_max.saturating_sub(waiting.bytes) / row_bytes;
        let (claimed, moment) = (Instant::now(), engine.moment(None).ok()?.without_rows());
        if !moment.weights.is(weights) {
            return None;
        }
        let states = &engine.states;
        // Of both, where both have it.
        let is_owed = |node| [&self.left, &states.changed].map(|owed| owed.take_one(node)).contains(&true);
        let owed = nodes.iter().copied().enumerate().filter(|&(_, node)| states.has(node) && is_owed(node));
        let (places, nodes): (Vec<_>, Vec<_>) = owed.take(room).unzip();
        let mut claim = Claim { handover: self, waiting, claimed, moment, nodes, places };
        if claim.nodes.is_empty() {
            return None;
        }
        // Behind the claim: what was claimed is below the position of its rows, but for changes of the batch that the
        // learner is publishing.
        claim.moment = engine.moment(None).ok().filter(|moment| moment.weights.is(weights))?.without_rows();
        Some(claim)
    }
}

impl HandedRows {
    /// Keeps the rows of the nodes that `keep` accepts; it is asked about the last one first.
    pub fn retain(&mut self, mut keep: impl FnMut(NodeId) -> bool) {
        let mut kept: Vec<bool> = self.nodes.iter().rev().map(|&node| keep(node)).collect();
        kept.reverse();
        if kept.iter().all(|kept| *kept) {
            return;
        }
        let width = self.vectors.len() / self.nodes.len().max(1);
        let mut of_values = kept.iter().flat_map(|&kept| std::iter::repeat_n(kept, width));
        self.vectors.retain(|_| of_values.next().unwrap_or(false));
        let mut of_events = kept.iter();
        self.last_events.retain(|_| of_events.next().copied().unwrap_or(false));
        let mut of_nodes = kept.iter();
        self.nodes.retain(|_| of_nodes.next().copied().unwrap_or(false));
    }

    /// Leaves the first `count` rows and returns the others; `None` if there are none.
    pub fn split_off(&mut self, count: usize) -> Option<Self> {
        let width = self.vectors.len() / self.nodes.len().max(1);
        (self.nodes.len() > count).then(|| Self {
            moment: self.moment.clone(),
            claimed: self.claimed,
            nodes: self.nodes.split_off(count),
            vectors: self.vectors.split_off(count * width),
            last_events: self.last_events.split_off(count),
        })
    }
}

impl Claim<'_> {
    /// The time that the rows are to be for.
    pub(super) fn at(&self) -> EventTime {
        self.moment.at
    }

    /// Hands over the rows of the nodes that were claimed, out of all that were embedded.
    ///
    /// # Errors
    /// Edges cannot be read: the nodes are due again.
    pub(super) fn fulfill(mut self, engine: &QueryEngine, vectors: &[f32]) -> Result<(), GatherError> {
        let width = self.moment.weights.model().needs().embedding_dim;
        let last_event = |&node| engine.stores.graph.last_event(node);
        let last_events = self.nodes.iter().map(last_event).collect::<Result<_, _>>()?;
        let vectors = self.places.iter().flat_map(|place| &vectors[place * width..][..width]);
        let vectors = vectors.copied().collect();
        let (nodes, moment, claimed) = (std::mem::take(&mut self.nodes), self.moment.clone(), self.claimed);
        self.handover.count.fetch_add(nodes.len(), Ordering::AcqRel);
        self.waiting.bytes += bytes_of(nodes.len(), width);
        self.waiting.rows.push(HandedRows { moment, claimed, nodes, vectors, last_events });
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // The feed computes them at its next turn.
        self.nodes.drain(..).for_each(|node| self.handover.left.touch(node));
    }
}

/// Bytes of the rows of so many nodes.
fn bytes_of(nodes: usize, width: usize) -> usize {
    nodes * (size_of::<NodeId>() + size_of::<Option<EventTime>>() + width * size_of::<f32>())
}
