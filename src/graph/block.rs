//! The temporal block: consecutive edges of one node, ascending by (time, edge id).
//!
//! A block stores its entries in one of four forms (see `entry`), as distances from its 64-bit bases. A record whose
//! distance does not fit gives the block a wider form while it is short, else it begins a new block. The
//! entries are in the shard's slab; the block's description is 32 bytes and is in its node's directory. It holds the
//! time of the first entry, bounds of the edge ids in this and the earlier blocks, and the number of entries in those,
//! so that a query usually reads descriptions and one block.
//!
//! Knows nothing of nodes and locks.

use std::ops::Range;

use super::entry::{Entry, FEW, Form, Lows, Parts, Record, distance, fitting, partition};
use super::slab::{EntrySource, Slab, class_entries, class_of};
use super::view::Run;
use crate::device::prefetch;

/// Set in the class of a block whose edge ids do not ascend.
pub(super) const MIXED: u8 = 1 << 7;

/// Description of one block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TemporalBlock {
    /// Time of the first entry; base of all times.
    pub start: i64,
    /// No larger than any edge id; base of all edge ids.
    pub base_edge: u64,
    /// Where the entries are in the slab.
    pub slot: u32,
    /// Number of entries in the earlier blocks of the node.
    pub before: u32,
    /// Distance from `base_edge` of an edge id that none in this or an earlier block of the node exceeds, as
    /// [`Form::reach`] rounds it; `u32::MAX` if that is too far.
    pub reach: u32,
    pub len: u16,
    /// The slot's size class; the highest bit: edge ids do not ascend, so the entries below an edge id need not come
    /// first.
    pub class: u8,
    pub form: Form,
}

#[allow(clippy::cast_possible_truncation, reason = "distances and counts are checked by `fitting`")]
impl TemporalBlock {
    /// Stores the first records of `records` (ascending, not empty, `most` at most) in a new block of at most `page`
    /// units, and returns how many. Its slot has at least `capacity` units if the block can grow.
    pub fn begin(
        slab: &mut Slab,
        records: &[Record],
        (most, page): (usize, usize),
        capacity: usize,
    ) -> (Self, usize) {
        let first = records[0];
        let fit = |form: Form| {
            let most = most.min(form.capacity(page)).min(records.len());
            (fitting(form, first.time, (first.edge, first.edge), most, records), most)
        };
        let mut form = Form::Narrow;
        let ((mut count, mut edges), mut most) = fit(form);
        for &wider in form.wider() {
            if count >= FEW.min(most) {
                break;
            }
            let (fitting, room) = fit(wider);
            if fitting.0 > count {
                (form, most, (count, edges)) = (wider, room, fitting);
            }
        }
        let capacity = if count < most { 0 } else { capacity };
        let class = class_of(form.units(count).max(capacity));
        let mut block = Self {
            start: first.time,
            base_edge: edges.0,
            slot: slab.take(class),
            before: 0,
            reach: form.reach(edges.1 - edges.0),
            len: 0,
            class: class as u8,
            form,
        };
        block.write(slab, &records[..count], 0);
        (block, count)
    }

    /// Appends the first records of `records` (ascending, none before the last entry), as many as distances allow in a
    /// block of `page` units, and returns how many. The slot grows as needed. Edge ids are above the block's, except
    /// for entries of the same batch, the last of which has the id `last`; 0 where there are none.
    pub fn append(&mut self, slab: &mut Slab, records: &[Record], page: usize, last: u64) -> usize {
        let (count, edges) = fitting(self.form, self.start, self.edges(), self.room(page), records);
        if count == 0 {
            return 0;
        }
        debug_assert_eq!(edges.0, self.base_edge, "appended edges are younger than the block");
        self.reserve(slab, count);
        self.reach = self.form.reach(edges.1 - edges.0);
        self.write(slab, &records[..count], last);
        count
    }

    /// How many more entries a block of at most `page` units takes.
    pub fn room(&self, page: usize) -> usize {
        self.form.capacity(page).saturating_sub(self.len())
    }

