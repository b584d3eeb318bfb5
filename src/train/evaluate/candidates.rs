//! [`Candidates`]: the destinations that an event's true destination is ranked among.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::{Contender, EvaluationError};
use crate::event::NodeId;
use crate::train::RankQuery;
use crate::train::negative::{DestinationPool, shuffle_front};
use crate::train::protocol::{Batch, Draw, ProtocolError};
use crate::train::ranking::{RankMeter, rank};
use crate::train::stream::Stream;

/// Most nodes that a contender scores at once, unless one event has more candidates.
const ROWS_PER_PASS: usize = 2048;

/// Keeps the draw among a source's own destinations apart from that among all.
const HISTORICAL: u64 = 0x6869_7374_6f72_6963;

/// Where the candidates of an event come from. Its true destination is never one of them, and neither is, of those that
/// are drawn, another one that its source met at the same time.
#[derive(Clone, Debug)]
pub enum Candidates {
    /// Drawn uniformly, with replacement, from the distinct destinations of the stream.
    Drawn {
        /// The destinations.
        pool: DestinationPool,
        /// What else is true.
        true_too: TrueToo,
        /// Candidates per event.
        count: usize,
        /// Seed of the draw.
        seed: u64,
    },
    /// Half of them destinations that the source has met in the training part, without replacement and as
    /// far as there are any; the others drawn from all.
    Historical {
        /// The distinct destinations of each source, by its id, in the training part.
        met: Vec<Vec<NodeId>>,
        /// All destinations.
        pool: DestinationPool,
        /// What else is true.
        true_too: TrueToo,
        /// Candidates per event.
        count: usize,
        /// Seed of the draw.
        seed: u64,
    },
    /// Given for every event of a part.
    Given {
        /// First row of the part.
        first: usize,
        /// Where the candidates of each event begin in `dst`, and the end of the last.
        starts: Vec<usize>,
        /// The candidates of one event after another.
        dst: Vec<NodeId>,
    },
    /// Every destination that the stream had before the event's batch, but for the source: what a top-k over all
    /// destinations can find.
    Known {
        /// Each destination with the row of its first event, ascending by row.
        destinations: Vec<(usize, NodeId)>,
        /// What else is true.
        true_too: TrueToo,
    },
}

impl Candidates {
    /// `count` candidates per event, drawn by `seed` uniformly from the distinct destinations of the
    /// stream.
    #[must_use]
    pub fn drawn(stream: &Stream, count: usize, seed: u64) -> Self {
        let (pool, true_too, seed) = (all(stream), TrueToo::of(stream), Draw::Candidates.seed(seed, 0));
        Self::Drawn { pool, true_too, count, seed }
    }

    /// `count` candidates per event, drawn by `seed`: half of them destinations that the event's source has
    /// met in the first `train` rows of the stream.
    #[must_use]
    pub fn historical(stream: &Stream, train: usize, count: usize, seed: u64) -> Self {
        let mut met = vec![Vec::new(); stream.nodes()];
        let mut seen = HashSet::new();
        for (src, &dst) in stream.src().iter().zip(stream.dst()).take(train) {
            if seen.insert((src.0, dst.0)) {
                met[src.index()].push(dst);
            }
        }
        let (pool, true_too, seed) = (all(stream), TrueToo::of(stream), Draw::Candidates.seed(seed, 0));
        Self::Historical { met, pool, true_too, count, seed }
    }

    /// The candidates of the events of rows `first..first + events`, the part called `part`, one event after
    /// another: a pair of the event's source and a candidate each. `counts` says how many each event has; without it
    /// all have equally many.
    ///
    /// # Errors
    /// When there are not so many candidates, or a pair has another source than its event.
    pub fn given(
        stream: &Stream,
        pairs: &[(NodeId, NodeId)],
        counts: Option<Vec<usize>>,
        part: &'static str,
        rows: Range<usize>,
    ) -> Result<Self, ProtocolError> {
        let (first, events) = (rows.start, rows.len());
        let counts = counts.unwrap_or_else(|| vec![pairs.len() / events.max(1); events]);
        if counts.len() != events || counts.contains(&0) || counts.iter().sum::<usize>() != pairs.len() {
            return Err(ProtocolError::CandidateCount { part, events, found: pairs.len() });
        }
        let mut starts = vec![0];
        for (event, count) in counts.into_iter().enumerate() {
            let start = starts[event];
            let src = stream.src().get(first + event);
            let others = pairs[start..start + count].iter();
            if let Some(place) = others.into_iter().position(|pair| Some(&pair.0) != src) {
                let (row, event) = (start + place + 1, event + 1);
                return Err(ProtocolError::CandidateSource { part, row, event });
            }
            starts.push(start + count);
        }
        Ok(Self::Given { first, starts, dst: pairs.iter().map(|pair| pair.1).collect() })
    }

