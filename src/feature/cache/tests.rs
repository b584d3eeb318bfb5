//! A cache under any requests, with rows that change in any order: it returns what the source holds, and keeps what the
//! simplest model of its policy keeps.

mod mover;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::device::rng;
use mover::RowCache;

const DIMENSION: usize = 5;

/// Rows that change: row `id` in its version.
#[derive(Default)]
struct Source(BTreeMap<u64, u64>);

impl Source {
    fn row(&self, id: u64) -> Vec<f32> {
        let version = self.0.get(&id).copied().unwrap_or(0);
        let value = |column| f32::from_bits(rng::random_u64([id, version, column, 7]) as u32 >> 2);
        (0..DIMENSION as u64).map(value).collect()
    }

    fn read(&self, ids: &[u64], out: &mut [f32]) -> Result<(), Infallible> {
        ids.iter().zip(out.chunks_mut(DIMENSION)).for_each(|(&id, out)| out.copy_from_slice(&self.row(id)));
        Ok(())
    }

    fn change(&mut self, id: u64) {
        *self.0.entry(id).or_default() += 1;
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn cache(slots: u32, look_ahead: u32) -> RowCache {
    RowCache::new(slots, DIMENSION, look_ahead)
}

/// Takes the current round and compares every byte with the source.
fn take(cache: &mut RowCache, source: &Source) {
    let ids = cache.ids().to_vec();
    let mut out = vec![f32::NAN; ids.len() * DIMENSION];
    cache.take(&mut out, |ids, out| source.read(ids, out)).unwrap();
    for (id, row) in ids.iter().zip(out.chunks(DIMENSION)) {
        assert_eq!(bits(row), bits(&source.row(*id)), "row {id}");
    }
}

/// Distinct ids below `rows`, of which low ones are likelier the more `skew` there is.
fn draw(key: u64, round: u64, rows: u64, len: u64, skew: i32) -> Vec<u64> {
    let one = |i| {
        let share = f64::from(rng::unit_f32([key, round, i, 3])).powi(skew);
        (share * rows as f64) as u64
    };
    let mut seen = BTreeSet::new();
    (0..len).map(one).filter(|&id| seen.insert(id)).collect()
}

#[test]
fn every_row_is_that_of_the_source_whatever_changes_between_rounds() {
    for (key, (slots, look_ahead, skew)) in
        (0..).zip([(0, 2, 1), (1, 0, 1), (40, 0, 3), (64, 1, 1), (200, 3, 3), (333, 20, 2), (5_000, 5, 1)])
    {
        let (mut cache, mut source) = (cache(slots, look_ahead), Source::default());
        let mut announced = 0;
        for round in 0..400_u64 {
            while cache.room() > 0 {
                // Epochs of 100 rounds start over.
                cache.announce(&draw(key, announced % 100, 1_000, 150, skew));
                announced += 1;
            }
            if round % 3 != 0 {
                cache.prepare(|ids, out| source.read(ids, out)).unwrap();
            }
            for i in 0..40 {
                let id = u64::from(rng::below([key, round, i, 4], 1_000));
                source.change(id);
                if i % 2 == 0 {
                    cache.write(id, &source.row(id));
                } else {
                    cache.invalidate(id);
                }
            }
            take(&mut cache, &source);
            if round == 250 {
                cache.clear();
                assert_eq!(cache.directory.order.vacancies(), slots);
            }
        }
        let counts = cache.counts();
        assert_eq!(counts.hits + counts.misses, counts.rows);
        assert!(counts.bypassed <= counts.misses && counts.restored <= counts.rows);
        if slots > 1 {
            assert!(counts.hits > counts.rows / 50 && counts.invalidated > 200, "{counts:?}");
        }
    }
}

#[test]
fn a_row_whose_slot_was_restored_with_another_is_not_found() {
    // An epoch ends with other rows in the cache than it begins with. Bringing the first ones back must evict the last
    // ones: requests for these get their own bytes, from the source.
    let (mut cache, source) = (cache(200, 1), Source::default());
    let epoch: Vec<Vec<u64>> = (0..20).map(|round| (round * 100..round * 100 + 100).collect()).collect();
    let mut requested = 0;
    for number in 0..4 * epoch.len() {
        if number == 0 {
            cache.announce(&epoch[0]);
        }
        cache.announce(&epoch[(number + 1) % epoch.len()]);
        cache.prepare(|ids, out| source.read(ids, out)).unwrap();
        take(&mut cache, &source);
        let before = cache.ids().to_vec();
        assert_eq!(before, epoch[(number + 1) % epoch.len()]);
        // Only rows in a slot of their own are found, and no slot twice.
        let held: Vec<(u64, u32)> =
            (0..2_000).filter_map(|id| cache.directory.slot_of(id).map(|slot| (id, slot))).collect();
        let slots: BTreeSet<u32> = held.iter().map(|(_, slot)| *slot).collect();
        assert!(
            held.len() == slots.len() && held.len() <= 200,
            "{} rows in {} slots",
            held.len(),
            slots.len()
        );
        for (id, slot) in held {
            assert_eq!(bits(cache.slot(slot)), bits(&source.row(id)), "row {id}");
            requested += 1;
        }
    }
    assert!(requested > 10_000, "{requested}");
    // Each round is restored whole, so each is found whole; yet each row was copied once per epoch.
    let counts = cache.counts();
    assert_eq!((counts.hits, counts.restored, counts.copies_avoided()), (8_000, 8_000, 0));
}

#[test]
fn rows_of_the_end_of_an_epoch_are_missed_after_its_begin_was_restored() {
    let (mut cache, source) = (cache(10, 0), Source::default());
    let (begin, end): (Vec<u64>, Vec<u64>) = ((0..10).collect(), (90..100).collect());
    for ids in [&begin, &end] {
        cache.announce(ids);
        take(&mut cache, &source);
    }
    cache.announce(&begin);
    assert_eq!(cache.prepare(|ids, out| source.read(ids, out)), Ok(10));
    assert!(end.iter().all(|&id| cache.directory.slot_of(id).is_none()), "their slots hold other rows");
    take(&mut cache, &source);
    cache.announce(&end);
    let before = cache.counts();
    take(&mut cache, &source);
    assert_eq!(cache.counts().misses - before.misses, 10);
}

#[test]
fn what_is_wanted_soonest_stays_and_what_is_wanted_later_passes_by() {
    let (mut cache, source) = (cache(2, 3), Source::default());
    for ids in [&[1, 2, 3][..], &[3], &[1, 3], &[2]] {
        cache.announce(ids);
    }
    take(&mut cache, &source);
    let held = |cache: &RowCache| [1, 2, 3].map(|id| cache.directory.slot_of(id).is_some());
    assert_eq!(held(&cache), [true, false, true], "2 is needed last");
    assert_eq!(cache.counts().bypassed, 1);
    cache.announce(&[9]);
    take(&mut cache, &source);
    assert_eq!(held(&cache), [true, false, true]);
    take(&mut cache, &source);
    assert_eq!(cache.prepare(|ids, out| source.read(ids, out)), Ok(1), "no known round needs 1 or 3");
    assert_eq!(held(&cache), [false, true, true], "1 was used no later than 3, and filed before");
    let counts = cache.counts();
    assert_eq!((counts.rows, counts.hits, counts.misses, counts.restored), (6, 3, 3, 1));
    assert_eq!((counts.evicted, counts.copies_avoided()), (1, 2));
}

#[test]
fn a_source_that_fails_changes_nothing() {
    let (mut cache, source) = (cache(3, 1), Source::default());
    cache.announce(&[1, 2]);
    take(&mut cache, &source);
    cache.announce(&[2, 3]);
    cache.announce(&[4]);
    let mut out = [0.0; 2 * DIMENSION];
    for _ in 0..2 {
        assert_eq!(cache.prepare(|_, _| Err("broken")), Err("broken"));
        assert_eq!(cache.take(&mut out, |_, _| Err("broken")), Err("broken"));
    }
    assert_eq!((cache.counts().rows, cache.ids()), (2, &[2, 3][..]));
    take(&mut cache, &source);
    take(&mut cache, &source);
    assert_eq!(cache.counts().hits, 1);
}

#[test]
fn rows_without_values_and_rows_that_stand_for_nothing_are_taken_too() {
    let mut cache = RowCache::new(0, 0, 0);
    cache.announce(&[1, 2]);
    cache.take(&mut [], |_, _| Err("nothing is requested")).unwrap();
    let (mut cache, source) = (self::cache(4, 0), Source::default());
    for _ in 0..3 {
        cache.announce(&[u64::MAX, 7, 7]);
        take(&mut cache, &source);
    }
    assert_eq!((cache.counts().hits, cache.directory.order.vacancies()), (4, 3), "twice the two of row 7");
}

/// A naive implementation of the policy: it searches the known rounds for every row, and all rows for the one needed
/// last.
struct Model {
    slots: usize,
    /// From the current one on.
    rounds: VecDeque<Vec<u64>>,
    /// Rows that are held, and a sequence number of its last filing.
    held: BTreeMap<u64, u64>,
    filed: u64,
    evicted: u64,
}

impl Model {
    /// In how many rounds after `from` others a row is needed; never: as late as possible.
    fn next(&self, id: u64, from: usize) -> usize {
        (from..self.rounds.len()).find(|&round| self.rounds[round].contains(&id)).unwrap_or(usize::MAX)
    }

    fn file(&mut self, id: u64) {
        self.filed += 1;
        self.held.insert(id, self.filed);
    }

    fn announce(&mut self, ids: &[u64]) {
        for &id in ids {
            if self.held.contains_key(&id) && self.next(id, 0) == usize::MAX {
                self.file(id);
            }
        }
        self.rounds.push_back(ids.to_vec());
    }

    /// Evicts the row that is needed last if it is needed later than `next`, or is of unknown use and older than
    /// `since`.
    fn room(&mut self, next: usize, since: u64, from: usize) -> bool {
        if self.held.len() < self.slots {
            return true;
        }
        let all = self.held.iter().map(|(&id, &filed)| match self.next(id, from) {
            usize::MAX => (usize::MAX, u64::MAX - filed, id),
            next => (next, filed, id),
        });
        let Some((last, filed, id)) = all.max() else { return false };
        let older = last == usize::MAX && u64::MAX - filed <= since;
        let gives = last > next || (next == usize::MAX && older);
        if gives {
            self.held.remove(&id);
            self.evicted += 1;
        }
        gives
    }

    fn restore(&mut self) {
        for id in self.rounds.front().cloned().unwrap_or_default() {
            if !self.held.contains_key(&id) && self.room(usize::MAX - 1, u64::MAX, 0) {
                self.file(id);
            }
        }
    }

    /// Hits of the current round.
    fn take(&mut self) -> usize {
        let (ids, since) = (self.rounds.front().cloned().unwrap_or_default(), self.filed);
        let (hits, mut misses): (Vec<u64>, Vec<u64>) = ids.iter().partition(|id| self.held.contains_key(id));
        hits.iter().for_each(|&id| self.file(id));
        misses.sort_by_key(|&id| self.next(id, 1));
        for id in misses {
            if self.room(self.next(id, 1), since, 1) {
                self.file(id);
            }
        }
        self.rounds.pop_front();
        hits.len()
    }
}

/// The most hits that any choice of rows can have: of the available rows those are kept that are needed soonest, by a
/// search through all later rounds.
fn optimum(slots: usize, rounds: &[Vec<u64>]) -> usize {
    let (mut held, mut hits) = (BTreeSet::new(), 0);
    for (number, ids) in rounds.iter().enumerate() {
        hits += ids.iter().filter(|id| held.contains(*id)).count();
        held.extend(ids);
        let next = |id| (number + 1..rounds.len()).find(|&later| rounds[later].contains(id));
        let mut all: Vec<(usize, u64)> =
            held.iter().map(|id| (next(id).unwrap_or(usize::MAX), *id)).collect();
        all.sort_unstable();
        held = all.into_iter().take(slots).map(|(_, id)| id).collect();
    }
    hits
}

fn rounds() -> impl Strategy<Value = Vec<Vec<u64>>> {
    let round = prop::collection::btree_set(0_u64..40, 0..12);
    prop::collection::vec(round.prop_map(|ids| ids.into_iter().collect()), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_held_is_what_the_model_holds(
        slots in 0_usize..30,
        look_ahead in 0_u32..6,
        restores in prop::bool::ANY,
        rounds in rounds(),
    ) {
        let mut directory = CacheDirectory::new(slots as u32, look_ahead);
        let mut model =
            Model { slots, rounds: VecDeque::new(), held: BTreeMap::new(), filed: 0, evicted: 0 };
        let (mut found, mut placed, mut hits, mut known) = (Found::default(), Vec::new(), 0, 0);
        for _ in 0..rounds.len() {
            while directory.room() > 0 && known < rounds.len() {
                directory.announce(&rounds[known]);
                model.announce(&rounds[known]);
                known += 1;
            }
            if restores {
                directory.look_up(&mut found);
                directory.restore(&mut found, (usize::MAX, |_| true), &mut placed);
                model.restore();
            }
            directory.look_up(&mut found);
            directory.turn(&found, &mut placed);
            let slots: BTreeSet<u32> = placed.iter().map(|placed| placed.slot).collect();
            prop_assert_eq!(slots.len(), placed.len(), "a slot is filled once");
            hits += model.take();
            let held = (0..40).filter(|&id| directory.slot_of(id).is_some());
            prop_assert_eq!(held.collect::<Vec<_>>(), model.held.keys().copied().collect::<Vec<_>>());
        }
        prop_assert_eq!((directory.counts().hits, directory.counts().evicted), (hits as u64, model.evicted));
    }

    #[test]
    fn no_choice_has_more_hits_than_this_one_with_every_round_known(slots in 0_usize..30, rounds in rounds()) {
        let mut directory = CacheDirectory::new(slots as u32, rounds.len() as u32);
        rounds.iter().for_each(|ids| directory.announce(ids));
        let (mut found, mut placed) = (Found::default(), Vec::new());
        for _ in &rounds {
            directory.look_up(&mut found);
            directory.turn(&found, &mut placed);
        }
        prop_assert_eq!(directory.counts().hits, optimum(slots, &rounds) as u64);
    }

    #[test]
    fn bytes_are_those_of_the_source(
        slots in 0_u32..20,
        look_ahead in 0_u32..4,
        steps in prop::collection::vec((0_u8..6, prop::collection::btree_set(0_u64..30, 0..10)), 1..60),
    ) {
        let (mut cache, mut source) = (cache(slots, look_ahead), Source::default());
        for (what, ids) in steps {
            let ids: Vec<u64> = ids.into_iter().collect();
            match what {
                0 | 1 if cache.room() > 0 => cache.announce(&ids),
                2 => {
                    let room = cache.directory.order.vacancies() + cache.directory.order.unknown();
                    let brought = cache.prepare(|ids, out| source.read(ids, out)).unwrap();
                    prop_assert!(brought <= room as usize && brought <= cache.ids().len());
                }
                3 => ids.iter().for_each(|&id| { source.change(id); cache.write(id, &source.row(id)); }),
                4 => ids.iter().for_each(|&id| { source.change(id); cache.invalidate(id); }),
                _ => take(&mut cache, &source),
            }
            let held: Vec<u32> = (0..30).filter_map(|id| cache.directory.slot_of(id)).collect();
            let distinct: BTreeSet<&u32> = held.iter().collect();
            prop_assert_eq!(distinct.len(), held.len());
            prop_assert_eq!(cache.directory.order.vacancies() as usize + held.len(), slots as usize);
        }
    }
}
