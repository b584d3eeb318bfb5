//! [`GpuRows`]: rows of a source in memory of a GPU, where operations read them in place.
//!
//! The memory is a table of places: slots, in which rows stay from round to round as [`CacheDirectory`] decides, and
//! spare places after them, for rows of one round that get no slot. The caller has the rows of the round in host
//! memory; only those that are in no slot are copied to the GPU.
//!
//! ```text
//! 0 ..... slots ..... places
//! | rows that stay  | rows of this round only |
//! ```
//!
//! A round reads its rows after the call, not before. So a row whose slot the round gives to another one, needed
//! sooner, is copied once more, to a spare place.
//!
//! A round that is larger than the spare places moves the border between both, and then all slots are empty again. A
//! round that leaves no slots at all does not use this cache.

use std::sync::Arc;

use super::buckets::EMPTY;
use super::directory::{CacheDirectory, Found, Placed};
use crate::device::cuda::layers::put_rows;
use crate::device::cuda::{CudaBuffer, CudaWork};

/// Rounds beyond the current one that may be known.
const LOOK_AHEAD: u32 = 1;
/// The most places that are used: the directory takes some 60 bytes of host memory for each.
const PLACES_MAX: u64 = 1 << 22;

/// Counts over rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuRowCounts {
    /// Rows that were read in place.
    pub hits: u64,
    /// Rows that were copied to the GPU.
    pub misses: u64,
    /// Those of them that got no slot.
    pub bypassed: u64,
}

/// A row of a round that is copied to a place.
#[derive(Clone, Copy)]
struct Brought {
    row: usize,
    place: u32,
}

/// Which rows of a source are at which places of a table on a GPU.
pub struct GpuRows {
    width: usize,
    places: u32,
    directory: CacheDirectory,
    counts: GpuRowCounts,
    found: Found,
    placed: Vec<Placed>,
    /// Rows of the round without ids that have no row.
    ids: Vec<u64>,
    brought: Vec<Brought>,
    values: Vec<f32>,
}

