//! [`UnitCache`]: the units in memory, in slots of few large allocations, found through a table of slot numbers.
//!
//! A slot is taken by a clock hand (CLOCK): it passes over slots that are pinned or not yet on disk, cools warm ones,
//! and takes a cold one. What was set is warmest, what was found is warm, what was read and never found again is cold.
//! A slot may hold only some rows of its unit, where the others are on disk, as its mask says. Such a slot always waits
//! to be written, which makes it whole.
//!
//! Everything here happens under the cache's one lock, and nothing waits for a disk. The writer's operations on whole
//! blocks are in `blocks.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use hashbrown::HashTable;

use super::shape::{Plan, Shape};
use super::sums::Sums;
use crate::device::prefetch;

/// How far the hand goes for a unit that was read, which need not be cached.
const STEPS_TO_KEEP: usize = 1024;
/// How far it goes for a row that was set, in one go.
const STEPS_TO_SET: usize = 4096;
/// Values of a line of the CPU's caches.
const LINE_VALUES: usize = 16;
/// No unit.
const EMPTY: u64 = u64::MAX;
/// Warmth of a unit that was set, and of one that was found.
const SET: u8 = 2;
const FOUND: u8 = 1;

/// Bytes that a slot costs beside its unit: itself and its mask, its places in the table, in the queue of the
/// writer and in a list of pins.
pub(super) fn bytes_beside_a_unit(shape: Shape) -> usize {
    let mask = if shape.rows_per_unit > 1 { size_of::<u128>() } else { 0 };
    size_of::<Slot>() + mask + 12 + size_of::<u64>() + size_of::<u32>()
}

/// State of the unit in a slot.
pub(super) struct Slot {
    pub(super) unit: u64,
    /// By how many announcements it is held.
    pub(super) pins: AtomicU32,
    heat: AtomicU8,
    /// It holds what the disk does not.
    pub(super) dirty: bool,
    /// Its block is being written.
    pub(super) writing: bool,
}

pub(super) struct Segment {
    pub(super) slots: Box<[Slot]>,
    rows: Box<[f32]>,
    /// Which rows of each unit are here; empty where units are single rows.
    masks: Box<[u128]>,
}

/// The units in memory.
pub(super) struct UnitCache {
    pub shape: Shape,
    pub plan: Plan,
    pub sums: Sums,
    /// Blocks before this one were released: they are neither written nor read from disk.
    pub(super) first: u64,
    pub(super) segments: Vec<Segment>,
    /// How many segments the budget allows.
    pub(super) allowed: usize,
    table: HashTable<u32>,
    /// How many slots were ever taken.
    fresh: usize,
    hand: usize,
    /// Empty slots beyond the budget.
    pub(super) spare: Vec<u32>,
    /// How many slots are dirty.
    pub(super) dirty: usize,
    /// Blocks with a dirty unit, the longest waiting first; some may have none any more.
    pub(super) queue: VecDeque<u64>,
}

/// The result of setting a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patched {
    /// It is in memory; the writer has enough to do if `true`.
    Done(bool),
    /// The hand has to go further.
    NotYet,
    /// Too much waits to be written.
    NoRoom,
}

fn hash(unit: u64) -> u64 {
    let mixed = unit.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 32)
}

impl UnitCache {
    pub fn new(shape: Shape, plan: Plan) -> Self {
        let allowed = plan.segments(shape, 0);
        Self {
            shape,
            plan,
            sums: Sums::default(),
            first: 0,
            segments: Vec::new(),
            allowed,
            table: HashTable::new(),
            fresh: 0,
            hand: 0,
            spare: Vec::new(),
            dirty: 0,
            queue: VecDeque::new(),
        }
    }

    /// Slots that the budget allows.
    pub fn capacity(&self) -> usize {
        self.allowed * self.plan.segment_slots
    }

    /// The slot of `unit`.
    pub fn find(&self, unit: u64) -> Option<u32> {
        self.table.find(hash(unit), |slot| self.slot(*slot).unit == unit).copied()
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let (slot, slots) = (slot as usize, self.plan.segment_slots);
        (slot / slots, slot % slots)
    }

    pub fn slot(&self, slot: u32) -> &Slot {
        let (segment, at) = self.place(slot);
        &self.segments[segment].slots[at]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        let (segment, at) = self.place(slot);
        &mut self.segments[segment].slots[at]
    }

    /// The values of the unit in `slot`; only the rows of its mask are right.
    pub fn values(&self, slot: u32) -> &[f32] {
        let (segment, at) = self.place(slot);
        let values = self.shape.unit_values();
        &self.segments[segment].rows[at * values..][..values]
    }