    /// Every destination of `stream` from the batch after its first event on.
    #[must_use]
    pub fn known(stream: &Stream) -> Self {
        let mut seen = HashSet::new();
        let rows = stream.dst().iter().enumerate();
        let destinations = rows.filter(|(_, dst)| seen.insert(**dst)).map(|(row, &dst)| (row, dst)).collect();
        Self::Known { destinations, true_too: TrueToo::of(stream) }
    }

    /// Candidates per event, at most.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Drawn { count, .. } | Self::Historical { count, .. } => *count,
            Self::Given { starts, .. } => starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
            Self::Known { destinations, .. } => destinations.len(),
        }
    }

    /// Whether the event from `src` to `dst` in a batch that begins at row `begin` can be ranked: among the known
    /// destinations it has to be one.
    fn has(&self, begin: usize, src: NodeId, dst: NodeId) -> bool {
        match self {
            Self::Known { destinations, .. } => {
                let known = &destinations[..destinations.partition_point(|(row, _)| *row < begin)];
                src != dst && known.iter().any(|(_, known)| *known == dst)
            }
            _ => true,
        }
    }

    /// Fills `out` with the candidates of the event of row `row`, from `src` to `dst`, in a batch that begins at row
    /// `begin`.
    fn of(&self, (begin, row): (usize, usize), src: NodeId, dst: NodeId, out: &mut Vec<NodeId>) {
        match self {
            Self::Drawn { pool, true_too, count, seed } => {
                pool.draw(*seed, row as u64, *count, out);
                out.retain(|&other| !true_too.has(row, other));
            }
            Self::Historical { met, pool, true_too, count, seed } => {
                let mut own: Vec<NodeId> = met.get(src.index()).cloned().unwrap_or_default();
                own.retain(|&other| other != dst && !true_too.has(row, other));
                let half = own.len().min(count / 2);
                shuffle_front(&mut own, half, [HISTORICAL, *seed, row as u64]);
                pool.draw(*seed, row as u64, count - half, out);
                out.retain(|&other| !true_too.has(row, other));
                out.extend_from_slice(&own[..half]);
            }
            Self::Given { first, starts, dst } => {
                out.clear();
                if let Some(&[start, end]) =
                    starts.get(row.saturating_sub(*first)..).and_then(<[_]>::first_chunk)
                {
                    out.extend_from_slice(&dst[start..end]);
                }
            }
            Self::Known { destinations, true_too } => {
                let known = destinations.iter().take_while(|(first, _)| *first < begin);
                let others = known.map(|&(_, node)| node);
                out.clear();
                out.extend(others.filter(|&node| node != src && !true_too.has(row, node)));
            }
        }
        out.retain(|&other| other != dst);
    }

    /// Ranks the batch's events, scored from the state before the batch. One that has no rank counts as a miss.
    pub(super) fn rank(
        &self,
        contender: &dyn Contender,
        batch: &Batch,
        ranks: &mut RankMeter,
    ) -> Result<(), EvaluationError> {
        let begin = batch.rows.first().copied().unwrap_or_default();
        let (mut others, mut held, mut rows) = (Vec::new(), Vec::new(), 0);
        for event in 0..batch.rows.len() {
            let (src, dst) = (batch.src[event], batch.dst[event]);
            if !self.has(begin, src, dst) {
                ranks.push(f64::INFINITY);
                continue;
            }
            self.of((begin, batch.rows[event]), src, dst, &mut others);
            if rows + others.len() + 2 > ROWS_PER_PASS {
                rank_held(contender, batch, &held, ranks)?;
                held.clear();
                rows = 0;
            }
            rows += others.len() + 2;
            held.push((event, std::iter::once(dst).chain(others.iter().copied()).collect()));
        }
        rank_held(contender, batch, &held, ranks)
    }
}

/// Ranks the first of each event's candidates among the others, in one pass.
fn rank_held(
    contender: &dyn Contender,
    batch: &Batch,
    held: &[(usize, Vec<NodeId>)],
    ranks: &mut RankMeter,
) -> Result<(), EvaluationError> {
    if held.is_empty() {
        return Ok(());
    }
    let queries: Vec<_> = held
        .iter()
        .map(|(event, candidates)| RankQuery {
            src: batch.src[*event],
            time: batch.times[*event],
            candidates,
        })
        .collect();
    for scores in contender.score_queries(&queries)? {
        if let Some((&positive, others)) = scores.split_first() {
            ranks.push(rank(positive, others));
        }
    }
    Ok(())
}

