//! The unit of event times, which the settings tell clients. Nothing is computed from it.

use serde::Deserialize;

use crate::api::TimeUnit;

/// The unit of event times, for clients to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamTimeUnit {
    /// The settings do not say.
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
