//! EdgeBank: the baseline without parameters. A pair scores 1 if the bank holds it, else 0.
//!
//! What the bank holds is a rule over the events seen before the batch that is scored: all pairs, the
//! pairs of a recent window, or the pairs seen often. The rule's threshold is set once per observed
//! batch. Pairs are directed. Cost per event is one hash look-up; memory is one entry per distinct
//! pair, which for [`BankRule::Unlimited`] is the pair alone in 8 bytes, for [`BankRule::Retained`] 16 bytes of those
//! pairs that still count and at most as many more, and for [`BankRule::Window`] one time per event.
//!
//! Knows nothing of negatives, splits or batches sizes: callers score a batch, then let it be observed.

mod saved;

use hashbrown::{HashMap, HashSet};

use super::quantile::{ROUNDING, quantile};
use crate::event::{EventTime, NodeId};
use crate::model::pair_budget::evict_oldest;

/// Which of the pairs seen so far count as held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BankRule {
    /// Every pair.
    Unlimited,
    /// Pairs seen at or after a time that the caller moves on with [`EdgeBank::keep_since`], as a graph does that keeps
    /// a part of its stream.
    Retained,
    /// Pairs seen at or after the 0.85 quantile of all event times so far.
    Window,
    /// Pairs seen within the last mean repeat interval: the mean over distinct pairs of the mean gap
    /// between their occurrences, pairs seen once counting 0.
    RepeatInterval,
    /// Pairs seen at least as often as the mean pair.
    RepeatThreshold,
}

/// Entries below which no pair is dropped for its age.
const PRUNE_MIN: usize = 1_024;

/// Share of the events that stands before the window of [`BankRule::Window`].
const BEFORE_WINDOW: f64 = 0.85;

#[derive(Clone, Copy)]
struct Pair {
    count: u64,
    first: EventTime,
    last: EventTime,
}

impl Pair {
    /// Mean gap between occurrences; 0 for a pair seen once. Gaps add up to last minus first.
    #[allow(clippy::cast_precision_loss)]
    fn mean_gap(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        self.last.0.saturating_sub(self.first.0) as f64 / (self.count - 1) as f64
    }
}

/// The pairs seen so far and the rule that selects which of them count.
#[derive(Clone)]
pub struct EdgeBank {
    rule: BankRule,
    /// All that [`BankRule::Unlimited`] needs to know; empty under the other rules.
    seen: HashSet<u64>,
    /// All that [`BankRule::Retained`] needs to know, the latest time of each pair; empty under the other rules.
    latest_of: HashMap<u64, EventTime>,
    /// Most entries of `latest_of`; 0: any number.
    pairs_max: usize,
    evicted: u64,
    /// Entries of `latest_of` at which those that do not count are dropped.
    prune_at: usize,
    /// Empty under [`BankRule::Unlimited`] and [`BankRule::Retained`].
    pairs: HashMap<(NodeId, NodeId), Pair>,
    /// All event times in order; only for [`BankRule::Window`].
    times: Vec<EventTime>,
    latest: EventTime,
    events: u64,
    gap_sum: f64,
    window_start: EventTime,
}

impl EdgeBank {
    /// An empty bank.
    #[must_use]
    pub fn new(rule: BankRule) -> Self {
        Self {
            rule,
            seen: HashSet::new(),
            latest_of: HashMap::new(),
            pairs_max: 0,
            evicted: 0,
            prune_at: PRUNE_MIN,
            pairs: HashMap::new(),
            times: Vec::new(),
            latest: EventTime::MIN,
            events: 0,
            gap_sum: 0.0,
            window_start: EventTime::MIN,
        }
    }

    /// Under [`BankRule::Retained`], holds `most` pairs at most, those that were seen last; 0: any number.
    #[must_use]
    pub fn limited(self, most: usize) -> Self {
        Self { pairs_max: most, ..self }
    }

    /// Pairs that went for the limit.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Which pairs count.
    #[must_use]
    pub fn rule(&self) -> BankRule {
        self.rule
    }

