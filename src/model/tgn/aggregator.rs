//! Of several raw messages for one node in a batch, which one waits: the last, or their mean.
//!
//! ```text
//! m_i       = [s_u ; s_v ; e'_i ; phi(t_i - tau_u)]      one for each of the batch's events of u, with either end as v
//! last      m = m_i of the greatest (t_i, i)
//! mean      m = sum_i m_i / n                            n: number of them; an event of u with itself is one
//! ```
//! Either counts as of the time of the last; both are in the paper. The last one is identified by its event (see
//! [`Mailbox`](crate::model::Mailbox)); of a mean the mailbox keeps all that is not learned, `[s_v ; e ; phi]`, as it
//! is at the state update of the batch: s_u and tau_u stay what they are until the message is applied. What is learned,
//! the rows of types, is read when it is applied, so the table learns as it does from the last message; for this the
//! mailbox keeps whom each message was from and the type of its edge.

use std::sync::Arc;

use super::Tgn;
use crate::event::NodeId;
use crate::model::mailbox::Part;
use crate::model::{Interactions, MessageRows, ModelState, Touched};
use crate::nn::{Groups, ParamId, Reduce, Tape, Var};

/// Which of a batch's raw messages for one node waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregator {
    /// The last one.
    Last,
    /// The mean of all.
    Mean,
}

impl Tgn {
    /// Makes the mean of a batch's messages wait for each of its nodes, once memory is written back. `rows` are those
    /// of the edges of its events, one after another.
    pub(in crate::model) fn leave_means(
        &self,
        tape: &mut Tape<'_>,
        state: &mut ModelState,
        batch: &Interactions<'_>,
        touched: &Touched,
        rows: MessageRows<'_>,
    ) {
        let (memory, features) = (self.options.memory_dim, self.options.edge_feature_dim);
        let ends: Vec<End> = (0..batch.src.len()).flat_map(|event| End::of(batch, event)).collect();
        let since = |end: &End| state.since_update(end.node, batch.times[end.event]);
        let deltas: Vec<f32> = ends.iter().map(since).collect();
        let phi = tape.time_encoding(&deltas, &self.time);
        touched.leave_last(batch, &mut state.mailbox);
        let mut counts = vec![0_u32; touched.nodes().len()];
        let mut other_row = vec![0.0; memory];
        for (i, end) in ends.iter().enumerate() {
            let Some((kind, edge_row)) = rows.of(end.event) else {
                panic!("the feature rows lack the edge of event {} of the batch", end.event)
            };
            state.memory.row_into(end.other, &mut other_row);
            let values = state.mailbox.join(end.node, Part { other: end.other, kind });
            let (others, rest) = values.split_at_mut(memory);
            let (edges, times) = rest.split_at_mut(features);
            add(others, &other_row);
            add(edges, edge_row);
            add(times, tape.value(phi).row(i));
            if let Some(slot) = touched.slot(end.node) {
                counts[slot] += 1;
            }
        }
        for (&node, count) in touched.nodes().iter().zip(counts) {
            let share = 1.0 / count.max(1) as f32;
            state.mailbox.values_mut(node).iter_mut().for_each(|value| *value *= share);
        }
    }

    /// Mean of the rows of the types of the edges whose messages wait for `nodes`, `[nodes, width]`.
    pub(super) fn mean_types(
        &self,
        tape: &mut Tape<'_>,
        types: ParamId,
        state: &ModelState,
        nodes: impl Iterator<Item = NodeId>,
    ) -> Var {
        let (mut kinds, mut offsets) = (Vec::new(), vec![0]);
        for node in nodes {
            kinds.extend(state.mailbox.parts(node).iter().map(|part| part.kind));
            // A batch's messages are counted in 32 bits.
            offsets.push(kinds.len() as u32);
        }
        let types = tape.param(types);
        let kinds = tape.gather(types, kinds);
        tape.reduce(kinds, &Groups::Offsets(Arc::new(offsets)), Reduce::Mean)
    }
}

