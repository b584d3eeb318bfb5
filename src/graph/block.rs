//! The temporal block: consecutive edges of one node, ascending by (time, edge id).
//!
//! An entry is 12 bytes: the neighbor with the direction of the edge in its highest bit, and the time and the edge id
//! as 32-bit distances from the block's 64-bit bases. A record whose distance does not fit begins a new block. The
//! entries are in the shard's slab; the block's description is 32 bytes and is in its node's directory. It holds the
//! time of the first entry, bounds of the edge ids in this and the earlier blocks, and the number of entries in those,
//! so that a query usually reads descriptions and one block.
//!
//! Knows nothing of nodes and locks.

use std::hint::select_unpredictable;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::slab::{EntrySource, Slab, class_of};
use crate::device::prefetch;
use crate::event::NodeId;

/// Set in the packed neighbor of an entry when the edge comes from the neighbor.
pub(super) const INCOMING: u32 = 1 << 31;

/// One edge as stored under one of its end points.
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

/// Description of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemporalBlock {
    /// Time of the first entry; base of all times.
    pub start: i64,
    /// No larger than any edge id; base of all edge ids.
    base_edge: u64,
    /// Where the entries are in the slab.
    slot: u32,
    /// Number of entries in the earlier blocks of the node.
    pub before: u32,
    /// Distance from `base_edge` of an edge id that none in this or an earlier block of the node
    /// exceeds; `u32::MAX` if that is too far.
    reach: u32,
    len: u16,
    class: u8,
    /// Whether edge ids ascend too, so that the entries below an edge id come first.
    ordered: bool,
}

/// Consecutive edges of a node.
pub struct Run<'a> {
    block: &'a TemporalBlock,
    entries: &'a [Entry],
}

impl Run<'_> {
    /// The entries, unpacked, ascending.
    #[inline]
    pub(super) fn records(&self) -> impl DoubleEndedIterator<Item = Record> + ExactSizeIterator {
        self.entries.iter().map(|&entry| self.block.unpack(entry))
    }
}

/// The search for the first entry of a block with some time or a later one. It advances one step per call, so that
/// searches in many blocks can interleave and their memory accesses overlap.
#[derive(Clone, Copy)]
pub(super) struct TimeSearch<'a> {
    entries: &'a [Entry],
    /// The time as a distance from the block's first.
    limit: u64,
    /// Entries before this one are earlier.
    low: usize,
    /// Entries from `low` on that are not excluded yet.
    size: usize,
}

impl TimeSearch<'_> {
    /// A search that has found 0.
    pub const NOWHERE: Self = Self { entries: &[], limit: 0, low: 0, size: 0 };
    /// This many entries are close enough in memory that their steps need not interleave.
    const NEAR: usize = 16;

    /// Halves the remaining range, prefetches what the next step reads, and returns whether further interleaving pays
    /// off.
    #[inline]
    pub fn halve(&mut self) -> bool {
        self.step();
        if let Some(entry) = self.entries.get(self.low + self.size / 2) {
            prefetch(entry);
        }
        self.size > Self::NEAR
    }

    #[inline]
    fn step(&mut self) {
        let half = self.size / 2;
        let middle = self.low + half;
        let is_earlier = self.entries.get(middle).is_some_and(|entry| u64::from(entry.time) < self.limit);
        self.low = select_unpredictable(is_earlier, middle, self.low);
        self.size -= half;
    }

    /// The number of entries before the one searched for; takes the steps that are left.
    #[inline]
    pub fn rank(mut self) -> usize {
        while self.size > 1 {
            self.step();
        }
        let is_earlier = self.entries.get(self.low).is_some_and(|entry| u64::from(entry.time) < self.limit);
        self.low + usize::from(is_earlier)
    }
}

/// Distance of two times, the later first.
#[inline]
fn distance(later: i64, earlier: i64) -> u64 {
    later.wrapping_sub(earlier).cast_unsigned()
}

/// How many records at the front of `records` (ascending, none before the block's last entry) fit a
/// block whose entries begin at `start` and have edge ids in `edges.0..=edges.1`, `room` at most; and the
/// range of edge ids with them.
pub(super) fn fitting(
    start: i64,
    mut edges: (u64, u64),
    room: usize,
    records: &[Record],
) -> (usize, (u64, u64)) {
    let mut count = 0;
    for record in records.iter().take(room) {
        let wider = (edges.0.min(record.edge), edges.1.max(record.edge));
        let far = distance(record.time, start) > u64::from(u32::MAX);
        // The largest distance means "too far".
        if far || wider.1 - wider.0 >= u64::from(u32::MAX) {
            break;
        }
        edges = wider;
        count += 1;
    }
    (count, edges)
}

