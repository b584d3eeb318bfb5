//! What the learner has published, as changes that another process can apply: a leader takes them, its replicas apply
//! them, and from then on respond as the leader does.
//!
//! [`StateChanges::take`] is consistent: it holds the lock under which the learner publishes a batch, for as long as a
//! copy-on-write view of the rows takes, and so has the rows of exactly the log position that it names. Rows are read
//! from that view afterwards. [`StateFollower`] collects what arrives until a [`StateMark`] comes, and applies it under
//! the same lock when the graph holds that position and no earlier one was applied: a leader that has started again
//! learns a part of the log once more, and its rows replace the earlier ones only as a whole.

use std::sync::Arc;

use hashbrown::HashMap;

use super::{NodeStates, QueryEngine, QueryError, Source};
use crate::event::{EdgeId, EventTime, NodeId};
use crate::graph::RetentionBounds;
use crate::model::Weights;
use crate::model::walk::PairTimes;

/// The published row of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct StateRow {
    /// The node.
    pub node: NodeId,
    /// Whether it was the destination of an event.
    pub is_destination: bool,
    /// The types of those events, by number.
    pub types: Vec<u16>,
    /// The row and when an event last changed it; `None`: there is none any more.
    pub row: Option<(EventTime, Vec<f32>)>,
}

/// Where changes lead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateMark {
    /// Every record below this position is in the rows.
    pub position: EdgeId,
    /// What the learner may still read.
    pub kept: RetentionBounds,
    /// Time of the first event, where the model needs it.
    pub origin: Option<EventTime>,
    /// Version of the weights and what scores pairs; `None` while nothing is served.
    pub served: Option<(u64, Source)>,
}

/// What is sent as a whole, as it was sent last.
#[derive(Clone, Debug, Default)]
pub struct SentStates {
    weights: Option<Arc<Weights>>,
    surprises: Option<Arc<Vec<f32>>>,
}

/// What has changed since the last time.
pub struct StateChanges {
    /// Where it leads.
    pub mark: StateMark,
    /// The weights that are served, if they are others than the last time.
    pub weights: Option<Arc<Weights>>,
    /// Nodes whose rows have changed.
    pub nodes: Vec<NodeId>,
    /// Pairs that were seen, and when.
    pub pairs: Vec<(u64, PairTimes)>,
    /// The surprises that percentiles are shares of, if they are others than the last time.
    pub surprises: Option<Arc<Vec<f32>>>,
    states: NodeStates,
    engine: Arc<QueryEngine>,
}

impl StateChanges {
    /// Records changes from now on, for [`take`](Self::take). Called before the learner publishes its first rows, so
    /// that the first changes are all there is.
    pub fn follow(states: &NodeStates) {
        states.shipped.follow();
        states.pairs.follow();
    }

    /// Takes what has changed since `sent`.
    #[must_use]
    pub fn take(engine: &Arc<QueryEngine>, sent: &SentStates) -> Self {
        let (states, progress) = (&engine.states, &engine.progress);
        let publication = states.publication();
        let mut nodes = Vec::new();
        states.shipped.take(&mut nodes);
        let pairs = states.pairs.take_changed();
        let served = engine.served();
        let mark = StateMark {
            position: progress.learned(),
            kept: progress.kept(),
            origin: states.origin(),
            served: served.as_ref().map(|(weights, scores)| (weights.version, *scores)),
        };
        let frozen = states.frozen();
        let surprises = engine.anomalies.surprises();
        drop(publication);
        let weights = served.map(|(weights, _)| weights);
        let weights = weights.filter(|weights| sent.weights.as_ref().is_none_or(|sent| !sent.is(weights)));
        let is_sent = sent.surprises.as_ref().is_some_and(|sent| Arc::ptr_eq(sent, &surprises));
        let surprises = (!is_sent).then_some(surprises);
        Self { mark, weights, nodes, pairs, surprises, states: frozen, engine: engine.clone() }
    }

    /// What replicas have when these have arrived.
    pub fn note(&self, sent: &mut SentStates) {
        sent.weights = self.weights.clone().or(sent.weights.take());
        sent.surprises = self.surprises.clone().or(sent.surprises.take());
    }

    /// Whether there is nothing but the mark.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.pairs.is_empty() && self.weights.is_none() && self.surprises.is_none()
    }

    /// The row of one of the nodes.
    #[must_use]
    pub fn row(&self, node: NodeId) -> StateRow {
        let published = &self.engine.states;
        let is_destination = published.touched.is_destination(node);
        let types = if is_destination { published.received.of(node) } else { Vec::new() };
        let row = self.states.updated(node).map(|updated| {
            let mut row = vec![0.0; self.states.dimension()];
            self.states.gather(&[node], 0..self.states.dimension(), &mut row);
            (updated, row)
        });
        StateRow { node, is_destination, types, row }
    }

    /// Makes the changes due again: they did not arrive.
    pub fn give_back(self) {
        let states = &self.engine.states;
        self.nodes.iter().for_each(|&node| states.shipped.touch(node));
        states.pairs.change_again(self.pairs.into_iter().map(|(key, _)| key));
    }
}

