//! Changes of what a trainer has learned that are no steps: nodes and pairs that go, and other weights. Those that a
//! learner makes while it leads, ranks that follow it make, too, before their next step: it forgets nodes, pairs and
//! times of pairs, and goes on from earlier weights.

use super::orders::Change;
use super::trainer::{Trainer, new_adam};
use crate::device::Device;
use crate::event::{EventTime, NodeId};
use crate::model::{Model, ModelError, Weights};

impl Trainer {
    /// Forgets the memory and pending messages of nodes, and the messages that wait for others and hold their
    /// memory; returns those others.
    pub fn forget(&mut self, nodes: &[NodeId]) -> Vec<NodeId> {
        self.note(Change::Forget(nodes));
        self.give_up_ahead();
        self.state.forget(nodes)
    }

    /// Lets go what is known of pairs with nodes that were forgotten. It changes no score.
    pub fn forget_pairs(&mut self, nodes: &[NodeId]) {
        if self.state.walks.is_some() && !nodes.is_empty() {
            self.note(Change::ForgetPairs(nodes));
        }
        if let Some(walks) = &mut self.state.walks {
            walks.forget_pairs(nodes);
        }
    }

    /// Keeps `most` pairs at most, those that were seen last, in a model that knows pairs; 0: any number.
    pub fn limit_pairs(&mut self, most: usize) {
        if let Some(walks) = &mut self.state.walks {
            walks.limit_pairs(most);
        }
    }

    /// Pairs that were last seen before `since` count as never seen from now on.
    pub fn keep_pairs_since(&mut self, since: EventTime) {
        if self.state.walks.is_some() && since > EventTime::MIN {
            self.note(Change::KeepPairsSince(since));
        }
        if let Some(walks) = &mut self.state.walks {
            walks.keep_pairs_since(since);
        }
    }

    /// Replaces the weights. The optimizer starts afresh: its averages belong to the old ones. So does the schedule of
    /// the learning rate.
    ///
    /// # Errors
    /// The weights are of a model of another shape.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), ModelError> {
        let model = Model::with_parameters(self.options.model, weights.parameters())?;
        self.give_up_ahead();
        self.model = model.moved_to(&self.device);
        if self.device != Device::Cpu {
            *self.known.get_mut() = Some(weights.clone());
        }
        self.adam = new_adam(&self.options, &self.device, &self.model);
        self.state.deferred.clear();
        Ok(())
    }

    /// Trains on from these weights, as [`set_weights`](Self::set_weights) does. It counts as a step, so that the
    /// number of steps, which names a version, never names two sets of weights.
    ///
    /// # Errors
    /// The weights are of a model of another shape.
    pub fn go_on_from(&mut self, weights: &Weights) -> Result<(), ModelError> {
        self.set_weights(weights)?;
        self.note(Change::GoOnFrom(weights));
        self.steps += 1;
        Ok(())
    }
}
