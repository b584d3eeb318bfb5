//! Which events of each batch a step learns from, where there is no time to learn from all.
//!
//! A share is taken of the events of a batch, not of the batches: at the same number of events, many small steps
//! learn far more than a few large ones, and more than steps on the events that are novel (docs/models.md has
//! figures). But a step has a cost of its own, and a learner measures precision on its events, so a step has a quarter
//! of a full batch at least: smaller shares are added up over batches.

use crate::device::rng;

/// A step has one of so many events of a full batch at least.
const LEAST: usize = 4;

/// Keeps the choice of events apart from everything else that is drawn from one seed.
const STREAM: u64 = 0x7368_6172_655f_6f66;

/// The running sum, in events.
#[derive(Clone, Debug, Default)]
pub struct Share {
    credit: f64,
}

/// The events of a batch that a step learns from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// All.
    All,
    /// Those at these places, ascending, of which there is one at least.
    Part(Vec<u32>),
    /// None.
    Nothing,
}

impl Share {
    /// Of the next batch's `events`, of which a full batch has `full`: about this `share` in the long run, from 0 to 1.
    /// The places are drawn by `key`.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // events of a batch
    pub fn next(&mut self, key: [u64; 2], share: f64, (events, full): (usize, usize)) -> Chosen {
        if share >= 1.0 {
            return if events > 0 { Chosen::All } else { Chosen::Nothing };
        }
        if share <= 0.0 {
            return Chosen::Nothing;
        }
        self.credit += share * events as f64;
        // Sums of fractions are a little off.
        let due = ((self.credit + 1e-6) as usize).min(events);
        if due == 0 || due < events.min(full / LEAST) {
            return Chosen::Nothing;
        }
        self.credit = (self.credit - due as f64).max(0.0);
        if due == events { Chosen::All } else { Chosen::Part(places(key, events, due)) }
    }
}

impl Share {
    /// Whether a step learns from all of the next batch's `events`, and not from none: about this `share` of all events
    /// in the long run, from 0 to 1.
    #[allow(clippy::cast_precision_loss)] // events of a batch
    pub fn takes_whole(&mut self, share: f64, events: usize) -> bool {
        let events = events as f64;
        // No more is owed than a batch, however small those were that were left out.
        self.credit = (self.credit + share.clamp(0.0, 1.0) * events).min(2.0 * events);
        // Sums of fractions are a little off.
        let takes = share >= 1.0 || self.credit + 1e-6 >= events;
        if takes {
            self.credit = (self.credit - events).max(0.0);
        }
        takes
    }
}

/// So many of `all` places, each equally likely, ascending.
fn places([seed, batch]: [u64; 2], all: usize, count: usize) -> Vec<u32> {
    let mut left = count;
    // Events of a batch are counted in 32 bits.
    let chosen = (0..all as u32).filter(|&place| {
        let rest = all as u32 - place;
        let is_chosen = (rng::below([STREAM, seed, batch, u64::from(place)], rest) as usize) < left;
        left -= usize::from(is_chosen);
        is_chosen
    });
    chosen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_batches_make_up_a_share() {
        for share in [0.0, 0.02, 0.3, 0.75, 1.0] {
            let mut taken = Share::default();
            let count = (0..1000).filter(|_| taken.takes_whole(share, 200)).count();
            assert!((count as f64 - 1000.0 * share).abs() <= 1.0, "{count} of 1000 for {share}");
        }
    }

    fn counts(shared: f64, events: usize) -> Vec<usize> {
        let mut share = Share::default();
        let count = |batch| match share.next([1, batch], shared, (events, 200)) {
            Chosen::All => events,
            Chosen::Part(places) => places.len(),
            Chosen::Nothing => 0,
        };
        (0..14).map(count).collect()
    }

    #[test]
    fn small_shares_are_collected() {
        assert_eq!(counts(0.5, 200), [100; 14]);
        assert_eq!(counts(1.0, 7), [7; 14], "nothing is left out");
        assert_eq!(counts(0.02, 200), [[0; 12].to_vec(), vec![52, 0]].concat());
        // A batch with fewer events than a step has is learned from as a whole once as many are due.
        assert_eq!(counts(0.2, 20)[..6], [0, 0, 0, 0, 20, 0]);
        assert_eq!(counts(0.0, 200), [0; 14]);
        let mut share = Share::default();
        assert_eq!(share.next([1, 1], 1.0, (0, 200)), Chosen::Nothing);
        // What has been added up is not spent where nothing is to be learned from.
        (0..11).for_each(|batch| assert_eq!(share.next([1, batch], 0.02, (200, 200)), Chosen::Nothing));
        assert_eq!(share.next([1, 12], 0.0, (10, 200)), Chosen::Nothing);
    }

    #[test]
    fn each_place_is_as_likely_and_a_choice_follows_from_its_key() {
        let mut drawn = [0_usize; 40];
        for batch in 0..2_000 {
            let chosen = places([3, batch], 40, 10);
            assert!(chosen.len() == 10 && chosen.is_sorted_by(|a, b| a < b), "{chosen:?}");
            assert_eq!(chosen, places([3, batch], 40, 10));
            chosen.iter().for_each(|&place| drawn[place as usize] += 1);
        }
        assert!(drawn.iter().all(|&times| (430..570).contains(&times)), "{drawn:?}");
        assert_ne!(places([3, 0], 40, 10), places([4, 0], 40, 10));
    }
}
