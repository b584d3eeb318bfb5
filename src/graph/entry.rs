//! What a block stores of each edge, in one of four forms. All are made of units of 12 bytes: the neighbor, with the
//! direction of the edge in its highest bit, the time and the edge id, each as a distance from the block's bases.
//!
//! | form | bits of time | of edge id | bytes |
//! |---|--:|--:|--:|
//! | narrow | 32 | 32 | 12 |
//! | medium | 40 | 40 | 14 |
//! | long | 48 | 32 | 14 |
//! | wide | 56 | 40 | 16 |
//!
//! 2^32 seconds are a century, as many milliseconds seven weeks, as many nanoseconds four seconds. 2^40 edge ids are
//! seven years of 5,000 events per second. 2^48 microseconds are nine years, 2^56 nanoseconds two, so distances of time
//! end 256 wide blocks of a node at most, whatever its times. The unit holds the high bits, so that searches
//! compare units of all forms in the same way. The low bits are in halves of 32-bit words, one or two for each entry,
//! behind the room for units in the slot. All distances come back exactly.
//!
//! Knows nothing of blocks and slabs.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::event::NodeId;

/// Set in the packed neighbor of an entry when the edge comes from the neighbor.
pub(super) const INCOMING: u32 = 1 << 31;

/// A block that distance ends with fewer entries gets a wider form: more blocks would cost more than wider entries, in
/// memory and in each query.
pub(super) const FEW: usize = 32;

/// Halves of a unit.
const UNIT_HALVES: usize = size_of::<Entry>() / size_of::<u16>();

/// One unit: a narrow entry, or the high bits of a wider one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Entry {
    pub neighbor: u32,
    pub time: u32,
    pub edge: u32,
}

/// One edge under one of its end points, unpacked. Orders by time, then edge id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    pub time: i64,
    pub edge: u64,
    /// The neighbor and the direction bit.
    pub packed: u32,
}

impl Record {
    /// The other end point.
    #[inline]
    pub fn neighbor(self) -> NodeId {
        NodeId(self.packed & !INCOMING)
    }

    /// Whether the edge comes from the neighbor.
    pub fn is_incoming(self) -> bool {
        self.packed & INCOMING != 0
    }

    /// What entries are sorted by.
    #[inline]
    pub fn key(self) -> (i64, u64) {
        (self.time, self.edge)
    }
}

/// How a block stores its entries. The numbers tell how many low bits there are: bytes of the time and, in the lowest
/// bit, of the edge id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Form {
    /// In 12 bytes.
    Narrow = 0,
    /// In 14 bytes, for times and edge ids alike.
    Medium = 1,
    /// In 14 bytes, for times.
    Long = 2,
    /// In 16 bytes.
    Wide = 3,
}

impl Form {
    /// Halves of low bits that each entry has.
    #[inline]
    pub fn halves(self) -> usize {
        match self {
            Self::Narrow => 0,
            Self::Medium | Self::Long => 1,
            Self::Wide => 2,
        }
    }

    /// Units that `entries` take.
    #[inline]
    pub fn units(self, entries: usize) -> usize {
        entries + (entries * self.halves()).div_ceil(UNIT_HALVES)
    }

    /// Entries that `units` hold.
    #[inline]
    pub fn capacity(self, units: usize) -> usize {
        match self {
            Self::Narrow => units,
            _ => units * UNIT_HALVES / (UNIT_HALVES + self.halves()),
        }
    }

