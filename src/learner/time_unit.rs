//! A warning, once, where event times are in a finer unit than the model takes them for.

use super::{LearnBatch, Learner};

impl Learner {
    /// Looks at the first times that are learned.
    pub(super) fn check_time_unit(&mut self, batch: &LearnBatch) {
        let Some(&time) = batch.times.last().filter(|_| !self.unit_is_checked) else { return };
        self.unit_is_checked = true;
        let model = self.trainer.options().model;
        if let Some(unit) = model.misread_unit(time) {
            tracing::warn!(
                %time,
                units_per_second = model.ticks_per_second(),
                "event times look like {unit} since 1970, and the model takes them for a coarser unit, which costs it \
                 most of what it learns from time: set stream.time_unit = \"{unit}\", and let the model start anew",
                unit = unit.name()
            );
        }
    }
}
