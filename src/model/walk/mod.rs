//! Walk projections: a link scorer without neighbor sampling, after TPNet (Lu et al., NeurIPS 2024).
//!
//! Every node has `k + 1` short vectors ([`projection`]) whose inner products estimate how many walks of up
//! to `k` edges lead from each of two nodes to a common one, each edge counting less the older it is
//! ([`clock`]). Beside them stands when nodes and pairs were last seen ([`recency`]). For a pair these give
//! one row of numbers ([`features`]), and a small network turns the row into a logit ([`network`]).
//!
//! The state stays with who trains. Readers get a row of each node ([`published`]) and the times of pairs.
//!
//! An event costs `2 k` additions of a vector and two lookups, whatever the number of nodes: a row is
//! decayed when it is touched, not when time passes. Reading changes nothing. What a batch leaves behind is
//! what its events leave one after another.
//!
//! Knows nothing of losses, optimizers, protocols or requests.

mod clock;
mod features;
mod network;
mod options;
mod projection;
mod published;
mod recency;

use std::io::{Read, Write};

pub use clock::Decay;
pub use network::WalkNetwork;
pub use options::{WalkOptions, WalkOptionsError};
pub use published::PublishedEnd;
pub use recency::PairTimes;

use rayon::prelude::*;

use self::features::{PairInputs, Shape};
use self::projection::WalkProjection;
use self::recency::Recency;
use super::{StateError, tables};
use crate::event::{EventTime, NodeId};

/// First bytes of a stored state.
const MAGIC: u64 = u64::from_le_bytes(*b"EVGWALK3");

/// Pairs whose features one thread computes at a time.
const PIECE: usize = 50;

/// Rows are at random places: those of the pair so many further on are asked for ahead.
const AHEAD: usize = 2;

/// The state of walk projections over a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct WalkState {
    projection: WalkProjection,
    recency: Recency,
}

impl WalkState {
    /// Has seen nothing. The options describe a model.
    #[must_use]
    pub fn new(options: &WalkOptions) -> Self {
        Self { projection: WalkProjection::new(options), recency: Recency::new() }
    }

    /// Numbers per pair.
    #[must_use]
    pub fn feature_count(&self) -> usize {
        features::count(self.projection.steps())
    }

    /// Writes a row of [`feature_count`](Self::feature_count) numbers for each pair `(src[i], dst[i])` as it
    /// stands at `times[i]`. The columns are equally long, and `out` has just these rows.
    pub fn features(&self, src: &[NodeId], dst: &[NodeId], times: &[EventTime], out: &mut [f32]) {
        let (width, shape) = (self.feature_count(), Shape::of(&self.projection));
        out.par_chunks_mut(PIECE * width).enumerate().for_each(|(piece, out)| {
            for (i, out) in out.chunks_exact_mut(width).enumerate() {
                let i = piece * PIECE + i;
                let (Some(&u), Some(&v), Some(&time)) = (src.get(i), dst.get(i), times.get(i)) else {
                    return;
                };
                self.expect(src, dst, i + AHEAD);
                let (rows, weights) = self.projection.rows_at(u, v, time);
                shape.write(&PairInputs { rows, weights, seen: self.recency.of(u, v, time) }, out);
            }
        });
    }

    /// Takes in events in their order. The columns are equally long; events may come late.
    pub fn observe(&mut self, src: &[NodeId], dst: &[NodeId], times: &[EventTime]) {
        for (i, ((&u, &v), &time)) in src.iter().zip(dst).zip(times).enumerate() {
            self.expect(src, dst, i + AHEAD);
            self.projection.observe(u, v, time);
            self.recency.observe(u, v, time);
        }
    }

    fn expect(&self, src: &[NodeId], dst: &[NodeId], i: usize) {
        if let (Some(&u), Some(&v)) = (src.get(i), dst.get(i)) {
            self.projection.expect(u, v);
        }
    }

