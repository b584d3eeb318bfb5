//! The protocol of published link-prediction results: who is trained on, validated and tested, which
//! nodes are new, and which negatives stand beside the positives.
//!
//! Splits are by quantiles of event time: training up to the 0.70 quantile, validation up to the 0.85
//! quantile, test after it. A tenth of the nodes is *masked*: training edges that touch one are left
//! out. Nodes without a training edge left are *new*; the *inductive* figure is over test edges with a
//! new node. Negatives are one per positive, either given row by row or drawn uniformly from distinct
//! destinations; a drawn one may be a true edge, as is the custom.
//!
//! Knows nothing of models and metrics, and draws nothing that is not a function of its seed.

use std::ops::Range;

use thiserror::Error;

use super::met::MetDestinations;
use super::negative::{DestinationPool, shuffle_front};
use super::quantile::quantile;
use super::stream::Stream;
use super::trainer::{Negatives, Positives};
use crate::device::rng;
use crate::event::{EdgeId, EventTime, NodeId};

/// Share of the events before validation, and before test.
const VALIDATION_FROM: f64 = 0.70;
const TEST_FROM: f64 = 0.85;

/// Keeps negatives that a source met apart from everything else that is drawn from one seed.
const MET: u64 = 0x6d65_745f_7472_6169;

/// One of so many nodes is masked when the protocol draws them.
const MASKED_ONE_IN: usize = 10;

/// What keeps a stream from being evaluated.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// One part of the split has no event.
    #[error(
        "the {part} part of the {events} events is empty; the stream is too short or has too few distinct \
         times to be split at its 0.70 and 0.85 quantiles"
    )]
    EmptyPart {
        /// Which part.
        part: &'static str,
        /// Events of the stream.
        events: usize,
    },
    /// The negatives do not go with the positives.
    #[error("{found} negatives were given for {expected} {part} events; there must be one per event")]
    NegativeCount {
        /// Which part.
        part: &'static str,
        /// Events of the part.
        expected: usize,
        /// Negatives given.
        found: usize,
    },
    /// Events have not equally many candidates.
    #[error(
        "{found} candidates were given for {events} {part} events; there must be equally many for each event, at \
         least one, those of one event after another"
    )]
    CandidateCount {
        /// Which part.
        part: &'static str,
        /// Events of the part.
        events: usize,
        /// Candidates given.
        found: usize,
    },
    /// A part has not both kinds of labels.
    #[error(
        "the {part} part has {positive} positive and {negative} other labels and needs at least one of each; the \
         event file's column is `label`, 1 where it is positive and 0 where it is not"
    )]
    Labels {
        /// Which part.
        part: &'static str,
        /// Positive labels.
        positive: usize,
        /// Other labels.
        negative: usize,
    },
    /// A candidate is for another source.
    #[error(
        "row {row} of the candidates has another source than {part} event {event}, whose candidates stand there"
    )]
    CandidateSource {
        /// Which part.
        part: &'static str,
        /// Row of the candidates, from 1.
        row: usize,
        /// Event of the part, from 1.
        event: usize,
    },
}

/// The split by time: rows before `validation` train, rows from `test` on test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// First row of the validation part.
    pub validation: usize,
    /// First row of the test part.
    pub test: usize,
}

impl Split {
    /// Splits ascending times at their 0.70 and 0.85 quantiles. Parts may be empty.
    #[must_use]
    pub fn by_quantiles(times: &[EventTime]) -> Self {
        let after = |share| match quantile(times, share) {
            Some(bound) => times.partition_point(|&time| time <= bound.at_most),
            None => 0,
        };
        Self { validation: after(VALIDATION_FROM), test: after(TEST_FROM) }
    }
}

/// Who is who under the protocol, for one stream.
pub struct Populations {
    /// The split by time, before masking.
    pub split: Split,
    /// Events of the stream.
    pub events: usize,
    /// Number of masked nodes.
    pub masked: usize,
    /// Rows that are trained on, ascending.
    pub train: Vec<usize>,
    /// Rows of the test part that touch a new node, ascending.
    pub inductive: Vec<usize>,
    train_row: Vec<bool>,
}