    /// Scores the pair: 1 if it is held, else 0.
    #[must_use]
    #[allow(clippy::cast_precision_loss)]
    pub fn score(&self, src: NodeId, dst: NodeId) -> f32 {
        let held = |held: bool| f32::from(u8::from(held));
        match self.rule {
            BankRule::Unlimited => return held(self.seen.contains(&packed(src, dst))),
            BankRule::Retained => {
                let latest = self.latest_of.get(&packed(src, dst));
                return held(latest.is_some_and(|&latest| latest >= self.window_start));
            }
            _ => {}
        }
        let Some(pair) = self.pairs.get(&(src, dst)) else { return 0.0 };
        held(match self.rule {
            BankRule::Unlimited | BankRule::Retained => true,
            BankRule::Window | BankRule::RepeatInterval => pair.last >= self.window_start,
            BankRule::RepeatThreshold => {
                u128::from(pair.count) * self.pairs.len() as u128 >= u128::from(self.events)
            }
        })
    }

    /// Scores pair after pair. The columns are equally long.
    #[must_use]
    pub fn scores(&self, src: &[NodeId], dst: &[NodeId]) -> Vec<f32> {
        src.iter().zip(dst).map(|(&src, &dst)| self.score(src, dst)).collect()
    }

    /// Scores events and, beside each, a pair that did not happen, by what was seen before the batch and by
    /// the batch's own events strictly earlier in time, as a model does whose view holds the batch. Then
    /// all events have been seen. The columns are equally long.
    pub fn score_in_time(
        &mut self,
        src: &[NodeId],
        dst: &[NodeId],
        other: &[NodeId],
        times: &[EventTime],
    ) -> (Vec<f32>, Vec<f32>) {
        let mut order: Vec<usize> = (0..src.len()).collect();
        order.sort_by_key(|&i| times[i]);
        let (mut positive, mut negative) = (vec![0.0; src.len()], vec![0.0; src.len()]);
        for tied in order.chunk_by(|&a, &b| times[a] == times[b]) {
            for &i in tied {
                positive[i] = self.score(src[i], dst[i]);
                negative[i] = self.score(src[i], other[i]);
            }
            for &i in tied {
                self.observe(&src[i..=i], &dst[i..=i], &times[i..=i]);
            }
        }
        (positive, negative)
    }

    /// Adds a batch of events and sets the rule's threshold anew. The columns are equally long; events
    /// may come late.
    pub fn observe(&mut self, src: &[NodeId], dst: &[NodeId], times: &[EventTime]) {
        for ((&src, &dst), &time) in src.iter().zip(dst).zip(times) {
            self.insert(src, dst, time);
        }
        match self.rule {
            BankRule::Window => {
                if let Some(start) = quantile(&self.times, BEFORE_WINDOW) {
                    self.window_start = start.at_least;
                }
            }
            BankRule::RepeatInterval if !self.pairs.is_empty() => self.window_start = self.repeat_start(),
            _ => {}
        }
    }

    /// Under [`BankRule::Retained`], holds no pair any more whose latest event is before `since`. The time does not go
    /// back. Now and then all pairs are visited: once for each time that their number doubles. Does nothing under other
    /// rules.
    pub fn keep_since(&mut self, since: EventTime) {
        if self.rule != BankRule::Retained {
            return;
        }
        self.window_start = self.window_start.max(since);
        if self.latest_of.len() < self.prune_at {
            return;
        }
        let start = self.window_start;
        self.latest_of.retain(|_, &mut latest| latest >= start);
        self.prune_at = (2 * self.latest_of.len()).max(PRUNE_MIN);
        self.latest_of.shrink_to(self.prune_at);
    }

    /// Forgets every pair that has one of `nodes`. Visits every pair.
    pub fn forget(&mut self, nodes: &[NodeId]) {
        let gone: HashSet<u32> = nodes.iter().map(|node| node.0).collect();
        if gone.is_empty() {
            return;
        }
        #[allow(clippy::cast_possible_truncation, reason = "the lower half")]
        let keeps = |pair: u64| !gone.contains(&((pair >> 32) as u32)) && !gone.contains(&(pair as u32));
        self.seen.retain(|&pair| keeps(pair));
        self.latest_of.retain(|&pair, _| keeps(pair));
        let (events, gap_sum) = (&mut self.events, &mut self.gap_sum);
        self.pairs.retain(|&(src, dst), pair| {
            let kept = keeps(packed(src, dst));
            if !kept {
                *events -= pair.count;
                *gap_sum -= pair.mean_gap();
            }
            kept
        });
    }

