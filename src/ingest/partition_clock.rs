//! The clock of one partition while its edges are admitted: what moves it, and which edges it refuses.
//! [`admit`](super::admit) says why.

use super::rejection::{Reason, Rejection};
use crate::event::{CONFIRMING_EVENTS, EventTime, StreamClock};

/// What an edge far ahead weighs; each other edge takes one back.
const AHEAD_WEIGHT: usize = 10;

/// The weight that moves a clock.
const MOVING_WEIGHT: usize = AHEAD_WEIGHT * CONFIRMING_EVENTS;

/// The latest event time of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartitionClock {
    pub time: EventTime,
    /// Whether a second edge has confirmed it.
    pub sure: bool,
    /// How far ahead an edge may be: the future limit, or more in a sparse partition.
    reach: i64,
    ahead: Ahead,
}

/// The latest of the edges that were too far ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ahead {
    times: [i64; CONFIRMING_EVENTS],
    edges: usize,
    weight: usize,
}

impl Ahead {
    fn push(&mut self, time: i64) {
        self.times[self.edges % CONFIRMING_EVENTS] = time;
        self.edges += 1;
        self.weight += AHEAD_WEIGHT;
    }

    /// After an edge that is not too far ahead.
    fn ease(self) -> Self {
        if self.weight > 1 { Self { weight: self.weight - 1, ..self } } else { Self::default() }
    }

    /// Where a clock stands that follows them.
    fn settled(mut self, limit: i64) -> Option<PartitionClock> {
        let known = self.edges.min(CONFIRMING_EVENTS);
        self.times[..known].sort_unstable();
        PartitionClock::of_times(&self.times[..known], limit)
    }
}

impl PartitionClock {
    fn at(time: EventTime, sure: bool, reach: i64) -> Self {
        Self { time, sure, reach, ahead: Ahead::default() }
    }

    /// The clock of a partition whose edges in the log lead to `stored`; `None` without an edge.
    pub fn of_log(stored: &StreamClock, limit: Option<i64>) -> Option<Self> {
        let latest = stored.latest()?;
        let (Some(limit), Some(confirmed)) = (limit, stored.confirmed()) else {
            return Some(Self::at(latest, limit.is_none(), limit.unwrap_or_default()));
        };
        let times = stored.latest_times();
        let middle = times.get(times.len().saturating_sub(1) / 2)?;
        let reach = limit.max(middle.saturating_sub(*times.first()?).saturating_mul(2));
        let mut clock = Self::at(EventTime(chain(times, reach)?).max(confirmed), true, reach);
        for &time in times.iter().filter(|&&time| time > clock.time.0.saturating_add(reach)) {
            clock.ahead.push(time);
            clock.ahead.weight = MOVING_WEIGHT - AHEAD_WEIGHT;
        }
        Some(clock)
    }

    /// The same clock, at `time` if it is before that.
    pub fn not_before(self, time: EventTime) -> Self {
        Self { time: self.time.max(time), ..self }
    }

    /// The clock at the middle of these times, which are in order, and on to the later ones near it.
    fn of_times(times: &[i64], limit: i64) -> Option<Self> {
        let middle = times.len().saturating_sub(1) / 2;
        let spread = times.get(middle)?.saturating_sub(*times.first()?);
        let reach = limit.max(spread.saturating_mul(2));
        Some(Self::at(EventTime(chain(&times[middle..], reach)?), true, reach))
    }
}

/// The last of these times, which are in order, that is reached from the first by steps of at most `reach`.
fn chain(times: &[i64], reach: i64) -> Option<i64> {
    let is_near = |pair: &&[i64]| pair[1].saturating_sub(pair[0]) <= reach;
    let steps = times.windows(2).take_while(is_near).count();
    times.get(steps).copied()
}

/// The clock after an edge at `time`, and why the edge is refused, if it is.
pub(super) fn advance(
    clock: Option<PartitionClock>,
    time: EventTime,
    limit: Option<i64>,
) -> (PartitionClock, Option<Rejection>) {
    let Some(limit) = limit else {
        let time = clock.map_or(time, |clock| clock.time.max(time));
        return (PartitionClock::at(time, true, 0), None);
    };
    let Some(mut clock) = clock else { return (PartitionClock::at(time, false, limit), None) };
    let is_far_ahead = |clock: &PartitionClock| time.0 > clock.time.0.saturating_add(clock.reach);
    let is_far_behind = time.0 < clock.time.0.saturating_sub(limit);
    match clock.sure {
        true if is_far_ahead(&clock) => {
            clock.ahead.push(time.0);
            if clock.ahead.weight >= MOVING_WEIGHT {
                clock = clock.ahead.settled(limit).unwrap_or(clock);
                if !is_far_ahead(&clock) {
                    return (PartitionClock { time: clock.time.max(time), ..clock }, None);
                }
            }
            let detail = format!(
                "time {time} is more than {} after {}, the latest event time of its partition; the \
                 {CONFIRMING_EVENTS}th edge that is so far ahead is stored if it is near the others; if the stream \
                 has such gaps, raise stream.future_limit",
                clock.reach, clock.time
            );
            (clock, Some(Rejection::new(Reason::TooFarAhead, detail)))
        }
        false if is_far_ahead(&clock) || is_far_behind => (PartitionClock::at(time, false, limit), None),
        _ => (
            PartitionClock { time: clock.time.max(time), sure: true, ahead: clock.ahead.ease(), ..clock },
            None,
        ),
    }
}
