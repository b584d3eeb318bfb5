//! The unit of event times.

use super::EventTime;

/// A unit of event times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl TimeUnit {
    /// How many of it are a second.
    #[must_use]
    pub fn per_second(self) -> u32 {
        match self {
            Self::Seconds => 1,
            Self::Milliseconds => 1_000,
            Self::Microseconds => 1_000_000,
            Self::Nanoseconds => 1_000_000_000,
        }
    }

    /// Its name, as the settings have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Milliseconds => "milliseconds",
            Self::Microseconds => "microseconds",
            Self::Nanoseconds => "nanoseconds",
        }
    }

    /// The unit in which `time` is an instant of the years 2001 to 2286, counted from 1970; `None` if it is in none.
    #[must_use]
    pub fn of_instant(time: EventTime) -> Option<Self> {
        match time.0 {
            1_000_000_000..10_000_000_000 => Some(Self::Seconds),
            1_000_000_000_000..10_000_000_000_000 => Some(Self::Milliseconds),
            1_000_000_000_000_000..10_000_000_000_000_000 => Some(Self::Microseconds),
            1_000_000_000_000_000_000.. => Some(Self::Nanoseconds),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_show_their_unit() {
        for unit in [TimeUnit::Seconds, TimeUnit::Milliseconds, TimeUnit::Microseconds, TimeUnit::Nanoseconds]
        {
            for seconds in [1_000_000_000, 1_795_000_000, 9_000_000_000] {
                let time = EventTime(seconds * i64::from(unit.per_second()));
                assert_eq!(TimeUnit::of_instant(time), Some(unit), "{} {time}", unit.name());
            }
        }
        for time in [i64::MIN, -1, 0, 86_400, 50_000_000_000] {
            assert_eq!(TimeUnit::of_instant(EventTime(time)), None, "{time}");
        }
    }
}
