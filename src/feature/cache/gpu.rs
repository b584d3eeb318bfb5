//! [`GpuRows`]: rows of a source in memory of a GPU, where operations read them in place.
//!
//! The memory is a table of places: slots, in which rows stay from round to round as [`CacheDirectory`] decides, and
//! spare places after them, for rows of one round that get no slot. The caller has the rows of the round in host
//! memory; only those that are in no slot are brought to the GPU: it reads them in place where the host's memory allows
//! that ([`RowsInPlace`]), straight into their places, else they are copied.
//!
//! ```text
//! 0 ..... slots ..... places
//! | rows that stay  | rows of this round only |
//! ```
//!
//! A round reads its rows after the call, not before. So a row whose slot the round gives to another one, needed
//! sooner, is copied once more, to a spare place.
//!
//! [`GpuRows::restore`] brings rows of the next round in while this one may still be read: into empty slots, and
//! those of rows that neither round reads. It is enqueued behind this round, so the GPU does it while the host does
//! what comes between two rounds. [`GpuRows::choose`] decides on them, which takes the host as long as a look-up of the
//! round, while the GPU still computes.
//!
//! A round that is larger than the spare places moves the border between both, and then all slots are empty again. A
//! round that leaves no slots at all does not use this cache.

use std::sync::Arc;

use super::buckets::EMPTY;
use super::directory::{CacheDirectory, Placed};
use super::found::Found;
use crate::device::cuda::layers::{Layout, Part, put_rows};
use crate::device::cuda::{CudaBuffer, CudaError, CudaWork, RowsInPlace};

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
    /// Rows that were brought in before their round, which then found them.
    pub restored: u64,
}

/// The rows of a round; each id occurs once, and all ones mean no row of the source.
#[derive(Clone, Copy)]
pub struct RoundRows<'a> {
    /// Their ids.
    pub ids: &'a [u64],
    /// Where the GPU reads them, and the place of each other row among `values`, all ones for those in place. `None`:
    /// all are in `values`, in order.
    pub in_place: Option<(&'a RowsInPlace, &'a [u32])>,
    /// Rows in memory of the host, one after another.
    pub values: &'a [f32],
}

