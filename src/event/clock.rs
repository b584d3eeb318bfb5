//! [`StreamClock`]: where in time a stream stands, by its events in the order of the log.
//!
//! That is the latest time that the events agree on. A time far ahead of the others, from a producer with a wrong clock
//! or another unit, moves the clock only once [`CONFIRMING_EVENTS`] events in a row are as far ahead and near to one
//! another. How far is far follows from the rules' future limit or, where there is none, from the time that the stream
//! has covered so far. Of the first events those count that stand together.
//!
//! The clock is a function of the events and the rules alone, so a replay of the log leads to the same times. Once it is
//! confirmed it never goes back.

use std::time::Duration;

use super::{EdgeId, EventTime};

/// A partition without events for so long is not waited for.
pub const PARTITION_IDLE: Duration = Duration::from_secs(30);

/// So many events in a row that are far ahead move a clock, and so many events confirm one.
pub const CONFIRMING_EVENTS: usize = 10;

/// Where no limit is set, a time is far ahead if it is so many times the covered time ahead.
const SPANS_AHEAD: i64 = 1_000;

/// By what a clock judges times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockRules {
    /// A time is far ahead when it is ahead by more than this, in the stream's unit.
    pub future_limit: Option<i64>,
    /// Later times than this do not count where they belong to edges below this position: an operator's correction.
    pub not_after: Option<(EdgeId, EventTime)>,
}

/// The latest time that a stream's events agree on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamClock {
    rules: ClockRules,
    /// The times of the first events in order, until there are enough.
    early: Vec<i64>,
    /// Earliest and latest time of the events that agree.
    covered: Option<(i64, i64)>,
    ahead: Option<Ahead>,
}

/// Events in a row that are far ahead of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ahead {
    first: i64,
    latest: i64,
    events: usize,
}

impl StreamClock {
    /// A clock that has seen no event.
    #[must_use]
    pub fn new(rules: ClockRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Takes in an edge.
    pub fn observe(&mut self, edge: EdgeId, time: EventTime) {
        if self.rules.not_after.is_some_and(|(below, latest)| edge < below && time > latest) {
            return;
        }
        let time = time.0;
        match self.covered {
            Some((first, latest)) if self.is_confirmed() => self.follow(first, latest, time),
            _ => {
                let place = self.early.partition_point(|&early| early <= time);
                self.early.insert(place, time);
                self.covered = Some(together(&self.early, self.rules.future_limit));
            }
        }
    }

    /// Where the stream stands; `None` before the first event.
    #[must_use]
    pub fn latest(&self) -> Option<EventTime> {
        self.covered.map(|(_, latest)| EventTime(latest))
    }

    /// The same once enough events agree. From then on it never goes back.
    #[must_use]
    pub fn confirmed(&self) -> Option<EventTime> {
        self.latest().filter(|_| self.is_confirmed())
    }

    /// The earliest time of the first events that stand together, and the latest time.
    #[must_use]
    pub fn covered(&self) -> Option<(EventTime, EventTime)> {
        self.covered.map(|(first, latest)| (EventTime(first), EventTime(latest)))
    }

    /// Whether enough events have come for the clock never to go back.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.early.len() >= CONFIRMING_EVENTS
    }

    /// All that it has taken in, as numbers, but for the rules.
    #[must_use]
    pub fn to_numbers(&self) -> Vec<i64> {
        let ahead = self.ahead.map(|Ahead { first, latest, events }| [first, latest, events as i64]);
        let parts = self.covered.map(|(first, latest)| [first, latest]);
        let counts = [self.early.len() as i64, i64::from(ahead.is_some())];
        let ends = parts.iter().flatten().chain(ahead.iter().flatten());
        counts.iter().chain(&self.early).chain(ends).copied().collect()
    }

    /// A clock without rules that has taken in what these numbers say; `None` if they are not of a clock.
    #[must_use]
    pub fn from_numbers(numbers: &[i64]) -> Option<Self> {
        let (&[early, has_ahead], rest) = numbers.split_first_chunk::<2>()?;
        let early = usize::try_from(early).ok().filter(|&early| early <= CONFIRMING_EVENTS)?;
        let (early, rest) = rest.split_at_checked(early)?;
        let (covered, rest) = match (early, rest) {
            ([], rest) => (None, rest),
            (_, [first, latest, rest @ ..]) => (Some((*first, *latest)), rest),
            _ => return None,
        };
        let ahead = match (has_ahead, rest) {
            (0, []) => None,
            (1, &[first, latest, events]) => {
                Some(Ahead { first, latest, events: usize::try_from(events).ok()? })
            }
            _ => return None,
        };
        early.is_sorted().then(|| Self { early: early.to_vec(), covered, ahead, ..Self::default() })
    }