/// What became of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Responses reflect it.
    Yes,
    /// The graph does not hold its position yet: to be tried again.
    NotIndexed,
    /// Later rows were applied; these wait for a mark that has caught up with them.
    Behind,
}

/// Applies changes to what readers see.
pub struct StateFollower {
    engine: Arc<QueryEngine>,
    rows: HashMap<NodeId, StateRow>,
    pairs: HashMap<u64, PairTimes>,
    weights: Option<Weights>,
    surprises: Option<Vec<f32>>,
    /// Deleted nodes whose pairs are still there.
    gone: Vec<NodeId>,
}

/// So many deleted nodes are collected before all pairs are visited for them.
const GONE_MAX: usize = 1000;

impl StateFollower {
    /// Nothing was received yet.
    #[must_use]
    pub fn new(engine: Arc<QueryEngine>) -> Self {
        let (rows, pairs) = (HashMap::new(), HashMap::new());
        Self { engine, rows, pairs, weights: None, surprises: None, gone: Vec::new() }
    }

    /// Receives a row, to be applied with the next mark.
    pub fn take_row(&mut self, row: StateRow) {
        self.rows.insert(row.node, row);
    }

    /// Receives when a pair was seen.
    pub fn take_pair(&mut self, key: u64, times: PairTimes) {
        self.pairs.insert(key, times);
    }

    /// Receives the surprises that percentiles are shares of.
    pub fn take_surprises(&mut self, surprises: Vec<f32>) {
        self.surprises = Some(surprises);
    }

    /// Receives the weights to be served.
    pub fn take_weights(&mut self, weights: Weights) {
        self.weights = Some(weights);
    }

    /// Rows and pairs that wait for a mark.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.rows.len() + self.pairs.len()
    }

    /// Applies what was received, if it can be.
    ///
    /// # Errors
    /// The rows or the weights do not fit the settings.
    pub fn apply(&mut self, mark: &StateMark) -> Result<Applied, QueryError> {
        let engine = self.engine.clone();
        let (states, progress) = (&engine.states, &engine.progress);
        if mark.position < progress.learned() {
            return Ok(Applied::Behind);
        }
        if progress.indexed() < mark.position {
            return Ok(Applied::NotIndexed);
        }
        self.check()?;
        let publication = states.publication();
        mark.origin.into_iter().for_each(|origin| states.set_origin(origin));
        for (node, row) in self.rows.drain() {
            match row.row {
                // A name that is gone was deleted since: its row may still be on its way out.
                Some((updated, values)) if engine.stores.keys.is_named(node) => {
                    states.publish(node, &values, updated);
                    if row.is_destination {
                        states.touched.set_destination(node);
                        states.received.observe(&vec![node; row.types.len()], &row.types);
                    }
                }
                _ => {
                    states.forget(node);
                    if !engine.stores.keys.is_named(node) {
                        states.touched.forget(node);
                        self.gone.push(node);
                    }
                }
            }
        }
        self.pairs.drain().for_each(|(key, times)| states.pairs.publish(key, times));
        if let Some((_, scores)) = mark.served {
            let known = || engine.served().map(|(weights, _)| (*weights).clone());
            if let Some(weights) = self.weights.take().or_else(known) {
                engine.publish_for(weights, scores)?;
            }
        }
        self.surprises.take().into_iter().for_each(|surprises| engine.anomalies.publish(surprises));
        progress.set_learned(mark.position);
        drop(publication);
        progress.set_kept(mark.kept);
        states.pairs.keep_since(mark.kept.since);
        if self.gone.len() >= GONE_MAX {
            let gone = std::mem::take(&mut self.gone);
            states.received.forget(&gone);
            states.pairs.forget(&gone);
            states.pairs.prune();
        }
        Ok(Applied::Yes)
    }

    /// Whether every row has as many numbers as the model of the settings reads.
    fn check(&self) -> Result<(), QueryError> {
        let expected = self.engine.states.dimension();
        let lengths = self.rows.values().filter_map(|row| row.row.as_ref()).map(|(_, row)| row.len());
        match lengths.into_iter().find(|&found| found != expected) {
            Some(found) => Err(QueryError::Mismatch { what: "node state", expected, found }),
            None => Ok(()),
        }
    }
}
