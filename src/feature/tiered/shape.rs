//! Where a row is stored: its unit, the unit's block on disk, and how many of each a budget allows.
//!
//! A **unit** is what is cached: one row, or as many short ones as make about 512 bytes. A **block** is what is read,
//! written and checked: one page with as many whole units as fit, or, where a unit is longer than a page, the pages of
//! that one unit. So no row spans more pages than necessary, and its place follows from its index alone.

use crate::device::disk::{Extent, PAGE_BYTES};

/// Least bytes of a unit: below this its place in the table would cost more than the rows.
const UNIT_BYTES: usize = 512;

/// How rows of one dimension are laid out in units and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub dimension: usize,
    /// At most 128, so that a mask of rows is one number.
    pub rows_per_unit: u64,
    pub units_per_block: u64,
    pub block_pages: usize,
}

impl Shape {
    /// For rows of `dimension` values, at least one.
    pub fn new(dimension: usize) -> Self {
        let row = dimension.max(1) * size_of::<f32>();
        let rows_per_unit = UNIT_BYTES.div_ceil(row);
        let unit = rows_per_unit * row;
        Self {
            dimension,
            rows_per_unit: rows_per_unit as u64,
            units_per_block: (PAGE_BYTES / unit).max(1) as u64,
            block_pages: unit.div_ceil(PAGE_BYTES),
        }
    }

    /// The unit that holds row `index`, and which of its rows that is.
    pub fn locate(self, index: u64) -> (u64, usize) {
        (index / self.rows_per_unit, (index % self.rows_per_unit) as usize)
    }

    /// Whether `index` has a place in a file at all.
    pub fn reaches(self, index: u64) -> bool {
        let block = self.block_of(self.locate(index).0);
        let end = (block + 1).checked_mul(self.block_bytes() as u64);
        end.is_some_and(|end| i64::try_from(end).is_ok())
    }

    /// The block that holds `unit`.
    pub fn block_of(self, unit: u64) -> u64 {
        unit / self.units_per_block
    }

    /// The units of `block`.
    pub fn units_of(self, block: u64) -> std::ops::Range<u64> {
        block * self.units_per_block..(block + 1) * self.units_per_block
    }

    /// The values of `unit` within the bytes of its block.
    pub fn unit_in(self, unit: u64, block: &[u8]) -> &[f32] {
        bytemuck::cast_slice(&block[self.bytes_in_block(unit)])
    }

    /// The values of `unit` within the bytes of its block, to write.
    pub fn unit_in_mut(self, unit: u64, block: &mut [u8]) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut block[self.bytes_in_block(unit)])
    }

    fn bytes_in_block(self, unit: u64) -> std::ops::Range<usize> {
        let begin = (unit % self.units_per_block) as usize * self.unit_bytes();
        begin..begin + self.unit_bytes()
    }

    /// Values of a unit.
    pub fn unit_values(self) -> usize {
        self.dimension * self.rows_per_unit as usize
    }

    /// Bytes of a unit.
    pub fn unit_bytes(self) -> usize {
        self.unit_values() * size_of::<f32>()
    }

    /// Bytes of a block, on disk.
    pub fn block_bytes(self) -> usize {
        self.block_pages * PAGE_BYTES
    }

    /// Where `block` is in the file.
    pub fn extent(self, block: u64) -> Extent {
        Extent { page: block * self.block_pages as u64, pages: self.block_pages }
    }

    /// All rows of a unit, one bit each.
    pub fn all_rows(self) -> u128 {
        u128::MAX >> (128 - self.rows_per_unit)
    }
}

/// What a budget in bytes allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The budget in effect.
    pub budget: u64,
    /// Most blocks of one read and of one round of writing.
    pub batch_blocks: usize,
    /// Slots are allocated and freed this many at a time; a power of two.
    pub segment_slots: usize,
    slot_bytes: u64,
    least_segments: usize,
}

/// Least and most bytes of one round of writing.
pub(super) const BATCH_BYTES: std::ops::RangeInclusive<usize> = 256 * 1024..=2 * 1024 * 1024;
/// Buffers of a batch within the budget: of the writer, of what it has to read first, of the read-ahead thread, and of
/// one gather.
const BUFFERS: usize = 4;
/// Least slots, in batches: two may wait to be written, one is pinned, and one is free.
const LEAST_BATCHES: usize = 4;

