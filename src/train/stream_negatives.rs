//! Negatives of a model that follows a stream: those of the learner and of test-then-train.
//!
//! Whether a destination was ever seen before must not tell negatives from positives: were they drawn from what is
//! known, every destination that occurs for the first time would be a positive. So each kind of destination is about as
//! frequent among the negatives of a batch as among its positives. For event `i`:
//!
//! ```text
//! unseen   no destination before i (inductive)  a destination that first occurs later in the batch
//! fresh    one since the batch began            a destination of the batch before i that was none before the batch
//! seen     one before the batch                 one half historical: of all that were seen, each equally likely
//!                                               other half recent: of RECENT_EVENTS events before i, as often
//! ```
//! A stated share of the negatives, of those that are seen destinations, is drawn from what the event's own source met
//! ([`MetDestinations`]), if it met any: novelty gives nothing away then either.
//!
//! A drawn destination is none that the source has in the batch, unless there is no other. It may be one that the
//! source had earlier, as is the custom.
//!
//! A draw is a function of (seed, batch, place in the batch), of the batch and of the events before it. The protocols
//! with published negatives draw from a [`DestinationPool`] alone.

mod saved;

use std::collections::VecDeque;

use super::met::MetDestinations;
use super::negative::DestinationPool;
use hashbrown::HashSet;

use crate::device::rng;
use crate::event::{EdgeId, NodeId, NodeTable};

/// Events whose destinations are recent.
pub const RECENT_EVENTS: usize = 1024;

/// Keeps these negatives apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x6e65_6773_7472_6561;

/// The same for those that a source met.
const MET: u64 = 0x6d65_7462_6566_6f72;

/// Where a node that is no destination was one last.
const NEVER: EdgeId = EdgeId(0);

/// Draws before a kind of destination is given up that the source has all of.
const TRIES: usize = 8;

/// The destinations of a stream so far. A function of the log: it does not depend on how that is cut into batches.
#[derive(Clone, Debug, Default)]
pub struct StreamNegatives {
    known: DestinationPool,
    /// Destinations of the latest events, the newest last. Those that are not known any more count for nothing.
    recent: VecDeque<NodeId>,
    /// Where destinations age: for each node a position behind its last event as a destination.
    last: Option<NodeTable<EdgeId>>,
    /// Events since destinations were last searched for old ones.
    unsearched: usize,
    /// Where a share is drawn of what sources met.
    met: Option<MetDestinations>,
}

impl StreamNegatives {
    /// No destination yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// No destination yet; each is forgotten some time after its last event is (see [`Self::keep_from`]).
    #[must_use]
    pub fn aging() -> Self {
        Self { last: Some(NodeTable::new(NEVER)), ..Self::default() }
    }

    /// Keeps what sources met, from now on, or keeps it no longer.
    pub fn keep_met(&mut self, keeps: bool) {
        match keeps {
            true => drop(self.met.get_or_insert_default()),
            false => self.met = None,
        }
    }

    /// Drops deleted nodes from what others met. Visits every source, so it is for many nodes at a time.
    pub fn drop_met(&mut self, deleted: &[NodeId]) {
        if let Some(met) = &mut self.met {
            met.drop_nodes(deleted);
        }
    }

    /// The destinations that are known.
    #[must_use]
    pub fn known(&self) -> &DestinationPool {
        &self.known
    }

    /// Takes in the ends of `edges`, which count where destinations age.
    pub fn observe(&mut self, sources: &[NodeId], destinations: &[NodeId], edges: &[EdgeId]) {
        self.known.extend(destinations);
        if let Some(met) = &mut self.met {
            met.observe(sources, destinations);
        }
        let fresh = destinations.len().saturating_sub(RECENT_EVENTS);
        self.recent.extend(&destinations[fresh..]);
        self.recent.drain(..self.recent.len().saturating_sub(RECENT_EVENTS));
        let Some(last) = &mut self.last else { return };
        self.unsearched += destinations.len();
        for (node, edge) in destinations.iter().zip(edges) {
            last.set(*node, EdgeId(edge.0 + 1));
        }
    }