impl GpuRows {
    /// Of a table of `places` rows of `width` values.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // no more than the greatest number of places
    pub fn new(places: u64, width: usize) -> Self {
        Self {
            width,
            places: places.min(PLACES_MAX) as u32,
            directory: CacheDirectory::new(0, LOOK_AHEAD),
            counts: GpuRowCounts::default(),
            found: Found::default(),
            placed: Vec::new(),
            ids: Vec::new(),
            brought: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Rows of the table.
    #[must_use]
    pub fn places(&self) -> usize {
        self.places as usize
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> GpuRowCounts {
        self.counts
    }

    /// Bytes of host memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.directory.bytes()
            + self.ids.capacity() * size_of::<u64>()
            + self.brought.capacity() * size_of::<Brought>()
            + self.values.capacity() * size_of::<f32>()
    }

    /// Drops every row: the source is another, or rows have changed in it.
    pub fn forget(&mut self) {
        self.directory.clear();
    }

    /// Copies the missing rows of a round to the GPU; each id occurs once, and all ones mean no row of the source.
    /// `rows` has them all, one after another. Returns the row of `table` of each of them, valid until the next round.
    /// `next` are the ids of the round after this one, or none if they are not known.
    ///
    /// `None` where the round is too large, or the GPU has a fault; after a fault the table counts as empty.
    ///
    /// # Panics
    /// If there is not a row for each id.
    pub fn round(
        &mut self,
        work: &Arc<CudaWork>,
        table: &mut CudaBuffer<f32>,
        (ids, rows): (&[u64], &[f32]),
        next: &[u64],
    ) -> Option<Vec<u32>> {
        assert_eq!(rows.len(), ids.len() * self.width, "rows of a round");
        if !self.has_spare_places(ids.len()) {
            let rows = ids.len() as u64;
            self.counts.misses += rows;
            self.counts.bypassed += rows;
            return None;
        }
        let places = self.turn(ids, next);
        self.values.clear();
        for brought in &self.brought {
            self.values.extend_from_slice(&rows[brought.row * self.width..][..self.width]);
        }
        let list: Vec<u32> = self.brought.iter().map(|brought| brought.place).collect();
        let mut launched = list.is_empty();
        if !launched {
            let (values, list) = (work.upload(&self.values), (work.upload(&list), list.len()));
            work.run(|place| {
                put_rows(place, list.0.get()?, list.1, self.width, values.get()?, table)?;
                launched = true;
                Ok(())
            });
        }
        if !launched {
            self.forget();
        }
        launched.then_some(places)
    }

    /// Whether a round of so many rows fits beside at least one slot; moves the border if necessary.
    #[allow(clippy::cast_possible_truncation)] // less than the number of places
    fn has_spare_places(&mut self, rows: usize) -> bool {
        let places = self.places as usize;
        let spare = places - self.directory.slots() as usize;
        if rows >= places {
            return false;
        }
        if rows > spare || self.directory.slots() == 0 {
            // Room for larger ones, so that few rounds move the border.
            let spare = rows.max((2 * rows).min(places / 2));
            self.directory = CacheDirectory::new((places - spare) as u32, LOOK_AHEAD);
            self.found = Found::default();
        }
        true
    }

    /// Decides where the rows of the round are, and which of them are copied there.
    #[allow(clippy::cast_possible_truncation)] // places are counted in 32 bits
    fn turn(&mut self, ids: &[u64], next: &[u64]) -> Vec<u32> {
        let Self { directory, found, placed, ids: named, brought, .. } = self;
        let is_row = |id: &u64| *id != EMPTY;
        named.clear();
        named.extend(ids.iter().copied().filter(is_row));
        let is_known = |directory: &CacheDirectory| directory.room() <= LOOK_AHEAD as usize;
        if is_known(directory) && directory.ids() != named.as_slice() {
            directory.pass(found);
        }
        if !is_known(directory) {
            directory.announce(named);
        }
        if !next.is_empty() && directory.room() > 0 {
            directory.announce(&next.iter().copied().filter(is_row).collect::<Vec<_>>());
        }
        directory.look_up(found);
        directory.turn(found, placed);
        let mut places = found.slots().to_vec();
        let mut given: Vec<u32> = placed.iter().map(|placed| placed.slot).collect();
        given.sort_unstable();
        for place in &mut places {
            if given.binary_search(place).is_ok() {
                *place = Found::MISS;
            }
        }
        let in_table = |places: &[u32]| places.iter().filter(|place| **place != Found::MISS).count() as u64;
        self.counts.hits += in_table(&places);
        self.counts.misses += ids.len() as u64 - in_table(&places);
        self.counts.bypassed += ids.len() as u64 - in_table(&places) - placed.len() as u64;
        // Rows that get a slot are distinguished from hits by their new slots.
        placed.iter().for_each(|placed| places[placed.row as usize] = placed.slot);
        let (mut spare, mut slots) = (directory.slots().., places.iter());
        brought.clear();
        let place_of = |(row, id): (usize, &u64)| {
            let slot = if is_row(id) { slots.next().copied() } else { None };
            let slot = slot.filter(|slot| *slot != Found::MISS);
            let place = slot.or_else(|| spare.next()).unwrap_or_default();
            if slot.is_none() || given.binary_search(&place).is_ok() {
                brought.push(Brought { row, place });
            }
            place
        };
        ids.iter().enumerate().map(place_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::device::rng;

    /// The row at each place, as on a GPU.
    #[derive(Default)]
    struct Table(BTreeMap<u32, u64>);

    impl Table {
        /// Takes a round, and checks that every row is at its reported place.
        fn take(&mut self, rows: &mut GpuRows, ids: &[u64], next: &[u64]) -> bool {
            if !rows.has_spare_places(ids.len()) {
                return false;
            }
            let places = rows.turn(ids, next);
            for brought in &rows.brought {
                self.0.insert(brought.place, ids[brought.row]);
            }
            for (id, place) in ids.iter().zip(&places) {
                assert!((*place as usize) < rows.places());
                assert_eq!(self.0.get(place), Some(id), "row {id} at {place}");
            }
            true
        }
    }

    /// Rows of some rounds; one of them now and then is no row.
    fn rounds(count: u64, most: u32) -> Vec<Vec<u64>> {
        let draw = |number, place| u64::from(rng::below([7, number, place, 0], most));
        let round = |number| {
            let mut ids: Vec<u64> = (0..30).map(|place| draw(number, place)).collect();
            ids.sort_unstable();
            ids.dedup();
            if number % 3 == 0 {
                ids.insert(ids.len() / 2, EMPTY);
            }
            ids
        };
        (0..count).map(round).collect()
    }

    #[test]
    fn every_row_is_where_it_is_said_to_be() {
        let rounds = rounds(200, 90);
        let none = Vec::new();
        for (places, known) in [(33, false), (33, true), (50, false), (50, true), (400, false), (400, true)] {
            let (mut rows, mut table) = (GpuRows::new(places, 1), Table::default());
            for (number, ids) in rounds.iter().enumerate() {
                // Sometimes another round comes than was announced, or none is announced.
                let next = rounds.get(number + if number % 11 == 5 { 2 } else { 1 });
                let next = next.filter(|_| known && number % 7 != 3).unwrap_or(&none);
                assert!(table.take(&mut rows, ids, next));
                if number == 120 {
                    rows.forget();
                    table.0.clear();
                }
            }
            let GpuRowCounts { hits, misses, bypassed } = rows.counts();
            assert_eq!(hits + misses, rounds.iter().map(|ids| ids.len() as u64).sum::<u64>());
            assert!(bypassed <= misses && (hits > 0 || places == 33), "{places}: {:?}", rows.counts());
            assert!(places != 400 || hits > 5 * misses, "{:?}", rows.counts());
        }
    }

    #[test]
    fn a_round_that_leaves_no_slot_is_refused() {
        let (mut rows, mut table) = (GpuRows::new(10, 1), Table::default());
        assert!(!table.take(&mut rows, &(0..10).collect::<Vec<_>>(), &[]));
        assert!(table.take(&mut rows, &[1, 2, 3], &[]));
        assert_eq!(rows.directory.slots(), 5);
        assert!(table.take(&mut rows, &(0..9).collect::<Vec<_>>(), &[]), "the border moves");
        assert_eq!(rows.directory.slots(), 1);
        assert!(!table.take(&mut GpuRows::new(0, 1), &[], &[]));
    }
}
