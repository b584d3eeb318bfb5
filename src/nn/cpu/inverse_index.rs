//! [`InverseIndex`]: an index turned around, by counting.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use super::segment::Members;

/// Places from which on several threads count, each a part of them.
const PARALLEL_FROM: usize = 1 << 16;
/// Parts that are counted apart at most; each has a counter per row.
const PARTS_MAX: usize = 8;

/// For every row of a table, the places of an index that read it, ascending.
#[derive(Debug)]
pub struct InverseIndex {
    /// The places of row `r` are `places[starts[r]..starts[r + 1]]`.
    starts: Vec<u32>,
    /// `None`: place i is i.
    places: Option<Vec<u32>>,
    /// Rows of the table.
    rows: usize,
    /// Places of the index, whether they read a row or not.
    place_count: usize,
}

impl InverseIndex {
    /// Inverts `index` (place to row); `u32::MAX` reads nothing. In linear time; an index that is sorted already
    /// is only counted, since then the places of a row follow one another.
    ///
    /// # Panics
    /// If a place reads a row that there is not.
    #[must_use]
    pub fn new(index: &[u32], rows: usize) -> Self {
        if is_sorted(index) && index.last().is_none_or(|last| *last != u32::MAX) {
            index.last().inspect(|last| assert_row(**last, rows));
            let starts = sorted_starts(index, rows);
            return Self { starts, places: None, rows, place_count: index.len() };
        }
        let parts = rayon::current_num_threads().min(PARTS_MAX).min(4 * index.len() / rows.max(1));
        if parts < 2 || index.len() < PARALLEL_FROM {
            return Self::alone(index, rows);
        }
        Self::in_parts(index, rows, parts)
    }

    fn alone(index: &[u32], rows: usize) -> Self {
        let mut starts = vec![0u32; rows + 2];
        let read = |row: &&u32| **row != u32::MAX;
        // Counted two places further, `starts[r + 1]` is the write position of row r and ends as its end.
        for &row in index.iter().filter(read) {
            assert_row(row, rows);
            starts[row as usize + 2] += 1;
        }
        for r in 2..starts.len() {
            starts[r] += starts[r - 1];
        }
        let mut places = vec![0u32; starts.last().map_or(0, |n| *n as usize)];
        for (place, row) in index.iter().enumerate().filter(|(_, row)| **row != u32::MAX) {
            let at = &mut starts[*row as usize + 1];
            places[*at as usize] = place as u32;
            *at += 1;
        }
        Self { starts, places: Some(places), rows, place_count: index.len() }
    }

    /// Each part counts the rows of a stretch of the index and then lists it, at places that follow from what the
    /// parts before it counted: no place is written twice, whatever the order of the threads.
    fn in_parts(index: &[u32], rows: usize, parts: usize) -> Self {
        let length = index.len().div_ceil(parts);
        // What is read by nobody counts for the row behind the last.
        let mut counts: Vec<Vec<u32>> = index
            .par_chunks(length)
            .map(|index| {
                let mut counts = vec![0u32; rows + 1];
                for &row in index {
                    if row != u32::MAX {
                        assert_row(row, rows);
                    }
                    counts[(row as usize).min(rows)] += 1;
                }
                counts
            })
            .collect();
        let mut starts = Vec::with_capacity(rows + 2);
        let mut at = 0;
        for row in 0..=rows {
            starts.push(at);
            for counts in &mut counts {
                at += std::mem::replace(&mut counts[row], at);
            }
        }
        starts.push(starts[rows]);
        let mut places: Vec<AtomicU32> =
            std::iter::repeat_with(AtomicU32::default).take(index.len()).collect();
        index.par_chunks(length).zip(&mut counts).enumerate().for_each(|(part, (index, counts))| {
            for (place, row) in (part * length..).zip(index) {
                let at = &mut counts[(*row as usize).min(rows)];
                places[*at as usize].store(place as u32, Relaxed);
                *at += 1;
            }
        });
        places.truncate(starts[rows] as usize);
        let places = places.into_iter().map(AtomicU32::into_inner).collect();
        Self { starts, places: Some(places), rows, place_count: index.len() }
    }

    /// Rows of the table.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Places of the index, whether they read a row or not.
    #[must_use]
    pub fn place_count(&self) -> usize {
        self.place_count
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let places = self.places.as_ref().map_or(0, Vec::capacity);
        (self.starts.capacity() + places) * size_of::<u32>()
    }

    /// Where each row's places begin, with the end of the last row's, and the places of all rows.
    #[must_use]
    pub fn lists(&self) -> (&[u32], Cow<'_, [u32]>) {
        let starts = &self.starts[..=self.rows];
        let all = || (0..starts[self.rows]).collect::<Vec<u32>>().into();
        (starts, self.places.as_ref().map_or_else(all, |places| places.as_slice().into()))
    }
}

fn assert_row(row: u32, rows: usize) {
    assert!((row as usize) < rows, "row {row} of a table with {rows} rows");
}