impl Populations {
    /// Splits `stream` and leaves out the training edges that touch a node of `masked`.
    ///
    /// # Errors
    /// When a part is empty.
    pub fn new(stream: &Stream, masked: &[NodeId]) -> Result<Self, ProtocolError> {
        let (events, split) = (stream.len(), Split::by_quantiles(stream.times()));
        let mut hidden = vec![false; stream.nodes()];
        masked.iter().for_each(|node| hidden[node.index()] = true);
        let touches =
            |nodes: &[bool], row: usize| nodes[stream.src()[row].index()] || nodes[stream.dst()[row].index()];
        let train_row: Vec<bool> = (0..split.validation).map(|row| !touches(&hidden, row)).collect();
        let train: Vec<usize> = (0..split.validation).filter(|&row| train_row[row]).collect();
        let mut new = vec![true; stream.nodes()];
        for &row in &train {
            new[stream.src()[row].index()] = false;
            new[stream.dst()[row].index()] = false;
        }
        let empty = |part| Err(ProtocolError::EmptyPart { part, events });
        match () {
            () if train.is_empty() => return empty("training"),
            () if split.validation == split.test => return empty("validation"),
            () if split.test == events => return empty("test"),
            () => {}
        }
        let inductive = (split.test..events).filter(|&row| touches(&new, row)).collect();
        let masked = hidden.iter().filter(|&&hidden| hidden).count();
        Ok(Self { split, events, masked, train, inductive, train_row })
    }

    /// Whether `row` is trained on.
    #[must_use]
    pub fn is_train(&self, row: usize) -> bool {
        self.train_row.get(row).copied().unwrap_or(false)
    }

    /// Rows of the validation part.
    #[must_use]
    pub fn validation(&self) -> Range<usize> {
        self.split.validation..self.split.test
    }

    /// Rows of the test part.
    #[must_use]
    pub fn test(&self) -> Range<usize> {
        self.split.test..self.events
    }
}

/// Draws the nodes to mask: a tenth of all nodes (rounded down), out of those that occur after the
/// training part, without replacement.
#[must_use]
pub fn draw_masked(stream: &Stream, seed: u64) -> Vec<NodeId> {
    let from = Split::by_quantiles(stream.times()).validation;
    let mut pool = DestinationPool::new();
    pool.extend(&stream.src()[from..]);
    pool.extend(&stream.dst()[from..]);
    let mut nodes = pool.nodes().to_vec();
    let count = (stream.nodes() / MASKED_ONE_IN).min(nodes.len());
    shuffle_front(&mut nodes, count, [Draw::Masked as u64, seed, 0]);
    nodes.truncate(count);
    nodes
}

/// What is drawn from a run's seed; keeps the draws apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// Masked nodes.
    Masked = 1,
    /// Negatives of training.
    Train = 2,
    /// Negatives of validation.
    Validation = 3,
    /// Negatives of test.
    Test = 4,
    /// Negatives of the inductive test.
    Inductive = 5,
    /// Negatives of test-then-train.
    Prequential = 6,
    /// Candidates of ranking.
    Candidates = 7,
    /// Pairs of the past as negatives.
    Past = 8,
    /// First weights and order of learning of the network that reads labels.
    Labels = 9,
}

impl Draw {
    /// The seed of this draw in pass `pass` of a run with `seed`.
    #[must_use]
    pub fn seed(self, seed: u64, pass: u64) -> u64 {
        rng::random_u64([self as u64, seed, pass, 0])
    }
}

/// Where negatives come from.
pub enum NegativeSource {
    /// The positive's source and a destination drawn uniformly from `pool`, by `seed`.
    Drawn {
        /// The distinct destinations to draw from; not empty.
        pool: DestinationPool,
        /// Seed of the draw.
        seed: u64,
    },
    /// Pairs given row by row, in the order of the positives.
    Given {
        /// Source of each negative.
        src: Vec<NodeId>,
        /// Destination of each negative.
        dst: Vec<NodeId>,
    },
}

impl NegativeSource {
    /// Draws from the distinct destinations of `rows`.
    pub fn drawn(stream: &Stream, rows: impl IntoIterator<Item = usize>, seed: u64) -> Self {
        let mut pool = DestinationPool::new();
        rows.into_iter().for_each(|row| pool.extend(&stream.dst()[row..=row]));
        Self::Drawn { pool, seed }
    }

