//! Quantiles of event times, interpolated linearly between neighbors, as whole times that compare the
//! same way as the fraction they stand for.
//!
//! Works on differences of 64-bit integers, so that times far from zero lose nothing.

use crate::event::EventTime;

/// A quantile that falls between two whole times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantile {
    /// `time <= quantile` exactly when `time <= at_most`.
    pub at_most: EventTime,
    /// `time >= quantile` exactly when `time >= at_least`.
    pub at_least: EventTime,
}

/// An interpolated value this close to a whole number is taken as that number: the fraction comes out
/// of a product of floats and misses whole numbers by rounding only.
pub const ROUNDING: f64 = 1e-6;

/// The `share` quantile (`0..=1`) of times in ascending order; `None` if there are none.
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn quantile(sorted: &[EventTime], share: f64) -> Option<Quantile> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let index = (place as usize).min(last);
    let low = *sorted.get(index)?;
    let high = *sorted.get((index + 1).min(last))?;
    let offset = high.0.saturating_sub(low.0) as f64 * (place - index as f64);
    let nearest = offset.round();
    let (floor, ceil) = if (offset - nearest).abs() < ROUNDING {
        (nearest, nearest)
    } else {
        (offset.floor(), offset.ceil())
    };
    let time = |offset: f64| EventTime(low.0.saturating_add(offset as i64));
    Some(Quantile { at_most: time(floor), at_least: time(ceil) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(times: &[i64], share: f64) -> (i64, i64) {
        let times: Vec<_> = times.iter().copied().map(EventTime).collect();
        let found = quantile(&times, share).unwrap();
        (found.at_most.0, found.at_least.0)
    }

    #[test]
    fn falls_between_neighbors_or_on_one() {
        assert_eq!(of(&[0, 10], 0.5), (5, 5));
        assert_eq!(of(&[0, 5], 0.5), (2, 3));
        assert_eq!(of(&[-5, 0], 0.5), (-3, -2));
        assert_eq!(of(&[7], 0.85), (7, 7));
        assert_eq!(of(&[1, 2, 3], 0.0), (1, 1));
        assert_eq!(of(&[1, 2, 3], 1.0), (3, 3));
        assert!(quantile(&[], 0.5).is_none());
    }

    #[test]
    fn rounding_of_the_place_does_not_move_a_whole_quantile() {
        // 0.7 * 10 is 7 in numbers and just below it in floats on some shares; the result is a member.
        for n in 2..400_i64 {
            let times: Vec<i64> = (0..=n * 20).map(|i| i * 1000).collect();
            assert_eq!(of(&times, 0.85), (n * 17_000, n * 17_000), "{n}");
            assert_eq!(of(&times, 0.7), (n * 14_000, n * 14_000), "{n}");
        }
    }

    #[test]
    fn large_times_keep_their_last_digits() {
        let base = 1_700_000_000_000_000_000;
        assert_eq!(of(&[base + 1, base + 3], 0.5), (base + 2, base + 2));
        assert_eq!(of(&[i64::MIN, i64::MAX], 0.0).0, i64::MIN);
    }
}
