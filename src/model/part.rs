//! [`Part`]: some of the seeds of a neighborhood of one layer, for a pass that embeds no others. Distinct nodes,
//! feature rows and their numbers stay those of the whole.

use std::io::{Error, ErrorKind};
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

    /// Puts what [`select`](Self::select) took to its places among the values of `all` seeds.
    ///
    /// # Errors
    /// There are more or fewer values.
    pub(super) fn put<T: Copy>(&self, selected: &[T], width: usize, all: &mut [T]) -> Result<(), Error> {
        put_runs(&self.runs, selected, width, all)
    }
}

/// Puts values, `width` for each place of these runs, one run after another, to their places among `all`.
///
/// # Errors
/// There are more or fewer values, or places beyond the last.
pub(super) fn put_runs<T: Copy>(
    runs: &[Range<usize>],
    values: &[T],
    width: usize,
    all: &mut [T],
) -> Result<(), Error> {
    let mut left = values;
    for run in runs {
        let places = all.get_mut(run.start * width..run.end * width);
        let (own, others) = left.split_at_checked(run.len() * width).ok_or_else(|| of_another("places"))?;
        places.ok_or_else(|| of_another("places"))?.copy_from_slice(own);
        left = others;
    }
    if left.is_empty() { Ok(()) } else { Err(of_another("places")) }
}

/// What was passed on belongs to another part of a batch than the one that is read.
pub(super) fn of_another(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("{what} of a shared batch: they belong to another part"))
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
        let (own, mut all) = (Part::select(Some(&part), &values, 2), [0; 24]);
        part.put(&own, 2, &mut all).unwrap();
        assert_eq!(
            (&all[2..6], &all[..2], Part::select(Some(&part), &all, 2)),
            (&values[2..6], &[0; 2][..], own)
        );
        assert!(part.put(&[1; 11], 2, &mut all).is_err() && part.put(&[1; 13], 2, &mut all).is_err());
    }
}