    /// The same for the events of `rows`, in their order, but for this share of them: destinations that the event's
    /// source met in an earlier row. Given pairs stay as they are.
    #[must_use]
    pub fn with_met(self, stream: &Stream, rows: &[usize], share: f64) -> Self {
        let Self::Drawn { pool, seed } = &self else { return self };
        if share <= 0.0 || pool.is_empty() {
            return self;
        }
        let mut met = MetDestinations::default();
        let pair = |&row: &usize| (stream.src()[row], stream.dst()[row]);
        let negative = |(number, (src, dst)): (u64, (NodeId, NodeId))| {
            let draw = |word, n| {
                rng::below([MET, *seed, number, word], u32::try_from(n).unwrap_or(u32::MAX)) as usize
            };
            let is_met = f64::from(draw(0, 1 << 24) as u32) < share * f64::from(1 << 24);
            let found = if is_met { met.draw(src, |node| node != dst, |count| draw(1, count)) } else { None };
            met.observe(&[src], &[dst]);
            (src, found.unwrap_or_else(|| pool.nodes()[draw(2, pool.len())]))
        };
        let (src, dst) = (0..).zip(rows.iter().map(pair)).map(negative).unzip();
        Self::Given { src, dst }
    }

    /// Pairs given for the part called `part` of `expected` events.
    ///
    /// # Errors
    /// When there are more or fewer pairs than events.
    pub fn given(
        pairs: &[(NodeId, NodeId)],
        part: &'static str,
        expected: usize,
    ) -> Result<Self, ProtocolError> {
        if pairs.len() != expected {
            return Err(ProtocolError::NegativeCount { part, expected, found: pairs.len() });
        }
        Ok(Self::Given { src: pairs.iter().map(|p| p.0).collect(), dst: pairs.iter().map(|p| p.1).collect() })
    }

    /// Fills `src` and `dst` with the negatives of batch number `batch`, whose positives have the
    /// sources `sources` and stand at `first..` among the positives of the part.
    pub fn fill(
        &self,
        batch: usize,
        first: usize,
        sources: &[NodeId],
        src: &mut Vec<NodeId>,
        dst: &mut Vec<NodeId>,
    ) {
        src.clear();
        match self {
            Self::Drawn { pool, seed } => {
                src.extend_from_slice(sources);
                pool.draw(*seed, batch as u64, sources.len(), dst);
            }
            Self::Given { src: all_src, dst: all_dst } => {
                let range = first..first + sources.len();
                src.extend_from_slice(all_src.get(range.clone()).unwrap_or_default());
                dst.clear();
                dst.extend_from_slice(all_dst.get(range).unwrap_or_default());
            }
        }
    }
}

/// The columns of one batch: positives and the negatives beside them, equally long.
#[derive(Default)]
pub struct Batch {
    /// Rows of the stream.
    pub rows: Vec<usize>,
    /// Sources.
    pub src: Vec<NodeId>,
    /// Destinations.
    pub dst: Vec<NodeId>,
    /// Event times.
    pub times: Vec<EventTime>,
    /// Edge ids: the rows.
    pub edges: Vec<EdgeId>,
    /// Sources of the negatives.
    pub negative_src: Vec<NodeId>,
    /// Destinations of the negatives.
    pub negative_dst: Vec<NodeId>,
}

impl Batch {
    /// Takes in the positives at `rows`; the negatives are left as they are.
    pub fn load(&mut self, stream: &Stream, rows: impl IntoIterator<Item = usize>) {
        self.rows.clear();
        self.rows.extend(rows);
        self.src.clear();
        self.src.extend(self.rows.iter().map(|&row| stream.src()[row]));
        self.dst.clear();
        self.dst.extend(self.rows.iter().map(|&row| stream.dst()[row]));
        self.times.clear();
        self.times.extend(self.rows.iter().map(|&row| stream.times()[row]));
        self.edges.clear();
        self.edges.extend(self.rows.iter().map(|&row| EdgeId(row as u64)));
    }

