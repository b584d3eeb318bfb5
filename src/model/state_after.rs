//! [`StateAfter`]: what a pass reads of a state: as it is, or as a batch will leave it whose step a GPU still computes.
//!
//! What a batch leaves is known before its step is over, but for the values of rows: the message of its last event
//! waits for each node that it touches, and memory that a message waited for is as new as that message. Rows are read
//! where the GPU has them by then (see `mirror`). A row that the step refuses, because it is not finite, makes this
//! wrong: then the pass has to be computed again.

use super::{Interactions, ModelState, NodeMemory, Touched};
use crate::device::Device;
use crate::event::{EdgeId, EventTime, NodeId};

/// A state, and the batch that is about to change it, if one is.
#[derive(Clone, Copy)]
pub struct StateAfter<'a> {
    state: &'a ModelState,
    batch: Option<(&'a Touched, Interactions<'a>)>,
}

impl<'a> From<&'a ModelState> for StateAfter<'a> {
    fn from(state: &'a ModelState) -> Self {
        Self { state, batch: None }
    }
}

impl<'a> StateAfter<'a> {
    /// `state` as `batch`, whose nodes are `touched`, will leave it; only where that [is known](Self::is_known).
    #[must_use]
    pub fn batch(state: &'a ModelState, touched: &'a Touched, batch: Interactions<'a>) -> Self {
        Self { state, batch: Some((touched, batch)) }
    }

    /// Whether what a batch will leave of `state` is known: the begin of the stream is certain, and `device` has all
    /// rows that are read.
    #[must_use]
    pub fn is_known(state: &ModelState, device: &Device) -> bool {
        let has_rows = state.memory.dimension() == 0 || state.mirror.number(device).is_some();
        state.began.is_confirmed() && state.walks.is_none() && has_rows
    }

    /// The state as it is now: rows, and what no batch changes.
    #[must_use]
    pub fn now(&self) -> &'a ModelState {
        self.state
    }

    /// The event whose message waits for `node`, if any: its edge and its time.
    #[must_use]
    pub fn pending_event(&self, node: NodeId) -> Option<(EdgeId, EventTime)> {
        self.left(node).or_else(|| self.state.mailbox.pending_event(node))
    }

    /// `t - tau` of the message that waits for `node`, if any: from when its memory was updated until the event.
    #[must_use]
    pub fn pending_since(&self, node: NodeId) -> Option<f32> {
        let pending = self.state.mailbox.pending_event(node).map(|(_, time)| time);
        let (updated, time) = match self.left(node) {
            // By then the one that waits now is applied.
            Some((_, time)) => (self.written(node, pending), time),
            None => (self.state.memory.updated(node), pending?),
        };
        Some(self.state.since(updated, time))
    }

    /// Time of the latest event of `node`; see [`ModelState::last_event`].
    #[must_use]
    pub fn last_event(&self, node: NodeId) -> Option<EventTime> {
        let updated = Some(self.updated(node)).filter(|&time| time != NodeMemory::NEVER);
        self.pending_event(node).map(|(_, time)| time).max(updated)
    }

    /// The event of the batch whose message waits for `node`, if it leaves one.
    fn left(&self, node: NodeId) -> Option<(EdgeId, EventTime)> {
        let (touched, batch) = self.batch.filter(|_| self.state.memory.dimension() > 0)?;
        touched.last(node).map(|event| (batch.edges[event], batch.times[event]))
    }

    /// When the memory of `node` was last updated.
    fn updated(&self, node: NodeId) -> EventTime {
        let last = self.batch.and_then(|(touched, batch)| Some(batch.times[touched.last(node)?]));
        let written = last.and_then(|time| match self.state.memory.dimension() {
            0 => Some(time),
            _ => self.state.mailbox.pending_event(node).map(|(_, time)| time),
        });
        self.written(node, written)
    }

    /// When the memory of `node` was last updated once it is written at this time, if it is.
    fn written(&self, node: NodeId, time: Option<EventTime>) -> EventTime {
        let updated = self.state.memory.updated(node);
        time.map_or(updated, |time| time.max(updated))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GraphMixerOptions, TgnOptions};

    #[test]
    fn what_a_batch_leaves_is_known_before_it_does() {
        for needs in [
            TgnOptions { memory_dim: 2, ..TgnOptions::default() }.needs(),
            GraphMixerOptions::default().needs(),
        ] {
            let row = vec![0.5; needs.memory_dim];
            let mut state = ModelState::new(&needs);
            for batch in 0..40_u64 {
                // The second event of each batch is late, and nodes are met again.
                let time = |i: u64| EventTime((batch * 3 + i) as i64 * 10 - 25 * i64::from(i % 4 == 1) + 100);
                let times: Vec<_> = (0..3).map(time).collect();
                let edges: Vec<_> = (0..3).map(|i| EdgeId(batch * 3 + i)).collect();
                let node = |i: u64| NodeId((batch * 7 % 11 + i * 3) as u32 % 13);
                let (src, dst): (Vec<_>, Vec<_>) = (0..3).map(|i| (node(i), node(i + 2))).unzip();
                let events = Interactions { src: &src, dst: &dst, times: &times, edges: &edges };
                let mut touched = Touched::default();
                touched.build(&events);
                let seen = |after: &StateAfter<'_>| {
                    let of = |node| {
                        let node = NodeId(node);
                        let since = after.pending_since(node).map(f32::to_bits);
                        (after.pending_event(node), after.last_event(node), since)
                    };
                    (0..16).map(of).collect::<Vec<_>>()
                };
                let before = StateAfter::batch(&state, &touched, events);
                let (known, expected) = (state.began.is_confirmed(), seen(&before));
                state.update(&events, &touched, |_| &row);
                for node in (0..16).map(NodeId) {
                    let time = state.mailbox.pending_event(node).map(|(_, time)| time);
                    let since = time.map(|time| state.since_update(node, time));
                    assert_eq!(StateAfter::from(&state).pending_since(node), since);
                }
                assert!(!known || seen(&StateAfter::from(&state)) == expected, "batch {batch}");
            }
            assert!(state.began.is_confirmed());
        }
    }
}
