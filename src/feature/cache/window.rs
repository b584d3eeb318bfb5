//! [`Window`]: the rounds that are known, from the current one on, and for each of their rows when it is needed next.
//!
//! For each row of a new round, a table yields its latest known use, which gets the distance to the new one. So each
//! row of a round costs one search, however many rounds are known. Entries of rounds that are over are void by their
//! round number and are not removed.

use std::collections::VecDeque;

use super::buckets::{Buckets, EMPTY};
use super::order::NextUse;
use crate::device::prefetch;

/// Ids whose places in a table are prefetched before the first of them is searched.
pub(super) const CHUNK_IDS: usize = 32;

/// Rows that a round needs, each once.
#[derive(Clone, Debug, Default)]
struct Round {
    ids: Vec<u64>,
    /// In how many rounds each is needed again; 0 where that is not known.
    again: Vec<u32>,
}

/// Known rounds.
pub(super) struct Window {
    rounds: VecDeque<Round>,
    spare: Vec<Round>,
    /// Number of the current round; counted up and round.
    current: u32,
    /// For each row its latest known use: the number of the round, and the place there.
    latest: Buckets,
    /// Rows with a known use, each once.
    rows: usize,
    /// Places in the last known round of rows that no known round before it needs.
    first: Vec<u32>,
}

impl Window {
    /// No rounds.
    pub fn new() -> Self {
        let (rounds, spare) = (VecDeque::new(), Vec::new());
        Self { rounds, spare, current: 0, latest: Buckets::new(0), rows: 0, first: Vec::new() }
    }

    /// Number of known rounds.
    pub fn len(&self) -> usize {
        self.rounds.len()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let of = |round: &Round| {
            round.ids.capacity() * size_of::<u64>() + round.again.capacity() * size_of::<u32>()
        };
        self.rounds.iter().chain(&self.spare).map(of).sum::<usize>() + self.latest.bytes()
    }

    /// The rows of the current round; none if it is not known.
    pub fn ids(&self) -> &[u64] {
        self.rounds.front().map_or(&[], |round| &round.ids)
    }

    /// When the row at `place` of the current round is needed after it.
    pub fn next_use(&self, place: usize) -> NextUse {
        match self.rounds.front().and_then(|round| round.again.get(place)) {
            None | Some(0) => NextUse::Unknown,
            Some(&rounds) => NextUse::In(rounds),
        }
    }

    /// Adds the round after the last known one. Returns its rows, and the places there of those that no known round
    /// before it needs.
    pub fn push(&mut self, ids: &[u64]) -> (&[u64], &[u32]) {
        let mut round = self.spare.pop().unwrap_or_default();
        round.ids.clear();
        round.ids.extend_from_slice(ids);
        self.rounds.push_back(round);
        let last = self.rounds.len() - 1;
        if self.rows + ids.len() > self.latest.room() {
            self.latest = Buckets::new(3 * (self.rows + ids.len()) / 2);
            self.enter_all(last);
        }
        self.enter(last);
        (&self.rounds[last].ids, &self.first)
    }

    /// Goes on to the next round.
    pub fn advance(&mut self) {
        if let Some(round) = self.rounds.pop_front() {
            self.rows -= round.again.iter().filter(|&&again| again == 0).count();
            self.spare.push(round);
        }
        self.current = self.current.wrapping_add(1);
        // Before the count can reach that of a void entry again.
        if self.current.is_multiple_of(1 << 30) {
            self.latest = Buckets::new(self.latest.room());
            self.enter_all(self.rounds.len());
        }
    }

    /// Notes the uses of the first `rounds` known rounds.
    fn enter_all(&mut self, rounds: usize) {
        self.rows = 0;
        (0..rounds).for_each(|number| self.enter(number));
    }

