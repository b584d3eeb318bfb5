//! [`StreamClock`]: where in time a stream stands.
//!
//! It is an order statistic. The *anchor* is the tenth-latest time ([`CONFIRMING_EVENTS`]): so many events are at it or
//! later. From there the clock goes on to the next later time while the gap is within reach. That is the rules' future
//! limit or, where there is none, the time that the stream has covered: from the tenth-earliest time to the
//! anchor. So up to nine events that are farther ahead of all others move nothing, nor do nine before all others; ten
//! are believed. What costs is that after a gap wider than the reach, or where all events had one time, the clock
//! stands up to nine events behind.
//!
//! The clock is a function of the set of events and the rules alone. The order, and how partitions interleave, do not
//! matter, a replay of the log leads to the same time, and once there are ten events the clock never goes back: a later
//! event raises the anchor or the reach, or changes nothing.
//!
//! Of a *young* stream, with up to twenty events, all times are known, and it begins and stands where the part of them
//! does that stands together. That is provisional: what cannot be taken back follows [`StreamClock::confirmed`].

use std::time::Duration;

use super::{EdgeId, EventTime};

/// A partition without events for so long is not waited for.
pub const PARTITION_IDLE: Duration = Duration::from_secs(30);

/// So many events that are far ahead move a clock, and so many events confirm one.
pub const CONFIRMING_EVENTS: usize = 10;

/// A stream of at most so many events is young: each is among the earliest or the latest.
const YOUNG_EVENTS: usize = 2 * CONFIRMING_EVENTS;

/// In a young stream without a limit, parts stand apart if the gap is so many times the longer one.
const SPANS_APART: i64 = 1_000;

/// By what a clock judges times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockRules {
    /// A time is far ahead when it is ahead by more than this, in the stream's unit.
    pub future_limit: Option<i64>,
    /// Later times than this do not count where they belong to edges below this position: an operator's correction.
    pub not_after: Option<(EdgeId, EventTime)>,
}

/// The latest time that ten of a stream's events confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamClock {
    rules: ClockRules,
    /// How many events there were, up to one more than a young stream has.
    events: usize,
    /// The earliest and the latest times in order, as many as there are.
    earliest: [i64; CONFIRMING_EVENTS],
    latest: [i64; CONFIRMING_EVENTS],
    /// Where the stream stands, once there are as many events.
    reached: i64,
}

impl StreamClock {
    /// A clock that has seen no event.
    #[must_use]
    pub fn new(rules: ClockRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Takes in an edge.
    #[inline]
    pub fn observe(&mut self, edge: EdgeId, time: EventTime) {
        if self.rules.not_after.is_some_and(|(below, latest)| edge < below && time > latest) {
            return;
        }
        let is_inside = time.0 <= self.latest[0] && time.0 >= self.earliest[CONFIRMING_EVENTS - 1];
        if !(is_inside && self.events > YOUNG_EVENTS) {
            self.take(time.0);
        }
    }

    fn take(&mut self, time: i64) {
        let newest = self.latest[CONFIRMING_EVENTS - 1];
        if self.is_confirmed() && time >= newest && self.reached == newest {
            // As in most streams. The anchor goes to the next time, so the reach cannot shrink, and the gaps behind the
            // newest stay within it.
            self.latest.copy_within(1.., 0);
            self.latest[CONFIRMING_EVENTS - 1] = time;
            self.events = (self.events + 1).min(YOUNG_EVENTS + 1);
            if time.abs_diff(newest) <= self.reach().unsigned_abs() {
                self.reached = time;
            }
            return;
        }
        let known = self.kept();
        if known < CONFIRMING_EVENTS {
            for times in [&mut self.earliest, &mut self.latest] {
                times[known] = time;
                times[..=known].sort_unstable();
            }
        } else {
            if time > self.latest[0] {
                let place = self.latest.partition_point(|&known| known < time);
                self.latest.copy_within(1..place, 0);
                self.latest[place - 1] = time;
            }
            if time < self.earliest[CONFIRMING_EVENTS - 1] {
                let place = self.earliest.partition_point(|&known| known <= time);
                self.earliest.copy_within(place..CONFIRMING_EVENTS - 1, place + 1);
                self.earliest[place] = time;
            }
        }
        self.events = (self.events + 1).min(YOUNG_EVENTS + 1);
        self.reached = self.reach_from_anchor();
    }

    /// Where the stream stands; `None` before the first event. While the stream is young it may go back.
    #[must_use]
    pub fn latest(&self) -> Option<EventTime> {
        if self.events > YOUNG_EVENTS {
            return Some(EventTime(self.reached));
        }
        self.covered().map(|(_, latest)| latest)
    }

    /// The same by what ten events confirm; `None` while there are fewer. It never goes back.
    #[must_use]
    pub fn confirmed(&self) -> Option<EventTime> {
        self.is_confirmed().then_some(EventTime(self.reached))
    }

    /// The earliest time that stands together with the others, and the latest.
    #[must_use]
    pub fn covered(&self) -> Option<(EventTime, EventTime)> {
        let (first, latest) = match self.events {
            0 => return None,
            events if events <= YOUNG_EVENTS => {
                let mut all = [0; YOUNG_EVENTS];
                let known = self.kept();
                all[..known].copy_from_slice(&self.earliest[..known]);
                all[known..events].copy_from_slice(&self.latest[2 * known - events..known]);
                let (first, latest) = together(&all[..events], self.rules.future_limit);
                (first, self.confirmed().map_or(latest, |confirmed| latest.max(confirmed.0)))
            }
            _ => (chain(self.earliest.iter().rev(), self.reach()), self.reached),
        };
        Some((EventTime(first), EventTime(latest)))
    }

    /// Whether enough events have come for the clock never to go back.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.events >= CONFIRMING_EVENTS
    }