    /// Number of distinct pairs known.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.seen.len() + self.latest_of.len() + self.pairs.len()
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let times = self.times.capacity() * size_of::<EventTime>();
        self.seen.allocation_size() + self.latest_of.allocation_size() + self.pairs.allocation_size() + times
    }

    fn insert(&mut self, src: NodeId, dst: NodeId, time: EventTime) {
        match self.rule {
            BankRule::Unlimited => {
                self.seen.insert(packed(src, dst));
                return;
            }
            BankRule::Retained => {
                let latest = self.latest_of.entry(packed(src, dst)).or_insert(time);
                *latest = time.max(*latest);
                self.evicted += evict_oldest(&mut self.latest_of, self.pairs_max, |&latest| latest);
                return;
            }
            _ => {}
        }
        let pair = self.pairs.entry((src, dst)).or_insert(Pair { count: 0, first: time, last: time });
        let gap_before = pair.mean_gap();
        pair.count += 1;
        pair.first = pair.first.min(time);
        pair.last = pair.last.max(time);
        self.gap_sum += pair.mean_gap() - gap_before;
        self.events += 1;
        self.latest = self.latest.max(time);
        if self.rule == BankRule::Window {
            match self.times.last() {
                Some(&last) if last > time => {
                    let at = self.times.partition_point(|&other| other <= time);
                    self.times.insert(at, time);
                }
                _ => self.times.push(time),
            }
        }
    }

    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    fn repeat_start(&self) -> EventTime {
        let interval = (self.gap_sum / self.pairs.len() as f64).max(0.0);
        // `t >= latest - interval` for whole t is `t >= latest - floor(interval)`.
        EventTime(self.latest.0.saturating_sub((interval + ROUNDING).floor() as i64))
    }
}