/// True destinations of events whose source met more than one at the same time, by row, ascending. Events of one source
/// and time share theirs.
#[derive(Clone, Debug, Default)]
pub struct TrueToo(HashMap<usize, Arc<[NodeId]>>);

impl TrueToo {
    /// Those of all events of a stream; few have any.
    fn of(stream: &Stream) -> Self {
        let (src, dst, times) = (stream.src(), stream.dst(), stream.times());
        let mut found = HashMap::new();
        let mut first = 0;
        for moment in times.chunk_by(|a, b| a == b) {
            let rows = first..first + moment.len();
            first = rows.end;
            if rows.len() == 1 {
                continue;
            }
            let mut met: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
            rows.clone().for_each(|row| met.entry(src[row]).or_default().push(dst[row]));
            met.values_mut().for_each(|all| {
                all.sort_unstable();
                all.dedup();
            });
            met.retain(|_, all| all.len() > 1);
            let met: HashMap<NodeId, Arc<[NodeId]>> =
                met.into_iter().map(|(src, all)| (src, all.into())).collect();
            found.extend(rows.filter_map(|row| Some((row, met.get(&src[row])?.clone()))));
        }
        Self(found)
    }

    /// Whether `other` is a true destination of the event of row `row`, though perhaps of another event.
    fn has(&self, row: usize, other: NodeId) -> bool {
        self.0.get(&row).is_some_and(|all| all.binary_search(&other).is_ok())
    }
}