    /// Forgets nodes: their rows, and when they were seen. To every later score their pairs were never seen. What the
    /// rows of others hold of walks through them fades with time.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        self.projection.forget(nodes);
        self.recency.forget(nodes);
    }

    /// Lets the pairs of forgotten nodes go. Visits every pair, so it is for many nodes at a time.
    pub fn forget_pairs(&mut self, nodes: &[NodeId]) {
        self.recency.forget_pairs(nodes);
    }

    /// Keeps `most` pairs at most from now on, those that were seen last; 0: any number.
    pub fn limit_pairs(&mut self, most: usize) {
        self.recency.limit_pairs(most);
    }

    /// Pairs that were last seen before `since` count as never seen from now on.
    pub fn keep_pairs_since(&mut self, since: EventTime) {
        self.recency.keep_since(since);
    }

    /// How many pairs it keeps at most; 0: any number.
    #[must_use]
    pub fn pairs_max(&self) -> usize {
        self.recency.pairs_max()
    }

    /// Pairs that went for the limit.
    #[must_use]
    pub fn evicted_pairs(&self) -> u64 {
        self.recency.evicted()
    }

    /// Forgets the stream.
    pub fn reset(&mut self) {
        self.projection.reset();
        let (pairs_max, fresh) = (self.recency.pairs_max(), Recency::new());
        self.recency = fresh;
        self.recency.limit_pairs(pairs_max);
    }

    /// When the stream began; `None` before the first event.
    #[must_use]
    pub fn origin(&self) -> Option<EventTime> {
        self.projection.origin()
    }

    /// Values of the row that readers have of a node.
    #[must_use]
    pub fn row_dim(&self) -> usize {
        published::row_dim(self.projection.steps(), self.projection.dimension())
    }

    /// Writes the row that readers have of `node` into `out`, which has as many values as the model's needs state.
    pub fn write_row(&self, node: NodeId, out: &mut [f32]) {
        published::write_row(self, node, out);
    }

    /// When a pair was last seen, if it ever was.
    #[must_use]
    pub fn pair(&self, u: NodeId, v: NodeId) -> Option<PairTimes> {
        self.recency.pair(u, v)
    }

    /// All pairs by their keys, in no order.
    pub fn pairs(&self) -> impl Iterator<Item = (u64, PairTimes)> {
        self.recency.pairs()
    }

    /// Writes the state; [`Self::read`] restores it bit for bit.
    ///
    /// # Errors
    /// What `out` reports.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        tables::write_u64(out, MAGIC)?;
        self.projection.write(out)?;
        self.recency.write(out)
    }

    /// Reads the state of a model with these options, with the seed that it had.
    ///
    /// # Errors
    /// The bytes end early or are no state of this shape.
    pub fn read(options: &WalkOptions, input: &mut impl Read) -> Result<Self, StateError> {
        let found = tables::read_u64(input)?;
        if found != MAGIC {
            return Err(StateError::Magic { found, expected: MAGIC });
        }
        let projection = WalkProjection::read(options, input)?;
        let recency = Recency::read(input)?.ok_or(StateError::Lengths { table: "walk" })?;
        Ok(Self { projection, recency })
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.projection.bytes() + self.recency.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes<const N: usize>(ids: [u32; N]) -> [NodeId; N] {
        ids.map(NodeId)
    }

    fn row(state: &WalkState, u: u32, v: u32, time: i64) -> Vec<f32> {
        let mut out = vec![f32::NAN; state.feature_count()];
        state.features(&[NodeId(u)], &[NodeId(v)], &[EventTime(time)], &mut out);
        out
    }

    fn seen() -> WalkState {
        let mut state = WalkState::new(&WalkOptions::default());
        let (src, dst) = (nodes([0, 1, 2, 0, 3, 3]), nodes([10, 10, 11, 11, 3, 12]));
        state.observe(&src, &dst, &[5, 9, 14, 14, 20, 17].map(EventTime));
        state
    }

    #[test]
    fn nodes_never_seen_have_no_walks_and_reading_leaves_no_trace() {
        let state = seen();
        assert!(row(&state, 77, 78, 30).iter().all(|value| *value == 0.0));
        assert_eq!(row(&state, 0, 10, 30), row(&state, 0, 10, 30));
        assert!(row(&state, 0, 10, 30).iter().all(|value| value.is_finite()));
        assert!(row(&state, 0, 10, i64::MAX).iter().all(|value| value.is_finite()));
        assert!(row(&state, 0, 10, i64::MIN).iter().all(|value| value.is_finite()));
    }

    #[test]
    fn a_forgotten_node_is_as_one_never_seen() {
        let mut state = seen();
        state.forget(&nodes([10, 555]));
        let blank = WalkState::new(&WalkOptions::default());
        assert_eq!(row(&state, 10, 99, 30), row(&blank, 10, 99, 30));
        let of_pair = |state: &WalkState| row(state, 0, 10, 30);
        assert_ne!(of_pair(&state), of_pair(&seen()));
        assert!(row(&state, 0, 11, 30) == row(&seen(), 0, 11, 30), "others keep what they have");
    }

    #[test]
    fn a_stored_state_goes_on_bit_for_bit_and_damaged_bytes_are_errors() {
        let (mut state, options) = (seen(), WalkOptions::default());
        state.forget(&nodes([11]));
        let mut bytes = Vec::new();
        state.write(&mut bytes).unwrap();
        // Another seed of the settings does not reach the signs of nodes that come later.
        let other = WalkOptions { seed: 9, ..options };
        let mut again = WalkState::read(&other, &mut &bytes[..]).unwrap();
        assert!(again == state && again.origin() == Some(EventTime(5)));
        for state in [&mut state, &mut again] {
            state.observe(&nodes([0, 44]), &nodes([44, 12]), &[25, 30].map(EventTime));
        }
        assert!(again == state);
        let stored = |state: &WalkState| {
            let mut bytes = Vec::new();
            state.write(&mut bytes).unwrap();
            bytes
        };
        assert!(stored(&again) == stored(&state), "pairs have an order");
        for length in [0, 7, 8, 20, bytes.len() - 1] {
            assert!(WalkState::read(&options, &mut &bytes[..length]).is_err(), "{length}");
        }
        let wide = WalkOptions { dimension: 64, ..options };
        assert!(WalkState::read(&wide, &mut &bytes[..]).is_err(), "rows of another width");
        bytes[0] ^= 1;
        assert!(matches!(WalkState::read(&options, &mut &bytes[..]), Err(StateError::Magic { .. })));
    }

    #[test]
    fn any_number_of_threads_computes_the_same_bits() {
        let state = seen();
        let pairs =
            || (0..500_u32).map(|i| (NodeId(i % 13), NodeId(i * 7 % 14), EventTime(i64::from(20 + i))));
        let (src, (dst, times)): (Vec<_>, (Vec<_>, Vec<_>)) = pairs().map(|(u, v, t)| (u, (v, t))).unzip();
        let compute = |threads| {
            let mut out = vec![0.0; src.len() * state.feature_count()];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| state.features(&src, &dst, &times, &mut out));
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        assert_eq!(compute(1), compute(3));
    }
}