impl RoundRows<'_> {
    /// The place of a row among `values`; `None` if the GPU reads it in place.
    fn here(&self, row: usize) -> Option<usize> {
        match self.in_place {
            None => Some(row),
            Some((_, here)) => here.get(row).filter(|here| **here != u32::MAX).map(|here| *here as usize),
        }
    }

    /// Brings rows, by their numbers in the round, to places of a table. Does not wait.
    ///
    /// # Errors
    /// The GPU's.
    pub fn bring(
        &self,
        work: &Arc<CudaWork>,
        brought: &[(usize, u32)],
        (table, width): (&mut CudaBuffer<f32>, usize),
    ) -> Result<(), CudaError> {
        let (mut values, mut list, mut there) = (Vec::new(), Vec::new(), Vec::new());
        for &(row, place) in brought {
            match self.here(row) {
                Some(here) => {
                    values.extend_from_slice(&self.values[here * width..][..width]);
                    list.push(place);
                }
                None => there.push((row, place)),
            }
        }
        if !list.is_empty() {
            let (values, places) = (work.upload(&values), work.upload(&list));
            let part =
                Part { table: (values.get()?, Layout::dense(width)), shape: [list.len(), width], list: None };
            put_rows(work.context(), places.get()?, list.len(), part, table)?;
        }
        match self.in_place {
            Some((rows, _)) if !there.is_empty() => rows.fill(work, &there, table),
            _ => Ok(()),
        }
    }
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
    /// Rows of the round that are brought to the GPU, and their places.
    brought: Vec<(usize, u32)>,
    /// Slots that the last round reads.
    used: Vec<u32>,
    /// Whether `brought` was chosen to be restored, and is not there yet.
    chosen: bool,
    /// Whether the directory is still to end the round that was placed last, which missed nothing.
    ends: bool,
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
            used: Vec::new(),
            chosen: false,
            ends: false,
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
            + self.brought.capacity() * size_of::<(usize, u32)>()
            + self.used.capacity() * size_of::<u32>()
    }

    /// Drops every row: the source is another, or rows have changed in it.
    pub fn forget(&mut self) {
        self.end_round();
        self.directory.clear();
        self.chosen = false;
    }

    /// Has the directory end the round that was placed last, if that is still to be done. Who asks where rows are does
    /// not wait for it where all of them were there.
    fn end_round(&mut self) {
        if std::mem::take(&mut self.ends) {
            self.directory.turn(&self.found, &mut self.placed);
        }
    }

    /// What was chosen and never restored is not where the directory has it.
    fn forget_chosen(&mut self) {
        if self.chosen {
            self.forget();
        }
    }

    /// Brings the missing rows of a round to the GPU. Returns the row of `table` of each of them, valid until the next
    /// round or glance. `next` are the ids of the round after this one, or none if they are not known.
    ///
    /// `None` where the round is too large, or the GPU has a fault; after a fault the table counts as empty.
    pub fn round(
        &mut self,
        work: &Arc<CudaWork>,
        table: &mut CudaBuffer<f32>,
        rows: &RoundRows<'_>,
        next: &[u64],
    ) -> Option<Vec<u32>> {
        let places = self.plan(rows.ids, next)?;
        self.bring(work, table, rows).then_some(places)
    }

    /// What [`round`](Self::round) decides, without a GPU: for whoever counts what it would copy.
    pub fn plan(&mut self, ids: &[u64], next: &[u64]) -> Option<Vec<u32>> {
        self.forget_chosen();
        if self.has_spare_places(ids.len()) {
            return Some(self.turn(ids, next));
        }
        let rows = ids.len() as u64;
        self.counts.misses += rows;
        self.counts.bypassed += rows;
        None
    }

    /// What [`restore`](Self::restore) decides, without a GPU.
    pub fn plan_restore(&mut self, ids: &[u64]) {
        if self.decide(ids, |_| true) {
            self.counts.restored += self.brought.len() as u64;
        }
    }

    /// As [`round`](Self::round), for rows that are read beside the rounds: nothing is kept for them, nor counted.
    pub fn glance(
        &mut self,
        work: &Arc<CudaWork>,
        table: &mut CudaBuffer<f32>,
        rows: &RoundRows<'_>,
    ) -> Option<Vec<u32>> {
        self.forget_chosen();
        let places = self.look(rows.ids)?;
        self.bring(work, table, rows).then_some(places)
    }

    /// Chooses which rows of the round after the current one, which comes next if it was announced, are brought in, as
    /// far as they are read in place. What the current round reads stays.
    pub fn choose(&mut self, rows: &RoundRows<'_>) {
        self.forget_chosen();
        self.chosen = self.decide(rows.ids, |row| rows.here(row).is_none());
    }

    /// Brings in the rows that were chosen, of the same round.
    pub fn restore(&mut self, work: &Arc<CudaWork>, table: &mut CudaBuffer<f32>, rows: &RoundRows<'_>) {
        if !std::mem::take(&mut self.chosen) {
            return;
        }
        debug_assert!(
            rows.ids.iter().filter(|id| **id != EMPTY).eq(self.directory.ids()),
            "of another round"
        );
        let restored = self.brought.len() as u64;
        if self.bring(work, table, rows) {
            self.counts.restored += restored;
        }
    }

    /// Brings what was decided on; `false` after a fault.
    fn bring(&mut self, work: &Arc<CudaWork>, table: &mut CudaBuffer<f32>, rows: &RoundRows<'_>) -> bool {
        let mut launched = self.brought.is_empty();
        if !launched {
            work.run(|_| {
                rows.bring(work, &self.brought, (table, self.width))?;
                launched = true;
                Ok(())
            });
        }
        if !launched {
            self.forget();
        }
        launched
    }

    /// Whether a round of so many rows fits beside at least one slot; moves the border if necessary.
    #[allow(clippy::cast_possible_truncation)] // less than the number of places
    fn has_spare_places(&mut self, rows: usize) -> bool {
        self.end_round();
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
        directory.look_up(found);
        // What the next round needs only matters where a row has to go.
        if !next.is_empty() && directory.room() > 0 && !directory.has_room(found) {
            directory.announce(&next.iter().copied().filter(is_row).collect::<Vec<_>>());
        }
        self.ends = found.misses().is_empty();
        if self.ends {
            placed.clear();
        } else {
            directory.turn(found, placed);
        }
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
                brought.push((row, place));
            }
            place
        };
        let places: Vec<u32> = ids.iter().enumerate().map(place_of).collect();
        self.used.clear();
        self.used.extend(places.iter().filter(|place| **place < directory.slots()));
        places
    }

    /// Places of rows that are read beside the rounds: their slots, or spare places; `None` if those are too few.
    fn look(&mut self, ids: &[u64]) -> Option<Vec<u32>> {
        let Self { directory, brought, .. } = self;
        let mut spare = directory.slots()..self.places;
        brought.clear();
        let place_of = |(row, id): (usize, &u64)| {
            let slot = if *id == EMPTY { None } else { directory.slot_of(*id) };
            slot.or_else(|| spare.next().inspect(|place| brought.push((row, *place))))
        };
        ids.iter().enumerate().map(place_of).collect()
    }

    /// Decides which rows of the next round are brought in now, of those that `may`; `false` if another round comes.
    fn decide(&mut self, ids: &[u64], may: impl Fn(usize) -> bool) -> bool {
        self.end_round();
        let Self { directory, found, placed, ids: named, brought, used, .. } = self;
        let is_row = |(_, id): &(usize, &u64)| **id != EMPTY;
        let (rows, known): (Vec<usize>, Vec<u64>) = ids.iter().enumerate().filter(is_row).unzip();
        *named = known;
        if directory.slots() == 0 || named.is_empty() {
            return false;
        }
        if directory.room() > LOOK_AHEAD as usize {
            directory.announce(named);
        }
        if directory.ids() != named.as_slice() {
            return false;
        }
        directory.look_up(found);
        let most = directory.restorable_beside(found, used);
        directory.restore(found, (most, |place: u32| may(rows[place as usize])), placed);
        brought.clear();
        brought.extend(placed.iter().map(|placed| (rows[placed.row as usize], placed.slot)));
        true
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
            self.put(rows, ids);
            assert!(places.iter().all(|place| (*place as usize) < rows.places()));
            self.has(ids, &places);
            true
        }

        fn put(&mut self, rows: &GpuRows, ids: &[u64]) {
            self.0.extend(rows.brought.iter().map(|&(row, place)| (place, ids[row])));
        }

        /// Checks that rows are at their places.
        fn has(&self, ids: &[u64], places: &[u32]) {
            for (id, place) in ids.iter().zip(places) {
                assert_eq!(self.0.get(place), Some(id), "row {id} at {place}");
            }
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
            let GpuRowCounts { hits, misses, bypassed, .. } = rows.counts();
            assert_eq!(hits + misses, rounds.iter().map(|ids| ids.len() as u64).sum::<u64>());
            assert!(bypassed <= misses && (hits > 0 || places == 33), "{places}: {:?}", rows.counts());
            assert!(places != 400 || hits > 5 * misses, "{:?}", rows.counts());
        }
    }

    #[test]
    fn rows_that_are_restored_or_glanced_at_disturb_no_round() {
        let rounds = rounds(300, 120);
        for (places, announces) in [(45, true), (60, true), (60, false), (90, true), (90, false), (500, true)]
        {
            let (mut rows, mut table, mut restored) = (GpuRows::new(places, 1), Table::default(), 0);
            for (number, pair) in rounds.windows(2).enumerate() {
                let [ids, next] = pair else { unreachable!() };
                assert!(rows.has_spare_places(ids.len()));
                // Now and then another round comes than was foreseen.
                let foreseen = if number % 13 == 6 { &rounds[0] } else { next };
                let now = rows.turn(ids, if announces { foreseen } else { &[] });
                table.put(&rows, ids);
                table.has(ids, &now);
                if rows.decide(foreseen, |row| row % 5 != 1) {
                    table.put(&rows, foreseen);
                    restored += rows.brought.len();
                }
                table.has(ids, &now);
                if let Some(places) = rows.look(&rounds[number / 2]) {
                    table.put(&rows, &rounds[number / 2]);
                    table.has(&rounds[number / 2], &places);
                }
            }
            println!("{places} places, announced {announces}: {restored} restored, {:?}", rows.counts());
            assert!(restored > 0 || places < 90, "{places} places");
        }
    }

    #[test]
    fn when_the_directory_ends_a_round_makes_no_difference() {
        let (rounds, mut late) = (rounds(300, 60), 0);
        for places in [45, 70, 200] {
            let mut both = [GpuRows::new(places, 1), GpuRows::new(places, 1)];
            for (number, pair) in rounds.windows(2).enumerate() {
                let [ids, next] = pair else { unreachable!() };
                let mut found = Vec::new();
                for (which, rows) in both.iter_mut().enumerate() {
                    assert!(rows.has_spare_places(ids.len()));
                    let mut seen = vec![(rows.turn(ids, next), rows.brought.clone())];
                    late += usize::from(which == 0 && rows.ends);
                    if which == 1 {
                        rows.end_round();
                    }
                    if number % 17 == 9 {
                        rows.forget();
                    }
                    seen.extend(rows.look(&rounds[number / 2]).map(|places| (places, rows.brought.clone())));
                    if number % 5 != 2 {
                        let decided = rows.decide(next, |_| true);
                        seen.push((vec![decided.into()], rows.brought.clone()));
                    }
                    found.push((seen, rows.counts()));
                }
                assert_eq!(found[0], found[1], "round {number} of {places} places");
            }
        }
        assert!(late > 100, "{late} rounds were ended later");
    }

    #[test]
    fn what_was_chosen_and_never_restored_is_brought_with_its_round() {
        let (mut rows, mut table) = (GpuRows::new(100, 1), Table::default());
        assert!(table.take(&mut rows, &[1, 2, 3], &[4, 5]));
        rows.chosen = rows.decide(&[4, 5], |_| true);
        assert!(rows.chosen && rows.directory.slot_of(4).is_some());
        let places = rows.plan(&[4, 5], &[]).unwrap();
        assert_eq!(rows.brought.len(), 2, "neither is there");
        table.put(&rows, &[4, 5]);
        table.has(&[4, 5], &places);
        rows.chosen = rows.decide(&[6], |_| true);
        table.put(&rows, &[6]);
        rows.chosen = false;
        let places = rows.plan(&[6, 4], &[]).unwrap();
        assert!(rows.brought.is_empty(), "all are there");
        table.has(&[6, 4], &places);
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
