//! The unit of event times, as the settings name it: models see differences in seconds, and `/v1/info` returns it.

use clap::ValueEnum;
use serde::Deserialize;

use crate::api;
use crate::event::TimeUnit;

/// The unit of event times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum StreamTimeUnit {
    /// The settings do not say; models take the times for seconds.
    #[default]
    Unspecified,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl StreamTimeUnit {
    /// How many of it are a second; 1 if it is not specified.
    #[must_use]
    pub fn ticks_per_second(self) -> u32 {
        Option::<TimeUnit>::from(self).map_or(1, TimeUnit::per_second)
    }
}

impl From<StreamTimeUnit> for Option<TimeUnit> {
    fn from(unit: StreamTimeUnit) -> Self {
        match unit {
            StreamTimeUnit::Unspecified => None,
            StreamTimeUnit::Seconds => Some(TimeUnit::Seconds),
            StreamTimeUnit::Milliseconds => Some(TimeUnit::Milliseconds),
            StreamTimeUnit::Microseconds => Some(TimeUnit::Microseconds),
            StreamTimeUnit::Nanoseconds => Some(TimeUnit::Nanoseconds),
        }
    }
}

impl From<StreamTimeUnit> for Option<api::TimeUnit> {
    fn from(unit: StreamTimeUnit) -> Self {
        Option::<TimeUnit>::from(unit).map(Into::into)
    }
}
