//! [`Buckets`]: a hash table of two words per id in plain arrays, searched in a fixed number of steps.
//!
//! An entry is in one of two buckets that follow from its id, [`Buckets::homes`], anywhere in it. A search compares
//! these 16 entries at most and never follows a chain, so neither an occupied nor an emptied place makes it longer. An
//! entry goes to its first bucket while that is not more than half full, where most searches end, and otherwise to the
//! emptier one: with two places per entry on average, both are almost never full. Then the entry is refused, and the
//! caller does without.
//!
//! The caller defines what the two words mean, and which entries are void.

use crate::device::{prefetch, rng};

/// Entries of a bucket.
const BUCKET_ENTRIES: usize = 8;
/// Means "no id".
pub(super) const EMPTY: u64 = u64::MAX;
/// Keeps these hashes apart from random numbers.
const HASH_STATE: u64 = 0x726f_775f_6361_6368;

/// Eight entries, a column each: what is compared comes first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
struct Bucket {
    ids: [u64; BUCKET_ENTRIES],
    first: [u32; BUCKET_ENTRIES],
    second: [u32; BUCKET_ENTRIES],
}

const VACANT: Bucket =
    Bucket { ids: [EMPTY; BUCKET_ENTRIES], first: [0; BUCKET_ENTRIES], second: [0; BUCKET_ENTRIES] };

/// The two buckets in which an id may be; the same one twice where there is only one.
pub(super) type Homes = [u32; 2];

/// The number of an entry: eight times its bucket's, and its place there.
pub(super) type Place = u32;

#[allow(clippy::cast_possible_truncation)] // 8
fn place(bucket: u32, entry: u32) -> Place {
    bucket * BUCKET_ENTRIES as u32 + entry
}

/// A table of entries.
#[derive(Debug)]
pub(super) struct Buckets {
    buckets: Vec<Bucket>,
}

/// Buckets for so many entries, half of which stay empty.
fn buckets_for(entries: usize) -> usize {
    (2 * entries).div_ceil(BUCKET_ENTRIES).clamp(1, u32::MAX as usize / BUCKET_ENTRIES)
}

impl Buckets {
    /// An empty table for so many entries.
    pub fn new(entries: usize) -> Self {
        Self { buckets: vec![VACANT; buckets_for(entries)] }
    }

    /// Entries that the table was made for.
    pub fn room(&self) -> usize {
        self.buckets.len() * BUCKET_ENTRIES / 2
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }

    /// The buckets of `id`: the halves of one step of SplitMix64, each scaled to the number of buckets.
    #[allow(clippy::cast_possible_truncation)] // halves, and less than the number of buckets
    pub fn homes(&self, id: u64) -> Homes {
        let (hash, buckets) = (rng::draw(HASH_STATE, id), self.buckets.len() as u64);
        let first = ((hash >> 32) * buckets) >> 32;
        let second = ((hash & 0xFFFF_FFFF) * buckets) >> 32;
        let second = if second == first { (first + 1) % buckets } else { second };
        [first as u32, second as u32]
    }

    /// Prefetches what a search there will read.
    pub fn prefetch(&self, homes: Homes) {
        for home in homes {
            prefetch(&self.buckets[home as usize].ids);
        }
        prefetch(&self.buckets[homes[0] as usize].first);
    }

    /// The place of `id`.
    pub fn find(&self, id: u64, homes: Homes) -> Option<Place> {
        if id == EMPTY {
            return None;
        }
        homes.into_iter().find_map(|home| {
            // All are compared, because which one matches is unpredictable.
            let ids = self.buckets[home as usize].ids.iter().zip(0..);
            let equal = ids.fold(0_u32, |equal, (&other, bit)| equal | u32::from(other == id) << bit);
            (equal != 0).then(|| place(home, equal.trailing_zeros()))
        })
    }

    /// A place for an entry; `void` returns, for the id and words of an existing entry, whether they are void.
    pub fn vacancy(&self, homes: Homes, void: impl Fn(u64, u32, u32) -> bool) -> Option<Place> {
        let voids = |home: u32| {
            let Bucket { ids, first, second } = &self.buckets[home as usize];
            let is_void = |entry: usize| u32::from(void(ids[entry], first[entry], second[entry]));
            (0..BUCKET_ENTRIES).fold(0, |voids, entry| voids | is_void(entry) << entry)
        };
        let [mut home, other] = homes;
        let mut free: u32 = voids(home);
        if free.count_ones() < BUCKET_ENTRIES as u32 / 2 {
            let others = voids(other);
            if others.count_ones() > free.count_ones() {
                (home, free) = (other, others);
            }
        }
        (free != 0).then(|| place(home, free.trailing_zeros()))
    }

    /// The words of the entry at `place`.
    pub fn words(&self, place: Place) -> [u32; 2] {
        let (bucket, entry) = (&self.buckets[(place / 8) as usize], (place % 8) as usize);
        [bucket.first[entry], bucket.second[entry]]
    }

    /// Writes the entry at `place`.
    pub fn put(&mut self, place: Place, id: u64, [first, second]: [u32; 2]) {
        let (bucket, entry) = (&mut self.buckets[(place / 8) as usize], (place % 8) as usize);
        bucket.ids[entry] = id;
        bucket.first[entry] = first;
        bucket.second[entry] = second;
    }

    /// All entries: ids and words.
    pub fn all(&self) -> impl Iterator<Item = (u64, [u32; 2])> {
        let of = |Bucket { ids, first, second }: &Bucket| {
            let (ids, first, second) = (*ids, *first, *second);
            (0..BUCKET_ENTRIES).map(move |entry| (ids[entry], [first[entry], second[entry]]))
        };
        self.buckets.iter().flat_map(of).filter(|(id, _)| *id != EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_entries_as_were_asked_for_find_a_place() {
        for entries in [0, 1, 3, 4, 5, 157, 10_000, 300_000] {
            let mut table = Buckets::new(entries);
            assert!(table.room() >= entries && table.bytes() <= (entries / 4 + 1) * 128);
            for id in 0..entries as u64 {
                let homes = table.homes(id * 7);
                assert_eq!(table.find(id * 7, homes), None);
                let place = table.vacancy(homes, |other, _, _| other == EMPTY).unwrap();
                table.put(place, id * 7, [id as u32, 5]);
            }
            for id in 0..entries as u64 {
                let place = table.find(id * 7, table.homes(id * 7)).unwrap();
                assert_eq!(table.words(place), [id as u32, 5]);
            }
            assert_eq!(table.find(EMPTY, table.homes(EMPTY)), None);
        }
    }

    #[test]
    fn what_finds_no_place_is_refused() {
        let mut table = Buckets::new(1);
        for id in 0..BUCKET_ENTRIES as u64 {
            table.put(table.vacancy(table.homes(id), |other, _, _| other == EMPTY).unwrap(), id, [0; 2]);
        }
        assert_eq!(table.vacancy(table.homes(9), |other, _, _| other == EMPTY), None);
    }
}