    /// The latest times in order, at most ten.
    #[must_use]
    pub fn latest_times(&self) -> &[i64] {
        &self.latest[..self.kept()]
    }

    /// All that it has taken in, as numbers, but for the rules.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<i64> {
        let known = self.kept();
        [&[self.events as i64], &self.earliest[..known], &self.latest[..known]].concat()
    }

    /// A clock without rules that has taken in what these numbers say; `None` if they are not of a clock.
    #[must_use]
    pub fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let (&events, times) = numbers.split_first()?;
        let events = usize::try_from(events).ok().filter(|&events| events <= YOUNG_EVENTS + 1)?;
        let mut clock = Self { events, ..Self::default() };
        let known = clock.kept();
        let (earliest, latest) = times.split_at_checked(known).filter(|(_, latest)| latest.len() == known)?;
        let is_clock = earliest.is_sorted()
            && latest.is_sorted()
            && earliest.iter().zip(latest).all(|(earliest, latest)| earliest <= latest)
            && (events > CONFIRMING_EVENTS || earliest == latest);
        clock.earliest[..known].copy_from_slice(earliest);
        clock.latest[..known].copy_from_slice(latest);
        clock.reached = clock.reach_from_anchor();
        is_clock.then_some(clock)
    }

    /// The rules that it follows.
    #[must_use]
    pub fn rules(&self) -> ClockRules {
        self.rules
    }

    /// The same clock under other rules, for the events that it has observed too.
    #[must_use]
    pub fn with_rules(mut self, rules: ClockRules) -> Self {
        self.rules = rules;
        self.reached = self.reach_from_anchor();
        self
    }

    /// The same clock under these rules. Times that a correction among them excludes, and that the clock has observed,
    /// count as the latest of the others that it still knows: it may stand too early, and never too late.
    #[must_use]
    pub fn corrected(self, rules: ClockRules) -> Self {
        let Some((_, limit)) = rules.not_after.filter(|_| rules.not_after != self.rules.not_after) else {
            return self.with_rules(rules);
        };
        let known = self.kept();
        let times = self.earliest[..known].iter().chain(&self.latest[..known]);
        let Some(&latest) = times.filter(|&&time| time <= limit.0).max() else { return Self::new(rules) };
        let mut clock = self;
        for time in clock.earliest[..known].iter_mut().chain(&mut clock.latest[..known]) {
            *time = if *time > limit.0 { latest } else { *time };
        }
        clock.latest[..known].sort_unstable();
        clock.with_rules(rules)
    }

    /// How many of the earliest and of the latest times there are.
    fn kept(&self) -> usize {
        self.events.min(CONFIRMING_EVENTS)
    }

    /// How wide a gap needs no confirmation.
    fn reach(&self) -> i64 {
        let covered = self.latest[0].saturating_sub(self.earliest[CONFIRMING_EVENTS - 1]);
        self.rules.future_limit.unwrap_or(covered.max(0))
    }

    fn reach_from_anchor(&self) -> i64 {
        chain(self.latest.iter(), self.reach())
    }
}