/// A directed pair as one number.
fn packed(src: NodeId, dst: NodeId) -> u64 {
    u64::from(src.0) << 32 | u64::from(dst.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_forgotten_nodes_are_gone() {
        let nodes = |ids: [u32; 4]| ids.map(NodeId);
        let (src, dst) = (nodes([1, 2, 3, 1]), nodes([2, 3, 4, 2]));
        for rule in
            [BankRule::Unlimited, BankRule::Retained, BankRule::RepeatInterval, BankRule::RepeatThreshold]
        {
            let mut bank = EdgeBank::new(rule);
            bank.observe(&src, &dst, &[10, 20, 30, 40].map(EventTime));
            bank.forget(&[]);
            assert_eq!(bank.pairs(), 3);
            bank.forget(&nodes([9, 2, 2, 7]));
            assert_eq!((bank.pairs(), bank.score(NodeId(1), NodeId(2))), (1, 0.0));
            assert_eq!(bank.score(NodeId(3), NodeId(4)), 1.0);
        }
    }

    fn bank(rule: BankRule, events: &[(u32, u32, i64)]) -> EdgeBank {
        let mut bank = EdgeBank::new(rule);
        let src: Vec<_> = events.iter().map(|e| NodeId(e.0)).collect();
        let dst: Vec<_> = events.iter().map(|e| NodeId(e.1)).collect();
        let times: Vec<_> = events.iter().map(|e| EventTime(e.2)).collect();
        bank.observe(&src, &dst, &times);
        bank
    }

    fn held(bank: &EdgeBank, pairs: &[(u32, u32)]) -> Vec<bool> {
        pairs.iter().map(|&(src, dst)| bank.score(NodeId(src), NodeId(dst)) == 1.0).collect()
    }

    #[test]
    fn unlimited_holds_every_pair_in_its_direction() {
        let bank = bank(BankRule::Unlimited, &[(1, 2, 5), (3, 3, 9)]);
        assert_eq!(held(&bank, &[(1, 2), (2, 1), (3, 3), (1, 3)]), [true, false, true, false]);
        assert_eq!(held(&EdgeBank::new(BankRule::Unlimited), &[(1, 2)]), [false]);
    }

    #[test]
    fn unlimited_keeps_a_pair_in_few_bytes() {
        let events: Vec<_> = (0..10_000).map(|i| (i, i + 1, 0)).collect();
        let bank = bank(BankRule::Unlimited, &events);
        assert_eq!(bank.pairs(), 10_000);
        // 9 bytes for each slot of a table that is at least 7/16 full.
        assert!(bank.bytes() < 21 * 10_000, "{}", bank.bytes());
    }

    #[test]
    fn retained_holds_what_was_seen_since_and_stays_as_small() {
        let mut kept = bank(BankRule::Retained, &[(1, 2, 5), (3, 3, 9), (1, 2, 8), (1, 2, 6)]);
        kept.keep_since(EventTime(8));
        kept.keep_since(EventTime(7));
        assert_eq!(held(&kept, &[(1, 2), (3, 3), (2, 1)]), [true, true, false]);
        kept.keep_since(EventTime(9));
        assert_eq!(held(&kept, &[(1, 2), (3, 3)]), [false, true]);
        kept.forget(&[NodeId(3)]);
        assert_eq!(held(&kept, &[(3, 3)]), [false]);

        let (mut kept, window) = (EdgeBank::new(BankRule::Retained), 5_000);
        for time in 0..100_000_u32 {
            kept.observe(&[NodeId(time)], &[NodeId(1)], &[EventTime(i64::from(time))]);
            kept.keep_since(EventTime(i64::from(time) - window + 1));
            assert!(kept.pairs() <= 2 * window as usize, "{} pairs at {time}", kept.pairs());
        }
        assert_eq!(held(&kept, &[(95_000, 1), (94_999, 1)]), [true, false]);
    }

    #[test]
    fn a_limited_bank_holds_the_pairs_that_were_seen_last() {
        let mut bank = EdgeBank::new(BankRule::Retained).limited(1_000);
        for i in 0..20_000_u32 {
            bank.observe(&[NodeId(i)], &[NodeId(1)], &[EventTime(i64::from(i))]);
            assert!(bank.pairs() <= 1_000);
        }
        assert_eq!(bank.evicted() as usize + bank.pairs(), 20_000);
        assert_eq!(held(&bank, &[(19_300, 1), (18_000, 1)]), [true, false]);
    }

    #[test]
    fn scores_in_time_see_strictly_earlier_events_of_the_batch() {
        let mut bank = bank(BankRule::Unlimited, &[(7, 8, 1)]);
        // In order of time: (7, 8) at 4, (1, 2) twice at 5, (1, 2) at 6; beside them (1, 2) each.
        let (src, dst) = ([1, 7, 1, 1].map(NodeId), [2, 8, 2, 2].map(NodeId));
        let times = [6, 4, 5, 5].map(EventTime);
        let other = [NodeId(2), NodeId(2), NodeId(8), NodeId(2)];
        let (positive, negative) = bank.score_in_time(&src, &dst, &other, &times);
        assert_eq!(positive, [1.0, 1.0, 0.0, 0.0]);
        assert_eq!(negative, [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(held(&bank, &[(1, 2), (7, 8), (7, 2)]), [true, true, false]);
    }

    #[test]
    fn window_starts_at_the_quantile_and_takes_late_events() {
        // Times 0..=100: the 0.85 quantile is 85, which is inside.
        let mut events: Vec<(u32, u32, i64)> = (0..=100).map(|t| (t, 500, i64::from(t))).collect();
        events.swap(3, 97);
        let bank = bank(BankRule::Window, &events);
        assert_eq!(held(&bank, &[(84, 500), (85, 500), (100, 500), (3, 500)]), [false, true, true, false]);
    }

    #[test]
    fn repeat_interval_is_the_mean_over_pairs_of_their_mean_gap() {
        // Gaps: (1,2) twice 10 -> 10; (1,3) once -> 0; mean 5; latest 40, so the window starts at 35.
        let bank = bank(BankRule::RepeatInterval, &[(1, 2, 10), (1, 2, 20), (1, 2, 30), (1, 3, 40)]);
        assert_eq!(held(&bank, &[(1, 2), (1, 3)]), [false, true]);
    }

    #[test]
    fn repeat_threshold_is_the_mean_count() {
        // Counts 3, 2, 1: the mean is 2.
        let events = [(1, 2, 1), (1, 2, 2), (1, 2, 3), (1, 3, 4), (1, 3, 5), (1, 4, 6)];
        let bank = bank(BankRule::RepeatThreshold, &events);
        assert_eq!(held(&bank, &[(1, 2), (1, 3), (1, 4)]), [true, true, false]);
    }
}