    /// Events before `first` are not kept any more. Destinations without a later one are forgotten once as many events
    /// came as pay for the search. To be called at places that follow from the log alone.
    pub fn keep_from(&mut self, first: EdgeId) {
        let Some(last) = &mut self.last else { return };
        if first == EdgeId(0) || self.unsearched < self.known.len() / 2 {
            return;
        }
        self.unsearched = 0;
        let is_old = |node: &&NodeId| last.get(**node) <= first;
        let old: Vec<NodeId> = self.known.nodes().iter().filter(is_old).copied().collect();
        old.iter().for_each(|&node| last.set(node, NEVER));
        self.known.remove(&old);
    }

    /// Drops nodes that were deleted.
    pub fn remove(&mut self, nodes: &[NodeId]) {
        self.known.remove(nodes);
        if let Some(met) = &mut self.met {
            met.forget(nodes);
        }
        if let Some(last) = &mut self.last {
            nodes.iter().for_each(|&node| last.set(node, NEVER));
        }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let last = self.last.as_ref().map_or(0, NodeTable::bytes);
        self.known.bytes()
            + self.met.as_ref().map_or(0, MetDestinations::bytes)
            + self.recent.capacity() * size_of::<NodeId>()
            + last
    }

    /// Fills `out` with one negative destination for each event of a batch, which was not observed yet; this share of
    /// them are destinations that the event's source met before, where that is kept.
    pub fn draw(
        &self,
        [seed, batch]: [u64; 2],
        met_share: f64,
        (src, dst): (&[NodeId], &[NodeId]),
        out: &mut Vec<NodeId>,
    ) {
        let beside = Beside::new(self, src, dst);
        out.clear();
        out.extend((0..dst.len()).map(|i| {
            let of = |stream| Draws::new([stream ^ seed, batch, i as u64]);
            beside.one(&mut of(STREAM), Some((of(STREAM ^ MET), met_share)), i)
        }));
    }

    /// What candidates for the events of a batch are drawn from, which was not observed yet.
    #[must_use]
    pub fn rivals<'a>(&'a self, src: &'a [NodeId], dst: &'a [NodeId]) -> Rivals<'a> {
        Rivals(Beside::new(self, src, dst))
    }
}

/// Draws candidates for the events of one batch.
pub struct Rivals<'a>(Beside<'a>);

impl Rivals<'_> {
    /// Different candidates for event `i`, drawn as its negative is; the true destination is not among them. Up to
    /// `count`, fewer where there are not so many or nearly none other is drawn.
    #[must_use]
    pub fn of(&self, [seed, batch]: [u64; 2], i: usize, count: usize) -> Vec<NodeId> {
        let mut draws = Draws::new([STREAM ^ seed, batch, i as u64]);
        let mut rivals = Vec::with_capacity(count);
        let mut taken: HashSet<NodeId> = std::iter::once(self.0.dst[i]).collect();
        for _ in 0..count.saturating_mul(TRIES) {
            if rivals.len() == count {
                break;
            }
            let rival = self.0.one(&mut draws, None, i);
            if taken.insert(rival) {
                rivals.push(rival);
            }
        }
        rivals
    }
}

/// Random numbers of one event.
struct Draws {
    prefix: u64,
    next: u64,
}

impl Draws {
    fn new(key: [u64; 3]) -> Self {
        Self { prefix: rng::prefix(key), next: 0 }
    }

    /// A number in `0..n`, which is not 0.
    fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        rng::scale(rng::draw(self.prefix, self.next - 1), n) as usize
    }

    /// A number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1 << 24)).unwrap_or(0)) / f64::from(1 << 24)
    }
}

/// A batch beside what was known before it.
struct Beside<'a> {
    before: &'a StreamNegatives,
    src: &'a [NodeId],
    dst: &'a [NodeId],
    /// The batch's pairs in order.
    pairs: Vec<(NodeId, NodeId)>,
    /// Events to destinations that were none before the batch, and the first of each destination.
    unknown: Vec<usize>,
    first: Vec<usize>,
}