/// The last of these times that is reached from the first by steps of at most `reach`.
fn chain<'a>(mut times: impl Iterator<Item = &'a i64>, reach: i64) -> i64 {
    let mut reached = times.next().copied().unwrap_or_default();
    for &time in times {
        if time.abs_diff(reached) > reach.unsigned_abs() {
            break;
        }
        reached = time;
    }
    reached
}

/// The first and last of those of the times, which are in order, that stand together: of the parts between gaps that
/// are too wide, the one with most times; of equal ones the earliest.
fn together(times: &[i64], limit: Option<i64>) -> (i64, i64) {
    let mut best = (0, 0..0);
    let mut begin = 0;
    for end in 1..=times.len() {
        let is_apart = |i: usize| {
            let (gap, reach) =
                (times[i].saturating_sub(times[i - 1]), times[i - 1].saturating_sub(times[begin]));
            let behind = times[times.len() - 1].saturating_sub(times[i]);
            match limit {
                Some(limit) => gap > limit,
                // Wide beside what is covered on its longer side, if that shows a scale at all.
                None => {
                    let span = reach.max(behind);
                    span > 0 && gap / SPANS_APART > span
                }
            }
        };
        if end == times.len() || is_apart(end) {
            if end - begin > best.0 {
                best = (end - begin, begin..end);
            }
            begin = end;
        }
    }
    let part = &times[best.1];
    (part.first().copied().unwrap_or_default(), part.last().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WILD: i64 = 4_000_000_000_000_000_000;

    fn clock_of(rules: ClockRules, times: impl IntoIterator<Item = i64>) -> StreamClock {
        let mut clock = StreamClock::new(rules);
        times.into_iter().enumerate().for_each(|(i, time)| clock.observe(EdgeId(i as u64), EventTime(time)));
        clock
    }

    /// Where the stream stands after each of these times.
    fn after(rules: ClockRules, times: &[i64]) -> Vec<i64> {
        let at = |end| clock_of(rules, times[..end].iter().copied()).latest().map(|time| time.0);
        (1..=times.len()).filter_map(at).collect()
    }

    fn confirmed(rules: ClockRules, times: impl IntoIterator<Item = i64>) -> Option<i64> {
        clock_of(rules, times).confirmed().map(|time| time.0)
    }

    fn limited(limit: i64) -> ClockRules {
        ClockRules { future_limit: Some(limit), ..ClockRules::default() }
    }

    #[test]
    fn one_wild_time_moves_no_clock_wherever_it_stands() {
        for rules in [ClockRules::default(), limited(1_000)] {
            for place in 0..30 {
                let mut times: Vec<i64> = (100..140).collect();
                times.insert(place, WILD);
                let all = after(rules, &times);
                assert_eq!(all.last(), Some(&139), "{rules:?}, {place}");
                assert!(all[2..].iter().all(|&time| time < WILD), "{rules:?}, {place}: {all:?}");
                times[place] = -WILD;
                let clock = clock_of(rules, times);
                assert_eq!(clock.covered(), Some((EventTime(100), EventTime(139))), "{rules:?}, {place}");
            }
        }
    }

    #[test]
    fn a_year_of_events_or_one_time_for_all_vouches_for_no_later_year() {
        let (day, free) = (86_400, ClockRules::default());
        let year = || (0..365).map(move |i| 1_700_000_000 + i * day);
        let latest = 1_700_000_000 + 364 * day;
        assert_eq!(confirmed(free, year().chain([latest + 3 * 365 * day])), Some(latest));
        assert_eq!(confirmed(free, year().chain([latest + 30 * day])), Some(latest + 30 * day), "a gap");
        let same = |events| std::iter::repeat_n(7, events);
        assert_eq!(confirmed(free, same(10)), Some(7));
        for events in [10, 15, 21, 100] {
            for wild in [8, WILD] {
                assert_eq!(confirmed(free, same(events).chain([wild; 9])), Some(7), "{events}, {wild}");
                assert_eq!(confirmed(free, same(events).chain([wild; 10])), Some(wild), "{events}, {wild}");
            }
        }
    }

    #[test]
    fn a_young_stream_stands_at_its_newest_event_and_confirms_nothing() {
        let times = [5, 9, 9, 3_000, 3, 8_000];
        assert_eq!(after(ClockRules::default(), &times), [5, 9, 9, 3_000, 3_000, 8_000]);
        assert_eq!(confirmed(ClockRules::default(), times), None);
        assert_eq!(after(ClockRules::default(), &[7; 30]), [7; 30]);
        let steady: Vec<i64> = (0..100).map(|i| i * 10).collect();
        assert_eq!(after(ClockRules::default(), &steady), steady);
        let backwards: Vec<i64> = (0..100).map(|i| 5_000 - i * 40).collect();
        assert!(after(limited(10_000), &backwards).iter().all(|&latest| latest == 5_000));
    }

    #[test]
    fn ten_events_carry_the_clock_over_a_gap_whatever_comes_between() {
        let gap = |count: i64, slow: usize| {
            let later = (0..count).flat_map(|i| [1_000_000 + i].into_iter().chain(vec![110; slow]));
            confirmed(limited(1_000), (100..120).chain(later)).unwrap()
        };
        assert_eq!([gap(9, 0), gap(10, 0), gap(9, 3), gap(10, 3)], [119, 1_000_009, 119, 1_000_009]);
        let sparse: Vec<i64> = (0..100).map(|i| i * 7_200).collect();
        assert_eq!(confirmed(limited(3_600), sparse), Some(90 * 7_200), "nine behind");
        let free = (100..120).chain((0..10).map(|i| 1_000_000 + 50 * i));
        assert_eq!(confirmed(ClockRules::default(), free), Some(1_000_450), "without a limit");
    }

    #[test]
    fn a_correction_takes_back_what_wild_events_have_moved() {
        let times = || (100..120).chain((0..20).map(|i| WILD + i)).chain(120..130);
        assert_eq!(confirmed(limited(50), times()), Some(WILD + 19));
        let not_after = Some((EdgeId(40), EventTime(1_000)));
        assert_eq!(confirmed(ClockRules { not_after, ..limited(50) }, times()), Some(129));
        let mut clock = StreamClock::new(ClockRules { not_after, ..limited(50) });
        assert_eq!((clock.latest(), clock.confirmed()), (None, None));
        (0..20).for_each(|i| clock.observe(EdgeId(40 + i), EventTime(2_000)));
        assert_eq!(clock.confirmed(), Some(EventTime(2_000)), "what came later counts");
    }

    #[test]
    fn a_clock_whose_events_are_gone_is_corrected_to_what_it_knows_of_the_others() {
        let rules = |limit| ClockRules { not_after: Some((EdgeId(1_000), EventTime(limit))), ..limited(50) };
        let mixed = clock_of(limited(50), (100..140).chain([WILD, WILD + 1]));
        assert_eq!(mixed.corrected(rules(5_000)).confirmed(), Some(EventTime(139)));
        let wild = clock_of(limited(50), (100..140).chain((0..20).map(|i| WILD + i)));
        assert_eq!(wild.confirmed(), Some(EventTime(WILD + 19)));
        let corrected = wild.corrected(rules(5_000));
        assert_eq!(corrected.confirmed(), Some(EventTime(109)), "the tenth of the stream");
        assert_eq!(corrected.corrected(rules(5_000)), corrected);
        assert_eq!(wild.corrected(rules(50)).latest(), None);
        assert_eq!(wild.corrected(limited(50)), wild);
    }

    #[test]
    fn a_clock_comes_back_from_its_numbers() {
        let mut clock = StreamClock::default();
        for i in 0..40 {
            let numbers = clock.to_numbers();
            assert_eq!(StreamClock::from_numbers(&numbers), Some(clock), "after {i}");
            let cut = (0..numbers.len()).filter(|&end| StreamClock::from_numbers(&numbers[..end]).is_some());
            assert_eq!(cut.count(), 0, "{numbers:?}");
            clock.observe(EdgeId(0), EventTime(if i % 3 > 0 { 100 + i } else { 100 - i }));
        }
        assert_eq!(clock.covered(), Some((EventTime(61), EventTime(138))));
        assert_eq!(StreamClock::from_numbers(&[2, 5, 4, 5, 4]), None, "in no order");
        assert_eq!(StreamClock::from_numbers(&[2, 4, 5, 4, 6]), None, "two tales of the same events");
    }

    #[test]
    fn times_at_the_ends_are_no_trouble() {
        for rules in [ClockRules::default(), limited(i64::MAX)] {
            let times: Vec<i64> = [i64::MIN, i64::MAX].into_iter().cycle().take(50).collect();
            assert_eq!(after(rules, &times).len(), 50);
        }
    }

    /// A stream's ordinary times, and how wide a gap is within reach of it at most.
    fn streams() -> impl Strategy<Value = (Vec<i64>, ClockRules, i64)> {
        let unit = prop_oneof![Just(1), Just(1_000), Just(1_000_000_000_i64)];
        let shape = (2_usize..120, 0_i64..40_000_000, unit, -2_000_000_000..2_000_000_000_i64);
        (shape, any::<u64>(), prop::option::of(0_i64..100_000)).prop_map(
            |((n, span, unit, begin), seed, limit)| {
                let step = |i: usize| {
                    // In order with some late ones; a span of 0 makes equal times.
                    let late = if (seed >> (i % 64)) & 1 == 1 { i / 7 } else { 0 };
                    (begin + span * (i - late) as i64 / n as i64) * unit
                };
                let times: Vec<i64> = (0..n).map(step).collect();
                let rules =
                    ClockRules { future_limit: limit.map(|limit| limit * unit), ..ClockRules::default() };
                // The time between the tenth ones is less, also where wild ones are among these.
                let span = times.iter().max().unwrap() - times.iter().min().unwrap();
                (times, rules, rules.future_limit.unwrap_or(span))
            },
        )
    }

    proptest! {
        #[test]
        fn up_to_nine_wild_times_move_nothing_at_any_place(
            (times, rules, reach) in streams(),
            wild in prop::collection::vec((0_usize..200, 1_i64..1_000_000, 0_u32..40), 1..10),
            early in any::<bool>(),
        ) {
            let (first, last) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
            let mut all = times.clone();
            for &(place, beyond, magnitude) in &wild {
                let beyond = beyond.saturating_mul(1 << magnitude);
                // From just beyond the data to 2^60 times that.
                let time = if early { first.saturating_sub(reach).saturating_sub(beyond) }
                    else { last.saturating_add(reach).saturating_add(beyond) };
                all.insert(place.min(all.len()), time);
            }
            let mut clock = StreamClock::new(rules);
            let mut before = None;
            for (i, &time) in all.iter().enumerate() {
                clock.observe(EdgeId(i as u64), EventTime(time));
                let now = clock.confirmed();
                prop_assert!(now >= before && now.is_none_or(|now| now.0 <= last), "{now:?} after {before:?}");
                before = now;
            }
            if times.len() > 20 {
                let mut ordered = times;
                ordered.sort_unstable();
                prop_assert!(before.unwrap().0 >= ordered[ordered.len() - 10], "it follows");
                prop_assert!(!early || clock.covered().unwrap().0.0 >= first, "an early one is no begin");
            }
        }

        #[test]
        fn the_clock_is_a_function_of_the_set_however_partitions_interleave(
            (times, rules, _) in streams(),
            (others, _, _) in streams(),
            frame in 1_usize..30,
        ) {
            let one_after_the_other = clock_of(rules, times.iter().chain(&others).copied());
            let (mut a, mut b) = (times.chunks(frame), others.chunks(frame));
            let mut mixed = Vec::new();
            loop {
                let (one, other) = (a.next(), b.next());
                if one.is_none() && other.is_none() {
                    break;
                }
                mixed.extend(one.into_iter().chain(other).flatten().rev().copied());
            }
            prop_assert_eq!(clock_of(rules, mixed), one_after_the_other);
        }
    }
}
