//! How fast the past fades: [`Decay`], and the [`Clock`] that turns event times into readings.
//!
//! An edge of time `s` counts `exp(-(reading(t) - reading(s)))` at time `t`. Two clocks:
//!
//! ```text
//! rate r    reading(t) = r (t - t0)           an edge counts exp(-r age): half after ln 2 / r
//! span c    reading(t) = c ln(1 + (t - t0))   an edge counts ((1 + s - t0) / (1 + t - t0))^c
//! ```
//! with `t0` the time of the first event, or the earliest of the first events that stand together if that one is far from
//! them. The second needs no unit: whatever a stream's time scale is, an
//! edge from half of the time since `t0` counts `2^-c`. It follows from the events seen so far alone, and
//! slows down as the stream grows older: at age `a` it fades like a rate of `c / a`.

use std::str::FromStr;

use crate::event::EventTime;

/// The strongest decay: an edge is gone after less than a unit of time, and readings stay far from what 32 bits hold.
pub(super) const STRENGTH_MAX: f64 = 1e9;

/// How the weight of an edge falls with its age.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// By this share per unit of time; 0 means never. In [0, 10^9].
    Rate(f64),
    /// By this power of the time since the first event. In [0, 10^9].
    Span(f64),
}

impl Decay {
    /// The rate.
    #[must_use]
    pub fn strength(self) -> f64 {
        match self {
            Self::Rate(strength) | Self::Span(strength) => strength,
        }
    }
}

/// As it is written in flags and settings: `1e-6` is a rate, `span:10` a power.
impl FromStr for Decay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, number): (fn(f64) -> Self, _) = match text.strip_prefix("span:") {
            Some(power) => (Self::Span, power),
            None => (Self::Rate, text),
        };
        let number = number.trim().parse::<f64>().ok().filter(|number| (0.0..=STRENGTH_MAX).contains(number));
        let invalid = || {
            format!(
                "`{text}` is no decay: write a rate per unit of time such as 1e-6, or span: and a power such as \
                 span:10; neither may be below 0 or above 1e9"
            )
        };
        number.map(kind).ok_or_else(invalid)
    }
}

/// Turns event times into readings, which never decrease with time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clock {
    decay: Decay,
    origin: Option<EventTime>,
}

impl Clock {
    pub fn new(decay: Decay) -> Self {
        Self::since(decay, None)
    }

    /// A clock that was started at `origin`.
    pub fn since(decay: Decay, origin: Option<EventTime>) -> Self {
        Self { decay, origin }
    }

    /// `t0`.
    pub fn origin(&self) -> Option<EventTime> {
        self.origin
    }

    /// The reading at `time`; times before the first event read as that. The first call after
    /// [`start`](Self::start) sees 0.
    #[allow(clippy::cast_precision_loss)]
    pub fn reading(&self, time: EventTime) -> f64 {
        let Some(origin) = self.origin else { return 0.0 };
        let age = time.0.saturating_sub(origin.0).max(0) as f64;
        match self.decay {
            Decay::Rate(rate) => rate * age,
            Decay::Span(power) => power * age.ln_1p(),
        }
    }

    /// How weights fall.
    pub fn decay(&self) -> Decay {
        self.decay
    }

    /// Sets `t0`, unless an earlier call has.
    pub fn start(&mut self, time: EventTime) {
        self.origin.get_or_insert(time);
    }

    pub fn reset(&mut self) {
        self.origin = None;
    }
}

/// What is left of a weight after `elapsed` of reading. Below 2^-60 it is nothing, so that repeated decay
/// ends at 0 and not among numbers too small to compute with.
pub(super) fn left(elapsed: f64) -> f32 {
    if elapsed > 60.0 * std::f64::consts::LN_2 { 0.0 } else { (-elapsed.max(0.0)).exp() as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decay_is_read_as_it_is_written() {
        let read = |text: &str| text.parse::<Decay>();
        assert_eq!((read("1e-6"), read("0")), (Ok(Decay::Rate(1e-6)), Ok(Decay::Rate(0.0))));
        assert_eq!(read("span:10"), Ok(Decay::Span(10.0)));
        for text in ["", "span:", "-1", "nan", "inf", "2e9", "span:-3", "power:3", "often"] {
            assert!(read(text).unwrap_err().contains(&format!("`{text}` is no decay")), "{text}");
        }
    }

    #[test]
    fn a_rate_halves_after_its_half_life_and_a_span_by_its_power() {
        let at = |decay, time| {
            let mut clock = Clock::new(decay);
            clock.start(EventTime(1_000));
            clock.start(EventTime(5));
            clock.reading(EventTime(time))
        };
        let rate = Decay::Rate(std::f64::consts::LN_2 / 50.0);
        assert!((left(at(rate, 1_250) - at(rate, 1_200)) - 0.5).abs() < 1e-6);
        let span = Decay::Span(2.0);
        assert!((left(at(span, 1_999) - at(span, 1_499)) - 0.25).abs() < 1e-6);
        assert_eq!(at(span, 3), 0.0, "before the first event");
        assert_eq!((left(1e9), left(f64::INFINITY), left(-1.0), left(0.0)), (0.0, 0.0, 1.0, 1.0));
        assert!(at(rate, i64::MAX).is_finite() && at(span, i64::MAX).is_finite());
        assert_eq!(Clock::new(span).reading(EventTime(9)), 0.0);
    }
}
