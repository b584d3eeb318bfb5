//! Event times of messages in the unit of the stream.

use chrono::DateTime;
use serde::Deserialize;

use crate::event::{EventTime, TimeUnit};
use crate::ingest::decode::TIME_LIMIT;
use crate::ingest::rejection::{Reason, Rejection};
use crate::ingest::wire::{Scalar, short};

/// How a message writes its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeFormat {
    /// An integer, in a unit.
    #[default]
    Integer,
    /// A text such as `2026-01-31T12:00:00.5Z`.
    Rfc3339,
}

/// How times are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub format: TimeFormat,
    /// From which unit to which; `None` leaves integers as they are.
    pub units: Option<(TimeUnit, TimeUnit)>,
}

impl Times {
    /// The time that a value is, or `None` if there is none. `field` names it in errors.
    pub fn read(&self, field: &str, value: &Scalar<'_>) -> Result<Option<EventTime>, Rejection> {
        let fault = |detail| Err(Rejection::new(Reason::BadTime, detail));
        let time = match (self.format, value) {
            (_, Scalar::Absent) => return Ok(None),
            (TimeFormat::Integer, Scalar::Int(number)) => self.convert(*number),
            (TimeFormat::Integer, Scalar::Large(_)) => None,
            (TimeFormat::Integer, Scalar::Text(text)) => match text.parse::<i64>() {
                Ok(number) => self.convert(number),
                Err(_) => {
                    let what = "send an integer, or set ts_format = \"rfc3339\" in the mapping";
                    return fault(format!("{field} is {value}; {what}"));
                }
            },
            (TimeFormat::Integer, _) => return fault(format!("{field} is {value}; send an integer")),
            (TimeFormat::Rfc3339, Scalar::Text(text)) => match DateTime::parse_from_rfc3339(text) {
                Ok(time) => self.instant(time.timestamp(), time.timestamp_subsec_nanos()),
                Err(error) => {
                    let text = short(text);
                    let what = "send it as in 2026-01-31T12:00:00Z, with its distance from UTC";
                    return fault(format!(
                        "{field} is the text {text:?}, no RFC 3339 time ({error}); {what}"
                    ));
                }
            },
            (TimeFormat::Rfc3339, _) => {
                return fault(format!(
                    "{field} is {value}; send an RFC 3339 time, or set ts_format = \"integer\" in the mapping"
                ));
            }
        };
        match time.filter(|time| (-TIME_LIMIT..=TIME_LIMIT).contains(time)) {
            Some(time) => Ok(Some(EventTime(time))),
            None => fault(format!("{field} is {value}; in the stream's unit it must lie within ±2^62")),
        }
    }

    /// A coarser unit has the last whole one of it before the time.
    fn convert(&self, number: i64) -> Option<i64> {
        let Some((from, to)) = self.units else { return Some(number) };
        let [from, to] = [from, to].map(|unit| i64::from(unit.per_second()));
        if to >= from { number.checked_mul(to / from) } else { Some(number.div_euclid(from / to)) }
    }

    fn instant(&self, seconds: i64, nanoseconds: u32) -> Option<i64> {
        let per_second = i64::from(self.units?.1.per_second());
        let fraction = i64::from(nanoseconds) / (1_000_000_000 / per_second);
        seconds.checked_mul(per_second)?.checked_add(fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        format: TimeFormat,
        units: Option<(TimeUnit, TimeUnit)>,
        value: Scalar<'_>,
    ) -> Result<i64, String> {
        let time = Times { format, units }.read("ts", &value);
        time.map(|time| time.unwrap().0).map_err(|rejection| rejection.detail)
    }

    #[test]
    fn times_are_converted_to_the_streams_unit() {
        use TimeUnit::{Microseconds, Milliseconds, Nanoseconds, Seconds};
        let integer = |from, to, number| read(TimeFormat::Integer, Some((from, to)), Scalar::Int(number));
        assert_eq!(integer(Seconds, Milliseconds, 5), Ok(5_000));
        assert_eq!(integer(Nanoseconds, Seconds, 1_999_999_999), Ok(1));
        assert_eq!(integer(Milliseconds, Seconds, -1), Ok(-1), "rounded down, also before 1970");
        assert_eq!(integer(Microseconds, Microseconds, 7), Ok(7));
        assert!(integer(Seconds, Nanoseconds, i64::MAX).unwrap_err().contains("2^62"));
        assert!(integer(Seconds, Nanoseconds, 9_000_000_000).unwrap_err().contains("2^62"));
        assert_eq!(read(TimeFormat::Integer, None, Scalar::Int(9)), Ok(9));
        assert_eq!(read(TimeFormat::Integer, None, Scalar::Text("12".into())), Ok(12));
        assert!(read(TimeFormat::Integer, None, Scalar::Large(u64::MAX)).unwrap_err().contains("2^62"));
        assert!(read(TimeFormat::Integer, None, Scalar::Real(1.5)).unwrap_err().contains("an integer"));
    }

    #[test]
    fn texts_are_times_only_with_their_distance_from_utc() {
        let text = |to, text: &str| {
            read(TimeFormat::Rfc3339, Some((TimeUnit::Seconds, to)), Scalar::Text(text.to_owned().into()))
        };
        assert_eq!(text(TimeUnit::Milliseconds, "1970-01-01T00:00:01.5Z"), Ok(1_500));
        assert_eq!(text(TimeUnit::Seconds, "1970-01-01T02:00:00+02:00"), Ok(0));
        assert_eq!(text(TimeUnit::Microseconds, "1969-12-31T23:59:59.999999Z"), Ok(-1));
        assert_eq!(
            text(TimeUnit::Nanoseconds, "2026-01-31T12:00:00.000000001Z"),
            Ok(1_769_860_800_000_000_001)
        );
        for bad in ["", "2026-01-31", "2026-01-31T12:00:00", "2026-02-30T12:00:00Z", "1700000000", "NaN"] {
            assert!(text(TimeUnit::Seconds, bad).unwrap_err().contains("RFC 3339"), "{bad}");
        }
        assert!(text(TimeUnit::Nanoseconds, "9999-01-01T00:00:00Z").unwrap_err().contains("2^62"));
        let number = read(TimeFormat::Rfc3339, Some((TimeUnit::Seconds, TimeUnit::Seconds)), Scalar::Int(5));
        assert!(number.unwrap_err().contains("ts_format"));
    }
}
