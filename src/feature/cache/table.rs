//! [`SlotTable`]: which slot holds the row of an id.
//!
//! The first word of an entry of [`Buckets`] is its slot; the second, which the window of known rounds has a use for,
//! is 0. An entry is emptied when the row in its slot is dropped, for another one or because it changed.

use super::buckets::{Buckets, EMPTY, Homes, Place};
use super::window::CHUNK_IDS;

/// Entries that the table has room for from the beginning, if there are as many slots. It is searched at random places,
/// so that it be no larger than it has to matters: a few rows in a table for millions would each be far away.
const ENTRIES_LEAST: usize = 1 << 12;

/// Slots by id.
#[derive(Debug)]
pub(super) struct SlotTable {
    entries: Buckets,
    /// How many there are.
    named: usize,
    /// The place of each slot's entry.
    places: Vec<Place>,
}

impl SlotTable {
    /// A table of slots that hold nothing.
    pub fn new(slots: usize) -> Self {
        let entries = Buckets::new(slots.min(ENTRIES_LEAST));
        Self { entries, named: 0, places: vec![0; slots] }
    }

    /// Sees to it that so many more entries find a place; [`homes`](Self::homes) from before do not count any more.
    pub fn reserve(&mut self, more: usize) {
        let wanted = (self.named + more).min(self.places.len());
        if wanted <= self.entries.room() {
            return;
        }
        let (mut entries, mut moved) =
            (Buckets::new((2 * wanted).min(self.places.len())), Vec::with_capacity(self.named));
        for (id, words) in self.entries.all() {
            let homes = entries.homes(id);
            // Without a place for all, which all but never happens, those to come may be refused.
            let Some(place) = entries.vacancy(homes, |other, _, _| other == EMPTY) else { return };
            entries.put(place, id, words);
            moved.push((words[0], place));
        }
        self.entries = entries;
        moved.into_iter().for_each(|(slot, place)| self.places[slot as usize] = place);
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.entries.bytes() + self.places.len() * size_of::<Place>()
    }

    /// The buckets of `id`.
    pub fn homes(&self, id: u64) -> Homes {
        self.entries.homes(id)
    }

    /// Prefetches what a search there will read.
    pub fn prefetch(&self, homes: Homes) {
        self.entries.prefetch(homes);
    }

    /// The slot that holds the row of `id`.
    pub fn find(&self, id: u64, homes: Homes) -> Option<u32> {
        let place = self.entries.find(id, homes)?;
        let [slot, _] = self.entries.words(place);
        debug_assert_eq!(self.places[slot as usize], place, "an entry is emptied when its slot is given up");
        Some(slot)
    }

    /// The slot that holds the row of each of `ids`, in their order. What a search reads is on its way before its turn.
    pub fn find_all(&self, ids: impl Iterator<Item = u64>, mut each: impl FnMut(Option<u32>)) {
        let (mut ids, mut homes) = (ids.peekable(), [(EMPTY, [0; 2]); CHUNK_IDS]);
        while ids.peek().is_some() {
            let mut len = 0;
            for (home, id) in homes.iter_mut().zip(&mut ids) {
                *home = (id, self.homes(id));
                self.prefetch(home.1);
                len += 1;
            }
            homes[..len].iter().for_each(|&(id, homes)| each(self.find(id, homes)));
        }
    }

    /// Records that `slot`, which was empty, holds the row of `id` from here on; `false` if the table has an entry for
    /// `id`, or no place for one.
    pub fn name(&mut self, id: u64, slot: u32, homes: Homes) -> bool {
        if id == EMPTY || self.entries.find(id, homes).is_some() {
            return false;
        }
        let Some(place) = self.entries.vacancy(homes, |other, _, _| other == EMPTY) else { return false };
        self.entries.put(place, id, [slot, 0]);
        self.places[slot as usize] = place;
        self.named += 1;
        true
    }

    /// Records that `slot`, which had an entry, is empty.
    pub fn give_up(&mut self, slot: u32) {
        self.entries.put(self.places[slot as usize], EMPTY, [0; 2]);
        self.named -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(table: &mut SlotTable, id: u64, slot: u32) -> bool {
        table.name(id, slot, table.homes(id))
    }

    fn find(table: &SlotTable, id: u64) -> Option<u32> {
        table.find(id, table.homes(id))
    }

    #[test]
    fn a_row_is_found_until_it_is_given_up() {
        let mut table = SlotTable::new(4);
        assert!(name(&mut table, 70, 2) && name(&mut table, 71, 3));
        assert!(!name(&mut table, 70, 1), "a row has one slot");
        assert!(!name(&mut table, u64::MAX, 1), "the reserved id has no entry");
        assert_eq!([70, 71, 72, u64::MAX].map(|id| find(&table, id)), [Some(2), Some(3), None, None]);
        table.give_up(2);
        assert_eq!([70, 71].map(|id| find(&table, id)), [None, Some(3)]);
        assert!(name(&mut table, 5, 2));
        assert_eq!([5, 70].map(|id| find(&table, id)), [Some(2), None]);
    }

    #[test]
    fn a_table_grows_with_what_it_holds() {
        let mut table = SlotTable::new(1 << 20);
        let small = table.bytes();
        let slots = |round: u32| 3_000 * round..3_000 * (round + 1);
        for round in 0..5 {
            table.reserve(3_000);
            assert!(slots(round).all(|slot| name(&mut table, 9 * u64::from(slot), slot)), "round {round}");
            table.give_up(3_000 * round);
        }
        assert!(table.bytes() > small);
        for slot in slots(0).start..slots(4).end {
            let expected = (slot % 3_000 != 0).then_some(slot);
            assert_eq!(find(&table, 9 * u64::from(slot)), expected);
        }
        (1..3_000).for_each(|slot| table.give_up(slot));
        assert_eq!((find(&table, 9), find(&table, 9 * 3_001)), (None, Some(3_001)), "places moved along");
        let (grown, mut full) = (table.bytes(), SlotTable::new(10));
        table.reserve(100);
        full.reserve(usize::MAX / 2);
        assert_eq!((table.bytes(), full.bytes()), (grown, SlotTable::new(10).bytes()));
    }
}
