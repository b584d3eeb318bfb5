//! Remembering a batch: memory is written back, then each node's last event becomes its pending message (or, in a model
//! that averages them, the mean of all its events' messages: see [`tgn`](super::tgn)).
//!
//! Of several events of one node in a batch only the last by (event time, edge id) leaves a message, in
//! whichever role the node played. All rows are written before any message is built, so both ends of an
//! event store the other's row as it is after the batch's update, whatever the order of events.

use super::{DistinctNodes, Mailbox, ModelState};
use crate::event::{EdgeId, EventTime, NodeId};

/// Events of a batch: equally long columns.
#[derive(Clone, Copy, Debug)]
pub struct Interactions<'a> {
    /// Source nodes.
    pub src: &'a [NodeId],
    /// Destination nodes.
    pub dst: &'a [NodeId],
    /// Event times.
    pub times: &'a [EventTime],
    /// Edge ids: the order of events of equal time, and where their features are.
    pub edges: &'a [EdgeId],
}

impl Interactions<'_> {
    /// Of one of the events: the other end than `node`, the edge and the time.
    pub(crate) fn of(&self, node: NodeId, event: usize) -> (NodeId, EdgeId, EventTime) {
        let other = if self.src[event] == node { self.dst[event] } else { self.src[event] };
        (other, self.edges[event], self.times[event])
    }
}

/// The distinct nodes of a batch, in order of first appearance, each with its last event.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    nodes: DistinctNodes,
    /// Per node, the place in the batch of its last event.
    last: Vec<u32>,
    /// Source and destination of each event, and their slots.
    ends: (Vec<NodeId>, Vec<u32>),
}

impl Touched {
    /// Takes in a batch in place of what was there.
    pub fn build(&mut self, batch: &Interactions<'_>) {
        let Self { nodes, last, ends: (ends, slots) } = self;
        ends.clear();
        ends.extend(batch.src.iter().zip(batch.dst).flat_map(|(&src, &dst)| [src, dst]));
        nodes.clear();
        slots.clear();
        nodes.insert_all(ends, slots);
        last.clear();
        for (end, &slot) in slots.iter().enumerate() {
            let event = end / 2;
            let Some(last) = last.get_mut(slot as usize) else {
                last.push(event as u32);
                continue;
            };
            let before = *last as usize;
            if (batch.times[event], batch.edges[event]) >= (batch.times[before], batch.edges[before]) {
                *last = event as u32;
            }
        }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[NodeId] {
        self.nodes.nodes()
    }

    /// Per node of [`nodes`](Self::nodes), the place in the batch of its last event.
    #[must_use]
    pub fn last_events(&self) -> &[u32] {
        &self.last
    }

    /// The place of `node` among [`nodes`](Self::nodes).
    pub(super) fn slot(&self, node: NodeId) -> Option<usize> {
        self.nodes.slot(node).map(|slot| slot as usize)
    }

    /// Makes an empty message of each node's last event wait for it.
    pub(super) fn leave_last(&self, batch: &Interactions<'_>, mailbox: &mut Mailbox) {
        for (&node, &last) in self.nodes().iter().zip(&self.last) {
            let (other, edge, time) = batch.of(node, last as usize);
            mailbox.post(node, other, edge, time).fill(0.0);
        }
    }

    /// The place in the batch of the last event of `node`, if it has one there.
    #[must_use]
    pub fn last(&self, node: NodeId) -> Option<usize> {
        let slot = self.nodes.slot(node)?;
        self.last.get(slot as usize).map(|&event| event as usize)
    }
}

impl ModelState {
    /// Writes the fresh memory row of every touched node, then stores the batch's messages. `fresh(i)`
    /// is the row of `touched.nodes()[i]` after its pending message (`memory_dim` values).
    ///
    /// A row with a value that is not finite is not written, and the node keeps the one it has. Returns
    /// how many rows were refused. Without memory there are only the times of the events to write, and walks to count.
    pub fn update<'r>(
        &mut self,
        batch: &Interactions<'_>,
        touched: &Touched,
        fresh: impl Fn(usize) -> &'r [f32],
    ) -> usize {
        let refused = self.write_back(batch, touched, fresh);
        if self.memory.dimension() > 0 {
            for (&node, &last) in touched.nodes().iter().zip(&touched.last) {
                let (other, edge, time) = batch.of(node, last as usize);
                let values = self.mailbox.post(node, other, edge, time);
                self.memory.row_into(other, values);
            }
        }
        refused
    }