impl<'a> Beside<'a> {
    fn new(before: &'a StreamNegatives, src: &'a [NodeId], dst: &'a [NodeId]) -> Self {
        let mut pairs: Vec<_> = src.iter().copied().zip(dst.iter().copied()).collect();
        pairs.sort_unstable();
        let unknown: Vec<usize> = (0..dst.len()).filter(|&i| !before.known.contains(dst[i])).collect();
        let mut first = unknown.clone();
        first.sort_by_key(|&i| (dst[i], i));
        first.dedup_by_key(|i| dst[*i]);
        first.sort_unstable();
        Self { before, src, dst, pairs, unknown, first }
    }

    /// A negative destination for event `i`; if `met` is given, of all such this share from what its source met, by
    /// draws of its own.
    fn one(&self, draws: &mut Draws, met: Option<(Draws, f64)>, i: usize) -> NodeId {
        let (unseen, fresh) = self.shares(i);
        let kind = draws.unit();
        let is_seen = kind >= unseen + fresh;
        let seen = (1.0 - unseen - fresh).max(f64::MIN_POSITIVE);
        let met =
            met.filter(|_| is_seen).and_then(|(mut draws, share)| self.met(&mut draws, share / seen, i));
        let special = if kind < unseen {
            self.any(&self.first[self.first.partition_point(|&event| event <= i)..], draws, i)
        } else if kind < unseen + fresh {
            self.any(&self.unknown[..self.unknown.partition_point(|&event| event < i)], draws, i)
        } else {
            None
        };
        let known = |draws: &mut Draws| {
            let recent_first = draws.unit() < 0.5;
            let [one, other] = [recent_first, !recent_first].map(|recent| self.known(recent, draws, i));
            one.or(other)
        };
        let found = special.or(met).or_else(|| known(draws)).or_else(|| self.any(&self.unknown, draws, i));
        found.unwrap_or_else(|| {
            // Whatever there is, the source has.
            let pool = self.before.known.nodes();
            if pool.is_empty() {
                self.dst[draws.below(self.dst.len())]
            } else {
                pool[draws.below(pool.len())]
            }
        })
    }

    /// With probability `share`, a destination that the source of event `i` met before and does not have in the batch.
    fn met(&self, draws: &mut Draws, share: f64, i: usize) -> Option<NodeId> {
        if draws.unit() >= share {
            return None;
        }
        let may_be = |node| self.before.known.contains(node) && self.is_negative(i, node);
        self.before.met.as_ref()?.draw(self.src[i], may_be, |count| draws.below(count))
    }

    /// With which probabilities the negative of event `i` is an unseen and a fresh destination, so that the batch has
    /// as many of either kind among its negatives as among its positives.
    #[allow(clippy::cast_precision_loss)]
    fn shares(&self, i: usize) -> (f64, f64) {
        let (Some(&begin), Some(&end)) = (self.first.first(), self.first.last()) else { return (0.0, 0.0) };
        let share = |events: usize, places: usize| (events as f64 / places.max(1) as f64).min(1.0);
        let unseen = if i < end { share(self.first.len(), end) } else { 0.0 };
        let repeats = self.unknown.len() - self.first.len();
        let fresh = if i > begin { share(repeats, self.dst.len() - 1 - begin) } else { 0.0 };
        (unseen, fresh)
    }

    /// The destination of any of these events that the source of event `i` does not have.
    fn any(&self, events: &[usize], draws: &mut Draws, i: usize) -> Option<NodeId> {
        let start = if events.is_empty() { 0 } else { draws.below(events.len()) };
        let from = events.iter().cycle().skip(start).take(events.len().min(TRIES));
        from.map(|&event| self.dst[event]).find(|&node| self.is_negative(i, node))
    }

    /// A known destination that the source of event `i` does not have: of a recent event, or any.
    fn known(&self, recent: bool, draws: &mut Draws, i: usize) -> Option<NodeId> {
        let (pool, window) = (&self.before.known, &self.before.recent);
        let length = if recent { (window.len() + i).min(RECENT_EVENTS) } else { pool.len() };
        let skipped = (window.len() + i).saturating_sub(RECENT_EVENTS);
        (0..if length == 0 { 0 } else { TRIES }).find_map(|_| {
            let place = draws.below(length);
            let node = if recent {
                let place = skipped + place;
                *window.get(place).or_else(|| self.dst.get(place - window.len()))?
            } else {
                pool.nodes()[place]
            };
            (pool.contains(node) && self.is_negative(i, node)).then_some(node)
        })
    }

