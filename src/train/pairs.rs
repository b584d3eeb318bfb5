//! The pairs that a step scores, in terms of the seeds of its sample.

use super::trainer::{Negatives, Positives};
use crate::model::Neighborhood;

/// The pairs of a batch, positives first, as rows of the seeds' embeddings: they follow from the number of events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pairs {
    /// Whether the negatives have sources other than the positives'.
    pub own_sources: bool,
}

impl Pairs {
    /// How many blocks of seeds there are, with one for each event in each.
    pub fn blocks(self) -> usize {
        if self.own_sources { 4 } else { 3 }
    }

    /// Sources and destinations of the pairs of `count` events, and of as many negatives behind them.
    pub fn of(self, count: usize) -> [Vec<u32>; 2] {
        // Seeds are counted in 32 bits.
        let n = count as u32;
        let negatives = if self.own_sources { 3 * n..4 * n } else { 0..n };
        [(0..n).chain(negatives).collect(), (n..3 * n).collect()]
    }

    /// Makes the batch's nodes the seeds of `neighborhood`. Negatives that share the positives' sources
    /// share their embeddings too.
    pub fn seed(
        &mut self,
        neighborhood: &mut Neighborhood,
        positives: &Positives<'_>,
        negatives: &Negatives<'_>,
    ) {
        neighborhood.clear();
        for nodes in [positives.src, positives.dst, negatives.dst] {
            neighborhood.add_seeds(nodes, positives.times);
        }
        self.own_sources = negatives.src != positives.src;
        if self.own_sources {
            neighborhood.add_seeds(negatives.src, positives.times);
        }
    }
}
