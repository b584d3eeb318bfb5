//! [`Access`]: which rows training reads, round by round, over some epochs.
//!
//! A round is a batch of events with as many random destinations, which differ from epoch to epoch; what it reads are
//! the distinct edges, or the distinct nodes, of its sample. Edges and nodes are numbers from 0 on.

use indicatif::ProgressBar;

use evergraph::cli::bench::{BATCH_EVENTS, batch_nodes, request};
use evergraph::graph::{GraphStore, SpillError};
use evergraph::sampler::{Layers, SamplingPolicy, Seeds};
use evergraph::train::stream::Stream;

/// No later round.
pub const NEVER: u32 = u32::MAX;

/// How a batch is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    pub policy: SamplingPolicy,
    pub layers: usize,
}

/// Rows of one kind that rounds read.
#[derive(Default)]
pub struct Access {
    /// How many rows of the kind there are.
    pub of: usize,
    /// Rounds of an epoch.
    pub epoch_rounds: usize,
    rows: Vec<u32>,
    ends: Vec<usize>,
    stamps: Vec<u32>,
}

impl Access {
    fn new(of: usize, epoch_rounds: usize) -> Self {
        Self { of, epoch_rounds, stamps: vec![0; of], ..Self::default() }
    }

    /// Number of rounds.
    pub fn rounds(&self) -> usize {
        self.ends.len()
    }

    /// Number of rows read, each once a round.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of rows read in each epoch.
    pub fn len_by_epoch(&self) -> Vec<usize> {
        let epochs = self.ends.chunks(self.epoch_rounds.max(1));
        let ends = epochs.filter_map(|rounds| rounds.last().copied());
        let mut before = 0;
        ends.map(|end| end - std::mem::replace(&mut before, end)).collect()
    }

    /// Rows of round `number`, in order of first appearance.
    pub fn round(&self, number: usize) -> &[u32] {
        &self.rows[self.span(number)]
    }

    fn span(&self, number: usize) -> std::ops::Range<usize> {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        start..self.ends[number]
    }

    /// For each row that is read, in which round it is read next, in the order of reading.
    #[allow(clippy::cast_possible_truncation)] // rounds are fewer
    pub fn next_uses(&self) -> Vec<u32> {
        let mut next = vec![NEVER; self.rows.len()];
        let mut seen = vec![NEVER; self.of];
        for number in (0..self.rounds()).rev() {
            for at in self.span(number) {
                let seen = &mut seen[self.rows[at] as usize];
                next[at] = std::mem::replace(seen, number as u32);
            }
        }
        next
    }

    /// The part of `of_each_row` that belongs to round `number`.
    pub fn part<'a>(&self, of_each_row: &'a [u32], number: usize) -> &'a [u32] {
        &of_each_row[self.span(number)]
    }

    /// How often each row is read.
    pub fn frequencies(&self) -> Vec<u32> {
        let mut counts = vec![0; self.of];
        self.rows.iter().for_each(|&row| counts[row as usize] += 1);
        counts
    }

    /// Adds a round of these rows, each once.
    #[allow(clippy::cast_possible_truncation)] // ids and rounds that 32 bits hold
    fn push(&mut self, rows: impl Iterator<Item = usize>) {
        let stamp = self.ends.len() as u32 + 1;
        for row in rows {
            if self.stamps.get(row).is_some_and(|&seen| seen != stamp) {
                self.stamps[row] = stamp;
                self.rows.push(row as u32);
            }
        }
        self.ends.push(self.rows.len());
    }

    /// Rounds of these rows, for tests.
    #[cfg(test)]
    pub fn of_rounds(of: usize, epoch_rounds: usize, rounds: &[Vec<usize>]) -> Self {
        let mut access = Self::new(of, epoch_rounds);
        rounds.iter().for_each(|rows| access.push(rows.iter().copied()));
        access
    }
}

/// Samples epochs number `epochs` over the whole stream: what is read of edges, and of nodes.
///
/// # Errors
/// Edges are on disk and cannot be read.
pub fn sample(
    stream: &Stream,
    graph: &GraphStore,
    sampling: Sampling,
    epochs: std::ops::Range<u64>,
    progress: &ProgressBar,
) -> Result<[Access; 2], SpillError> {
    let batches = stream.len().div_ceil(BATCH_EVENTS);
    let [mut edges, mut nodes] = [stream.len(), stream.nodes()].map(|of| Access::new(of, batches));
    let mut out = Layers::new();
    for epoch in epochs {
        for batch in 0..batches {
            let rows = batch * BATCH_EVENTS..stream.len().min((batch + 1) * BATCH_EVENTS);
            let (seeds, times) = (batch_nodes(stream, rows.clone(), epoch), stream.times()[rows].repeat(3));
            let request = request(sampling.policy, epoch * batches as u64 + batch as u64);
            let request_seeds = Seeds { nodes: &seeds, times: &times };
            out.sample(graph.view(), request_seeds, &request, sampling.layers)?;
            let layers = out.layers();
            // Empty slots hold ids that no row has.
            let sampled = layers.iter().flat_map(|layer| &layer.graph.edges);
            edges.push(sampled.map(|edge| usize::try_from(edge.0).unwrap_or(usize::MAX)));
            let neighbors = layers.iter().flat_map(|layer| &layer.graph.neighbors);
            nodes.push(seeds.iter().chain(neighbors).map(|node| node.index()));
            progress.inc(1);
        }
    }
    Ok([edges, nodes])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_counts_once_a_round_and_knows_its_next() {
        let access = Access::of_rounds(5, 2, &[vec![1, 3, 1], vec![4, 9], vec![3, 1, 3]]);
        let rounds: Vec<&[u32]> = (0..3).map(|number| access.round(number)).collect();
        assert_eq!(rounds, [&[1, 3][..], &[4], &[3, 1]]);
        assert_eq!(access.len_by_epoch(), [3, 2]);
        assert_eq!((access.rounds(), access.len(), access.frequencies()), (3, 5, vec![0, 2, 0, 2, 1]));
        let next = access.next_uses();
        assert_eq!(next, [2, 2, NEVER, NEVER, NEVER]);
        assert_eq!(access.part(&next, 2), [NEVER; 2]);
    }
}
