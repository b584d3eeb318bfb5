//! What bounds the tables of pairs, of nodes with each other and with types: a limit to their number, the retention of
//! the graph, and deletions.

use super::Learner;
use crate::event::EventTime;
use crate::model::walk::WalkState;

impl Learner {
    /// Sets the limit to the number of pairs.
    pub(super) fn limit_pairs(&mut self) {
        self.trainer.limit_pairs(self.options.pairs_max);
        self.shared.engine.states.pairs.limit(self.options.pairs_max);
    }

    /// Pairs from before `since` count as never seen from now on, to the baseline, the model and to requests.
    pub(super) fn keep_pairs_since(&mut self, since: EventTime) {
        self.bank.keep_since(since);
        self.trainer.keep_pairs_since(since);
        self.shared.engine.states.pairs.keep_since(since);
        let evicted = |walks: &WalkState| walks.evicted_pairs();
        let walks = self.trainer.state().walks.as_ref().map_or(0, evicted);
        let metrics = &self.shared.metrics.train.evicted_pairs;
        for (table, evicted) in [("edgebank", self.bank.evicted()), ("walk", walks)] {
            crate::metrics::mirror(&metrics.with_label_values(&[table]), evicted);
        }
    }

    /// Drops the pairs of nodes that were deleted, and those that count as never seen. A deleted node occurs in no
    /// later event, so it is the same to every score when its pairs go.
    pub(super) fn drop_pairs(&mut self) {
        let deleted = std::mem::take(&mut self.deleted);
        self.bank.forget(&deleted);
        self.pool.drop_met(&deleted);
        self.trainer.forget_pairs(&deleted);
        let states = &self.shared.engine.states;
        states.received.forget(&deleted);
        states.pairs.forget(&deleted);
        states.pairs.prune();
    }
}
