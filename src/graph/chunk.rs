//! A chunk of entries: in memory, on disk, or both.
//!
//! A chunk that was never written to since it was stored on disk (it is *clean*) can leave memory by being
//! dropped; a *dirty* one has to be stored first. Loading fills an empty cell, which a reader may do while
//! others read, under the shard's lock for reading; leaving memory and being written to need the lock for
//! writing. So a slice of entries that a reader holds cannot go away or change under it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::entry::Entry;
use super::spill::Spill;

/// Means "not on disk".
const NOWHERE: u32 = u32::MAX;

/// Some entries of a shard.
pub(super) struct Chunk {
    entries: OnceLock<Box<[Entry]>>,
    /// Where on disk it is, in chunks, and the checksum of its bytes there.
    place: AtomicU32,
    checksum: AtomicU32,
    /// Whether memory holds more than the disk.
    dirty: AtomicBool,
    /// Whether it was used since the clock hand passed.
    touched: AtomicBool,
    /// Entries in slots in use.
    pub live: u32,
    /// Whether a slot was released in it since it was last wiped.
    pub stained: bool,
}

impl Chunk {
    /// A chunk of zeros, in memory.
    pub fn new(entries: usize, spill: Option<&Spill>) -> Self {
        let cell = OnceLock::new();
        cell.get_or_init(|| vec![Entry::default(); entries].into_boxed_slice());
        if let Some(spill) = spill {
            spill.entered(1);
        }
        Self {
            entries: cell,
            place: AtomicU32::new(NOWHERE),
            checksum: AtomicU32::new(0),
            dirty: AtomicBool::new(true),
            touched: AtomicBool::new(true),
            live: 0,
            stained: false,
        }
    }

    /// Its entries, if they are in memory.
    #[inline]
    pub fn try_resident(&self) -> Option<&[Entry]> {
        self.entries.get().map(AsRef::as_ref)
    }

    /// Its entries, which are in memory.
    ///
    /// # Panics
    /// When they are not: the writer loads entries before it changes them.
    #[inline]
    pub fn resident(&self) -> &[Entry] {
        match self.entries.get() {
            Some(entries) => entries,
            None => absent(),
        }
    }

    /// Its entries to write, which are in memory.
    ///
    /// # Panics
    /// When they are not.
    #[inline]
    pub fn entries_mut(&mut self) -> &mut [Entry] {
        *self.dirty.get_mut() = true;
        match self.entries.get_mut() {
            Some(entries) => entries,
            None => absent(),
        }
    }

    /// Whether its entries are in memory.
    #[inline]
    pub fn is_resident(&self) -> bool {
        self.entries.get().is_some()
    }

    /// Whether it holds nothing, neither in memory nor on disk.
    pub fn is_vacant(&self) -> bool {
        !self.is_resident() && self.place.load(Relaxed) == NOWHERE
    }

    /// Whether it can leave memory as it is.
    pub fn is_clean(&self) -> bool {
        !self.dirty.load(Relaxed)
    }

    /// Marks it as used.
    #[inline]
    pub fn touch(&self) {
        if !self.touched.load(Relaxed) {
            self.touched.store(true, Relaxed);
        }
    }

    /// Whether it was used since this was last called.
    pub fn take_touched(&self) -> bool {
        self.touched.swap(false, Relaxed)
    }

    /// Where on disk it is, and its checksum.
    pub fn stored(&self) -> Option<(u32, u32)> {
        let place = self.place.load(Relaxed);
        (place != NOWHERE).then(|| (place, self.checksum.load(Relaxed)))
    }

    /// Takes entries that were read from disk, unless it has them already. Returns whether it took them.
    pub fn load(&self, entries: Box<[Entry]>) -> bool {
        self.touch();
        self.entries.set(entries).is_ok()
    }

    /// Records that its entries are on disk at `place` now, and returns the place where they were before.
    pub fn store(&self, place: u32, checksum: u32) -> Option<u32> {
        let before = self.place.swap(place, Relaxed);
        self.checksum.store(checksum, Relaxed);
        self.dirty.store(false, Relaxed);
        (before != NOWHERE).then_some(before)
    }

    /// Gives up what is on disk, of a chunk that is in memory: where that was.
    pub fn unstore(&mut self) -> Option<u32> {
        *self.dirty.get_mut() = true;
        let before = std::mem::replace(self.place.get_mut(), NOWHERE);
        (before != NOWHERE).then_some(before)
    }

    /// Leaves memory, if it is clean, and returns the memory it had.
    pub fn leave(&mut self) -> Option<Box<[Entry]>> {
        if self.is_clean() && self.stored().is_some() { self.entries.take() } else { None }
    }

    /// Releases all it holds, in memory and on disk.
    pub fn vacate(&mut self, spill: Option<&Spill>) {
        let was_resident = self.entries.take().is_some();
        let place = std::mem::replace(self.place.get_mut(), NOWHERE);
        if let Some(spill) = spill {
            spill.left(usize::from(was_resident));
            if place != NOWHERE {
                spill.free(place);
            }
        }
    }
}

#[cold]
#[inline(never)]
fn absent() -> ! {
    panic!("a chunk of entries was to be used by the writer and is not in memory")
}
