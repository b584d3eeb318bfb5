//! What a block stores of each edge, in one of two forms. Both are made of units of 12 bytes: the neighbor, with the
//! direction of the edge in its highest bit, the time and the edge id, each as a distance from the block's bases.
//!
//! A *narrow* entry is one unit: 32 bits each for time and edge id. 2^32 seconds are a
//! century, as many milliseconds seven weeks, as many nanoseconds four seconds. A *wide* entry has 56 bits for the time
//! and 40 for the edge id, in 16 bytes: the unit holds the high bits, so that searches compare units of both forms in
//! the same way, and the low bits are in a 32-bit word, three to a unit, behind the room for units in the slot. All
//! distances come back exactly. 2^56 nanoseconds are two years, so distances of time end 256 wide blocks of a node at
//! most, whatever its times.
//!
//! Knows nothing of blocks and slabs.

use bytemuck::{Pod, Zeroable};

use crate::device::prefetch;
use crate::event::NodeId;

/// Set in the packed neighbor of an entry when the edge comes from the neighbor.
pub(super) const INCOMING: u32 = 1 << 31;

/// A narrow block that distance ends with fewer entries becomes wide: more blocks would cost more than wider entries,
/// in memory and in each query.
pub(super) const FEW: usize = 32;

/// Low bits of a wide entry: of the time, and of the edge id.
pub(super) const LOW_TIME_BITS: u32 = 24;
pub(super) const LOW_EDGE_BITS: u32 = 8;

/// One unit: a narrow entry, or the high bits of a wide one.
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

/// How a block stores its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In 12 bytes.
    Narrow,
    /// In 16 bytes.
    Wide,
}

impl Form {
    /// Units that `entries` take.
    #[inline]
    pub fn units(self, entries: usize) -> usize {
        match self {
            Self::Narrow => entries,
            Self::Wide => (4 * entries).div_ceil(3),
        }
    }

    /// Entries that `units` hold.
    #[inline]
    pub fn capacity(self, units: usize) -> usize {
        match self {
            Self::Narrow => units,
            Self::Wide => units * 3 / 4,
        }
    }

    /// Bits of an entry's time that are not in its unit.
    #[inline]
    pub fn low_time_bits(self) -> u32 {
        match self {
            Self::Narrow => 0,
            Self::Wide => LOW_TIME_BITS,
        }
    }

    fn low_edge_bits(self) -> u32 {
        match self {
            Self::Narrow => 0,
            Self::Wide => LOW_EDGE_BITS,
        }
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

    /// The distances of an entry, time first.
    #[inline]
    pub fn distances(self, entry: Entry, low: u32) -> (u64, u64) {
        let (time, edge) = (u64::from(entry.time), u64::from(entry.edge));
        match self {
            Self::Narrow => (time, edge),
            Self::Wide => (
                time << LOW_TIME_BITS | u64::from(low >> LOW_EDGE_BITS),
                edge << LOW_EDGE_BITS | u64::from(low & ((1 << LOW_EDGE_BITS) - 1)),
            ),
        }
    }

    /// An entry and its low bits; `holds` is true for the distances.
    #[allow(clippy::cast_possible_truncation, reason = "the high bits are shifted out on purpose")]
    #[inline]
    pub fn pack(self, neighbor: u32, time: u64, edge: u64) -> (Entry, u32) {
        match self {
            Self::Narrow => (Entry { neighbor, time: time as u32, edge: edge as u32 }, 0),
            Self::Wide => {
                let (time_high, edge_high) = ((time >> LOW_TIME_BITS) as u32, (edge >> LOW_EDGE_BITS) as u32);
                let low = (time as u32) << LOW_EDGE_BITS | (edge as u32 & ((1 << LOW_EDGE_BITS) - 1));
                (Entry { neighbor, time: time_high, edge: edge_high }, low)
            }
        }
    }
}

/// Entries of a block where they are stored.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub entries: &'a [Entry],
    /// Low bits, entry by entry; none of narrow ones.
    pub lows: &'a [u32],
}

impl<'a> Parts<'a> {
    /// `count` wide entries in the units of a slot.
    pub fn wide(units: &'a [Entry], count: usize) -> Self {
        let (entries, lows) = units.split_at(Form::Wide.capacity(units.len()));
        Self { entries: &entries[..count], lows: &bytemuck::cast_slice(lows)[..count] }
    }

    /// The same, to write.
    pub fn wide_mut(units: &mut [Entry], count: usize) -> (&mut [Entry], &mut [u32]) {
        let (entries, lows) = units.split_at_mut(Form::Wide.capacity(units.len()));
        (&mut entries[..count], &mut bytemuck::cast_slice_mut(lows)[..count])
    }

    /// Entry `position` and where its low bits are, which are prefetched.
    #[inline]
    pub fn at(self, position: usize) -> (&'a Entry, &'a u32) {
        let low = match self.lows.get(position) {
            Some(low) => {
                prefetch(low);
                low
            }
            None => &0,
        };
        (&self.entries[position], low)
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
    fn a_wide_entry_gives_back_every_distance_that_it_holds() {
        let form = Form::Wide;
        for time in [0, 1, (1 << 24) - 1, 1 << 24, 5_000_000_007, (1 << 56) - 1] {
            for edge in [0, 1, 255, 256, 1 << 33, (1 << 40) - 512] {
                assert!(form.holds(time, edge));
                let (entry, low) = form.pack(7 | INCOMING, time, edge);
                assert_eq!((entry.neighbor, form.distances(entry, low)), (7 | INCOMING, (time, edge)));
                let reached = form.reached(form.reach(edge));
                assert!(reached >= edge && reached < edge + 256);
            }
        }
        assert!(!form.holds(1 << 56, 0) && !form.holds(0, (1 << 40) - 256) && !form.holds(0, u64::MAX));
        assert!(Form::Narrow.holds(u64::from(u32::MAX), u64::from(u32::MAX) - 1));
        assert!(!Form::Narrow.holds(1 << 32, 0) && !Form::Narrow.holds(0, u64::from(u32::MAX)));
    }

    #[test]
    fn units_hold_the_entries_and_their_low_bits() {
        for entries in 1..3_000 {
            let units = Form::Wide.units(entries);
            assert!(Form::Wide.capacity(units) >= entries && 3 * units <= 4 * entries + 2);
            let mut slot = vec![Entry::default(); units];
            let (high, low) = Parts::wide_mut(&mut slot, entries);
            assert_eq!((high.len(), low.len()), (entries, entries));
        }
    }
}