    /// The forms that may hold what this one does not, those with the shortest entries first.
    pub fn wider(self) -> &'static [Self] {
        match self {
            Self::Narrow => &[Self::Medium, Self::Long, Self::Wide],
            Self::Medium => &[Self::Long, Self::Wide],
            Self::Long => &[Self::Wide],
            Self::Wide => &[],
        }
    }

    /// Bits of an entry's time that are not in its unit.
    #[inline]
    pub fn low_time_bits(self) -> u32 {
        8 * self as u32
    }

    /// Bits of its edge id that are not.
    #[inline]
    fn low_edge_bits(self) -> u32 {
        8 * (self as u32 & 1)
    }

    /// A distance of edge ids, rounded up to what 32 bits can store of it; `u32::MAX`: too far.
    #[inline]
    pub fn reach(self, distance: u64) -> u32 {
        let bits = self.low_edge_bits();
        u32::try_from(distance.saturating_add((1 << bits) - 1) >> bits).unwrap_or(u32::MAX)
    }

    /// The distance that a [`reach`](Self::reach) stores.
    #[inline]
    pub fn reached(self, reach: u32) -> u64 {
        u64::from(reach) << self.low_edge_bits()
    }

    /// Whether entries can store these distances. The largest reach means "too far".
    #[inline]
    fn holds(self, time: u64, edges: u64) -> bool {
        time >> self.low_time_bits() <= u64::from(u32::MAX) && self.reach(edges) != u32::MAX
    }

    /// The distances of an entry, time first: the same steps for every form, so that none takes a branch.
    #[inline]
    pub fn distances(self, entry: Entry, low: u32) -> (u64, u64) {
        let (time_bits, edge_bits) = (self.low_time_bits(), self.low_edge_bits());
        let low_edge = u64::from(low & ((1 << edge_bits) - 1));
        let time = u64::from(entry.time) << time_bits | u64::from(low >> edge_bits);
        (time, u64::from(entry.edge) << edge_bits | low_edge)
    }

    /// An entry and its low bits; `holds` is true for the distances.
    #[allow(clippy::cast_possible_truncation, reason = "the high bits are shifted out on purpose")]
    #[inline]
    pub fn pack(self, neighbor: u32, time: u64, edge: u64) -> (Entry, u32) {
        let (time_bits, edge_bits) = (self.low_time_bits(), self.low_edge_bits());
        let low_time = (time & ((1 << time_bits) - 1)) as u32;
        let low = low_time << edge_bits | (edge & ((1 << edge_bits) - 1)) as u32;
        (Entry { neighbor, time: (time >> time_bits) as u32, edge: (edge >> edge_bits) as u32 }, low)
    }
}

/// Low bits of entries where they are stored.
#[derive(Clone, Copy)]
pub(super) struct Lows<'a> {
    halves: &'a [u16],
    of_entry: usize,
}

impl<'a> Lows<'a> {
    /// Those of narrow entries.
    pub const NONE: Self = Self { halves: &[], of_entry: 0 };

    /// Those of entries of `form`, one after another.
    pub fn of(form: Form, halves: &'a [u16]) -> Self {
        Self { halves, of_entry: form.halves() }
    }

    /// The low bits of entry `i`; narrow entries have none.
    #[inline]
    pub fn get(self, i: usize) -> u32 {
        if self.of_entry == 0 { 0 } else { self.stored(i) }
    }

    #[cold]
    #[inline(never)]
    fn stored(self, i: usize) -> u32 {
        match self.of_entry {
            1 => u32::from(self.halves[i]),
            _ => u32::from(self.halves[2 * i]) | u32::from(self.halves[2 * i + 1]) << 16,
        }
    }

    /// Those of the entries `range`.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Self {
        Self { halves: &self.halves[range.start * self.of_entry..range.end * self.of_entry], ..self }
    }

    /// Whether they are those of narrow entries, or of none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.halves.is_empty()
    }

    /// As they are stored.
    pub fn halves(self) -> &'a [u16] {
        self.halves
    }

    /// Writes the low bits of an entry into its halves.
    #[allow(clippy::cast_possible_truncation, reason = "a half at a time")]
    #[inline]
    pub fn put(low: u32, halves: &mut [u16]) {
        for (i, half) in halves.iter_mut().enumerate() {
            *half = (low >> (16 * i)) as u16;
        }
    }
}

/// Entries of a block where they are stored.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub entries: &'a [Entry],
    pub lows: Lows<'a>,
}