fn all(stream: &Stream) -> DestinationPool {
    let mut pool = DestinationPool::new();
    pool.extend(stream.dst());
    pool
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventTime;
    use crate::train::StepMode;
    use crate::train::evaluate::Scores;
    use crate::train::stream::of_events;

    #[test]
    fn known_candidates_are_all_destinations_before_the_batch_but_the_source_and_what_else_is_true() {
        // Node 100 + t is new at row t; at row 6 source 0 meets 101 and 102 at one time, and 102 is a source itself.
        let events = [(0, 100, 0), (1, 101, 1), (2, 102, 2), (0, 103, 3), (102, 100, 4), (0, 104, 5)];
        let stream = of_events(events.into_iter().chain([(0, 101, 6), (0, 102, 6), (102, 102, 7)]));
        let candidates = Candidates::known(&stream);
        assert_eq!(candidates.count(), 5);
        let key = |node: NodeId| stream.dst().iter().position(|dst| *dst == node).unwrap();
        let of = |begin: usize, row: usize| {
            let (src, dst, mut out) = (stream.src()[row], stream.dst()[row], Vec::new());
            candidates.of((begin, row), src, dst, &mut out);
            let mut rows: Vec<usize> = out.into_iter().map(key).collect();
            rows.sort_unstable();
            (candidates.has(begin, src, dst), rows)
        };
        // As rows of first events: 0 is 100, 1 is 101, 2 is 102, 3 is 103, 5 is 104.
        assert_eq!(of(4, 4), (true, vec![1, 3]), "not the true one, not the source");
        assert_eq!(of(4, 5), (false, vec![0, 1, 2, 3]), "104 is new in its batch: nothing can find it");
        assert_eq!(of(6, 6), (true, vec![0, 3, 5]), "102 is true at the same time");
        assert_eq!(of(0, 0), (false, vec![]), "nothing is known before the stream");
        assert!(!of(8, 8).0, "a source is not found for itself");
    }

    #[test]
    fn historical_candidates_are_half_own_ones_and_never_the_true_one() {
        let stream = of_events((0..400).map(|t| (t % 4, 100 + t % 80, t)));
        let (candidates, mut found) = (Candidates::historical(&stream, 200, 30, 5), Vec::new());
        for row in 300..400 {
            let (src, dst) = (stream.src()[row], stream.dst()[row]);
            candidates.of((row, row), src, dst, &mut found);
            assert!(!found.contains(&dst));
            // The first half of the stream has 20 destinations a source; 15 of them stand last, each once.
            let own: HashSet<_> = found[found.len() - 15..].iter().map(|node| node.0).collect();
            let met = |node: u32| (0..200).any(|row| stream.src()[row] == src && stream.dst()[row].0 == node);
            assert!(own.len() == 15 && own.iter().all(|&node| met(node)));
        }
        // At the time of row 300 its source meets one more.
        let busy =
            of_events((0..400).map(|t| if t == 301 { (0, 105, 300) } else { (t % 4, 100 + t % 80, t) }));
        let (src, dst, more) = (busy.src()[300], busy.dst()[300], busy.dst()[301]);
        assert_eq!((src, busy.times()[300]), (busy.src()[301], busy.times()[301]));
        for seed in 0..20 {
            for candidates in
                [Candidates::drawn(&busy, 2000, seed), Candidates::historical(&busy, 200, 2000, seed)]
            {
                candidates.of((300, 300), src, dst, &mut found);
                assert!(found.len() > 1800 && !found.contains(&dst) && !found.contains(&more));
                candidates.of((299, 299), busy.src()[299], busy.dst()[299], &mut found);
                assert!(found.contains(&more), "at another time it is one of many");
            }
        }
        let all = Candidates::historical(&stream, 0, 30, 5);
        all.of((399, 399), stream.src()[399], NodeId::NONE, &mut found);
        assert_eq!((found.len(), all.count()), (30, 30), "a source that met nobody has random ones");
    }

    /// Scores by a table, with ties, and counts the nodes of its largest pass of several events.
    #[derive(Default)]
    struct Tied(std::cell::Cell<usize>);

    impl Tied {
        fn score(src: NodeId, dst: NodeId) -> f32 {
            ((src.0 * 31 + dst.0 * 17) % 7) as f32
        }
    }

    impl Contender for Tied {
        fn take(&mut self, _: &Batch, _: StepMode) -> Result<Scores, EvaluationError> {
            Ok(Scores::default())
        }

        fn score_candidates(
            &self,
            src: NodeId,
            _: EventTime,
            candidates: &[NodeId],
        ) -> Result<Vec<f32>, EvaluationError> {
            Ok(candidates.iter().map(|&dst| Self::score(src, dst)).collect())
        }

        fn score_queries(&self, queries: &[RankQuery<'_>]) -> Result<Vec<Vec<f32>>, EvaluationError> {
            if queries.len() > 1 {
                let nodes = queries.iter().map(|query| query.candidates.len() + 1).sum();
                self.0.set(self.0.get().max(nodes));
            }
            queries
                .iter()
                .map(|query| self.score_candidates(query.src, query.time, query.candidates))
                .collect()
        }
    }

    #[test]
    fn an_event_is_ranked_among_its_own_candidates_however_many_they_are() {
        let stream = of_events((0..400).map(|t| (t % 4, 100 + t % 80, t)));
        let part = 300..400;
        // The longest exceeds what is scored at once.
        let counts: Vec<usize> =
            (0..100).map(|event| if event == 50 { 3000 } else { 1 + event * 7 % 90 }).collect();
        let other = |row: usize, place: usize| {
            let other = stream.dst()[(row * 13 + place * 7) % 400];
            if other == stream.dst()[row] { stream.src()[row] } else { other }
        };
        let of = |row: usize| (0..counts[row - 300]).map(move |place| other(row, place));
        let pairs: Vec<_> = part.clone().flat_map(|row| of(row).map(move |dst| (row, dst))).collect();
        let pairs: Vec<_> = pairs.into_iter().map(|(row, dst)| (stream.src()[row], dst)).collect();
        let given = |counts| Candidates::given(&stream, &pairs, counts, "test", part.clone());
        let candidates = given(Some(counts.clone())).unwrap();
        assert_eq!(candidates.count(), 3000);

        let (mut batch, mut meter, tied) = (Batch::default(), RankMeter::default(), Tied::default());
        for rows in [300..370, 370..400] {
            batch.load(&stream, rows);
            candidates.rank(&tied, &batch, &mut meter).unwrap();
        }
        // The mean of the rank before all candidates of the same score, and of the one behind them.
        let reciprocal = |row: usize| {
            let score = |dst| Tied::score(stream.src()[row], dst);
            let own = score(stream.dst()[row]);
            let before = 1 + of(row).filter(|&dst| score(dst) > own).count();
            let behind = 1 + of(row).filter(|&dst| score(dst) >= own).count();
            2.0 / (before + behind) as f64
        };
        let expected = part.clone().map(reciprocal).sum::<f64>() / 100.0;
        let found = meter.summary().unwrap();
        assert!((found.mean_reciprocal_rank - expected).abs() < 1e-12, "{found:?}, not {expected}");
        assert_eq!(found.events, 100);
        assert!((ROWS_PER_PASS / 2..=ROWS_PER_PASS).contains(&tied.0.get()), "{}", tied.0.get());

        let mut others = counts.clone();
        others.swap(10, 11);
        let error = given(Some(others)).unwrap_err().to_string();
        assert!(error.contains("another source than test event 11"), "{error}");
        for others in [None, Some(counts[1..].to_vec()), Some([vec![0], counts[1..].to_vec()].concat())] {
            assert!(matches!(given(others), Err(ProtocolError::CandidateCount { events: 100, .. })));
        }
    }
}
