//! [`Part`]: some of the seeds of a neighborhood of one layer, for a pass that embeds no others. Distinct nodes,
//! feature rows and their numbers stay those of the whole.

use std::ops::Range;

/// Runs of seeds, one after another.
#[derive(Clone, Debug)]
pub struct Part {
    runs: Vec<Range<usize>>,
}

impl Part {
    /// These `events` of a batch of `count`, whose seeds are `blocks` times all events.
    #[must_use]
    pub fn of_events(events: &Range<usize>, count: usize, blocks: usize) -> Self {
        let run = |block: usize| block * count + events.start..block * count + events.end;
        Self { runs: (0..blocks).map(run).collect() }
    }

    /// The runs of seeds.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        self.runs.iter().cloned()
    }

    /// What belongs to these seeds of `values`, which has `width` for each seed; all of them without a part.
    pub(super) fn select<T: Copy>(part: Option<&Self>, values: &[T], width: usize) -> Vec<T> {
        let Some(part) = part else { return values.to_vec() };
        let runs = part.runs.iter().map(|run| &values[run.start * width..run.end * width]);
        runs.flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_events_in_every_block() {
        let part = Part::of_events(&(1..3), 4, 3);
        let values: Vec<usize> = (0..24).collect();
        assert_eq!(Part::select(Some(&part), &values, 2), [2, 3, 4, 5, 10, 11, 12, 13, 18, 19, 20, 21]);
        assert_eq!(Part::select(None, &values, 2), values);
    }
}
