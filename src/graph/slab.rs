//! Where the entries of a shard's blocks live: one arena of equally large chunks, cut into slots of
//! size classes, two classes to the doubling (1, 2, 3, 4, 6, 8, 12, 16, …) so that a block that grows
//! with its node wastes a quarter of its slot at most, a sixth on average.
//!
//! A slot is named by the 32-bit position of its first entry, so an arena holds 2^32 entries. Each
//! chunk is cut into slots of one class; a released slot waits in its class's free list. Chunks are
//! never given back: a shard whose free lists hold too much is compacted by its owner into a new slab.
//!
//! Knows nothing of nodes, and of entries only their size.

use super::block::Entry;

/// Entries of a chunk: 12 KiB.
const CHUNK_ENTRIES: usize = 1024;

/// The arena of one shard.
pub(super) struct Slab {
    chunks: Vec<Box<[Entry]>>,
    /// log2 of the entries of a chunk.
    shift: u32,
    classes: Vec<Class>,
    /// Entries in slots that were released and not taken again.
    released: usize,
}

/// The slots of one size.
#[derive(Default)]
struct Class {
    free: Vec<u32>,
    /// What is left of the chunk that is being cut up: first entry, entries.
    rest: (u32, u32),
}

/// The smallest class whose slots hold `entries`.
const fn class_of(entries: usize) -> usize {
    if entries <= 2 {
        return entries.saturating_sub(1);
    }
    let octave = (entries - 1).ilog2() as usize;
    if entries <= 3 << (octave - 1) { 2 * octave } else { 2 * octave + 1 }
}

/// Entries of a slot that holds `entries`.
pub(super) const fn slot_entries(entries: usize) -> usize {
    let class = class_of(entries);
    match class {
        0 | 1 => class + 1,
        _ if class.is_multiple_of(2) => 3 << (class / 2 - 1),
        _ => 2 << (class / 2),
    }
}

impl Slab {
    /// An empty slab whose slots hold at most `slot_max` entries.
    pub fn new(slot_max: usize) -> Self {
        let chunk = slot_entries(slot_max).next_power_of_two().max(CHUNK_ENTRIES);
        let classes = (0..=class_of(slot_max)).map(|_| Class::default()).collect();
        Self { chunks: Vec::new(), shift: chunk.ilog2(), classes, released: 0 }
    }

    /// A slot for at least `entries` entries (its true size is [`slot_entries`]), with any content.
    ///
    /// # Panics
    /// When the arena is full: 2^32 entries, 48 GiB, in one shard.
    pub fn take(&mut self, entries: usize) -> u32 {
        let size = slot_entries(entries);
        let class = &mut self.classes[class_of(entries)];
        if let Some(slot) = class.free.pop() {
            self.released -= size;
            return slot;
        }
        #[allow(clippy::cast_possible_truncation, reason = "a slot is at most 2^16 entries")]
        let size = size as u32;
        if class.rest.1 < size {
            let first = u32::try_from(self.chunks.len() << self.shift);
            let Ok(first) = first else { panic!("a shard is full; give the graph more shards") };
            self.chunks.push(vec![Entry::default(); 1 << self.shift].into_boxed_slice());
            class.rest = (first, 1 << self.shift);
        }
        let slot = class.rest.0;
        class.rest = (slot + size, class.rest.1 - size);
        slot
    }

    /// Gives back a slot taken for `entries` entries.
    pub fn release(&mut self, slot: u32, entries: usize) {
        self.classes[class_of(entries)].free.push(slot);
        self.released += slot_entries(entries);
    }

    /// The first `entries` entries of a slot.
    #[inline]
    pub fn get(&self, slot: u32, entries: usize) -> &[Entry] {
        let offset = slot as usize & ((1 << self.shift) - 1);
        &self.chunks[(slot >> self.shift) as usize][offset..offset + entries]
    }

    /// The first `entries` entries of a slot, to write.
    #[inline]
    pub fn get_mut(&mut self, slot: u32, entries: usize) -> &mut [Entry] {
        let offset = slot as usize & ((1 << self.shift) - 1);
        &mut self.chunks[(slot >> self.shift) as usize][offset..offset + entries]
    }

    /// Copies the first `entries` entries of slot `from` to slot `to`.
    pub fn copy(&mut self, from: u32, to: u32, entries: usize) {
        let mask = (1 << self.shift) - 1;
        let (source, target) = (from as usize & mask, to as usize & mask);
        let chunks = [(from >> self.shift) as usize, (to >> self.shift) as usize];
        match self.chunks.get_disjoint_mut(chunks) {
            Ok([a, b]) => b[target..target + entries].copy_from_slice(&a[source..source + entries]),
            Err(_) => self.chunks[chunks[0]].copy_within(source..source + entries, target),
        }
    }

    /// Entries in released slots, and entries of all chunks.
    pub fn released_and_total(&self) -> (usize, usize) {
        (self.released, self.chunks.len() << self.shift)
    }

    /// Bytes of the chunks, and of the tables about them.
    pub fn bytes(&self) -> (u64, u64) {
        let free: usize = self.classes.iter().map(|class| class.free.capacity() * size_of::<u32>()).sum();
        let tables = self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.classes.capacity() * size_of::<Class>()
            + free;
        (((self.chunks.len() << self.shift) * size_of::<Entry>()) as u64, tables as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_large_enough_and_wastes_a_third_at_most() {
        for entries in 1..=40_000 {
            let size = slot_entries(entries);
            assert!(size >= entries && size <= entries + entries / 2, "{entries} entries in {size}");
            assert_eq!(slot_entries(size), size);
            assert!(class_of(entries) <= class_of(entries + 1));
        }
    }

    #[test]
    fn slots_do_not_overlap_and_are_reused() {
        let mut slab = Slab::new(256);
        let mut taken: Vec<(u32, usize)> = Vec::new();
        for round in 0..3_000_usize {
            if round % 3 == 2 {
                let (slot, entries) = taken.swap_remove(round * 7 % taken.len());
                slab.release(slot, entries);
            }
            let entries = round * 31 % 256 + 1;
            let slot = slab.take(entries);
            taken.push((slot, slot_entries(entries)));
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 as usize + pair[0].1 <= pair[1].0 as usize, "{pair:?} overlap");
        }
        let live: usize = taken.iter().map(|slot| slot.1).sum();
        let (released, total) = slab.released_and_total();
        assert!(live + released <= total && live + released + 20 * CHUNK_ENTRIES > total);
    }
}
