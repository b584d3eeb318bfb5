//! Popularity: a baseline without parameters that scores a destination by how often it was met lately,
//! whoever asks (the PopTrack of Daniluk and Dabrowski, 2023).
//!
//! Each event adds 1 to its destination, and every count halves over a number of events, so that it knows no
//! unit of time. A count is decayed when it is read or added to: the cost of an event is one addition.

use crate::event::NodeId;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    weight: f64,
    /// Events taken in when the weight was true.
    at: u64,
}

/// Decayed counts of destinations.
#[derive(Clone, Debug)]
pub struct Popularity {
    half_life: f64,
    counts: Vec<Count>,
    events: u64,
}

impl Popularity {
    /// Has seen nothing; counts halve over `half_life` events, which is above 0.
    #[must_use]
    pub fn new(half_life: f64) -> Self {
        Self { half_life, counts: Vec::new(), events: 0 }
    }

    /// The decayed count of `dst`; not below 0.
    #[must_use]
    pub fn score(&self, dst: NodeId) -> f32 {
        self.counts.get(dst.index()).map_or(0.0, |count| self.read(*count) as f32)
    }

    /// Takes in events with these destinations, in their order.
    pub fn observe(&mut self, dst: &[NodeId]) {
        for &dst in dst {
            if dst.index() >= self.counts.len() {
                self.counts.resize(dst.index() + 1, Count::default());
            }
            self.events += 1;
            let weight = self.read(self.counts[dst.index()]) + 1.0;
            self.counts[dst.index()] = Count { weight, at: self.events };
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        *self = Self::new(self.half_life);
    }

    fn read(&self, count: Count) -> f64 {
        count.weight * (-((self.events - count.at) as f64) / self.half_life).exp2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_halve_over_their_events() {
        let mut popularity = Popularity::new(10.0);
        popularity.observe(&[NodeId(4), NodeId(4)]);
        let before = popularity.score(NodeId(4));
        assert!((before - (1.0 + 0.1_f32.exp2().recip())).abs() < 1e-6, "{before}");
        popularity.observe(&[NodeId(1); 10]);
        assert!((popularity.score(NodeId(4)) - before / 2.0).abs() < 1e-6);
        assert!(popularity.score(NodeId(1)) > popularity.score(NodeId(4)));
        assert_eq!((popularity.score(NodeId(0)), popularity.score(NodeId(99))), (0.0, 0.0));
        popularity.reset();
        assert_eq!(popularity.score(NodeId(1)), 0.0);
    }
}