    /// The events.
    #[must_use]
    pub fn positives(&self) -> Positives<'_> {
        Positives { src: &self.src, dst: &self.dst, times: &self.times, edges: &self.edges }
    }

    /// The negatives beside them.
    #[must_use]
    pub fn negatives(&self) -> Negatives<'_> {
        Negatives { src: &self.negative_src, dst: &self.negative_dst }
    }

    /// Takes in the negatives of batch number `batch`, whose positives stand at `first..` in their part.
    pub fn load_negatives(&mut self, source: &NegativeSource, batch: usize, first: usize) {
        source.fill(batch, first, &self.src, &mut self.negative_src, &mut self.negative_dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::NodeKey;
    use crate::train::stream::of_events as stream;

    #[test]
    fn masked_and_unseen_nodes_are_new_and_only_training_edges_are_left_out() {
        // Users 0..4 and pages 10..14, one event a tick; page 99 appears in the test part only.
        let events = (0..40).map(|t| (t % 4, if t == 38 { 99 } else { 10 + t % 5 }, t));
        let stream = stream(events);
        let masked = stream.node(&NodeKey::Int(12)).unwrap();
        let populations = Populations::new(&stream, &[masked]).unwrap();
        assert_eq!(populations.split, Split { validation: 28, test: 34 });
        assert_eq!(populations.train.len(), 28 - 6);
        assert!((0..28).all(|row| populations.is_train(row) == (stream.dst()[row] != masked)));
        assert!(!populations.is_train(28));
        assert_eq!(populations.inductive, [37, 38]);
        assert_eq!((populations.validation(), populations.test()), (28..34, 34..40));
    }

    #[test]
    fn an_empty_part_is_an_error_that_names_it() {
        let part = |stream: &Stream, masked: &[NodeId]| match Populations::new(stream, masked) {
            Err(ProtocolError::EmptyPart { part, .. }) => part,
            _ => "none",
        };
        assert_eq!(part(&stream((0..9).map(|i| (i, i + 1, 5))), &[]), "validation");
        assert_eq!(part(&stream([(1, 2, 0), (1, 2, 9), (1, 2, 9), (1, 2, 9)]), &[]), "validation");
        let all = stream((0..100).map(|i| (1, 2, i)));
        assert_eq!(part(&all, &[NodeId(0)]), "training");
        assert_eq!(part(&all, &[]), "none");
        assert_eq!(part(&stream([]), &[]), "training");
    }

    #[test]
    fn masked_nodes_are_a_tenth_of_all_without_repeats_and_follow_the_seed() {
        let stream = stream((0..1000).map(|t| (t * 7919 % 100, 100 + t * 104_729 % 50, t)));
        let masked = draw_masked(&stream, 3);
        let mut distinct = masked.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!((masked.len(), distinct.len()), (stream.nodes() / 10, stream.nodes() / 10));
        assert_eq!(masked, draw_masked(&stream, 3));
        assert_ne!(masked, draw_masked(&stream, 4));
    }

    #[test]
    fn given_negatives_follow_the_positives_and_drawn_ones_keep_their_source() {
        let stream = stream((0..50).map(|t| (t % 5, 10 + t % 7, t)));
        let pairs: Vec<_> = (0..6).map(|i| (NodeId(i), NodeId(i + 1))).collect();
        assert!(matches!(
            NegativeSource::given(&pairs, "test", 7),
            Err(ProtocolError::NegativeCount { expected: 7, found: 6, .. })
        ));
        let given = NegativeSource::given(&pairs, "test", 6).unwrap();
        let mut batch = Batch::default();
        batch.load(&stream, 44..46);
        batch.load_negatives(&given, 2, 4);
        assert_eq!(batch.negative_src, [NodeId(4), NodeId(5)]);
        assert_eq!(batch.negative_dst, [NodeId(5), NodeId(6)]);

        let drawn = NegativeSource::drawn(&stream, 0..3, 11);
        let seen: Vec<_> = stream.dst()[..3].to_vec();
        batch.load(&stream, 20..50);
        batch.load_negatives(&drawn, 0, 0);
        assert_eq!(batch.negative_src, batch.src);
        assert_eq!(batch.negative_dst.len(), 30);
        assert!(batch.negative_dst.iter().all(|node| seen.contains(node)));
        let before = batch.negative_dst.clone();
        batch.load_negatives(&drawn, 1, 30);
        assert_ne!(batch.negative_dst, before, "another batch draws others");
    }
}