    fn values_mut(&mut self, slot: u32) -> &mut [f32] {
        let (segment, at) = self.place(slot);
        let values = self.shape.unit_values();
        &mut self.segments[segment].rows[at * values..][..values]
    }

    /// Which rows of its unit `slot` holds.
    pub fn mask(&self, slot: u32) -> u128 {
        let (segment, at) = self.place(slot);
        self.segments[segment].masks.get(at).copied().unwrap_or(1)
    }

    fn set_mask(&mut self, slot: u32, mask: u128) {
        let (segment, at) = self.place(slot);
        if let Some(place) = self.segments[segment].masks.get_mut(at) {
            *place = mask;
        }
    }

    /// Whether `slot` holds all rows of its unit.
    pub fn is_whole(&self, slot: u32) -> bool {
        self.mask(slot) == self.shape.all_rows()
    }

    /// Prefetches the first of `rows` of the unit in `slot`.
    pub fn prefetch(&self, slot: u32, rows: u128) {
        let begin = rows.trailing_zeros() as usize * self.shape.dimension;
        let row = &self.values(slot)[begin..];
        // The CPU prefetches the rest of a long row by itself.
        row.iter()
            .step_by(LINE_VALUES)
            .take(self.shape.dimension.div_ceil(LINE_VALUES).min(4))
            .for_each(prefetch);
    }

    /// Marks the unit in `slot` as used. Returns whether it is pinned.
    pub fn touch(&self, slot: u32) -> bool {
        let slot = self.slot(slot);
        if slot.heat.load(Ordering::Relaxed) < FOUND {
            slot.heat.store(FOUND, Ordering::Relaxed);
        }
        slot.pins.load(Ordering::Relaxed) > 0
    }

    /// How many steps the hand takes until it has visited all slots, however warm, without success.
    pub fn tries(&self) -> usize {
        self.capacity() * (usize::from(SET) + 1) / STEPS_TO_SET + 1
    }

    /// Sets row `row` of `unit`. With `beyond` it exceeds the budget rather than find no room.
    pub fn patch(&mut self, unit: u64, row: usize, values: &[f32], beyond: bool) -> Patched {
        let slot = match self.find(unit) {
            Some(slot) => slot,
            None if self.dirty >= self.capacity() / 2 && !beyond => return Patched::NoRoom,
            None => {
                // While writes fail there is little to be found.
                let steps = if beyond { STEPS_TO_SET / 64 } else { STEPS_TO_SET };
                let Some(slot) = self.take(steps, beyond) else { return Patched::NotYet };
                let on_disk = self.sums.get(self.shape.block_of(unit)).is_some();
                let others = if on_disk { 0 } else { self.shape.all_rows() };
                self.values_mut(slot).fill(0.0);
                self.set_mask(slot, others);
                self.put(slot, unit);
                slot
            }
        };
        let dimension = self.shape.dimension;
        self.values_mut(slot)[row * dimension..][..dimension].copy_from_slice(values);
        self.set_mask(slot, self.mask(slot) | 1 << row);
        *self.slot_mut(slot).heat.get_mut() = SET;
        self.mark_dirty(slot);
        Patched::Done(self.is_behind())
    }

    /// Adds a unit as it is on disk, if there is room; rows that were set meanwhile stay. Returns its slot.
    pub fn admit(&mut self, unit: u64, values: &[f32]) -> Option<u32> {
        let slot = match self.find(unit) {
            Some(slot) => slot,
            None => {
                let slot = self.take(STEPS_TO_KEEP, false)?;
                self.set_mask(slot, 0);
                self.put(slot, unit);
                self.slot_mut(slot).heat = AtomicU8::new(0);
                self.values_mut(slot).copy_from_slice(values);
                self.set_mask(slot, self.shape.all_rows());
                return Some(slot);
            }
        };
        self.complete(slot, values);
        Some(slot)
    }

    /// Fills the rows that `slot` does not hold from its unit's `values`.
    pub(super) fn complete(&mut self, slot: u32, values: &[f32]) {
        let (mask, dimension) = (self.mask(slot), self.shape.dimension);
        let missing = (0..self.shape.rows_per_unit as usize).filter(|row| mask & (1 << row) == 0);
        for row in missing {
            let row = row * dimension..(row + 1) * dimension;
            self.values_mut(slot)[row.clone()].copy_from_slice(&values[row]);
        }
        self.set_mask(slot, self.shape.all_rows());
    }

