//! Which parts of a table that only grows are in use: ranges of some size classes, taken and released.
//!
//! Nothing is moved to fill what was released; it waits for a range of its class.

use crate::graph::slab::{class_entries, class_of};

/// Ranges of a table of at most 2^32 elements.
pub(super) struct Slots {
    /// Per class, where released ranges begin.
    free: Vec<Vec<u32>>,
    /// Elements from here on were never taken.
    end: u64,
    /// No range goes over a multiple of 2^this.
    page_log2: u32,
}

/// The table has 2^32 elements.
#[derive(Debug)]
pub(super) struct TableFull;

impl Slots {
    /// An empty table in which no range goes over a multiple of 2^`page_log2` elements.
    pub fn new(page_log2: u32) -> Self {
        Self { free: Vec::new(), end: 0, page_log2 }
    }

    /// A range for `elements`, at least 1 and a page at most: where it begins, and its class.
    pub fn take(&mut self, elements: usize) -> Result<(u32, u8), TableFull> {
        let class = class_of(elements);
        let number = u8::try_from(class).map_err(|_| TableFull)?;
        if let Some(first) = self.free.get_mut(class).and_then(Vec::pop) {
            return Ok((first, number));
        }
        let size = class_entries(class) as u64;
        let left = (1 << self.page_log2) - (self.end & ((1 << self.page_log2) - 1));
        if left < size {
            self.release_rest(left);
        }
        let first = u32::try_from(self.end).map_err(|_| TableFull)?;
        self.end += size;
        if self.end > 1 << 32 {
            return Err(TableFull);
        }
        Ok((first, number))
    }

    /// Cuts the `left` elements at the end of the last page into released ranges.
    fn release_rest(&mut self, mut left: u64) {
        while left > 0 {
            let mut class = class_of(usize::try_from(left).unwrap_or(usize::MAX));
            if class_entries(class) as u64 > left {
                class -= 1;
            }
            if let Ok(first) = u32::try_from(self.end) {
                self.release(first, class);
            }
            self.end += class_entries(class) as u64;
            left -= class_entries(class) as u64;
        }
    }

    /// Gives back the range of `class` that begins at `first`.
    pub fn release(&mut self, first: u32, class: usize) {
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        self.free[class].push(first);
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let ranges: usize = self.free.iter().map(Vec::capacity).sum();
        self.free.capacity() * size_of::<Vec<u32>>() + ranges * size_of::<u32>()
    }

    /// Elements that the table needs.
    pub fn end(&self) -> u64 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::rng;

    #[test]
    fn ranges_do_not_overlap_and_stay_in_their_page() {
        let mut slots = Slots::new(8);
        let mut taken: Vec<(u32, u8)> = Vec::new();
        for round in 0..4_000 {
            let draw = |word, n| rng::below([5, word, round, 0], n);
            if round % 3 == 2 {
                let (first, class) = taken.swap_remove(draw(0, taken.len() as u32) as usize);
                slots.release(first, class.into());
            }
            taken.push(slots.take(1 + draw(1, 256) as usize).unwrap());
        }
        taken.sort_unstable();
        let end = |&(first, class): &(u32, u8)| first as usize + class_entries(class.into());
        assert!(taken.windows(2).all(|pair| end(&pair[0]) <= pair[1].0 as usize));
        assert!(taken.iter().all(|range| range.0 / 256 == (end(range) as u32 - 1) / 256));
        assert!(taken.iter().map(end).max().unwrap() as u64 <= slots.end());
    }
}
