//! Where the entries of a shard's blocks live: one arena of equally large chunks, cut into slots of
//! size classes, two classes to the doubling (1, 2, 3, 4, 6, 8, 12, 16, …) so that a block that grows
//! with its node wastes a quarter of its slot at most, a sixth on average.
//!
//! A slot is named by the 32-bit position of its first entry, so an arena holds 2^32 entries. The last
//! chunk is cut from its front; what a slot does not fit into becomes released slots. A released slot
//! waits in its class's free list. A chunk in which nothing lives any more is given back
//! ([`Slab::give_back`]); a shard whose other free slots are too many is compacted by its owner.
//!
//! A chunk is the unit that moves between memory and disk (see `chunk` and `spill`). Before writing to a slot, the
//! caller loads its chunk.
//!
//! Knows nothing of nodes, and of entries only their size.

use std::sync::Arc;

use super::chunk::Chunk;
use super::entry::Entry;
use super::scrub::Span;
use super::spill::Spill;

/// Entries of a chunk: 12 KiB, three pages of a disk; one per shard is partly unused.
pub(super) const CHUNK_ENTRIES: usize = 1024;

/// Entries by slot.
pub(super) trait EntrySource<'a>: Copy {
    /// The first `entries` entries of a slot.
    fn get(self, slot: u32, entries: usize) -> &'a [Entry];
}

/// The arena of one shard.
pub(super) struct Slab {
    pub(super) chunks: Vec<Chunk>,
    /// log2 of the entries of a chunk.
    shift: u32,
    /// Per class, the slots that were released and not taken again.
    free: Vec<Vec<u32>>,
    /// Entries that are in no slot in use, but for what is left of the last chunk.
    released: usize,
    /// Chunks that were given back; they hold nothing.
    vacant: Vec<u32>,
    /// What is left of the last chunk that was begun: position of the first entry, entries.
    rest: (u32, u32),
    pub(super) spill: Option<Arc<Spill>>,
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

/// Entries of a chunk of a slab whose slots hold at most `slot_max` entries.
pub(super) fn chunk_entries(slot_max: usize) -> usize {
    class_entries(class_of(slot_max)).next_power_of_two().max(CHUNK_ENTRIES)
}

impl Slab {
    /// An empty slab whose slots hold at most `slot_max` entries.
    pub fn new(slot_max: usize, spill: Option<Arc<Spill>>) -> Self {
        Self {
            chunks: Vec::new(),
            shift: chunk_entries(slot_max).ilog2(),
            free: vec![Vec::new(); class_of(slot_max) + 1],
            released: 0,
            vacant: Vec::new(),
            rest: (0, 0),
            spill,
        }
    }

    /// A slot of `class` with any content, in memory.
    ///
    /// # Panics
    /// When the arena is full: 2^32 entries, 48 GiB, in one shard. The store refuses batches before.
    pub fn take(&mut self, class: usize) -> u32 {
        // A released slot on disk is not worth reading: it is forgotten until its chunk is empty.
        while let Some(slot) = self.free[class].pop() {
            if self.is_resident(slot) {
                self.released -= class_entries(class);
                self.chunk_mut(slot).live += Self::size(class);
                return slot;
            }
        }
        if (self.rest.1 as usize) < class_entries(class) {
            self.begin_chunk();
        }
        self.cut(class)
    }

    /// Cuts a slot of `class` off the rest of the last chunk, which is large enough.
    fn cut(&mut self, class: usize) -> u32 {
        let size = Self::size(class);
        let slot = self.rest.0;
        self.rest = (slot + size, self.rest.1 - size);
        self.chunk_mut(slot).live += size;
        slot
    }

    #[allow(clippy::cast_possible_truncation, reason = "a slot is at most 2^15 entries")]
    fn size(class: usize) -> u32 {
        class_entries(class) as u32
    }