    /// Adds a whole unit that the disk has lost, beyond the budget if necessary.
    pub(super) fn rescue(&mut self, unit: u64, values: &[f32]) {
        let Some(slot) = self.take(STEPS_TO_KEEP, true) else { return };
        self.values_mut(slot).copy_from_slice(values);
        self.set_mask(slot, self.shape.all_rows());
        self.put(slot, unit);
        self.mark_dirty(slot);
    }

    pub(super) fn mark_dirty(&mut self, slot: u32) {
        let slot = self.slot_mut(slot);
        let (unit, was) = (slot.unit, slot.dirty);
        slot.dirty = true;
        if !was {
            self.dirty += 1;
            self.queue_block(self.shape.block_of(unit));
        }
    }

    pub(super) fn queue_block(&mut self, block: u64) {
        if self.queue.back() != Some(&block) {
            self.queue.push_back(block);
        }
    }

    /// Whether enough waits to be written for large writes.
    pub fn is_behind(&self) -> bool {
        self.dirty >= self.capacity() / 4
    }

    fn put(&mut self, slot: u32, unit: u64) {
        *self.slot_mut(slot) = Slot::of(unit);
        let (segments, slots) = (&self.segments, self.plan.segment_slots);
        let unit_in = |slot: &u32| segments[*slot as usize / slots].slots[*slot as usize % slots].unit;
        self.table.insert_unique(hash(unit), slot, |slot| hash(unit_in(slot)));
    }

    /// An empty slot; the hand goes `steps` at most.
    fn take(&mut self, steps: usize, beyond: bool) -> Option<u32> {
        if self.fresh == self.segments.len() * self.plan.segment_slots && self.segments.len() < self.allowed {
            self.add_segment();
        }
        let regular = self.segments.len().min(self.allowed) * self.plan.segment_slots;
        if self.fresh < regular {
            self.fresh += 1;
            return u32::try_from(self.fresh - 1).ok();
        }
        for _ in 0..steps {
            self.hand = if self.hand + 1 < regular { self.hand + 1 } else { 0 };
            let slot = u32::try_from(self.hand).ok()?;
            if self.cool(slot) {
                self.evict(slot);
                return Some(slot);
            }
        }
        if beyond && self.spare.is_empty() {
            let begin = self.segments.len() * self.plan.segment_slots;
            self.add_segment();
            let end = self.segments.len() * self.plan.segment_slots;
            self.spare.extend((begin..end).rev().filter_map(|slot| u32::try_from(slot).ok()));
        }
        if beyond { self.spare.pop() } else { None }
    }

    /// Whether `slot` can be emptied; if only warmth keeps it, it has less afterwards.
    fn cool(&mut self, slot: u32) -> bool {
        let slot = self.slot_mut(slot);
        if !slot.is_free_to_go() {
            return false;
        }
        let heat = slot.heat.get_mut();
        let cold = *heat == 0;
        *heat = heat.saturating_sub(1);
        cold
    }

    pub(super) fn evict(&mut self, slot: u32) {
        let unit = self.slot(slot).unit;
        if let Ok(entry) = self.table.find_entry(hash(unit), |other| *other == slot) {
            entry.remove();
        }
        *self.slot_mut(slot) = Slot::of(EMPTY);
    }

    fn add_segment(&mut self) {
        let (slots, values) = (self.plan.segment_slots, self.shape.unit_values());
        let masks = if self.shape.rows_per_unit > 1 { slots } else { 0 };
        self.segments.push(Segment {
            slots: (0..slots).map(|_| Slot::of(EMPTY)).collect(),
            rows: vec![0.0; slots * values].into(),
            masks: vec![0; masks].into(),
        });
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let slots = self.segments.len() * self.plan.segment_slots;
        let masks = if self.shape.rows_per_unit > 1 { slots * size_of::<u128>() } else { 0 };
        let lists = self.queue.capacity() * size_of::<u64>() + self.spare.capacity() * size_of::<u32>();
        let units = slots * (self.shape.unit_bytes() + size_of::<Slot>()) + masks;
        (units + lists + self.table.allocation_size()) as u64 + self.sums.bytes()
    }
}

impl Slot {
    fn of(unit: u64) -> Self {
        Self { unit, pins: AtomicU32::new(0), heat: AtomicU8::new(0), dirty: false, writing: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unit == EMPTY
    }

    pub(super) fn is_free_to_go(&mut self) -> bool {
        !self.dirty && !self.writing && *self.pins.get_mut() == 0
    }
}
