//! Harder negatives than random ones: pairs that happened, but not just then.
//!
//! ```text
//! historical   distinct pairs from before the batch
//! inductive    of these, pairs that first happened in the part that is scored
//! ```
//! Both without the pairs of the batch's own time span, drawn without replacement; a negative has a source of
//! its own. Where there are fewer than the batch has events, the others are pairs of any source and any
//! destination that do not happen in that span. Equal times: an event of the batch's first time is of its
//! span, so a pair from before is strictly earlier.

use hashbrown::HashSet;

use super::negative::{DestinationPool, shuffle_front};
use super::protocol::NegativeSource;
use super::stream::Stream;
use crate::device::rng;
use crate::event::{EventTime, NodeId};

/// Keeps the draws apart from everything else that is drawn from one seed.
const PAST: u64 = 0x6861_7264_7061_7374;
const FILL: u64 = 0x6861_7264_6669_6c6c;

/// Tries to draw a pair that does not happen, before one that does is taken.
const TRIES: u64 = 64;

/// Where past pairs come from.
#[derive(Clone, Copy)]
pub struct PastPairs<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// Rows whose pairs count, ascending.
    pub rows: &'a [usize],
    /// Pairs that happened in rows before this one are left out; 0 for historical negatives.
    pub from: usize,
    /// Seed of the draw.
    pub seed: u64,
}

impl PastPairs<'_> {
    /// One negative for each event of `part`, which is scored in batches of `batch_size`.
    #[must_use]
    pub fn negatives(&self, part: &[usize], batch_size: usize) -> NegativeSource {
        let (mut src, mut dst) = (Vec::with_capacity(part.len()), Vec::with_capacity(part.len()));
        let (mut sources, mut destinations) = (DestinationPool::new(), DestinationPool::new());
        for &row in self.rows {
            sources.extend(&self.stream.src()[row..=row]);
            destinations.extend(&self.stream.dst()[row..=row]);
        }
        let (mut seen, mut past, mut next) = (HashSet::new(), Vec::new(), 0);
        for (number, batch) in part.chunks(batch_size.max(1)).enumerate() {
            let (Some(&first), Some(&last)) = (batch.first(), batch.last()) else { continue };
            let (begin, end) = (self.stream.times()[first], self.stream.times()[last]);
            while let Some(&row) = self.rows.get(next).filter(|&&row| self.stream.times()[row] < begin) {
                if seen.insert(self.pair(row)) && row >= self.from {
                    past.push(self.pair(row));
                }
                next += 1;
            }
            let span = self.pairs_until(next, end);
            let mut choice: Vec<_> = past.iter().copied().filter(|pair| !span.contains(pair)).collect();
            let count = batch.len().min(choice.len());
            shuffle_front(&mut choice, count, [PAST, self.seed, number as u64]);
            choice.truncate(count);
            let prefix = rng::prefix([FILL, self.seed, number as u64]);
            for i in count..batch.len() {
                choice.push(outside(&span, [&sources, &destinations], rng::absorb(prefix, i as u64)));
            }
            src.extend(choice.iter().map(|pair| pair.0));
            dst.extend(choice.iter().map(|pair| pair.1));
        }
        NegativeSource::Given { src, dst }
    }

    fn pair(&self, row: usize) -> (NodeId, NodeId) {
        (self.stream.src()[row], self.stream.dst()[row])
    }

    /// The pairs of the rows from place `next` up to time `end`.
    fn pairs_until(&self, next: usize, end: EventTime) -> HashSet<(NodeId, NodeId)> {
        let rows = self.rows.iter().skip(next).take_while(|&&row| self.stream.times()[row] <= end);
        rows.map(|&row| self.pair(row)).collect()
    }
}

/// A pair of these sources and destinations that is not of `span`, as far as there is luck.
fn outside(
    span: &HashSet<(NodeId, NodeId)>,
    [sources, destinations]: [&DestinationPool; 2],
    prefix: u64,
) -> (NodeId, NodeId) {
    let one = |pool: &DestinationPool, word| {
        let place = rng::scale(rng::draw(prefix, word), u32::try_from(pool.len()).unwrap_or(u32::MAX));
        pool.nodes().get(place as usize).copied().unwrap_or(NodeId::NONE)
    };
    let pair = |attempt| (one(sources, 2 * attempt), one(destinations, 2 * attempt + 1));
    (0..TRIES).map(pair).find(|pair| !span.contains(pair)).unwrap_or_else(|| pair(TRIES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::stream::of_events as stream;

    fn drawn(stream: &Stream, from: usize, part: &[usize], batch: usize) -> Vec<(NodeId, NodeId)> {
        let rows: Vec<usize> = (0..stream.len()).collect();
        let past = PastPairs { stream, rows: &rows, from, seed: 3 };
        match past.negatives(part, batch) {
            NegativeSource::Given { src, dst } => src.into_iter().zip(dst).collect(),
            NegativeSource::Drawn { .. } => panic!("past pairs are given one by one"),
        }
    }

    #[test]
    fn past_pairs_are_distinct_earlier_and_not_of_the_span() {
        // Pairs repeat every 60 events; two events share each time.
        let stream = stream((0..400).map(|t| (t % 12, 100 + t % 20, t / 2)));
        let part: Vec<usize> = (200..400).collect();
        let pair = |row: usize| (stream.src()[row], stream.dst()[row]);
        let negatives = drawn(&stream, 0, &part, 20);
        assert_eq!(negatives.len(), 200);
        for (number, batch) in negatives.chunks(20).enumerate() {
            let first = 200 + number * 20;
            let distinct: HashSet<_> = batch.iter().collect();
            assert_eq!(distinct.len(), 20, "without replacement");
            for negative in batch {
                assert!((0..first).any(|row| pair(row) == *negative), "happened before");
                assert!((first..first + 20).all(|row| pair(row) != *negative), "not in the span");
            }
        }
        assert_eq!(negatives, drawn(&stream, 0, &part, 20));
    }

    #[test]
    fn inductive_pairs_first_happened_in_the_part_and_others_fill_up() {
        // From row 100 on every pair is another one than before.
        let stream = stream((0..200).map(|t| (t % 10, if t < 100 { 100 + t % 5 } else { 200 + t % 50 }, t)));
        let part: Vec<usize> = (100..200).collect();
        let negatives = drawn(&stream, 100, &part, 25);
        let happened = |range: std::ops::Range<usize>, pair: &(NodeId, NodeId)| {
            range.into_iter().any(|row| (stream.src()[row], stream.dst()[row]) == *pair)
        };
        let (first, later) = negatives.split_at(25);
        assert!(first.iter().all(|pair| !happened(100..125, pair)), "filled up with pairs of no event there");
        let second = &later[..25];
        assert!(second.iter().all(|pair| happened(100..125, pair) && !happened(0..100, pair)));
    }
}