#[allow(clippy::cast_possible_truncation, reason = "distances and counts are checked by `fitting`")]
impl TemporalBlock {
    /// Stores the first records of `records` (ascending, not empty, `most` at most) in a new block with room for
    /// `capacity` entries if they need less, and returns how many.
    pub fn begin(slab: &mut Slab, records: &[Record], most: usize, capacity: usize) -> (Self, usize) {
        let first = records[0];
        let (count, edges) = fitting(first.time, (first.edge, first.edge), most, records);
        let class = class_of(count.max(capacity));
        let mut block = Self {
            start: first.time,
            base_edge: edges.0,
            slot: slab.take(class),
            before: 0,
            reach: (edges.1 - edges.0) as u32,
            len: 0,
            class: class as u8,
            ordered: true,
        };
        block.write(slab, &records[..count]);
        (block, count)
    }

    /// Appends the first records of `records` (ascending, none before the last entry, edge ids above the block's), as
    /// many as distances allow in a block of `page` entries, and returns how many. The slot grows as needed.
    pub fn append(&mut self, slab: &mut Slab, records: &[Record], page: usize) -> usize {
        let room = page.saturating_sub(self.len());
        let (count, edges) = fitting(self.start, self.edges(), room, records);
        if count == 0 {
            return 0;
        }
        debug_assert_eq!(edges.0, self.base_edge, "appended edges are younger than the block");
        self.reserve(slab, count);
        self.reach = (edges.1 - edges.0) as u32;
        self.write(slab, &records[..count]);
        count
    }

    /// Inserts `record` before entry `position` and returns true, if the bases can stay and the block has
    /// fewer than `page` entries.
    pub fn insert(&mut self, slab: &mut Slab, record: Record, position: usize, page: usize) -> bool {
        let (count, edges) = fitting(self.start, self.edges(), 1, &[record]);
        if count == 0 || record.time < self.start || edges.0 < self.base_edge || self.len() >= page {
            return false;
        }
        self.reserve(slab, 1);
        self.reach = (edges.1 - edges.0) as u32;
        self.ordered = false;
        self.len += 1;
        let entry = self.pack(record);
        let entries = slab.get_mut(self.slot, usize::from(self.len));
        entries.copy_within(position..usize::from(self.len) - 1, position + 1);
        entries[position] = entry;
        true
    }

    /// Records that an earlier block holds edge ids up to `edge`.
    pub fn reach_to(&mut self, edge: u64) {
        let distance = edge.saturating_sub(self.base_edge);
        self.reach = self.reach.max(u32::try_from(distance).unwrap_or(u32::MAX));
    }

    /// Gives the slot back; the block is gone.
    pub fn release(self, slab: &mut Slab) {
        slab.release(self.slot, usize::from(self.class));
    }