    /// Gives a short block the narrowest form in which `next` can be appended, if there is one; it cannot be before.
    /// Returns whether it did.
    pub fn widen(&mut self, slab: &mut Slab, next: Record, page: usize) -> bool {
        let len = self.len();
        let takes = |form: &&Form| {
            let is_short = len < FEW.min(form.capacity(page));
            is_short && fitting(**form, self.start, self.edges(), 1, &[next]).0 > 0
        };
        let Some(&form) = self.form.wider().iter().find(takes) else { return false };
        let records: Vec<Record> = self.records(&*slab).collect();
        let (_, highest) = self.edges();
        let class = class_of(form.units(len + 1)).max(self.class());
        if class != self.class() {
            self.release(slab);
            self.slot = slab.take(class);
        }
        (self.form, self.class, self.len, self.reach) = (form, class as u8, 0, 0);
        self.reach_to(highest);
        self.write(slab, &records, 0);
        true
    }

    /// Gives back what the slot has beyond the smallest that holds the entries: the block will not grow.
    pub fn trim(&mut self, slab: &mut Slab) {
        let class = class_of(self.form.units(self.len()));
        if class < self.class() {
            self.change_class(slab, class);
        }
    }

    /// Inserts `record` before entry `position` and returns true, if the bases can stay and the block has
    /// room in a page of `page` units.
    pub fn insert(&mut self, slab: &mut Slab, record: Record, position: usize, page: usize) -> bool {
        let (count, edges) = fitting(self.form, self.start, self.edges(), 1, &[record]);
        if count == 0 || record.time < self.start || edges.0 < self.base_edge || self.room(page) == 0 {
            return false;
        }
        self.reserve(slab, 1);
        self.reach = self.form.reach(edges.1 - edges.0);
        self.class |= MIXED;
        self.len += 1;
        let (entry, low) = self.pack(record);
        let (last, halves) = (self.len() - 1, self.form.halves());
        let (entries, lows) = self.parts_mut(slab);
        entries.copy_within(position..last, position + 1);
        entries[position] = entry;
        lows.copy_within(position * halves..last * halves, (position + 1) * halves);
        Lows::put(low, &mut lows[position * halves..(position + 1) * halves]);
        true
    }

    /// Records that an earlier block holds edge ids up to `edge`.
    pub fn reach_to(&mut self, edge: u64) {
        self.reach = self.reach.max(self.form.reach(edge.saturating_sub(self.base_edge)));
    }

    /// Gives the slot back; the block is gone.
    pub fn release(self, slab: &mut Slab) {
        slab.release(self.slot, self.class());
    }

    /// The slot, and how many of its units are used.
    pub fn span(&self) -> (u32, u32) {
        let units = match self.form {
            Form::Narrow => self.len(),
            _ => class_entries(self.class()),
        };
        (self.slot, units as u32)
    }

