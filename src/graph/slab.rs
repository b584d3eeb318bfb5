//! Where the entries of a shard's blocks live: one arena of equally large chunks, cut into slots of
//! size classes, two classes to the doubling (1, 2, 3, 4, 6, 8, 12, 16, …) so that a block that grows
//! with its node wastes a quarter of its slot at most, a sixth on average.
//!
//! A slot is named by the 32-bit position of its first entry, so an arena holds 2^32 entries. The last
//! chunk is cut from its front; what a slot does not fit into becomes released slots. A released slot
//! waits in its class's free list. Chunks are never given back: a shard whose free lists hold too much
//! is compacted by its owner into a new slab.
//!
//! Knows nothing of nodes, and of entries only their size.

use super::block::Entry;

/// Entries of a chunk: 12 KiB; one per shard is partly unused.
const CHUNK_ENTRIES: usize = 1024;

/// The arena of one shard.
pub(super) struct Slab {
    chunks: Vec<Box<[Entry]>>,
    /// log2 of the entries of a chunk.
    shift: u32,
    /// Per class, the slots that were released and not taken again.
    free: Vec<Vec<u32>>,
    /// Entries in them.
    released: usize,
    /// What is left of the last chunk: position of the first entry, entries.
    rest: (u32, u32),
}

/// The smallest class whose slots hold `entries`.
pub(super) const fn class_of(entries: usize) -> usize {
    if entries <= 2 {
        return entries.saturating_sub(1);
    }
    let octave = (entries - 1).ilog2() as usize;
    if entries <= 3 << (octave - 1) { 2 * octave } else { 2 * octave + 1 }
}

/// Entries of a slot of `class`.
pub(super) const fn class_entries(class: usize) -> usize {
    match class {
        0 | 1 => class + 1,
        _ if class.is_multiple_of(2) => 3 << (class / 2 - 1),
        _ => 2 << (class / 2),
    }
}

impl Slab {
    /// An empty slab whose slots hold at most `slot_max` entries.
    pub fn new(slot_max: usize) -> Self {
        let chunk = class_entries(class_of(slot_max)).next_power_of_two().max(CHUNK_ENTRIES);
        let free = vec![Vec::new(); class_of(slot_max) + 1];
        Self { chunks: Vec::new(), shift: chunk.ilog2(), free, released: 0, rest: (0, 0) }
    }

    /// A slot of `class` with any content.
    ///
    /// # Panics
    /// When the arena is full: 2^32 entries, 48 GiB, in one shard.
    pub fn take(&mut self, class: usize) -> u32 {
        if let Some(slot) = self.free[class].pop() {
            self.released -= class_entries(class);
            return slot;
        }
        if (self.rest.1 as usize) < class_entries(class) {
            self.begin_chunk();
        }
        self.cut(class)
    }

    /// Cuts a slot of `class` off the rest of the last chunk, which is large enough.
    fn cut(&mut self, class: usize) -> u32 {
        #[allow(clippy::cast_possible_truncation, reason = "a slot is at most 2^15 entries")]
        let size = class_entries(class) as u32;
        let slot = self.rest.0;
        self.rest = (slot + size, self.rest.1 - size);
        slot
    }

    fn begin_chunk(&mut self) {
        while self.rest.1 > 0 {
            let mut class = class_of(self.rest.1 as usize).min(self.free.len() - 1);
            if class_entries(class) > self.rest.1 as usize {
                class -= 1;
            }
            let slot = self.cut(class);
            self.release(slot, class);
        }
        let Ok(first) = u32::try_from(self.chunks.len() << self.shift) else {
            panic!("a shard is full; give the graph more shards")
        };
        self.chunks.push(vec![Entry::default(); 1 << self.shift].into_boxed_slice());
        self.rest = (first, 1 << self.shift);
    }

    /// Gives back a slot of `class`.
    pub fn release(&mut self, slot: u32, class: usize) {
        self.free[class].push(slot);
        self.released += class_entries(class);
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
        let free: usize = self.free.iter().map(|slots| slots.capacity() * size_of::<u32>()).sum();
        let tables = self.chunks.capacity() * size_of::<Box<[Entry]>>()
            + self.free.capacity() * size_of::<Vec<u32>>()
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
            let size = class_entries(class_of(entries));
            assert!(size >= entries && size <= entries + entries / 2, "{entries} entries in {size}");
            assert_eq!(class_of(size), class_of(entries));
            assert!(class_of(entries) <= class_of(entries + 1));
        }
    }

    #[test]
    fn slots_do_not_overlap_and_are_reused() {
        let mut slab = Slab::new(256);
        let mut taken: Vec<(u32, usize)> = Vec::new();
        for round in 0..3_000_usize {
            if round % 3 == 2 {
                let (slot, class) = taken.swap_remove(round * 7 % taken.len());
                slab.release(slot, class);
            }
            let class = class_of(round * 31 % 256 + 1);
            taken.push((slab.take(class), class));
        }
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].0 as usize + class_entries(pair[0].1) <= pair[1].0 as usize, "{pair:?} overlap");
        }
        let live: usize = taken.iter().map(|slot| class_entries(slot.1)).sum();
        let (released, total) = slab.released_and_total();
        assert!(live + released <= total && live + released + CHUNK_ENTRIES > total);
    }
}
