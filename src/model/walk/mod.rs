//! Walk projections: a link scorer without neighbor sampling, after TPNet (Lu et al., NeurIPS 2024).
//!
//! Every node has `k + 1` short vectors ([`projection`]) whose inner products estimate how many walks of up
//! to `k` edges lead from each of two nodes to a common one, each edge counting less the older it is
//! ([`clock`]). Beside them stands when nodes and pairs were last seen ([`recency`]). For a pair these give
//! one row of numbers ([`features`]), and a small network turns the row into a logit ([`network`]).
//!
//! An event costs `2 k` additions of a vector and two look-ups, whatever the number of nodes: a row is
//! decayed when it is touched, not when time passes. Reading changes nothing. What a batch leaves behind is
//! what its events leave one after another.
//!
//! Knows nothing of losses, optimizers, protocols or requests.

mod clock;
mod features;
mod network;
mod options;
mod projection;
mod recency;

pub use clock::Decay;
pub use network::WalkNetwork;
pub use options::{WalkOptions, WalkOptionsError};
pub use projection::WalkProjection;

use rayon::prelude::*;

use crate::event::{EventTime, NodeId};
use features::{PairInputs, Shape};
use recency::Recency;

/// Pairs whose features one thread computes at a time.
const PIECE: usize = 50;

/// Rows are at random places: those of the pair so many further on are asked for ahead.
const AHEAD: usize = 2;

/// What walk projections remember of a stream.
#[derive(Clone, Debug)]
pub struct WalkState {
    projection: WalkProjection,
    recency: Recency,
}

impl WalkState {
    /// Has seen nothing.
    ///
    /// # Errors
    /// The options describe no model.
    pub fn new(options: &WalkOptions) -> Result<Self, WalkOptionsError> {
        options.check()?;
        Ok(Self { projection: WalkProjection::new(options), recency: Recency::default() })
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

    /// Forgets nodes: their rows, and when they and their pairs were seen. What the rows of others hold of
    /// walks through them fades with time. Visits every pair.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        self.projection.forget(nodes);
        self.recency.forget(nodes);
    }

    /// Forgets the stream.
    pub fn reset(&mut self) {
        self.projection.reset();
        self.recency = Recency::default();
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
        let mut state = WalkState::new(&WalkOptions::default()).unwrap();
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
        let blank = WalkState::new(&WalkOptions::default()).unwrap();
        assert_eq!(row(&state, 10, 99, 30), row(&blank, 10, 99, 30));
        let of_pair = |state: &WalkState| row(state, 0, 10, 30);
        assert_ne!(of_pair(&state), of_pair(&seen()));
        assert!(row(&state, 0, 11, 30) == row(&seen(), 0, 11, 30), "others keep what they have");
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