/// Whether no row stands before a smaller one.
fn is_sorted(index: &[u32]) -> bool {
    let part = |first: usize| index[first..].iter().take(PARALLEL_FROM + 1).is_sorted();
    (0..index.len()).into_par_iter().step_by(PARALLEL_FROM).all(part)
}

/// Where each row begins in a sorted index.
fn sorted_starts(index: &[u32], rows: usize) -> Vec<u32> {
    let mut starts = vec![0; rows + 2];
    let parts = starts.par_chunks_mut(PARALLEL_FROM / 4).enumerate();
    parts.for_each(|(part, starts)| {
        let rows = part * (PARALLEL_FROM / 4)..;
        let mut place = index.partition_point(|row| (*row as usize) < rows.start);
        for (start, row) in starts.iter_mut().zip(rows) {
            while index.get(place).is_some_and(|read| (*read as usize) < row) {
                place += 1;
            }
            *start = place as u32;
        }
    });
    starts
}

impl Members for InverseIndex {
    #[inline(always)]
    fn count(&self, row: usize) -> usize {
        (self.starts[row + 1] - self.starts[row]) as usize
    }

    #[inline(always)]
    fn member(&self, row: usize, nth: usize) -> usize {
        let at = self.starts[row] as usize + nth;
        self.places.as_ref().map_or(at, |places| places[at] as usize)
    }

    #[inline(always)]
    fn later(&self, row: usize, nth: usize) -> Option<usize> {
        Some(*self.places.as_ref()?.get(self.starts[row] as usize + nth)? as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    fn of(inverse: &InverseIndex, row: usize) -> Vec<usize> {
        (0..inverse.count(row)).map(|nth| inverse.member(row, nth)).collect()
    }

    #[test]
    fn readers_are_listed_in_order() {
        let inverse = InverseIndex::new(&[2, 0, u32::MAX, 2, 2], 4);
        assert_eq!([0, 1, 2, 3].map(|r| of(&inverse, r)), [vec![1], vec![], vec![0, 3, 4], vec![]]);
        assert_eq!(inverse.lists(), (&[0, 1, 1, 4, 4][..], vec![1, 0, 3, 4].into()));
        assert_eq!((inverse.rows(), inverse.place_count()), (4, 5));
        let inverse = InverseIndex::new(&[0, 0, 2, 2, 5], 7);
        assert!(inverse.places.is_none());
        assert_eq!(
            [0, 1, 2, 5, 6].map(|r| of(&inverse, r)),
            [vec![0, 1], vec![], vec![2, 3], vec![4], vec![]]
        );
        assert_eq!(inverse.lists(), (&[0, 2, 2, 4, 4, 4, 5, 5][..], vec![0, 1, 2, 3, 4].into()));
        let nobody = InverseIndex::new(&[], 3);
        assert_eq!((of(&nobody, 2), nobody.lists()), (Vec::new(), (&[0; 4][..], vec![].into())));
    }

    #[test]
    fn a_row_that_there_is_not_is_refused_in_words() {
        let ways: [fn(&[u32]); 3] = [
            |index| drop(InverseIndex::new(index, 4)),
            |index| drop(InverseIndex::alone(index, 4)),
            |index| drop(InverseIndex::in_parts(index, 4, 2)),
        ];
        for (way, index) in ways.iter().flat_map(|way| [[1, 4], [4, 1]].map(|index| (way, index))) {
            let panic = std::panic::catch_unwind(|| way(&index)).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), "row 4 of a table with 4 rows");
        }
    }

    #[test]
    fn an_index_has_the_same_lists_however_they_are_made() {
        const NONE: u32 = u32::MAX;
        for (index, rows) in [
            (vec![], 0),
            (vec![NONE; 3], 0),
            (vec![NONE; 3], 2),
            (vec![0, 1, NONE], 2),
            (vec![0, 0, 2, 2, 5], 7),
            (vec![1; 300], 2),
        ] {
            let expected = InverseIndex::alone(&index, rows);
            assert_eq!(InverseIndex::new(&index, rows).lists(), expected.lists(), "{index:?}");
            if !index.is_empty() {
                assert_eq!(InverseIndex::in_parts(&index, rows, 2).lists(), expected.lists(), "{index:?}");
            }
        }
    }

    #[test]
    fn parts_list_what_one_lists() {
        for (rows, parts) in [(1, 2), (7, 3), (1000, 8), (5000, 2)] {
            let index: Vec<u32> = (0..20_000u64)
                .map(|i| match rng::below([1, i, 0, 0], rows as u32 + 50) {
                    row if (row as usize) < rows => row,
                    _ => u32::MAX,
                })
                .collect();
            let (one, many) =
                (InverseIndex::alone(&index, rows), InverseIndex::in_parts(&index, rows, parts));
            assert!((0..rows).all(|r| of(&one, r) == of(&many, r)), "{rows} rows in {parts} parts");
            assert!(one.lists() == many.lists(), "{rows} rows in {parts} parts");
        }
    }
}