    fn is_negative(&self, i: usize, node: NodeId) -> bool {
        self.pairs.binary_search(&(self.src[i], node)).is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream in which about every fifth event has a destination of its own kind, some of them twice.
    fn events(range: std::ops::Range<u32>) -> (Vec<NodeId>, Vec<NodeId>) {
        let dst = |i: u32| match i % 10 {
            3 | 8 => 10_000 + i,
            9 => 10_000 + i - 1,
            _ => 100 + i * i % 37,
        };
        range.map(|i| (NodeId(i * 7 % 23), NodeId(dst(i)))).unzip()
    }

    #[test]
    fn whether_a_destination_was_seen_before_does_not_tell_a_negative() {
        [0.0, 0.25].into_iter().for_each(novelty_gives_nothing_away);
    }

    fn novelty_gives_nothing_away(met_share: f64) {
        let (mut drawn, mut negatives) = (Vec::new(), StreamNegatives::new());
        negatives.keep_met(met_share > 0.0);
        // Of all positives and negatives: never seen, seen in this batch only, seen in the latest 300 events.
        let mut counts = [[0_usize; 2]; 2];
        for batch in 0..100_u32 {
            let (src, dst) = events(batch * 50..batch * 50 + 50);
            negatives.draw([7, u64::from(batch)], met_share, (&src, &dst), &mut drawn);
            for (i, pair) in dst.iter().zip(&drawn).enumerate().filter(|_| batch > 0) {
                for (label, node) in [*pair.0, *pair.1].into_iter().enumerate() {
                    let unknown = !negatives.known().contains(node);
                    counts[0][label] += usize::from(unknown && !dst[..i].contains(&node));
                    counts[1][label] += usize::from(unknown && dst[..i].contains(&node));
                }
            }
            negatives.observe(&src, &dst, &[]);
        }
        for [positive, negative] in counts {
            let ratio = negative as f64 / positive as f64;
            assert!((0.85..1.15).contains(&ratio), "{counts:?}");
        }
    }

    #[test]
    fn half_of_the_known_ones_are_drawn_as_often_as_they_occur() {
        let mut negatives = StreamNegatives::new();
        // A hundred destinations, of which one has every other event.
        let dst: Vec<NodeId> = (0..2_000).map(|i| NodeId(if i % 2 == 0 { 0 } else { i / 2 % 100 })).collect();
        negatives.observe(&dst, &dst, &[]);
        // Few enough events that the batch's own take no place of note among the recent ones.
        let (src, seen) = (vec![NodeId(500); 32], vec![NodeId(50); 32]);
        let (mut drawn, mut all) = (Vec::new(), Vec::new());
        for batch in 0..1_000 {
            negatives.draw([1, batch], 0.0, (&src, &seen), &mut drawn);
            all.extend_from_slice(&drawn);
        }
        let share = |node: u32| all.iter().filter(|drawn| drawn.0 == node).count() as f64 / all.len() as f64;
        // Historical: one of 99. Recent: half of the window without the excluded one, which has one in 200 of it.
        let expected = 0.5 / 99.0 + 0.5 * 0.5 / 0.995;
        assert!((share(0) - expected).abs() < 0.012, "{} for {expected}", share(0));
        let other = 0.5 / 99.0 + 0.5 * 0.005 / 0.995;
        assert!((share(7) - other).abs() < 0.002, "{} for {other}", share(7));
        assert!(!drawn.contains(&NodeId(50)), "the source has it in the batch");
        let mut again = Vec::new();
        negatives.draw([1, 999], 0.0, (&src, &seen), &mut again);
        assert_eq!(drawn, again);
        negatives.draw([1, 3], 0.0, (&src, &seen), &mut again);
        assert_ne!(drawn, again);
    }

    #[test]
    fn a_popular_destination_stands_once_among_the_candidates() {
        let mut negatives = StreamNegatives::new();
        let dst: Vec<NodeId> = (0..2_000).map(|i| NodeId(if i % 10 > 0 { 0 } else { i / 10 % 60 })).collect();
        negatives.observe(&dst, &dst, &[]);
        let (src, dst) = (vec![NodeId(500); 20], (0..20).map(NodeId).collect::<Vec<_>>());
        for i in 0..20 {
            let mut rivals = negatives.rivals(&src, &dst).of([1, 2], i, 30);
            assert_eq!(rivals.len(), 30);
            assert!(!rivals.contains(&dst[i]));
            rivals.sort_unstable();
            rivals.dedup();
            assert_eq!(rivals.len(), 30);
        }
    }

    #[test]
    fn a_share_of_negatives_met_their_source_before() {
        let mut negatives = StreamNegatives::new();
        negatives.keep_met(true);
        let (src, dst): (Vec<_>, Vec<_>) =
            (0..2_000).map(|i| (NodeId(i % 50), NodeId(1_000 + i % 50 * 10 + i / 50 % 10))).unzip();
        negatives.observe(&src, &dst, &[]);
        let (src, dst): (Vec<_>, Vec<_>) = (0..50).map(|i| (NodeId(i), NodeId(1_000 + i * 10))).unzip();
        let shares = [0.0, 0.25, 1.0].map(|share| {
            let (mut drawn, mut met) = (Vec::new(), 0);
            for batch in 0..40 {
                negatives.draw([5, batch], share, (&src, &dst), &mut drawn);
                let is_met = |(src, dst): &(&NodeId, &NodeId)| (dst.0 - 1_000) / 10 == src.0;
                met += src.iter().zip(&drawn).filter(is_met).count();
                assert!(drawn.iter().zip(&dst).all(|(drawn, dst)| drawn != dst));
            }
            met as f64 / 2_000.0
        });
        assert!(shares[0] < 0.04 && (0.22..0.32).contains(&shares[1]) && shares[2] == 1.0, "{shares:?}");
        negatives.remove(&dst);
        let mut drawn = Vec::new();
        negatives.draw([5, 0], 1.0, (&src, &[NodeId(1); 50]), &mut drawn);
        assert!(drawn.iter().all(|node| !dst.contains(node)), "a deleted destination is not drawn");
    }

    #[test]
    fn a_batch_of_one_destination_has_negatives_all_the_same() {
        let (src, dst) = (vec![NodeId(1), NodeId(2)], vec![NodeId(9), NodeId(9)]);
        let (mut drawn, mut negatives) = (Vec::new(), StreamNegatives::new());
        negatives.draw([0, 0], 0.0, (&src, &dst), &mut drawn);
        assert_eq!(drawn, dst, "there is no other");
        negatives.observe(&src, &dst, &[]);
        negatives.observe(&[NodeId(3)], &[NodeId(4)], &[]);
        negatives.draw([0, 3], 0.0, (&src, &dst), &mut drawn);
        assert_eq!(drawn, [NodeId(4); 2]);
        negatives.draw([0, 3], 0.0, (&[], &[]), &mut drawn);
        assert!(drawn.is_empty());
        assert_eq!(negatives.rivals(&src, &dst).of([0, 3], 1, 5), [NodeId(4)]);
        negatives.remove(&[NodeId(4)]);
        negatives.draw([0, 3], 0.0, (&src, &dst), &mut drawn);
        assert_eq!(drawn, dst, "a deleted destination is not drawn, recent or not");
    }

    #[test]
    fn destinations_age_with_the_events_that_had_them() {
        let mut negatives = StreamNegatives::aging();
        for batch in 0..100_u32 {
            let dst: Vec<NodeId> = (0..10).map(|i| NodeId(batch * 10 + i)).collect();
            let end = u64::from(batch) * 10 + 10;
            negatives.observe(&dst, &dst, &(end - 10..end).map(EdgeId).collect::<Vec<_>>());
            negatives.keep_from(EdgeId(end.saturating_sub(100)));
            assert!(negatives.known().len() <= 220, "{}", negatives.known().len());
        }
        assert!(negatives.known().contains(NodeId(999)) && !negatives.known().contains(NodeId(700)));
        let mut kept = StreamNegatives::new();
        kept.observe(&[NodeId(2)], &[NodeId(1)], &[EdgeId(0)]);
        kept.keep_from(EdgeId(1_000));
        assert_eq!(kept.known().len(), 1, "where nothing ages, all are kept");
    }
}