    /// Notes the uses of the round that is `number` rounds from the current one.
    #[allow(clippy::cast_possible_truncation)] // fewer rounds and rows than that
    fn enter(&mut self, number: usize) {
        let Self { rounds, current, latest, rows, first, .. } = self;
        let mut round = std::mem::take(&mut rounds[number]);
        round.again.clear();
        round.again.resize(round.ids.len(), 0);
        first.clear();
        let known = number as u32;
        let is_void = |id, round: u32, _| id == EMPTY || round.wrapping_sub(*current) > known;
        let mut homes = [[0; 2]; CHUNK_IDS];
        let mut before = [None; CHUNK_IDS];
        for (chunk, start) in round.ids.chunks(CHUNK_IDS).zip((0_u32..).step_by(CHUNK_IDS)) {
            for (home, &id) in homes.iter_mut().zip(chunk) {
                *home = latest.homes(id);
                latest.prefetch(*home);
            }
            for (((&home, &id), place), before) in homes.iter().zip(chunk).zip(start..).zip(&mut before) {
                let at = latest.find(id, home);
                *before =
                    at.map(|at| latest.words(at)).filter(|[round, _]| round.wrapping_sub(*current) < known);
                // Without a place, the next use of the row counts as unknown.
                if let Some(at) = at.or_else(|| latest.vacancy(home, is_void)) {
                    latest.put(at, id, [current.wrapping_add(known), place]);
                }
                if let Some([round, place]) = *before {
                    prefetch(&rounds[round.wrapping_sub(*current) as usize].again[place as usize]);
                }
            }
            for (before, place) in before.iter().zip(start..).take(chunk.len()) {
                match *before {
                    None => first.push(place),
                    Some([round, place]) => {
                        let before = round.wrapping_sub(*current);
                        rounds[before as usize].again[place as usize] = known - before;
                    }
                }
            }
        }
        *rows += first.len();
        rounds[number] = round;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    fn push(window: &mut Window, ids: &[u64]) -> Vec<u64> {
        let (ids, first) = window.push(ids);
        first.iter().map(|&place| ids[place as usize]).collect()
    }

    fn uses(window: &Window) -> Vec<NextUse> {
        (0..window.ids().len()).map(|place| window.next_use(place)).collect()
    }

    #[test]
    fn each_row_knows_its_next_use_among_the_known_rounds() {
        use NextUse::{In, Unknown};
        let mut window = Window::new();
        assert_eq!(push(&mut window, &[4, 9, 7]), [4, 9, 7]);
        assert_eq!(push(&mut window, &[9]), [0_u64; 0]);
        assert_eq!(push(&mut window, &[9, 8, 4]), [8]);
        assert_eq!((window.len(), window.ids()), (3, &[4, 9, 7][..]));
        assert_eq!(uses(&window), [In(2), In(1), Unknown]);
        window.advance();
        assert_eq!(uses(&window), [In(1)]);
        assert_eq!(push(&mut window, &[7, 9]), [7], "the round that needed it is over");
        window.advance();
        assert_eq!(uses(&window), [In(1), Unknown, Unknown]);
        window.advance();
        window.advance();
        assert_eq!((window.len(), window.ids(), window.next_use(0)), (0, &[][..], Unknown));
    }

    #[test]
    fn a_count_of_rounds_that_wraps_round_changes_nothing() {
        let draw = |round: u64, i: u64| u64::from(rng::below([round, i, 0, 0], 12));
        let round = |number: u64| (0..9).map(|i| 9 * draw(number, i) + i).collect::<Vec<_>>();
        for start in [u32::MAX - 20, (1 << 30) - 20] {
            let mut old = Window { current: start, ..Window::new() };
            let mut new = Window::new();
            for number in 0..60 {
                assert_eq!(push(&mut old, &round(number)), push(&mut new, &round(number)));
                if number >= 7 {
                    assert_eq!(uses(&old), uses(&new), "round {number}");
                    assert!(uses(&old).iter().any(|next| *next != NextUse::Unknown) || number > 40);
                    old.advance();
                    new.advance();
                }
            }
        }
    }

    #[test]
    fn next_uses_are_those_of_a_search_through_all_rounds() {
        let rounds: Vec<Vec<u64>> = (0..300_u64)
            .map(|number| {
                let mut ids: Vec<u64> =
                    (0..200).map(|i| u64::from(rng::below([1, number, i, 0], 3_000))).collect();
                ids.sort_unstable();
                ids.dedup();
                ids
            })
            .collect();
        let mut window = Window::new();
        for (number, known) in (0..rounds.len()).zip(20..) {
            while window.len() + number < known.min(rounds.len()) {
                let next = window.len() + number;
                push(&mut window, &rounds[next]);
            }
            let end = known.min(rounds.len());
            for (place, id) in rounds[number].iter().enumerate() {
                let again = (number + 1..end).find(|&later| rounds[later].binary_search(id).is_ok());
                let expected = again.map_or(NextUse::Unknown, |later| NextUse::In((later - number) as u32));
                assert_eq!(window.next_use(place), expected, "row {id} of round {number}");
            }
            window.advance();
        }
        assert!(window.bytes() < 2_000_000, "{}", window.bytes());
    }
}