    fn begin_chunk(&mut self) {
        while self.rest.1 > 0 {
            let mut class = class_of(self.rest.1 as usize).min(self.free.len() - 1);
            if class_entries(class) > self.rest.1 as usize {
                class -= 1;
            }
            // Never used, so nothing of it has to be wiped.
            let slot = self.cut(class);
            self.put_back(slot, class);
        }
        let chunk = Chunk::new(1 << self.shift, self.spill.as_deref());
        let index = match self.vacant.pop() {
            Some(index) => {
                self.chunks[index as usize] = chunk;
                self.released -= 1 << self.shift;
                index as usize
            }
            None => {
                self.chunks.push(chunk);
                self.chunks.len() - 1
            }
        };
        let Ok(first) = u32::try_from(index << self.shift) else {
            panic!("a shard is full; give the graph more shards")
        };
        self.rest = (first, 1 << self.shift);
    }

    /// Gives back a slot of `class`.
    pub fn release(&mut self, slot: u32, class: usize) {
        self.chunk_mut(slot).stained = true;
        self.put_back(slot, class);
    }

    fn put_back(&mut self, slot: u32, class: usize) {
        self.free[class].push(slot);
        self.released += class_entries(class);
        self.chunk_mut(slot).live -= Self::size(class);
    }

    /// Frees the chunks without live entries, in memory and on disk, and returns how many.
    pub fn give_back(&mut self) -> usize {
        let cut = (self.rest.1 > 0).then(|| self.chunk_of(self.rest.0));
        let mut gone = Vec::new();
        for (index, chunk) in (0_u32..).zip(&mut self.chunks) {
            if chunk.live == 0 && cut != Some(index as usize) && !chunk.is_vacant() {
                chunk.vacate(self.spill.as_deref());
                gone.push(index);
            }
        }
        if !gone.is_empty() {
            for slots in &mut self.free {
                slots.retain(|slot| gone.binary_search(&(slot >> self.shift)).is_err());
            }
            self.vacant.extend(&gone);
        }
        gone.len()
    }

    /// Overwrites what of `chunks`, which are in memory, is in none of the `used` ranges, ascending.
    pub fn wipe(&mut self, chunks: &[usize], used: &[Span]) {
        for &index in chunks {
            let first = index << self.shift;
            let begin = used.partition_point(|span| (span.0 as usize) < first);
            let chunk = &mut self.chunks[index];
            let (entries, mut from) = (chunk.entries_mut(), 0);
            for &(slot, units) in
                used[begin..].iter().take_while(|span| span.0 as usize >> self.shift == index)
            {
                let at = slot as usize - first;
                entries[from..at].fill(Entry::default());
                from = at + units as usize;
            }
            entries[from..].fill(Entry::default());
            chunk.stained = false;
            if let (Some(place), Some(spill)) = (chunk.unstore(), &self.spill) {
                spill.free(place);
            }
        }
    }

    /// Units that can still be taken before the arena has `most`.
    pub fn room(&self, most: u64) -> u64 {
        let begun = ((self.chunks.len() - self.vacant.len()) as u64) << self.shift;
        most.saturating_sub(begun) + u64::from(self.rest.1)
    }

    /// The first `entries` entries of a slot, to write.
    #[inline]
    pub fn get_mut(&mut self, slot: u32, entries: usize) -> &mut [Entry] {
        let offset = slot as usize & ((1 << self.shift) - 1);
        &mut self.chunks[(slot >> self.shift) as usize].entries_mut()[offset..offset + entries]
    }

    /// Whether a chunk is in memory.
    pub fn holds(&self, chunk: usize) -> bool {
        self.chunks[chunk].is_resident()
    }

    /// Copies the first `entries` entries of slot `from` to slot `to`.
    pub fn copy(&mut self, from: u32, to: u32, entries: usize) {
        let mask = (1 << self.shift) - 1;
        let (source, target) = (from as usize & mask, to as usize & mask);
        let chunks = [self.chunk_of(from), self.chunk_of(to)];
        match self.chunks.get_disjoint_mut(chunks) {
            Ok([a, b]) => {
                b.entries_mut()[target..target + entries]
                    .copy_from_slice(&a.resident()[source..source + entries]);
            }
            Err(_) => self.chunks[chunks[0]].entries_mut().copy_within(source..source + entries, target),
        }
    }