    /// Notes when the stream began. What the first events do not stand near to was not the begin.
    fn begin(&mut self, batch: &Interactions<'_>) {
        if self.began.is_confirmed() {
            return;
        }
        for (&edge, &time) in batch.edges.iter().zip(batch.times) {
            if !self.began.is_confirmed() {
                self.began.observe(edge, time);
            }
        }
        let Some((first, latest)) = self.began.covered() else { return };
        let origin = self.origin.or_else(|| batch.times.iter().min().copied());
        self.origin = origin.map(|origin| if (first..=latest).contains(&origin) { origin } else { first });
    }

    /// The first half of [`update`](Self::update): no message is left, and the next one's are not built yet.
    pub(super) fn write_back<'r>(
        &mut self,
        batch: &Interactions<'_>,
        touched: &Touched,
        fresh: impl Fn(usize) -> &'r [f32],
    ) -> usize {
        self.begin(batch);
        if let Some(walks) = &mut self.walks {
            walks.observe(batch.src, batch.dst, batch.times);
        }
        if self.memory.dimension() == 0 {
            for (&node, &last) in touched.nodes().iter().zip(&touched.last) {
                self.memory.write(node, &[], batch.times[last as usize]);
            }
            return 0;
        }
        let mut refused = 0;
        for (i, &node) in touched.nodes().iter().enumerate() {
            let Some(message) = self.mailbox.pending(node) else { continue };
            let row = fresh(i);
            if row.iter().all(|value| value.is_finite()) {
                self.memory.write(node, row, message.time);
            } else {
                refused += 1;
            }
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TgnOptions;

    #[test]
    fn one_early_time_is_not_taken_for_the_begin_of_the_stream() {
        for place in [0, 5, 15] {
            let needs = TgnOptions { memory_dim: 1, ..TgnOptions::default() }.needs();
            let mut state = ModelState::new(&needs);
            for batch in 0..4_usize {
                let events: Vec<usize> = (batch * 5..batch * 5 + 5).collect();
                let time = |&i: &usize| EventTime(if i == place { 0 } else { 1_700_000_000 + i as i64 });
                let (times, nodes): (Vec<_>, Vec<_>) = events.iter().map(|i| (time(i), NodeId(1))).unzip();
                let edges: Vec<_> = events.iter().map(|&i| EdgeId(i as u64)).collect();
                let batch = Interactions { src: &nodes, dst: &nodes, times: &times, edges: &edges };
                let mut touched = Touched::default();
                touched.build(&batch);
                state.update(&batch, &touched, |_| &[0.0]);
            }
            let began = 1_700_000_000 + i64::from(place == 0);
            assert_eq!(state.origin, Some(EventTime(began)), "{place}");
            assert!(state.since_update(NodeId(7), EventTime(began + 50)) == 50.0);
            let mut bytes = Vec::new();
            state.write(&mut bytes).unwrap();
            assert!(ModelState::read(&mut &bytes[..], &needs).unwrap() == state);
        }
    }

    #[test]
    fn the_last_event_by_time_then_edge_leaves_the_message() {
        let options = TgnOptions { memory_dim: 1, edge_feature_dim: 1, ..TgnOptions::default() };
        let mut state = ModelState::new(&options.needs());
        let nodes = |ids: [u32; 4]| ids.map(NodeId);
        let (src, dst) = (nodes([1, 2, 1, 5]), nodes([2, 3, 4, 5]));
        let times = [20, 30, 20, 10].map(EventTime);
        let edges = [0, 1, 2, 3].map(EdgeId);
        let batch = Interactions { src: &src, dst: &dst, times: &times, edges: &edges };
        let mut touched = Touched::default();
        touched.build(&batch);
        let refused = state.update(&batch, &touched, |_| &[7.0]);
        assert_eq!((refused, state.origin), (0, Some(EventTime(10))));
        let last = |node| state.mailbox.pending(NodeId(node)).map(|message| message.edge.0);
        assert_eq!([1, 2, 3, 4, 5, 0].map(last), [Some(2), Some(1), Some(1), Some(2), Some(3), None]);
        assert_eq!(state.mailbox.pending(NodeId(4)).unwrap().values, [0.0]);
        assert_eq!([1, 4, 9].map(|node| touched.last(NodeId(node))), [Some(2), Some(2), None]);
        assert!(state.memory.is_empty(), "nothing was pending, so nothing is written");

        let next = [4, 5, 6, 7].map(EdgeId);
        let later = [40, 41, 42, 43].map(EventTime);
        let batch = Interactions { times: &later, edges: &next, ..batch };
        let row = |i: usize| if i == 0 { &[f32::NAN][..] } else { &[7.0] };
        assert_eq!(state.update(&batch, &touched, row), 1);
        assert_eq!(state.memory.row(NodeId(1)), None, "a row that is not finite is refused");
        assert_eq!(state.memory.row(NodeId(4)), Some(&[7.0][..]));
        assert_eq!(state.memory.updated(NodeId(2)), EventTime(30));
    }
}
