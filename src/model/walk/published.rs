//! The row that readers have of a node, in place of the state, and what they make of it: embeddings and rows of pairs.
//!
//! ```text
//! [H_0 .. H_k ; r ; r' ; n]     the vectors as they stand at reading r + r', and how many events the node had
//! ```
//! A reading has more digits than one number of 32 bits; two hold 48 bits of it. The time of the node's last event
//! stands beside the row, as with every model. Zeros are a node that was never seen.

use super::clock::{Clock, left};
use super::features::{PairInputs, Shape};
use super::projection::powers;
use super::recency::{PairTimes, Seen};
use super::{WalkOptions, WalkState};
use crate::event::{EventTime, NodeId};

/// Numbers beside the vectors.
const BESIDE: usize = 3;

/// Values of a row for walks of `steps` edges and vectors of `dimension` values.
pub(super) fn row_dim(steps: usize, dimension: usize) -> usize {
    (steps + 1) * dimension + BESIDE
}

/// A row, read.
struct Known<'a> {
    vectors: &'a [f32],
    reading: f64,
    events: f32,
}

impl<'a> Known<'a> {
    fn of(row: &'a [f32]) -> Self {
        let (vectors, beside) = row.split_at(row.len().saturating_sub(BESIDE));
        let [high, low, events] = beside.first_chunk().copied().unwrap_or_default();
        Self { vectors, reading: f64::from(high) + f64::from(low), events }
    }
}

/// Writes the row of `node` into `out`, which has [`row_dim`] values.
pub(super) fn write_row(state: &WalkState, node: NodeId, out: &mut [f32]) {
    let Some((row, reading)) = state.projection.row(node) else { return out.fill(0.0) };
    let (vectors, beside) = out.split_at_mut(row.len());
    vectors.copy_from_slice(row);
    #[allow(clippy::cast_possible_truncation)] // what is left over is the next number
    let high = reading as f32;
    #[allow(clippy::cast_possible_truncation)]
    let low = (reading - f64::from(high)) as f32;
    beside.copy_from_slice(&[high, low, state.recency.events(node) as f32]);
}

/// One end of a pair, as readers know it.
#[derive(Clone, Copy, Debug)]
pub struct PublishedEnd<'a> {
    /// The node.
    pub node: NodeId,
    /// Its row.
    pub row: &'a [f32],
    /// Time of its last event, if it had one.
    pub last: Option<EventTime>,
}

/// Reads rows of one shape, in a stream that began at `origin`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    shape: Shape,
    clock: Clock,
}

impl Reader {
    pub fn new(options: &WalkOptions, origin: Option<EventTime>) -> Self {
        let shape = Shape { steps: options.steps, dimension: options.dimension };
        Self { shape, clock: Clock::since(options.decay, origin) }
    }

    /// Writes the vectors of a node, each as it counts at `time`.
    pub fn embed(&self, row: &[f32], time: EventTime, out: &mut [f32]) {
        let Known { vectors, reading, .. } = Known::of(row);
        let weights = powers(left(self.clock.reading(time) - reading));
        let d = self.shape.dimension;
        for ((vector, out), weight) in vectors.chunks(d).zip(out.chunks_mut(d)).zip(weights) {
            vector.iter().zip(out).for_each(|(value, out)| *out = value * weight);
        }
    }

    /// Writes the row of the pair from the first end to the second as it stands at `time`: the same numbers that the
    /// state would give, but for the last digits of readings.
    pub fn features(
        &self,
        ends: [PublishedEnd<'_>; 2],
        pair: Option<PairTimes>,
        time: EventTime,
        out: &mut [f32],
    ) {
        let now = self.clock.reading(time);
        let known = ends.map(|end| Known::of(end.row));
        let weights = known.each_ref().map(|known| powers(left(now - known.reading)));
        let events = known.each_ref().map(|known| known.events);
        let seen = Seen::at(time, ends.map(|end| end.node), ends.map(|end| end.last), events, pair);
        self.shape.write(&PairInputs { rows: known.map(|known| known.vectors), weights, seen }, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::walk::Decay;

    /// Event number `i`: its ends, and when it was.
    fn event(i: i64) -> ([NodeId; 2], EventTime) {
        let node = |i: i64| NodeId((i * i % 7) as u32);
        ([node(i), node(i + 3)], EventTime(1_600_000_000 + i * 1_234))
    }

    #[test]
    fn readers_make_of_rows_what_the_state_makes_of_itself() {
        for decay in [Decay::Span(10.0), Decay::Rate(3e-5)] {
            let options = WalkOptions { dimension: 32, decay, ..WalkOptions::default() };
            let mut state = WalkState::new(&options);
            for ([u, v], time) in (0..60).map(event) {
                state.observe(&[u], &[v], &[time]);
            }
            let (reader, time) = (Reader::new(&options, state.origin()), event(70).1);
            let row = |node| {
                let mut row = vec![f32::NAN; row_dim(options.steps, options.dimension)];
                write_row(&state, node, &mut row);
                row
            };
            let last = |node| {
                (0..60).map(event).filter(|(ends, _)| ends.contains(&node)).map(|(_, time)| time).max()
            };
            for (u, v) in (0..9).flat_map(|u| (0..9).map(move |v| (NodeId(u), NodeId(v)))) {
                let rows = [row(u), row(v)];
                let end = |node, row| PublishedEnd { node, row, last: last(node) };
                let (mut expected, mut found) = (vec![f32::NAN; state.feature_count()], vec![]);
                state.features(&[u], &[v], &[time], &mut expected);
                found.resize(expected.len(), f32::NAN);
                reader.features([end(u, &rows[0]), end(v, &rows[1])], state.pair(u, v), time, &mut found);
                for (found, expected) in found.iter().zip(&expected) {
                    let near = (found - expected).abs() <= 1e-6 * expected.abs();
                    assert!(near, "{u:?} {v:?}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn an_embedding_fades_and_products_of_embeddings_are_weights_of_walks() {
        let options = WalkOptions { dimension: 512, decay: Decay::Rate(0.01), ..WalkOptions::default() };
        let mut state = WalkState::new(&options);
        state.observe(&[NodeId(1), NodeId(2)], &[NodeId(5), NodeId(5)], &[EventTime(0), EventTime(0)]);
        let reader = Reader::new(&options, state.origin());
        let embedding = |node, time| {
            let (mut row, mut out) = (vec![0.0; row_dim(3, 512)], vec![f32::NAN; 4 * 512]);
            write_row(&state, NodeId(node), &mut row);
            reader.embed(&row, EventTime(time), &mut out);
            out
        };
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        for (time, left) in [(0, 1.0), (100, (-1.0_f32).exp())] {
            let (one, two, common) = (embedding(1, time), embedding(2, time), embedding(5, time));
            // One edge from 1 to 5; two from 1 by 5 to 2.
            assert!((product(&one[512..1024], &common[..512]) - left).abs() < 1e-4, "{time}");
            assert!((product(&one[512..1024], &two[512..1024]) - left * left).abs() < 1e-4, "{time}");
        }
        assert_eq!(embedding(9, 50), vec![0.0; 4 * 512], "of a node that was never seen");
    }
}