    /// Entries that no slot in use holds, and entries of all chunks that were not given back.
    pub fn released_and_total(&self) -> (usize, usize) {
        let vacant = self.vacant.len() << self.shift;
        (self.released - vacant, (self.chunks.len() << self.shift) - vacant)
    }

    /// Bytes of the chunks in memory, of those on disk only, and of the tables about them.
    pub fn bytes(&self) -> (u64, u64, u64) {
        let chunk_bytes = (size_of::<Entry>() << self.shift) as u64;
        let held = self.chunks.len() - self.vacant.len();
        let resident = match self.spill {
            None => held,
            Some(_) => self.chunks.iter().filter(|chunk| chunk.is_resident()).count(),
        };
        let (resident, away) = (resident as u64, (held - resident) as u64);
        (resident * chunk_bytes, away * chunk_bytes, self.table_bytes() as u64)
    }

    /// Bytes of the tables about chunks and slots.
    pub fn table_bytes(&self) -> usize {
        let free: usize = self.free.iter().map(|slots| slots.capacity() * size_of::<u32>()).sum();
        self.chunks.capacity() * size_of::<Chunk>()
            + self.free.capacity() * size_of::<Vec<u32>>()
            + self.vacant.capacity() * size_of::<u32>()
            + free
    }

    /// The chunk that holds a slot.
    #[inline]
    pub fn chunk_of(&self, slot: u32) -> usize {
        (slot >> self.shift) as usize
    }

    /// Whether the chunk is still being cut: it is written to soon.
    pub fn is_last(&self, chunk: usize) -> bool {
        self.rest.1 > 0 && self.chunk_of(self.rest.0) == chunk
    }

    /// Whether a slot's chunk is in memory.
    #[inline]
    pub fn is_resident(&self, slot: u32) -> bool {
        self.chunks[self.chunk_of(slot)].is_resident()
    }

    /// The entries of a slot if its chunk is in memory.
    #[inline]
    pub fn try_get(&self, slot: u32, entries: usize) -> Option<&[Entry]> {
        let offset = slot as usize & ((1 << self.shift) - 1);
        let chunk = self.chunks[(slot >> self.shift) as usize].try_resident()?;
        Some(&chunk[offset..offset + entries])
    }

    fn chunk_mut(&mut self, slot: u32) -> &mut Chunk {
        &mut self.chunks[(slot >> self.shift) as usize]
    }
}

impl<'a> EntrySource<'a> for &'a Slab {
    #[inline]
    fn get(self, slot: u32, entries: usize) -> &'a [Entry] {
        let offset = slot as usize & ((1 << self.shift) - 1);
        &self.chunks[(slot >> self.shift) as usize].resident()[offset..offset + entries]
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Some(spill) = self.spill.take() {
            self.chunks.iter_mut().for_each(|chunk| chunk.vacate(Some(&spill)));
        }
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
        let mut slab = Slab::new(256, None);
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

    #[test]
    fn chunks_without_life_are_given_back_and_begun_again() {
        let mut slab = Slab::new(256, None);
        let class = class_of(256);
        let slots: Vec<u32> = (0..40).map(|_| slab.take(class)).collect();
        let (_, total) = slab.released_and_total();
        // All of the first chunks, and one slot of each of the others.
        slots[..20].iter().chain(slots[20..].iter().step_by(4)).for_each(|&slot| slab.release(slot, class));
        assert_eq!(slab.give_back(), 5);
        let (released, left) = slab.released_and_total();
        assert_eq!((released, left), (5 * 256, total - 5 * CHUNK_ENTRIES));
        assert_eq!(slab.bytes().0, (left * size_of::<Entry>()) as u64);
        assert_eq!(slab.give_back(), 0);
        let mut again: Vec<u32> = (0..25).map(|_| slab.take(class)).collect();
        assert_eq!(slab.released_and_total(), (0, total));
        again.sort_unstable();
        again.dedup();
        assert_eq!(again.len(), 25, "no slot is given twice");
        let lived: Vec<u32> =
            slots[20..].iter().copied().enumerate().filter(|(i, _)| i % 4 != 0).map(|(_, s)| s).collect();
        assert!(again.iter().all(|slot| !lived.contains(slot)));
    }
}
