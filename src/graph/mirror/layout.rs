//! What a GPU holds of the graph, byte by byte, as `kernels/graph.cuh` reads it; and what an upload brings.

pub(super) use crate::device::cuda::twins::{Block as MirrorBlock, NodeBlocks, PlacedEntry, PlacedNode};
use crate::graph::entry::{FEW, Form, Record, distance, fitting};

/// The most units of a block.
pub(super) const BLOCK_UNITS_MAX: usize = 1 << 14;
const ORDERED: u16 = 1 << 15;
const WIDE: u16 = 1 << 14;

/// Units of 12 bytes that a block of `form` has for each entry: the low bits of a wide one have their own, so that an
/// upload that adds entries to a block never writes to a unit that others need.
fn units_per_entry(form: Form) -> usize {
    if form == Form::Narrow { 1 } else { 2 }
}

/// Entries of `form` that fit into `units`.
pub(super) fn entries_in(units: usize, form: Form) -> usize {
    units / units_per_entry(form)
}

#[allow(clippy::cast_possible_truncation, reason = "distances and counts are checked by `fitting`")]
impl MirrorBlock {
    /// A block for the first records of `records` (ascending, not empty), in `units` at most, and how many; it has no
    /// place yet. `earlier` is the block before it in the list; no edge id exceeds `newest`. It is wide if `is_far`, or
    /// where distance would end a narrow one soon.
    pub(super) fn begin(
        records: &[Record],
        units: usize,
        (earlier, newest): (Option<&Self>, u64),
        is_far: bool,
    ) -> (Self, usize) {
        let first = records[0];
        let fit =
            |form| fitting(form, first.time, (first.edge, first.edge), entries_in(units, form), records);
        let mut form = Form::Narrow;
        let (mut count, mut edges) = fit(form);
        let wide = fit(Form::Wide);
        if wide.0 > count && count < FEW || is_far && wide.0 > 0 {
            (form, (count, edges)) = (Form::Wide, wide);
        }
        let highest = earlier.map_or(0, |block| block.highest().min(newest)).max(edges.1);
        let is_ordered = records[..count].is_sorted_by_key(|record| record.edge);
        let block = Self {
            start: first.time,
            base_edge: edges.0,
            page: 0,
            before: earlier.map_or(0, |block| block.before + block.len() as u32),
            reach: form.reach(highest - edges.0),
            place: 0,
            form: (count - 1) as u16
                | if is_ordered { ORDERED } else { 0 }
                | if form == Form::Wide { WIDE } else { 0 },
        };
        (block, count)
    }

    /// Appends as many of `records` (ascending, none before the last entry, younger than all entries) as fit into
    /// `units`, and returns how many.
    pub(super) fn extend(&mut self, records: &[Record], units: usize) -> usize {
        let (form, from) = (self.form(), self.len());
        let room = entries_in(units, form).saturating_sub(from);
        let (count, edges) = fitting(form, self.start, (self.base_edge, self.highest()), room, records);
        if count > 0 {
            let is_ordered =
                self.form & ORDERED != 0 && records[..count].is_sorted_by_key(|record| record.edge);
            self.reach = form.reach(edges.1 - self.base_edge);
            self.form = (from + count - 1) as u16 | if is_ordered { ORDERED } else { 0 } | self.form & WIDE;
        }
        count
    }

    /// Whether its entries, the last at `latest`, would not fit a narrow block.
    pub(super) fn needs_width(&self, latest: i64) -> bool {
        let widest = distance(latest, self.start).max(self.form().reached(self.reach));
        self.form() == Form::Wide && widest > u64::from(u32::MAX)
    }

    /// Records that the entries begin at `slot` of pages of 2^`page_log2` units.
    pub(super) fn move_to(&mut self, slot: u32, page_log2: u32) {
        self.page = slot >> page_log2;
        self.place = (slot & ((1 << page_log2) - 1)) as u16;
    }

    /// Where the entries begin.
    pub(super) fn slot(&self, page_log2: u32) -> u32 {
        self.page << page_log2 | u32::from(self.place)
    }

    /// `record`, one of the block's, as entry `position`: its units.
    pub(super) fn pack(
        &self,
        record: Record,
        position: usize,
        page_log2: u32,
    ) -> impl Iterator<Item = PlacedEntry> {
        let form = self.form();
        let (time, edge) = (distance(record.time, self.start), record.edge - self.base_edge);
        let (high, low) = form.pack(record.packed, time, edge);
        let slot = self.slot(page_log2) + (position * units_per_entry(form)) as u32;
        let high = PlacedEntry { neighbor: high.neighbor, time: high.time, edge: high.edge, slot };
        let low = PlacedEntry { neighbor: low, time: 0, edge: 0, slot: slot + 1 };
        std::iter::once(high).chain((form == Form::Wide).then_some(low))
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        usize::from(self.form & !(ORDERED | WIDE)) + 1
    }

    /// Units of the entries.
    pub(super) fn units(&self) -> usize {
        self.len() * units_per_entry(self.form())
    }

    /// How it stores entries.
    pub(super) fn form(&self) -> Form {
        if self.form & WIDE == 0 { Form::Narrow } else { Form::Wide }
    }

    /// No edge id of this or an earlier block of the node is above it.
    fn highest(&self) -> u64 {
        match self.reach {
            u32::MAX => u64::MAX,
            reach => self.base_edge.saturating_add(self.form().reached(reach)),
        }
    }
}