    /// Copies the entries to a slot of the same size in `to`, and returns that slot.
    pub fn copy<'a>(&self, from: impl EntrySource<'a>, to: &mut Slab) -> u32 {
        let slot = to.take(self.class());
        let units = self.span().1 as usize;
        to.get_mut(slot, units).copy_from_slice(from.get(self.slot, units));
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

    fn class(&self) -> usize {
        usize::from(self.class & !MIXED)
    }

    /// Bounds of edge ids: no id of this block is below the first, none of this block or an earlier block
    /// of the node above the second.
    #[inline]
    pub fn edges(&self) -> (u64, u64) {
        let highest = match self.reach {
            u32::MAX => u64::MAX,
            reach => self.base_edge.saturating_add(self.form.reached(reach)),
        };
        (self.base_edge, highest)
    }

    /// Number of entries before the first with edge id `bound` or above, if the entries are in order of
    /// edge ids.
    #[inline]
    pub fn rank_of_edge<'a>(&self, slab: impl EntrySource<'a>, bound: u64) -> Option<usize> {
        if self.class & MIXED != 0 {
            return None;
        }
        let Parts { entries, lows } = self.parts(slab);
        let limit = bound.saturating_sub(self.base_edge);
        Some(match self.form {
            Form::Narrow => entries.partition_point(|entry| u64::from(entry.edge) < limit),
            _ => partition(entries.len(), |i| self.unpack(entries[i], lows.get(i)).edge < bound),
        })
    }

    /// All entries.
    #[inline]
    pub fn parts<'a>(&self, slab: impl EntrySource<'a>) -> Parts<'a> {
        match self.form {
            Form::Narrow => Parts { entries: slab.get(self.slot, self.len()), lows: Lows::NONE },
            _ => self.wider_parts(slab),
        }
    }

    /// Few streams have blocks that are not narrow: kept out of the way of the others.
    #[cold]
    #[inline(never)]
    fn wider_parts<'a>(&self, slab: impl EntrySource<'a>) -> Parts<'a> {
        Parts::of(self.form, slab.get(self.slot, class_entries(self.class())), self.len())
    }

    /// The same to be changed: entries, and the halves of their low bits.
    pub fn parts_mut<'a>(&self, slab: &'a mut Slab) -> (&'a mut [Entry], &'a mut [u16]) {
        let (form, len) = (self.form, self.len());
        match form {
            Form::Narrow => (slab.get_mut(self.slot, len), &mut []),
            _ => Parts::of_mut(form, slab.get_mut(self.slot, class_entries(self.class())), len),
        }
    }

    /// Entry `position`, which the block has, and its low bits.
    #[inline]
    pub fn entry<'a>(&self, slab: impl EntrySource<'a>, position: usize) -> (&'a Entry, u32) {
        debug_assert!(position < self.len(), "entry {position} of {}", self.len);
        match self.form {
            Form::Narrow => (&slab.get(self.slot + position as u32, 1)[0], 0),
            _ => self.wider_entry(slab, position),
        }
    }

    #[cold]
    #[inline(never)]
    fn wider_entry<'a>(&self, slab: impl EntrySource<'a>, position: usize) -> (&'a Entry, u32) {
        self.wider_parts(slab).at(position)
    }

    /// Entry `position`, unpacked.
    #[inline]
    pub fn record<'a>(&self, slab: impl EntrySource<'a>, position: usize) -> Record {
        let (entry, low) = self.entry(slab, position);
        self.unpack(*entry, low)
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
        let Parts { entries, lows } = self.parts(slab);
        entries.iter().enumerate().map(move |(i, &entry)| self.unpack(entry, lows.get(i)))
    }

    /// The entries `range`.
    #[inline]
    pub fn run<'a>(&'a self, slab: impl EntrySource<'a>, range: Range<usize>) -> Run<'a> {
        let Parts { entries, lows } = self.parts(slab);
        Run::new(self, Parts { entries: &entries[range.clone()], lows: lows.range(range) })
    }

    /// `entry`, one of the block's, unpacked.
    #[inline]
    pub fn unpack(&self, entry: Entry, low: u32) -> Record {
        let (time, edge) = self.form.distances(entry, low);
        Record {
            time: self.start.wrapping_add(time.cast_signed()),
            edge: self.base_edge + edge,
            packed: entry.neighbor,
        }
    }

    /// The same for an entry of a narrow block.
    #[inline]
    pub fn unpack_narrow(&self, entry: Entry) -> Record {
        Record {
            time: self.start.wrapping_add(i64::from(entry.time)),
            edge: self.base_edge + u64::from(entry.edge),
            packed: entry.neighbor,
        }
    }

    fn pack(&self, record: Record) -> (Entry, u32) {
        let (time, edge) = (distance(record.time, self.start), record.edge - self.base_edge);
        self.form.pack(record.packed, time, edge)
    }

    /// Writes `records` behind the last entry; bases and capacity suit them. They are out of order if their edge ids
    /// are among themselves, or behind `last`.
    fn write(&mut self, slab: &mut Slab, records: &[Record], mut last: u64) {
        let block = *self;
        self.len += records.len() as u16;
        let (entries, lows) = self.parts_mut(slab);
        let halves = block.form.halves();
        let mut lows = lows.chunks_exact_mut(halves.max(1)).skip(block.len());
        for (new, record) in entries[block.len()..].iter_mut().zip(records) {
            let (entry, low) = block.pack(*record);
            *new = entry;
            if let Some(new) = lows.next() {
                Lows::put(low, new);
            }
            if record.edge < last {
                self.class |= MIXED;
            }
            last = record.edge;
        }
    }

    /// Makes room for `more` entries: the next class at least, so that single appends copy each entry a
    /// constant number of times.
    fn reserve(&mut self, slab: &mut Slab, more: usize) {
        let class = class_of(self.form.units(self.len() + more));
        if class > self.class() {
            self.change_class(slab, class);
        }
    }

    /// Moves the entries to a slot of `class`, which has room for them.
    fn change_class(&mut self, slab: &mut Slab, class: usize) {
        let slot = slab.take(class);
        slab.copy(self.slot, slot, self.len());
        let form = self.form;
        if form != Form::Narrow {
            let [from, to] = [self.class(), class].map(|class| form.capacity(class_entries(class)) as u32);
            slab.copy(self.slot + from, slot + to, form.units(self.len()) - self.len());
        }
        self.release(slab);
        self.slot = slot;
        self.class = class as u8 | self.class & MIXED;
    }
}