    fn follow(&mut self, first: i64, latest: i64, time: i64) {
        let span = latest.saturating_sub(first);
        let reach = match self.rules.future_limit {
            Some(limit) => limit,
            // Events that all have one time tell nothing of the scale.
            None if span == 0 => i64::MAX,
            None => span.saturating_mul(SPANS_AHEAD),
        };
        if time <= latest.saturating_add(reach) {
            self.covered = Some((first, latest.max(time)));
            self.ahead = None;
            return;
        }
        let joined = self.ahead.filter(|ahead| {
            let near = self.rules.future_limit.unwrap_or(ahead.first.saturating_sub(latest) / 2);
            time.abs_diff(ahead.latest) <= near.unsigned_abs()
        });
        let ahead = match joined {
            Some(Ahead { first, latest, events }) => {
                Ahead { first, latest: latest.max(time), events: events + 1 }
            }
            None => Ahead { first: time, latest: time, events: 1 },
        };
        self.ahead = Some(ahead);
        if ahead.events >= CONFIRMING_EVENTS {
            self.covered = Some((first, ahead.latest));
            self.ahead = None;
        }
    }
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
                // Wide beside what is covered on its longer side, if that tells a scale at all.
                None => {
                    let span = reach.max(behind);
                    span > 0 && gap / SPANS_AHEAD > span
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
    use super::*;

    const WILD: i64 = 4_000_000_000_000_000_000;

    /// Where the stream stands after each of these times.
    fn after(rules: ClockRules, times: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let mut clock = StreamClock::new(rules);
        let mut latest = Vec::new();
        for (i, time) in times.into_iter().enumerate() {
            clock.observe(EdgeId(i as u64), EventTime(time));
            latest.extend(clock.latest().map(|time| time.0));
        }
        latest
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
                assert_eq!(after(rules, times.clone()).last(), Some(&139), "{rules:?}, {place}");
                times[place] = -WILD;
                assert_eq!(after(rules, times).last(), Some(&139), "{rules:?}, {place}");
            }
        }
    }

    #[test]
    fn the_first_events_move_the_clock_at_once_and_late_ones_never_back() {
        assert_eq!(after(ClockRules::default(), [5, 9, 9, 3_000, 3, 8_000]), [5, 9, 9, 3_000, 3_000, 8_000]);
        assert_eq!(after(ClockRules::default(), [7; 30]), [7; 30]);
        let mut times = vec![7; 20];
        times.push(90_000);
        assert_eq!(after(ClockRules::default(), times).last(), Some(&90_000), "one time tells no scale");
        let backwards = (0..100).map(|i| 5_000 - i * 40);
        assert!(after(limited(10_000), backwards).iter().all(|&latest| latest == 5_000));
    }

    #[test]
    fn events_in_a_row_that_agree_carry_the_clock_over_a_gap() {
        let gap = |count: i64, broken: bool| {
            let later = (0..count).map(|i| if broken && i == 5 { 119 } else { 1_000_000 + i });
            *after(limited(1_000), (100..120).chain(later)).last().unwrap()
        };
        assert_eq!([gap(9, false), gap(10, false), gap(10, true)], [119, 1_000_009, 119]);
        // Each far from the one before: they do not agree.
        let apart = (1..50).map(|i| 1_000_000 * i);
        assert_eq!(after(limited(1_000), (100..120).chain(apart)).last(), Some(&119));
        let free = (100..120).chain((0..10).map(|i| 1_000_000 + 50 * i));
        assert_eq!(after(ClockRules::default(), free).last(), Some(&1_000_450), "without a limit");
    }

    #[test]
    fn a_correction_takes_back_what_wild_events_have_moved() {
        let times = || (100..120).chain((0..20).map(|i| WILD + i)).chain(120..130);
        assert_eq!(after(limited(50), times()).last(), Some(&(WILD + 19)));
        let not_after = Some((EdgeId(40), EventTime(1_000)));
        assert_eq!(after(ClockRules { not_after, ..limited(50) }, times()).last(), Some(&129));
        let mut clock = StreamClock::new(ClockRules { not_after, ..limited(50) });
        assert_eq!((clock.latest(), clock.confirmed()), (None, None));
        (0..20).for_each(|i| clock.observe(EdgeId(40 + i), EventTime(2_000)));
        assert_eq!(clock.confirmed(), Some(EventTime(2_000)), "what came later counts");
    }

    #[test]
    fn a_clock_comes_back_from_its_numbers() {
        let mut clock = StreamClock::default();
        for i in 0..25 {
            let numbers = clock.to_numbers();
            assert_eq!(StreamClock::from_numbers(&numbers), Some(clock.clone()), "after {i}");
            let cut = (0..numbers.len()).filter(|&end| StreamClock::from_numbers(&numbers[..end]).is_some());
            assert_eq!(cut.count(), 0, "{numbers:?}");
            clock.observe(EdgeId(0), EventTime(if i < 20 { 100 + i } else { WILD + i }));
        }
        assert!(clock.ahead.is_some());
        assert_eq!(clock.covered(), Some((EventTime(100), EventTime(119))));
    }

    #[test]
    fn times_at_the_ends_are_no_trouble() {
        for rules in [ClockRules::default(), limited(i64::MAX)] {
            let times = [i64::MIN, i64::MAX].into_iter().cycle().take(50);
            assert_eq!(after(rules, times).len(), 50);
        }
    }
}