impl Plan {
    /// For `budget` bytes, or the least that works. A batch has the bytes of `least_batch` at least.
    pub fn new(shape: Shape, budget: u64, least_batch: usize) -> Self {
        let wanted = usize::try_from(budget / 128).unwrap_or(usize::MAX);
        let batch_bytes = wanted.clamp(least_batch, *BATCH_BYTES.end());
        let batch_blocks = (batch_bytes / shape.block_bytes()).max(1);
        let slot_bytes = (shape.unit_bytes() + super::unit_cache::bytes_beside_a_unit(shape)) as u64;
        let mut plan =
            Self { budget, batch_blocks, segment_slots: 1, slot_bytes, least_segments: LEAST_BATCHES };
        let batch_slots = batch_blocks * shape.units_per_block as usize;
        let slots = (budget.saturating_sub(plan.buffers(shape)) / slot_bytes) as usize;
        let per_segment = (slots / 64).clamp(1, batch_slots.max(1));
        plan.segment_slots = 1 << per_segment.ilog2();
        plan.least_segments = (LEAST_BATCHES * batch_slots).div_ceil(plan.segment_slots);
        let least = plan.buffers(shape) + (plan.least_segments * plan.segment_slots) as u64 * slot_bytes;
        plan.budget = budget.max(least);
        plan
    }

    fn buffers(&self, shape: Shape) -> u64 {
        (BUFFERS * self.batch_blocks * shape.block_bytes()) as u64
    }

    /// How many segments the budget allows beside `checksums` bytes of checksums.
    pub fn segments(&self, shape: Shape, checksums: u64) -> usize {
        let left = self.budget.saturating_sub(self.buffers(shape) + checksums);
        let segments = left / (self.slot_bytes * self.segment_slots as u64);
        usize::try_from(segments).unwrap_or(usize::MAX).max(self.least_segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_to_as_few_pages_as_they_can() {
        let of = |dimension| {
            let shape = Shape::new(dimension);
            (shape.rows_per_unit, shape.units_per_block, shape.block_pages)
        };
        let (one, four, hundred, many) = (of(1), of(4), of(100), of(172));
        assert_eq!((one, four, hundred, many), ((128, 8, 1), (32, 8, 1), (2, 5, 1), (1, 5, 1)));
        assert_eq!((of(1024), of(1025), of(5000)), ((1, 1, 1), (1, 1, 2), (1, 1, 5)));
        let shape = Shape::new(172);
        assert_eq!((shape.locate(12), shape.block_of(12), shape.units_of(2)), ((12, 0), 2, 10..15));
        assert_eq!(shape.bytes_in_block(12), 2 * 688..3 * 688);
        assert_eq!((Shape::new(1).all_rows(), shape.all_rows()), (u128::MAX, 1));
        assert!(shape.reaches(1 << 40) && !shape.reaches(u64::MAX));
    }

    #[test]
    fn a_budget_pays_for_what_the_plan_says_and_a_small_one_is_raised() {
        for dimension in [1, 4, 172, 40_000] {
            let shape = Shape::new(dimension);
            for budget in [0, 1 << 20, 1 << 24, 1 << 30] {
                let plan = Plan::new(shape, budget, *BATCH_BYTES.start());
                let slots = (plan.segments(shape, 0) * plan.segment_slots) as u64;
                let bytes = slots * plan.slot_bytes + plan.buffers(shape);
                assert!(bytes <= plan.budget && plan.budget >= budget, "{dimension} {budget} {plan:?}");
                assert!(plan.budget == budget || bytes == plan.budget, "{dimension} {budget} {plan:?}");
                assert!(bytes * 10 > plan.budget * 9, "{dimension} {budget} {plan:?}");
                let batch = plan.batch_blocks as u64 * shape.units_per_block;
                assert!(slots >= 4 * batch, "{dimension} {budget} {plan:?}");
            }
        }
    }
}