/// One end of an event, to which it sends a message.
struct End {
    event: usize,
    node: NodeId,
    other: NodeId,
}

impl End {
    /// The different ends of an event.
    fn of(batch: &Interactions<'_>, event: usize) -> impl Iterator<Item = Self> {
        let (src, dst) = (batch.src[event], batch.dst[event]);
        let back = (src != dst).then_some(Self { event, node: dst, other: src });
        std::iter::once(Self { event, node: src, other: dst }).chain(back)
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::event::{EdgeId, EventTime};
    use crate::model::{Model, TgnOptions};
    use crate::nn::Mode;

    #[test]
    fn a_mean_is_over_all_events_of_a_node_and_of_the_time_of_the_last() {
        let options = TgnOptions { memory_dim: 2, time_dim: 2, embedding_dim: 2, ..TgnOptions::default() };
        let options = TgnOptions { aggregator: Aggregator::Mean, ..options };
        let model = Model::new(options, 1, &Device::Cpu).unwrap();
        let mut state = ModelState::new(&options.needs());
        let node = NodeId;
        for (id, row) in [(1, [1.0, 2.0]), (2, [3.0, 5.0]), (3, [-1.0, 0.5])] {
            state.memory.write(node(id), &row, EventTime(100));
        }
        let (src, dst) = ([1, 2, 1, 3].map(node), [2, 2, 3, 1].map(node));
        let (times, edges) = ([100, 101, 104, 102].map(EventTime), [0, 1, 2, 3].map(EdgeId));
        let batch = Interactions { src: &src, dst: &dst, times: &times, edges: &edges };
        let mut touched = Touched::default();
        touched.build(&batch);
        let mut tape = Tape::new(&Device::Cpu, &model.parameters, Mode::Inference);
        let refused =
            model.update_state(&mut tape, &mut state, &batch, &touched, |_| &[], MessageRows::default());
        assert_eq!(refused, 0);
        let message = state.mailbox.pending(node(1)).unwrap();
        assert_eq!((message.edge, message.time), (EdgeId(2), EventTime(104)));
        // The frequencies of two columns are 1 and 1e-9.
        let slow = |deltas: &[f32]| deltas.iter().map(|d| d.cos()).sum::<f32>() / deltas.len() as f32;
        let expected = [1.0 / 3.0, 2.0, slow(&[0.0, 4.0, 2.0]), 1.0];
        let close = |found: &[f32], expected: &[f32]| {
            found.len() == expected.len() && found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
        };
        assert!(close(message.values, &expected), "{:?} {expected:?}", message.values);
        let alone = state.mailbox.pending(node(2)).unwrap().values;
        assert!(close(alone, &[2.0, 3.5, slow(&[0.0, 1.0]), 1.0]), "with itself once: {alone:?}");
        let from = |id| state.mailbox.parts(node(id)).iter().map(|part| part.other.0).collect::<Vec<_>>();
        assert_eq!((from(1), from(2), from(3)), (vec![2, 3, 3], vec![1, 2], vec![1, 1]));
        assert_eq!(state.forget(&[node(2)]), [node(1)], "it holds a row of the forgotten one");
        assert!(state.mailbox.is_pending(node(3)) && state.mailbox.parts(node(1)).is_empty());

        let mut bytes = Vec::new();
        state.write(&mut bytes).unwrap();
        assert_eq!(ModelState::read(&mut &bytes[..], &options.needs()).unwrap(), state);
        for end in 0..bytes.len() {
            assert!(ModelState::read(&mut &bytes[..end], &options.needs()).is_err(), "cut at {end}");
        }
        assert!(
            ModelState::read(
                &mut &bytes[..],
                &TgnOptions { aggregator: Aggregator::Last, ..options }.needs()
            )
            .is_err()
        );
    }
}