impl<'a> Parts<'a> {
    /// `count` entries of `form` in the units of a slot.
    pub fn of(form: Form, units: &'a [Entry], count: usize) -> Self {
        let (entries, lows) = units.split_at(form.capacity(units.len()));
        let halves = &bytemuck::cast_slice(lows)[..count * form.halves()];
        Self { entries: &entries[..count], lows: Lows::of(form, halves) }
    }

    /// The same, to write: entries, and the halves of their low bits.
    pub fn of_mut(form: Form, units: &mut [Entry], count: usize) -> (&mut [Entry], &mut [u16]) {
        let (entries, lows) = units.split_at_mut(form.capacity(units.len()));
        (&mut entries[..count], &mut bytemuck::cast_slice_mut(lows)[..count * form.halves()])
    }

    /// Entry `position`, and its low bits.
    #[inline]
    pub fn at(self, position: usize) -> (&'a Entry, u32) {
        (&self.entries[position], self.lows.get(position))
    }
}

/// Distance of two times, the later first.
#[inline]
pub(super) fn distance(later: i64, earlier: i64) -> u64 {
    later.wrapping_sub(earlier).cast_unsigned()
}

/// How many records at the front of `records` (ascending, none before the block's last entry) fit a
/// block of `form` whose entries begin at `start` and have edge ids in `edges.0..=edges.1`, `room` at most; and the
/// range of edge ids with them.
pub(super) fn fitting(
    form: Form,
    start: i64,
    mut edges: (u64, u64),
    room: usize,
    records: &[Record],
) -> (usize, (u64, u64)) {
    let mut count = 0;
    for record in records.iter().take(room) {
        let wider = (edges.0.min(record.edge), edges.1.max(record.edge));
        if !form.holds(distance(record.time, start), wider.1 - wider.0) {
            break;
        }
        edges = wider;
        count += 1;
    }
    (count, edges)
}

/// The first of `0..len` for which `is_before` is false; it is true for all earlier and for no later ones.
pub(super) fn partition(len: usize, is_before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low.midpoint(high);
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_gives_back_every_distance_that_it_holds() {
        let forms =
            [(Form::Narrow, 32, 32), (Form::Medium, 40, 40), (Form::Long, 48, 32), (Form::Wide, 56, 40)];
        for (form, time_bits, edge_bits) in forms {
            let (most, most_edges) = ((1_u64 << time_bits) - 1, (1_u64 << edge_bits) - 512);
            for time in [0, 1, 65_535, 65_536, (1 << 24) - 1, 1 << 24, 4_000_000_007, most / 3, most] {
                for edge in [0, 1, 255, 256, 65_536, most_edges / 3, most_edges] {
                    assert!(form.holds(time, edge), "{form:?} {time} {edge}");
                    let (entry, low) = form.pack(7 | INCOMING, time, edge);
                    assert_eq!((entry.neighbor, form.distances(entry, low)), (7 | INCOMING, (time, edge)));
                    let mut halves = vec![0; form.halves()];
                    Lows::put(low, &mut halves);
                    assert_eq!(Lows::of(form, &halves).get(0), low);
                    let reached = form.reached(form.reach(edge));
                    assert!(reached >= edge && reached < edge + 256);
                }
            }
            assert!(!form.holds(most + 1, 0) && !form.holds(0, u64::MAX));
            assert!(!form.holds(0, (1 << edge_bits) - 1));
        }
    }

    #[test]
    fn units_hold_the_entries_and_their_low_bits() {
        for (form, sixths) in [(Form::Narrow, 6), (Form::Medium, 7), (Form::Long, 7), (Form::Wide, 8)] {
            for entries in 1..3_000 {
                let units = form.units(entries);
                assert!(form.capacity(units) >= entries && 6 * units <= sixths * entries + 5);
                let mut slot = vec![Entry::default(); units];
                let (high, low) = Parts::of_mut(form, &mut slot, entries);
                assert_eq!((high.len(), low.len()), (entries, entries * form.halves()));
                let capacity = form.capacity(entries);
                assert!(form.units(capacity) <= entries);
            }
        }
    }
}
