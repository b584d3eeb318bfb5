//! The unit of event times, as models see it: they encode differences in seconds, whatever the unit is. Frequencies of
//! the encoding go from 1 down to 1e-9 by the second, so to one that takes nanoseconds for seconds all differences
//! look alike.

use super::ModelOptions;
use crate::event::{EventTime, TimeUnit};

/// What [`ModelOptions::as_fields`] calls the number of units in a second.
pub const TICKS_PER_SECOND: &str = "ticks_per_second";

/// That number as a checkpoint has it: 0 for seconds.
pub(super) fn as_field(ticks: u32) -> (&'static str, f64) {
    (TICKS_PER_SECOND, if ticks > 1 { f64::from(ticks) } else { 0.0 })
}

impl ModelOptions {
    /// The same for event times of which so many units, at least 1, are a second, if the model encodes time.
    #[must_use]
    pub fn with_ticks_per_second(mut self, ticks: u32) -> Self {
        if let Some(of_model) = self.ticks() {
            *of_model = ticks.max(1);
        }
        self
    }

    /// Units of event time in a second; `None` in a model that encodes no time.
    #[must_use]
    pub fn ticks_per_second(mut self) -> Option<u32> {
        self.ticks().copied()
    }

    fn ticks(&mut self) -> Option<&mut u32> {
        match self {
            Self::Tgn(options) => Some(&mut options.ticks_per_second),
            Self::GraphMixer(options) => Some(&mut options.ticks_per_second),
            Self::Tgat(options) => Some(&mut options.ticks_per_second),
            Self::GraphSage(_) | Self::Gat(_) | Self::Dysat(_) | Self::Walk(_) => None,
        }
    }

    /// The unit in which `time` is an instant of this century, if the model takes it for a coarser one. What reads as a
    /// coarser unit may be times from another beginning.
    #[must_use]
    pub fn misread_unit(self, time: EventTime) -> Option<TimeUnit> {
        let ticks = self.ticks_per_second()?;
        TimeUnit::of_instant(time).filter(|unit| unit.per_second() > ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GatOptions, TgatOptions, TgnOptions};

    #[test]
    fn a_unit_that_a_model_would_misread_is_found() {
        let [seconds, milliseconds] = [EventTime(1_700_000_000), EventTime(1_700_000_000_000)];
        for model in [ModelOptions::from(TgnOptions::default()), TgatOptions::default().into()] {
            assert_eq!(model.misread_unit(seconds), None);
            assert_eq!(model.misread_unit(EventTime(5)), None);
            assert_eq!(model.misread_unit(milliseconds), Some(TimeUnit::Milliseconds));
            let known = model.with_ticks_per_second(1_000);
            assert_eq!((known.misread_unit(milliseconds), known.ticks_per_second()), (None, Some(1_000)));
            assert_eq!(known.misread_unit(seconds), None);
        }
        let timeless = ModelOptions::from(GatOptions::default());
        assert_eq!(timeless.with_ticks_per_second(1_000), timeless);
        assert_eq!(timeless.misread_unit(milliseconds), None);
    }
}