    /// Copies the entries to a slot of the same size in `to`, and returns that slot.
    pub fn copy<'a>(&self, from: impl EntrySource<'a>, to: &mut Slab) -> u32 {
        let slot = to.take(usize::from(self.class));
        to.get_mut(slot, self.len()).copy_from_slice(from.get(self.slot, self.len()));
        slot
    }

    /// Records that the entries are in `slot` of another slab now.
    pub fn move_to(&mut self, slot: u32) {
        self.slot = slot;
    }

    /// The chunk of `slab` in which the entries are.
    #[inline]
    pub fn chunk(&self, slab: &Slab) -> usize {
        slab.chunk_of(self.slot)
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Bounds of edge ids: no id of this block is below the first, none of this block or an earlier block
    /// of the node above the second.
    #[inline]
    pub fn edges(&self) -> (u64, u64) {
        let highest = if self.reach == u32::MAX { u64::MAX } else { self.base_edge + u64::from(self.reach) };
        (self.base_edge, highest)
    }

    /// Number of entries before the first with edge id `bound` or above, if the entries are in order of
    /// edge ids.
    #[inline]
    pub fn rank_of_edge<'a>(&self, slab: impl EntrySource<'a>, bound: u64) -> Option<usize> {
        let limit = bound.saturating_sub(self.base_edge);
        let entries = slab.get(self.slot, self.len());
        self.ordered.then(|| entries.partition_point(|entry| u64::from(entry.edge) < limit))
    }

    /// All entries.
    #[inline]
    pub fn entries<'a>(&self, slab: impl EntrySource<'a>) -> &'a [Entry] {
        slab.get(self.slot, self.len())
    }

    /// Entry `position`, which the block has.
    #[inline]
    pub fn entry<'a>(&self, slab: impl EntrySource<'a>, position: usize) -> &'a Entry {
        debug_assert!(position < self.len(), "entry {position} of {}", self.len);
        &slab.get(self.slot + position as u32, 1)[0]
    }

    /// Entry `position`, unpacked.
    #[inline]
    pub fn record<'a>(&self, slab: impl EntrySource<'a>, position: usize) -> Record {
        self.unpack(*self.entry(slab, position))
    }

    /// Announces that entries will be appended.
    #[inline]
    pub fn announce_end<'a>(&self, slab: impl EntrySource<'a>) {
        if let Some(last) = slab.get(self.slot, self.len()).last() {
            prefetch(last);
        }
    }

    /// All entries, unpacked, ascending.
    pub fn records<'a>(
        &'a self,
        slab: impl EntrySource<'a>,
    ) -> impl DoubleEndedIterator<Item = Record> + ExactSizeIterator + 'a {
        slab.get(self.slot, self.len()).iter().map(|&entry| self.unpack(entry))
    }

    /// The entries `range`.
    #[inline]
    pub fn run<'a>(&'a self, slab: impl EntrySource<'a>, range: Range<usize>) -> Run<'a> {
        Run { block: self, entries: &slab.get(self.slot, self.len())[range] }
    }

    /// Prefetches the entry that a search reads first.
    #[inline]
    pub fn announce<'a>(&self, slab: impl EntrySource<'a>) {
        prefetch(&slab.get(self.slot, self.len())[self.len() / 2]);
    }

    /// The search for the first entry with time at least `time`.
    #[inline]
    pub fn search<'a>(&self, slab: impl EntrySource<'a>, time: i64) -> TimeSearch<'a> {
        if time <= self.start {
            return TimeSearch::NOWHERE;
        }
        let entries = slab.get(self.slot, self.len());
        TimeSearch { entries, limit: distance(time, self.start), low: 0, size: entries.len() }
    }

    /// Number of entries before the first with time at least `time`.
    #[inline]
    pub fn rank_of_time<'a>(&self, slab: impl EntrySource<'a>, time: i64) -> usize {
        self.search(slab, time).rank()
    }

    /// Number of entries before the first that is not below `record`.
    pub fn rank_of<'a>(&self, slab: impl EntrySource<'a>, record: Record) -> usize {
        let entries = slab.get(self.slot, self.len());
        entries.partition_point(|&entry| self.unpack(entry).key() < record.key())
    }

    /// `entry`, one of the block's, unpacked.
    #[inline]
    pub fn unpack(&self, entry: Entry) -> Record {
        Record {
            time: self.start.wrapping_add(i64::from(entry.time)),
            edge: self.base_edge + u64::from(entry.edge),
            packed: entry.neighbor,
        }
    }

    fn pack(&self, record: Record) -> Entry {
        Entry {
            neighbor: record.packed,
            time: distance(record.time, self.start) as u32,
            edge: (record.edge - self.base_edge) as u32,
        }
    }

    /// Writes `records` behind the last entry; bases and capacity suit them.
    fn write(&mut self, slab: &mut Slab, records: &[Record]) {
        let block = *self;
        self.len += records.len() as u16;
        // Younger than what is there: order among themselves decides.
        let mut last = 0;
        let new = &mut slab.get_mut(self.slot, self.len())[block.len()..];
        for (entry, &record) in new.iter_mut().zip(records) {
            *entry = block.pack(record);
            self.ordered &= entry.edge >= last;
            last = entry.edge;
        }
    }

    /// Makes room for `more` entries: the next class at least, so that single appends copy each entry a
    /// constant number of times.
    fn reserve(&mut self, slab: &mut Slab, more: usize) {
        let class = class_of(self.len() + more);
        if class <= usize::from(self.class) {
            return;
        }
        let slot = slab.take(class);
        slab.copy(self.slot, slot, self.len());
        self.release(slab);
        self.slot = slot;
        self.class = class as u8;
    }
}
